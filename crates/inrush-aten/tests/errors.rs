//! Every refusal tells which node of the source graph it is about: callers route that node around the compiler.

use inrush_aten::{decompose, lower, normalize};
use inrush_base::{Error, ErrorKind};
use inrush_graph::text;

fn refusal(graph: &str) -> Error {
    let graph = text::parse(graph).expect("a graph");
    normalize(graph)
        .and_then(decompose)
        .and_then(|g| lower(g, inrush_aten::Processor::Cpu))
        .expect_err("a refusal")
}

#[track_caller]
fn names(graph: &str, node: &str) {
    let e = refusal(graph);
    assert_eq!(e.kind(), ErrorKind::Unsupported, "{e}");
    assert_eq!(e.node(), Some(node), "{e}");
    assert!(e.op().is_some(), "{e}");
}

#[test]
fn an_operator_without_a_row() {
    names(
        "graph t\n%0 x: f32[4] = input 0\n%1 y: f32[4] = aten.neg.default(%0)\n\
         %2 z: f32[4] = custom.thing.default(%1)\noutput 0: %2\n",
        "z",
    );
}

#[test]
fn an_argument_that_a_decomposition_refuses() {
    names(
        "graph t\n%0 q: f32[1,2,3,4] = input 0\n\
         %1 attended: f32[1,2,3,4] = aten.scaled_dot_product_attention.default(%0, %0, %0, none, 0.5)\n\
         %2 y: f32[1,2,3,4] = aten.neg.default(%1)\noutput 0: %2\n",
        "attended",
    );
}

#[test]
fn a_node_inside_a_decomposition() {
    // The refusal comes from a complex operand of the multiplication that the outer product is made of.
    names(
        "graph t\n%0 x: c64[3] = input 0\n%1 y: c64[3,3] = aten.outer.default(%0, %0)\noutput 0: %1\n",
        "y",
    );
}

#[test]
fn an_in_place_call() {
    names(
        "graph t\n%0 x: f32[4] = input 0\n%1 y: f32[4] = aten.neg.default(%0)\n\
         %2 written: f32[4] = aten.bernoulli_.float(%1, 0.5)\noutput 0: %1\n",
        "written",
    );
}
