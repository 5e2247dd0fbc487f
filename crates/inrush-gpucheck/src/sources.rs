//! Where programs come from: the file tests, PyTorch's operator cases, archives.
//!
//! Graphs are lowered for the device. Inputs come with the
//! tests and cases, and are missing for archives and benchmarks.

use crate::program::{Given, Writer};
use inrush_base::{Caps, Error, Result, Scalar};
use inrush_interp::{Tensor, Value};
use inrush_loops::Loops;
use safetensors::SafeTensors;
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::path::Path;

/// Writes the programs of the Markdown files under `folder` that can run, each with its inputs. A
/// program that is refused is noted, and the others go on.
pub fn file_tests(folder: &Path, filter: &str, out: &mut Writer) -> Result<()> {
    let files = inrush_filetest::files(folder).map_err(|e| Error::machine(e.to_string()))?;
    for file in files {
        for case in inrush_filetest::cases(&file, out.caps())? {
            if !case.name.contains(filter) {
                continue;
            }
            let given = Given {
                inputs: case.inputs,
                weights: case.weights,
                symbols: case.symbols,
            };
            if let Err(e) = out.program(&case.name, &case.loops, Some(&given)) {
                out.failed(&case.name, &e);
            }
        }
    }
    Ok(())
}

/// Writes the graphs of a Markdown file, to be run on random inputs and timed; a program is named
/// by its graph.
pub fn benchmarks(file: &Path, filter: &str, out: &mut Writer) -> Result<()> {
    let read = std::fs::read_to_string(file);
    let text = read.map_err(|e| Error::machine(format!("{}: {e}", file.display())))?;
    let doc = inrush_filetest::Document::parse(&text).map_err(Error::input)?;
    for block in doc.blocks.iter().filter(|b| b.language == "graph") {
        let graph = inrush_graph::text::parse(&block.text)?;
        let name = graph.name.clone();
        if name.contains(filter) {
            let loops = lowered(graph, out.caps()).map_err(|e| e.context(&name))?;
            out.program(&name, &loops, None)?;
        }
    }
    Ok(())
}

/// Writes the kernels of an archive, without inputs: they are built and not run.
pub fn archive(path: &Path, out: &mut Writer) -> Result<()> {
    let name = path.file_stem().unwrap_or_default().to_string_lossy();
    let model = inrush_torch::open(path)?;
    let loops = lowered(model.graph, out.caps())?;
    out.program(&name, &loops, None)
}

/// Lowers a graph for a GPU by the compiler's own stages. Rewrites for library calls do not run:
/// every operator is to become a kernel.
fn lowered(graph: inrush_graph::Graph, caps: &Caps) -> Result<Loops> {
    let setup = inrush_filetest::Setup::of(caps.clone());
    let graph = setup.run(|p| {
        let graph = p.normalize(graph)?;
        p.rewrite(graph)
    })?;
    let graph = inrush_aten::decompose(graph)?;
    inrush_aten::lower(graph, inrush_aten::Processor::Gpu)
}

/// The operator cases that `python/gen_op_cases.py` wrote, each with the inputs of its first run.
pub fn operator_cases(folder: &Path, filter: &str, out: &mut Writer) -> Result<()> {
    let read = std::fs::read(folder.join("index.json"));
    let index = read.map_err(|e| Error::machine(format!("{}: {e}", folder.display())))?;
    let index: Json = serde_json::from_slice(&index).map_err(|e| Error::input(e.to_string()))?;
    for case in index["cases"].as_array().into_iter().flatten() {
        let name = case["name"].as_str().unwrap_or_default();
        if !name.contains(filter) {
            continue;
        }
        if let Err(e) = operator_case(folder, name, case, out) {
            out.failed(name, &e);
        }
    }
    Ok(())
}

/// Writes a case: its archive, and the inputs of its first run. Numbers among the inputs are in the
/// index, tensors in a safetensors file.
fn operator_case(folder: &Path, name: &str, case: &Json, out: &mut Writer) -> Result<()> {
    let model = inrush_torch::open(&folder.join(case["archive"].as_str().unwrap_or_default()))?;
    let mut weights = BTreeMap::new();
    for name in model.weights.names() {
        if let Some(view) = model.weights.view(name) {
            weights.insert(
                name.to_string(),
                Tensor::from_strided(view.dtype, view.sizes, view.strides, view.bytes)?,
            );
        }
    }
    let loops = lowered(model.graph, out.caps())?;
    let run = &case["runs"][0];
    let bytes = std::fs::read(folder.join(run["inputs"].as_str().unwrap_or_default()))
        .map_err(|e| Error::machine(e.to_string()))?;
    let given = SafeTensors::deserialize(&bytes).map_err(|e| Error::input(e.to_string()))?;
    let inputs = (0..loops.num_inputs)
        .map(|k| {
            Ok(match given.tensor(&k.to_string()) {
                Ok(view) => Value::Tensor(inrush_opcases::tensor(&view)?),
                Err(_) => match &run["scalars"][k.to_string()] {
                    Json::Bool(b) => Value::Scalar(Scalar::Bool(*b)),
                    Json::Number(n) if n.is_i64() => {
                        Value::Scalar(Scalar::Int(n.as_i64().unwrap_or_default()))
                    }
                    Json::Number(n) => Value::Scalar(Scalar::Float(n.as_f64().unwrap_or_default())),
                    _ => Value::None,
                },
            })
        })
        .collect::<Result<_>>()?;
    let given = Given {
        inputs,
        weights,
        symbols: BTreeMap::new(),
    };
    out.program(name, &loops, Some(&given))
}
