//! Floats that are read from data as tensors of no dimension.
//!
//! # What it does
//! Replaces `item` of a float tensor by the tensor, arithmetic on such numbers by operators, and calls that take a number by those that
//! take a tensor.
//!
//! # When
//! Ahead of time, before everything else. Inside PyTorch `item` is called.
//!
//! # Numerics
//! Arithmetic on numbers is in `f64`, as Python's. A tensor of no dimension does not change the dtype of a result, like a number.
//!
//! # Example
//! ```text
//! %2 s: float = aten.item.default(%1)
//! %3 y: f32[4] = aten.mul.Tensor(%0, %2)
//! =>
//! %3 y: f32[4] = aten.mul.Tensor(%0, %1)
//! ```

use inrush_aten::{Builder, replace};
use inrush_base::{DType, Error, Result};
use inrush_graph::{Arg, Graph, Node, OutputValue, Type, ValueId};
use rustc_hash::FxHashMap;

/// Replaces floats that are read from data.
///
/// # Errors
/// An unsupported error for a call that takes such a number where no operator takes a tensor, and for one that is an output.
pub fn expand_numbers(mut graph: Graph) -> Result<Graph> {
    let reads = |n: &Node| {
        is_item(&n.op)
            && n.outs
                .iter()
                .any(|v| matches!(graph.value(*v).ty, Type::Float))
    };
    if !graph.nodes.iter().any(reads) {
        return bodies(graph);
    }
    let nodes = std::mem::take(&mut graph.nodes);
    let mut out = Vec::with_capacity(nodes.len());
    let mut tensors: FxHashMap<ValueId, ValueId> = FxHashMap::default();
    for mut node in nodes {
        let found = number(&mut graph, &mut out, &node, &tensors);
        match found.map_err(|e| graph.locate(&node, e))? {
            Found::Number(t) => {
                tensors.insert(node.outs[0], t);
            }
            Found::Call(op, args) => {
                (node.op, node.args) = (op, args);
                out.push(node);
            }
            Found::Same => out.push(node),
        }
    }
    graph.nodes = out;
    for o in &graph.outputs {
        if let OutputValue::Value(v) = o.value
            && tensors.contains_key(&v)
        {
            return Err(Error::unsupported(
                "a float that is read from data as an output; return the tensor of one element instead",
            ));
        }
    }
    bodies(graph)
}

fn bodies(mut graph: Graph) -> Result<Graph> {
    let bodies = std::mem::take(&mut graph.bodies);
    graph.bodies = bodies
        .into_iter()
        .map(expand_numbers)
        .collect::<Result<_>>()?;
    Ok(graph)
}

fn is_item(op: &str) -> bool {
    matches!(op, "aten.item.default" | "aten._local_scalar_dense.default")
}

/// The replacement of a call.
enum Found {
    /// Its result is a number, which this tensor holds.
    Number(ValueId),
    Call(String, Vec<Arg>),
    Same,
}

fn number(
    graph: &mut Graph,
    out: &mut Vec<Node>,
    node: &Node,
    tensors: &FxHashMap<ValueId, ValueId>,
) -> Result<Found> {
    let is_float = |v: Option<&ValueId>| v.is_some_and(|v| graph.value(*v).ty == Type::Float);
    if is_item(&node.op) && is_float(node.outs.first()) {
        let Some(Arg::Value(x)) = node.args.first().cloned() else {
            return Err(Error::input("no tensor to read"));
        };
        let t = replace(graph, out, node, |b| {
            b.call("aten.reshape.default", &[x.into(), Arg::Ints(Vec::new())])
        })?;
        return Ok(Found::Number(t));
    }
    if !node.reads().any(|v| tensors.contains_key(&v)) {
        return Ok(Found::Same);
    }
    if let Some(op) = node.op.strip_prefix("sym.") {
        let t = replace(graph, out, node, |b| arithmetic(b, op, &node.args, tensors))?;
        return Ok(Found::Number(t));
    }
    let result = node.outs.first().and_then(|v| match &graph.value(*v).ty {
        Type::Tensor(t) => Some(t.dtype),
        _ => None,
    });
    let dtype = result.ok_or_else(|| Error::unsupported("a float that is read from data here"))?;
    let op = by_tensor(&node.op)?;
    let args = replace(graph, out, node, |b| {
        let mut args = Vec::with_capacity(node.args.len());
        for a in &node.args {
            args.push(match a {
                Arg::Value(v) if tensors.contains_key(v) => tensor(b, tensors[v], dtype)?.into(),
                Arg::Float(v) if op != node.op => {
                    let wide = constant(b, *v)?;
                    tensor(b, wide, dtype)?.into()
                }
                Arg::Int(e) if op == "aten.clamp.Tensor" => {
                    let v = b.exprs.as_int(*e);
                    let v = v.ok_or_else(|| Error::unsupported("a symbolic bound"))?;
                    let wide = constant(b, v as f64)?;
                    tensor(b, wide, dtype)?.into()
                }
                other => other.clone(),
            });
        }
        Ok(args)
    })?;
    Ok(Found::Call(op, args))
}

