//! Stage lower: every operator becomes loop bodies over buffers.
//!
//! A tensor is a buffer seen through coordinates, so views cost nothing. A pointwise operator is one body that stores into
//! a fresh buffer; joining bodies is the scheduler's work.
//!
//! ```text
//! %2: f32[4, 8] = relu(%0)       body [i0: 4, i1: 8] { store b2[i0, i1] = .. }
//! %3: f32[8, 4] = t(%2)          no body: b2 at coordinates [i1, i0]
//! %4: f32[4] = sum(%3, [0])      body [i0: 4] reduce [i1: 8] { .. load b2[i0, i1] .. }
//! ```
//!
//! The order of bodies is that of the nodes, which is a valid order to run them in. Each body
//! has an origin (operator, value, Python line), which errors and profiles name. Sizes that
//! rows compare were compared when types were inferred, so a lowering adds no guards.
//!
//! Calls of equal form share work (`again`).

mod again;
pub mod body;
mod form;
mod outputs;
mod pointwise;
pub mod product;

pub use pointwise::Pw;

use crate::call::{Args, Demands};
use crate::view::{View, index};
use crate::{Call, Route, lookup};
use again::Again;
use body::BodyBuilder;
use inrush_base::{DType, Error, Result, Scalar};
use inrush_expr::{Expr, Exprs, Sym, SymMap};
use inrush_graph::{Arg, Graph, Input, InputKind, OutputValue, TensorType, Type, ValueId};
use inrush_loops::{
    Attention, Body, BufId, Buffer, BufferKind, Contraction, Coords, Layout, LibraryCall, Loops,
    Node, Origin, OriginId,
};
use smallvec::{SmallVec, smallvec};
use std::cell::OnceCell;

/// A tensor during lowering: `buf` read at `coords`, which are expressions over the tensor's own indices
/// ([`index`] of each dimension).
#[derive(Clone, PartialEq, Debug)]
pub struct Tensor {
    pub buf: BufId,
    pub dtype: DType,
    /// Logical sizes, one for each dimension; the buffer may have other sizes and another
    /// rank.
    pub sizes: Vec<Expr>,
    pub coords: Coords,
}

impl Tensor {
    /// All of a buffer.
    pub fn whole(exprs: &Exprs, buf: BufId, dtype: DType, sizes: &[Expr]) -> Tensor {
        Tensor {
            buf,
            dtype,
            sizes: sizes.to_vec(),
            coords: (sizes.iter().enumerate())
                .map(|(d, s)| index(exprs, d, *s))
                .collect(),
        }
    }

    /// Coordinates in the buffer of the element at `at`, one expression per dimension.
    /// All substitutions happen at once, so indices that mention each other do not interfere.
    pub fn at(&self, exprs: &Exprs, at: &[Expr]) -> Coords {
        let own: SmallVec<[(Sym, Expr); 6]> = self
            .sizes
            .iter()
            .zip(at)
            .enumerate()
            .map(|(d, (size, e))| (exprs.index_sym(d as u32, *size), *e))
            .collect();
        let mut map: Option<SymMap> = None;
        let coords = self.coords.iter().map(|c| {
            // Most tensors are whole buffers, whose coordinates are the indices themselves.
            if let Some(s) = exprs.as_sym(*c) {
                return own.iter().find(|(x, _)| *x == s).map_or(*c, |(_, e)| *e);
            }
            if exprs.as_int(*c).is_some() {
                return *c;
            }
            let map = map.get_or_insert_with(|| own.iter().copied().collect());
            exprs.subst(*c, map)
        });
        coords.collect()
    }

    /// This tensor through a view.
    pub fn view(&self, exprs: &Exprs, view: &View) -> Tensor {
        Tensor {
            buf: self.buf,
            dtype: self.dtype,
            sizes: view.sizes.clone(),
            coords: self.at(exprs, &view.map),
        }
    }

