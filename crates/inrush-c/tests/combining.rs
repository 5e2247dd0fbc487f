//! Stores that combine with what is there, by an index each: lanes of a vector meet in one place, some are masked, several
//! stores go to one buffer.

mod common;
use common::*;
use inrush_base::{Caps, DType, Isa, Scalar};
use inrush_interp::{Tensor, Value};

/// For each row, the number of places out of 8 that are inside of it.
const INSIDE: [u64; 4] = [0, 4, 7, 8];
const ROWS: i64 = INSIDE.len() as i64;
/// No multiple of a vector.
const POINTS: i64 = 77;
/// Fewer places than lanes.
const PLACES: i64 = 7;

/// Returns a program that fills each row of `b3`, then a body whose stores find places `j0` and `j1` where `v14` and `v15` are true. Places
/// come `from` a number, as samples have them, or from memory.
fn program(dtype: DType, from: From, stores: &str) -> String {
    let compute = dtype.compute();
    let at = match from {
        From::Float(_) => from.dtype(),
        From::Memory => DType::I64,
    };
    let place = |to: usize, loaded: usize| match from {
        From::Float(_) => format!("v{to}: i64 = cast v{loaded} to i64"),
        From::Memory => format!("v{to}: i64 = add v{loaded}, v7"),
    };
    let (first, next) = (place(8, 3), place(9, 6));
    let number = |n: i64| match from {
        From::Float(_) => format!("{n}.0"),
        From::Memory => n.to_string(),
    };
    format!(
        "\
loops t inputs 3
b0 x: {dtype}[{ROWS}, {POINTS}] = input 0
b1 y: {dtype}[{ROWS}, {POINTS}] = input 1
b2 at: {at}[{ROWS}, {POINTS}] = input 2
b3 o: {dtype}[{ROWS}, {PLACES}] layout [{PLACES}, 1] = temp
body [i0: {ROWS}, i1: {PLACES}] {{
  v0: {compute} = load b0[i0, i1]
  store b3[i0, i1] = v0
}}
body [i0: {ROWS}, i1: {POINTS}] {{
  v0: {compute} = load b0[i0, i1]
  v1: {compute} = load b1[i0, i1]
  v2: {at} = const {two}
  v3: {at} = load b2[i0, i1]
  v4: {at} = const {zero}
  v5: {at} = const {most}
  v6: {at} = add v3, v2
  v7: i64 = const 0
  {first}
  {next}
  v10: bool = ge v3, v4
  v11: bool = le v3, v5
  v12: bool = ge v6, v4
  v13: bool = le v6, v5
  v14: bool = and v10, v11
  v15: bool = and v12, v13
  j0: {PLACES} = indirect v8 if v14
  j1: {PLACES} = indirect v9 if v15
{stores}}}
output b3
",
        two = number(2),
        zero = number(0),
        most = number(PLACES - 1),
    )
}

#[derive(Copy, Clone)]
enum From {
    Float(DType),
    Memory,
}

impl From {
    fn dtype(self) -> DType {
        match self {
            From::Float(d) => d,
            From::Memory => DType::I64,
        }
    }
}

fn tensor(dtype: DType, value: impl FnMut(i64) -> Scalar) -> Value {
    let values: Vec<Scalar> = (0..ROWS * POINTS).map(value).collect();
    Value::Tensor(Tensor::from_scalars(dtype, &[ROWS, POINTS], &values).unwrap())
}

/// Numbers whose sums and products are exact; and places.
fn inputs(dtype: DType, from: From) -> [Value; 3] {
    let mut r = Random(7);
    let number = |n: i64| match dtype {
        DType::Bool => Scalar::Bool(n != 0),
        d if d.is_float() => Scalar::Float(n as f64),
        _ => Scalar::Int(n),
    };
    let x = tensor(dtype, |_| number(r.below(5) as i64 - 2));
    let y = tensor(dtype, |_| number(2 * r.below(2) as i64 - 1));
    // A vector and more of equal places, then others.
    let at = tensor(from.dtype(), |k| {
        let place = if k % POINTS < 20 {
            3
        } else {
            r.below(5) as i64
        };
        let far = match (from, r.below(4)) {
            (_, 0) => Scalar::Int(-1),
            (From::Float(_), 1) => Scalar::Float(f64::NAN),
            (From::Float(_), 2) => Scalar::Float(-3e38),
            (From::Memory, 1) => Scalar::Int(i64::MIN),
            (From::Memory, 2) => Scalar::Int(i64::MAX - 2),
            _ => Scalar::Int(1 << 30),
        };
        let it = if r.below(8) < INSIDE[(k / POINTS) as usize] {
            Scalar::Int(place)
        } else {
            far
        };
        it.convert(from.dtype())
    });
    [x, y, at]
}

fn check_stores(dtype: DType, from: From, stores: &str) {
    let text = program(dtype, from, stores);
    let inputs = inputs(dtype, from);
    check_at(&all_levels(), &text, Grouping::Apart, &inputs);
}

/// Returns the levels that run here, and vectors of half the width where the machine has both.
fn all_levels() -> Vec<Caps> {
    let mut out = levels();
    if machine().isa == Isa::Avx512 {
        out.push(Caps::cpu(Isa::Avx2, 2));
    }
    out
}

