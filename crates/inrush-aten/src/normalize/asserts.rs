//! Nodes about sizes rather than tensors: arithmetic on symbolic integers, comparisons of them, asserts.
//!
//! ```text
//! %3: int s0 = aten.sym_size.int(%0, 0)
//! %4: int s0 + 1 = _operator.add(%3, 1)
//! %5: bool = _operator.le(%4, 512)            =>  guard s0 + 1 <= 512
//! aten._assert_scalar.default(%5, "too long")
//! ```
//!
//! Importers give every symbolic integer its expression as its type, so arithmetic on sizes
//! needs no evaluation: readers get the expression, and the nodes go. A comparison is
//! remembered until an assert reads it. A condition that ranges prove goes without a trace;
//! any other is a guard.

use super::{require, resolve_ints};
use inrush_base::{Error, Result};
use inrush_expr::{Expr, Exprs, Sym};
use inrush_graph::{Arg, Graph, Guard, Relation, Type, ValueId};
use rustc_hash::{FxHashMap, FxHashSet};

/// A comparison of two symbolic integers.
type Condition = (Relation, Expr, Expr);

/// Removes nodes that compute or check sizes: their results are expressions already, their conditions become guards.
pub fn symbolic(graph: &mut Graph) -> Result<()> {
    let nodes = std::mem::take(&mut graph.nodes);
    let mut guards = std::mem::take(&mut graph.guards);
    let mut conditions: FxHashMap<ValueId, Condition> = FxHashMap::default();
    let mut kept = Vec::with_capacity(nodes.len());
    let mut defined = Defined::default();
    for i in &graph.inputs {
        defined.by(graph, i.value);
    }
    for mut node in nodes {
        for arg in &mut node.args {
            resolve_ints(graph, arg);
        }
        let is_int = |v: &ValueId| matches!(graph.value(*v).ty, Type::Int(_));
        let mut reads_data = false;
        for v in &node.outs {
            reads_data |= defined.by(graph, *v);
        }
        // All results are known expressions; readers resolve them. One that reads a new symbol from data stays.
        if !node.outs.is_empty() && node.outs.iter().all(is_int) {
            if reads_data {
                kept.push(node);
            }
            continue;
        }
        if let Some((relation, swap)) = comparison(&node.op)
            && let [a, b, ..] = node.args.as_slice()
            && let (Some(a), Some(b)) = (int(&graph.exprs, a), int(&graph.exprs, b))
            && let Some(out) = node.outs.first()
        {
            // `a >= b` is `b <= a`: guards have four relations only.
            let (a, b) = if swap { (b, a) } else { (a, b) };
            conditions.insert(*out, (relation, a, b));
            continue;
        }
        let done =
            assert(graph, &node, &conditions, &mut guards).map_err(|e| graph.locate(&node, e))?;
        if !done {
            kept.push(node);
        }
    }
    graph.nodes = kept;
    graph.guards = guards;
    Ok(())
}

/// Symbols that an input or an earlier node defines.
#[derive(Default)]
struct Defined(FxHashSet<Sym>);

impl Defined {
    /// Adds the symbols of a value's type. Returns true if one of them is new.
    fn by(&mut self, graph: &Graph, v: ValueId) -> bool {
        let mut found = Vec::new();
        match &graph.value(v).ty {
            Type::Int(e) => graph.exprs.collect_syms(*e, &mut found),
            Type::Tensor(t) => (t.sizes.iter().chain(&t.strides))
                .for_each(|e| graph.exprs.collect_syms(*e, &mut found)),
            _ => {}
        }
        found
            .into_iter()
            .fold(false, |new, s| self.0.insert(s) | new)
    }
}

/// Returns an integer argument as an expression; a bool counts as 0 or 1.
fn int(exprs: &Exprs, arg: &Arg) -> Option<Expr> {
    match arg {
        Arg::Int(e) => Some(*e),
        Arg::Bool(b) => Some(exprs.int(*b as i64)),
        _ => None,
    }
}

/// The relation that a comparison operator states, and whether its sides change places.
fn comparison(op: &str) -> Option<(Relation, bool)> {
    let name = op
        .strip_prefix("_operator.")
        .or_else(|| op.strip_prefix("sym."))?;
    Some(match name {
        "eq" => (Relation::Eq, false),
        "ne" => (Relation::Ne, false),
        "le" => (Relation::Le, false),
        "lt" => (Relation::Lt, false),
        "ge" => (Relation::Le, true),
        "gt" => (Relation::Lt, true),
        _ => return None,
    })
}

/// Handles a node that only checks something. `false` when it is not such a node.
fn assert(
    graph: &Graph,
    node: &inrush_graph::Node,
    conditions: &FxHashMap<ValueId, Condition>,
    guards: &mut Vec<Guard>,
) -> Result<bool> {
    let exprs = &graph.exprs;
    let arg = |k: usize| node.args.get(k).unwrap_or(&Arg::None);
    match node.op.as_str() {
        // Sizes and strides of the assert are those of the trace, which types state already.
        // Only the dtype is compared.
        "aten._assert_tensor_metadata.default" => {
            if let (Arg::Value(v), Some(Arg::DType(want))) = (
                arg(0),
                node.args.iter().find(|a| matches!(a, Arg::DType(_))),
            ) {
                let got = graph.tensor(*v)?.dtype;
                if got != *want {
                    return Err(Error::input(format!(
                        "`{}` must be {want}, is {got}",
                        graph.value(*v).name
                    )));
                }
            }
        }
        "aten._assert_scalar.default" => match arg(0) {
            // The tracer decided it.
            Arg::Bool(true) => {}
            Arg::Value(v) => {
                let Some((relation, a, b)) = conditions.get(v) else {
                    return Err(Error::unsupported(format!(
                        "an assert on `{}`, which is no comparison of sizes",
                        graph.value(*v).name
                    )));
                };
                let why = match arg(1) {
                    Arg::Str(s) => s.clone(),
                    _ => "assertion of the model".into(),
                };
                if !holds(exprs, *relation, *a, *b) {
                    require(exprs, guards, *relation, *a, *b, &why)?;
                }
            }
            other => {
                return Err(Error::unsupported(format!("an assert on {other:?}")));
            }
        },
        "aten.sym_constrain_range.default" | "aten.sym_constrain_range_for_size.default" => {
            let Some(size) = int(exprs, arg(0)) else {
                return Err(Error::unsupported(
                    "a constraint on something that is no size",
                ));
            };
            // A bound that is none is open.
            for (bound, lower) in [(arg(1), true), (arg(2), false)] {
                let Some(b) = int(exprs, bound) else { continue };
                let (x, y) = if lower { (b, size) } else { (size, b) };
                if !holds(exprs, Relation::Le, x, y) {
                    require(exprs, guards, Relation::Le, x, y, "range of a size")?;
                }
            }
        }
        _ => return Ok(false),
    }
    Ok(true)
}

/// Returns true if ranges and canonical forms prove the relation. False means unknown.
fn holds(exprs: &Exprs, relation: Relation, a: Expr, b: Expr) -> bool {
    match relation {
        Relation::Eq => exprs.prove_eq(a, b),
        Relation::Ne => exprs.prove_ne(a, b),
        Relation::Le => exprs.prove_le(a, b),
        Relation::Lt => exprs.prove_lt(a, b),
    }
}
