//! Changes of layout in the middle of a graph, from its first node to its last.
//!
//! A pass that gives a value other strides leaves the rest to [`Relayout`]:
//!
//! - Views and arithmetic follow: their results get the strides that eager would give them.
//! - Operators that look at memory, and views that the new strides do not allow, read a copy with the strides of before.
//! - Results of the graph have the strides of before. Results that shared memory still do: views of one value are made again
//!   of its copy.
//!
//! ```text
//! conv  [0,1,2,3]           conv  channels last
//! relu  [0,1,2,3]      =>   relu  channels last
//! view  [0,1*2*3]           clone [0,1,2,3]
//!                           view  [0,1*2*3]
//! ```
//!
//! Kernels write results with whatever strides their types say, and the host copies what a called operator gives with other
//! strides than its type's. So strides that are not eager's cost time and no correctness.

use crate::Context;
use crate::convolution::CONVOLUTION;
use crate::effects::may_alias;
use inrush_aten::layouts::strides;
use inrush_aten::{Args, Call, Demands, Prop, Route, bind};
use inrush_expr::Expr;
use inrush_graph::{
    Arg, Graph, MemoryFormat, Node, Output, OutputKind, OutputValue, TensorType, Type, ValueId,
};
use rustc_hash::FxHashMap;

const CLONE: &str = "aten.clone.default";

/// Products, whose results are row-major.
const PRODUCTS: [&str; 4] = [
    "aten.addmm.default",
    "aten.baddbmm.default",
    "aten.bmm.default",
    "aten.mm.default",
];

/// Returns true for graphs whose layouts can change: sizes are constants, or symbols that are at least one, and nothing is written.
pub(crate) fn is_plain(graph: &Graph, cx: &Context) -> bool {
    let ex = &graph.exprs;
    let some = |e: &Expr| ex.as_int(*e).is_some() || ex.range(*e).lo >= 1;
    let plain = |ty: &Type| match ty {
        Type::Tensor(t) => t.sizes.iter().all(some),
        Type::Float | Type::Bool => false,
        Type::Int(_) | Type::Constant(_) | Type::None | Type::Opaque(_) => true,
    };
    let user = |o: &Output| matches!(o.kind, OutputKind::User { .. });
    graph.values.iter().all(|v| plain(&v.ty))
        && !graph.nodes.iter().any(|n| cx.may_write(n))
        && graph.outputs.iter().all(user)
}

/// A graph in the making, with the layouts of before.
pub(crate) struct Relayout<'a> {
    graph: Graph,
    cx: &'a Context<'a>,
    /// Types that the values had.
    before: Vec<Type>,
    /// For results of views the node as it was, and the value that it showed.
    views: FxHashMap<ValueId, (Node, ValueId)>,
}

impl<'a> Relayout<'a> {
    /// Returns the builder of a copy of `graph`, and the nodes that are to be pushed.
    pub(crate) fn of(graph: &Graph, cx: &'a Context<'a>) -> (Relayout<'a>, Vec<Node>) {
        let mut graph = graph.clone();
        let nodes = std::mem::take(&mut graph.nodes);
        let before = graph.values.iter().map(|v| v.ty.clone()).collect();
        let views = FxHashMap::default();
        let this = Relayout {
            graph,
            cx,
            before,
            views,
        };
        (this, nodes)
    }

    pub(crate) fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Adds a call of `like`'s line whose result is a new value.
    pub(crate) fn call(
        &mut self,
        like: &Node,
        op: &str,
        args: Vec<Arg>,
        ty: TensorType,
    ) -> ValueId {
        let name = match like.outs.first() {
            Some(v) => self.graph.value(*v).name.clone(),
            None => "layout".into(),
        };
        let name = format!("{name}.{}", self.graph.values.len());
        let out = self.graph.add_value(&name, Type::Tensor(ty));
        self.graph.nodes.push(Node {
            op: op.into(),
            args,
            outs: vec![out],
            line: like.line,
            made_for: None,
        });
        out
    }

    /// Adds a call that gives the result of `node`, with other strides.
    pub(crate) fn replace(&mut self, node: Node, op: &str, args: Vec<Arg>, strides: Vec<Expr>) {
        self.lay_out(node.outs[0], strides);
        self.graph.nodes.push(Node {
            op: op.into(),
            args,
            ..node
        });
    }

    /// Adds a copy with the dimensions in the order of a format.
    pub(crate) fn copy(
        &mut self,
        like: &Node,
        v: ValueId,
        format: MemoryFormat,
    ) -> Option<ValueId> {
        let mut ty = self.graph.tensor(v).ok()?.clone();
        ty.strides = in_format(&self.graph, &ty, format);
        let args = vec![v.into(), Arg::MemoryFormat(format)];
        Some(self.call(like, CLONE, args, ty))
    }

