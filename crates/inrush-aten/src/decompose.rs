//! Stage decompose: operators that are defined by others are replaced by calls of those.
//!
//! PyTorch has some two thousand operators, many of which are compositions. A row that
//! decomposes writes calls of simpler rows, which decompose further on the spot, so that one
//! pass over the graph leaves only pointwise operators, views and operators with loops of
//! their own:
//!
//! ```text
//! y = aten.mse_loss.default(x, t)  =>  y.1 = aten.sub.Tensor(x, t, 1)
//!                                      y.2 = aten.mul.Tensor(y.1, y.1)
//!                                      y   = aten.mean.dim(y.2, [0, 1])
//! ```
//!
//! Invariants:
//!
//! - New results take the names and declared types of the values that they replace. New
//!   values are named after the call's first result, with a number: messages still point at
//!   the user's operator.
//! - Nodes stay in order of definition, so that later stages need no sort.
//! - Types are inferred call by call. What inference cannot prove becomes a guard.
//! - Equal calls on values of equal types are decomposed once (`again`). Models repeat
//!   layers, and this makes the time per repeated call that of a copy.

use crate::call::{Args, Demands};
use crate::normalize::{prune_marked, reconcile};
use crate::props::{Prop, has};
use crate::{Route, bind, lookup, meta};
use again::Again;
use inrush_base::{DType, Error, Result, Scalar, digits};
use inrush_expr::{Expr, Exprs};
use inrush_graph::{Arg, Graph, LineId, Node, OutputValue, TensorType, Type, Value, ValueId};

mod again;

/// Decompositions call each other; deeper nesting than this is a cycle between rows.
const MAX_DEPTH: usize = 32;

/// Replaces every node whose row decomposes.
pub fn decompose(graph: Graph) -> Result<Graph> {
    decompose_marked(graph, &mut [])
}

/// [`decompose`] for a caller who follows places in the graph: `marks` are positions between nodes, in ascending order, and
/// become the positions between what those nodes became.
pub fn decompose_marked(graph: Graph, marks: &mut [usize]) -> Result<Graph> {
    decompose_remembering(graph, marks, again::REMEMBERED, &|_| true)
}

/// Replaces compositions of library functions alone ([`Prop::LibraryFunction`]), so that each call of the library is a node.
///
/// # Errors
/// As [`decompose`].
pub fn decompose_library(graph: Graph) -> Result<Graph> {
    let composed = |node: &Node| has(&node.op, Prop::LibraryFunction);
    if !graph.nodes.iter().any(composed) {
        return Ok(graph);
    }
    decompose_remembering(graph, &mut [], again::REMEMBERED, &composed)
}

