//! Operators that nothing describes: all of them in one error, each once, with the Python lines that call it.
//!
//! A user who exports a model wants the whole list at once. Conversion goes on after an unknown
//! operator, with its results typed as described, and `check` reports at the end. The order is
//! that of first calls.

use crate::schema::{Argument, KEYWORD, Node};
use inrush_base::{Error, Result};
use rustc_hash::FxHashMap;
use std::fmt::Write;

/// Lines shown of each operator.
const LINES: usize = 3;

/// Said about operators of users.
const LAUNCHES: &str = "\nif these launch Triton kernels: an archive holds no source of them, `inrush.aot_compile(program, path, targets=[\"h100\"])` takes it \
     from the process that exports";

/// Returns true for an operator that may be a user's, and so may launch Triton kernels.
fn may_launch(op: &str) -> bool {
    let known = ["aten.", "prims.", "sym."]
        .iter()
        .any(|p| op.starts_with(p));
    match op.strip_prefix("higher_order.") {
        Some(higher) => higher.starts_with("triton_kernel"),
        None => !known && op.matches('.').count() == 2,
    }
}

/// `index` finds an operator's position in `ops`.
#[derive(Default)]
pub struct UnknownOps {
    ops: Vec<UnknownOp>,
    index: FxHashMap<String, usize>,
}

struct UnknownOp {
    name: String,
    /// A declaration with which the operator would be one of the user's.
    declaration: Option<String>,
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
                declaration: None,
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

    /// Writes a declaration for an operator that is none of PyTorch's, as its first call shows it: kinds of arguments that are left
    /// out are not known, nor which the operator writes.
    pub fn suggest(&mut self, op: &str, node: &Node) {
        let of_pytorch = ["aten.", "prims.", "prim.", "higher_order.", "_c10d", "sym."];
        if of_pytorch.iter().any(|p| op.starts_with(p)) {
            return;
        }
        let Some(o) = self.index.get(op).map(|at| &mut self.ops[*at]) else {
            return;
        };
        if o.declaration.is_none() {
            o.declaration = declaration(op, node);
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
        let declared: Vec<&String> = (self.ops.iter())
            .filter_map(|o| o.declaration.as_ref())
            .collect();
        if !declared.is_empty() {
            _ = write!(
                out,
                "\nOperators of your own are called where the package runs. Declare them with their schemas (parameters that calls leave \
                 out too, and `Tensor(a!)` for one that is written):"
            );
            for d in declared {
                _ = write!(out, "\n  --operator '{d}'");
            }
        }
        if self.ops.iter().any(|o| may_launch(&o.name)) {
            out.push_str(LAUNCHES);
        }
        Err(Error::unsupported(out))
    }
}

/// Returns a declaration that a call would fit; `None` for arguments that no custom operator takes.
fn declaration(op: &str, node: &Node) -> Option<String> {
    let mut words = op.splitn(3, '.');
    let (namespace, name, overload) = (words.next()?, words.next()?, words.next()?);
    let mut params = Vec::with_capacity(node.inputs.len());
    let mut keywords = false;
    for a in &node.inputs {
        let ty = match &a.arg {
            Argument::Tensor(_) => "Tensor",
            Argument::OptionalTensor(_) => "Tensor?",
            Argument::Tensors(_) => "Tensor[]",
            Argument::OptionalTensors(_) => "Tensor?[]",
            Argument::Int(_) | Argument::SymInt(_) => "int",
            Argument::Ints(_) | Argument::SymInts(_) => "int[]",
            Argument::Float(_) | Argument::SymFloat(_) => "float",
            Argument::Floats(_) | Argument::SymFloats(_) => "float[]",
            Argument::Bool(_) | Argument::SymBool(_) => "bool",
            Argument::Bools(_) | Argument::SymBools(_) => "bool[]",
            Argument::Str(_) => "str",
            Argument::ScalarType(_) => "ScalarType",
            Argument::None(_) => "Tensor?",
            _ => return None,
        };
        if a.kind == Some(KEYWORD) && !keywords {
            keywords = true;
            params.push("*".to_string());
        }
        params.push(format!("{ty} {}", a.name));
    }
    let results: Vec<&str> = (node.outputs.iter())
        .map(|o| match o {
            Argument::Tensors(_) => "Tensor[]",
            _ => "Tensor",
        })
        .collect();
    let results = match &results[..] {
        [one] => (*one).to_string(),
        all => format!("({})", all.join(", ")),
    };
    let overload = match overload {
        "default" => String::new(),
        o => format!(".{o}"),
    };
    Some(format!(
        "{namespace}::{name}{overload}({}) -> {results}",
        params.join(", ")
    ))
}
