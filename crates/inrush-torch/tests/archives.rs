//! Reads the archives in `tests/data` and checks the graphs.

mod common;
use common::*;
use inrush_base::DType;
use inrush_graph::{Arg, InputKind, OutputKind, OutputValue, Type, verify};
use inrush_torch::{Model, Sample};

fn model(name: &str) -> Model {
    import(bytes(name)).unwrap_or_else(|e| panic!("{name}: {e}"))
}

fn ops(m: &Model) -> Vec<&str> {
    m.graph.nodes.iter().map(|n| n.op.as_str()).collect()
}

fn guards(m: &Model) -> Vec<String> {
    let x = &m.graph.exprs;
    let one = |g: &inrush_graph::Guard| {
        format!("{:?} {} {}", g.relation, x.show(g.left), x.show(g.right))
    };
    m.graph.guards.iter().map(one).collect()
}

#[test]
fn every_graph_is_well_formed() {
    for name in ARCHIVES {
        let m = model(name);
        verify::verify(&m.graph).unwrap_or_else(|e| panic!("{name}: {e}"));
        let notes = m.notes.join("; ");
        assert!(
            notes.is_empty() || name == "modes" && notes.contains("autocast"),
            "{name}: {notes}"
        );
        m.weights.check().unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(m.graph.name, name);
    }
}

#[test]
fn weights_are_slices_of_the_file() {
    let m = model("weights");
    let view = |n: &str| m.weights.view(n).unwrap_or_else(|| panic!("no {n}"));
    let (first, tied) = (view("first"), view("tied"));
    assert_eq!(
        first.bytes.as_ptr(),
        tied.bytes.as_ptr(),
        "tied weights share their bytes"
    );
    assert_eq!((first.sizes, first.strides), (&[2, 3][..], &[3, 1][..]));
    assert_eq!(
        (view("turned").sizes, view("turned").strides),
        (&[2, 3][..], &[1, 2][..])
    );
    let (head, tail) = (view("head"), view("tail"));
    assert_eq!(head.dtype, DType::F64);
    assert_eq!(head.bytes[8..16], 1f64.to_le_bytes());
    assert_eq!(
        tail.bytes[..8],
        4f64.to_le_bytes(),
        "a view begins at its offset"
    );
    let persistent: Vec<bool> = (m.graph.inputs.iter())
        .filter_map(|i| match &i.kind {
            InputKind::Buffer { persistent, .. } => Some(*persistent),
            _ => None,
        })
        .collect();
    assert_eq!(persistent, [true, false, true]);
    assert!(
        m.graph
            .inputs
            .iter()
            .any(|i| matches!(i.kind, InputKind::Constant { .. }))
    );
    assert!(
        ops(&m).contains(&"aten.add_.Tensor"),
        "writes stay where they are"
    );
}

#[test]
fn nested_inputs_and_outputs_have_names() {
    let m = model("nested");
    assert_eq!(
        m.signature.input_names.join(" "),
        "x items.0 items.1.k pair.a pair.b scale mask flag"
    );
    assert_eq!(
        m.signature.output_names.join(" "),
        "0.sum 0.parts.0 0.parts.1 1.a 1.b 2 3"
    );
    let constants: Vec<&Type> = (m.graph.inputs.iter())
        .map(|i| &m.graph.value(i.value).ty)
        .filter(|t| matches!(t, Type::Constant(_)))
        .collect();
    assert_eq!(constants.len(), 2);
    let values: Vec<&OutputValue> = m.graph.outputs.iter().map(|o| &o.value).collect();
    assert!(matches!(values[4], OutputValue::None));
    assert!(matches!(values[5], OutputValue::Scalar(s) if s.to_string() == "3"));
    assert!(matches!(values[6], OutputValue::Scalar(s) if s.to_string() == "2.5"));
    let split = m
        .graph
        .nodes
        .iter()
        .find(|n| n.op.contains("split"))
        .expect("a split");
    assert_eq!(split.outs.len(), 2);
    // A class of the exporting program cannot be built here, and need not be.
    let why = m.samples.unwrap_err();
    assert!(why.contains("__main__.Pair"), "{why}");
}

#[test]
fn symbolic_sizes_are_expressions_of_input_sizes() {
    let m = model("sizes");
    let x = &m.graph.exprs;
    let size = |k: usize| match &m.graph.value(m.graph.inputs[k].value).ty {
        Type::Tensor(t) => x.show_list(&t.sizes),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        (size(0).as_str(), size(1).as_str()),
        ("[s77, 3]", "[2*s77, s94]")
    );
    assert_eq!(x.show_decls()[0], "size s77 in [2, 64] hint 4");
    assert!(
        !ops(&m)
            .iter()
            .any(|op| op.contains("sym_size") || op.contains("mul"))
    );
    assert_eq!(
        guards(&m),
        Vec::<String>::new(),
        "what sizes imply is not asked again"
    );
    let OutputValue::Value(v) = m.graph.outputs[1].value else {
        panic!("an integer is expected");
    };
    assert!(matches!(m.graph.value(v).ty, Type::Int(e) if x.show(e) == "2*s77 + 1"));
    let Ok(samples) = &m.samples else {
        panic!("{:?}", m.samples)
    };
    let sizes = |s: &Sample| match s {
        Sample::Tensor(t) => (t.sizes.clone(), t.bytes.len()),
        other => panic!("{other:?}"),
    };
    assert_eq!(sizes(&samples[1]), (vec![8, 5], 160));
}

#[test]
fn conditions_become_guards() {
    assert_eq!(
        guards(&model("conditions")),
        ["Ne (s77 % 3) 0", "Eq (s77 // 2) s17"]
    );
    let m = import(replace("conditions", "% 3) != 0", "% 3) is not 0")).unwrap();
    assert_eq!(m.graph.guards.len(), 1);
    assert!(m.notes[0].contains("is not 0"), "{:?}", m.notes);
}