    /// Returns `v`, or a row-major copy.
    pub(crate) fn contiguous(&mut self, like: &Node, v: ValueId) -> Option<ValueId> {
        let ty = self.graph.tensor(v).ok()?;
        let order: Vec<usize> = (0..ty.rank()).collect();
        if strides::is_in_order(&self.graph.exprs, ty, &order) {
            return Some(v);
        }
        self.copy(like, v, MemoryFormat::Contiguous)
    }

    fn lay_out(&mut self, v: ValueId, strides: Vec<Expr>) {
        if let Type::Tensor(t) = &mut self.graph.values[v.index()].ty {
            t.strides = strides;
        }
    }

    /// Returns true if the value's strides are not those of before.
    fn has_moved(&self, v: ValueId) -> bool {
        let before = self.before.get(v.index());
        before.is_some_and(|ty| *ty != self.graph.value(v).ty)
    }

    /// Adds a node of the graph; its results follow operands that moved. `None` where strides of before cannot be restored.
    pub(crate) fn follow(&mut self, node: Node) -> Option<()> {
        if let Some(Arg::Value(shown)) = node.args.first()
            && may_alias(&self.graph, &node)
        {
            let shown = *shown;
            for v in &node.outs {
                self.views.insert(*v, (node.clone(), shown));
            }
        }
        let moved = node.reads().any(|v| self.has_moved(v));
        self.push(node, moved)
    }

    /// Adds a node with an operand that the pass has copied to another layout.
    pub(crate) fn follow_moved(&mut self, node: Node) -> Option<()> {
        self.push(node, true)
    }

    fn push(&mut self, mut node: Node, moved: bool) -> Option<()> {
        if moved {
            match self.strides(&node) {
                Some(all) => {
                    for (v, strides) in node.outs.iter().zip(all) {
                        if let Some(strides) = strides {
                            self.lay_out(*v, strides);
                        }
                    }
                }
                None => {
                    let mut copies: FxHashMap<ValueId, ValueId> = FxHashMap::default();
                    for v in node.reads().collect::<Vec<_>>() {
                        if let std::collections::hash_map::Entry::Vacant(at) = copies.entry(v) {
                            at.insert(self.as_before(&node.clone(), v)?);
                        }
                    }
                    node.reads_mut().for_each(|v| *v = copies[v]);
                }
            }
        }
        self.graph.nodes.push(node);
        Some(())
    }

    /// Returns `v` with the strides of before: a copy if they changed.
    fn as_before(&mut self, like: &Node, v: ValueId) -> Option<ValueId> {
        if !self.has_moved(v) {
            return Some(v);
        }
        let Type::Tensor(want) = self.before[v.index()].clone() else {
            return None;
        };
        let ex = &self.graph.exprs;
        if !strides::is_dense(ex, &want) {
            return None;
        }
        let row_major = ex.contiguous_strides(&want.sizes) == want.strides;
        let format = row_major.then_some(Arg::MemoryFormat(MemoryFormat::Contiguous));
        let args = vec![v.into(), format.unwrap_or(Arg::None)];
        Some(self.call(like, CLONE, args, want))
    }

    /// Returns the strides of a call's results by those of its operands; `None` if the operands need the strides of before.
    fn strides(&self, node: &Node) -> Option<Vec<Option<Vec<Expr>>>> {
        let graph = &self.graph;
        let ex = &graph.exprs;
        let op = inrush_aten::lookup(&node.op)?;
        if self.cx.is_kept(node) || node.op.starts_with("aten.as_strided") {
            return None;
        }
        let args = bind::complete(ex, op.schema(), node.args.clone()).ok()?;
        let demands = Demands::default();
        let args = Args {
            exprs: ex,
            demands: &demands,
            op,
            args: &args,
        };
        let call = Call::new(args, &graph.values, &node.outs);
        let tensors: Vec<&TensorType> = node.reads().filter_map(|v| graph.tensor(v).ok()).collect();
        if (self.cx.serves)(&node.op) {
            return self.of_library(node, &tensors);
        }
        if let Ok(format) = call.arg("memory_format") {
            let (t, out) = (call.viewed().ok()?, call.out(0).ok()?);
            let like = TensorType {
                strides: t.strides.clone(),
                ..out.clone()
            };
            return Some(vec![Some(match format {
                Arg::MemoryFormat(f) if *f != MemoryFormat::Preserve => in_format(graph, out, *f),
                _ => strides::copy_of(ex, &like),
            })]);
        }
        if op.row.has(Prop::Bitcasts) {
            let (t, out) = (call.viewed().ok()?, call.out(0).ok()?);
            let same = out.dtype.size() == t.dtype.size();
            return same.then(|| vec![Some(t.strides.clone())]);
        }
        if let Route::View(f) = op.row.route {
            let (views, t) = (f(&call).ok()?, call.viewed().ok()?);
            let of = |v: &inrush_aten::View| {
                let shows = v.is_affine(ex, &t.strides);
                shows.then(|| v.strides(ex, &t.strides))
            };
            return views.iter().map(|v| of(v).map(Some)).collect();
        }
        let of = |v: &ValueId| {
            let out = graph.tensor(*v).ok()?;
            let operands: Vec<&TensorType> = tensors.clone();
            match op.row.route {
                Route::Pointwise(_) => Some(strides::pointwise(ex, &out.sizes, &operands)),
                // Kernels write any layout: that of the first picture suits what reads the result.
                _ if out.rank() == 4 => {
                    let picture = operands.iter().find(|t| t.rank() == 4)?;
                    Some(strides::format_like(ex, picture, &out.sizes))
                }
                _ => None,
            }
        };
        Some(node.outs.iter().map(of).collect())
    }

