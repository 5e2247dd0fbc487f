//! In-place operators become functional ones.
//!
//! Each value is a base of its own or a view of another value. A write to a view goes up the chain of views to the base
//! (a slice by `slice_scatter`, a reshape by a reshape back); other views of that base are made anew when they are read
//! next. Writes whose base is an input of the graph become its new contents at the end.
//!
//! ```text
//! %1 = slice(%0, 0, 0, 2)          %1 = slice(%0, 0, 0, 2)
//! %2 = relu_(%1)              =>   %2 = relu(%1)
//! %3 = add(%0, 1)                  %4 = slice_scatter(%0, %2, 0, 0, 2)     %0 is %4 now
//!                                  %3 = add(%4, 1)
//!                                  output mutation of input 0: %4
//! ```
//!
//! State per value of the source graph: the view that defines it, the value that holds its
//! contents now, and a version. A write counts up the version of the base. A view whose
//! version is not that of its base is stale and is built again from its parent when something
//! reads it; a view that nothing reads after a write costs nothing. Writing through a chain
//! of `k` views adds a node for each.
//!
//! Identities (`detach`, `clone` without writes) become other names of their source. With a
//! write in the graph a copy must stay a base of its own, hence the pass first looks if there
//! is any.
//!
//! Later stages may then substitute, share and reorder values freely.

use super::positions::is_view;
use crate::view::View;
use crate::{Args, Call, Demands, Route, bind, lookup, meta, user_kernel};
use inrush_base::{Error, Result};
use inrush_graph::{
    Arg, Graph, LineId, Node, Output, OutputKind, OutputValue, TensorType, Type, Value, ValueId,
};

/// The care for layouts of values within the graph.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Layouts {
    /// Later stages address elements by coordinates: a copy that only changes strides is dropped.
    Free,
    /// The graph is cut around calls, which see strides, and views between its parts are made over the memory of their roots: copies that
    /// change strides stay.
    Kept,
}

/// Replaces every call in place, and adds an output for each input that was written. Linear
/// in the nodes, but for views that are made again after each write.
///
/// # Errors
///
/// If a write goes through a view without an inverse, or changes its target's shape.
pub fn functionalize(graph: &mut Graph, layouts: Layouts) -> Result<()> {
    let nodes = std::mem::take(&mut graph.nodes);
    let writes = nodes
        .iter()
        .any(|n| inplace(n).is_some() || moves_statistics(n).is_some() || writes(graph, n));
    let count = graph.values.len();
    let returned = match layouts {
        Layouts::Free => Vec::new(),
        Layouts::Kept => returned(graph, &nodes)?,
    };
    let mut f = Functionalize {
        returned,
        nodes: Vec::with_capacity(nodes.len()),
        same: (0..count).map(ValueId::from_index).collect(),
        state: vec![State::default(); count],
        graph,
        writes,
        layouts,
        line: None,
        made: 0,
    };
    for node in nodes {
        // New nodes get the Python line of the node that they replace.
        f.line = node.line;
        // All that an error says of the node, for which arguments are not needed.
        let place = Node {
            op: node.op.clone(),
            args: Vec::new(),
            outs: node.outs.first().copied().into_iter().collect(),
            line: node.line,
            made_for: None,
        };
        f.node(node).map_err(|e| f.graph.locate(&place, e))?;
    }
    f.outputs()
}

/// Marks values whose memory outputs show: outputs, and what these are views or other names of.
fn returned(graph: &Graph, nodes: &[Node]) -> Result<Vec<bool>> {
    let mut marked = vec![false; graph.values.len()];
    for o in &graph.outputs {
        if let OutputValue::Value(v) = o.value {
            marked[v.index()] = true;
        }
    }
    for node in nodes.iter().rev() {
        let shown = node.outs.iter().any(|v| marked[v.index()]);
        if let (true, Some(Arg::Value(v))) = (shown, node.args.first())
            && (is_identity(&node.op) || is_view(graph, node)?)
        {
            marked[v.index()] = true;
        }
    }
    Ok(marked)
}

