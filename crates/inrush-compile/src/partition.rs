//! Where a graph is cut: compiled segments between called operators.
//!
//! Nodes keep their order. A called node ends the open segment only when it needs something that
//! the segment computes. Views are never placed: each segment repeats the views that it reads
//! through, and a called operator or an output that needs a view gets one over the storage of its
//! *root*, the first value up the chain that is no view. So only roots are stored between pieces,
//! and what aliases in PyTorch aliases here.
//!
//! ```text
//! a = relu(x)                     segment 1: a = relu(x)
//! v = transpose(a)                view:      v over a
//! c = foreign(v)                  call:      c = foreign(v)
//! d = add(v, c)                   segment 2: v' = transpose(a); d = add(v', c)
//! ```
//!
//! A segment is a graph of its own. Its inputs are roots from other pieces, and each symbol that it
//! mentions as one more integer. Its outputs are the roots that other pieces or the caller read.
//!
//! Cutting takes time linear in nodes and edges. It is repeated when a segment is refused, with
//! longer and longer lists of calls (`sequence.rs`).

use crate::no_kernels;
use inrush_aten::props::{Prop, SortAxis, has};
use inrush_aten::{Args, Route};
use inrush_base::{DType, DTypeClass, Error, Gpu, Result};
use inrush_expr::{Expr, Sym, SymMap};
use inrush_graph::{
    Arg, Graph, Input, InputKind, Node, NodeId, Output, OutputKind, OutputValue, Type, Value,
    ValueId,
};
use inrush_passes::may_write;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;

/// The pieces in order.
pub struct Cut {
    pub pieces: Vec<Piece>,
    pub views: Views,
}

/// A piece of a graph that is cut. The `base` of a view is its root.
// Moved a few times and held in one list: boxes would save nothing.
#[allow(clippy::large_enum_variant)]
pub enum Piece {
    Segment(Cutout),
    Call(NodeId),
    View { value: ValueId, base: ValueId },
}

/// A segment as a graph of its own. Its inputs are `inputs`, then the symbols that it mentions as integers.
pub struct Cutout {
    /// Nodes of the whole graph, views that are repeated included, in the order of the segment's
    /// graph.
    pub nodes: Vec<NodeId>,
    pub graph: Graph,
    /// Values of the whole graph, by position.
    pub inputs: Vec<ValueId>,
    pub outputs: Vec<ValueId>,
}

/// For results of views: the node, which of its results, and the value that it looks at.
pub type Views = FxHashMap<ValueId, (NodeId, usize, ValueId)>;

/// Why a node is called that data decide about.
pub const READS_DATA: &str = "its sizes or numbers depend on data";
/// Why a node of control flow is called.
const CONTROL: &str = "control flow";
/// Why an operator of the user's is called.
const CUSTOM: &str = "a custom operator";

/// Returns true if a node only shows its first argument's storage.
pub fn is_view(graph: &Graph, node: &Node) -> bool {
    if has(&node.op, Prop::Bitcasts) {
        return reads_as_same_size(graph, node);
    }
    has(&node.op, Prop::Alias)
        && matches!(node.args.first(), Some(Arg::Value(v)) if matches!(graph.value(*v).ty, Type::Tensor(_)))
        && node
            .outs
            .iter()
            .all(|v| matches!(graph.value(*v).ty, Type::Tensor(_) | Type::None))
}

/// Returns true if a [`Prop::Bitcasts`] keeps every element's place, so that it is a view like others. Kernels convert elements where they
/// load them; what is returned shares the memory, as eager's does.
fn reads_as_same_size(graph: &Graph, node: &Node) -> bool {
    let (Some(Arg::Value(from)), [to]) = (node.args.first(), node.outs.as_slice()) else {
        return false;
    };
    match (&graph.value(*from).ty, &graph.value(*to).ty) {
        (Type::Tensor(from), Type::Tensor(to)) => from.dtype.size() == to.dtype.size(),
        _ => false,
    }
}

