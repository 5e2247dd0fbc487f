//! Launches of Triton kernels that users wrote, in programs that are compiled ahead of time.
//!
//! `inrush.aot_compile` puts a call of [`OPERATOR`] in the place of each launch of an exported program. The call names its kernel by a
//! number, so that no archive holds source that something would run: the process that compiles brings the kernels along.
//!
//! ```text
//! add_kernel[(cdiv(n, 256),)](x, y, out, n, BLOCK=256)
//! out' = inrush.triton_kernel([x, y, out], [n], [(n + 255) // 256, 1, 1], 0, "add_kernel")
//! ```
//!
//! The call is functional: its results are the tensors that the kernel writes, as they are after it. A tensor that is `None` is memory
//! that the kernel is the first to write. The grid has three numbers for each configuration of the kernel.

use crate::schema::Schema;
use inrush_base::{Error, Result};
use inrush_expr::{Expr, Exprs};
use inrush_graph::{Arg, Graph, Node, ValueId};
use std::sync::LazyLock;

/// The operator's name.
pub const OPERATOR: &str = "inrush.triton_kernel.default";

/// Its parameters and results, as the Python package declares them.
const SCHEMA: &str =
    "(Tensor?[] tensors, SymInt[] numbers, SymInt[] grid, int kernel, str name) -> Tensor[]";

// A test holds that it can be read.
static PARSED: LazyLock<Option<Schema>> = LazyLock::new(|| Schema::parse(SCHEMA).ok());

/// Returns the operator's schema; `None` for other operators.
#[must_use]
pub fn schema(op: &str) -> Option<&'static Schema> {
    PARSED.as_ref().filter(|_| op == OPERATOR)
}

/// A launch as a graph holds it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Launch<'a> {
    pub tensors: &'a [Option<ValueId>],
    pub numbers: &'a [Expr],
    pub grid: &'a [Expr],
    /// Position among the kernels of the process that compiles.
    pub kernel: usize,
    pub name: &'a str,
}

/// Returns the launch of a node; `None` for other operators.
///
/// # Errors
/// An input error for arguments that the operator does not take.
pub fn launch<'a>(exprs: &Exprs, node: &'a Node) -> Result<Option<Launch<'a>>> {
    if node.op != OPERATOR {
        return Ok(None);
    }
    let launch = match node.args.as_slice() {
        [
            Arg::Values(tensors),
            Arg::Ints(numbers),
            Arg::Ints(grid),
            Arg::Int(kernel),
            Arg::Str(name),
        ] => exprs.as_int(*kernel).and_then(|k| {
            Some(Launch {
                tensors,
                numbers,
                grid,
                kernel: usize::try_from(k).ok()?,
                name,
            })
        }),
        _ => None,
    };
    (launch.map(Some)).ok_or_else(|| Error::input("a launch of a Triton kernel of another form"))
}

/// Refuses a graph with launches, for devices that run none.
///
/// # Errors
/// An unsupported error that lists the kernels with their Python lines.
pub fn refuse(graph: &Graph) -> Result<()> {
    let mut found = Vec::new();
    collect(graph, &mut found);
    if found.is_empty() {
        return Ok(());
    }
    found.dedup();
    Err(Error::unsupported(format!(
        "Triton kernels of users run on GPUs only:\n  {}",
        found.join("\n  ")
    )))
}

/// Lists the launches of a graph and of its bodies.
fn collect(graph: &Graph, found: &mut Vec<String>) {
    for node in graph.nodes.iter().filter(|n| n.op == OPERATOR) {
        let name = match node.args.last() {
            Some(Arg::Str(name)) => name.as_str(),
            _ => "",
        };
        found.push(match graph.line_of(node) {
            Some(line) => format!("`{name}` at {line}"),
            None => format!("`{name}`"),
        });
    }
    graph.bodies.iter().for_each(|b| collect(b, found));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_operator_has_a_schema_and_no_row() {
        let parsed = Schema::parse(SCHEMA).expect("a schema");
        assert_eq!(schema(OPERATOR), Some(&parsed));
        assert!(crate::lookup(OPERATOR).is_none());
    }
}
