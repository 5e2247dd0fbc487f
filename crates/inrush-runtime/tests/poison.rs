//! Kernels that write outside of their buffers, or leave some of them unwritten, in poisoned memory.

use inrush_base::{DType, Isa};
use inrush_program::*;
use inrush_runtime::cache::Cache;
use inrush_runtime::cc::{Compiler, Target};
use inrush_runtime::{MemoryWeights, Model, Parts, Pool, Tensor, Value, poison};
use std::sync::Arc;

const N: i64 = 16;

/// `first` copies `x` as the test says, `second` adds its two operands.
fn run(first: &str) -> Result<Vec<f32>, String> {
    let source = format!(
        "typedef long long i64;
int first(char *const *bufs, const i64 *s, i64 begin, i64 end) {{
  const float *x = (const float *)bufs[0]; float *t = (float *)bufs[1];
  {first}
  return 0;
}}
int second(char *const *bufs, const i64 *s, i64 begin, i64 end) {{
  const float *t = (const float *)bufs[0]; const float *u = (const float *)bufs[1]; float *y = (float *)bufs[2];
  for (int i = 0; i < {N}; i++) y[i] = t[i] + u[i];
  return 0;
}}
"
    );
    let id = SizeId;
    let bytes = 4 * N;
    // 0: N, 1: 1, 2: 0, 3: bytes of a buffer, 4: of two.
    let sizes = [N, 1, 0, bytes, 2 * bytes].map(Size::Const).to_vec();
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
            scratch_bytes: id(2),
            serial: true,
            beside: false,
            origins: vec![origin.into()],
        })
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
        }],
        buffers: vec![
            buffer("x", Place::Input { input: 0 }),
            buffer("t", Place::Arena { offset: id(2) }),
            buffer("u", Place::Arena { offset: id(3) }),
            buffer("y", Place::Output { output: 0 }),
        ],
        arena_bytes: id(4),
        load_bytes: id(2),
        kernels: vec![kernel("first"), kernel("second")],
        steps: vec![
            launch(0, &[0, 2], "aten.neg.default u"),
            launch(0, &[0, 1], "aten.neg.default t"),
            launch(1, &[1, 2, 3], "aten.add.Tensor y"),
        ],
        outputs: vec![Output::Tensor {
            buffer: 3,
            dtype: Dt(DType::F32),
            sizes: vec![id(0)],
            strides: vec![id(1)],
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
    let model = Model::from_parts(Parts {
        program,
        object: &object.path,
        weights: Box::new(MemoryWeights::default()),
        pool: Arc::new(Pool::new(Some(1)).unwrap()),
    })
    .unwrap();
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

#[test]
fn what_is_right_stays_right() {
    let y = run("for (int i = 0; i < 16; i++) t[i] = -x[i];").unwrap();
    assert_eq!(y, vec![-2.0; N as usize]);
}

/// The second launch writes into `u`, which the first one has made; the first one writes after all of the arena.
#[test]
fn writes_outside_name_kernel_and_buffer() {
    let error = run("for (int i = 0; i < 17; i++) t[i] = -x[i % 16];").unwrap_err();
    for part in [
        "`first`",
        "aten.neg.default u",
        "`u`",
        "the guard after the arena",
    ] {
        assert!(error.contains(part), "{error}");
    }
    let error = run("for (int i = 0; i < 16; i++) t[i] = -x[i]; t[-1] = 0;").unwrap_err();
    assert!(error.contains("`first`"), "{error}");
    let late = "static int call; for (int i = 0; i < 16; i++) t[i] = -x[i]; if (call++) t[16] = 7;";
    let error = run(late).unwrap_err();
    assert!(
        error.contains("aten.neg.default t") && error.contains("into buffer `u`"),
        "{error}"
    );
}

#[test]
fn what_nothing_wrote_is_no_number() {
    let y = run("for (int i = 0; i < 16; i += 2) t[i] = -x[i];").unwrap();
    for (at, v) in y.iter().enumerate() {
        assert_eq!(v.is_nan(), at % 2 == 1, "{y:?}");
    }
}