/// The nodes that a program outside of PyTorch calls: those of [`inrush_aten::dynamic`], control flow, operators of the user's, and views that cannot be made as ones,
/// which nothing can call there. With the reason.
pub fn must_call_alone(graph: &Graph) -> BTreeMap<NodeId, String> {
    let reason = |node: &Node| match inrush_aten::dynamic::find(&node.op) {
        _ if inrush_aten::dynamic::is_control(&node.op) => Some(CONTROL.to_string()),
        Some(_) => Some(READS_DATA.to_string()),
        None if graph.operator(&node.op).is_some() => Some(CUSTOM.to_string()),
        None => crooked(graph, node),
    };
    (graph.nodes.iter().enumerate())
        .filter_map(|(at, node)| Some((NodeId::from_index(at), reason(node)?)))
        .collect()
}

/// Nodes that no stage needs to look at: they have no row, values that only PyTorch can hold, or dtypes that PyTorch refuses. With the
/// reason. `gpu`: kernels are for this one.
pub fn must_call(graph: &Graph, gpu: Option<&Gpu>) -> BTreeMap<NodeId, String> {
    let mut out = BTreeMap::new();
    for (at, node) in graph.nodes.iter().enumerate() {
        if is_size(graph, node) {
            continue;
        }
        let foreign = |v: ValueId| match &graph.value(v).ty {
            Type::Tensor(t) if t.dtype.class() == DTypeClass::Complex => {
                Some(format!("`{}` is complex", graph.value(v).name))
            }
            Type::Opaque(what) => Some(format!("`{}` is {what}", graph.value(v).name)),
            Type::Float | Type::Bool => Some(format!(
                "`{}` is a number that is read from data",
                graph.value(v).name
            )),
            _ => None,
        };
        let reason = if inrush_aten::bind::signature(&node.op).is_none() {
            Some("no lowering".to_string())
        } else {
            node.outs
                .iter()
                .copied()
                .chain(node.reads())
                .find_map(foreign)
                .or_else(|| {
                    let function = has(&node.op, Prop::LibraryFunction);
                    function.then(|| "no lowering".to_string())
                })
                .or_else(|| crooked(graph, node))
                .or_else(|| folded(graph, node))
                .or_else(|| long_rows(graph, node, gpu))
                .or_else(|| no_kernels::refused(graph, node, gpu.is_some()))
        };
        if let Some(reason) = reason {
            out.insert(NodeId::from_index(at), reason);
        }
    }
    for at in returned_as_strided(graph) {
        out.entry(at)
            .or_insert_with(|| "its result is returned and shares memory".to_string());
    }
    out
}

/// Finds the [`Prop::Restrides`] whose memory is an output's. Kernels gather such elements into memory of their own, which is no
/// view of anything; PyTorch makes the view.
fn returned_as_strided(graph: &Graph) -> Vec<NodeId> {
    let strided = |n: &Node| has(&n.op, Prop::Restrides);
    if !graph.nodes.iter().any(strided) {
        return Vec::new();
    }
    let mut seen: FxHashSet<ValueId> = (graph.outputs.iter())
        .filter_map(|o| match &o.value {
            OutputValue::Value(v) => Some(*v),
            _ => None,
        })
        .collect();
    let mut out = Vec::new();
    for (at, node) in graph.nodes.iter().enumerate().rev() {
        if !node.outs.iter().any(|v| seen.contains(v)) {
            continue;
        }
        let strided = strided(node);
        if strided {
            out.push(NodeId::from_index(at));
        }
        if let Some(Arg::Value(base)) = node.args.first()
            && (strided || is_view(graph, node))
        {
            seen.insert(*base);
        }
    }
    out
}

/// Rows up to this length are sorted in kernels by comparing each with each; longer ones PyTorch's own sort is faster at.
const SORTED: i64 = 16;
/// Rows up to this length a GPU's kernel sorts faster than PyTorch, however many there are and wherever their elements are. Columns of
/// 1,024 floats take 1.5 times the library's time; of rows of 1,024 that abound, each has a warp, whose code takes seconds to build.
const SHORT: i64 = 512;
/// Longest rows of which a GPU's kernel finds the greatest few: one program holds such a row whole.
const HELD: i64 = 4096;

