//! A program written by hand: `y = relu(x @ w) + 1` with a symbolic batch, one contraction and one kernel.

use inrush_base::{CheckKind, DType, ErrorKind, Isa};
use inrush_program::*;
use inrush_runtime::cache::Cache;
use inrush_runtime::cc::{Compiler, Target};
use inrush_runtime::{Bound, MemoryWeights, Model, Parts, Pool, Tensor, Value};
use std::sync::Arc;

const K: i64 = 5;
const N: i64 = 32;

const SOURCE: &str = "
typedef long long i64;
void epilogue(char *const *bufs, const i64 *syms, const void *acc, i64 ld, i64 batch, i64 m0, i64 m1, i64 n0, i64 n1) {
  const float *a = acc; float *out = (float *)bufs[0];
  for (i64 m = m0; m < m1; m++) for (i64 n = n0; n < n1; n++) {
    float v = a[(m - m0) * ld + (n - n0)]; out[m * 32 + n] = v > 0 ? v : 0; }
}
int add_one(char *const *bufs, const i64 *syms, i64 begin, i64 end) {
  const float *x = (const float *)bufs[0]; float *y = (float *)bufs[1];
  if (syms[0] == 13) return 1;
  for (i64 i = begin; i < end; i++) for (i64 j = 0; j < 32; j++) y[i * 32 + j] = x[i * 32 + j] + 1;
  return 0;
}
";

fn program() -> Program {
    use Size::*;
    let id = SizeId;
    // 0: b, 1: K, 2: N, 3: 1, 4: 4 bytes, 5: b*N, 6: bytes of y, 7: b*K, 8: bytes of x, 9: 0, 10: bytes of w, 11: cost
    let sizes = vec![
        Sym(0),
        Const(K),
        Const(N),
        Const(1),
        Const(4),
        Mul(id(0), id(2)),
        Mul(id(5), id(4)),
        Mul(id(0), id(1)),
        Mul(id(7), id(4)),
        Const(0),
        Const(K * N * 4),
        Const(56),
    ];
    let buffer = |name: &str, place, bytes| Buffer {
        name: name.into(),
        dtype: Dt(DType::F32),
        place,
        bytes,
        written: false,
    };
    let kernel = |symbol: &str, checks: Vec<Check>| Kernel {
        symbol: symbol.into(),
        title: symbol.into(),
        checks,
    };
    Program {
        name: "hand".into(),
        symbols: vec![Symbol {
            name: "b".into(),
            lower: 0,
            upper: 1000,
            source: SymbolSource::Dim {
                input: 0,
                dim: 0,
                factor: 1,
                offset: 0,
            },
        }],
        sizes,
        inputs: vec![Input {
            name: "x".into(),
            ty: InputType::Tensor {
                dtype: Dt(DType::F32),
                sizes: vec![id(0), id(1)],
                strides: vec![id(1), id(3)],
            },
            reads: Reads::Elements,
        }],
        buffers: vec![
            buffer("x", Place::Input { input: 0 }, id(8)),
            buffer(
                "w",
                Place::Weight(Weight {
                    name: "w".into(),
                    sizes: vec![N, K],
                    strides: vec![K, 1],
                }),
                id(10),
            ),
            buffer("t", Place::Arena { offset: id(9) }, id(6)),
            buffer("y", Place::Output { output: 0 }, id(6)),
        ],
        arena_bytes: id(6),
        load_bytes: id(9),
        parts: None,
        kernels: vec![
            kernel("epilogue", vec![]),
            kernel(
                "add_one",
                vec![Check {
                    kind: CheckKind::Value,
                    message: "thirteen is refused".into(),
                }],
            ),
        ],
        steps: vec![
            Step::Contract(Contract {
                a: 0,
                b: 1,
                a_offset: id(9),
                b_offset: id(9),
                batch: vec![],
                m: vec![Level {
                    size: id(0),
                    stride: id(1),
                }],
                n: vec![Level {
                    size: id(2),
                    stride: id(1),
                }],
                k: vec![KLevel {
                    size: id(1),
                    a_stride: id(3),
                    b_stride: id(3),
                }],
                acc: Dt(DType::F32),
                epilogue: 0,
                buffers: vec![2],
                sizes: vec![],
                store: None,
                origins: vec![],
            }),
            Step::Launch(Launch {
                kernel: 1,
                buffers: vec![2, 3],
                sizes: vec![id(0)],
                units: id(0),
                unit_cost: id(11),
                scratch_bytes: id(9),
                serial: false,
                beside: false,
                origins: vec![],
            }),
        ],
        outputs: vec![Output::Tensor {
            buffer: 3,
            dtype: Dt(DType::F32),
            sizes: vec![id(0), id(2)],
            strides: vec![id(2), id(3)],
        }],
        ..Program::default()
    }
}

