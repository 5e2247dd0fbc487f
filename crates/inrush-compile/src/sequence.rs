//! A graph as a sequence of compiled segments and called operators.
//!
//! Inside PyTorch any operator can be called, so nothing has to be refused: what has no lowering,
//! or what a stage refuses, is called where it stands, and the rest is compiled around it.
//! [`compile_sequence`] finds out by trying: a node that a stage names in an `unsupported` error
//! becomes a call with that reason, and only the segment that held it is cut again.
//!
//! ```text
//! called := nodes that must be called (no row, foreign values, a library's, the caller's)
//! loop   cut the graph around `called`                  (partition.rs)
//!        compile each segment that is new               (pipeline.rs)
//!        for each that fails: add the named node, or all of its nodes, to `called`
//! until  none fails
//! ```
//!
//! The loop ends: each round adds a node to `called`, or returns the error. Segments that compiled
//! are found again by their nodes and outputs, so that a round costs what it changes.
//!
//! *Assembly* then joins the segments: one list of symbols in the order in which they become known,
//! one size arithmetic, one shared object. A symbol may be read from the result of a call; steps
//! that need it come later by construction.

use crate::functions::spread;
use crate::partition::{self, Cut, Cutout, Piece, Views};
use crate::sizes::Sizes;
use crate::{Code, Options, Pipeline, Refusals, Retile, Unit, library};
use inrush_base::{Caps, DType, Error, ErrorKind, Result};
use inrush_c::Function;
use inrush_expr::{Expr, Sym};
use inrush_graph::{Graph, InputKind, Node, NodeId, OutputKind, OutputValue, Type, ValueId};
use inrush_passes::Source;
use inrush_program::{GpuKernel, Program, Size, SizeId};
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BTreeMap;

/// Everything that runs for one graph, in order.
#[derive(Clone, Debug)]
pub struct Sequence {
    /// The graph after stage rewrite: the parts name its nodes and values.
    pub graph: Graph,
    /// For each of its nodes the node of the given graph that it still is; `None` for calls that a pass made.
    pub sources: Vec<Option<Source>>,
    pub parts: Vec<Part>,
    /// Integers that a call brings along or that its operators compute, in the order in which they become known.
    pub symbols: Vec<SymbolDef>,
    /// Size arithmetic over [`Sequence::symbols`]; a line may only be read once its symbols are known.
    pub sizes: Vec<Size>,
    /// Integers that the caller asked for, where they are arithmetic over the symbols.
    pub ints: Vec<(Expr, SizeId)>,
    pub outputs: Vec<SequenceOutput>,
    /// Translation units of the one shared object of all segments, on a CPU.
    pub pieces: Vec<String>,
    /// The distinct functions of the pieces instead, for a program that runs outside of PyTorch.
    pub(crate) functions: Vec<Function>,
    /// The distinct kernels of all segments, on a GPU.
    pub kernels: Vec<GpuKernel>,
    /// For tuning at a call, where that was asked for.
    pub retiles: Vec<Retile>,
    /// For tensors that pass between parts: dtypes, sizes and strides. On GPUs only; a size that nothing says leaves one out.
    pub layouts: Vec<(ValueId, Layout)>,
    /// Fusions that were considered and refused.
    pub refusals: Refusals,
}

/// The layout of a tensor in memory.
#[derive(Clone, Debug)]
pub struct Layout {
    pub dtype: DType,
    pub sizes: Vec<SizeId>,
    pub strides: Vec<SizeId>,
}

/// Where a symbol is read, and from when on.
#[derive(Clone, Debug)]
pub struct SymbolDef {
    pub name: String,
    pub source: SymbolFrom,
    /// The part after which it is known; `None` for symbols of the inputs.
    pub after: Option<usize>,
}

/// The place that a symbol is read from.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum SymbolFrom {
    /// The value is this integer.
    Int(ValueId),
    /// Size `dim` of the tensor is `factor * symbol + offset`.
    Dim {
        value: ValueId,
        dim: u32,
        factor: i64,
        offset: i64,
    },
}

/// A step of the sequence.
#[derive(Clone, Debug)]
pub struct Part {
    pub what: What,
    /// Values that no later part and no output reads.
    pub frees: Vec<ValueId>,
}

/// The work of a part.
#[derive(Clone, Debug)]
// Moved a few times and held in one list: boxes would save nothing.
#[allow(clippy::large_enum_variant)]
pub enum What {
    Segment(Segment),
    Call(Call),
    View(View),
}

