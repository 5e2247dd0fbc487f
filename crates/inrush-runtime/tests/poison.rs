//! Kernels that write outside of their buffers, or leave some of them unwritten, in poisoned memory.

use inrush_base::{DType, Isa};
use inrush_program::*;
use inrush_runtime::cache::Cache;
use inrush_runtime::cc::{Compiler, Target};
use inrush_runtime::{MemoryWeights, Model, Parts, Pool, Tensor, Value, poison};
use std::sync::{Arc, Mutex, MutexGuard};

const N: i64 = 16;

const SUM: &str = "for (int i = 0; i < 16; i++) y[i] = t[i] + u[i];";
const NEGATE: &str = "for (int i = 0; i < 16; i++) t[i] = -x[i];";

/// Lets one test run at a time: notes about scratch belong to the process.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(|e| e.into_inner())
}

fn run(first: &str) -> Result<Vec<f32>, String> {
    let _alone = alone();
    let model = model(first, SUM, false)?;
    let ones: Vec<u8> = (0..N).flat_map(|_| 1f32.to_le_bytes()).collect();
    let x = Tensor::from_bytes(DType::F32, vec![N], &ones).unwrap();
    let out = model.run(&[Value::Tensor(x)]).map_err(|e| e.to_string())?;
    let Value::Tensor(y) = &out[0] else {
        panic!("a tensor")
    };
    Ok((y.to_bytes().chunks(4))
        .map(|b| f32::from_le_bytes(b.try_into().unwrap()))
        .collect())
}

/// Runs on memory of the test's own, as a host does.
fn run_planned(second: &str) -> Result<Vec<f32>, String> {
    let _alone = alone();
    let model = model(NEGATE, second, false)?;
    let plan = model.plan(&[]).unwrap();
    let (mut x, mut y) = (vec![1f32; N as usize], vec![5f32; N as usize]);
    // SAFETY: both hold as many elements as the program says.
    unsafe { model.run_planned(&plan, &[x.as_mut_ptr().cast()], &[y.as_mut_ptr().cast()]) }
        .map_err(|e| e.to_string())?;
    Ok(y)
}

/// `first` makes `t`, and `u` likewise, of `x` as the test says, with eight bytes of scratch; `second` makes `y` of both. At
/// `load`, `t` is made of `u`.
fn model(first: &str, second: &str, load: bool) -> Result<Model, String> {
    model_of(first, second, load, &[0])
}

/// With `shape`, the positions of the sizes of `y`.
fn model_of(first: &str, second: &str, load: bool, shape: &[u32]) -> Result<Model, String> {
    let source = format!(
        "typedef long long i64;
int first(char *const *bufs, const i64 *s, i64 begin, i64 end) {{
  const float *x = (const float *)bufs[0]; float *t = (float *)bufs[1]; char *scratch = bufs[2];
  {first}
  return 0;
}}
int second(char *const *bufs, const i64 *s, i64 begin, i64 end) {{
  const float *t = (const float *)bufs[0]; const float *u = (const float *)bufs[1]; float *y = (float *)bufs[2];
  {second}
  return 0;
}}
"
    );
    let id = SizeId;
    let bytes = 4 * N;
    // 0: N, 1: 1, 2: 0, 3: bytes of a buffer, 4: of two, 5: of scratch.
    let sizes = [N, 1, 0, bytes, 2 * bytes, 8].map(Size::Const).to_vec();
    let buffer = |name: &str, place| Buffer {
        name: name.into(),
        dtype: Dt(DType::F32),
        place,
        bytes: id(3),
        written: false,
    };
    let kernel = |name: &str| Kernel {
        symbol: name.into(),
        title: name.into(),
        checks: vec![],
    };
    let launch = |kernel, buffers: &[BufferId], origin: &str| {
        Step::Launch(Launch {
            kernel,
            buffers: buffers.to_vec(),
            sizes: vec![],
            units: id(1),
            unit_cost: id(1),
            scratch_bytes: id(if kernel == 0 { 5 } else { 2 }),
            serial: true,
            beside: false,
            origins: vec![origin.into()],
        })
    };
    let made = |at| {
        if load {
            Place::Persistent { offset: id(at) }
        } else {
            Place::Arena { offset: id(at) }
        }
    };
    let both = if load {
        vec![launch(0, &[2, 1], "aten.neg.default t")]
    } else {
        vec![
            launch(0, &[0, 2], "aten.neg.default u"),
            launch(0, &[0, 1], "aten.neg.default t"),
        ]
    };
    let sum = launch(1, &[1, 2, 3], "aten.add.Tensor y");
    let (load_steps, steps) = if load {
        (both, vec![sum])
    } else {
        (vec![], both.into_iter().chain([sum]).collect())
    };
    let program = Program {
        name: "poisoned".into(),
        symbols: vec![],
        sizes,
        inputs: vec![Input {
            name: "x".into(),
            ty: InputType::Tensor {
                dtype: Dt(DType::F32),
                sizes: vec![id(0)],
                strides: vec![id(1)],
            },
            reads: Reads::Elements,
        }],
        buffers: vec![
            buffer("x", Place::Input { input: 0 }),
            buffer("t", made(2)),
            buffer("u", made(3)),
            buffer("y", Place::Output { output: 0 }),
        ],
        arena_bytes: id(4),
        load_bytes: id(if load { 4 } else { 2 }),
        kernels: vec![kernel("first"), kernel("second")],
        load_steps,
        steps,
        outputs: vec![Output::Tensor {
            buffer: 3,
            dtype: Dt(DType::F32),
            sizes: shape.iter().map(|s| id(*s)).collect(),
            strides: shape.iter().map(|_| id(1)).collect(),
        }],
        ..Default::default()
    };
    poison::enable();
    let dir = tempfile::tempdir().unwrap();
    let target = Target {
        isa: Isa::Scalar,
        vector_math: false,
    };
    let object = (Compiler::find().unwrap())
        .build(&[source], &target, &Cache::at(dir.path().to_path_buf()))
        .unwrap();
    Model::from_parts(Parts {
        program,
        object: &object.path,
        weights: Box::new(MemoryWeights::default()),
        pool: Arc::new(Pool::new(Some(1)).unwrap()),
    })
    .map_err(|e| e.to_string())
}

