//! How eager lays out its results, where PyTorch's shape functions, and with them exported programs, say otherwise.
//!
//! The real kernel decides; `rules.txt` is the table of what differs. Inside PyTorch fake tensors follow the same table
//! (`python/inrush/fake_strides.py`), so that graphs come with the right strides. Exported programs were written without it:
//! [`correct`] goes over such a graph once, applies the table and carries what changed on through views and iterations.
//!
//! ```text
//! f32[2, 3, 4, 4] strides [48, 16, 4, 1]     as the exporter declared: row-major
//!                 strides [48, 1, 12, 3]     as eager's kernel allocates: channels last
//! ```
//!
//! The values are right either way; strides matter to `as_strided`, to views, to the layouts
//! of outputs and to what later layouts follow from. Knowledge goes forward through the graph
//! as a lattice with three points, `Declared < Corrected < Open`. A result starts from the
//! greatest of its operands. Its rule or its route then gives its strides: it is `Corrected`
//! if they differ from the declared ones, `Declared` if not, and `Open` without a rule.
//! `Open` spreads until a rule that reads no operand (`contiguous`), strides that stand in
//! the call, or a rank below 2 end it. Only counting positions in an open layout is an error.

pub mod strides;

use crate::{Args, Call, Demands, Route, bind, dynamic, lookup};
use inrush_base::{DType, Error, Result};
use inrush_expr::Expr;
use inrush_graph::{Arg, Graph, MemoryFormat, Node, TensorType, Type};
use rustc_hash::FxHashMap;
use std::sync::LazyLock;

/// Lines of the table: operator, devices, rules of the results.
pub fn rules() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    include_str!("rules.txt").lines().filter_map(|line| {
        let mut words = line.trim().splitn(2, char::is_whitespace);
        let (operator, rest) = (words.next()?, words.next()?.trim());
        let (devices, rules) = rest.split_once(char::is_whitespace)?;
        (!operator.starts_with('#')).then_some((operator, devices, rules.trim()))
    })
}

/// Rules by operator, for CPUs.
static TABLE: LazyLock<FxHashMap<&str, Vec<&str>>> = LazyLock::new(|| {
    rules()
        .filter(|(_, devices, _)| matches!(*devices, "cpu" | "any"))
        .map(|(op, _, rules)| (op, rules.split(';').map(str::trim).collect()))
        .collect()
});

/// The knowledge about a value's layout.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Known {
    /// It is as the exporter declared.
    Declared,
    /// The exporter was wrong; the type has been corrected.
    Corrected,
    /// It depends on a layout that was corrected, in a way that no rule says.
    Open,
}

/// Corrects the declared strides of a graph that was exported for a CPU.
///
/// # Errors
/// Where positions are counted in a value whose layout depends on one that was corrected, through an operator without a rule.
pub fn correct(graph: &mut Graph) -> Result<()> {
    let mut known = vec![Known::Declared; graph.values.len()];
    for at in 0..graph.nodes.len() {
        let node = &graph.nodes[at];
        // The derived order of `Known` is that of the lattice.
        let reads = node.reads().map(|v| known[v.index()]);
        let mut changed = reads.max().unwrap_or(Known::Declared);
        if node.op.starts_with("aten.as_strided") {
            if changed == Known::Open {
                let why = "positions in memory whose layout is not known: it follows from one that PyTorch's exporter has wrong";
                return Err(graph.locate(node, Error::unsupported(why)));
            }
            // The call gives the strides of the result.
            changed = Known::Declared;
        }
        let mut found = Vec::new();
        for (k, v) in node.outs.iter().enumerate() {
            if let Type::Tensor(declared) = &graph.value(*v).ty {
                let strides = result(graph, node, k, declared, changed);
                found.push((*v, strides.map_err(|e| graph.locate(node, e))?));
            }
        }
        for (v, (state, strides)) in found {
            known[v.index()] = state;
            if let Type::Tensor(t) = &mut graph.values[v.index()].ty {
                t.strides = strides;
            }
        }
    }
    graph.bodies.iter_mut().try_for_each(correct)
}