/// Returns the reason for which an operator that sorts rows is left to PyTorch.
fn long_rows(graph: &Graph, node: &Node, gpu: Option<&Gpu>) -> Option<String> {
    let rows = sorted_rows(graph, node)?;
    let on_gpu = |gpu: &Gpu| {
        let few = rows.count < Gpu::FEW_SORTED_ROWS * i64::from(gpu.multiprocessors);
        (few || rows.longest <= SHORT) && packs(graph, node, &rows)
    };
    let kernel = finds_few(graph, node) || gpu.is_some_and(on_gpu);
    (rows.longest > SORTED && !kernel).then(|| "sorts long rows".to_string())
}

/// Returns true if an operator sorts or searches rows that a GPU's kernel is faster at than the library.
pub fn has_short_rows(graph: &Graph, node: &Node) -> bool {
    let most = if finds_few(graph, node) { HELD } else { SORTED };
    sorted_rows(graph, node).is_some_and(|r| r.longest <= most || packs(graph, node, &r))
}

/// Returns true if a program of a GPU sorts such rows, each element a key with its position, and does so well.
fn packs(graph: &Graph, node: &Node, rows: &Rows) -> bool {
    let placed = rows.contiguous || rows.longest <= SHORT;
    placed
        && sorted_dtype(graph, node).is_some_and(|d| inrush_aten::sorts_in_kernel(d, rows.longest))
}

/// Returns the dtype of what an operator sorts; `None` for numbers that it makes itself.
fn sorted_dtype(graph: &Graph, node: &Node) -> Option<DType> {
    let at = inrush_aten::lookup(&node.op)?.schema().position("self")?;
    match node.args.get(at)? {
        Arg::Value(v) => Some(graph.tensor(*v).ok()?.dtype),
        _ => None,
    }
}

/// Returns true if an operator finds the greatest of each row one after the other.
fn finds_few(graph: &Graph, node: &Node) -> bool {
    let Some(op) = inrush_aten::lookup(&node.op).filter(|op| op.row.has(Prop::TopK)) else {
        return false;
    };
    let arg = |name: &str| op.schema().position(name).and_then(|at| node.args.get(at));
    let few = |k: &Expr| graph.exprs.as_int(*k).is_some_and(inrush_aten::selects);
    matches!(arg("k"), Some(Arg::Int(k)) if few(k))
        && !matches!(arg("largest"), Some(Arg::Bool(false)))
}

/// The rows that an operator sorts.
struct Rows {
    /// The upper bound of their length, since a kernel has to hold any of them.
    longest: i64,
    /// How many there are, at the hints.
    count: i64,
    /// The elements of a row are neighbours in memory.
    contiguous: bool,
}

/// Returns the rows that an operator sorts; `None` where it does not sort, or where they cannot be told.
fn sorted_rows(graph: &Graph, node: &Node) -> Option<Rows> {
    let op = inrush_aten::lookup(&node.op)?;
    let sorts = op.row.sorts()?;
    let arg = |name: &str| op.schema().position(name).and_then(|at| node.args.get(at));
    let ex = &graph.exprs;
    let one = |length: Expr| Rows {
        longest: ex.range(length).hi,
        count: 1,
        contiguous: true,
    };
    let x = match (arg("self"), arg("n")) {
        (_, Some(Arg::Int(n))) => return Some(one(*n)),
        (Some(Arg::Value(v)), _) => graph.tensor(*v).ok()?,
        _ => return None,
    };
    let dim = match arg("dim") {
        Some(Arg::Int(d)) => {
            let d = ex.as_int(*d)?;
            usize::try_from(if d < 0 { d + x.sizes.len() as i64 } else { d }).ok()?
        }
        _ if sorts == SortAxis::First => 0,
        _ => return Some(one(ex.product(x.sizes.iter().copied()))),
    };
    let length = *x.sizes.get(dim)?;
    let others = x.sizes.iter().enumerate().filter(|(d, _)| *d != dim);
    Some(Rows {
        longest: ex.range(length).hi,
        count: others.fold(1, |n, (_, s)| n.saturating_mul(ex.hint(*s))),
        contiguous: ex.as_int(*x.strides.get(dim)?) == Some(1),
    })
}

/// Returns the reason for which a view cannot be made as one: its row refuses these arguments.
fn crooked(graph: &Graph, node: &Node) -> Option<String> {
    let Some(Arg::Value(from)) = node.args.first() else {
        return None;
    };
    if !is_view(graph, node) {
        return None;
    }
    let e = step(graph, node, 0, *from).err()?;
    Some(e.message().to_string())
}

