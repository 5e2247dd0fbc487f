//! `as_strided` counts positions in the memory that its operand is a view of.
//!
//! Rows see one value, neither what it is a view of nor how eager lays that out. So this pass follows the chain of views to its
//! root, which begins its memory, and has the operator count from there: its operand becomes the root with the dimensions in
//! the order of memory, and rows count such elements row by row.
//!
//! ```text
//! as_strided(v, ..)  =>  as_strided(permute(root, order), .., offset)
//! ```
//!
//! Why: the offset of `as_strided` counts from the beginning of the storage, and a scatter
//! writes there. If `v = root[2:]`, then element 0 of the storage is `root[0]`, which `v`
//! does not show. A root's dimensions need not be in the order of memory either (channels
//! last), and a permutation brings them there:
//!
//! ```text
//! x: f32[2, 3, 4, 4] strides [48, 1, 12, 3]          as_strided(x, [48], [2], 1)
//! p = permute(x, [0, 2, 3, 1]): row-major     =>     as_strided(p, [48], [2], 1)
//! ```
//!
//! Positions in inputs are the difficult case: the caller may pass a view that begins
//! anywhere in its storage. Offsets are then counted from the input's first element. The
//! graph notes how much of the memory it relies on (`Reads`), so that a call can be checked
//! against it. What cannot be known when compiling is refused.

use crate::layouts::strides;
use crate::{Args, Call, Demands, Prop, Route, View, bind, lookup};
use inrush_base::{Error, Result};
use inrush_expr::{Expr, SymMap};
use inrush_graph::{Arg, Graph, Node, Reads, TensorType, Type, ValueId};

const STRIDED: &str = "aten.as_strided.default";
const SCATTER: &str = "aten.as_strided_scatter.default";

/// Has operators that count positions count them in the roots of their operands.
pub fn from_roots(graph: &mut Graph) -> Result<()> {
    if !graph.nodes.iter().any(|n| place_of_offset(&n.op).is_some()) {
        return Ok(());
    }
    let mut out = Rebase {
        made_by: vec![None; graph.values.len()],
        nodes: Vec::with_capacity(graph.nodes.len()),
        graph,
    };
    for node in std::mem::take(&mut out.graph.nodes) {
        match place_of_offset(&node.op) {
            Some(place) => {
                let at = node.clone();
                out.rebase(node, place)
                    .map_err(|e| out.graph.locate(&at, e))?;
            }
            None => out.push(node),
        }
    }
    out.graph.nodes = out.nodes;
    Ok(())
}

/// Where the offset stands among the arguments of an operator that counts positions.
fn place_of_offset(op: &str) -> Option<usize> {
    match op {
        STRIDED | "aten.as_strided_.default" | "aten.as_strided_copy.default" => Some(3),
        SCATTER => Some(4),
        _ => None,
    }
}

struct Rebase<'g> {
    graph: &'g mut Graph,
    nodes: Vec<Node>,
    /// Of each value: the node and which of its results.
    /// `None` for inputs. The index is that of the node in `nodes`.
    made_by: Vec<Option<(usize, usize)>>,
}

/// The storage that a value is a view of.
struct Root {
    value: ValueId,
    /// Where in the root the value begins.
    begin: Expr,
    /// The root looks at memory of another dtype, which begins elsewhere.
    recast: bool,
}

