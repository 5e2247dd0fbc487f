//! Stage normalize: a graph in functional form, with checked metadata and nothing that has no effect.
//!
//! - arguments are complete and symbolic integers stand in them as expressions;
//! - the types that the archive declares agree with what the operators give (what cannot be proved becomes a guard);
//! - positions in memory are counted in the value that begins it, row by row;
//! - in-place operators are functional ones, writes through views reach their base, and writes to inputs are outputs;
//! - identities, asserts and dead nodes are gone.
//!
//! The order of the passes matters. Sizes are resolved first, because arguments must be
//! expressions before they are completed. Positions in memory are rewritten while in-place
//! operators still tell which values share memory. Types are checked on what the exporter
//! wrote, before functionalisation adds nodes of its own, and dead nodes go last, since
//! functionalisation leaves some.

mod asserts;
mod declared;
mod functionalize;
mod positions;
mod prune;

use functionalize::Layouts;
pub use prune::prune;
pub(crate) use prune::prune_marked;

use crate::{Args, Demands, bind, dynamic, meta, user_kernel};
use inrush_base::{Error, Result};
use inrush_expr::{Expr, Exprs, SymKind};
use inrush_graph::alike::{Looks, alike};
use inrush_graph::{Arg, Graph, Guard, Node, Relation, TensorType, Type, ValueId};
use rustc_hash::FxHashMap;
use std::collections::BTreeSet;

/// Brings a graph as exported into functional form.
pub fn normalize(graph: Graph) -> Result<Graph> {
    normalize_with(graph, Layouts::Free)
}

/// Brings a graph into functional form that is cut around calls afterwards.
///
/// # Errors
/// Those of [`normalize`].
pub fn normalize_whole(graph: Graph) -> Result<Graph> {
    normalize_with(graph, Layouts::Kept)
}

fn normalize_with(mut graph: Graph, layouts: Layouts) -> Result<Graph> {
    asserts::symbolic(&mut graph)?;
    declared::correct(&mut graph);
    complete(&mut graph)?;
    positions::from_roots(&mut graph)?;
    check_types(&mut graph)?;
    functionalize::functionalize(&mut graph, layouts)?;
    prune(&mut graph);
    Ok(graph)
}

/// Fills in default arguments. All operators without a row are named in one error.
fn complete(graph: &mut Graph) -> Result<()> {
    let mut nodes = std::mem::take(&mut graph.nodes);
    let mut unknown = BTreeSet::new();
    let mut first = None;
    for node in &mut nodes {
        if dynamic::is_control(&node.op) {
            continue;
        }
        let known = bind::signature(&node.op).map(|op| op.schema());
        let known =
            (known.or_else(|| dynamic::schema(&node.op))).or_else(|| user_kernel::schema(&node.op));
        let own = (graph.operators.iter()).find(|o| o.name == node.op);
        let Some(schema) = known.or(own.map(|o| &o.schema)) else {
            // Goes on, so that a user learns of all missing operators at once.
            first.get_or_insert_with(|| node.clone());
            unknown.insert(match graph.line_of(node) {
                Some(l) => format!("{} (at {l})", node.op),
                None => node.op.clone(),
            });
            continue;
        };
        let args = std::mem::take(&mut node.args);
        node.args =
            bind::complete(&graph.exprs, schema, args).map_err(|e| graph.locate(node, e))?;
    }
    graph.nodes = nodes;
    let Some(mut first) = first else {
        return Ok(());
    };
    let list: Vec<String> = unknown.into_iter().collect();
    let e = Error::unsupported(format!(
        "{} unknown operator(s): {}",
        list.len(),
        list.join(", ")
    ));
    // The list has the lines; the place is that of the first.
    first.line = None;
    Err(graph.locate(&first, e))
}

