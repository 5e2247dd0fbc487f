//! The interpreter of graphs. Evaluates ATen operators directly from their definitions, floats in
//! `f64`, rounded to the result's dtype once per operator. It shares no code with the lowerings,
//! because tests compare these with it.
//!
//! Tables of the submodules give a function for each operator. A function derives the sizes of
//! its results from its operands, compares them with those that the graph declares, and computes
//! each element from its coordinates. So a graph whose declared sizes are wrong is an error here,
//! and not a wrong result somewhere else.
//!
//! Results differ from eager's by rounding: eager computes in the operands' precision, and this
//! interpreter rounds once.
//!
//! Operators with side effects, random numbers and data-dependent sizes are not known; `knows`
//! tells drawn graphs what they may use.

mod attention;
mod call;
mod index;
mod linear;
mod norm;
mod pointwise;
mod reduce;
mod shape;

use crate::index::{Symbols, bind, check, size, sizes};
use crate::tensor::{Tensor, Value};
use call::Call;
use inrush_base::{DType, Error, Result, Scalar};
use inrush_graph::{Graph, InputKind, Node, OutputValue, Type};
use std::collections::BTreeMap;

/// Evaluates one operator.
type Eval = fn(&Call) -> Result<Vec<Tensor>>;

/// Returns the definition of `aten.NAME` or of `inrush.NAME` (overload `default` left out).
fn lookup(name: &str) -> Option<Eval> {
    [
        shape::TABLE,
        reduce::TABLE,
        index::TABLE,
        linear::TABLE,
        attention::TABLE,
        norm::TABLE,
    ]
    .iter()
    .flat_map(|t| t.iter())
    // A linear search over some hundred names, once per node.
    .find(|row| row.0.split(' ').any(|n| n == name))
    .map(|row| row.1)
}

/// Returns true if [`graph`] knows this operator.
pub fn knows(op: &str) -> bool {
    short(op).is_some_and(|n| pointwise::knows(n) || lookup(n).is_some())
}

/// Returns the name as tables have it: without `aten.`; `None` for operators of other namespaces.
fn short(op: &str) -> Option<&str> {
    let name = op.strip_suffix(".default").unwrap_or(op);
    if name.starts_with("inrush.") {
        return Some(name);
    }
    name.strip_prefix("aten.")
}

/// Runs `g`. `inputs` are the user's by position; `weights` holds parameters, buffers and constants
/// by name. Size symbols are bound from the inputs' shapes; `symbols` adds those that no shape
/// determines.
/// Inputs beyond those that the graph names are ignored. Mutations are outputs: the caller's
/// tensors stay as they are.
pub fn graph(
    g: &Graph,
    inputs: &[Value],
    weights: &BTreeMap<String, Tensor>,
    symbols: &BTreeMap<String, i64>,
) -> Result<Vec<Value>> {
    graph_with(g, inputs, weights, symbols, |_| {})
}

/// Runs `g` as [`graph`] does and hands each result of a node to `change` before other nodes read it.
pub fn graph_with(
    g: &Graph,
    inputs: &[Value],
    weights: &BTreeMap<String, Tensor>,
    symbols: &BTreeMap<String, i64>,
    mut change: impl FnMut(&mut Value),
) -> Result<Vec<Value>> {
    let mut run = Run {
        g,
        values: vec![Value::None; g.values.len()],
        symbols: Symbols::default(),
    };
    for (name, v) in symbols {
        if let Some(s) = g.exprs.sym_by_name(name) {
            run.symbols.insert(s, *v);
        }
    }
    run.bind_inputs(inputs, weights)?;
    for n in &g.nodes {
        run.node(n).map_err(|e| g.locate(n, e))?;
        for v in &n.outs {
            change(&mut run.values[v.index()]);
        }
    }
    let of = |o: &inrush_graph::Output| match o.value {
        OutputValue::Value(v) => run.values[v.index()].clone(),
        OutputValue::Scalar(s) => Value::Scalar(s),
        OutputValue::None => Value::None,
    };
    Ok(g.outputs.iter().map(of).collect())
}