/// Returns the reason for which a result cannot be written: its strides, which are eager's, put
/// several elements in one place.
fn folded(graph: &Graph, node: &Node) -> Option<String> {
    let overlap = |v: &ValueId| match &graph.value(*v).ty {
        Type::Tensor(t) => graph.exprs.overlaps(&t.sizes, &t.strides),
        _ => false,
    };
    let op = inrush_aten::lookup(&node.op)?;
    let aliases = op.schema().returns.iter().any(|r| r.alias.is_some());
    (!aliases && node.outs.iter().any(overlap))
        .then(|| "elements of its result share a place".to_string())
}

/// Returns true for a node whose results are integers: they are expressions, and nothing has to run
/// once their symbols are known.
fn is_size(graph: &Graph, node: &Node) -> bool {
    !node.outs.is_empty() && (node.outs.iter()).all(|v| matches!(graph.value(*v).ty, Type::Int(_)))
}

/// Returns the root of a value: the value itself unless it is a view.
fn root(views: &Views, mut v: ValueId) -> ValueId {
    while let Some((_, _, base)) = views.get(&v) {
        v = *base;
    }
    v
}

/// Pieces in the making.
struct Cutter<'a> {
    graph: &'a Graph,
    held: &'a Held,
    /// Views met so far.
    views: Views,
    /// Nodes of the segment under construction, and what they compute.
    open: Vec<NodeId>,
    open_values: FxHashSet<ValueId>,
    /// Pieces in order, as lists of nodes.
    placed: Vec<Placed>,
    /// Views that stand as tensors already.
    made: FxHashSet<ValueId>,
}

/// A piece before its graph is built: which values cross pieces is known at the end only.
enum Placed {
    Segment(Vec<NodeId>),
    Call(NodeId),
    View(ValueId),
}

/// Weights that segments hold themselves: their inputs in the whole graph.
pub type Held = FxHashMap<ValueId, Input>;

/// Cuts the graph around the nodes in `called`. Weights in `held` are weights of the segments that read them, others are inputs.
pub fn cut(graph: &Graph, called: &BTreeMap<NodeId, String>, held: &Held) -> Result<Cut> {
    let mut c = Cutter {
        graph,
        held,
        views: Views::default(),
        open: Vec::new(),
        open_values: FxHashSet::default(),
        placed: Vec::new(),
        made: FxHashSet::default(),
    };
    let mut known: FxHashSet<Sym> = FxHashSet::default();
    let mut learn = |v: ValueId| {
        let mut syms = Vec::new();
        match &graph.value(v).ty {
            Type::Int(e) => graph.exprs.collect_syms(*e, &mut syms),
            Type::Tensor(t) => (t.sizes.iter().chain(&t.strides))
                .for_each(|e| graph.exprs.collect_syms(*e, &mut syms)),
            _ => {}
        }
        let fresh = syms.iter().any(|s| !known.contains(s));
        known.extend(syms);
        fresh
    };
    for i in &graph.inputs {
        learn(i.value);
    }
    for (at, node) in graph.nodes.iter().enumerate() {
        let id = NodeId::from_index(at);
        if is_size(graph, node) {
            // One that brings a new symbol along reads it from data.
            if node.outs.iter().any(|v| learn(*v)) {
                c.call(id);
            }
        } else if called.contains_key(&id) {
            node.outs.iter().for_each(|v| {
                learn(*v);
            });
            c.call(id);
        } else if is_view(graph, node) {
            let Some(Arg::Value(base)) = node.args.first() else {
                continue;
            };
            // A part whose bounds are data: it has to be there before its size is known.
            let mut fresh = false;
            for v in &node.outs {
                fresh |= learn(*v);
            }
            if fresh {
                c.call(id);
                continue;
            }
            for (k, v) in node.outs.iter().enumerate() {
                c.views.insert(*v, (id, k, *base));
            }
        } else {
            c.open.push(id);
            c.open_values.extend(node.outs.iter().copied());
        }
    }
    c.close();
    for o in &graph.outputs {
        if let OutputValue::Value(v) = &o.value {
            c.view(*v);
        }
    }
    c.finish()
}