/// The functional operator that an in-place one stands for; `None` for functional ones.
fn inplace(node: &Node) -> Option<String> {
    if !node.op.starts_with("aten.") {
        // The name of a user's operator says nothing.
        return None;
    }
    match lookup(&node.op) {
        Some(_) => None,
        None => bind::functional_name(&node.op),
    }
}

/// Returns true if an operator, called in place, changes its argument's metadata and no element:
/// `unsqueeze_`.
fn is_view_operator(op: &str) -> bool {
    lookup(op).is_some_and(|op| {
        matches!(op.row.route, Route::View(_))
            && op.schema().returns.iter().any(|r| r.alias.is_some())
    })
}

/// Returns true for an operator of the user's that writes arguments.
fn writes(graph: &Graph, node: &Node) -> bool {
    let op = graph.operator(&node.op);
    op.is_some_and(|o| o.schema.params.iter().any(|p| p.written))
}

/// The functional form of a batch normalisation that moves the running statistics, which not every schema says: its name
/// and how many results it has before the new statistics.
fn moves_statistics(node: &Node) -> Option<(&'static str, usize)> {
    let (functional, results, training) = match node.op.as_str() {
        "aten.batch_norm.default"
        | "aten.native_batch_norm.default"
        | "aten._native_batch_norm_legit.default" => {
            // The functional operator returns the moved statistics as its last two results.
            let op = "aten._native_batch_norm_legit_functional.default";
            (op, 3, node.args.get(5) == Some(&Arg::Bool(true)))
        }
        "aten._batch_norm_with_update.default" => {
            ("aten._batch_norm_with_update_functional.default", 4, true)
        }
        _ => return None,
    };
    let given = matches!(node.args.get(3..5), Some([Arg::Value(_), Arg::Value(_)]));
    (training && given).then_some((functional, results))
}

/// Operators whose result is their first argument, if that has the declared dtype.
fn is_identity(op: &str) -> bool {
    let name = op.strip_prefix("aten.").unwrap_or(op);
    let base = name.split('.').next().unwrap_or(name);
    matches!(
        base,
        "alias"
            | "detach"
            | "detach_copy"
            | "lift"
            | "lift_fresh"
            | "lift_fresh_copy"
            | "dropout"
            | "feature_dropout"
            | "alpha_dropout"
            | "native_dropout"
            | "contiguous"
            | "clone"
            | "to"
            | "_to_copy"
            | "type_as"
            | "positive"
            | "resolve_conj"
            | "resolve_neg"
    )
}

/// The state of one value of the source graph.
#[derive(Clone, Default)]
struct State {
    /// The view that defines it; `None` for a base.
    view: Option<ViewOf>,
    /// The value that holds its contents now; itself until the first write.
    now: Option<ValueId>,
    /// For a base the number of writes; for a view that number when `now` was made.
    version: u32,
}

/// The call that makes a view, to make it again and to find its inverse.
#[derive(Clone)]
struct ViewOf {
    /// The value that is viewed, and the one at the root of the chain of views.
    parent: ValueId,
    base: ValueId,
    op: String,
    /// The first one stands for the parent and is replaced when the view is made again.
    args: Vec<Arg>,
    /// Which result of the operator, and how many there are.
    out: usize,
    outs: usize,
}

struct Functionalize<'g> {
    graph: &'g mut Graph,
    /// The functional graph so far.
    nodes: Vec<Node>,
    /// Values that are others under a new name: results of in-place operators and identities.
    same: Vec<ValueId>,
    state: Vec<State>,
    /// Something in the graph is written in place. Without, views need no record.
    writes: bool,
    layouts: Layouts,
    /// By value of the source graph: callers get memory of it, alone or through views. Empty where outputs are memory of their own.
    returned: Vec<bool>,
    line: Option<LineId>,
    /// Values made so far, which numbers their names.
    made: usize,
}

