//! The interpreter of loops: every statement at every point, in order.
//!
//! Each body runs alone over all of its points before the next one starts, outer axes first, in
//! row-major order. Fusion, parallel loops and vector lanes promise to change nothing of that,
//! except for the order of sums. All axes are walked point by point, whatever the schedule says
//! about them.
//!
//! Halves follow the rule of the loop IR: a load gives the stored value, computation is in `f32`,
//! a store rounds. Statements that are not masked are evaluated at every point; masks belong to
//! loads, stores and checks of indices only.

mod attention;
mod body;
mod contraction;
mod library;
mod memory;

use crate::index::{self, Symbols};
use crate::tensor::{Tensor, Value};
use inrush_base::{Error, Result};
use inrush_loops::{BufferKind, Loops, Node, Output};
use memory::Memory;
use std::collections::BTreeMap;

/// Precision of the interpreter.
#[derive(Copy, Clone, Debug, Default)]
pub struct LoopsOptions {
    /// Accumulates `f32` reductions and contractions in `f64` and rounds once: a reference for
    /// kernels that add in another order.
    pub wide_sums: bool,
}

/// Runs `p`. `inputs` are the user's in call order, `weights` are by fully qualified name. Symbols
/// are bound from input shapes and integer inputs; `symbols` adds those that no shape determines.
pub fn loops(
    p: &Loops,
    inputs: &[Value],
    weights: &BTreeMap<String, Tensor>,
    symbols: &BTreeMap<String, i64>,
    options: LoopsOptions,
) -> Result<Vec<Value>> {
    if inputs.len() != p.num_inputs {
        return Err(Error::input(format!(
            "{} inputs given, {} expected",
            inputs.len(),
            p.num_inputs
        )));
    }
    let mut known = Symbols::default();
    for (name, v) in symbols {
        if let Some(s) = p.exprs.sym_by_name(name) {
            known.insert(s, *v);
        }
    }
    // All inputs are bound before any is checked, because a symbol may be determined by a later
    // one.
    for b in &p.buffers {
        if let BufferKind::Input { index } = b.kind {
            let what = format!("input {index}");
            let t = inputs[index].tensor().map_err(|e| e.context(&what))?;
            index::bind(&p.exprs, &b.sizes, &t.sizes, &mut known, &what)?;
        }
    }
    let mut run = Run {
        p,
        memory: Memory::new(p, &known)?,
        symbols: known,
        options,
    };
    run.fill(inputs, weights)?;
    for (k, node) in p.nodes.iter().enumerate() {
        match node {
            Node::Body(b) => run.body(b, [None; 2]),
            Node::Contraction(c) => run.contraction(c),
            Node::Library(c) => run.library(c),
            Node::Attention(a) => run.attention(a),
        }
        .map_err(|e| e.context(format!("node {k}")))?;
    }
    p.outputs.iter().map(|o| run.output(o)).collect()
}

/// The state of one call. `symbols` does not change once the inputs are bound.
struct Run<'a> {
    p: &'a Loops,
    memory: Memory,
    symbols: Symbols,
    options: LoopsOptions,
}

impl Run<'_> {
    /// Checks inputs and weights and writes them to their buffers.
    fn fill(&mut self, inputs: &[Value], weights: &BTreeMap<String, Tensor>) -> Result<()> {
        for (k, b) in self.p.buffers.iter().enumerate() {
            let (what, t) = match &b.kind {
                BufferKind::Input { index } => (format!("input {index}"), inputs[*index].tensor()?),
                BufferKind::Weight { name } => {
                    let t = weights
                        .get(name)
                        .ok_or_else(|| Error::input(format!("no weight `{name}`")))?;
                    (format!("weight {name}"), t)
                }
                _ => continue,
            };
            if t.dtype != b.dtype {
                return Err(Error::input(format!(
                    "{what} is {}, expected {}",
                    t.dtype, b.dtype
                )));
            }
            index::check(&self.p.exprs, &b.sizes, &t.sizes, &self.symbols, &what)?;
            self.memory.write_all(k, t)?;
        }
        Ok(())
    }

    /// Returns an output. A mutation gives the new contents; the caller's tensor is not written.
    fn output(&self, o: &Output) -> Result<Value> {
        Ok(match o {
            Output::Tensor { buffer } | Output::Mutation { buffer, .. } => {
                Value::Tensor(self.memory.read_all(buffer.index())?)
            }
            Output::Int(e) => Value::Scalar(inrush_base::Scalar::Int(index::size(
                &self.p.exprs,
                *e,
                &self.symbols,
            )?)),
            Output::Scalar(s) => Value::Scalar(*s),
            Output::None => Value::None,
        })
    }
}

/// Calls `f` for every point of `extents` in row-major order.
/// Without axes there is one point. An axis of size zero leaves none.
fn for_each_point(extents: &[i64], mut f: impl FnMut(&[i64]) -> Result<()>) -> Result<()> {
    if extents.iter().any(|n| *n <= 0) {
        return Ok(());
    }
    let mut at = vec![0i64; extents.len()];
    loop {
        f(&at)?;
        let mut d = extents.len();
        loop {
            if d == 0 {
                return Ok(());
            }
            d -= 1;
            at[d] += 1;
            if at[d] < extents[d] {
                break;
            }
            at[d] = 0;
        }
    }
}
