//! Every operator case compiled to machine code and run, against PyTorch's results.
//!
//! The cases are written by `python/gen_op_cases.py`; `INRUSH_OP_CASES` names their folder. `INRUSH_OP_CASE` picks those
//! whose name contains it; `INRUSH_TARGET` the CPU level to compile for.

use inrush_base::{Error, Result, Scalar};
use inrush_cli::args::TargetArgs;
use inrush_cli::session;
use inrush_opcases::{check, tensor};
use inrush_program::{Output, Place};
use inrush_runtime::cache::Cache;
use inrush_runtime::{Model, Tensor, Value};
use safetensors::SafeTensors;
use serde_json::Value as Json;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

#[test]
fn every_case_agrees_with_pytorch() {
    let Some(folder) = std::env::var_os("INRUSH_OP_CASES") else {
        eprintln!("INRUSH_OP_CASES is not set: no operator cases to run");
        return;
    };
    inrush_runtime::poison::enable();
    let folder = Path::new(&folder);
    let index = std::fs::read(folder.join("index.json")).expect("index.json of the operator cases");
    let index: Json = serde_json::from_slice(&index).expect("index.json is JSON");
    let filter = std::env::var("INRUSH_OP_CASE").unwrap_or_default();
    let cases: Vec<&Json> = index["cases"]
        .as_array()
        .expect("a list of cases")
        .iter()
        .filter(|c| c["name"].as_str().is_some_and(|n| n.contains(&filter)))
        .collect();
    assert!(!cases.is_empty(), "no case has `{filter}` in its name");
    let cache = tempfile::tempdir().expect("a temporary folder");
    let cache = Cache::at(cache.path().to_path_buf());
    let failures = Mutex::new(Vec::new());
    let next = AtomicUsize::new(0);
    std::thread::scope(|s| {
        for _ in 0..std::thread::available_parallelism().map_or(1, |n| n.get()) {
            s.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let name = case["name"].as_str().unwrap_or("?");
                    let result = inrush_opcases::expected(
                        name,
                        run_case(folder, case, &cache),
                        inrush_opcases::REFUSED,
                    );
                    if let Err(e) = result {
                        let e = e.to_string();
                        let head: Vec<&str> = e.lines().take(6).collect();
                        failures
                            .lock()
                            .expect("no panic")
                            .push(format!("{name}: {}", head.join("\n    ")));
                    }
                }
            });
        }
    });
    let mut failures = failures.into_inner().expect("no panic");
    failures.sort();
    eprintln!(
        "{} of {} cases agree",
        cases.len() - failures.len(),
        cases.len()
    );
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn run_case(folder: &Path, case: &Json, cache: &Cache) -> Result<()> {
    let path = folder.join(case["archive"].as_str().unwrap_or_default());
    let target = TargetArgs {
        target: std::env::var("INRUSH_TARGET").unwrap_or_else(|_| "native".into()),
        threads: Some(2),
    };
    let session = session::open(&path, &target, cache, true)?;
    for run in case["runs"].as_array().into_iter().flatten() {
        run_once(folder, case, run, &session.model)?;
    }
    for reject in case["reject"].as_array().into_iter().flatten() {
        let file = folder.join(reject["inputs"].as_str().unwrap_or_default());
        let bytes =
            std::fs::read(&file).map_err(|e| Error::machine(format!("{}: {e}", file.display())))?;
        let given = SafeTensors::deserialize(&bytes).map_err(|e| Error::input(e.to_string()))?;
        let inputs = bind(case, reject, &given, &session.model)?;
        if session.model.run(&inputs).is_ok() {
            return Err(Error::internal(format!(
                "inputs that must be refused ran: {}",
                reject["name"]
            )));
        }
    }
    Ok(())
}