fn says<T: std::fmt::Debug>(result: Result<T, String>, parts: &[&str]) {
    let error = result.unwrap_err();
    for part in parts {
        assert!(error.contains(part), "`{part}` is not in: {error}");
    }
}

#[test]
fn what_is_right_stays_right() {
    let all = vec![-2.0; N as usize];
    assert_eq!(run(NEGATE).unwrap(), all);
    assert_eq!(run_planned(SUM).unwrap(), all);
    let scratch =
        "for (int i = 0; i < 8; i++) scratch[i] = 1; for (int i = 0; i < 16; i++) t[i] = -x[i];";
    assert_eq!(run(scratch).unwrap(), all);
}

/// The second launch writes into `u`, which the first one has made; the first one writes after all of the arena.
#[test]
fn writes_outside_name_kernel_and_buffer() {
    says(
        run("for (int i = 0; i < 17; i++) t[i] = -x[i % 16];"),
        &[
            "`first`",
            "aten.neg.default u",
            "`u`",
            "the guard after the arena",
        ],
    );
    says(
        run("for (int i = 0; i < 16; i++) t[i] = -x[i]; t[-1] = 0;"),
        &["`first`"],
    );
    says(
        run("static int call; for (int i = 0; i < 16; i++) t[i] = -x[i]; if (call++) t[16] = 7;"),
        &["aten.neg.default t", "into buffer `u`"],
    );
}

#[test]
fn writes_outside_of_outputs_and_inputs_name_them() {
    says(
        run_planned("for (int i = 0; i <= 16; i++) y[i] = 0;"),
        &["`second`", "the guard after `y`"],
    );
    says(
        run_planned("y[-1] = 0;"),
        &["aten.add.Tensor y", "the guard in front of `y`"],
    );
    says(
        run("((float *)x)[16] = 0;"),
        &["`first`", "the guard after `x`"],
    );
}

#[test]
fn writes_outside_of_scratch_name_the_kernel() {
    says(
        run("scratch[8] = 0;"),
        &[
            "`first`",
            "aten.neg.default u",
            "after the 8 bytes of its scratch",
        ],
    );
    says(
        run("scratch[-1] = 0;"),
        &["in front of the 8 bytes of its scratch"],
    );
}

/// The load step computes from `u`, which nothing writes.
#[test]
fn load_steps_are_looked_at() {
    let _alone = alone();
    let model = model(NEGATE, SUM, true).unwrap();
    let x = Tensor::from_bytes(DType::F32, vec![N], &[0; 4 * N as usize]).unwrap();
    let Value::Tensor(y) = model.run(&[Value::Tensor(x)]).unwrap().remove(0) else {
        panic!("a tensor")
    };
    assert!(
        y.to_bytes()
            .chunks(4)
            .all(|b| f32::from_le_bytes(b.try_into().unwrap()).is_nan())
    );
    says(
        self::model("t[-1] = 0;", SUM, true).map(|_| ()),
        &[
            "`first`",
            "aten.neg.default t",
            "the guard in front of the arena",
        ],
    );
}

#[test]
fn what_nothing_wrote_is_no_number() {
    let y = run("for (int i = 0; i < 16; i += 2) t[i] = -x[i];").unwrap();
    for (at, v) in y.iter().enumerate() {
        assert_eq!(v.is_nan(), at % 2 == 1, "{y:?}");
    }
    let y = run_planned("for (int i = 0; i < 16; i += 2) y[i] = t[i];").unwrap();
    for (at, v) in y.iter().enumerate() {
        assert_eq!(v.is_nan(), at % 2 == 1, "{y:?}");
    }
    let scratch = "for (int i = 0; i < 16; i++) t[i] = ((float *)scratch)[i % 2];";
    assert!(run(scratch).unwrap().iter().all(|v| v.is_nan()));
}

/// The buffer of an output without elements has room for one.
#[test]
fn outputs_without_elements_have_no_guards() {
    let _alone = alone();
    let model = model_of(NEGATE, "(void)y;", false, &[2, 0]).unwrap();
    let plan = model.plan(&[]).unwrap();
    let mut x = vec![1f32; N as usize];
    let nothing = std::ptr::NonNull::dangling().as_ptr();
    // SAFETY: `x` holds as many elements as the program says, the output has none, and no kernel writes it.
    unsafe { model.run_planned(&plan, &[x.as_mut_ptr().cast()], &[nothing]) }.unwrap();
}