/// Compiled nodes.
#[derive(Clone, Debug)]
pub struct Segment {
    pub program: Program,
    /// Tensors by position among the program's inputs; the inputs after them are integers.
    pub inputs: Vec<ValueId>,
    /// For each symbol of the program its position in [`Sequence::symbols`].
    pub symbols: Vec<u32>,
    /// Values by position among the program's outputs. Further outputs are mutations.
    pub outputs: Vec<ValueId>,
}

/// An operator that is called.
#[derive(Clone, Debug)]
pub struct Call {
    /// The node in [`Sequence::graph`].
    pub node: NodeId,
    pub op: String,
    /// Why it is not compiled, for reports.
    pub reason: String,
    /// Called because a library is the fastest there is.
    pub library: bool,
    pub outs: Vec<ValueId>,
}

/// A tensor over another's storage.
#[derive(Clone, Debug)]
pub struct View {
    pub value: ValueId,
    pub base: ValueId,
    pub sizes: Vec<SizeId>,
    pub strides: Vec<SizeId>,
    /// Elements from the base's first to the view's first.
    pub offset: SizeId,
    /// The dtype that elements are read as, if not the base's: a dtype of the same size.
    pub dtype: Option<DType>,
    /// The layout of the base by its metadata, which the view relies on: sizes and strides. None where nothing tells.
    pub lies: Option<(Vec<SizeId>, Vec<SizeId>)>,
}

/// An output of the graph.
#[derive(Clone, PartialEq, Debug)]
pub enum SequenceOutput {
    Value(ValueId),
    /// An integer that depends on sizes.
    Int(SizeId),
    Scalar(inrush_base::Scalar),
    None,
}

/// The caller's knowledge besides the graph.
#[derive(Clone, Debug, Default)]
pub struct Request {
    /// Nodes that must be called, with the reason.
    pub called: BTreeMap<NodeId, String>,
    /// Calls of operators without a row that write nothing, by their schema.
    pub pure: Vec<NodeId>,
    /// Integers whose values calls need.
    pub ints: Vec<Expr>,
    /// Nothing of the graph is kept for gradients.
    pub inference: bool,
    /// The program runs outside of PyTorch: calls are functions of the runtime, weights belong to the segments that read them, and
    /// what does not compile is an error.
    pub alone: bool,
}

/// Compiles what compiles and calls the rest.
///
/// # Errors
/// An error that no single node causes: a graph that is not well formed, or a broken invariant in a stage.
pub fn compile_sequence(
    graph: Graph,
    request: &Request,
    caps: &Caps,
    options: &Options,
    observer: &mut dyn crate::Observer,
) -> Result<Sequence> {
    let (whole, sources) = rewritten(graph, request, caps, options, observer)?;
    let graph = &whole;
    let by_name: FxHashMap<&str, NodeId> = graph
        .nodes
        .iter()
        .enumerate()
        .flat_map(|(n, node)| {
            let id = NodeId::from_index(n);
            (node.outs.iter()).map(move |v| (graph.value(*v).name.as_str(), id))
        })
        .collect();
    let (mut called, held) = if request.alone {
        (partition::must_call_alone(graph), held(graph))
    } else {
        let called = partition::must_call(graph, caps.gpu.as_ref());
        (called, partition::Held::default())
    };
    let kept = partition::results(graph, &called);
    let is_kept = |n: &Node| n.outs.iter().any(|v| kept.contains(v));
    let large = inrush_passes::large_products(graph, caps, &is_kept);
    for (n, node) in graph.nodes.iter().enumerate() {
        let why = match caps.gpu {
            Some(_) => {
                let calls = options.libraries.serve(&node.op)
                    && options.libraries.takes(graph, node)
                    && !partition::has_short_rows(graph, node)
                    && !inrush_passes::has_few_rows(graph, node)
                    && !large[n];
                calls.then_some(library::REASON)
            }
            None if request.alone => None,
            None => library::better_on_cpu(graph, node),
        };
        if let Some(why) = why {
            called.insert(NodeId::from_index(n), why.to_string());
        }
    }
    for (n, source) in sources.iter().enumerate() {
        if let Some(why) = source.as_ref().and_then(|s| request.called.get(&s.node)) {
            called.insert(NodeId::from_index(n), why.clone());
        }
    }
    let mut units = Units::default();
    let cut = loop {
        let mut cut = partition::cut(graph, &called, &held)?;
        let mut refused = false;
        for piece in &mut cut.pieces {
            let Piece::Segment(s) = piece else { continue };
            let key = (s.nodes.clone(), s.outputs.clone());
            if units.contains_key(&key) {
                continue;
            }
            let mut pipeline = Pipeline::new(caps, options, observer);
            match pipeline.unit(std::mem::take(&mut s.graph)) {
                Ok(unit) => {
                    units.insert(key, unit);
                }
                Err(e) if request.alone => return Err(e),
                Err(e) => {
                    refuse(graph, &mut called, &by_name, &s.nodes, &e, options.strict)?;
                    refused = true;
                }
            }
        }
        if !refused {
            break cut;
        }
    };
    assemble(
        (whole, sources),
        request,
        cut,
        &called,
        units,
        options,
        caps,
    )
}

