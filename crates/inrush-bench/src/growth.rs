//! How compile time grows: generated graphs of growing size, and processor time (of all threads) of each stage per operator.
//! The last columns are time on the wall, per operator of the graph and per node of what it decomposes into.

use crate::Args;
use crate::clock::{Mark, mark};
use crate::table::Table;
use inrush_base::{Caps, Isa, Result};
use inrush_cli::args::TargetArgs;
use inrush_cli::session;
use inrush_compile::{Observer, Options, Pipeline};
use serde_json::{Value, json};
use std::fmt::Write;
use std::time::Duration;

/// A stage: its name, processor time, time on the wall.
type Stage = (&'static str, Duration, Duration);

/// Collects the stages of one compilation.
struct Stages {
    /// Begin of the stage that runs.
    start: Mark,
    done: Vec<Stage>,
}

/// Returns a stage that began at `start` and ends now.
fn stage(name: &'static str, start: Mark) -> Stage {
    let span = start.span();
    (name, span.busy(), span.wall)
}

impl Observer for Stages {
    fn begin(&mut self, _stage: &'static str) {
        self.start = mark();
    }
    fn end(&mut self, stage: &'static str, _text: &dyn Fn() -> String) {
        self.done.push(self::stage(stage, self.start));
    }
}

/// Compiles generated graphs of growing size. Prints a table for each kind and returns the figures.
pub fn growth(a: &Args) -> Result<Value> {
    let caps = session::caps(&TargetArgs {
        target: "native".into(),
        threads: Some(a.threads()),
    })?;
    type Make = fn(usize) -> Text;
    // Each kind stresses another part: long fusions, products, shared operands, repeated blocks,
    // none.
    let kinds: [(&str, Make); 5] = [
        ("pointwise chain", pointwise),
        ("matmul chain", chain),
        ("shared weights", shared),
        ("transformer", transformer),
        ("no repeats", mixed),
    ];
    let mut report = Vec::new();
    for (kind, make) in kinds.into_iter().filter(|k| a.wants(k.0)) {
        let mut table: Option<Table> = None;
        for size in &a.sizes {
            eprintln!("compiling {kind}, {size} operators");
            let text = make(*size);
            let (stages, kernels) = compile(&text.text, &caps, a.threads())?;
            let (operators, nodes) = (text.operators as f64, decomposed(&text.text)?);
            // Time for each operator: a constant column means that the stage is linear.
            let micros = |d: Duration| d.as_secs_f64() * 1e6 / operators;
            let each: Vec<(&str, f64)> = stages.iter().map(|s| (s.0, micros(s.1))).collect();
            let total: f64 = each.iter().filter(|e| e.0 != "parse").map(|e| e.1).sum();
            // Parsing the text form is no part of compiling.
            let behind = stages.iter().filter(|s| s.0 != "parse");
            let wall = micros(behind.map(|s| s.2).sum());
            let wall_of_node = wall * operators / nodes as f64;
            let table = table.get_or_insert_with(|| {
                let mut head = vec!["microseconds an operator", "operators", "nodes", "steps"];
                head.extend(each.iter().map(|e| e.0));
                head.extend(["compile", "wall", "a node"]);
                Table::new(&head)
            });
            let mut row = vec![
                kind.to_string(),
                text.operators.to_string(),
                nodes.to_string(),
                kernels.to_string(),
            ];
            row.extend(each.iter().map(|e| format!("{:.1}", e.1)));
            row.extend([total, wall, wall_of_node].map(|us| format!("{us:.1}")));
            table.row(row);
            let by_stage = |time: fn(&Stage) -> Duration| -> serde_json::Map<String, Value> {
                let one = |s: &Stage| (s.0.to_string(), micros(time(s)).into());
                stages.iter().map(one).collect()
            };
            report.push(json!({
                "graph": kind, "operators": text.operators, "nodes": nodes, "steps": kernels,
                "us_per_operator": by_stage(|s| s.1), "compile_us_per_operator": total,
                "wall_us_per_operator_by_stage": by_stage(|s| s.2), "wall_us_per_operator": wall,
                "wall_us_per_node": wall_of_node,
            }));
        }
        if let Some(t) = table {
            println!();
            t.print();
        }
    }
    Ok(report.into())
}

/// Returns the number of nodes after stage decompose.
fn decomposed(text: &str) -> Result<usize> {
    let (caps, options) = (Caps::cpu(Isa::Scalar, 1), Options::default());
    let mut observer = ();
    let mut pipeline = Pipeline::new(&caps, &options, &mut observer);
    let graph = pipeline.normalize(inrush_graph::text::parse(text)?)?;
    let graph = pipeline.rewrite(graph)?;
    Ok(pipeline.decompose(graph)?.nodes.len())
}

/// Stages (with the parser of the text form in front) and the number of steps of the program.
fn compile(text: &str, caps: &Caps, threads: usize) -> Result<(Vec<Stage>, usize)> {
    let start = mark();
    let graph = inrush_graph::text::parse(text)?;
    let mut stages = Stages {
        start,
        done: vec![stage("parse", start)],
    };
    let options = Options {
        pieces: 2,
        threads,
        ..Options::default()
    };
    let compiled = inrush_compile::compile(graph, caps, &options, &mut stages)?;
    Ok((stages.done, compiled.program.steps.len()))
}

/// A graph in text form that grows by calls.
struct Text {
    /// Lines so far.
    text: String,
    /// Numbers given out.
    values: usize,
    operators: usize,
}

impl Text {
    fn new() -> Text {
        Text {
            text: "graph generated\n".into(),
            values: 0,
            operators: 0,
        }
    }

    /// A value that no operator makes.
    fn given(&mut self, ty: &str, source: &str) -> usize {
        let id = self.values;
        let _ = writeln!(self.text, "%{id} v{id}: {ty} = {source}");
        self.values += 1;
        id
    }

    /// Adds a weight.
    fn weight(&mut self, ty: &str) -> usize {
        let name = format!("parameter w{}", self.values);
        self.given(ty, &name)
    }

    /// Adds an operator's call.
    fn call(&mut self, ty: &str, call: &str) -> usize {
        self.operators += 1;
        self.given(ty, call)
    }

    /// Ends the graph.
    fn output(mut self, value: usize) -> Text {
        let _ = writeln!(self.text, "output 0: %{value}");
        self
    }
}

/// Nothing but pointwise operators, each on the one before and the one before that.
fn pointwise(operators: usize) -> Text {
    const T: &str = "f32[64, 64]";
    let mut t = Text::new();
    let mut before = t.given(T, "input 0");
    let mut x = t.given(T, "input 1");
    let calls = ["add.Tensor", "mul.Tensor", "maximum.default", "sub.Tensor"];
    for i in 0..operators {
        let call = match calls[i % 4] {
            c @ ("add.Tensor" | "sub.Tensor") => format!("aten.{c}(%{x}, %{before}, 1)"),
            c => format!("aten.{c}(%{x}, %{before})"),
        };
        (before, x) = (x, t.call(T, &call));
    }
    t.output(x)
}

/// Blocks of product, bias, activation and residual, each with weights of its own.
fn chain(operators: usize) -> Text {
    const T: &str = "f32[8, 32]";
    let mut t = Text::new();
    let blocks = operators.div_ceil(4);
    let mut x = t.given(T, "input 0");
    let weights: Vec<(usize, usize)> = (0..blocks)
        .map(|_| (t.weight("f32[32, 32]"), t.weight("f32[32]")))
        .collect();
    for (w, b) in weights {
        let y = t.call(T, &format!("aten.mm.default(%{x}, %{w})"));
        let y = t.call(T, &format!("aten.add.Tensor(%{y}, %{b}, 1)"));
        let y = t.call(T, &format!("aten.gelu.default(%{y}, \"none\")"));
        x = t.call(T, &format!("aten.add.Tensor(%{x}, %{y}, 1)"));
    }
    t.output(x)
}

/// Blocks of product, bias, activation, residual and norm that all read the same few weights.
fn shared(operators: usize) -> Text {
    const T: &str = "f32[8, 32]";
    let mut t = Text::new();
    let mut x = t.given(T, "input 0");
    let weights: Vec<usize> = (0..4).map(|_| t.weight("f32[32, 32]")).collect();
    let (b, g) = (t.weight("f32[32]"), t.weight("f32[32]"));
    for block in 0..operators.div_ceil(5) {
        let w = weights[block % weights.len()];
        let y = t.call(T, &format!("aten.mm.default(%{x}, %{w})"));
        let y = t.call(T, &format!("aten.add.Tensor(%{y}, %{b}, 1)"));
        let y = t.call(T, &format!("aten.gelu.default(%{y}, \"none\")"));
        let y = t.call(T, &format!("aten.add.Tensor(%{x}, %{y}, 1)"));
        x = t.call(
            T,
            &format!("aten.layer_norm.default(%{y}, [32], %{g}, %{b}, 1e-5, false)"),
        );
    }
    t.output(x)
}

/// Operators without any period, so that nothing is planned once for several: what small graphs of real models cost.
fn mixed(operators: usize) -> Text {
    const T: &str = "f32[8, 32]";
    let mut t = Text::new();
    let mut x = t.given(T, "input 0");
    let mut earlier = x;
    let weights: Vec<(usize, usize)> = (0..operators.div_ceil(4))
        .map(|_| (t.weight("f32[32, 32]"), t.weight("f32[32]")))
        .collect();
    // Numbers that look random and are the same in every run.
    let mut state = 1u32;
    let mut below = |n: u32| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 16) % n
    };
    for k in 0..operators {
        let (w, b) = weights[k % weights.len()];
        let call = match below(6) {
            0 => format!("aten.mm.default(%{x}, %{w})"),
            1 => format!("aten.add.Tensor(%{x}, %{b}, 1)"),
            2 => format!("aten.gelu.default(%{x}, \"none\")"),
            3 => format!("aten.add.Tensor(%{x}, %{earlier}, 1)"),
            4 => format!("aten.layer_norm.default(%{x}, [32], %{b}, %{b}, 1e-5, false)"),
            _ => format!("aten.softmax.int(%{x}, -1, none)"),
        };
        let y = t.call(T, &call);
        if below(3) == 0 {
            earlier = x;
        }
        x = y;
    }
    t.output(x)
}