fn floats(v: &[f32]) -> Vec<u8> {
    v.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn load() -> (tempfile::TempDir, Model, Vec<f32>) {
    load_of(program())
}

fn load_of(program: Program) -> (tempfile::TempDir, Model, Vec<f32>) {
    let dir = tempfile::tempdir().unwrap();
    let target = Target {
        isa: Isa::Scalar,
        vector_math: false,
    };
    let built = Compiler::find()
        .unwrap()
        .build(
            &[SOURCE.to_string()],
            &target,
            &Cache::at(dir.path().to_path_buf()),
        )
        .unwrap();
    let w: Vec<f32> = (0..K * N)
        .map(|i| ((i * 7919) % 23) as f32 - 11.0)
        .collect();
    let mut weights = MemoryWeights::default();
    weights.insert("w", DType::F32, vec![N, K], floats(&w));
    let pool = Arc::new(Pool::new(Some(2)).unwrap());
    let model = Model::from_parts(Parts {
        program,
        object: &built.path,
        weights: Box::new(weights),
        pool,
    });
    (dir, model.unwrap(), w)
}

fn input(b: i64) -> (Vec<f32>, Tensor) {
    let x: Vec<f32> = (0..b * K)
        .map(|i| ((i * 104_729) % 17) as f32 / 4.0 - 2.0)
        .collect();
    let t = Tensor::from_bytes(DType::F32, vec![b, K], &floats(&x)).unwrap();
    (x, t)
}

fn expected(x: &[f32], w: &[f32], b: i64) -> Vec<f32> {
    let mut y = Vec::new();
    for i in 0..b as usize {
        for n in 0..N as usize {
            let dot: f32 = (0..K as usize)
                .map(|k| x[i * K as usize + k] * w[n * K as usize + k])
                .sum();
            y.push(dot.max(0.0) + 1.0);
        }
    }
    y
}

fn result(values: &[Value]) -> Vec<f32> {
    let Value::Tensor(t) = &values[0] else {
        panic!("a tensor")
    };
    t.to_bytes()
        .chunks_exact(4)
        .map(|c| f32::from_le_bytes(c.try_into().unwrap()))
        .collect()
}

#[test]
fn every_batch_size_runs_with_one_program() {
    let (_dir, model, w) = load();
    for b in [0, 1, 2, 3, 17, 640, 1] {
        let (x, t) = input(b);
        let got = result(&model.run(&[Value::Tensor(t)]).unwrap());
        assert_eq!(got, expected(&x, &w, b), "batch {b}");
    }
}

#[test]
fn sums_that_are_stored_as_they_are_bypass_the_epilogue() {
    let mut program = program();
    if let Step::Contract(c) = &mut program.steps[0] {
        c.store = Some(Store {
            offset: SizeId(9),
            batch: vec![],
            m: vec![SizeId(2)],
            n: vec![SizeId(3)],
        });
    }
    program.verify().unwrap();
    assert_eq!(text::parse(&program.print()).unwrap(), program);
    let (_dir, model, w) = load_of(program);
    for b in [1, 17, 640] {
        let (x, t) = input(b);
        let got = result(&model.run(&[Value::Tensor(t)]).unwrap());
        let want = |i: usize| {
            let (m, n) = (i / N as usize, i % N as usize);
            let k = 0..K as usize;
            let dot: f32 = k
                .map(|k| x[m * K as usize + k] * w[n * K as usize + k])
                .sum();
            // The epilogue would have left nothing below 0.
            dot + 1.0
        };
        assert_eq!(got.len(), (b * N) as usize);
        assert!(
            got.iter().enumerate().all(|(i, y)| *y == want(i)),
            "batch {b}"
        );
        assert!(got.iter().any(|y| *y < 0.0));
    }
}

#[test]
fn an_input_with_other_strides_is_copied() {
    let (_dir, model, w) = load();
    let (x, t) = input(6);
    let transposed = t.with_strides(&[1, 6]).unwrap();
    assert_eq!(
        result(&model.run(&[Value::Tensor(transposed)]).unwrap()),
        expected(&x, &w, 6)
    );
}

#[test]
fn an_input_in_whose_memory_positions_are_counted_is_not_copied() {
    let (x, t) = input(6);
    let transposed = t.with_strides(&[1, 6]).unwrap();
    let later = Tensor {
        offset: K as usize,
        sizes: vec![5, K],
        ..t.clone()
    };
    for reads in [Reads::Memory, Reads::Storage] {
        let mut program = program();
        program.inputs[0].reads = reads;
        assert_eq!(text::parse(&program.print()).unwrap(), program);
        let (_dir, model, w) = load_of(program);
        let run = |t: &Tensor| model.run(&[Value::Tensor(t.clone())]);
        assert_eq!(result(&run(&t).unwrap()), expected(&x, &w, 6));
        let e = run(&transposed).map(drop).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Input);
        assert!(
            e.to_string()
                .contains("must have strides [5, 1], got [1, 6]"),
            "{e}"
        );
        match (run(&later), reads) {
            (Ok(y), Reads::Memory) => assert_eq!(result(&y), expected(&x[K as usize..], &w, 5)),
            (Err(e), Reads::Storage) => {
                assert!(e.to_string().contains("its offset is 5"), "{e}");
            }
            (other, _) => panic!("{reads:?}: {}", other.is_ok()),
        }
    }
}

