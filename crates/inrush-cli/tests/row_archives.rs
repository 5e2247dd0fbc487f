//! The examples of operator rows from exported programs: read, compiled to machine code and run, against PyTorch.
//!
//! Needs a Python with PyTorch, named by `INRUSH_PYTHON`. An eighth of the rows, another one for each commit; all of them with
//! `INRUSH_ROWS=all`; `INRUSH_ROW` picks those whose name contains it.

use inrush_base::{Error, Result};
use inrush_cli::args::TargetArgs;
use inrush_cli::session;
use inrush_opcases::{check, rows, tensor};
use inrush_program::Output;
use inrush_runtime::cache::Cache;
use inrush_runtime::{Tensor, Value};
use safetensors::SafeTensors;
use serde_json::Value as Json;
use std::path::Path;

/// Rows in one archive, and the share of the rows that is run.
const TOGETHER: usize = 24;
const SHARE: u64 = 8;

/// Rows whose sums cancel, so that the rounding of their terms shows.
const CANCELS: &[&str] = &["grid_sampler_2d_backward"];

#[test]
fn every_row_runs_from_an_archive() {
    if std::env::var_os("INRUSH_PYTHON").is_none() {
        eprintln!("INRUSH_PYTHON is not set: no PyTorch to export programs");
        return;
    }
    let filter = std::env::var("INRUSH_ROW").unwrap_or_default();
    let all = std::env::var_os("INRUSH_ROWS").is_some_and(|v| v == "all") || !filter.is_empty();
    let given = std::env::var("INRUSH_SEED").ok();
    let given = given.map(|s| s.parse::<u64>().expect("INRUSH_SEED is a number"));
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let today = given.unwrap_or_else(|| now.map_or(0, |d| d.as_secs() / 86400)) % SHARE;
    let names: Vec<&str> = (rows::names(&filter).into_iter().enumerate())
        .filter(|(k, _)| all || *k as u64 % SHARE == today)
        .map(|(_, n)| n)
        .collect();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let refused = rows::run(&names, folder.path(), Some(TOGETHER)).expect("examples");
    let archives = std::fs::read(folder.path().join("archives.json")).expect("archives.json");
    let archives: Json = serde_json::from_slice(&archives).expect("JSON");
    let cache = Cache::at(folder.path().join("cache"));
    let (mut ran, mut failures) = (0, Vec::new());
    for (name, e) in archives["refused"].as_object().into_iter().flatten() {
        failures.push(format!("{name}: PyTorch does not export it: {e}"));
    }
    for (name, e) in refused {
        failures.push(format!("{name}: PyTorch refuses the example: {e}"));
    }
    let mut left: Vec<(String, Vec<usize>)> = Vec::new();
    for group in archives["archives"].as_array().into_iter().flatten() {
        let file = group["file"].as_str().unwrap_or_default().to_string();
        let numbers = group["rows"].as_array().into_iter().flatten();
        left.push((
            file,
            numbers
                .filter_map(|n| n.as_u64().map(|n| n as usize))
                .collect(),
        ));
    }
    for (file, numbers) in left {
        match run(folder.path(), &file, &numbers, &names, &cache) {
            Ok(problems) => {
                ran += numbers.len();
                failures.extend(problems);
            }
            Err(e) => {
                let rows: Vec<&str> = numbers.iter().map(|k| names[*k]).collect();
                let text = e.to_string();
                let head: Vec<&str> = text.lines().take(4).collect();
                failures.push(format!("{}: {}", rows.join(", "), head.join(" / ")));
            }
        }
    }
    eprintln!(
        "{ran} of {} rows ran from archives, {} problems",
        names.len(),
        failures.len()
    );
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(ran * 10 >= names.len() * 9, "too few rows were exported");
}

/// Runs an archive with the inputs of its rows; what differs.
fn run(
    folder: &Path,
    file: &str,
    numbers: &[usize],
    names: &[&str],
    cache: &Cache,
) -> Result<Vec<String>> {
    let target = TargetArgs {
        target: "native".into(),
        threads: Some(2),
    };
    let session = session::open(&folder.join(file), &target, cache, true)?;
    let mut inputs = Vec::new();
    let mut wanted = Vec::new();
    for k in numbers {
        let bytes = std::fs::read(folder.join(format!("{k}.safetensors")))
            .map_err(|e| Error::machine(e.to_string()))?;
        let stored = SafeTensors::deserialize(&bytes).map_err(|e| Error::input(e.to_string()))?;
        for n in 0.. {
            let Ok(view) = stored.tensor(&format!("in{n}")) else {
                break;
            };
            let t = tensor(&view)?;
            inputs.push(Value::Tensor(Tensor::from_bytes(
                t.dtype, t.sizes, &t.data,
            )?));
        }
        for n in 0.. {
            let Ok(view) = stored.tensor(&format!("out{n}")) else {
                break;
            };
            wanted.push((format!("{}, result {n}", names[*k]), tensor(&view)?));
        }
    }
    let outputs = session.model.run(&inputs)?;
    let kinds = &session.model.program().outputs;
    let got: Vec<&Value> = (outputs.iter().zip(kinds))
        .filter(|(_, kind)| **kind != Output::Mutation)
        .map(|(v, _)| v)
        .collect();
    if got.len() != wanted.len() {
        return Err(Error::internal(format!(
            "{} results, PyTorch gives {}",
            got.len(),
            wanted.len()
        )));
    }
    let mut problems = Vec::new();
    for (value, (name, want)) in got.into_iter().zip(&wanted) {
        let Value::Tensor(t) = value else {
            problems.push(format!("{name}: not a tensor"));
            continue;
        };
        let got = inrush_interp::Tensor {
            dtype: t.dtype,
            sizes: t.sizes.clone(),
            data: t.to_bytes(),
        };
        let mut tolerance = rows::tolerance(want.dtype);
        if CANCELS.iter().any(|c| name.contains(c)) {
            tolerance = serde_json::json!({ "kind": "close", "rtol": 1e-4, "atol": 1e-5 });
        }
        check(name, &got, want, None, &tolerance, &mut problems)?;
    }
    Ok(problems)
}
