//! Complex numbers as pairs of real ones (planar complex).
//!
//! # What it does
//! Replaces each complex value by two real values, its real and its imaginary part, and each call on complex values by calls on
//! the parts. A complex input becomes a real one with a last dimension of 2, of which the parts are views, and a complex output
//! is stacked that way; a program gives such inputs and outputs their complex type again. `view_as_complex` is two views,
//! `view_as_real` a stack. Views and sums apply to each part, products expand, functions follow from those of real numbers.
//! A write into a complex value is a write into each of its parts.
//!
//! # When
//! Ahead of time, over the whole graph as imported, ahead of stage normalize: so all other stages see real numbers only. Inside
//! PyTorch complex operators are called instead. A graph without complex values is not changed.
//!
//! # Numerics
//! Quotients are scaled as eager's (Smith's algorithm), `abs` is `hypot`, and square roots do not cancel. A real factor multiplies
//! each part, where eager's is first made complex: `2 * (inf + 1i)` is `inf + 2i`, eager's imaginary part is NaN. Products of
//! matrices are four real products.
//!
//! # Example
//! ```text
//! %2 z: c64[4] = aten.view_as_complex.default(%0)
//! %3 w: c64[4] = aten.mul.Tensor(%2, %1)
//! %4 y: f32[4] = aten.real.default(%3)
//! =>
//! %2 z.re: f32[4] = aten.select.int(%0, 1, 0)
//! %3 z.im: f32[4] = aten.select.int(%0, 1, 1)
//! ..
//! ```

mod arith;
mod context;
mod fourier;
mod functions;
mod parts;
mod products;
mod rules;
mod stft;
mod writes;

use context::{Cx, V, Z};
use inrush_aten::bind::{self, functional_name};
use inrush_aten::{complex, lookup, props, replace, resolve_ints};
use inrush_base::{DType, DTypeClass, Error, Result};
use inrush_graph::{Arg, Graph, Node, OutputValue, TensorType, Type, ValueId};
use rustc_hash::FxHashMap;
use writes::Shared;

/// Replaces complex values by their parts.
///
/// # Errors
/// An unsupported error for an operator that has no rule for complex numbers, and for a write into memory that a complex value
/// shares with a real one in a way that parts cannot show.
pub fn planar(mut graph: Graph) -> Result<Graph> {
    let is_complex = |v: &inrush_graph::Value| complex_type(&v.ty).is_some();
    let known = |n: &Node| complex::schema(&n.op).is_some();
    if !graph.values.iter().any(is_complex) && !graph.nodes.iter().any(known) {
        return Ok(graph);
    }
    let nodes = std::mem::take(&mut graph.nodes);
    let mut planar = Planar {
        shared: Shared::of(&nodes),
        out: Vec::with_capacity(2 * nodes.len()),
        parts: FxHashMap::default(),
        graph,
    };
    planar.inputs()?;
    for node in nodes {
        planar.node(node)?;
    }
    planar.outputs()?;
    planar.graph.nodes = planar.out;
    Ok(planar.graph)
}

/// The graph while it is rewritten.
struct Planar {
    graph: Graph,
    out: Vec<Node>,
    /// The parts of each complex value so far.
    parts: FxHashMap<ValueId, Z>,
    shared: Shared,
}

impl Planar {
    /// Makes complex inputs real ones with a last dimension of 2.
    fn inputs(&mut self) -> Result<()> {
        for k in 0..self.graph.inputs.len() {
            let v = self.graph.inputs[k].value;
            let Some(t) = complex_type(&self.graph.value(v).ty) else {
                continue;
            };
            let real = interleaved(&self.graph, t)?;
            self.graph.values[v.index()].ty = Type::Tensor(real);
            self.graph.inputs[k].begin = self.graph.inputs[k].begin.saturating_mul(2);
            let node = Node {
                op: "aten.view_as_complex.default".into(),
                args: vec![v.into()],
                outs: vec![v],
                line: None,
                made_for: None,
            };
            let z = replace(&mut self.graph, &mut self.out, &node, |b| {
                parts::of_interleaved(b, v)
            })?;
            let z = self.named(v, z, 0);
            self.parts.insert(v, z);
        }
        Ok(())
    }

