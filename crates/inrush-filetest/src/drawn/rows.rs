//! Examples of operator rows with other sizes, layouts and dtypes.
//!
//! This family covers operators that no other family names: each row of the table has an example,
//! from which a call is drawn by changing one size wherever it occurs, the layouts of inputs, and
//! in some graphs the dtype. A new row takes part without further work.

use super::make::{Make, positional};
use inrush_aten::example::example;
use inrush_aten::{Route, rows};
use inrush_base::DType;
use inrush_graph::{Arg, Type, ValueId};
use std::collections::BTreeMap;
use std::sync::OnceLock;

/// Rows whose results are defined by their arguments.
fn names() -> &'static [&'static str] {
    static NAMES: OnceLock<Vec<&'static str>> = OnceLock::new();
    NAMES.get_or_init(|| {
        rows()
            // Rows that draw random numbers have no result to compare, nor have those whose
            // result is uninitialised memory (`empty`).
            .filter(|r| !r.draws() && !r.example.is_empty())
            .filter(|r| r.name.starts_with("aten.") && !r.name.contains("empty"))
            // They write their running statistics, which is a second kind of output.
            .filter(|r| !r.name.contains("batch_norm"))
            .filter(|r| !matches!(r.route, Route::Assert))
            .map(|r| r.name)
            .collect()
    })
}

/// Draws a call of a row; `None` if the changed sizes do not fit its other arguments.
pub(super) fn row(m: &mut Make) -> Option<ValueId> {
    m.whole = false;
    let op = m.r.of(names());
    let e = example(op).ok()?;
    // Symbolic sizes of an example become 3.
    let number = |x: &inrush_expr::Expr| e.graph.exprs.eval(*x, &|_| Some(3)).ok();
    // One size of the example becomes another wherever it stands among the inputs.
    let mut change = BTreeMap::new();
    let mut shapes = Vec::new();
    for i in &e.graph.inputs {
        match &e.graph.value(i.value).ty {
            Type::Tensor(t) => {
                let sizes: Vec<i64> = t.sizes.iter().map(number).collect::<Option<_>>()?;
                shapes.push((t.dtype, sizes));
            }
            _ => return None,
        }
    }
    let sizes: Vec<i64> = shapes.iter().flat_map(|s| s.1.clone()).collect();
    // A grid's last dimension is not free, which gradients do not check.
    let fixed = op.contains("grid_sampler");
    if !sizes.is_empty() && !fixed && m.r.odds(2, 3) {
        let (from, to) = (m.r.of(&sizes), m.size());
        // Ranges of indices are for the sizes of the example: they hold for larger ones, too.
        let indices = (shapes.iter().zip(&e.ranges)).any(|(s, r)| r.is_some() && !s.0.is_float());
        change.insert(from, if indices { to.max(from) } else { to });
    }
    let to = m.float();
    // Ranges are for `f32`: near their ends a half could be rounded out of them.
    let other = m.r.odds(1, 3) && e.ranges.iter().all(|r| r.is_none());
    let mut values = BTreeMap::new();
    for (k, (dtype, sizes)) in shapes.iter().enumerate() {
        let sizes: Vec<i64> = (sizes.iter())
            .map(|s| change.get(s).copied().unwrap_or(*s))
            .collect();
        let dtype = if other && *dtype == DType::F32 {
            to
        } else {
            *dtype
        };
        let v = match e.ranges[k] {
            Some((lo, hi)) if dtype.is_float() => m.within(dtype, &sizes, lo, hi),
            Some((lo, hi)) => {
                let v = m.input(dtype, &sizes);
                let name = m.g.value(v).name.clone();
                m.ranges
                    .push(format!("{name}={}..{}", lo as i64, hi as i64));
                v
            }
            None => m.input(dtype, &sizes),
        };
        values.insert(e.graph.inputs[k].value, v);
    }
    let mut args = Vec::new();
    for a in &e.graph.nodes[0].args {
        args.push(match a {
            Arg::Value(v) => Arg::Value(values[v]),
            Arg::Values(list) => Arg::Values(list.iter().map(|v| v.map(|v| values[&v])).collect()),
            Arg::Int(x) => m.int(number(x)?),
            Arg::Ints(x) => m.ints(&x.iter().map(number).collect::<Option<Vec<_>>>()?),
            other => other.clone(),
        });
    }
    let outs = m.call_named(op, args.into_iter().map(positional).collect())?;
    let tensors: Vec<ValueId> = (outs.into_iter())
        .filter(|v| m.g.tensor(*v).is_ok())
        .collect();
    // The first result is followed, the others are outputs.
    m.kept.extend(&tensors[1.min(tensors.len())..]);
    tensors.first().copied()
}