/// Returns a constant in `f64`.
fn constant(b: &mut Builder, v: f64) -> Result<ValueId> {
    let args = [Arg::Float(v), DType::F64.into()];
    b.call("aten.scalar_tensor.default", &args)
}

/// Returns a number's tensor in a dtype that does not widen a result: narrow floats compute in `f32`.
fn tensor(b: &mut Builder, t: ValueId, result: DType) -> Result<ValueId> {
    match (b.dtype(t)?, result) {
        (DType::F64, DType::F64) => Ok(t),
        (DType::F64, _) => b.cast(t, DType::F32),
        _ => Ok(t),
    }
}

/// Returns the operator that takes a tensor instead of a number.
fn by_tensor(op: &str) -> Result<String> {
    Ok(match op {
        "aten.clamp.default" => "aten.clamp.Tensor".into(),
        "aten.clamp_min.default" => "aten.clamp_min.Tensor".into(),
        "aten.clamp_max.default" => "aten.clamp_max.Tensor".into(),
        "aten.pow.Tensor_Scalar" => "aten.pow.Tensor_Tensor".into(),
        "aten.where.ScalarOther" | "aten.where.ScalarSelf" | "aten.where.Scalar" => {
            "aten.where.self".into()
        }
        _ => match op.strip_suffix(".Scalar") {
            Some(base) => format!("{base}.Tensor"),
            None if op.ends_with(".Tensor") => op.to_string(),
            None => {
                return Err(Error::unsupported(
                    "a float that is read from data as this argument",
                ));
            }
        },
    })
}

/// Returns the result of arithmetic on numbers, in `f64`.
fn arithmetic(
    b: &mut Builder,
    op: &str,
    args: &[Arg],
    tensors: &FxHashMap<ValueId, ValueId>,
) -> Result<ValueId> {
    let mut operands = Vec::with_capacity(args.len());
    for a in args {
        operands.push(match a {
            Arg::Value(v) => match tensors.get(v) {
                Some(t) => b.cast(*t, DType::F64)?,
                None => {
                    let args = [(*v).into(), DType::F64.into()];
                    b.call("aten.scalar_tensor.default", &args)?
                }
            },
            Arg::Float(v) => constant(b, *v)?,
            Arg::Int(_) => b.call(
                "aten.scalar_tensor.default",
                &[a.clone(), DType::F64.into()],
            )?,
            _ => {
                return Err(Error::unsupported(
                    "arithmetic on a float that is read from data",
                ));
            }
        });
    }
    let (op, count) = match op {
        "add" => ("aten.add.Tensor", 2),
        "sub" => ("aten.sub.Tensor", 2),
        "mul" => ("aten.mul.Tensor", 2),
        "truediv" => ("aten.div.Tensor", 2),
        "pow" => ("aten.pow.Tensor_Tensor", 2),
        "max" => ("aten.maximum.default", 2),
        "min" => ("aten.minimum.default", 2),
        "neg" => ("aten.neg.default", 1),
        "sqrt" => ("aten.sqrt.default", 1),
        "exp" => ("aten.exp.default", 1),
        "abs" => ("aten.abs.default", 1),
        "float" => return Ok(operands[0]),
        other => {
            return Err(Error::unsupported(format!(
                "`{other}` of a float that is read from data"
            )));
        }
    };
    if operands.len() != count {
        return Err(Error::input("wrong number of operands"));
    }
    let args: Vec<Arg> = operands.into_iter().map(Arg::Value).collect();
    b.call(op, &args)
}
