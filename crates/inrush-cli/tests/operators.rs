//! Custom operators: functions in Rust, what is refused, state under calls from several threads.

use inrush_base::schema::Operator;
use inrush_base::{DType, Error, Result};
use inrush_cli::args::{Emit, Format};
use inrush_cli::{io, package};
use inrush_runtime::operators::{Arg, OperatorCall, OperatorDevice, register_operator};
use inrush_runtime::{Model, Pool, Session, Tensor, Value};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};

const SCALE: &str =
    "example::scale(Tensor x, float by=2.0, str rounding=\"none\", int[]? dims=None) -> Tensor";
const COUNT: &str = "example::count(Tensor(a!) seen, Tensor x, int by=1) -> ()";
const ABOVE: &str = "example::above(Tensor x, float limit) -> Tensor";
const BLEND: &str =
    "example::blend(Tensor[] items, float[] weights, bool flip) -> (Tensor, Tensor[])";

fn example(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../../examples/operators")
        .join(name)
}

/// Functions are the process's, and tests run side by side.
fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(|e| e.into_inner())
}

fn no_slice() -> Error {
    Error::input("dense float32 is needed")
}

fn scale(call: &mut OperatorCall<'_>) -> Result<()> {
    let x: Vec<f32> = call.tensor(0)?.as_slice().ok_or_else(no_slice)?.to_vec();
    let columns = call.tensor(0)?.sizes[1] as usize;
    let (Arg::Float(by), Arg::Text(rounding)) = (&call.args[1], &call.args[2]) else {
        return Err(Error::input("other arguments"));
    };
    assert_eq!(rounding, "none");
    let rows: Vec<i64> = match &call.args[3] {
        Arg::Ints(rows) => rows.clone(),
        _ => (0..(x.len() / columns) as i64).collect(),
    };
    let by = *by as f32;
    let y = call.results[0].as_mut().ok_or_else(no_slice)?;
    let y = y.as_mut_slice::<f32>().ok_or_else(no_slice)?;
    for (k, (to, from)) in y.iter_mut().zip(x).enumerate() {
        let scaled = rows.contains(&((k / columns) as i64));
        *to = if scaled { from * by } else { from };
    }
    Ok(())
}

fn count(call: &mut OperatorCall<'_>) -> Result<()> {
    let x = call.tensor(1)?;
    let columns = x.sizes[1] as usize;
    let rows = x.as_slice::<f32>().ok_or_else(no_slice)?.chunks(columns);
    let positive = rows.filter(|r| r.iter().sum::<f32>() > 0.0).count() as i64;
    let Arg::Tensor(seen) = &mut call.args[0] else {
        return Err(Error::input("no counter"));
    };
    seen.as_mut_slice::<i64>().ok_or_else(no_slice)?[0] += positive;
    Ok(())
}

fn above(call: &mut OperatorCall<'_>) -> Result<()> {
    let Arg::Float(limit) = call.args[1] else {
        return Err(Error::input("no limit"));
    };
    let x = call.tensor(0)?.as_slice::<f32>().ok_or_else(no_slice)?;
    let found: Vec<f32> = x
        .iter()
        .copied()
        .filter(|v| f64::from(*v) > limit)
        .collect();
    let y = call.allocate(0, &[found.len() as i64])?;
    y.as_mut_slice::<f32>()
        .ok_or_else(no_slice)?
        .copy_from_slice(&found);
    Ok(())
}

fn blend(call: &mut OperatorCall<'_>) -> Result<()> {
    let (Arg::Tensors(items), Arg::Floats(weights), Arg::Bool(true)) =
        (&call.args[0], &call.args[1], &call.args[2])
    else {
        return Err(Error::input("other arguments"));
    };
    let mut parts: Vec<Vec<f32>> = Vec::new();
    for (t, w) in items.iter().flatten().zip(weights) {
        let x = t.as_slice::<f32>().ok_or_else(no_slice)?;
        parts.push(x.iter().map(|v| v * *w as f32).collect());
    }
    let sum = |k: usize| parts.iter().map(|p| p[k]).sum();
    let total: Vec<f32> = (0..parts[0].len()).map(sum).collect();
    parts.reverse();
    parts.insert(0, total);
    for (r, p) in call.results.iter_mut().flatten().zip(&parts) {
        r.as_mut_slice::<f32>()
            .ok_or_else(no_slice)?
            .copy_from_slice(p);
    }
    Ok(())
}

type Function = fn(&mut OperatorCall<'_>) -> Result<()>;

fn register_all() {
    let all: [(&str, Function); 4] = [
        (SCALE, scale),
        (COUNT, count),
        (ABOVE, above),
        (BLEND, blend),
    ];
    for (schema, f) in all {
        register_operator(schema, OperatorDevice::CPU, f).expect("a good schema");
    }
}

/// Returns the package of the example, compiled once.
fn packaged() -> &'static Path {
    static MADE: OnceLock<(tempfile::TempDir, PathBuf)> = OnceLock::new();
    let (_, path) = MADE.get_or_init(|| {
        register_all();
        let folder = tempfile::tempdir().expect("a folder");
        let output = folder.path().join("model.inrush");
        package::compile(&inrush_cli::args::CompileArgs {
            model: example("model.pt2"),
            output: output.clone(),
            target: vec!["cpu".into()],
            threads: Some(2),
            format: Format::Inrush,
            emit: None::<Emit>,
            operators: Default::default(),
            kernels: inrush_cli::args::Kernels::Code,
            tune: false,
            no_libraries: false,
            json: true,
        })
        .expect("a package");
        (folder, output)
    });
    path
}