impl Rebase<'_> {
    /// Adds a node and records which results it makes.
    fn push(&mut self, node: Node) {
        self.made_by.resize(self.graph.values.len(), None);
        for (k, v) in node.outs.iter().enumerate() {
            self.made_by[v.index()] = Some((self.nodes.len(), k));
        }
        self.nodes.push(node);
    }

    /// Adds the call on the root of its operand.
    fn rebase(&mut self, mut node: Node, place: usize) -> Result<()> {
        let Some(Arg::Value(operand)) = node.args.first() else {
            return Err(Error::input("the first argument must be a tensor"));
        };
        let mut operand = *operand;
        let shown = self.graph.tensor(operand)?;
        if node.op == SCATTER && strides::repeats(&self.graph.exprs, shown) {
            // Copies of such tensors are memory of their own in which no elements share a place.
            operand = self.copied(operand, &node)?;
        }
        let root = self.root(operand)?;
        node.args.resize(node.args.len().max(place + 1), Arg::None);
        match node.args[place] {
            Arg::None => {
                node.args[place] = Arg::Int(root.begin);
                self.note(&root, Reads::Memory);
            }
            _ => self.from_storage(&root, &mut node.args[place])?,
        }
        let ty = self.graph.tensor(root.value)?.clone();
        let ex = &self.graph.exprs;
        // Gaps would need memory that no value shows.
        let order = strides::dense_order(ex, &ty.sizes, &ty.strides)
            .ok_or_else(|| Error::unsupported("as_strided of a tensor with gaps"))?;
        let in_order = self.permuted(root.value, &ty, &order, &node);
        node.args[0] = Arg::Value(in_order);
        // A read is done here; only a scatter needs the way back to its operand.
        if node.op != SCATTER {
            self.push(node);
            return Ok(());
        }
        // All of the memory is copied and written; the result shows what the operand does.
        let out = std::mem::take(&mut node.outs);
        let [result] = out[..] else {
            return Err(Error::input("as_strided_scatter has one result"));
        };
        let memory = self.graph.tensor(in_order)?.clone();
        let written = self.value(result, memory);
        node.outs = vec![written];
        let like = node.clone();
        self.push(node);
        let (op, args) = if operand == root.value {
            let mut back = vec![0; order.len()];
            order.iter().enumerate().for_each(|(k, d)| back[*d] = k);
            (
                "aten.permute.default",
                vec![written.into(), self.ints(&back)],
            )
        } else {
            let shown = self.graph.tensor(operand)?.clone();
            let (sizes, strides) = (Arg::Ints(shown.sizes), Arg::Ints(shown.strides));
            (
                STRIDED,
                vec![written.into(), sizes, strides, Arg::Int(root.begin)],
            )
        };
        self.push(Node {
            op: op.to_string(),
            args,
            outs: out,
            ..like
        });
        Ok(())
    }

    /// Has an offset counted from the beginning of the storage count from the root's first element.
    fn from_storage(&mut self, root: &Root, offset: &mut Arg) -> Result<()> {
        let input = self.input(root);
        if root.recast || (self.graph.foreign_inputs && input.is_some()) {
            return Err(Error::unsupported(
                "positions counted from the beginning of an input's memory: a call alone knows where in it the input begins",
            ));
        }
        self.note(root, Reads::Storage);
        let begin = input.map_or(0, |at| self.graph.inputs[at].begin);
        if begin == 0 {
            return Ok(());
        }
        let ex = &self.graph.exprs;
        let from = match offset {
            Arg::Int(e) => ex.sub(*e, ex.int(begin)),
            _ => return Err(Error::input("the storage offset must be an integer")),
        };
        if !ex.prove_nonneg(from) {
            return Err(Error::unsupported(
                "positions in the memory before a weight's first element, of which the archive tells nothing",
            ));
        }
        *offset = Arg::Int(from);
        Ok(())
    }

    /// Which of the graph's inputs the root is.
    fn input(&self, root: &Root) -> Option<usize> {
        let made = self.made_by[root.value.index()].is_some();
        let mut inputs = self.graph.inputs.iter();
        (!made)
            .then(|| inputs.position(|i| i.value == root.value))
            .flatten()
    }

    /// Notes what a call relies on of the user's memory. Inside PyTorch guards see to strides.
    fn note(&mut self, root: &Root, reads: Reads) {
        if let Some(at) = self.input(root).filter(|_| !self.graph.foreign_inputs) {
            let input = &mut self.graph.inputs[at];
            input.reads = input.reads.max(reads);
        }
    }

    /// Returns dimensions as an argument.
    fn ints(&self, of: &[usize]) -> Arg {
        Arg::Ints(of.iter().map(|d| self.graph.exprs.int(*d as i64)).collect())
    }

    /// The dense tensor `v` with its dimensions in the order of memory.
    fn permuted(&mut self, v: ValueId, ty: &TensorType, order: &[usize], like: &Node) -> ValueId {
        if order.is_sorted() {
            return v;
        }
        let ex = &self.graph.exprs;
        let sizes = order.iter().map(|d| ty.sizes[*d]).collect();
        let ty = TensorType::contiguous(ex, ty.dtype, sizes);
        let out = self.value(v, ty);
        let args = vec![v.into(), self.ints(order)];
        self.push(Node {
            op: "aten.permute.default".to_string(),
            args,
            outs: vec![out],
            ..like.clone()
        });
        out
    }

    /// A copy of `v`, laid out as eager does.
    fn copied(&mut self, v: ValueId, like: &Node) -> Result<ValueId> {
        let mut ty = self.graph.tensor(v)?.clone();
        ty.strides = strides::copy_of(&self.graph.exprs, &ty);
        let out = self.value(v, ty);
        self.push(Node {
            op: "aten.clone.default".to_string(),
            args: vec![v.into(), Arg::None],
            outs: vec![out],
            ..like.clone()
        });
        Ok(out)
    }

    /// A fresh value named after `like`.
    fn value(&mut self, like: ValueId, ty: TensorType) -> ValueId {
        let name = format!("{}.m{}", self.graph.value(like).name, self.nodes.len());
        self.graph.add_value(&name, Type::Tensor(ty))
    }

    /// Follows operators that pass their operand on and views, adding up how far each moves
    /// the first element. Stops at inputs and at operators that make memory of their own. A
    /// view of another dtype stops too, as positions count elements of one dtype.
    fn root(&self, mut value: ValueId) -> Result<Root> {
        let (ex, mut begin) = (&self.graph.exprs, self.graph.exprs.int(0));
        let mut recast = false;
        while let Some((at, k)) = self.made_by[value.index()] {
            let node = &self.nodes[at];
            let Some(Arg::Value(from)) = node.args.first() else {
                break;
            };
            if node.op == "aten.view.dtype" {
                recast = !ex.is_int(self.root(*from)?.begin, 0) || self.root(*from)?.recast;
                break;
            }
            if !passes_on(self.graph, node)? {
                if !is_view(self.graph, node)? {
                    break;
                }
                begin = ex.add(begin, offset(self.graph, node, k, *from)?);
            }
            value = *from;
        }
        Ok(Root {
            value,
            begin,
            recast,
        })
    }
}