/// Returns the weights that no call writes.
pub(crate) fn held(graph: &Graph) -> partition::Held {
    let written: FxHashSet<usize> = (graph.outputs.iter())
        .filter_map(|o| match o.kind {
            OutputKind::Mutation { input } => Some(input),
            OutputKind::User { .. } => None,
        })
        .collect();
    (graph.inputs.iter().enumerate())
        .filter(|(at, i)| !matches!(i.kind, InputKind::User { .. }) && !written.contains(at))
        .map(|(_, i)| (i.value, i.clone()))
        .collect()
}

/// Compiled segments, by their nodes and outputs.
type Units = FxHashMap<(Vec<NodeId>, Vec<ValueId>), Unit>;

/// Runs stage rewrite over the whole graph where libraries are called, that is on GPUs. Returns the graph, and the source of
/// each node.
pub(crate) fn rewritten(
    graph: Graph,
    request: &Request,
    caps: &Caps,
    options: &Options,
    observer: &mut dyn crate::Observer,
) -> Result<(Graph, Vec<Option<Source>>)> {
    if caps.gpu.is_none() {
        let itself = |n| Source {
            node: NodeId::from_index(n),
            operands: Vec::new(),
        };
        let sources = (0..graph.nodes.len()).map(|n| Some(itself(n))).collect();
        return Ok((graph, sources));
    }
    Pipeline::new(caps, options, observer).rewrite_calls(graph, request)
}

/// Marks what an error names as called: its node, or without one all nodes of the segment.
fn refuse(
    graph: &Graph,
    called: &mut BTreeMap<NodeId, String>,
    by_name: &FxHashMap<&str, NodeId>,
    nodes: &[NodeId],
    e: &Error,
    strict: bool,
) -> Result<()> {
    // A machine that fails would fail for each segment: calling all operators would hide it.
    let machine = matches!(e.kind(), ErrorKind::Machine | ErrorKind::OutOfMemory);
    if machine || (strict && e.kind() == ErrorKind::Internal) {
        return Err(e.clone());
    }
    let named = e
        .node()
        .and_then(|n| by_name.get(n))
        .filter(|n| nodes.contains(n) && !called.contains_key(n));
    match named {
        Some(n) => {
            called.insert(*n, e.message().to_string());
        }
        None => {
            // Without a name any node may be at fault. Views run nothing, and calls of them would
            // cut more.
            let reason = format!("its segment does not compile: {e}");
            let mut fresh = false;
            for n in nodes {
                if !partition::is_view(graph, &graph.nodes[n.index()]) {
                    fresh |= called.insert(*n, reason.clone()).is_none();
                }
            }
            if !fresh {
                return Err(e.clone());
            }
        }
    }
    Ok(())
}

/// Symbols as they become known.
struct Known<'a> {
    graph: &'a Graph,
    position: FxHashMap<Sym, u32>,
    /// Where each symbol is read, by position.
    defs: Vec<SymbolDef>,
    /// The symbols, by position.
    order: Vec<Sym>,
}