const F32: From = From::Float(DType::F32);
const F64: From = From::Float(DType::F64);

/// Dtypes and where their places come from.
fn kinds() -> Vec<(DType, From)> {
    use DType::*;
    let mut out = vec![(F32, self::F32), (F64, self::F64), (F64, self::F32)];
    for d in [F16, BF16, I32, I64, U8] {
        out.push((d, self::F32));
    }
    out.extend([F32, F64, BF16, I32, I64].map(|d| (d, From::Memory)));
    out
}

#[test]
fn lanes_that_meet_are_all_combined() {
    for (dtype, from) in kinds() {
        for mode in ["add", "mul", "max", "min"] {
            let value = if mode == "mul" { "v1" } else { "v0" };
            check_stores(
                dtype,
                from,
                &format!("  store.{mode} b3[i0, j0] = {value} if v14\n"),
            );
        }
    }
}

#[test]
fn two_stores_add_to_one_buffer() {
    for (dtype, from) in kinds() {
        let stores = "  store.add b3[i0, j0] = v0 if v14\n  store.add b3[i0, j1] = v1 if v15\n";
        check_stores(dtype, from, stores);
    }
}

/// Points follow each other: the sum of one is multiplied by the next.
#[test]
fn stores_of_several_modes_keep_the_order_of_points() {
    for (dtype, from) in kinds() {
        for (a, b) in [
            ("add", "mul"),
            ("mul", "add"),
            ("add", "min"),
            ("max", "add"),
        ] {
            let stores =
                format!("  store.{a} b3[i0, j0] = v0 if v14\n  store.{b} b3[i0, j1] = v1 if v15\n");
            check_stores(dtype, from, &stores);
        }
    }
}

#[test]
fn plain_stores_and_sums_keep_the_order_of_points() {
    for (dtype, from) in kinds() {
        for (a, b) in [("store", "store.add"), ("store.add", "store")] {
            let stores = format!("  {a} b3[i0, j0] = v0 if v14\n  {b} b3[i0, j1] = v1 if v15\n");
            check_stores(dtype, from, &stores);
        }
    }
}

/// A body that adds two points to each place shares no loop with one that reads these places before.
#[test]
fn what_is_read_before_sums_is_read_before_all_of_them() {
    let text = "\
loops t inputs 2
b0 x: f32[5, 64] = input 0
b1 y: f32[5, 32] = input 1
b2 o: f32[5, 32] layout [32, 1] = temp
b3 z: f32[5, 64] layout [64, 1] = temp
body [i0: 5, i1: 32] {
  v0: f32 = load b1[i0, i1]
  store b2[i0, i1] = v0
}
body [i0: 5, i1: 64] {
  v0: f32 = load b2[i0, i1 // 2]
  store b3[i0, i1] = v0
}
body [i0: 5, i1: 64] {
  v0: f32 = load b0[i0, i1]
  store.add b2[i0, i1 // 2] = v0
}
output b2
output b3
";
    let mut r = Random(5);
    let inputs = [
        r.tensor(DType::F32, &[5, 64]),
        r.tensor(DType::F32, &[5, 32]),
    ];
    let together = Grouping::Together {
        axes: 1,
        locals: vec![],
    };
    for grouping in [Grouping::Apart, together] {
        check_at(&all_levels(), text, grouping, &inputs);
    }
}

/// A NaN or infinity that is added to one place appears there and nowhere else.
#[test]
fn lanes_that_are_no_numbers_stay_where_they_belong() {
    for from in [F32, From::Memory] {
        let stores = "  store.add b3[i0, j0] = v0 if v14\n  store.add b3[i0, j1] = v1 if v15\n";
        let text = program(DType::F32, from, stores);
        let mut r = Random(3);
        let [_, _, at] = inputs(DType::F32, from);
        let mut special = || {
            tensor(DType::F32, |_| {
                Scalar::Float(match r.below(60) {
                    0 => f64::NAN,
                    1 => f64::INFINITY,
                    n => n as f64,
                })
            })
        };
        let (x, y) = (special(), special());
        check_at(&all_levels(), &text, Grouping::Apart, &[x, y, at]);
    }
}

/// Sums keep their lanes, as the tests above need; other mixtures have none.
#[test]
fn sums_keep_their_lanes() {
    let written = |dtype, from, other, isa| {
        let stores =
            format!("  store.add b3[i0, j0] = v0 if v14\n  store.{other} b3[i0, j1] = v1 if v15\n");
        let p = inrush_loops::text::parse(&program(dtype, from, &stores)).unwrap();
        source(&p, &Grouping::Apart, &Caps::cpu(isa, 2))
    };
    for (dtype, from, isa, vector) in [
        (DType::F32, F32, Isa::Avx512, "f32x16"),
        (DType::F64, F64, Isa::Avx512, "f64x8"),
        (DType::F32, F32, Isa::Avx2, "f32x8"),
        (DType::F64, F32, Isa::Avx2, "f64x4"),
    ] {
        let adds = format!(" addm_{vector}(b3");
        let text = written(dtype, from, "add", isa);
        assert!(text.contains(&adds), "{vector}: {text}");
        assert!(
            !written(dtype, from, "mul", isa).contains(&adds),
            "{vector}"
        );
    }
}