    /// Returns the strides of a library's results.
    fn of_library(&self, node: &Node, tensors: &[&TensorType]) -> Option<Vec<Option<Vec<Expr>>>> {
        let ex = &self.graph.exprs;
        let out = self.graph.tensor(*node.outs.first()?).ok()?;
        if PRODUCTS.contains(&node.op.as_str()) {
            return Some(vec![None]);
        }
        if node.op != CONVOLUTION {
            return None;
        }
        // Channels last if the picture or the filters are.
        let row_major = ex.contiguous_strides(&out.sizes);
        let formats = tensors.iter().take(2);
        let mut strides = formats.map(|t| strides::format_like(ex, t, &out.sizes));
        let found = strides.find(|s| *s != row_major);
        Some(vec![Some(found.unwrap_or(row_major))])
    }

    /// Lays results out as they were, and returns the graph. `None` where that is not possible.
    pub(crate) fn finish(mut self) -> Option<Graph> {
        let values: Vec<ValueId> = (self.graph.outputs.iter())
            .filter_map(|o| match o.value {
                OutputValue::Value(v) => Some(v),
                _ => None,
            })
            .collect();
        let mut distinct = values.clone();
        distinct.sort();
        distinct.dedup();
        let mut results: FxHashMap<ValueId, usize> = FxHashMap::default();
        for v in &distinct {
            *results.entry(self.root(*v)).or_default() += 1;
        }
        let mut made: FxHashMap<ValueId, ValueId> = FxHashMap::default();
        for v in distinct {
            let shares = results[&self.root(v)] > 1;
            self.restore(v, shares, &mut made)?;
        }
        for o in &mut self.graph.outputs {
            if let OutputValue::Value(v) = &mut o.value {
                *v = made[v];
            }
        }
        Some(self.graph)
    }

    /// Returns the value whose memory a view shows.
    fn root(&self, mut v: ValueId) -> ValueId {
        while let Some((_, shown)) = self.views.get(&v) {
            v = *shown;
        }
        v
    }

    /// Finds what stands for a result: with `shares`, a view of what stands for the value that it shows.
    fn restore(
        &mut self,
        v: ValueId,
        shares: bool,
        made: &mut FxHashMap<ValueId, ValueId>,
    ) -> Option<()> {
        let mut chain = vec![v];
        while let Some((_, shown)) = self.views.get(chain.last()?).filter(|_| shares) {
            chain.push(*shown);
        }
        while let Some(v) = chain.pop() {
            if made.contains_key(&v) {
                continue;
            }
            let view = self.views.get(&v).filter(|_| shares).cloned();
            match view {
                Some((_, shown)) if made[&shown] == shown && !self.has_moved(v) => {
                    made.insert(v, v);
                }
                Some((mut node, shown)) => {
                    node.args[0] = made[&shown].into();
                    self.view_again(node, made);
                }
                None => {
                    let like = Node {
                        op: String::new(),
                        args: Vec::new(),
                        outs: vec![v],
                        line: None,
                        made_for: None,
                    };
                    let copy = self.as_before(&like, v)?;
                    made.insert(v, copy);
                }
            }
        }
        Some(())
    }

    /// Adds a view of a result's copy: all results of the node, with the types of before.
    fn view_again(&mut self, mut node: Node, made: &mut FxHashMap<ValueId, ValueId>) {
        for v in &mut node.outs {
            let ty = self.before[v.index()].clone();
            let name = format!("{}.{}", self.graph.value(*v).name, self.graph.values.len());
            let new = self.graph.add_value(&name, ty);
            made.insert(*v, new);
            *v = new;
        }
        self.graph.nodes.push(node);
    }
}

/// Returns the strides of a tensor in a memory format.
fn in_format(graph: &Graph, t: &TensorType, format: MemoryFormat) -> Vec<Expr> {
    match format {
        MemoryFormat::ChannelsLast | MemoryFormat::ChannelsLast3d => {
            let order: Vec<usize> = [0].into_iter().chain(2..t.rank()).chain([1]).collect();
            strides::permuted(&graph.exprs, &t.sizes, &order)
        }
        MemoryFormat::Contiguous | MemoryFormat::Preserve => {
            graph.exprs.contiguous_strides(&t.sizes)
        }
    }
}