    /// Returns true if this is all of `buffer`, in order.
    pub fn is_whole(&self, exprs: &Exprs, buffer: &Buffer) -> bool {
        self.sizes == buffer.sizes
            && self
                .coords
                .iter()
                .enumerate()
                .all(|(d, c)| *c == index(exprs, d, self.sizes[d]))
    }
}

/// The kind of machine that loops are for. Few operators have different loops.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Processor {
    /// A few threads over caches: what arrives by index is added where it belongs, and copies with zeros around them spare
    /// tests in loops.
    Cpu,
    /// Very many threads: each result is computed by one of them, from what it finds.
    Gpu,
}

impl Processor {
    pub fn of(caps: &inrush_base::Caps) -> Processor {
        match caps.gpu {
            None => Processor::Cpu,
            Some(_) => Processor::Gpu,
        }
    }
}

/// State of the stage: the loops so far and what each value of the graph became.
pub struct Lower<'g> {
    pub graph: &'g Graph,
    pub exprs: &'g Exprs,
    pub loops: Loops,
    pub processor: Processor,
    /// By value of the graph; `None` until its node is lowered, and for values that are not
    /// tensors.
    tensors: Vec<Option<Tensor>>,
    /// By value of the graph; asked for by few operators.
    read: OnceCell<Vec<bool>>,
    /// Of what is being made; it has the name of the value.
    origin: OriginId,
    /// Buffers made for the current node, which numbers their names.
    made: usize,
}

/// Lowers a graph in which every operator has a route other than decomposition.
pub fn lower(graph: Graph, processor: Processor) -> Result<Loops> {
    Ok(lower_marked(graph, processor, &[])?.0)
}

/// How much of the loops was there at a place of the graph.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct Mark {
    pub buffers: usize,
    pub origins: usize,
}

/// Positions in the output for positions in a graph.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Marks {
    /// At positions between nodes.
    pub nodes: Vec<Mark>,
    /// Before each output, and after the last.
    pub outputs: Vec<Mark>,
}

/// [`lower`] for a caller who wants to know what came of which nodes: `marks` are positions between nodes, in ascending order.
pub fn lower_marked(graph: Graph, processor: Processor, marks: &[usize]) -> Result<(Loops, Marks)> {
    lower_remembering(graph, processor, marks, again::REMEMBERED)
}

/// [`lower_marked`] with this many calls of each look remembered.
fn lower_remembering(
    graph: Graph,
    processor: Processor,
    marks: &[usize],
    remembered: usize,
) -> Result<(Loops, Marks)> {
    let mut reached: Vec<Mark> = Vec::with_capacity(marks.len());
    // Rows asked the same of sizes when types were inferred; here it is dropped.
    let demands = Demands::default();
    // Most nodes give one body with one buffer.
    let count = graph.nodes.len() + graph.nodes.len() / 8;
    let mut lw = Lower {
        graph: &graph,
        exprs: &graph.exprs,
        loops: Loops {
            name: graph.name.clone(),
            buffers: Vec::with_capacity(graph.inputs.len() + count),
            nodes: Vec::with_capacity(count),
            origins: Vec::with_capacity(count),
            ..Loops::default()
        },
        processor,
        tensors: vec![None; graph.values.len()],
        read: OnceCell::new(),
        origin: OriginId(0),
        made: 0,
    };
    lw.inputs()?;
    let mut again = Again::new(&graph, remembered);
    for (k, node) in graph.nodes.iter().enumerate() {
        // Several marks may stand at one place.
        while marks.get(reached.len()).is_some_and(|m| *m <= k) {
            reached.push(lw.mark());
        }
        lw.begin_node(node);
        let look = again.look(node);
        if again.copy(look, &mut lw, node) {
            continue;
        }
        let (buffers, nodes) = (lw.loops.buffers.len(), lw.loops.nodes.len());
        lw.node(node, &demands).map_err(|e| graph.locate(node, e))?;
        again.remember(look, &lw, node, buffers, nodes);
    }
    reached.resize(marks.len(), lw.mark());
    let outputs = lw.outputs()?;
    let mut loops = lw.loops;
    loops.exprs = graph.exprs;
    let nodes = reached;
    Ok((loops, Marks { nodes, outputs }))
}