/// Returns true if the result is the first argument itself.
fn passes_on(graph: &Graph, node: &Node) -> Result<bool> {
    let (Some(Arg::Value(from)), [out]) = (node.args.first(), node.outs.as_slice()) else {
        return Ok(false);
    };
    if lookup(&node.op).is_none() {
        // Written in place.
        return Ok(bind::functional_name(&node.op).is_some());
    }
    let (Type::Tensor(a), Type::Tensor(b)) = (&graph.value(*from).ty, &graph.value(*out).ty) else {
        return Ok(false);
    };
    let name = node.op.split('.').nth(1).unwrap_or_default();
    let copies = || node.args.contains(&Arg::Bool(true));
    Ok(a == b
        && match name {
            "alias" | "detach" | "lift" | "lift_fresh" | "resolve_conj" | "resolve_neg"
            | "positive" | "type_as" => true,
            "dropout" | "feature_dropout" | "alpha_dropout" => {
                node.args.get(2) == Some(&Arg::Bool(false))
            }
            "to" => !copies(),
            "contiguous" => a.strides == graph.exprs.contiguous_strides(&a.sizes),
            _ => false,
        })
}

/// Returns true if the results share memory with the first argument at other coordinates.
pub(super) fn is_view(graph: &Graph, node: &Node) -> Result<bool> {
    let Some(op) = lookup(&node.op) else {
        return Ok(false);
    };
    if !op.row.has(Prop::MayAlias) {
        let annotated = op.schema().returns.iter().any(|r| r.alias.is_some());
        return Ok(annotated && (op.row.has(Prop::Alias) || op.row.has(Prop::Restrides)));
    }
    let (Some(Arg::Value(source)), Some(out)) = (node.args.first(), node.outs.first()) else {
        return Ok(false);
    };
    let (from, to) = (graph.tensor(*source)?, graph.tensor(*out)?);
    let exprs = &graph.exprs;
    // `reshape` copies only what strides cannot express; a row-major tensor never needs that.
    if exprs.contiguous_strides(&from.sizes) == from.strides {
        return Ok(true);
    }
    if from.sizes == to.sizes {
        return Ok(from.strides == to.strides);
    }
    let view = View::reshape(exprs, &from.sizes, &to.sizes);
    Ok(view.is_affine(exprs, &from.strides))
}

/// Elements from the first of `from` to the first of result `k` of a view.
fn offset(graph: &Graph, node: &Node, k: usize, from: ValueId) -> Result<Expr> {
    let ex = &graph.exprs;
    let op = lookup(&node.op).ok_or_else(|| Error::internal("a view without a row"))?;
    let demands = Demands::default();
    let args = Args {
        exprs: ex,
        demands: &demands,
        op,
        args: &node.args,
    };
    let call = Call::new(args, &graph.values, &node.outs);
    let Route::View(f) = op.row.route else {
        return Err(Error::internal("no view by its row"));
    };
    let views = f(&call)?;
    let view = (views.get(k)).ok_or_else(|| Error::internal("a view has too few results"))?;
    // The first element of the view is at index 0 of each of its dimensions.
    let zero: SymMap = (view.sizes.iter().enumerate())
        .map(|(d, s)| (ex.index_sym(d as u32, *s), ex.int(0)))
        .collect();
    let first: Vec<Expr> = view.map.iter().map(|m| ex.subst(*m, &zero)).collect();
    Ok(ex.dot(&graph.tensor(from)?.strides, &first))
}
