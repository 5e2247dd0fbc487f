//! The interpreter of block programs: every program of every launch over its tile.
//!
//! A lane beyond the end of an axis does not exist: loads, stores and reductions see the others only. An axis that is called
//! exact is taken at its word, so a mask that is missing shows as an access outside of its buffer. The programs of a launch run
//! from the last to the first, those of its last part first: a launch that depends on the order of its programs gives something
//! else. Memory that nothing has written holds NaN and -1.
//!
//! ```text
//! for each launch
//!     for each part (kernels that were joined), last to first
//!         for each program of its grid, last to first
//!             place the tile; run the items over all of its lanes
//! ```
//!
//! Lanes of one item run one after another, and each item ends before the next begins. A GPU runs
//! lanes in parallel. That makes no difference, because a value of one lane reaches another only
//! through a reduction, a scan, or memory with a barrier in between, which the verifier of block
//! programs checks.

mod attention;
mod memory;
mod program;
mod reduce;

use crate::index::{self, Symbols};
use crate::tensor::{Tensor, Value};
use inrush_base::{Error, Result, Scalar};
use inrush_kernel::block::Piece;
use inrush_loops::{BufId, BufferKind, Loops, Output};
use memory::Memory;
use std::collections::BTreeMap;

pub use memory::{BlockMemory, Spot};

/// Runs `launches` in order over the buffers of `p`, whose layouts are chosen. `inputs`, `weights` and `symbols` are as for
/// [`crate::loops()`].
///
/// # Errors
/// An input that does not fit, an index out of range, an access outside of a buffer.
pub fn blocks(
    p: &Loops,
    launches: &[Vec<Piece>],
    places: &BlockMemory,
    inputs: &[Value],
    weights: &BTreeMap<String, Tensor>,
    symbols: &BTreeMap<String, i64>,
) -> Result<Vec<Value>> {
    let known = known(p, inputs, symbols)?;
    let mut run = Run {
        p,
        memory: Memory::new(p, places, &known)?,
        symbols: known,
    };
    run.fill(inputs, weights)?;
    for (k, launch) in launches.iter().enumerate() {
        (run.launch(launch)).map_err(|e| e.context(format!("launch {k}")))?;
    }
    p.outputs.iter().map(|o| run.output(o)).collect()
}

/// Learns the symbols from the inputs.
fn known(p: &Loops, inputs: &[Value], symbols: &BTreeMap<String, i64>) -> Result<Symbols> {
    if inputs.len() != p.num_inputs {
        let (given, wanted) = (inputs.len(), p.num_inputs);
        return Err(Error::input(format!(
            "{given} inputs given, {wanted} expected"
        )));
    }
    let mut known = Symbols::default();
    for (name, v) in symbols {
        known.extend(p.exprs.sym_by_name(name).map(|s| (s, *v)));
    }
    for b in &p.buffers {
        if let BufferKind::Input { index } = b.kind {
            let what = format!("input {index}");
            let t = inputs[index].tensor().map_err(|e| e.context(&what))?;
            index::bind(&p.exprs, &b.sizes, &t.sizes, &mut known, &what)?;
        }
    }
    Ok(known)
}

/// The state of one call.
struct Run<'a> {
    p: &'a Loops,
    memory: Memory,
    symbols: Symbols,
}

impl Run<'_> {
    /// Checks inputs and weights and writes them to their buffers. All other memory stays
    /// poisoned.
    fn fill(&mut self, inputs: &[Value], weights: &BTreeMap<String, Tensor>) -> Result<()> {
        for (k, b) in self.p.buffers.iter().enumerate() {
            let (what, t) = match &b.kind {
                BufferKind::Input { index } => (format!("input {index}"), inputs[*index].tensor()?),
                BufferKind::Weight { name } => {
                    let t = weights.get(name);
                    let t = t.ok_or_else(|| Error::input(format!("no weight `{name}`")))?;
                    (format!("weight {name}"), t)
                }
                _ => continue,
            };
            if t.dtype != b.dtype {
                let (have, want) = (t.dtype, b.dtype);
                return Err(Error::input(format!("{what} is {have}, expected {want}")));
            }
            index::check(&self.p.exprs, &b.sizes, &t.sizes, &self.symbols, &what)?;
            self.memory.write_all(BufId::from_index(k), t)?;
        }
        Ok(())
    }

    /// Runs the parts of a launch. They are independent of each other, so any order must do.
    fn launch(&mut self, parts: &[Piece]) -> Result<()> {
        for part in parts.iter().rev() {
            let name = &part.block.name;
            program::run(self, part).map_err(|e| e.context(name))?;
        }
        Ok(())
    }

    /// Returns an output. A mutation gives the new contents.
    fn output(&self, o: &Output) -> Result<Value> {
        Ok(match o {
            Output::Tensor { buffer } | Output::Mutation { buffer, .. } => {
                Value::Tensor(self.memory.read_all(*buffer)?)
            }
            Output::Int(e) => {
                let size = index::size(&self.p.exprs, *e, &self.symbols)?;
                Value::Scalar(Scalar::Int(size))
            }
            Output::Scalar(s) => Value::Scalar(*s),
            Output::None => Value::None,
        })
    }
}