impl<'a> Known<'a> {
    /// Collects the symbols of a graph that is cut, in the order in which they become known.
    fn of(graph: &'a Graph, cut: &Cut) -> Known<'a> {
        let mut known = Known {
            graph,
            position: FxHashMap::default(),
            defs: Vec::new(),
            order: Vec::new(),
        };
        // Integers first: they are read without looking at a tensor.
        let is_int = |v: ValueId| matches!(graph.value(v).ty, Type::Int(_));
        for ints in [true, false] {
            for i in graph.inputs.iter().filter(|i| is_int(i.value) == ints) {
                known.learn(i.value, None);
            }
        }
        for (at, piece) in cut.pieces.iter().enumerate() {
            if let Piece::Call(n) = piece {
                let outs = &graph.nodes[n.index()].outs;
                outs.iter().for_each(|v| known.learn(*v, Some(at)));
            }
        }
        known
    }

    /// Reads what a value says about symbols that are not known yet.
    fn learn(&mut self, value: ValueId, after: Option<usize>) {
        let ex = &self.graph.exprs;
        let mut found: Vec<(Sym, SymbolFrom)> = Vec::new();
        match &self.graph.value(value).ty {
            Type::Int(e) => found.extend(ex.as_sym(*e).map(|s| (s, SymbolFrom::Int(value)))),
            Type::Tensor(t) => {
                for (d, e) in t.sizes.iter().enumerate() {
                    for sym in ex.free_syms(*e) {
                        // Only sizes that are affine in one symbol, with constant coefficients, can
                        // be solved for it.
                        let Some((coefs, rest)) = ex.affine(*e, &[sym]) else {
                            continue;
                        };
                        if let (Some(factor), Some(offset)) = (ex.as_int(coefs[0]), ex.as_int(rest))
                            && factor != 0
                        {
                            found.push((
                                sym,
                                SymbolFrom::Dim {
                                    value,
                                    dim: d as u32,
                                    factor,
                                    offset,
                                },
                            ));
                        }
                    }
                }
            }
            _ => {}
        }
        for (sym, source) in found {
            if !self.position.contains_key(&sym) {
                self.position.insert(sym, self.defs.len() as u32);
                self.order.push(sym);
                self.defs.push(SymbolDef {
                    name: ex.sym_info(sym).name,
                    source,
                    after,
                });
            }
        }
    }
}

/// Builds the sequence of a graph that is cut and compiled.
fn assemble(
    (whole, sources): (Graph, Vec<Option<Source>>),
    request: &Request,
    cut: Cut,
    called: &BTreeMap<NodeId, String>,
    units: Units,
    options: &Options,
    caps: &Caps,
) -> Result<Sequence> {
    let graph = &whole;
    let known = Known::of(graph, &cut);
    let mut a = Assembly {
        graph,
        called,
        units,
        sizes: Sizes::new(&graph.exprs, &known.order),
        position: known.position,
        functions: Vec::new(),
        kernels: Vec::new(),
        seen: FxHashSet::default(),
        refusals: Refusals::default(),
        retiles: Vec::new(),
    };
    let mut parts = Vec::with_capacity(cut.pieces.len());
    for piece in cut.pieces {
        let what = match piece {
            Piece::Segment(s) => What::Segment(a.segment(s)?),
            Piece::Call(n) => What::Call(a.call(n)),
            Piece::View { value, base } => What::View(a.view(&cut.views, value, base)?),
        };
        parts.push(Part {
            what,
            frees: Vec::new(),
        });
    }
    let outputs = a.outputs()?;
    let ints = (request.ints.iter())
        .filter_map(|e| Some((*e, a.sizes.of(*e).ok()?)))
        .collect();
    free(graph, &mut parts, &outputs);
    let layouts = match caps.gpu {
        Some(_) => layouts(graph, &parts, &mut a.sizes),
        None => Vec::new(),
    };
    let pieces = if a.functions.is_empty() || request.alone {
        Vec::new()
    } else {
        spread(&a.functions, options.pieces.max(1))
    };
    Ok(Sequence {
        sources,
        parts,
        symbols: known.defs,
        sizes: a.sizes.finish(),
        ints,
        outputs,
        pieces,
        functions: if request.alone {
            a.functions
        } else {
            Vec::new()
        },
        kernels: a.kernels,
        retiles: a.retiles,
        layouts,
        refusals: a.refusals,
        graph: whole,
    })
}

/// Parts in the making, and the distinct code of those that are made. Segments share functions by
/// name: a name is a digest of the text.
struct Assembly<'a> {
    graph: &'a Graph,
    called: &'a BTreeMap<NodeId, String>,
    units: Units,
    sizes: Sizes<'a>,
    /// Positions of symbols in [`Sequence::symbols`].
    position: FxHashMap<Sym, u32>,
    functions: Vec<Function>,
    kernels: Vec<GpuKernel>,
    /// Names of functions and symbols of kernels.
    seen: FxHashSet<String>,
    refusals: Refusals,
    retiles: Vec<Retile>,
}

