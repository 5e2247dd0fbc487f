//! The example of every operator row: decomposed, lowered and interpreted, against PyTorch.
//!
//! Needs a Python with PyTorch, named by `INRUSH_PYTHON`. `INRUSH_ROW` picks the rows whose name contains it.

use inrush_aten::example::{Example, example};
use inrush_base::{DType, Error, Result};
use inrush_graph::{Arg, InputKind, MemoryFormat, Type};
use inrush_interp::{LoopsOptions, Value};
use inrush_opcases::{check, tensor};
use safetensors::SafeTensors;
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::path::Path;

/// Operators whose results are not defined by their arguments, and those that PyTorch has for other devices only.
const UNDEFINED: &[&str] = &["empty", "_fused_rms_norm_backward"];

#[test]
fn every_example_agrees_with_pytorch() {
    let Some(python) = std::env::var_os("INRUSH_PYTHON") else {
        eprintln!("INRUSH_PYTHON is not set: no PyTorch to compare with");
        return;
    };
    let filter = std::env::var("INRUSH_ROW").unwrap_or_default();
    // A row without an example is one of the graph itself: asserts, symbolic sizes.
    let names: Vec<&str> = inrush_aten::rows()
        .filter(|r| !r.example.is_empty())
        // Random numbers are not PyTorch's; their distributions are compared by the tests of the Python package.
        .filter(|r| !r.draws() && !r.name.starts_with("inrush."))
        .map(|r| r.name)
        .filter(|n| n.contains(&filter) && !UNDEFINED.iter().any(|u| n.contains(u)))
        .collect();
    assert!(!names.is_empty(), "no row has `{filter}` in its name");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let rows: Vec<Json> = names
        .iter()
        .map(|n| describe(n).unwrap_or_else(|e| panic!("{n}: {e}")))
        .collect();
    std::fs::write(folder.path().join("rows.json"), json!(rows).to_string()).expect("rows.json");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/gen_row_examples.py");
    let status = std::process::Command::new(python)
        .arg(script)
        .arg(folder.path())
        .status();
    assert!(status.is_ok_and(|s| s.success()), "the script failed");
    let refused = std::fs::read(folder.path().join("errors.json")).expect("errors.json");
    let refused: BTreeMap<String, String> = serde_json::from_slice(&refused).expect("JSON");
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

/// Sizes of inputs; a symbol is three.
fn sizes(e: &Example, sizes: &[inrush_expr::Expr]) -> Result<Vec<i64>> {
    let exprs = &e.graph.exprs;
    sizes.iter().map(|s| exprs.eval(*s, &|_| Some(3))).collect()
}

fn describe(name: &str) -> Result<Json> {
    let e = example(name)?;
    let mut inputs = Vec::new();
    for (input, range) in e.graph.inputs.iter().zip(&e.ranges) {
        if let Type::Tensor(t) = &e.graph.value(input.value).ty {
            inputs.push(json!({
                "dtype": t.dtype.torch_name(),
                "sizes": sizes(&e, &t.sizes)?,
                "range": range.map(|(lo, hi)| [lo, hi]),
            }));
        }
    }
    let position = |v: inrush_graph::ValueId| e.graph.inputs.iter().position(|i| i.value == v);
    let int = |x: &inrush_expr::Expr| e.graph.exprs.eval(*x, &|_| Some(3));
    // JSON has no infinities.
    let float = |f: &f64| json!({ "float": format!("{f:?}") });
    let schema = inrush_aten::lookup(name)
        .ok_or_else(|| Error::internal("no such row"))?
        .schema();
    let mut args = Vec::new();
    for (arg, p) in e.graph.nodes[0].args.iter().zip(&schema.params) {
        let value = match arg {
            Arg::None | Arg::Other(_) => Json::Null,
            Arg::Value(v) => json!({ "tensor": position(*v) }),
            Arg::Values(v) => {
                let list: Vec<_> = v.iter().map(|v| v.and_then(position)).collect();
                json!({ "tensors": list })
            }
            Arg::Int(x) => json!(int(x)?),
            Arg::Ints(x) => json!(x.iter().map(int).collect::<Result<Vec<_>>>()?),
            Arg::Float(f) => float(f),
            Arg::Floats(f) => json!(f.iter().map(float).collect::<Vec<_>>()),
            Arg::Bool(b) => json!(b),
            Arg::Bools(b) => json!(b),
            Arg::Str(s) => json!(s),
            Arg::DType(d) => json!({ "dtype": d.torch_name() }),
            Arg::MemoryFormat(m) => json!({ "memory_format": match m {
                MemoryFormat::Contiguous => "contiguous_format",
                MemoryFormat::ChannelsLast => "channels_last",
                MemoryFormat::ChannelsLast3d => "channels_last_3d",
                MemoryFormat::Preserve => "preserve_format",
            } }),
        };
        args.push(json!([p.name, p.keyword_only, value]));
    }
    Ok(json!({ "name": name, "inputs": inputs, "args": args }))
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
    let loops = inrush_aten::lower(graph)?;
    // A size that no input's shape tells.
    let symbols: BTreeMap<String, i64> = loops
        .exprs
        .symbols()
        .into_iter()
        .map(|s| (loops.exprs.sym_info(s).name, 3))
        .collect();
    let got = inrush_interp::loops(
        &loops,
        &inputs,
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
        let close = |rtol: f64, atol: f64| json!({ "kind": "close", "rtol": rtol, "atol": atol });
        let tolerance = match want.dtype {
            DType::F64 => close(1e-9, 1e-11),
            DType::F16 => close(2e-3, 1e-3),
            DType::BF16 => close(1.6e-2, 1e-2),
            d if d.is_float() => close(1e-5, 2e-6),
            _ => json!({ "kind": "exact" }),
        };
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
    match problems.is_empty() {
        true => Ok(()),
        false => Err(Error::internal(problems.join("; "))),
    }
}