fn bind(case: &Json, run: &Json, given: &SafeTensors, model: &Model) -> Result<Vec<Value>> {
    (0..model.program().inputs.len())
        .map(|k| {
            let Ok(view) = given.tensor(&k.to_string()) else {
                return Ok(match &run["scalars"][k.to_string()] {
                    Json::Bool(b) => Value::Scalar(Scalar::Bool(*b)),
                    Json::Number(n) if n.is_i64() => Value::Int(n.as_i64().unwrap_or_default()),
                    Json::Number(n) => Value::Scalar(Scalar::Float(n.as_f64().unwrap_or_default())),
                    _ => Value::None,
                });
            };
            let t = tensor(&view)?;
            let t = Tensor::from_bytes(t.dtype, t.sizes, &t.data)?;
            // As the case's author had them: transposed, expanded, sliced. Other sizes of a dynamic case lie row-major.
            let ints = |key: &str| -> Option<Vec<i64>> {
                case["inputs"][k][key]
                    .as_array()
                    .and_then(|s| s.iter().map(Json::as_i64).collect())
            };
            match ints("strides") {
                Some(s) if ints("sizes").as_ref() == Some(&t.sizes) => {
                    t.with_strides(&s).map(Value::Tensor)
                }
                _ => Ok(Value::Tensor(t)),
            }
        })
        .collect()
}

fn plain(t: &Tensor) -> inrush_interp::Tensor {
    inrush_interp::Tensor {
        dtype: t.dtype,
        sizes: t.sizes.clone(),
        data: t.to_bytes(),
    }
}

fn run_once(folder: &Path, case: &Json, run: &Json, model: &Model) -> Result<()> {
    let file = |key: &str| {
        std::fs::read(folder.join(run[key].as_str().unwrap_or_default()))
            .map_err(|e| Error::machine(e.to_string()))
    };
    let (given, expect) = (file("inputs")?, file("expect")?);
    let given = SafeTensors::deserialize(&given).map_err(|e| Error::input(e.to_string()))?;
    let expect = SafeTensors::deserialize(&expect).map_err(|e| Error::input(e.to_string()))?;
    let inputs = bind(case, run, &given, model)?;
    let out = model.run(&inputs)?;
    let mut problems = Vec::new();
    let mut user = 0;
    for (value, output) in out.iter().zip(&model.program().outputs) {
        if *output == Output::Mutation {
            continue;
        }
        let entry = &run["outputs"][user];
        let name = entry["name"].as_str().unwrap_or("?");
        if let Ok(want) = expect.tensor(&user.to_string()) {
            match value {
                Value::Tensor(got) => {
                    let exact = expect
                        .tensor(&format!("ref{user}"))
                        .ok()
                        .map(|v| tensor(&v))
                        .transpose()?;
                    check(
                        name,
                        &plain(got),
                        &tensor(&want)?,
                        exact.as_ref(),
                        &entry["tol"],
                        &mut problems,
                    )?;
                }
                _ => problems.push(format!("{name}: not a tensor")),
            }
        }
        user += 1;
    }
    if user != run["outputs"].as_array().map_or(0, Vec::len) {
        problems.push(format!("{user} outputs"));
    }
    // What the call changed: buffers of the model and inputs.
    for b in model.program().buffers.iter().filter(|b| b.written) {
        match &b.place {
            Place::Weight(w) => {
                if let (Ok(want), Some(got)) = (
                    expect.tensor(&format!("buffer:{}", w.name)),
                    model.weight(&w.name),
                ) {
                    check(
                        &w.name,
                        &plain(&got),
                        &tensor(&want)?,
                        None,
                        &Json::Null,
                        &mut problems,
                    )?;
                }
            }
            Place::Input { input } => {
                let key = format!("input{input}");
                if let (Ok(want), Value::Tensor(got)) =
                    (expect.tensor(&key), &inputs[*input as usize])
                {
                    check(
                        &key,
                        &plain(got),
                        &tensor(&want)?,
                        None,
                        &Json::Null,
                        &mut problems,
                    )?;
                }
            }
            _ => {}
        }
    }
    if problems.is_empty() {
        Ok(())
    } else {
        Err(Error::internal(problems.join("\n")))
    }
}