    fn node(&mut self, mut node: Node) -> Result<()> {
        let parts = &self.parts;
        let touches = node.reads().any(|v| parts.contains_key(&v))
            || (node.outs.iter()).any(|v| complex_type(&self.graph.value(*v).ty).is_some())
            || node.args.iter().any(|a| matches!(a, Arg::Complex(..)))
            || complex::schema(&node.op).is_some();
        let write = lookup(&node.op).is_none() && complex::schema(&node.op).is_none();
        let functional = functional_name(&node.op).filter(|_| write);
        if let Err(e) = self.shared.look(&node, functional.is_some()) {
            return Err(self.graph.locate(&node, e));
        }
        if !touches {
            self.out.push(node);
            return Ok(());
        }
        if props::asserts(&node.op) && node.reads().any(|v| self.parts.contains_key(&v)) {
            // Types are those of the graph, so what it says of a complex tensor holds.
            return Ok(());
        }
        // Positions of sizes and defaults are filled in by stage normalize, which comes later.
        let mut args = std::mem::take(&mut node.args);
        args.iter_mut().for_each(|a| resolve_ints(&self.graph, a));
        let op = functional.clone().unwrap_or_else(|| node.op.clone());
        let schema = lookup(&op)
            .map(|op| op.schema())
            .or_else(|| complex::schema(&op));
        let Some(schema) = schema else {
            let e = Error::unsupported("no row describes this operator");
            return Err(self.graph.locate(&node, e));
        };
        let args = bind::complete(&self.graph.exprs, schema, args)
            .map_err(|e| self.graph.locate(&node, e))?;
        let declared: Vec<Type> = (node.outs.iter())
            .map(|v| self.graph.value(*v).ty.clone())
            .collect();
        let (first_value, first_node) = (self.graph.values.len(), self.out.len());
        let parts = &self.parts;
        // A part that shares memory with another value must not, if the memory is written.
        let fresh = self.shared.writes() && functional.is_none();
        let found = replace(&mut self.graph, &mut self.out, &node, |b| {
            let mut cx = Cx {
                b,
                parts,
                op: &op,
                schema,
                args: &args,
                declared: &declared,
            };
            let (rule, shares) = rules::rule(&cx)?;
            let found = rule(&mut cx)?;
            cx.finish(found, fresh && !shares)
        })?;
        if functional.is_some() {
            return self.write(&node, &args, &found);
        }
        for (v, found) in node.outs.iter().zip(found) {
            match found {
                V::Complex(z) => {
                    let z = self.named(*v, z, first_value);
                    self.parts.insert(*v, z);
                }
                V::Real(new) => self.adopt(*v, new, first_value, first_node, &node),
            }
        }
        Ok(())
    }

    /// Lets a real result be `old`: the call that makes it gives `old`, or an alias does.
    fn adopt(&mut self, old: ValueId, new: ValueId, value: usize, node: usize, source: &Node) {
        let declared = matches!(self.graph.value(old).ty, Type::Tensor(_));
        if !declared || old == new {
            return;
        }
        if new.index() >= value {
            for n in &mut self.out[node..] {
                n.reads_mut().filter(|v| **v == new).for_each(|v| *v = old);
                n.outs
                    .iter_mut()
                    .filter(|v| **v == new)
                    .for_each(|v| *v = old);
            }
            return;
        }
        self.out.push(Node {
            op: "aten.alias.default".into(),
            args: vec![new.into()],
            outs: vec![old],
            line: source.line,
            made_for: None,
        });
    }

    /// Names new parts after their value. Those that stood before keep their names.
    fn named(&mut self, v: ValueId, z: Z, first: usize) -> Z {
        if z.re == z.im {
            return z;
        }
        for (part, suffix) in [(z.re, "re"), (z.im, "im")] {
            let name = format!("{}.{suffix}", self.graph.value(v).name);
            let taken = self.graph.values[part.index()].name.ends_with(".re")
                || self.graph.values[part.index()].name.ends_with(".im");
            if part.index() >= first && part != v && !taken {
                self.graph.values[part.index()].name = name;
            }
        }
        z
    }

