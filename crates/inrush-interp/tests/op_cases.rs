//! Every operator case through import, normalize, decompose, lower and the loop interpreter, against PyTorch's results.
//!
//! The cases are written by `python/gen_op_cases.py`; `INRUSH_OP_CASES` names their folder. `INRUSH_OP_CASE` picks those
//! whose name contains it.

use inrush_aten::Processor;
use inrush_base::{Error, Result, Scalar};
use inrush_interp::{LoopsOptions, Tensor, Value};
use inrush_loops::Output;
use inrush_opcases::{REFUSED, check, expected, tensor};
use safetensors::SafeTensors;
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::path::Path;

/// Cases that the interpreters lack and compiled code has.
const GAPS: &[(&str, &str)] = &[
    ("constant_inputs", "another type"),
    // Compiled code runs these in parts.
    ("index", "depends on the data"),
    ("unbacked_item", "item"),
    ("unbacked_mask", "depends on the data"),
    ("mask", "masks as indices"),
    // The loop interpreter adds one by one; the scheduler splits and widens long sums.
    ("reduce_large", "var_long"),
];

#[test]
fn every_case_agrees_with_pytorch() {
    let Some(folder) = std::env::var_os("INRUSH_OP_CASES") else {
        eprintln!("INRUSH_OP_CASES is not set: no operator cases to run");
        return;
    };
    let folder = Path::new(&folder);
    let index = std::fs::read(folder.join("index.json")).expect("index.json of the operator cases");
    let index: Json = serde_json::from_slice(&index).expect("index.json is JSON");
    let filter = std::env::var("INRUSH_OP_CASE").unwrap_or_default();
    let gaps: Vec<(&str, &str)> = REFUSED.iter().chain(GAPS).copied().collect();
    let (mut ran, mut failures) = (0, Vec::new());
    for case in index["cases"].as_array().expect("a list of cases") {
        let name = case["name"].as_str().expect("a name");
        if !name.contains(&filter) {
            continue;
        }
        ran += 1;
        let outcome = expected(name, run_case(folder, case), &gaps);
        if let Err(e) = outcome {
            let e = e.to_string();
            let head: Vec<&str> = e.lines().take(6).collect();
            failures.push(format!("{name}: {}", head.join("\n    ")));
        }
    }
    assert!(ran > 0, "no case has `{filter}` in its name");
    eprintln!("{} of {ran} cases agree", ran - failures.len());
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// An output: the user's, or the new contents of a weight or input.
enum Target {
    User,
    Weight(String),
    Input(usize),
}

type Weights = BTreeMap<String, Tensor>;

/// Runs a case with inputs and weights.
type Run<'a> = dyn Fn(&[Value], &Weights) -> Result<Vec<Value>> + 'a;

/// A way to evaluate a case.
struct Evaluator<'a> {
    inputs: usize,
    targets: Vec<Target>,
    run: Box<Run<'a>>,
}

fn run_case(folder: &Path, case: &Json) -> Result<()> {
    let model = inrush_torch::open(&folder.join(case["archive"].as_str().unwrap_or_default()))?;
    let mut weights = BTreeMap::new();
    for name in model.weights.names() {
        let view = model.weights.view(name).expect("a name that was listed");
        weights.insert(
            name.to_string(),
            Tensor::from_strided(view.dtype, view.sizes, view.strides, view.bytes)?,
        );
    }
    let graph = inrush_aten::normalize(model.graph)?;
    let normalized = graph.clone();
    let graph = inrush_aten::decompose(graph)?;
    // Where the loops for GPUs are others, these are run as well.
    let mut ways = vec![inrush_aten::lower(graph.clone(), Processor::Cpu)?];
    let other = inrush_aten::lower(graph, Processor::Gpu)?;
    if other.print() != ways[0].print() {
        ways.push(other);
    }
    let mut by_loops = Vec::new();
    for loops in &ways {
        inrush_loops::verify::verify(loops)?;
        by_loops.push(of_loops(loops, &normalized)?);
    }
    let mut by_graph = Some(of_graph(&normalized)?);
    if let Some(n) = (normalized.nodes.iter()).find(|n| !inrush_interp::knows(&n.op)) {
        eprintln!("{}: no definition of {}", case["name"], n.op);
        by_graph = None;
    }
    for run in case["runs"].as_array().into_iter().flatten() {
        let mut copy = weights.clone();
        if let Some(by_graph) = &by_graph {
            run_once(folder, case, run, by_graph, &mut copy).map_err(|e| e.context("graph"))?;
        }
        let before = weights.clone();
        for way in &by_loops {
            weights.clone_from(&before);
            run_once(folder, case, run, way, &mut weights).map_err(|e| e.context("loops"))?;
        }
    }
    Ok(())
}