impl Cutter<'_> {
    /// Ends the open segment.
    fn close(&mut self) {
        if !self.open.is_empty() {
            self.placed
                .push(Placed::Segment(std::mem::take(&mut self.open)));
            self.open_values.clear();
        }
    }

    /// Places a call. It goes before the open segment unless it reads from it, so that a call which
    /// needs inputs only does not split a segment. One that may write memory waits for all earlier
    /// reads.
    fn call(&mut self, id: NodeId) {
        let node = &self.graph.nodes[id.index()];
        let reads: Vec<ValueId> = node.reads().collect();
        // A declared operator of the user's writes nothing once the graph is functional.
        let writes = may_write(&node.op) && self.graph.operator(&node.op).is_none();
        let waits =
            writes || (reads.iter()).any(|v| self.open_values.contains(&root(&self.views, *v)));
        if waits {
            self.close();
        }
        for v in reads {
            self.view(v);
        }
        self.placed.push(Placed::Call(id));
    }

    /// Makes a tensor of `v` if it is a view.
    fn view(&mut self, v: ValueId) {
        if self.views.contains_key(&v) && self.made.insert(v) {
            self.placed.push(Placed::View(v));
        }
    }

    /// Builds the pieces' graphs.
    fn finish(self) -> Result<Cut> {
        let graph = self.graph;
        // What each piece needs from others, as roots.
        let mut wanted: FxHashSet<ValueId> = FxHashSet::default();
        for o in &graph.outputs {
            if let OutputValue::Value(v) = &o.value {
                wanted.insert(root(&self.views, *v));
            }
        }
        let mut defined_in: FxHashMap<ValueId, usize> = FxHashMap::default();
        for (at, p) in self.placed.iter().enumerate() {
            if let Placed::Segment(nodes) = p {
                for n in nodes {
                    for v in &graph.nodes[n.index()].outs {
                        defined_in.insert(*v, at);
                    }
                }
            }
        }
        for (at, p) in self.placed.iter().enumerate() {
            let nodes = match p {
                Placed::Segment(nodes) => nodes.as_slice(),
                Placed::Call(n) => std::slice::from_ref(n),
                Placed::View(v) => {
                    wanted.insert(root(&self.views, *v));
                    continue;
                }
            };
            for n in nodes {
                for v in graph.nodes[n.index()].reads() {
                    let r = root(&self.views, v);
                    if defined_in.get(&r).is_some_and(|d| *d != at) {
                        wanted.insert(r);
                    }
                }
            }
        }
        let pieces = self
            .placed
            .iter()
            .map(|p| {
                Ok(match p {
                    Placed::Segment(nodes) => {
                        Piece::Segment(segment(graph, &self.views, nodes, &wanted, self.held))
                    }
                    Placed::Call(n) => Piece::Call(*n),
                    Placed::View(v) => Piece::View {
                        value: *v,
                        base: root(&self.views, *v),
                    },
                })
            })
            .collect::<Result<Vec<_>>>()?;
        Ok(Cut {
            pieces,
            views: self.views,
        })
    }
}

/// Builds the graph of one node, whose results are its outputs.
pub fn alone(graph: &Graph, node: NodeId) -> Cutout {
    let wanted = graph.nodes[node.index()].outs.iter().copied().collect();
    let views = Views::default();
    segment(graph, &views, &[node], &wanted, &Held::default())
}

/// Returns the results of called nodes.
pub fn results(graph: &Graph, called: &BTreeMap<NodeId, String>) -> FxHashSet<ValueId> {
    let outs = called.keys().flat_map(|n| &graph.nodes[n.index()].outs);
    outs.copied().collect()
}

/// Builds the graph of some nodes; what other nodes read of their results, and the graph gives, are its outputs.
pub fn region(graph: &Graph, nodes: &[NodeId]) -> Cutout {
    let outside = (0..graph.nodes.len()).map(NodeId::from_index);
    let outside = outside.filter(|n| !nodes.contains(n));
    let read = outside.flat_map(|n| graph.nodes[n.index()].reads());
    let given = graph.outputs.iter().filter_map(|o| match &o.value {
        OutputValue::Value(v) => Some(*v),
        _ => None,
    });
    let wanted = read.chain(given).collect();
    segment(graph, &Views::default(), nodes, &wanted, &Held::default())
}