/// [`decompose_marked`] of the nodes that are wanted, with this many calls of each look remembered.
fn decompose_remembering(
    mut graph: Graph,
    marks: &mut [usize],
    remembered: usize,
    wanted: &dyn Fn(&Node) -> bool,
) -> Result<Graph> {
    let mut marked = 0;
    let nodes = std::mem::take(&mut graph.nodes);
    // A node becomes a few: memory that is not touched costs nothing.
    let room = 4 * nodes.len();
    let mut out = Vec::with_capacity(room);
    let demands = Demands::default();
    // For each value of the source graph the value that it became. A node's operands are
    // looked up here before anything reads them.
    let mut now: Vec<ValueId> = (0..graph.values.len()).map(ValueId::from_index).collect();
    let mut again: Option<Again> = None;
    for (k, mut node) in nodes.into_iter().enumerate() {
        while let Some(mark) = marks.get_mut(marked).filter(|m| **m <= k) {
            *mark = out.len();
            marked += 1;
        }
        if !wanted(&node) {
            node.reads_mut().for_each(|v| *v = now[v.index()]);
            out.push(node);
            continue;
        }
        let op = lookup(&node.op).ok_or_else(|| {
            graph.locate(&node, Error::unsupported("no row describes this operator"))
        })?;
        let Route::Decompose(f) = op.row.route else {
            node.reads_mut().for_each(|v| *v = now[v.index()]);
            out.push(node);
            continue;
        };
        // Hashes of values are made only for graphs in which something decomposes.
        let again = again.get_or_insert_with(|| {
            graph.values.reserve(room);
            Again::new(&graph.values, remembered)
        });
        // Taken before operands are renamed: the hash knows values of the source graph only.
        let look = again.look(&node);
        node.reads_mut().for_each(|v| *v = now[v.index()]);
        let (first_new, first_node) = (graph.values.len(), out.len());
        if let Some(outs) = again.copy(look, &mut graph, &mut out, &node) {
            settle(&mut graph, &node, outs, first_new, &mut now)?;
            continue;
        }
        let guards = graph.guards.len();
        let prefix = prefix(&graph, &node);
        // A decomposition may ask for the declared types of the results, for instance for the
        // dtype of saved statistics, which differs between devices.
        let declared = node
            .outs
            .iter()
            .map(|v| match &graph.values[v.index()].ty {
                Type::Tensor(t) => Some(t.clone()),
                _ => None,
            })
            .collect();
        let mut builder = Builder {
            declared,
            exprs: &graph.exprs,
            demands: &demands,
            values: &mut graph.values,
            nodes: &mut out,
            op: &node.op,
            line: node.line,
            prefix,
            count: 0,
            depth: 0,
        };
        let args = Args {
            exprs: builder.exprs,
            demands: &demands,
            op,
            args: &node.args,
        };
        let result = f(&mut builder, &args);
        let outs = result
            .and_then(|outs| {
                demands.drain_into(&graph.exprs, &mut graph.guards)?;
                Ok(outs)
            })
            .map_err(|e| graph.locate(&node, e))?;
        // More results than declared are fine: trailing ones are not asked for.
        if outs.len() < node.outs.len() {
            let e = Error::internal(format!(
                "decomposition gives {} results, {} are wanted",
                outs.len(),
                node.outs.len()
            ));
            return Err(graph.locate(&node, e));
        }
        settle(&mut graph, &node, outs.clone(), first_new, &mut now)?;
        // A copy would not repeat the demands of the original, so calls with demands are not
        // remembered.
        if graph.guards.len() == guards {
            let (values, nodes) = (first_new..graph.values.len(), first_node..out.len());
            again.remember(look, node, values, nodes, outs);
        }
    }
    marks[marked..].fill(out.len());
    graph.nodes = out;
    let mut outputs = std::mem::take(&mut graph.outputs);
    for output in &mut outputs {
        if let OutputValue::Value(v) = &mut output.value {
            let (old, new) = (*v, now[v.index()]);
            // An output keeps its declared strides, which a value that existed before may not have.
            *v = if graph.value(old).ty == graph.value(new).ty {
                new
            } else {
                graph.nodes.push(Node {
                    op: "aten.alias.default".into(),
                    args: vec![Arg::Value(new)],
                    outs: vec![old],
                    line: None,
                    made_for: None,
                });
                old
            };
        }
    }
    graph.outputs = outputs;
    // Optional results that no node reads were made all the same, and go here.
    prune_marked(&mut graph, marks);
    Ok(graph)
}

/// Lets the results of a call be what it became.
/// `now` grows by the new values, which stand for themselves.
fn settle(
    graph: &mut Graph,
    node: &Node,
    outs: Vec<ValueId>,
    first_new: usize,
    now: &mut Vec<ValueId>,
) -> Result<()> {
    for (old, new) in node.outs.iter().zip(outs) {
        adopt(graph, node, *old, new, first_new)?;
        now[old.index()] = new;
    }
    now.extend((now.len()..graph.values.len()).map(ValueId::from_index));
    Ok(())
}

/// Returns the prefix of the names of values that a call's decomposition makes.
fn prefix(graph: &Graph, node: &Node) -> String {
    let first = node.outs.first();
    first.map_or(String::new(), |v| graph.value(*v).name.clone())
}

/// The name of the value of this number that a call becomes.
fn numbered(prefix: &str, number: usize) -> String {
    let mut name = String::with_capacity(prefix.len() + 4);
    name.push_str(prefix);
    name.push('.');
    name.push_str(&digits(number as u64));
    name
}

/// Puts the name and type of `old` on `new` when the decomposition made it; what was there before keeps its own.
/// The declared type wins over the inferred one: its strides are eager's. Sizes must agree,
/// if need be by a guard.
fn adopt(
    graph: &mut Graph,
    node: &Node,
    old: ValueId,
    new: ValueId,
    first_new: usize,
) -> Result<()> {
    let (want, got) = (graph.value(old).ty.clone(), graph.value(new).ty.clone());
    if let (Type::Tensor(w), Type::Tensor(g)) = (&want, &got) {
        let name = &graph.values[old.index()].name;
        reconcile(&graph.exprs, &mut graph.guards, w, g, name)
            .map_err(|e| graph.locate(node, e))?;
        if new.index() >= first_new {
            let name = graph.value(old).name.clone();
            let inner = std::mem::replace(
                &mut graph.values[new.index()],
                Value {
                    name,
                    ty: want.clone(),
                },
            );
            // The old value has no definition any more unless an output asks for it; names stay unique.
            graph.values[old.index()].name = inner.name;
        }
    }
    Ok(())
}