impl Functionalize<'_> {
    fn node(&mut self, mut node: Node) -> Result<()> {
        let target = inplace(&node);
        match target {
            // `unsqueeze_` gives its result another shape and the same memory: a view under a
            // new name.
            Some(view) if is_view_operator(&view) => node.op = view,
            Some(functional) => return self.write(node, functional),
            None => {}
        }
        if let Some((functional, results)) = moves_statistics(&node) {
            return self.move_statistics(node, functional, results);
        }
        if writes(self.graph, &node) {
            return self.call_and_write(node);
        }
        if let Some(source) = self.identity(&node) {
            self.same[node.outs[0].index()] = self.same[source.index()];
            return Ok(());
        }
        // Looked up before `read_args` replaces the operand by the value with its contents
        // now.
        let parent = node.args.first().and_then(|a| match a {
            Arg::Value(v) => Some(self.same[v.index()]),
            _ => None,
        });
        self.read_args(&mut node)?;
        self.lay_out_operands(&mut node);
        if let Some(parent) = parent.filter(|_| self.writes)
            && is_view(self.graph, &node)?
        {
            let base = self.base(parent);
            for (k, v) in node.outs.iter().enumerate() {
                self.state[v.index()] = State {
                    view: Some(ViewOf {
                        parent,
                        base,
                        op: node.op.clone(),
                        args: node.args.clone(),
                        out: k,
                        outs: node.outs.len(),
                    }),
                    now: None,
                    version: self.state[base.index()].version,
                };
            }
        }
        self.nodes.push(node);
        Ok(())
    }

    /// The value that an identity passes on.
    fn identity(&self, node: &Node) -> Option<ValueId> {
        let (Some(Arg::Value(source)), [out]) = (node.args.first(), node.outs.as_slice()) else {
            return None;
        };
        if !is_identity(&node.op) {
            return None;
        }
        let (Type::Tensor(a), Type::Tensor(b)) =
            (&self.graph.value(*source).ty, &self.graph.value(*out).ty)
        else {
            return None;
        };
        // Dropout in training draws random numbers; its row refuses that.
        let training =
            node.op.contains("dropout") && node.args.get(2).is_none_or(|t| *t != Arg::Bool(false));
        // A copy is a new base: it is the same value only while nothing is written in place.
        let new_memory = node.op.starts_with("aten.clone")
            || node.op.starts_with("aten._to_copy")
            || node.op.ends_with("_copy.default")
            || node.args.contains(&Arg::Bool(true));
        let copies = self.writes && (new_memory || a.strides != b.strides)
            || new_memory && self.returned.get(out.index()) == Some(&true);
        let relays = self.layouts == Layouts::Kept && a.strides != b.strides;
        let same = a.dtype == b.dtype && a.sizes == b.sizes && !relays;
        (same && !training && !copies).then_some(*source)
    }

    /// Returns the root of a chain of views; `v` itself if it is no view.
    fn base(&self, v: ValueId) -> ValueId {
        self.state[v.index()].view.as_ref().map_or(v, |w| w.base)
    }

    /// The value that holds the contents of `v` now; views of a base that was written are made anew.
    fn read(&mut self, v: ValueId) -> Result<ValueId> {
        let v = self.same[v.index()];
        // Ancestors that are out of date, nearest first.
        let mut stale = Vec::new();
        let mut at = v;
        while let Some(w) = &self.state[at.index()].view {
            if self.state[at.index()].version == self.state[w.base.index()].version {
                break;
            }
            stale.push(at);
            at = w.parent;
        }
        for v in stale.into_iter().rev() {
            let w = self.state[v.index()]
                .view
                .clone()
                .ok_or_else(|| Error::internal("a view without its operator"))?;
            let parent = self.state[w.parent.index()].now.unwrap_or(w.parent);
            let ty = self.graph.value(v).ty.clone();
            // `split` has several results, and a new call makes all of them.
            let outs: Vec<ValueId> = (0..w.outs).map(|_| self.value(v, ty.clone())).collect();
            let now = outs[w.out];
            let mut args = w.args;
            args[0] = Arg::Value(parent);
            // Results that nothing reads keep their own types.
            for (k, o) in outs.iter().enumerate() {
                if k != w.out
                    && let Some(types) = self.infer(&w.op, &args)?
                {
                    self.graph.values[o.index()].ty = types[k].clone();
                }
            }
            self.push(&w.op, args, outs);
            let version = self.state[w.base.index()].version;
            let s = &mut self.state[v.index()];
            (s.now, s.version) = (Some(now), version);
        }
        Ok(self.state[v.index()].now.unwrap_or(v))
    }

    /// Has a node read the contents that its operands hold now.
    fn read_args(&mut self, node: &mut Node) -> Result<()> {
        for v in node.reads_mut() {
            *v = self.read(*v)?;
        }
        Ok(())
    }

    /// An in-place call: its functional result becomes the contents of the first argument.
    fn write(&mut self, mut node: Node, functional: String) -> Result<()> {
        let Some(Arg::Value(target)) = node.args.first() else {
            return Err(Error::input("an in-place operator without a tensor"));
        };
        let target = self.same[target.index()];
        self.read_args(&mut node)?;
        let ty = self.graph.tensor(target)?.clone();
        // Named after the call, which an error about it must point to.
        let like = node.outs.first().copied().unwrap_or(target);
        let new = self.call_as(&functional, node.args, &ty, like)?;
        // `y = x.add_(1)`: `y` is `x`, so that later writes to one are seen in the other.
        for out in &node.outs {
            self.same[out.index()] = target;
        }
        self.assign(target, new)
    }

    /// Calls an operator of the user's that writes arguments: their new contents follow its results.
    fn call_and_write(&mut self, mut node: Node) -> Result<()> {
        let schema = (self.graph.operator(&node.op)).map(|o| o.schema.clone());
        let schema = schema.ok_or_else(|| Error::internal("an operator is gone"))?;
        let targets: Vec<ValueId> = (schema.params.iter().zip(&node.args))
            .filter(|(p, _)| p.written)
            .filter_map(|(_, a)| match a {
                Arg::Value(v) => Some(self.same[v.index()]),
                _ => None,
            })
            .collect();
        for (k, v) in targets.iter().enumerate() {
            let base = self.base(*v);
            if targets[..k].iter().any(|w| self.base(*w) == base) {
                return Err(Error::unsupported(
                    "a custom operator that writes two views of one tensor",
                ));
            }
        }
        // Eager sees the writes in other arguments that share the memory.
        let shared = |v: &ValueId| {
            let base = self.base(self.same[v.index()]);
            targets.iter().filter(|w| self.base(**w) == base).count()
        };
        let reads: usize = node.reads().map(|v| shared(&v)).sum();
        if reads > targets.len() {
            return Err(Error::unsupported(
                "a custom operator that writes an argument and takes another one of the same memory",
            ));
        }
        self.read_args(&mut node)?;
        let mut moved = Vec::with_capacity(targets.len());
        for v in targets {
            let ty = self.graph.tensor(v)?.clone();
            let new = self.value(v, Type::Tensor(ty));
            node.outs.push(new);
            moved.push((v, new));
        }
        self.nodes.push(node);
        moved
            .into_iter()
            .try_for_each(|(v, new)| self.assign(v, new))
    }

    /// Calls the functional form, whose last two results are the new contents of the running statistics.
    fn move_statistics(&mut self, mut node: Node, functional: &str, results: usize) -> Result<()> {
        let running: Vec<ValueId> = node.args[3..5]
            .iter()
            .filter_map(|a| match a {
                Arg::Value(v) => Some(self.same[v.index()]),
                _ => None,
            })
            .collect();
        self.read_args(&mut node)?;
        let params = lookup(functional).map_or(0, |op| op.schema().params.len());
        // The functional form has no `cudnn_enabled`, which some of the others end with.
        node.args.truncate(params);
        // Results that the call did not ask for.
        let mut own = self.graph.tensor(running[0])?.clone();
        own.dtype = own.dtype.compute();
        while node.outs.len() < results {
            let unused = self.value(node.outs[0], Type::Tensor(own.clone()));
            node.outs.push(unused);
        }
        let mut moved = Vec::with_capacity(running.len());
        for v in running {
            let ty = self.graph.tensor(v)?.clone();
            let new = self.value(node.outs[0], Type::Tensor(ty));
            node.outs.push(new);
            moved.push((v, new));
        }
        node.op = functional.to_string();
        self.nodes.push(node);
        moved
            .into_iter()
            .try_for_each(|(v, new)| self.assign(v, new))
    }

    /// Calls `op` and converts its result to the dtype that is written to.
    fn call_as(
        &mut self,
        op: &str,
        args: Vec<Arg>,
        ty: &TensorType,
        like: ValueId,
    ) -> Result<ValueId> {
        let mut own = ty.clone();
        if let Some(Some(Type::Tensor(t))) = self.infer(op, &args)?.map(|t| t.into_iter().next()) {
            // PyTorch refuses a result that broadcasts beyond its target too.
            if t.sizes.len() != ty.sizes.len() {
                return Err(Error::unsupported(
                    "an in-place operator that changes the shape",
                ));
            }
            own.dtype = t.dtype;
        }
        let dtype = own.dtype;
        let new = self.value(like, Type::Tensor(own));
        self.push(op, args, vec![new]);
        if dtype == ty.dtype {
            return Ok(new);
        }
        let cast = self.value(like, Type::Tensor(ty.clone()));
        let args = self.complete("aten.to.dtype", &[new.into(), ty.dtype.into()])?;
        self.push("aten.to.dtype", args, vec![cast]);
        Ok(cast)
    }

    /// Makes `new` the contents of `v` and, through its views, of its base.
    fn assign(&mut self, v: ValueId, new: ValueId) -> Result<()> {
        let (mut at, mut contents) = (v, new);
        let mut written = Vec::new();
        // Up the chain of views: the contents of the parent are its old ones with this part
        // replaced.
        while let Some(w) = self.state[at.index()].view.clone() {
            written.push((at, contents));
            let parent = self.read(w.parent)?;
            contents = self.write_back(&w, at, parent, contents)?;
            at = w.parent;
        }
        let version = self.state[at.index()].version + 1;
        written.push((at, contents));
        // The views on the way are up to date without being made anew.
        for (v, now) in written {
            let s = &mut self.state[v.index()];
            (s.now, s.version) = (Some(now), version);
        }
        Ok(())
    }

    /// `parent` with what the view shows replaced by `new`.
    fn write_back(
        &mut self,
        w: &ViewOf,
        view: ValueId,
        parent: ValueId,
        new: ValueId,
    ) -> Result<ValueId> {
        let pty = self.graph.tensor(w.parent)?.clone();
        let vty = self.graph.tensor(view)?.clone();
        let int = |g: &Graph, i: i64| Arg::Int(g.exprs.int(i));
        let base = w.op.split('.').nth(1).unwrap_or_default();
        let arg = |k: usize| w.args.get(k).cloned().unwrap_or(Arg::None);
        let (op, args) = match base {
            "slice" => (
                "aten.slice_scatter.default",
                vec![parent.into(), new.into(), arg(1), arg(2), arg(3), arg(4)],
            ),
            "select" => (
                "aten.select_scatter.default",
                vec![parent.into(), new.into(), arg(1), arg(2)],
            ),
            "unbind" => (
                "aten.select_scatter.default",
                vec![
                    parent.into(),
                    new.into(),
                    arg(1),
                    int(self.graph, w.out as i64),
                ],
            ),
            "diagonal" => (
                "aten.diagonal_scatter.default",
                vec![parent.into(), new.into(), arg(1), arg(2), arg(3)],
            ),
            // The inverse of a reshape is a reshape to the parent's sizes.
            "view" | "_unsafe_view" | "reshape" | "flatten" | "unflatten" | "squeeze"
            | "unsqueeze" => (
                "aten.view.default",
                vec![new.into(), Arg::Ints(pty.sizes.clone())],
            ),
            "alias" | "detach" | "contiguous" => return Ok(new),
            // An expansion that repeats elements has no inverse.
            "expand" | "expand_as" | "broadcast_to" if pty.sizes == vty.sizes => return Ok(new),
            _ => return self.write_back_map(w, parent, new, &pty),
        };
        let args = self.complete(op, &args)?;
        let out = self.value(w.parent, Type::Tensor(pty));
        self.push(op, args, vec![out]);
        Ok(out)
    }

    /// The inverse of a view that its coordinate map tells: a permutation, or one piece of a split.
    fn write_back_map(
        &mut self,
        w: &ViewOf,
        parent: ValueId,
        new: ValueId,
        pty: &TensorType,
    ) -> Result<ValueId> {
        let refuse = || {
            Error::unsupported(format!(
                "an in-place write through a view made by `{}`",
                w.op
            ))
        };
        let view = self.view_of(w, parent)?.ok_or_else(refuse)?;
        let exprs = &self.graph.exprs;
        let indices = crate::view::indices(exprs, &view.sizes);
        if view.sizes.len() != pty.rank() {
            return Err(refuse());
        }
        // A permutation: dimension d of the parent is dimension order[d] of the view.
        let mut order: Vec<usize> = Vec::with_capacity(pty.rank());
        for (size, at) in pty.sizes.iter().zip(&view.map) {
            let k = (0..indices.len())
                .find(|k| !order.contains(k) && view.sizes[*k] == *size && indices[*k] == *at);
            order.extend(k);
        }
        let (op, args) = if order.len() == pty.rank() {
            if order.is_sorted() {
                return Ok(new);
            }
            let order = order.iter().map(|k| exprs.int(*k as i64)).collect();
            ("aten.permute.default", vec![new.into(), Arg::Ints(order)])
        } else {
            // A piece of one dimension.
            let same = |d: &usize| view.sizes[*d] == pty.sizes[*d] && view.map[*d] == indices[*d];
            let mut cut = (0..pty.rank()).filter(|d| !same(d));
            let (Some(d), None) = (cut.next(), cut.next()) else {
                return Err(refuse());
            };
            let start = exprs.sub(view.map[d], indices[d]);
            if exprs.free_syms(start).iter().any(|s| exprs.is_index(*s)) {
                return Err(refuse());
            }
            let end = exprs.add(start, view.sizes[d]);
            (
                "aten.slice_scatter.default",
                vec![
                    parent.into(),
                    new.into(),
                    Arg::Int(exprs.int(d as i64)),
                    Arg::Int(start),
                    Arg::Int(end),
                ],
            )
        };
        let args = self.complete(op, &args)?;
        let out = self.value(w.parent, Type::Tensor(pty.clone()));
        self.push(op, args, vec![out]);
        Ok(out)
    }

    /// Returns the coordinate map of a view, evaluated on the types of `parent`. `None` for
    /// an operator whose row is not a view.
    fn view_of(&self, w: &ViewOf, parent: ValueId) -> Result<Option<View>> {
        let Some(op) = lookup(&w.op) else {
            return Ok(None);
        };
        let Route::View(f) = op.row.route else {
            return Ok(None);
        };
        let mut args = w.args.clone();
        args[0] = Arg::Value(parent);
        let demands = Demands::default();
        let call = Call::new(
            Args {
                exprs: &self.graph.exprs,
                demands: &demands,
                op,
                args: &args,
            },
            &self.graph.values,
            &[],
        );
        Ok(f(&call)?.into_iter().nth(w.out))
    }

    /// Returns the types of a call's results; `None` for an operator that only decomposes.
    /// Relations of sizes that are not proved become guards.
    fn infer(&mut self, op: &str, args: &[Arg]) -> Result<Option<Vec<Type>>> {
        let entry = lookup(op).ok_or_else(|| {
            Error::unsupported(format!("no row describes `{op}`, which this writes with"))
        })?;
        let demands = Demands::default();
        let args = Args {
            exprs: &self.graph.exprs,
            demands: &demands,
            op: entry,
            args,
        };
        let types = meta::infer(args, &self.graph.values).transpose()?;
        demands.drain_into(&self.graph.exprs, &mut self.graph.guards)?;
        Ok(types)
    }

    /// Fills in trailing defaults.
    fn complete(&self, op: &str, args: &[Arg]) -> Result<Vec<Arg>> {
        let entry =
            lookup(op).ok_or_else(|| Error::internal(format!("no row describes `{op}`")))?;
        bind::complete(&self.graph.exprs, entry.schema(), args.to_vec())
    }

    /// A fresh value named after `like`.
    fn value(&mut self, like: ValueId, ty: Type) -> ValueId {
        self.made += 1;
        let name = format!("{}.w{}", self.graph.value(like).name, self.made);
        let id = ValueId::from_index(self.graph.values.len());
        self.graph.values.push(Value { name, ty });
        self.same.push(id);
        self.state.push(State::default());
        id
    }

    fn push(&mut self, op: &str, args: Vec<Arg>, outs: Vec<ValueId>) {
        self.nodes.push(Node {
            op: op.to_string(),
            args,
            outs,
            line: self.line,
            made_for: None,
        });
    }

    /// Adds a copy of `v` with the strides of another type, named like `like`. It is no view: that would show the same memory with strides
    /// of the copy.
    fn laid_out(&mut self, like: ValueId, v: ValueId, ty: Type) -> ValueId {
        let copy = self.value(like, ty);
        self.push("aten.alias_copy.default", vec![Arg::Value(v)], vec![copy]);
        copy
    }

    /// Gives the tensors of a user's kernel the strides that they had when the program was exported: kernels compute addresses. Identities that
    /// were dropped may have changed them.
    fn lay_out_operands(&mut self, node: &mut Node) {
        let Some(wanted) = user_kernel::operand_types(self.graph, node) else {
            return;
        };
        for (at, ty) in wanted {
            let Some(Arg::Values(tensors)) = node.args.first() else {
                return;
            };
            if let Some(v) = tensors[at]
                && self.graph.value(v).ty != Type::Tensor(ty.clone())
            {
                let copy = self.laid_out(v, v, Type::Tensor(ty));
                if let Some(Arg::Values(tensors)) = node.args.first_mut() {
                    tensors[at] = Some(copy);
                }
            }
        }
    }

    /// Outputs read the final contents; inputs that were written become outputs of their own.
    fn outputs(mut self) -> Result<()> {
        let mut outputs = std::mem::take(&mut self.graph.outputs);
        for output in &mut outputs {
            if let OutputValue::Value(v) = &mut output.value {
                let (old, new) = (*v, self.read(*v)?);
                *v = new;
                // An identity that was dropped may have declared other strides than its source has.
                if self.graph.value(old).ty != self.graph.value(new).ty {
                    let ty = self.graph.value(old).ty.clone();
                    *v = self.laid_out(old, new, ty);
                }
            }
        }
        // In order of inputs, which makes the outputs' order independent of that of the
        // writes.
        for (k, input) in self.graph.inputs.iter().enumerate() {
            if let Some(now) = self.state[input.value.index()].now {
                outputs.push(Output {
                    value: OutputValue::Value(now),
                    kind: OutputKind::Mutation { input: k },
                });
            }
        }
        self.graph.outputs = outputs;
        self.graph.nodes = self.nodes;
        Ok(())
    }
}