/// The buffer of an input; `None` for one that is no tensor.
pub fn input_buffer(graph: &Graph, exprs: &Exprs, input: &Input) -> Option<Buffer> {
    let value = graph.value(input.value);
    let Type::Tensor(t) = &value.ty else {
        return None;
    };
    let kind = match &input.kind {
        InputKind::User { index } => BufferKind::Input { index: *index },
        InputKind::Parameter { name }
        | InputKind::Buffer { name, .. }
        | InputKind::Constant { name } => BufferKind::Weight { name: name.clone() },
    };
    Some(Buffer {
        name: value.name.clone(),
        dtype: t.dtype,
        sizes: t.sizes.clone(),
        layout: Some(Layout {
            strides: t.strides.clone(),
            offset: exprs.int(0),
        }),
        kind,
    })
}

/// How many inputs the user passes.
/// One more than the greatest index: inputs that the graph does not use leave gaps.
pub fn num_inputs(graph: &Graph) -> usize {
    let users = graph.inputs.iter().map(|i| match i.kind {
        InputKind::User { index } => index + 1,
        _ => 0,
    });
    users.max().unwrap_or(0)
}

impl<'g> Lower<'g> {
    /// Makes a buffer for each tensor among the inputs. Symbolic integers need none.
    fn inputs(&mut self) -> Result<()> {
        self.loops.num_inputs = num_inputs(self.graph);
        for input in &self.graph.inputs {
            let Some(buffer) = input_buffer(self.graph, self.exprs, input) else {
                continue;
            };
            let id = BufId::from_index(self.loops.buffers.len());
            let whole = Tensor::whole(self.exprs, id, buffer.dtype, &buffer.sizes);
            self.tensors[input.value.index()] = Some(whole);
            self.add_buffer(buffer);
        }
        Ok(())
    }

    /// Returns true if anything reads a value. Optional results that nothing reads are not
    /// computed.
    pub fn is_read(&self, value: ValueId) -> bool {
        let all = || {
            let mut read = vec![false; self.graph.values.len()];
            for o in &self.graph.outputs {
                if let OutputValue::Value(v) = o.value {
                    read[v.index()] = true;
                }
            }
            let nodes = self.graph.nodes.iter();
            nodes.for_each(|n| n.reads().for_each(|v| read[v.index()] = true));
            read
        };
        self.read.get_or_init(all)[value.index()]
    }

    pub(super) fn mark(&self) -> Mark {
        Mark {
            buffers: self.loops.buffers.len(),
            origins: self.loops.origins.len(),
        }
    }

    /// Lowers one call and records what its results became.
    fn node(&mut self, node: &'g inrush_graph::Node, demands: &'g Demands) -> Result<()> {
        let op =
            lookup(&node.op).ok_or_else(|| Error::unsupported("no row describes this operator"))?;
        let args = Args {
            exprs: self.exprs,
            demands,
            op,
            args: &node.args,
        };
        let call = Call::new(args, &self.graph.values, &node.outs);
        let outs = match op.row.route {
            Route::Pointwise(p) => vec![self.pointwise(&call, &p)?],
            Route::View(f) => {
                let source = self.tensor(match node.args.first() {
                    Some(Arg::Value(v)) => *v,
                    _ => return Err(Error::input("the first argument must be a tensor")),
                })?;
                f(&call)?
                    .iter()
                    .map(|v| source.view(self.exprs, v))
                    .collect()
            }
            Route::Lower(f) => f(self, &call)?,
            Route::Decompose(_) | Route::Assert => {
                return Err(Error::internal(
                    "this operator must be gone before this stage",
                ));
            }
        };
        // A row may give more than the graph declares: optional results that nothing reads.
        if outs.len() < node.outs.len() {
            return Err(Error::internal(format!(
                "lowering gives {} results, {} are wanted",
                outs.len(),
                node.outs.len()
            )));
        }
        for (v, t) in node.outs.iter().zip(outs) {
            let declared = match &self.graph.value(*v).ty {
                Type::Tensor(d) => d,
                _ => continue,
            };
            self.tensors[v.index()] = Some(self.declare(t, declared)?);
        }
        Ok(())
    }