impl Assembly<'_> {
    /// Returns a compiled segment, with its symbols by the sequence's numbers.
    fn segment(&mut self, s: Cutout) -> Result<Segment> {
        let unit = (self.units)
            .remove(&(s.nodes, s.outputs.clone()))
            .ok_or_else(|| Error::internal("a segment was not compiled"))?;
        let seen = &mut self.seen;
        match unit.code {
            Code::C(all) => {
                let new = all.into_iter().filter(|f| seen.insert(f.name.clone()));
                self.functions.extend(new);
            }
            Code::Gpu(all) => {
                let new = all.into_iter().filter(|k| seen.insert(k.symbol.clone()));
                self.kernels.extend(new);
            }
        }
        self.refusals.extend(unit.refusals);
        self.retiles.extend(unit.retile);
        let position = |s: &inrush_program::Symbol| {
            let sym = self.graph.exprs.sym_by_name(&s.name);
            sym.and_then(|s| self.position.get(&s).copied())
                .ok_or_else(|| unknown(&s.name))
        };
        let symbols = unit.program.symbols.iter().map(position);
        Ok(Segment {
            symbols: symbols.collect::<Result<Vec<u32>>>()?,
            program: unit.program,
            inputs: s.inputs,
            outputs: s.outputs,
        })
    }

    /// Returns the call of a node. One without a recorded reason defines a symbol that is read from
    /// data.
    fn call(&self, n: NodeId) -> Call {
        let node = &self.graph.nodes[n.index()];
        let why = self.called.get(&n);
        Call {
            node: n,
            op: node.op.clone(),
            reason: (why.cloned()).unwrap_or_else(|| partition::READS_DATA.into()),
            library: why.is_some_and(|why| why == library::REASON),
            outs: node.outs.clone(),
        }
    }

    /// Returns a view over its root.
    fn view(&mut self, views: &Views, value: ValueId, base: ValueId) -> Result<View> {
        let (graph, sizes) = (self.graph, &mut self.sizes);
        let t = graph.tensor(value)?;
        let offset = partition::offset(graph, views, value, base)?;
        let from = graph.tensor(base)?;
        let lies = (sizes.all(&from.sizes).ok()).zip(sizes.all(&from.strides).ok());
        Ok(View {
            lies,
            dtype: (t.dtype != from.dtype).then_some(t.dtype),
            value,
            base,
            sizes: sizes.all(&t.sizes)?,
            strides: sizes.all(&t.strides)?,
            offset: sizes.of(offset)?,
        })
    }

    fn outputs(&mut self) -> Result<Vec<SequenceOutput>> {
        let mut outputs = Vec::with_capacity(self.graph.outputs.len());
        for o in &self.graph.outputs {
            outputs.push(match &o.value {
                OutputValue::Value(v) => match self.graph.value(*v).ty {
                    Type::Int(e) => SequenceOutput::Int(self.sizes.of(e)?),
                    _ => SequenceOutput::Value(*v),
                },
                OutputValue::Scalar(s) => SequenceOutput::Scalar(*s),
                OutputValue::None => SequenceOutput::None,
            });
        }
        Ok(outputs)
    }
}

fn unknown(name: &str) -> Error {
    Error::unsupported(format!("nothing says what the size `{name}` is"))
}

/// Collects layouts of all tensors that the parts name, and of the inputs, in the order of values.
/// A tensor with a size that no symbol determines has none.
fn layouts(graph: &Graph, parts: &[Part], sizes: &mut Sizes) -> Vec<(ValueId, Layout)> {
    let mut named: Vec<ValueId> = graph.inputs.iter().map(|i| i.value).collect();
    for p in parts {
        match &p.what {
            What::Segment(s) => {
                named.extend(&s.inputs);
                named.extend(&s.outputs);
            }
            What::Call(c) => {
                named.extend(graph.nodes[c.node.index()].reads());
                named.extend(&c.outs);
            }
            What::View(v) => named.extend([v.base, v.value]),
        }
    }
    named.sort();
    named.dedup();
    (named.into_iter())
        .filter_map(|v| {
            let t = graph.tensor(v).ok()?;
            let layout = Layout {
                dtype: t.dtype,
                sizes: sizes.all(&t.sizes).ok()?,
                strides: sizes.all(&t.strides).ok()?,
            };
            Some((v, layout))
        })
        .collect()
}

/// Puts every value that a part defines on the list of the last part that reads it.
fn free(graph: &Graph, parts: &mut [Part], outputs: &[SequenceOutput]) {
    let mut kept: FxHashSet<ValueId> = outputs
        .iter()
        .filter_map(|o| match o {
            SequenceOutput::Value(v) => Some(*v),
            _ => None,
        })
        .collect();
    // Backwards: the first part met that mentions a value is its last reader. A value that is
    // written and never read is freed by the part that defines it.
    for part in parts.iter_mut().rev() {
        let (reads, writes): (Vec<ValueId>, Vec<ValueId>) = match &part.what {
            What::Segment(s) => (s.inputs.clone(), s.outputs.clone()),
            What::Call(c) => (
                graph.nodes[c.node.index()].reads().collect(),
                c.outs.clone(),
            ),
            What::View(v) => (vec![v.base], vec![v.value]),
        };
        for v in reads.into_iter().chain(writes) {
            if kept.insert(v) {
                part.frees.push(v);
            }
        }
    }
}