/// Values of nodes that have not run are `Value::None`.
struct Run<'a> {
    g: &'a Graph,
    values: Vec<Value>,
    symbols: Symbols,
}

impl Run<'_> {
    /// Takes the inputs over, binds symbols from all of them, and then checks the sizes of all.
    fn bind_inputs(&mut self, inputs: &[Value], weights: &BTreeMap<String, Tensor>) -> Result<()> {
        let g = self.g;
        for i in &g.inputs {
            let what = format!("input `{}`", g.value(i.value).name);
            let value =
                match &i.kind {
                    InputKind::User { index } => (inputs.get(*index).cloned())
                        .ok_or_else(|| Error::input(format!("{what} is missing")))?,
                    InputKind::Parameter { name }
                    | InputKind::Buffer { name, .. }
                    | InputKind::Constant { name } => (weights.get(name).cloned())
                        .map(Value::Tensor)
                        .ok_or_else(|| Error::input(format!("no weight `{name}`")))?,
                };
            match (&g.value(i.value).ty, &value) {
                (Type::Tensor(t), Value::Tensor(v)) => {
                    if t.dtype != v.dtype {
                        let (have, want) = (v.dtype, t.dtype);
                        return Err(Error::input(format!("{what} is {have}, expected {want}")));
                    }
                    bind(&g.exprs, &t.sizes, &v.sizes, &mut self.symbols, &what)?;
                }
                (Type::Int(e), Value::Scalar(Scalar::Int(v))) => {
                    bind(&g.exprs, &[*e], &[*v], &mut self.symbols, &what)?;
                }
                // A constant that the exporter kept as an input: its type is its value.
                (Type::Int(e), Value::None) if g.exprs.as_int(*e).is_some() => {}
                (Type::Float, Value::Scalar(_))
                | (Type::Bool, Value::Scalar(_))
                | (Type::None, _) => {}
                _ => return Err(Error::input(format!("{what} has another type"))),
            }
            self.values[i.value.index()] = value;
        }
        for i in &g.inputs {
            if let (Type::Tensor(t), Value::Tensor(v)) =
                (&g.value(i.value).ty, &self.values[i.value.index()])
            {
                let what = format!("input `{}`", g.value(i.value).name);
                check(&g.exprs, &t.sizes, &v.sizes, &self.symbols, &what)?;
            }
        }
        Ok(())
    }

    /// Evaluates a node and stores its results.
    fn node(&mut self, n: &Node) -> Result<()> {
        // Integers carry their value in their type.
        if let [v] = n.outs.as_slice()
            && let Type::Int(e) = self.g.value(*v).ty
        {
            let value = size(&self.g.exprs, e, &self.symbols)?;
            self.values[v.index()] = Value::Scalar(Scalar::Int(value));
            return Ok(());
        }
        let mut outs = Vec::new();
        for v in &n.outs {
            outs.push(match &self.g.value(*v).ty {
                Type::Tensor(t) => Some((t.dtype, sizes(&self.g.exprs, &t.sizes, &self.symbols)?)),
                _ => None,
            });
        }
        let call = Call {
            g: self.g,
            args: &n.args,
            values: &self.values,
            symbols: &self.symbols,
            outs: &outs,
        };
        let name = short(&n.op).unwrap_or(&n.op);
        let results = match (lookup(name), pointwise::knows(name)) {
            (Some(f), _) => f(&call)?,
            (None, true) => pointwise::eval(name, &call)?,
            (None, false) => {
                return Err(Error::unsupported(format!(
                    "the graph interpreter does not know `{}`",
                    n.op
                )));
            }
        };
        let mut results = results.into_iter();
        for (v, want) in n.outs.iter().zip(&outs) {
            // Results that the graph declares as absent get no value.
            let Some((dtype, dims)) = want else { continue };
            let t = results
                .next()
                .ok_or_else(|| Error::internal("a result is missing"))?;
            call::same(t.dtype, &t.sizes, *dtype, dims)?;
            self.values[v.index()] = Value::Tensor(t);
        }
        Ok(())
    }
}