/// Adds calls to a graph. A call of an operator that decomposes is decomposed on the spot.
pub struct Builder<'g> {
    pub exprs: &'g Exprs,
    /// Collects what rows ask of sizes; drained into the graph's guards after each call of
    /// the graph.
    demands: &'g Demands,
    values: &'g mut Vec<Value>,
    nodes: &'g mut Vec<Node>,
    /// The operator of the graph that all of this becomes.
    op: &'g str,
    /// The Python line of that operator. All new nodes get it.
    line: Option<LineId>,
    /// Name of the first result, and the number of values made so far: the next one is
    /// `prefix.count`.
    prefix: String,
    count: usize,
    /// Decompositions in progress. At 0 the builder stands in the call of the graph itself.
    depth: usize,
    /// Declared types of the graph's results; `None` for results that are not tensors.
    declared: Vec<Option<TensorType>>,
}

impl Builder<'_> {
    /// The type that the graph declares for result `k` of the call that is being decomposed: devices differ in the dtype
    /// and size of what a forward operator saves for its gradient. `None` for a call that a decomposition made.
    pub fn declared(&self, k: usize) -> Option<&TensorType> {
        match self.depth {
            0 => self.declared.get(k)?.as_ref(),
            _ => None,
        }
    }

    /// Calls `op` for its only result. Arguments stand in schema order; trailing defaults may be left out.
    pub fn call(&mut self, op: &str, args: &[Arg]) -> Result<ValueId> {
        let outs = self.call_multi(op, args)?;
        outs.first()
            .copied()
            .ok_or_else(|| Error::internal(format!("{op} gives no result")))
    }

    /// Calls `op` for all its results.
    ///
    /// # Errors
    ///
    /// If no row describes `op`, its arguments do not fit, or decompositions nest too deep.
    pub fn call_multi(&mut self, op: &str, args: &[Arg]) -> Result<Vec<ValueId>> {
        let entry =
            lookup(op).ok_or_else(|| Error::internal(format!("no row describes `{op}`")))?;
        let bound =
            bind::complete(self.exprs, entry.schema(), args.to_vec()).map_err(|e| e.context(op))?;
        let bound_args = Args {
            exprs: self.exprs,
            demands: self.demands,
            op: entry,
            args: &bound,
        };
        if let Route::Decompose(f) = entry.row.route {
            // Rows are static, so a cycle is a mistake in a row. An error is better than a
            // stack overflow.
            if self.depth == MAX_DEPTH {
                return Err(Error::internal(format!("{op} decomposes into itself")));
            }
            self.depth += 1;
            let outs = f(self, &bound_args).map_err(|e| e.context(op));
            self.depth -= 1;
            return outs;
        }
        let types = meta::infer(bound_args, self.values)
            .ok_or_else(|| Error::internal(format!("{op} has no meta rule")))?
            .map_err(|e| e.context(op))?;
        let outs: Vec<ValueId> = types
            .into_iter()
            .map(|ty| {
                self.count += 1;
                let id = ValueId::from_index(self.values.len());
                let name = numbered(&self.prefix, self.count);
                self.values.push(Value { name, ty });
                id
            })
            .collect();
        let mut node = Node {
            op: op.to_string(),
            args: bound,
            outs: outs.clone(),
            line: self.line,
            made_for: None,
        };
        // Indices, divisors and what is assured: what may be refused is computed from whole numbers.
        if node.reads().any(|v| self.is_integral(v)) {
            node.made_for = Some(self.op.into());
        }
        self.nodes.push(node);
        Ok(outs)
    }

    /// Calls an operator of [`crate::dynamic`], whose result has the type that the caller says.
    pub fn call_dynamic(&mut self, op: &str, args: Vec<Arg>, ty: TensorType) -> ValueId {
        self.count += 1;
        let out = ValueId::from_index(self.values.len());
        let name = numbered(&self.prefix, self.count);
        self.values.push(Value {
            name,
            ty: Type::Tensor(ty),
        });
        self.nodes.push(Node {
            op: op.to_string(),
            args,
            outs: vec![out],
            line: self.line,
            made_for: None,
        });
        out
    }

    /// Returns true for integers and bools, of which indices, divisors and masks of checks
    /// are made.
    fn is_integral(&self, v: ValueId) -> bool {
        matches!(&self.values[v.index()].ty, Type::Tensor(t) if t.dtype.is_int() || t.dtype == DType::Bool)
    }

    /// The type of a tensor.
    pub fn tensor(&self, v: ValueId) -> Result<TensorType> {
        self.tensor_ref(v).cloned()
    }

    /// Returns the type without a copy; `tensor` clones it for callers that add nodes
    /// meanwhile.
    fn tensor_ref(&self, v: ValueId) -> Result<&TensorType> {
        match &self.values[v.index()].ty {
            Type::Tensor(t) => Ok(t),
            other => Err(Error::input(format!(
                "`{}` is not a tensor but {other:?}",
                self.values[v.index()].name
            ))),
        }
    }

    pub fn sizes(&self, v: ValueId) -> Result<Vec<Expr>> {
        self.tensor_ref(v).map(|t| t.sizes.clone())
    }

    pub fn dtype(&self, v: ValueId) -> Result<DType> {
        self.tensor_ref(v).map(|t| t.dtype)
    }

    pub fn rank(&self, v: ValueId) -> Result<usize> {
        self.tensor_ref(v).map(|t| t.rank())
    }

    pub fn int(&self, v: i64) -> Arg {
        Arg::Int(self.exprs.int(v))
    }

    pub fn ints(&self, v: &[i64]) -> Arg {
        Arg::Ints(v.iter().map(|i| self.exprs.int(*i)).collect())
    }

    pub fn scalar(&self, s: Scalar) -> Arg {
        match s {
            Scalar::Bool(b) => Arg::Bool(b),
            Scalar::Int(i) => Arg::Int(self.exprs.int(i)),
            Scalar::Float(f) => Arg::Float(f),
        }
    }

    /// `v` as `dtype`; `v` itself when it is that already.
    pub fn cast(&mut self, v: ValueId, dtype: DType) -> Result<ValueId> {
        if self.dtype(v)? == dtype {
            return Ok(v);
        }
        self.call("aten.to.dtype", &[v.into(), dtype.into()])
    }

    /// `v` in the dtype that halves are computed in.
    pub fn widen(&mut self, v: ValueId) -> Result<ValueId> {
        let dtype = self.dtype(v)?.compute();
        self.cast(v, dtype)
    }
}