/// Builds the graph of a segment.
fn segment(
    whole: &Graph,
    views: &Views,
    nodes: &[NodeId],
    wanted: &FxHashSet<ValueId>,
    held: &Held,
) -> Cutout {
    let mut b = Builder {
        whole,
        views,
        held,
        out: Graph {
            name: whole.name.clone(),
            exprs: whole.exprs.clone(),
            foreign_inputs: whole.foreign_inputs,
            lines: whole.lines.clone(),
            ..Graph::default()
        },
        map: FxHashMap::default(),
        inputs: Vec::new(),
        nodes: Vec::new(),
        own: (nodes.iter())
            .flat_map(|n| whole.nodes[n.index()].outs.iter().copied())
            .collect(),
        placed: FxHashSet::default(),
    };
    for n in nodes {
        b.place(*n);
    }
    let mut outputs = Vec::new();
    for n in nodes {
        for v in &whole.nodes[n.index()].outs {
            if wanted.contains(v) && !matches!(whole.value(*v).ty, Type::None) {
                b.out.outputs.push(Output {
                    value: OutputValue::Value(b.map[v]),
                    kind: OutputKind::User {
                        index: outputs.len(),
                    },
                });
                outputs.push(*v);
            }
        }
    }
    b.symbols();
    // Weights come first, as importers have them.
    (b.out.inputs).sort_by_key(|i| matches!(i.kind, InputKind::User { .. }));
    Cutout {
        nodes: b.nodes,
        graph: b.out,
        inputs: b.inputs,
        outputs,
    }
}

/// A segment's graph in the making.
struct Builder<'a> {
    whole: &'a Graph,
    views: &'a Views,
    held: &'a Held,
    out: Graph,
    /// From values of the whole graph to the segment's.
    map: FxHashMap<ValueId, ValueId>,
    inputs: Vec<ValueId>,
    nodes: Vec<NodeId>,
    /// Values that the segment computes itself, views aside.
    own: FxHashSet<ValueId>,
    placed: FxHashSet<NodeId>,
}

impl Builder<'_> {
    /// Adds a node, after all that it reads.
    fn place(&mut self, n: NodeId) {
        if !self.placed.insert(n) {
            return;
        }
        let node = &self.whole.nodes[n.index()];
        for v in node.reads() {
            self.need(v);
        }
        let mut copy = node.clone();
        copy.reads_mut().for_each(|v| *v = self.map[v]);
        for v in &mut copy.outs {
            *v = self.value(*v);
        }
        self.nodes.push(n);
        self.out.nodes.push(copy);
    }

    /// Makes `v` known: as a view of something known, as an own value, or as an input.
    fn need(&mut self, v: ValueId) {
        if self.map.contains_key(&v) || self.own.contains(&v) {
            return;
        }
        // A chain of views is walked from its root; no recursion, chains may be long.
        let mut chain = Vec::new();
        let mut at = v;
        while let Some((n, _, base)) = self.views.get(&at) {
            if self.map.contains_key(&at) {
                break;
            }
            chain.push(*n);
            at = *base;
        }
        if !self.map.contains_key(&at) && !self.own.contains(&at) {
            let new = self.value(at);
            if let Some(weight) = self.held.get(&at) {
                let weight = Input {
                    value: new,
                    ..weight.clone()
                };
                self.out.inputs.push(weight);
            } else if !matches!(self.whole.value(at).ty, Type::Int(_)) {
                let index = self.inputs.len();
                self.inputs.push(at);
                self.out
                    .inputs
                    .push(Input::new(new, InputKind::User { index }));
            }
        }
        for n in chain.into_iter().rev() {
            self.place(n);
        }
    }

    /// Returns the segment's value for one of the whole graph, a new one at the first request.
    fn value(&mut self, v: ValueId) -> ValueId {
        if let Some(new) = self.map.get(&v) {
            return *new;
        }
        let new = ValueId::from_index(self.out.values.len());
        self.out.values.push(self.whole.value(v).clone());
        self.map.insert(v, new);
        new
    }

    /// Adds an integer input for every symbol that the segment mentions. Integers that nodes read are replaced by their
    /// expressions, so that symbols are all there is to pass.
    fn symbols(&mut self) {
        let mut syms: Vec<Sym> = Vec::new();
        let mut note = |e: Expr| self.whole.exprs.collect_syms(e, &mut syms);
        for v in &self.out.values {
            match &v.ty {
                Type::Tensor(t) => t.sizes.iter().chain(&t.strides).for_each(|e| note(*e)),
                Type::Int(e) => note(*e),
                _ => {}
            }
        }
        for a in self.out.nodes.iter().flat_map(|n| &n.args) {
            match a {
                Arg::Int(e) => note(*e),
                Arg::Ints(es) => es.iter().for_each(|e| note(*e)),
                _ => {}
            }
        }
        let ints: Vec<Option<Expr>> = (self.out.values.iter())
            .map(|v| match v.ty {
                Type::Int(e) => Some(e),
                _ => None,
            })
            .collect();
        for a in self.out.nodes.iter_mut().flat_map(|n| &mut n.args) {
            match a {
                Arg::Value(v) => {
                    if let Some(e) = ints[v.index()] {
                        *a = Arg::Int(e);
                    }
                }
                Arg::Values(vs) if !vs.is_empty() => {
                    let all: Option<Vec<Expr>> =
                        vs.iter().map(|v| v.and_then(|v| ints[v.index()])).collect();
                    if let Some(all) = all {
                        *a = Arg::Ints(all);
                    }
                }
                _ => {}
            }
        }
        syms.sort();
        syms.dedup();
        for (k, s) in syms.into_iter().enumerate() {
            let value = ValueId::from_index(self.out.values.len());
            self.out.values.push(Value {
                name: format!("size_{}", self.whole.exprs.sym_info(s).name),
                ty: Type::Int(self.whole.exprs.sym_expr(s)),
            });
            let index = self.inputs.len() + k;
            self.out
                .inputs
                .push(Input::new(value, InputKind::User { index }));
        }
    }
}