/// Returns an iterator over the points of `extents` in row-major order.
fn points(extents: &[i64]) -> Points {
    Points {
        at: vec![0; extents.len()],
        extents: extents.to_vec(),
        state: if extents.iter().any(|n| *n <= 0) {
            State::Done
        } else {
            State::Fresh
        },
    }
}

/// An odometer: the last coordinate runs fastest.
struct Points {
    at: Vec<i64>,
    extents: Vec<i64>,
    state: State,
}

enum State {
    /// The first point has not been given; its coordinates are all zero.
    Fresh,
    Running,
    Done,
}

impl Iterator for Points {
    type Item = Vec<i64>;

    fn next(&mut self) -> Option<Vec<i64>> {
        match self.state {
            State::Done => return None,
            State::Fresh => self.state = State::Running,
            State::Running => {
                let mut d = self.at.len();
                loop {
                    if d == 0 {
                        self.state = State::Done;
                        return None;
                    }
                    d -= 1;
                    self.at[d] += 1;
                    if self.at[d] < self.extents[d] {
                        break;
                    }
                    self.at[d] = 0;
                }
            }
        }
        Some(self.at.clone())
    }
}

/// Returns the row-major position of `at` in a tensor of `sizes`; an error if there is no such
/// element.
fn position(sizes: &[i64], at: &[i64]) -> Result<usize> {
    let next = |p: i64, (n, i): (&i64, &i64)| {
        if (0..*n).contains(i) {
            p.checked_mul(*n)?.checked_add(*i)
        } else {
            None
        }
    };
    (sizes.len() == at.len())
        .then(|| sizes.iter().zip(at).try_fold(0, next))
        .flatten()
        .map(|p| p as usize)
        .ok_or_else(|| Error::input(format!("reads {at:?} of {sizes:?}")))
}

/// Returns the position of the element that a broadcast of `sizes` has at `at`.
fn broadcast_position(sizes: &[i64], at: &[i64]) -> Result<usize> {
    let front = at.len().saturating_sub(sizes.len());
    // Broadcasting aligns dimensions at the end and repeats those of size 1.
    let inner: smallvec::SmallVec<[i64; 8]> = (sizes.iter().zip(&at[front..]))
        .map(|(n, i)| if *n == 1 { 0 } else { *i })
        .collect();
    position(sizes, &inner)
}

/// Returns the sizes that both broadcast to.
/// A size of 1 gives way to any other, 0 included.
fn broadcast(a: &[i64], b: &[i64]) -> Result<Vec<i64>> {
    let (long, short) = if a.len() < b.len() { (b, a) } else { (a, b) };
    let mut out = long.to_vec();
    for (n, m) in out[long.len() - short.len()..].iter_mut().zip(short) {
        match (*n, *m) {
            (n, m) if n == m || m == 1 => {}
            (1, m) => *n = m,
            _ => return Err(Error::input(format!("{a:?} and {b:?} do not broadcast"))),
        }
    }
    Ok(out)
}

/// Returns an error unless `from` broadcasts to `to`.
fn broadcasts(from: &[i64], to: &[i64]) -> Result<()> {
    if broadcast(from, to)? == to {
        Ok(())
    } else {
        Err(Error::input(format!(
            "{from:?} does not broadcast to {to:?}"
        )))
    }
}

/// Returns the dtype in which the interpreter computes values of `d`.
/// Integers wrap in their own dtype, as they do in eager.
fn domain(d: DType) -> DType {
    if d.is_float() { DType::F64 } else { d }
}