/// Lets a pass write the calls that take the place of `node`, which the pass has taken out of the graph. They are added to
/// `nodes`, have the Python line of the node, and their results are named after its first.
///
/// # Errors
/// Those of `write`, with the place of the node.
pub fn replace<T>(
    graph: &mut Graph,
    nodes: &mut Vec<Node>,
    node: &Node,
    write: impl FnOnce(&mut Builder) -> Result<T>,
) -> Result<T> {
    let demands = Demands::default();
    let prefix = prefix(graph, node);
    let mut builder = Builder {
        declared: Vec::new(),
        exprs: &graph.exprs,
        demands: &demands,
        values: &mut graph.values,
        nodes,
        op: &node.op,
        line: node.line,
        prefix,
        count: 0,
        depth: 0,
    };
    let out = write(&mut builder);
    out.and_then(|out| {
        demands.drain_into(&graph.exprs, &mut graph.guards)?;
        Ok(out)
    })
    .map_err(|e| graph.locate(node, e))
}

/// Types that a decomposing operator gives, found by decomposing it in a scratch copy.
/// Costs a whole decomposition; only examples of rows without a meta rule ask for it.
pub fn result_types(graph: &mut Graph, op: &str, args: &[Arg]) -> Result<Vec<Type>> {
    let mut values = graph.values.clone();
    let mut builder = Builder {
        declared: Vec::new(),
        exprs: &graph.exprs,
        demands: &Demands::default(),
        values: &mut values,
        nodes: &mut Vec::new(),
        op,
        line: None,
        prefix: "scratch".into(),
        count: 0,
        depth: 0,
    };
    let outs = builder.call_multi(op, args)?;
    Ok(outs
        .into_iter()
        .map(|v| values[v.index()].ty.clone())
        .collect())
}