/// Compares the declared type of every result with what the operator's meta rule gives.
fn check_types(graph: &mut Graph) -> Result<()> {
    let mut guards = std::mem::take(&mut graph.guards);
    let demands = Demands::default();
    // Types follow from types: what looks like a call that was checked needs no second look.
    let looks = Looks::new(&graph.values);
    let mut checked: FxHashMap<u64, &Node> = FxHashMap::default();
    let ty = |v: ValueId| &graph.value(v).ty;
    for node in &graph.nodes {
        let look = looks.of(node);
        if let Some(same) = checked.get(&look)
            && alike(same, node, &|v, w| ty(v) == ty(w))
            && (same.outs.iter().zip(&node.outs)).all(|(v, w)| ty(*v) == ty(*w))
        {
            continue;
        }
        let Some(op) = crate::lookup(&node.op) else {
            continue; // an in-place operator: its result is its first argument
        };
        let args = Args {
            exprs: &graph.exprs,
            demands: &demands,
            op,
            args: &node.args,
        };
        let Some(inferred) = meta::infer(args, &graph.values) else {
            continue; // checked where it is decomposed
        };
        let inferred = inferred
            .and_then(|types| {
                demands.drain_into(&graph.exprs, &mut guards)?;
                Ok(types)
            })
            .map_err(|e| graph.locate(node, e))?;
        if inferred.len() < node.outs.len() {
            let e = Error::input(format!(
                "{} results declared, the operator gives {}",
                node.outs.len(),
                inferred.len()
            ));
            return Err(graph.locate(node, e));
        }
        for (v, got) in node.outs.iter().zip(&inferred) {
            if let (Type::Tensor(declared), Type::Tensor(got)) = (&graph.value(*v).ty, got) {
                reconcile(
                    &graph.exprs,
                    &mut guards,
                    declared,
                    got,
                    &graph.value(*v).name,
                )
                .map_err(|e| graph.locate(node, e))?;
            }
        }
        // Remembers the latest call of each hash; one that only collides is checked anew.
        checked.insert(look, node);
    }
    graph.guards = guards;
    Ok(())
}

/// Declared and computed type of a value must agree. Sizes that are equal for some inputs only are left to a guard.
pub(crate) fn reconcile(
    exprs: &Exprs,
    guards: &mut Vec<Guard>,
    declared: &TensorType,
    got: &TensorType,
    name: &str,
) -> Result<()> {
    let show = |t: &TensorType| format!("{}{}", t.dtype, exprs.show_list(&t.sizes));
    let disagree = || {
        Error::input(format!(
            "`{name}` is declared {}, but the operator gives {}",
            show(declared),
            show(got)
        ))
    };
    // Strides are not compared: the declared ones are eager's and win.
    if declared.dtype != got.dtype || declared.rank() != got.rank() {
        return Err(disagree());
    }
    for (d, g) in declared.sizes.iter().zip(&got.sizes) {
        if exprs.prove_eq(*d, *g) {
            continue;
        }
        if exprs.prove_ne(*d, *g) {
            return Err(disagree());
        }
        require(
            exprs,
            guards,
            Relation::Eq,
            *d,
            *g,
            &format!("size of `{name}`"),
        )?;
    }
    Ok(())
}

/// Adds a guard unless it is there already. Sizes read from data cannot be guarded before the call.
///
/// # Errors
///
/// If a symbol of the relation is unbacked, which means that data decide it during the call.
pub(crate) fn require(
    exprs: &Exprs,
    guards: &mut Vec<Guard>,
    relation: Relation,
    left: Expr,
    right: Expr,
    why: &str,
) -> Result<()> {
    for e in [left, right] {
        for s in exprs.free_syms(e) {
            let info = exprs.sym_info(s);
            if info.kind == SymKind::Unbacked {
                return Err(Error::unsupported(format!(
                    "a condition on `{}`, which is read from data",
                    info.name
                )));
            }
        }
    }
    let known = guards
        .iter()
        .any(|g| g.relation == relation && g.left == left && g.right == right);
    if !known {
        guards.push(Guard {
            relation,
            left,
            right,
            why: why.to_string(),
        });
    }
    Ok(())
}

/// Replaces values that are symbolic integers by their expressions.
pub fn resolve_ints(graph: &Graph, arg: &mut Arg) {
    let int = |v: &inrush_graph::ValueId| match graph.value(*v).ty {
        Type::Int(e) => Some(e),
        _ => None,
    };
    match arg {
        Arg::Value(v) => {
            if let Some(e) = int(v) {
                *arg = Arg::Int(e);
            }
        }
        // A list is resolved if all its entries are symbolic integers: sizes of `view`, for
        // instance.
        Arg::Values(vs) if !vs.is_empty() => {
            let ints: Option<Vec<Expr>> = vs.iter().map(|v| v.as_ref().and_then(int)).collect();
            if let Some(ints) = ints {
                *arg = Arg::Ints(ints);
            }
        }
        _ => {}
    }
}