/// Weights of one block: two norms, the four linear layers.
fn block_weights(t: &mut Text) -> Vec<usize> {
    let types = [
        "f32[64]",
        "f32[64]",
        "f32[192, 64]",
        "f32[192]",
        "f32[64, 64]",
        "f32[64]",
        "f32[64]",
        "f32[64]",
        "f32[256, 64]",
        "f32[256]",
        "f32[64, 256]",
        "f32[64]",
    ];
    types.iter().map(|ty| t.weight(ty)).collect()
}

/// Blocks of attention and perceptron with their norms and residuals.
fn transformer(operators: usize) -> Text {
    const T: &str = "f32[1, 16, 64]";
    const HEADS: &str = "f32[1, 4, 16, 16] strides [3072, 16, 192, 1]";
    let mut t = Text::new();
    let blocks = operators.div_ceil(15);
    let mut x = t.given(T, "input 0");
    let weights: Vec<Vec<usize>> = (0..blocks).map(|_| block_weights(&mut t)).collect();
    for w in weights {
        let norm = |x: usize, at: usize| {
            let (g, b) = (w[at], w[at + 1]);
            format!("aten.layer_norm.default(%{x}, [64], %{g}, %{b}, 1e-5, false)")
        };
        let linear =
            |x: usize, at: usize| format!("aten.linear.default(%{x}, %{}, %{})", w[at], w[at + 1]);
        let h = t.call(T, &norm(x, 0));
        let h = t.call("f32[1, 16, 192]", &linear(h, 2));
        let h = t.call(
            "f32[1, 16, 3, 4, 16]",
            &format!("aten.reshape.default(%{h}, [1, 16, 3, 4, 16])"),
        );
        let h = t.call(
            "f32[3, 1, 4, 16, 16] strides [64, 3072, 16, 192, 1]",
            &format!("aten.permute.default(%{h}, [2, 0, 3, 1, 4])"),
        );
        let (q, k) = (t.values, t.values + 1);
        t.values += 2;
        let _ = write!(t.text, "%{q} v{q}: {HEADS}, %{k} v{k}: {HEADS}, ");
        let v = t.call(HEADS, &format!("aten.unbind.int(%{h}, 0)"));
        let h = t.call(
            "f32[1, 4, 16, 16] strides [1024, 16, 64, 1]",
            &format!("aten.scaled_dot_product_attention.default(%{q}, %{k}, %{v}, none, 0.0, false, none, false)"),
        );
        let h = t.call(
            "f32[1, 16, 4, 16]",
            &format!("aten.transpose.int(%{h}, 1, 2)"),
        );
        let h = t.call(T, &format!("aten.reshape.default(%{h}, [1, 16, 64])"));
        let h = t.call(T, &linear(h, 4));
        x = t.call(T, &format!("aten.add.Tensor(%{x}, %{h}, 1)"));
        let h = t.call(T, &norm(x, 6));
        let h = t.call("f32[1, 16, 256]", &linear(h, 8));
        let h = t.call(
            "f32[1, 16, 256]",
            &format!("aten.gelu.default(%{h}, \"none\")"),
        );
        let h = t.call(T, &linear(h, 10));
        x = t.call(T, &format!("aten.add.Tensor(%{x}, %{h}, 1)"));
    }
    t.output(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generated_graphs_compile() {
        let caps = Caps::cpu(inrush_base::Isa::Avx2, 2);
        for (make, products) in [
            (pointwise as fn(usize) -> Text, 1),
            (chain, 15),
            (shared, 12),
            (transformer, 4 * 6),
            (mixed, 5),
        ] {
            let text = make(60);
            assert_eq!(text.operators, 60);
            assert!(decomposed(&text.text).unwrap() >= 60);
            let (stages, steps) = compile(&text.text, &caps, 2).unwrap();
            assert_eq!(stages.len(), 10);
            assert!(steps >= products, "{steps} steps");
        }
    }
}