/// Returns the distance in elements from the first of `base` to the first of `value`, a view of it
/// through any number of views.
pub fn offset(graph: &Graph, views: &Views, value: ValueId, base: ValueId) -> Result<Expr> {
    let ex = &graph.exprs;
    let mut total = ex.int(0);
    let mut at = value;
    while at != base {
        let (n, k, from) = *views
            .get(&at)
            .ok_or_else(|| Error::internal("a chain of views has no root"))?;
        total = ex.add(total, step(graph, &graph.nodes[n.index()], k, from)?);
        at = from;
    }
    Ok(total)
}

/// Returns the offset that one view adds: its map of coordinates at the origin, times the strides
/// of the value that it looks at.
fn step(graph: &Graph, node: &Node, k: usize, from: ValueId) -> Result<Expr> {
    let ex = &graph.exprs;
    if has(&node.op, Prop::Bitcasts) {
        return Ok(ex.int(0));
    }
    let locate = |e: Error| graph.locate(node, e);
    let op = inrush_aten::lookup(&node.op)
        .ok_or_else(|| locate(Error::internal("a view without a row")))?;
    let args: Vec<Arg> = (node.args.iter())
        .map(|a| match a {
            Arg::Value(v) => match graph.value(*v).ty {
                Type::Int(e) => Arg::Int(e),
                _ => a.clone(),
            },
            _ => a.clone(),
        })
        .collect();
    let args = inrush_aten::bind::complete(ex, op.schema(), args).map_err(locate)?;
    // What the view asks of sizes, the segments that hold it check.
    let demands = inrush_aten::Demands::default();
    let call = inrush_aten::Call::new(
        Args {
            exprs: ex,
            demands: &demands,
            op,
            args: &args,
        },
        &graph.values,
        &node.outs,
    );
    let Route::View(f) = op.row.route else {
        return Err(locate(Error::unsupported("no view by its row")));
    };
    let views = f(&call).map_err(locate)?;
    let view = views
        .get(k)
        .ok_or_else(|| locate(Error::internal("a view has too few results")))?;
    let zero: SymMap = view
        .sizes
        .iter()
        .enumerate()
        .map(|(d, s)| (ex.index_sym(d as u32, *s), ex.int(0)))
        .collect();
    let strides = &graph.tensor(from)?.strides;
    Ok(ex.sum(
        view.map
            .iter()
            .zip(strides)
            .map(|(m, s)| ex.mul(ex.subst(*m, &zero), *s)),
    ))
}
