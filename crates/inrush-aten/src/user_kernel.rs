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
//!
//! Kernels compute addresses, from strides that they were traced with. So [`note_layouts`] adds those to the call before stages may change
//! layouts, and stage normalize copies an operand that has others.

use crate::schema::Schema;
use inrush_base::{Error, Result};
use inrush_expr::{Expr, Exprs};
use inrush_graph::{Arg, Graph, Node, TensorType, ValueId};
use std::sync::LazyLock;

/// The operator's name.
pub const OPERATOR: &str = "inrush.triton_kernel.default";

/// Its parameters and results, as the Python package declares them.
const SCHEMA: &str = "(Tensor?[] tensors, SymInt[] numbers, SymInt[] grid, int kernel, str name, SymInt[]? strides=None) -> Tensor[]";

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
    /// Those of all tensors that are given, one after the other; `None` before [`note_layouts`].
    pub strides: Option<&'a [Expr]>,
}

/// Adds the strides of their operands to the launches of a graph as it was imported, and of its bodies.
pub fn note_layouts(graph: &mut Graph) {
    for at in 0..graph.nodes.len() {
        let node = &graph.nodes[at];
        let (OPERATOR, [Arg::Values(tensors), ..]) = (node.op.as_str(), node.args.as_slice())
        else {
            continue;
        };
        let given = tensors.iter().flatten();
        let strides = given
            .filter_map(|v| graph.tensor(*v).ok())
            .flat_map(|t| t.strides.clone());
        let strides = Arg::Ints(strides.collect());
        let args = &mut graph.nodes[at].args;
        if args.len() > STRIDES {
            args[STRIDES] = strides;
        } else if args.len() == STRIDES {
            args.push(strides);
        }
    }
    graph.bodies.iter_mut().for_each(note_layouts);
}

/// Position of the strides among the arguments.
const STRIDES: usize = 5;

/// Returns the types that the operands of a launch were traced with, with their positions among its tensors; `None` for other
/// operators and before [`note_layouts`].
#[must_use]
pub fn operand_types(graph: &Graph, node: &Node) -> Option<Vec<(usize, TensorType)>> {
    let launch = launch(&graph.exprs, node).ok()??;
    let mut strides = launch.strides?;
    let mut types = Vec::with_capacity(launch.tensors.len());
    for (at, v) in launch.tensors.iter().enumerate() {
        let Some(v) = v else { continue };
        let mut ty = graph.tensor(*v).ok()?.clone();
        let (own, rest) = strides.split_at_checked(ty.rank())?;
        ty.strides = own.to_vec();
        strides = rest;
        types.push((at, ty));
    }
    Some(types)
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
            rest @ ..,
        ] => exprs.as_int(*kernel).and_then(|k| {
            Some(Launch {
                tensors,
                numbers,
                grid,
                kernel: usize::try_from(k).ok()?,
                name,
                strides: match rest {
                    [Arg::Ints(strides)] => Some(strides),
                    [] | [Arg::None] => None,
                    _ => return None,
                },
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
        let name = match node.args.get(STRIDES - 1) {
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