    /// Sets the origin of the following loops to this node.
    fn begin_node(&mut self, node: &inrush_graph::Node) {
        let name = node
            .outs
            .first()
            .map_or(String::new(), |v| self.graph.value(*v).name.clone());
        let op = node.made_for.as_deref().unwrap_or(&node.op);
        self.begin(op, name, self.graph.line_of(node).map(str::to_string));
    }

    /// Name of the value being made.
    fn name(&self) -> &str {
        &self.loops.origins[self.origin.index()].name
    }

    /// Sets the origin of the following loops to this operator, and their names to this value's.
    fn begin(&mut self, op: &str, name: String, line: Option<String>) {
        self.origin = OriginId::from_index(self.loops.origins.len());
        self.loops.origins.push(Origin {
            op: op.to_string(),
            name,
            line,
        });
        self.made = 0;
    }

    /// `t` under the sizes that the graph declares. They are equal to its own, if perhaps in another form.
    fn declare(&self, t: Tensor, declared: &TensorType) -> Result<Tensor> {
        if t.dtype != declared.dtype || t.sizes.len() != declared.rank() {
            return Err(Error::internal(format!(
                "lowering gives {}{}, the graph says {}{}",
                t.dtype,
                self.exprs.show_list(&t.sizes),
                declared.dtype,
                self.exprs.show_list(&declared.sizes)
            )));
        }
        if t.sizes == declared.sizes {
            return Ok(t);
        }
        let at = crate::view::indices(self.exprs, &declared.sizes);
        Ok(Tensor {
            coords: t.at(self.exprs, &at),
            sizes: declared.sizes.clone(),
            ..t
        })
    }

    /// Returns the tensor that a value of the graph was lowered to.
    pub fn tensor(&self, v: ValueId) -> Result<Tensor> {
        self.tensors[v.index()].clone().ok_or_else(|| {
            Error::internal(format!(
                "value `{}` is read before it is made",
                self.graph.value(v).name
            ))
        })
    }

    /// A tensor argument of a call.
    pub fn arg(&self, call: &Call, name: &str) -> Result<Tensor> {
        self.tensor(call.value(name)?)
    }

    pub fn opt_arg(&self, call: &Call, name: &str) -> Result<Option<Tensor>> {
        call.opt_value(name)?.map(|v| self.tensor(v)).transpose()
    }

    /// Returns the layout of a tensor that begins where its memory does.
    fn layout_of(&self, t: &TensorType) -> Layout {
        Layout {
            strides: t.strides.clone(),
            offset: self.exprs.int(0),
        }
    }

    fn add_buffer(&mut self, buffer: Buffer) -> BufId {
        let id = BufId::from_index(self.loops.buffers.len());
        self.loops.buffers.push(buffer);
        id
    }

    /// A fresh buffer within the call. The first of an operator has the name of its result, later ones a number more.
    pub fn temp(&mut self, dtype: DType, sizes: &[Expr]) -> Tensor {
        let name = match (self.name(), self.made) {
            (name, 0) => name.to_string(),
            (name, k) => format!("{name}.t{k}"),
        };
        self.made += 1;
        let buf = self.add_buffer(Buffer {
            name,
            dtype,
            sizes: sizes.to_vec(),
            layout: None,
            kind: BufferKind::Temp,
        });
        Tensor::whole(self.exprs, buf, dtype, sizes)
    }

