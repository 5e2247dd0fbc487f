//! Operators that nothing describes: all of them in one error, each once, with the Python lines that call it.
//!
//! A user who exports a model wants the whole list at once. Conversion goes on after an unknown
//! operator, with its results typed as described, and `check` reports at the end. The order is
//! that of first calls.

use inrush_base::{Error, Result};
use rustc_hash::FxHashMap;
use std::fmt::Write;

/// Lines shown of each operator.
const LINES: usize = 3;

/// `index` finds an operator's position in `ops`.
#[derive(Default)]
pub struct UnknownOps {
    ops: Vec<UnknownOp>,
    index: FxHashMap<String, usize>,
}

struct UnknownOp {
    name: String,
    calls: usize,
    /// Different lines, the first few only.
    lines: Vec<String>,
}

impl UnknownOps {
    /// Counts a call of `op` from a Python line.
    pub fn add(&mut self, op: &str, line: Option<&str>) {
        let at = *self.index.entry(op.to_string()).or_insert_with(|| {
            self.ops.push(UnknownOp {
                name: op.to_string(),
                calls: 0,
                lines: Vec::new(),
            });
            self.ops.len() - 1
        });
        let o = &mut self.ops[at];
        o.calls += 1;
        if let Some(l) = line
            && o.lines.len() < LINES
            && !o.lines.iter().any(|x| x == l)
        {
            o.lines.push(l.to_string());
        }
    }

    /// Returns the error, if there are any.
    pub fn check(&self) -> Result<()> {
        if self.ops.is_empty() {
            return Ok(());
        }
        let mut out = match self.ops.len() {
            1 => "an operator is not supported:".to_string(),
            n => format!("{n} operators are not supported:"),
        };
        for o in &self.ops {
            let calls = match o.calls {
                1 => "1 call".to_string(),
                n => format!("{n} calls"),
            };
            _ = write!(out, "\n  {} ({calls})", o.name);
            for l in &o.lines {
                _ = write!(out, "\n    {l}");
            }
        }
        Err(Error::unsupported(out))
    }
}