fn open() -> Result<Model> {
    Model::open(packaged(), Arc::new(Pool::new(Some(1))?))
}

fn values(name: &str) -> Vec<Value> {
    let all = io::read(&example(name)).expect("tensors");
    all.into_values().map(Value::Tensor).collect()
}

fn floats(v: &Value) -> Vec<f32> {
    let Value::Tensor(t) = v else {
        panic!("no tensor");
    };
    assert_eq!(t.dtype, DType::F32);
    let word = |b: &[u8]| f32::from_ne_bytes([b[0], b[1], b[2], b[3]]);
    t.to_bytes().chunks(4).map(word).collect()
}

#[test]
fn functions_in_rust_give_what_eager_gives() {
    let _alone = alone();
    register_all();
    let model = open().expect("a model");
    let (given, wanted) = (
        values("model.inputs.safetensors"),
        values("model.expect.safetensors"),
    );
    let got = model.run(&given).expect("outputs");
    for (have, want) in got.iter().zip(&wanted).take(3) {
        let (have, want) = (floats(have), floats(want));
        assert_eq!(have.len(), want.len());
        assert!(have.iter().zip(&want).all(|(a, b)| (a - b).abs() < 1e-5));
    }
}

/// The buffer that an operator writes counts every call of every thread, whichever comes first.
#[test]
fn written_buffers_are_the_models() {
    let _alone = alone();
    register_all();
    let session = Session::new(open().expect("a model"));
    let given = values("model.inputs.safetensors");
    let seen = |outputs: &[Value]| match &outputs[3] {
        Value::Tensor(t) => t.to_bytes()[0],
        _ => panic!("no tensor"),
    };
    let each = seen(&session.run(&given).expect("outputs"));
    assert!(each > 0);
    std::thread::scope(|s| {
        for _ in 0..4 {
            s.spawn(|| {
                for _ in 0..3 {
                    session.run(&given).expect("outputs");
                }
            });
        }
    });
    let after = seen(&session.run(&given).expect("outputs"));
    assert_eq!(after, each * 14);
}

fn refused(schema: &str, f: Function, words: &[&str]) {
    register_operator(schema, OperatorDevice::CPU, f).expect("a good schema");
    let given = values("model.inputs.safetensors");
    let error = open().and_then(|m| m.run(&given)).map(|_| ());
    let text = error.expect_err("an error").to_string();
    for w in words {
        assert!(text.contains(w), "{w:?} is not in {text}");
    }
    register_all();
}

#[test]
fn faults_of_functions_are_errors_with_the_line() {
    let _alone = alone();
    register_all();
    drop(open());
    refused(
        "example::scale(Tensor x, float by, int rounding) -> Tensor",
        scale,
        &[
            "was compiled for the operator `example::scale(Tensor x, float by=2.0",
            "the registered one",
        ],
    );
    refused(
        SCALE,
        |_| Err(Error::input("not today")),
        &["not today", "example.scale.default", "model.py:"],
    );
    refused(
        SCALE,
        |_| panic!("oh"),
        &["`example.scale.default` panicked"],
    );
    refused(ABOVE, |_| Ok(()), &["did not allocate its result 0"]);
    refused(
        ABOVE,
        |c| c.allocate(0, &[2, 2]).map(|_| ()),
        &["which are not those that the program declares"],
    );
    refused(
        ABOVE,
        |c| c.allocate(0, &[-1]).map(|_| ()),
        &["which are not those"],
    );
    refused(
        ABOVE,
        |c| c.allocate(1, &[1]).map(|_| ()),
        &["there is no result 1"],
    );
    refused(
        SCALE,
        |c| c.allocate(0, &[1]).map(|_| ()),
        &["result 0 is allocated"],
    );
    // A size beyond memory is an error.
    refused(
        ABOVE,
        |c| c.allocate(0, &[i64::MAX / 2]).map(|_| ()),
        &["out of memory"],
    );
}

/// Models keep the functions that they were opened with.
#[test]
fn later_functions_are_for_later_models() {
    let _alone = alone();
    register_all();
    let (given, before) = (values("model.inputs.safetensors"), open().expect("a model"));
    register_operator(SCALE, OperatorDevice::CPU, |_| Err(Error::input("later")))
        .expect("a schema");
    let old = before.run(&given).map(|_| ());
    let new = open().and_then(|m| m.run(&given)).map(|_| ());
    register_all();
    old.expect("outputs");
    assert!(new.expect_err("an error").to_string().contains("later"));
}

#[test]
fn declarations_of_the_registered_are_known() {
    let _alone = alone();
    register_all();
    let found = inrush_cli::operators::declared();
    for text in [SCALE, COUNT, ABOVE, BLEND] {
        let o = Operator::parse(text).expect("a good schema");
        assert!(found.iter().any(|f| f.name == o.name), "{text}");
    }
    let t = Tensor::zeros(DType::F32, vec![1], vec![1]).expect("a tensor");
    assert!(open().expect("a model").run(&[Value::Tensor(t)]).is_err());
}
