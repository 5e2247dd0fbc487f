//! Random numbers that kernels draw themselves.
//!
//! Operators that draw have two parameters beyond PyTorch's, which only this file fills in: `seed`,
//! a tensor of one `i64`, and `stream`, a number per call. A random number is a function of seed,
//! stream and position in the result. Tiling, vectorisation, threads, fusion and recomputation do
//! not change it. Without a seed the rows refuse, so that a caller inside PyTorch can let PyTorch
//! draw.
//!
//! Numbers are counter-based (see docs/random.md): the generator's counter is made of stream
//! and position, its key of the seed. There is no state to carry between elements, hence no
//! order among them. Two calls of one graph draw different numbers because they have
//! different streams, and two runs because the seed moves on.

use crate::bind;
use inrush_base::DType;
use inrush_graph::{
    Arg, Graph, Input, InputKind, Node, Output, OutputKind, OutputValue, TensorType, Type, ValueId,
};

/// The operator that gives a graph inside PyTorch its seed: called once for each call of the graph, before everything else.
pub const SEED_OPERATOR: &str = "inrush.seed.default";

/// Streams that one operator may use, one for each word that an element needs.
const STREAMS: i64 = 8;

/// Returns true if a node draws random numbers that a kernel can draw.
#[must_use]
pub fn draws(node: &Node) -> bool {
    let Some(op) = bind::signature(&node.op) else {
        return false;
    };
    let schema = op.schema();
    if schema.position("seed").is_none() {
        return false;
    }
    // Dropout of evaluation draws nothing. A schema without such a parameter always draws.
    let trains = ["train", "training"]
        .iter()
        .find_map(|name| schema.position(name))
        .is_none_or(|at| node.args.get(at) != Some(&Arg::Bool(false)));
    let given = |name: &str| {
        let at = schema.position(name);
        at.and_then(|at| node.args.get(at))
            .is_some_and(|a| *a != Arg::None)
    };
    // A generator of the user's own has a state that only PyTorch can advance.
    op.row.draws() && trains && !given("generator") && !given("seed")
}

/// Returns true if any node draws.
pub fn needed(graph: &Graph) -> bool {
    graph.nodes.iter().any(draws)
}

/// Gives every node that draws the seed and a stream of its own.
/// Streams are handed out in order of nodes, so that equal graphs draw equal numbers.
fn distribute(graph: &mut Graph, seed: ValueId) {
    let exprs = &graph.exprs;
    let mut stream = 0;
    for node in graph.nodes.iter_mut().filter(|n| draws(n)) {
        let Some(op) = bind::signature(&node.op) else {
            continue;
        };
        let schema = op.schema();
        // Mistakes in the arguments are reported where they are checked.
        let Ok(mut args) = bind::complete(exprs, schema, node.args.clone()) else {
            continue;
        };
        if let (Some(s), Some(k)) = (schema.position("seed"), schema.position("stream")) {
            args[s] = Arg::Value(seed);
            args[k] = Arg::Int(exprs.int(stream));
            node.args = args;
            stream += STREAMS;
        }
    }
}

/// One `i64` in memory, so that a captured or recorded call reads the new seed without being
/// rebuilt.
fn seed_type(graph: &Graph) -> Type {
    let one = graph.exprs.int(1);
    Type::Tensor(TensorType::contiguous(&graph.exprs, DType::I64, vec![one]))
}

/// Puts a node of [`SEED_OPERATOR`] first and has every node that draws use it. For graphs that run inside PyTorch.
pub fn seed_by_call(graph: &mut Graph) {
    let ty = seed_type(graph);
    let seed = graph.add_value("random_seed", ty);
    distribute(graph, seed);
    graph.nodes.insert(
        0,
        Node {
            op: SEED_OPERATOR.into(),
            args: Vec::new(),
            outs: vec![seed],
            line: None,
            made_for: None,
        },
    );
}

/// Makes the seed a buffer of the model with this name, which each call leaves one higher. For graphs that run by themselves;
/// does nothing for a graph that draws nothing.
pub fn seed_by_state(graph: &mut Graph, buffer: &str) {
    if !needed(graph) {
        return;
    }
    let ty = seed_type(graph);
    let seed = graph.add_value("random_seed", ty.clone());
    let next = graph.add_value("random_seed_next", ty);
    distribute(graph, seed);
    let input = graph.inputs.len();
    graph.inputs.push(Input::new(
        seed,
        InputKind::Buffer {
            name: buffer.into(),
            persistent: true,
        },
    ));
    let one = graph.exprs.int(1);
    graph.nodes.push(Node {
        op: "aten.add.Tensor".into(),
        args: vec![Arg::Value(seed), Arg::Int(one)],
        outs: vec![next],
        line: None,
        made_for: None,
    });
    // The step is an output of the graph, so that the seed moves on in the call that used it.
    graph.outputs.push(Output {
        value: OutputValue::Value(next),
        kind: OutputKind::Mutation { input },
    });
}