    /// Writes the new contents into the parts of the first argument.
    fn write(&mut self, node: &Node, args: &[Arg], new: &[V]) -> Result<()> {
        let (Some(Arg::Value(target)), [new], [out]) = (args.first(), new, &*node.outs) else {
            let e = Error::unsupported("a write of complex numbers into several tensors");
            return Err(self.graph.locate(node, e));
        };
        let pairs = match (self.parts.get(target), new) {
            (Some(z), V::Complex(new)) => vec![(z.re, new.re), (z.im, new.im)],
            (None, V::Real(new)) => vec![(*target, *new)],
            _ => {
                let e = Error::unsupported("a write that changes the kind of number");
                return Err(self.graph.locate(node, e));
            }
        };
        for (to, from) in &pairs {
            let name = format!("{}.copied{}", self.graph.value(*to).name, self.out.len());
            let copied = if self.parts.contains_key(target) {
                let ty = self.graph.value(*to).ty.clone();
                self.graph.add_value(&name, ty)
            } else {
                *out
            };
            self.out.push(Node {
                op: "aten.copy_.default".into(),
                args: vec![(*to).into(), (*from).into(), Arg::Bool(false)],
                outs: vec![copied],
                line: node.line,
                made_for: None,
            });
        }
        if let Some(z) = self.parts.get(target).copied() {
            self.parts.insert(*out, z);
        }
        Ok(())
    }

    /// Stacks the parts of complex outputs.
    fn outputs(&mut self) -> Result<()> {
        let mut made: FxHashMap<ValueId, ValueId> = FxHashMap::default();
        for k in 0..self.graph.outputs.len() {
            let OutputValue::Value(v) = self.graph.outputs[k].value else {
                continue;
            };
            let Some(z) = self.parts.get(&v).copied() else {
                continue;
            };
            // An input that is returned is the same memory.
            if self.graph.inputs.iter().any(|i| i.value == v) {
                continue;
            }
            let new = match made.get(&v) {
                Some(new) => *new,
                None => self.output(v, z)?,
            };
            made.insert(v, new);
            self.graph.outputs[k].value = OutputValue::Value(new);
        }
        Ok(())
    }

    fn output(&mut self, v: ValueId, z: Z) -> Result<ValueId> {
        let Some(t) = complex_type(&self.graph.value(v).ty) else {
            return Err(Error::internal("parts of a value that is not complex"));
        };
        let ty = interleaved(&self.graph, t)?;
        let node = Node {
            op: "aten.view_as_real.default".into(),
            args: Vec::new(),
            outs: vec![v],
            line: None,
            made_for: None,
        };
        let first = self.graph.values.len();
        let new = replace(&mut self.graph, &mut self.out, &node, |b| {
            parts::interleave(b, z)
        })?;
        self.graph.values[v.index()].ty = Type::Tensor(ty);
        let name = self.graph.value(v).name.clone();
        for (k, made) in self.graph.values[first..].iter_mut().enumerate() {
            made.name = format!("{name}.pair{k}");
        }
        for out in self.out.last_mut().into_iter().flat_map(|n| &mut n.outs) {
            if *out == new {
                *out = v;
            }
        }
        Ok(v)
    }
}

/// Returns the type, if it is that of a complex tensor.
fn complex_type(ty: &Type) -> Option<&TensorType> {
    match ty {
        Type::Tensor(t) if t.dtype.class() == DTypeClass::Complex => Some(t),
        _ => None,
    }
}

/// Returns the type of the same memory as pairs of real numbers.
fn interleaved(graph: &Graph, t: &TensorType) -> Result<TensorType> {
    let ex = &graph.exprs;
    let mut sizes = t.sizes.clone();
    sizes.push(ex.int(2));
    let mut strides: Vec<_> = t.strides.iter().map(|s| ex.mul(*s, ex.int(2))).collect();
    strides.push(ex.int(1));
    let dtype = part_of(t.dtype)?;
    Ok(TensorType {
        dtype,
        sizes,
        strides,
    })
}

/// Returns the dtype of the parts of a complex dtype.
fn part_of(dtype: DType) -> Result<DType> {
    let part = dtype.part();
    part.ok_or_else(|| Error::internal(format!("{dtype} is not complex")))
}