#[test]
fn wrong_inputs_are_named() {
    let (_dir, model, _) = load();
    let say = |v: Vec<Value>| {
        let e = model.run(&v).map(drop).unwrap_err();
        assert_eq!(e.kind().exit_code(), 2);
        e.to_string()
    };
    assert!(say(vec![]).contains("takes 1 inputs (x)"));
    assert!(say(vec![Value::Int(3)]).contains("`x` must be a tensor"));
    let wrong = |d, sizes: Vec<i64>| {
        Value::Tensor(Tensor::zeros(d, sizes.clone(), vec![1; sizes.len()]).unwrap())
    };
    assert!(say(vec![wrong(DType::F64, vec![2, K])]).contains("float32"));
    assert!(say(vec![wrong(DType::F32, vec![2])]).contains("2 dimensions"));
    assert!(say(vec![wrong(DType::F32, vec![2, 4])]).contains("dimension 1 must be 5"));
    assert!(say(vec![wrong(DType::F32, vec![1001, K])]).contains("range"));
    let e = model.run(&[wrong(DType::F32, vec![13, K])]).map(drop);
    assert_eq!(e.unwrap_err().kind(), ErrorKind::InvalidValue);
    assert!(say(vec![wrong(DType::F32, vec![13, K])]).contains("thirteen is refused"));
}

#[test]
fn missing_and_mistyped_weights_and_objects_are_named() {
    let pool = Arc::new(Pool::new(Some(1)).unwrap());
    let bind = |weights| Bound::new(program(), Box::new(weights), pool.clone());
    let e = bind(MemoryWeights::default()).err().unwrap();
    assert!(e.to_string().contains("weight `w` is missing"), "{e}");
    let with = |dtype, n: i64| {
        let mut weights = MemoryWeights::default();
        weights.insert("w", dtype, vec![n, K], vec![0; 4 * (n * K) as usize]);
        weights
    };
    let e = bind(with(DType::I32, N)).err().unwrap();
    assert!(e.to_string().contains("the weight `w` is i32"), "{e}");
    let e = bind(with(DType::F32, N + 1)).err().unwrap();
    assert!(e.to_string().contains("the program wants"), "{e}");
    let bound = bind(with(DType::F32, N)).unwrap();
    let e = bound
        .load(std::path::Path::new("/nonexistent.so"))
        .err()
        .unwrap();
    assert!(e.to_string().contains("/nonexistent.so"), "{e}");
}

#[test]
fn calls_from_several_threads_agree() {
    let (_dir, model, w) = load();
    std::thread::scope(|s| {
        for b in 1..5 {
            let (model, w) = (&model, &w);
            s.spawn(move || {
                let (x, t) = input(b * 50);
                for _ in 0..50 {
                    assert_eq!(
                        result(&model.run(&[Value::Tensor(t.clone())]).unwrap()),
                        expected(&x, w, b * 50)
                    );
                }
            });
        }
    });
}

#[test]
fn outputs_that_are_kept_are_not_overwritten() {
    let (_dir, model, w) = load();
    // Large enough to be recycled.
    let run = |b: i64| {
        let (x, t) = input(b);
        (model.run(&[Value::Tensor(t)]).unwrap(), expected(&x, &w, b))
    };
    let kept: Vec<_> = (0..4).map(|_| run(999)).collect();
    drop(run(999));
    let later = run(998);
    for (got, want) in kept.iter().chain([&later]) {
        assert_eq!(&result(got), want);
    }
    drop(model);
    assert_eq!(
        &result(&kept[0].0),
        &kept[0].1,
        "outputs outlive their model"
    );
}
