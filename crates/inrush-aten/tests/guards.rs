//! Relations of sizes that rows demand: unproved ones become guards, impossible ones are errors.

use inrush_aten::{decompose, lower, normalize};
use inrush_graph::{Graph, text};

/// The guards of a graph of one call on inputs of these types.
fn guards(types: &[&str], call: &str, result: &str) -> Result<Vec<String>, String> {
    let mut source = String::from("graph t\n");
    for s in ["p", "q", "r"] {
        source += &format!("size {s} in [2, 64]\n");
    }
    for (k, ty) in types.iter().enumerate() {
        source += &format!("%{k} x{k}: {ty} = input {k}\n");
    }
    let n = types.len();
    source += &format!("%{n} y: {result} = {call}\noutput 0: %{n}\n");
    let graph = text::parse(&source).map_err(|e| e.to_string())?;
    let graph: Graph = normalize(graph)
        .and_then(decompose)
        .map_err(|e| e.to_string())?;
    let show = |e| graph.exprs.show(e);
    let mut out: Vec<String> = graph
        .guards
        .iter()
        .map(|g| format!("{} {:?} {}", show(g.left), g.relation, show(g.right)))
        .collect();
    out.sort();
    lower(graph, inrush_aten::Processor::Cpu).map_err(|e| e.to_string())?;
    Ok(out)
}

#[track_caller]
fn demands(types: &[&str], call: &str, result: &str, want: &[&str]) {
    assert_eq!(guards(types, call, result).unwrap(), want, "{call}");
}

#[test]
fn products() {
    let two = ["f32[4,p]", "f32[q,5]"];
    demands(&two, "aten.mm.default(%0, %1)", "f32[4,5]", &["p Eq q"]);
    demands(&two, "aten.matmul.default(%0, %1)", "f32[4,5]", &["p Eq q"]);
    demands(
        &["f32[3,4,p]", "f32[3,q,5]"],
        "aten.bmm.default(%0, %1)",
        "f32[3,4,5]",
        &["p Eq q"],
    );
    demands(
        &["f32[4,p]", "f32[q]"],
        "aten.mv.default(%0, %1)",
        "f32[4]",
        &["p Eq q"],
    );
    demands(
        &["f32[p]", "f32[q]"],
        "aten.dot.default(%0, %1)",
        "f32[]",
        &["p Eq q"],
    );
    demands(
        &["f32[5]", "f32[4,p]", "f32[q,5]"],
        "aten.addmm.default(%0, %1, %2)",
        "f32[4,5]",
        &["p Eq q"],
    );
    demands(
        &["f32[r]", "f32[4,p]", "f32[p,q]"],
        "aten.addmm.default(%0, %1, %2)",
        "f32[4,q]",
        &["r Eq q"],
    );
    demands(
        &["f32[4,p]", "f32[r,q]", "f32[r]"],
        "aten.linear.default(%0, %1, %2)",
        "f32[4,r]",
        &["p Eq q"],
    );
    demands(
        &["f32[4,p]", "f32[3,q]"],
        "aten.inner.default(%0, %1)",
        "f32[4,3]",
        &["p Eq q"],
    );
    demands(
        &two,
        "aten.einsum.default(\"ij,jk->ik\", [%0, %1])",
        "f32[4,5]",
        &["p Eq q"],
    );
    demands(
        &two,
        "aten.tensordot.default(%0, %1, [1], [0])",
        "f32[4,5]",
        &["p Eq q"],
    );
    demands(
        &["f32[4,p]", "f32[p,5]"],
        "aten.mm.default(%0, %1)",
        "f32[4,5]",
        &[],
    );
    let e = guards(
        &["f32[4,3]", "f32[5,4]"],
        "aten.mm.default(%0, %1)",
        "f32[4,4]",
    );
    assert!(e.unwrap_err().contains("do not multiply"));
}

#[test]
fn convolutions() {
    demands(
        &["f32[1,p,8,8]", "f32[4,q,3,3]"],
        "aten.conv2d.default(%0, %1)",
        "f32[1,4,6,6]",
        &["q Eq p"],
    );
    demands(
        &["f32[1,3,8]", "f32[4,3,3]", "f32[p]"],
        "aten.conv1d.default(%0, %1, %2)",
        "f32[1,4,6]",
        &["p Eq 4"],
    );
}

#[test]
fn joins_and_parts() {
    demands(
        &["f32[4,p]", "f32[4,q]"],
        "aten.cat.default([%0, %1], 0)",
        "f32[8,p]",
        &["p Eq q"],
    );
    demands(
        &["f32[p,8]", "f32[q,3]"],
        "aten.slice_scatter.default(%0, %1, 1, 0, 3)",
        "f32[p,8]",
        &["q Eq p"],
    );
    demands(
        &["f32[p,8]", "f32[q]"],
        "aten.select_scatter.default(%0, %1, 1, 2)",
        "f32[p,8]",
        &["q Eq p"],
    );
}

#[test]
fn writes_by_index() {
    demands(
        &["f32[4,p]", "i64[3,q]", "f32[3,r]"],
        "aten.scatter_add.default(%0, 0, %1, %2)",
        "f32[4,p]",
        &["q Le p", "q Le r"],
    );
    demands(
        &["f32[4,p]", "i64[3,q]"],
        "aten.gather.default(%0, 0, %1)",
        "f32[3,q]",
        &["q Le p"],
    );
    demands(
        &["f32[4,p]", "i64[q]", "f32[r,p]"],
        "aten.index_add.default(%0, 0, %1, %2)",
        "f32[4,p]",
        &["r Eq q"],
    );
    demands(
        &["f32[4,p]", "i64[q]", "f32[r,p]"],
        "aten.index_put.default(%0, [%1], %2)",
        "f32[4,p]",
        &["r Eq q"],
    );
}