/// Returns the knowledge about a result's layout, and its strides. `changed` is the least knowledge
/// about an operand.
fn result(
    graph: &Graph,
    node: &Node,
    k: usize,
    declared: &TensorType,
    changed: Known,
) -> Result<(Known, Vec<Expr>)> {
    let as_declared = |state: Known| Ok((state, declared.strides.clone()));
    if dynamic::find(&node.op).is_some() {
        let strides = strides::of_dynamic(&graph.exprs, &node.op, declared);
        let state = if strides == declared.strides {
            Known::Declared
        } else {
            Known::Corrected
        };
        return Ok((state, strides));
    }
    let Some(op) = bind::signature(&node.op) else {
        return as_declared(match changed {
            Known::Declared => Known::Declared,
            _ => Known::Open,
        });
    };
    let ex = &graph.exprs;
    // The pass runs on a graph as imported, whose arguments may lack defaults.
    let args = bind::complete(ex, op.schema(), node.args.clone())?;
    let demands = Demands::default();
    let args = Args {
        exprs: ex,
        demands: &demands,
        op,
        args: &args,
    };
    let call = Call::new(args, &graph.values, &node.outs);
    let rule = TABLE.get(node.op.as_str()).and_then(|rules| rules.get(k));
    let found = match rule {
        // `-` holds the place of a result without a rule in a line of several results.
        Some(&"-") | None if changed == Known::Declared => fresh(&call, k, declared),
        Some(&"-") | None => by_route(&call, node, k, declared)?,
        Some(&"contiguous") => Some(ex.contiguous_strides(&declared.sizes)),
        Some(rule) => by_rule(&call, rule, declared)?,
    };
    match found {
        // A dense tensor of one dimension has one layout.
        _ if declared.rank() < 2 && !strides::repeats(ex, declared) => as_declared(Known::Declared),
        _ if changed == Known::Open && rule != Some(&"contiguous") => as_declared(Known::Open),
        Some(strides) if strides != declared.strides => Ok((Known::Corrected, strides)),
        Some(_) => as_declared(Known::Declared),
        None => as_declared(Known::Open),
    }
}

/// A result that is memory of its own has each element in a place of its own: as a copy, where the exporter says otherwise.
fn fresh(call: &Call, k: usize, declared: &TensorType) -> Option<Vec<Expr>> {
    let returns = &call.op.schema().returns;
    let own = (returns.get(k).or(returns.first())).is_some_and(|r| r.alias.is_none());
    let view =
        matches!(call.op.row.route, Route::View(_)) || call.op.row.name.contains("empty_strided");
    Some(
        match own && !view && strides::repeats(call.exprs, declared) {
            true => strides::copy_of(call.exprs, declared),
            false => declared.strides.clone(),
        },
    )
}

/// Returns the strides by a line of the table.
fn by_rule(call: &Call, rule: &str, declared: &TensorType) -> Result<Option<Vec<Expr>>> {
    let (ex, sizes) = (call.exprs, &declared.sizes);
    let mut words = rule.split(' ');
    let kind = words.next().unwrap_or_default();
    let operands = tensors_among(call, words)?;
    let own = call.viewed()?;
    Ok(Some(match (kind, operands.as_slice()) {
        ("pointwise", all) => strides::pointwise(ex, sizes, all),
        ("format", [t]) => strides::format_like(ex, t, sizes),
        ("like", [t]) if t.sizes == *sizes => strides::copy_of(ex, t),
        ("like", [_]) => return Ok(Some(declared.strides.clone())),
        ("storage", [t]) => strides::storage(ex, t),
        // Both modes ask their operand for its format; other modes are decided below.
        ("pad", []) => match call.opt_str("mode")? {
            Some("reflect" | "replicate") => strides::format_like(ex, own, sizes),
            _ => return by_suggestion(call, declared),
        },
        // Composed as `self * 2^other`: the power is a fresh row-major tensor.
        ("ldexp", []) => {
            let mut power = call.tensor("other")?.clone();
            power.strides = ex.contiguous_strides(&power.sizes);
            strides::pointwise(ex, sizes, &[own, &power])
        }
        // A volume without a batch.
        ("pool3d", []) if own.rank() == 4 && strides::is_in_order(ex, own, &[1, 2, 3, 0]) => {
            strides::permuted(ex, sizes, &[1, 2, 3, 0])
        }
        ("pool3d", []) if own.rank() == 4 => ex.contiguous_strides(sizes),
        ("pool3d", []) => strides::format_like(ex, own, sizes),
        ("fft_c2c" | "fft_r2c" | "fft_c2r", []) => return Ok(None),
        ("roll", []) => {
            let dims = call.dims("dims", own.rank());
            // A dimension that is named twice is rolled twice.
            let Ok(dims) = dims else { return Ok(None) };
            strides::roll(ex, own, call.ints("shifts")?, &dims)
        }
        ("rrelu_backward", []) => {
            let names = match call.bool("training")? {
                true => ["noise", "grad_output"],
                false => ["grad_output", "self"],
            };
            let operands = [call.tensor(names[0])?, call.tensor(names[1])?];
            strides::pointwise(ex, sizes, &operands)
        }
        ("index", []) => {
            let indices = (call.opt_list("indices")?.into_iter())
                .map(|i| i.map(|i| call.type_of(i)).transpose())
                .collect::<Result<Vec<_>>>()?;
            // As many places as a mask has true elements: the shape function is right.
            let masks =
                (indices.iter().flatten()).any(|i| matches!(i.dtype, DType::Bool | DType::U8));
            match masks {
                true => return Ok(Some(declared.strides.clone())),
                false => return Ok(strides::index(ex, own, &indices, sizes)),
            }
        }
        _ => return Err(Error::internal(format!("no rule `{rule}`"))),
    }))
}

