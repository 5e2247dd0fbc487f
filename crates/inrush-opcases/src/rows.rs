//! The examples of operator rows, run by PyTorch.

use inrush_aten::example::{Example, example};
use inrush_base::{DType, Error, Result};
use inrush_graph::{Arg, MemoryFormat, Type};
use serde_json::{Value as Json, json};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

/// Operators whose results are not defined by their arguments, and those that PyTorch has for other devices only.
const UNDEFINED: &[&str] = &["empty", "_fused_rms_norm_backward"];

/// Rows whose examples have results to compare with, those whose names contain `filter`.
pub fn names(filter: &str) -> Vec<&'static str> {
    // A row without an example is one of the graph itself: asserts, symbolic sizes.
    inrush_aten::rows()
        .filter(|r| !r.example.is_empty())
        // Random numbers are not PyTorch's; their distributions are compared by the tests of the Python package.
        .filter(|r| !r.draws() && !r.name.starts_with("inrush."))
        .map(|r| r.name)
        .filter(|n| n.contains(filter) && !UNDEFINED.iter().any(|u| n.contains(u)))
        .collect()
}

/// Has PyTorch run the examples: `folder` gets a file of inputs and results for each (by its number), with `archives` also
/// exported programs of so many rows each. Returns what PyTorch refused, by name.
pub fn run(
    names: &[&str],
    folder: &Path,
    archives: Option<usize>,
) -> Result<BTreeMap<String, String>> {
    let io = |e: std::io::Error| Error::machine(e.to_string());
    let python = std::env::var_os("INRUSH_PYTHON")
        .ok_or_else(|| Error::machine("INRUSH_PYTHON does not name a Python with PyTorch"))?;
    let rows: Vec<Json> = (names.iter())
        .map(|n| describe(n).map_err(|e| Error::internal(format!("{n}: {e}"))))
        .collect::<Result<_>>()?;
    std::fs::write(folder.join("rows.json"), json!(rows).to_string()).map_err(io)?;
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../python/gen_row_examples.py");
    let mut command = Command::new(python);
    command.arg(script).arg(folder);
    if let Some(n) = archives {
        command.arg(n.to_string());
    }
    if !command.status().map_err(io)?.success() {
        return Err(Error::machine("the script failed"));
    }
    let refused = std::fs::read(folder.join("errors.json")).map_err(io)?;
    serde_json::from_slice(&refused).map_err(|e| Error::internal(e.to_string()))
}

/// How near results of that dtype must come.
pub fn tolerance(dtype: DType) -> Json {
    let close = |rtol: f64, atol: f64| json!({ "kind": "close", "rtol": rtol, "atol": atol });
    match dtype {
        DType::F64 => close(1e-9, 1e-11),
        DType::F16 => close(2e-3, 1e-3),
        DType::BF16 => close(1.6e-2, 1e-2),
        d if d.is_float() => close(1e-5, 2e-6),
        _ => json!({ "kind": "exact" }),
    }
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
            Arg::None | Arg::Other(_) | Arg::Complex(..) | Arg::Body(_) => Json::Null,
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
