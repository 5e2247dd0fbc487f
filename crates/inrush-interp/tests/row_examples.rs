//! The example of every operator row: decomposed, lowered and interpreted, against PyTorch.
//!
//! Needs a Python with PyTorch, named by `INRUSH_PYTHON`. `INRUSH_ROW` picks the rows whose name contains it.

use inrush_aten::Processor;
use inrush_aten::example::example;
use inrush_base::{Error, Result};
use inrush_graph::InputKind;
use inrush_interp::{LoopsOptions, Value};
use inrush_loops::Loops;
use inrush_opcases::{check, rows, tensor};
use safetensors::SafeTensors;
use std::collections::BTreeMap;
use std::path::Path;

#[test]
fn every_example_agrees_with_pytorch() {
    if std::env::var_os("INRUSH_PYTHON").is_none() {
        eprintln!("INRUSH_PYTHON is not set: no PyTorch to compare with");
        return;
    }
    let names = rows::names(&std::env::var("INRUSH_ROW").unwrap_or_default());
    assert!(!names.is_empty(), "no row has `INRUSH_ROW` in its name");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let refused = rows::run(&names, folder.path(), None).expect("examples");
    let mut failures: Vec<String> = refused
        .iter()
        .map(|(name, e)| format!("{name}: PyTorch refuses the example: {e}"))
        .collect();
    let mut missing = 0;
    for (k, name) in names.iter().enumerate() {
        let path = folder.path().join(format!("{k}.safetensors"));
        if !path.exists() {
            // PyTorch refused it, or has no such operator: the row serves other rows.
            missing += 1;
        } else if let Err(e) = compare(name, &path) {
            let text = e.to_string();
            failures.push(format!(
                "{name}: {}",
                text.lines().next().unwrap_or_default()
            ));
        }
    }
    eprintln!(
        "{} examples, {missing} not run by PyTorch, {} differ",
        names.len(),
        failures.len()
    );
    assert!(missing * 20 < names.len(), "too few examples were run");
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

fn compare(name: &str, path: &Path) -> Result<()> {
    let bytes = std::fs::read(path).map_err(|e| Error::machine(e.to_string()))?;
    let file = SafeTensors::deserialize(&bytes).map_err(|e| Error::input(e.to_string()))?;
    let e = example(name)?;
    let mut inputs = Vec::new();
    for (k, input) in e.graph.inputs.iter().enumerate() {
        if matches!(input.kind, InputKind::User { .. }) {
            let view = file.tensor(&format!("in{k}"));
            inputs.push(match view {
                Ok(v) => Value::Tensor(tensor(&v)?),
                Err(_) => Value::None,
            });
        }
    }
    let graph = inrush_aten::decompose(e.graph)?;
    by_loops(
        &inrush_aten::lower(graph.clone(), Processor::Cpu)?,
        &inputs,
        &file,
    )?;
    by_loops(&inrush_aten::lower(graph, Processor::Gpu)?, &inputs, &file)
}

fn by_loops(loops: &Loops, inputs: &[Value], file: &SafeTensors) -> Result<()> {
    // A size that no input's shape tells.
    let symbols: BTreeMap<String, i64> = loops
        .exprs
        .symbols()
        .into_iter()
        .map(|s| (loops.exprs.sym_info(s).name, 3))
        .collect();
    let got = inrush_interp::loops(
        loops,
        inputs,
        &BTreeMap::new(),
        &symbols,
        LoopsOptions::default(),
    )?;
    let mut problems = Vec::new();
    for (k, value) in got.iter().enumerate() {
        let Ok(view) = file.tensor(&format!("out{k}")) else {
            return Err(Error::internal(format!("PyTorch gives no output {k}")));
        };
        let want = tensor(&view)?;
        let tolerance = rows::tolerance(want.dtype);
        let label = format!("output {k}");
        check(
            &label,
            value.tensor()?,
            &want,
            None,
            &tolerance,
            &mut problems,
        )?;
    }
    if problems.is_empty() {
        Ok(())
    } else {
        Err(Error::internal(problems.join("; ")))
    }
}