/// Returns the arguments of these names that are tensors. Exporters put numbers where schemas have tensors too.
fn tensors_among<'a, 'n>(
    call: &Call<'a>,
    names: impl Iterator<Item = &'n str>,
) -> Result<Vec<&'a TensorType>> {
    let mut tensors = Vec::new();
    for name in names {
        if let Arg::Value(v) = call.arg(name)? {
            tensors.extend(call.type_of(*v).ok());
        }
    }
    Ok(tensors)
}

/// Operators that ask their operand for the layout of the result, as padding with a constant does.
fn by_suggestion(call: &Call, declared: &TensorType) -> Result<Option<Vec<Expr>>> {
    let constant = matches!(call.opt_str("mode"), Ok(Some("constant")) | Err(_));
    Ok(Some(match constant {
        true => strides::format_like(call.exprs, call.viewed()?, &declared.sizes),
        false => declared.strides.clone(),
    }))
}

/// Returns the strides that follow from a corrected operand, if the result's layout follows its
/// operands.
fn by_route(
    call: &Call,
    node: &Node,
    k: usize,
    declared: &TensorType,
) -> Result<Option<Vec<Expr>>> {
    let (ex, sizes) = (call.exprs, &declared.sizes);
    // Only operators in place have a signature and no row.
    if lookup(&node.op).is_none() {
        // Memory that is written in place keeps its strides.
        return Ok(Some(call.viewed()?.strides.clone()));
    }
    if let Ok(format) = call.arg("memory_format") {
        return as_asked(call, format, declared).map(Some);
    }
    Ok(match call.op.row.route {
        Route::View(f) => (f(call)?.into_iter().nth(k))
            .zip(call.viewed().ok())
            .map(|(view, t)| view.strides(ex, &t.strides)),
        Route::Pointwise(p) => {
            let names = p.operands.iter().map(|name| name.trim_start_matches('?'));
            let operands = tensors_among(call, names)?;
            Some(strides::pointwise(ex, sizes, &operands))
        }
        _ => None,
    })
}

/// Copies and conversions, which keep the layout unless they are asked for another.
fn as_asked(call: &Call, format: &Arg, declared: &TensorType) -> Result<Vec<Expr>> {
    let (ex, t) = (call.exprs, call.viewed()?);
    let sizes = &declared.sizes;
    let kept = t.dtype == declared.dtype && call.op.row.name.starts_with("aten.to.");
    Ok(match format {
        Arg::MemoryFormat(MemoryFormat::Contiguous) => ex.contiguous_strides(sizes),
        Arg::MemoryFormat(MemoryFormat::ChannelsLast | MemoryFormat::ChannelsLast3d) => {
            let order: Vec<usize> = [0].into_iter().chain(2..t.rank()).chain([1]).collect();
            strides::permuted(ex, sizes, &order)
        }
        // The tensor itself.
        _ if kept && !matches!(call.arg("copy"), Ok(Arg::Bool(true))) => t.strides.clone(),
        _ => strides::copy_of(ex, t),
    })
}