#[test]
fn sizes_from_data_are_unbacked() {
    let m = model("data");
    let decls = m.graph.exprs.show_decls().join("; ");
    assert_eq!(decls, "unbacked u0 in [1, 6]; unbacked u1 in [0, 6]");
    let ops = ops(&m);
    assert!(ops.contains(&"aten.item.default"));
    assert!(
        ops.contains(&"aten._assert_scalar.default"),
        "asserts on data stay: {ops:?}"
    );
    let slice = m
        .graph
        .nodes
        .iter()
        .find(|n| n.op == "aten.slice.Tensor")
        .expect("a slice");
    assert!(
        slice
            .args
            .iter()
            .any(|a| matches!(a, Arg::Int(e) if m.graph.exprs.show(*e) == "u0"))
    );
}

#[test]
fn graphs_that_set_a_mode_are_inlined() {
    let m = model("modes");
    let ops = ops(&m);
    assert!(ops.iter().all(|op| op.starts_with("aten.")), "{ops:?}");
    assert!(ops.contains(&"aten.chunk.default") && ops.contains(&"aten.matmul.default"));
    assert!(m.graph.nodes.iter().all(|n| !n.outs.is_empty()));
}

#[test]
fn writes_name_their_inputs() {
    let m = model("writes");
    let written: Vec<&str> = (m.graph.outputs.iter())
        .filter_map(|o| match o.kind {
            OutputKind::Mutation { input } => {
                Some(&*m.graph.value(m.graph.inputs[input].value).name)
            }
            _ => None,
        })
        .collect();
    assert_eq!(written, ["b_total", "out"]);
}

#[test]
fn unknown_operators_are_listed_together() {
    let e = inrush_torch::open(&path("foreign.pt2"))
        .err()
        .expect("unknown operators")
        .to_string();
    for part in [
        "foreign.pt2: ",
        "2 operators are not supported",
        "nowhere.pair.default (1 call)",
        "nowhere.twice.default (2 calls)",
        "generate.py:",
        "y = torch.ops.nowhere.twice(a + b)",
    ] {
        assert!(e.contains(part), "no `{part}` in: {e}");
    }
}

#[test]
fn control_flow_has_bodies() {
    let model = inrush_torch::open(&path("branch.pt2")).expect("a branch on data");
    let g = &model.graph;
    assert!(g.nodes.iter().any(|n| n.op == "higher_order.cond"));
    assert_eq!(g.bodies.len(), 2);
    assert!(
        g.bodies
            .iter()
            .all(|b| b.outputs.len() == 1 && b.inputs.len() == 1)
    );
    inrush_graph::verify::verify(g).expect("a graph that keeps the rules");
}

#[test]
fn a_long_chain_takes_linear_time() {
    let start_of_test = std::time::Instant::now();
    // A graph of one operator called n times, in the place of the program of `conditions`.
    let chain = |n: usize| {
        let mut nodes = String::new();
        let mut values = String::from(r#"{"x": M"#);
        for k in 0..n {
            let from = if k == 0 {
                "x".into()
            } else {
                format!("v{}", k - 1)
            };
            nodes.push_str(&format!(
                r#"{}{{"target": "torch.ops.aten.relu.default", "inputs": [{{"name": "self", "arg": {{"as_tensor": {{"name": "{from}"}}}}, "kind": 1}}], "outputs": [{{"as_tensor": {{"name": "v{k}"}}}}], "metadata": {{"stack_trace": "File \"m.py\", line {k}, in forward\n    x = x.relu()"}}, "name": "v{k}"}}"#,
                if k == 0 { "" } else { ", " }
            ));
            values.push_str(&format!(r#", "v{k}": M"#));
        }
        let meta = r#"{"dtype": 7, "sizes": [{"as_expr": {"expr_str": "Symbol('s0', positive=True, integer=True)", "hint": {"as_int": 4}}}, {"as_int": 8}], "requires_grad": false, "device": {"type": "cpu", "index": null}, "strides": [{"as_int": 8}, {"as_int": 1}], "storage_offset": {"as_int": 0}, "layout": 7}"#;
        let values = values.replace('M', meta);
        let x = r#"{"as_tensor": {"name": "x"}}"#;
        let y = format!(r#"{{"as_tensor": {{"name": "v{}"}}}}"#, n - 1);
        let json = format!(
            r#"{{"graph_module": {{"graph": {{"inputs": [{x}], "outputs": [{y}], "nodes": [{nodes}], "tensor_values": {values}}}}}, "signature": {{"input_specs": [{{"user_input": {{"arg": {x}}}}}], "output_specs": [{{"user_output": {{"arg": {y}}}}}]}}}}, "schema_version": {{"major": 8, "minor": 17}}}}"#
        );
        edit("conditions", "models/model.json", |_| json.into_bytes())
    };
    // Time on the processor where the system tells it: other work on the machine must not count.
    let clock = || -> u64 {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
        let first = text.split(' ').next().and_then(|v| v.parse().ok());
        first.unwrap_or_else(|| start_of_test.elapsed().as_nanos() as u64)
    };
    let time = |n: usize| {
        let archive = chain(n);
        let start = clock();
        let m = import(archive).unwrap();
        assert_eq!(m.graph.nodes.len(), n);
        (clock() - start) as f64 / 1e6
    };
    time(100);
    let (small, large) = (time(2_000), time(20_000));
    eprintln!("2,000 nodes {small:.1} ms, 20,000 nodes {large:.1} ms");
    // Ten times the nodes; a quadratic reader would take a hundred times as long.
    assert!(large < small * 30.0 + 20.0, "{small:.1} ms, {large:.1} ms");
}
