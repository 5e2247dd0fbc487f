//! Operators and dtypes that PyTorch has no kernel for.
//!
//! Inside PyTorch they are called: it refuses them in its own words, as it does without a compiler,
//! and a release that has such a kernel runs it.
//!
//! The table `no_kernels.txt` has a line for each device and operator with the dtypes that PyTorch
//! refuses. It speaks of the first tensor. A call with another shape of arguments than the
//! operator's example (tensors of several dtypes, an explicit dtype) is compiled: PyTorch converts
//! first, and has kernels for the result.

use inrush_aten::example::example;
use inrush_base::DType;
use inrush_graph::{Arg, Graph, Node, Type};
use rustc_hash::FxHashMap;
use std::sync::LazyLock;

/// By kind of device (`cpu`, `gpu`) and operator.
static TABLE: LazyLock<FxHashMap<(&str, &str), Vec<DType>>> =
    LazyLock::new(|| lines().map(|(d, op, dtypes)| ((d, op), dtypes)).collect());

fn lines() -> impl Iterator<Item = (&'static str, &'static str, Vec<DType>)> {
    let lines = include_str!("no_kernels.txt").lines();
    lines.filter(|l| !l.starts_with('#')).filter_map(|line| {
        let mut words = line.split(' ');
        Some((
            words.next()?,
            words.next()?,
            words.filter_map(DType::parse).collect(),
        ))
    })
}

/// Why a node is PyTorch's to refuse.
pub fn refused(graph: &Graph, node: &Node, gpu: bool) -> Option<String> {
    let dtypes = TABLE.get(&(if gpu { "gpu" } else { "cpu" }, node.op.as_str()))?;
    let given = tensors(graph, node);
    let (first, none) = *given.first()?;
    if none || !dtypes.contains(&first) || converts(node) {
        return None;
    }
    // Tensors of one dtype in the example must be here too: of several PyTorch promotes, and has kernels for the result.
    let example = example(&node.op).ok()?;
    let shown = tensors(&example.graph, example.graph.nodes.first()?);
    let main = shown.first()?.0;
    let alike = given.len() <= shown.len()
        && (given.iter().zip(&shown)).all(|(g, s)| !g.1 && (s.0 != main || g.0 == first));
    alike.then(|| format!("PyTorch has no kernel of it for {first}"))
}

/// Dtypes of the tensors among the arguments, and whether they are known to have no elements: for such no kernel runs.
fn tensors(graph: &Graph, node: &Node) -> Vec<(DType, bool)> {
    let tensor = |v| match &graph.value(v).ty {
        Type::Tensor(t) => {
            let none = t.sizes.iter().any(|s| graph.exprs.as_int(*s) == Some(0));
            Some((t.dtype, none))
        }
        _ => None,
    };
    node.reads().filter_map(tensor).collect()
}

/// Returns true if an argument says in what dtype to compute.
fn converts(node: &Node) -> bool {
    node.args.iter().any(|a| matches!(a, Arg::DType(_)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_names_an_operator_that_has_a_row_and_dtypes() {
        assert!(lines().count() > 200);
        for (device, op, dtypes) in lines() {
            assert!(["cpu", "gpu"].contains(&device), "{op}: {device}");
            assert!(inrush_aten::lookup(op).is_some(), "{op}");
            assert!(!dtypes.is_empty(), "{op}");
        }
        let text = include_str!("no_kernels.txt").lines();
        let words: usize = text
            .filter(|l| !l.starts_with('#'))
            .map(|l| l.split(' ').count() - 2)
            .sum();
        assert_eq!(words, lines().map(|(_, _, d)| d.len()).sum::<usize>());
    }
}
