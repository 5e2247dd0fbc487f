//! Inputs that a program writes, and those that it only reads: `s += x`, and `x` is an output as well.

use inrush_base::{DType, ErrorKind, Isa};
use inrush_program::*;
use inrush_runtime::cache::Cache;
use inrush_runtime::cc::{Compiler, Target};
use inrush_runtime::{
    MemoryWeights, Model, Parts, Pool, Signature, Storage, Tensor, Value, Writes,
};
use std::sync::Arc;

const SOURCE: &str = "
typedef long long i64;
int accumulate(char *const *bufs, const i64 *syms, i64 begin, i64 end) {
  const float *x = (const float *)bufs[0]; float *s = (float *)bufs[1];
  for (i64 i = begin; i < end; i++) s[i] += x[i];
  return 0;
}
";

/// In memory that a write would end the process for.
static X: [f32; 6] = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0];

fn program() -> Program {
    let id = SizeId;
    // 0: rows, 1: columns, 2: stride of columns, 3: elements, 4: bytes, 5: nothing
    let sizes = [2, 3, 1, 6, 24, 0].map(Size::Const).to_vec();
    let input = |name: &str| Input {
        name: name.into(),
        ty: InputType::Tensor {
            dtype: Dt(DType::F32),
            sizes: vec![id(0), id(1)],
            strides: vec![id(1), id(2)],
        },
        reads: Reads::Elements,
    };
    let buffer = |name: &str, input, written| Buffer {
        name: name.into(),
        dtype: Dt(DType::F32),
        place: Place::Input { input },
        bytes: id(4),
        written,
    };
    Program {
        name: "written".into(),
        sizes,
        inputs: vec![input("x"), input("s")],
        buffers: vec![buffer("x", 0, false), buffer("s", 1, true)],
        arena_bytes: id(5),
        load_bytes: id(5),
        parts: None,
        kernels: vec![Kernel {
            symbol: "accumulate".into(),
            title: "accumulate".into(),
            checks: vec![],
        }],
        steps: vec![Step::Launch(Launch {
            kernel: 0,
            buffers: vec![0, 1],
            sizes: vec![],
            units: id(3),
            unit_cost: id(2),
            scratch_bytes: id(5),
            serial: true,
            beside: false,
            origins: vec![],
        })],
        outputs: vec![
            Output::Mutation,
            Output::Tensor {
                buffer: 0,
                dtype: Dt(DType::F32),
                sizes: vec![id(0), id(1)],
                strides: vec![id(1), id(2)],
            },
        ],
        ..Program::default()
    }
}

fn load() -> (tempfile::TempDir, Model) {
    let dir = tempfile::tempdir().unwrap();
    let target = Target {
        isa: Isa::Scalar,
        vector_math: false,
    };
    let cache = Cache::at(dir.path().to_path_buf());
    let compiler = Compiler::find().unwrap();
    let built = compiler.build(&[SOURCE.to_string()], &target, &cache);
    let model = Model::from_parts(Parts {
        program: program(),
        object: &built.unwrap().path,
        weights: Box::new(MemoryWeights::default()),
        pool: Arc::new(Pool::new(Some(1)).unwrap()),
    });
    (dir, model.unwrap())
}

/// Views memory that belongs to nothing that could be written.
fn constant(strides: [i64; 2], writes: Writes) -> Tensor {
    let ptr = X.as_ptr().cast_mut().cast();
    // SAFETY: a static, which nothing writes: the tests would end if a call did.
    let storage = unsafe { Storage::foreign(ptr, 24, Box::new(())) }.with_writes(writes);
    Tensor {
        dtype: DType::F32,
        sizes: vec![2, 3],
        strides: strides.to_vec(),
        offset: 0,
        storage: Arc::new(storage),
    }
}

fn zeros(strides: [i64; 2]) -> Tensor {
    Tensor::zeros(DType::F32, vec![2, 3], strides.to_vec()).unwrap()
}

fn floats(t: &Tensor) -> Vec<f32> {
    let word = |b: &[u8]| f32::from_ne_bytes([b[0], b[1], b[2], b[3]]);
    t.to_bytes().chunks(4).map(word).collect()
}

fn second(outputs: Vec<Value>) -> Tensor {
    match outputs.into_iter().nth(1) {
        Some(Value::Tensor(t)) => t,
        _ => panic!("a tensor"),
    }
}

#[test]
fn only_inputs_that_the_program_writes_are_copied_back() {
    let (_dir, model) = load();
    let written = Signature::of(model.program()).inputs;
    assert_eq!(
        written.iter().map(|i| i.written).collect::<Vec<_>>(),
        [false, true]
    );
    // Both are copied for their strides. A write into `x`, of whatever values, would end the process.
    let x = constant([1, 2], Writes::Seen);
    let s = zeros([1, 2]);
    let outputs = model.run(&[Value::Tensor(x.clone()), Value::Tensor(s.clone())]);
    assert_eq!(floats(&s), [0.0, 2.0, 4.0, 1.0, 3.0, 5.0]);
    assert_eq!(floats(&second(outputs.unwrap())), floats(&x));
}

#[test]
fn an_output_that_is_an_input_starts_where_the_input_does() {
    let (_dir, model) = load();
    let whole = Tensor::from_bytes(DType::F32, vec![12], &[1; 48]).unwrap();
    let x = Tensor {
        offset: 6,
        sizes: vec![2, 3],
        strides: vec![3, 1],
        ..whole
    };
    let s = zeros([3, 1]);
    let outputs = model.run(&[Value::Tensor(x.clone()), Value::Tensor(s)]);
    let out = second(outputs.unwrap());
    assert_eq!(out.data(), x.data());
}

#[test]
fn memory_that_cannot_be_written_is_refused_for_a_written_input() {
    let (_dir, model) = load();
    let x = constant([3, 1], Writes::Forbidden);
    for (writes, why) in [
        (
            Writes::Forbidden,
            "the model writes into `s`: its memory is read-only",
        ),
        (
            Writes::Lost,
            "the model writes into `s`: it has negative strides",
        ),
    ] {
        let s = constant([3, 1], writes);
        let e = model.run(&[Value::Tensor(x.clone()), Value::Tensor(s)]);
        let e = e.map(drop).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Input);
        assert!(e.to_string().contains(why), "{e}");
    }
    // What is only read may be read-only.
    let s = zeros([3, 1]);
    let outputs = model.run(&[Value::Tensor(x), Value::Tensor(s.clone())]);
    assert_eq!(floats(&s), X);
    assert_eq!(second(outputs.unwrap()).storage.writes(), Writes::Forbidden);
    let (x, s) = (zeros([3, 1]), zeros([3, 1]));
    let out = constant([3, 1], Writes::Forbidden);
    // SAFETY: nothing is written into memory that must not be: this is what the test is about.
    let e = unsafe {
        model.run_into(
            &[Value::Tensor(x), Value::Tensor(s)],
            &[Value::None, Value::Tensor(out)],
        )
    };
    let text = e.unwrap_err().to_string();
    assert!(
        text.contains("writes into `output 1`: its memory is read-only"),
        "{text}"
    );
}