fn of_loops<'a>(
    loops: &'a inrush_loops::Loops,
    graph: &inrush_graph::Graph,
) -> Result<Evaluator<'a>> {
    let targets = loops.outputs.iter().map(|o| match o {
        Output::Mutation { input, .. } => match &loops.buffer(*input).kind {
            inrush_loops::BufferKind::Weight { name } => Ok(Target::Weight(name.clone())),
            inrush_loops::BufferKind::Input { index } => Ok(Target::Input(*index)),
            _ => Err(Error::internal("a mutation of neither input nor weight")),
        },
        _ => Ok(Target::User),
    });
    // Loops do not say which input is which symbol; the graph does.
    let mut integers = Vec::new();
    for i in &graph.inputs {
        if let (inrush_graph::InputKind::User { index }, inrush_graph::Type::Int(e)) =
            (&i.kind, &graph.value(i.value).ty)
            && let Some(s) = graph.exprs.as_sym(*e)
        {
            integers.push((*index, graph.exprs.sym_info(s).name));
        }
    }
    Ok(Evaluator {
        inputs: loops.num_inputs,
        targets: targets.collect::<Result<_>>()?,
        run: Box::new(move |inputs, weights| {
            let mut symbols = BTreeMap::new();
            for (k, name) in &integers {
                if let Some(Value::Scalar(Scalar::Int(v))) = inputs.get(*k) {
                    symbols.insert(name.clone(), *v);
                }
            }
            inrush_interp::loops(loops, inputs, weights, &symbols, LoopsOptions::default())
        }),
    })
}

fn of_graph(graph: &inrush_graph::Graph) -> Result<Evaluator<'_>> {
    use inrush_graph::{InputKind, OutputKind};
    let targets = graph.outputs.iter().map(|o| match o.kind {
        OutputKind::Mutation { input } => match &graph.inputs[input].kind {
            InputKind::User { index } => Target::Input(*index),
            InputKind::Parameter { name }
            | InputKind::Buffer { name, .. }
            | InputKind::Constant { name } => Target::Weight(name.clone()),
        },
        OutputKind::User { .. } => Target::User,
    });
    let users = graph
        .inputs
        .iter()
        .filter(|i| matches!(i.kind, InputKind::User { .. }));
    Ok(Evaluator {
        inputs: users.count(),
        targets: targets.collect(),
        run: Box::new(|inputs, weights| {
            inrush_interp::graph(graph, inputs, weights, &BTreeMap::new())
        }),
    })
}

fn run_once(
    folder: &Path,
    case: &Json,
    run: &Json,
    by: &Evaluator,
    weights: &mut Weights,
) -> Result<()> {
    let file = |key: &str| {
        std::fs::read(folder.join(run[key].as_str().unwrap_or_default()))
            .map_err(|e| Error::machine(e.to_string()))
    };
    let (given, expect) = (file("inputs")?, file("expect")?);
    let given = SafeTensors::deserialize(&given).map_err(|e| Error::input(e.to_string()))?;
    let expect = SafeTensors::deserialize(&expect).map_err(|e| Error::input(e.to_string()))?;
    let leaves = case["inputs"].as_array().map_or(0, Vec::len);
    let mut inputs = Vec::new();
    for k in 0..leaves.max(by.inputs) {
        inputs.push(match given.tensor(&k.to_string()) {
            Ok(view) => Value::Tensor(tensor(&view)?),
            Err(_) => match &run["scalars"][k.to_string()] {
                Json::Bool(b) => Value::Scalar(Scalar::Bool(*b)),
                Json::Number(n) if n.is_i64() => {
                    Value::Scalar(Scalar::Int(n.as_i64().unwrap_or_default()))
                }
                Json::Number(n) => Value::Scalar(Scalar::Float(n.as_f64().unwrap_or_default())),
                _ => Value::None,
            },
        });
    }
    inputs.truncate(by.inputs);
    let out = (by.run)(&inputs, weights)?;
    let mut user = 0;
    let mut problems = Vec::new();
    for (value, target) in out.iter().zip(&by.targets) {
        let key = match target {
            Target::User => None,
            Target::Weight(name) => Some(format!("buffer:{name}")),
            Target::Input(index) => Some(format!("input{index}")),
        };
        if let Some(key) = key {
            let Value::Tensor(new) = value else { continue };
            if let Ok(want) = expect.tensor(&key) {
                let rounding = serde_json::json!({"rtol": 1e-5, "atol": 1e-7});
                check(&key, new, &tensor(&want)?, None, &rounding, &mut problems)?;
            }
            if let Target::Weight(name) = target {
                weights.insert(name.clone(), new.clone());
            }
            continue;
        }
        let entry = &run["outputs"][user];
        let part = |v: &Json| v.as_str().unwrap_or("?").to_string();
        let name = &format!("{}.{}", part(&case["name"]), part(&entry["name"]));
        if let Ok(want) = expect.tensor(&user.to_string()) {
            let Value::Tensor(got) = value else {
                problems.push(format!("{name}: not a tensor but {value:?}"));
                continue;
            };
            let exact = match expect.tensor(&format!("ref{user}")) {
                Ok(v) => Some(tensor(&v)?),
                Err(_) => None,
            };
            check(
                name,
                got,
                &tensor(&want)?,
                exact.as_ref(),
                &entry["tol"],
                &mut problems,
            )?;
        }
        user += 1;
    }
    if user != run["outputs"].as_array().map_or(0, Vec::len) {
        problems.push(format!("{user} outputs"));
    }
    if problems.is_empty() {
        Ok(())
    } else {
        Err(Error::internal(problems.join("\n")))
    }
}