    /// A body over parallel axes of these sizes.
    pub fn body(&self, sizes: &[Expr]) -> BodyBuilder<'g> {
        BodyBuilder::new(self.exprs, sizes)
    }

    /// Adds a finished body. One that writes none of the places of a buffer is left out: nothing is to be done, and later
    /// stages may take what does not vary along an axis to happen once.
    pub fn push(&mut self, body: BodyBuilder<'g>) {
        let mut body = Body {
            origins: smallvec![self.origin],
            ..body.finish()
        };
        body.name_checks();
        // A body that writes an empty buffer is kept all the same: each buffer has a node
        // that writes it.
        let empty = |s: &Expr| self.exprs.is_int(*s, 0);
        let full = |buf: BufId| !self.loops.buffers[buf.index()].sizes.iter().any(empty);
        let nothing = body.axes[..body.outer].iter().any(|a| empty(&a.size));
        if nothing && body.writes().iter().copied().all(full) {
            return;
        }
        self.loops.nodes.push(Node::Body(body));
    }

    /// Stores `value` for every point of the outer axes into a fresh buffer and adds the body.
    pub fn store_new(
        &mut self,
        mut body: BodyBuilder<'g>,
        value: inrush_loops::StmtId,
        dtype: DType,
        sizes: &[Expr],
    ) -> Tensor {
        let out = self.temp(dtype, sizes);
        let value = body.cast_for_store(value, dtype);
        let at = body.outer();
        body.store(out.buf, &at, value);
        self.push(body);
        out
    }

    /// Adds a contraction; its epilogue gets this operator as its origin.
    pub fn push_contraction(&mut self, mut c: Contraction) {
        c.epilogue.origins = smallvec![self.origin];
        c.epilogue.name_checks();
        self.loops.nodes.push(Node::Contraction(Box::new(c)));
    }

    /// Adds an attention; its scores get this operator as their origin.
    pub fn push_attention(&mut self, mut a: Attention) {
        a.scores.origins = smallvec![self.origin];
        a.scores.name_checks();
        self.loops.nodes.push(Node::Attention(Box::new(a)));
    }

    /// Adds a call of a library function, whose results have these types. Inputs become row-major temporaries.
    pub fn library(
        &mut self,
        function: &str,
        params: Vec<Scalar>,
        inputs: &[Tensor],
        results: &[Type],
    ) -> Vec<Tensor> {
        let inputs = inputs.iter().map(|t| self.row_major(t).buf).collect();
        let tensors = results.iter().filter_map(|t| match t {
            Type::Tensor(t) => Some(t),
            _ => None,
        });
        let out: Vec<Tensor> = tensors
            .map(|ty| {
                let t = self.temp(ty.dtype, &ty.sizes);
                self.set_row_major(t.buf);
                t
            })
            .collect();
        let site = Body {
            origins: smallvec![self.origin],
            ..Body::default()
        };
        self.loops.nodes.push(Node::Library(Box::new(LibraryCall {
            function: function.to_string(),
            params,
            inputs,
            outputs: out.iter().map(|t| t.buf).collect(),
            site,
        })));
        out
    }

    /// Returns `t` as all of a row-major temporary: the result of another library function, else a copy.
    fn row_major(&mut self, t: &Tensor) -> Tensor {
        let buffer = &self.loops.buffers[t.buf.index()];
        let temp = buffer.kind == BufferKind::Temp && buffer.layout.is_some();
        if temp && t.is_whole(self.exprs, buffer) {
            return t.clone();
        }
        let copy = self.copy(t);
        self.set_row_major(copy.buf);
        copy
    }

    /// Gives a buffer the row-major layout.
    fn set_row_major(&mut self, b: BufId) {
        let buffer = &mut self.loops.buffers[b.index()];
        buffer.layout = Some(Layout {
            strides: self.exprs.contiguous_strides(&buffer.sizes),
            offset: self.exprs.int(0),
        });
    }

    /// `t` as all of a buffer: itself if it is that, else a copy.
    pub fn materialize(&mut self, t: &Tensor) -> Tensor {
        if t.is_whole(self.exprs, &self.loops.buffers[t.buf.index()]) {
            return t.clone();
        }
        self.copy(t)
    }

    /// `t` in a buffer of its own, where `materialize` may return a buffer that is there.
    fn copy(&mut self, t: &Tensor) -> Tensor {
        let mut body = self.body(&t.sizes);
        let at = body.outer();
        let v = body.load(t, &at);
        self.store_new(body, v, t.dtype, &t.sizes)
    }
}
