//! The plan of a run that was rolled up is the plan of the whole graph.

use super::{expand_blocks, fold_blocks};
use crate::{Options, Pipeline};
use inrush_base::{Caps, Isa};
use inrush_graph::Graph;
use inrush_sched::Plan;
use std::fmt::Write;

fn graph(text: &str) -> Graph {
    let (caps, options) = (Caps::cpu(Isa::Avx2, 2), verified());
    let mut observer = ();
    let mut pipeline = Pipeline::new(&caps, &options, &mut observer);
    inrush_graph::text::parse(text)
        .and_then(|g| pipeline.normalize(g))
        .and_then(|g| pipeline.rewrite(g))
        .expect("a graph")
}

/// The outcome for a graph.
enum Outcome {
    /// There is no run of blocks.
    NoRun,
    /// The plan of the short graph does not repeat.
    NotAlike,
    Rolled(Box<Plan>),
}

fn rolled(text: &str, caps: &Caps) -> Outcome {
    let options = inrush_sched::Options::default();
    let mut whole = graph(text);
    let Some((short, folded)) = fold_blocks(&mut whole) else {
        return Outcome::NoRun;
    };
    let mut marks = folded.marks();
    let short = inrush_aten::decompose_marked(short, &mut marks).expect("decomposes");
    let (loops, marks) =
        inrush_aten::lower_marked(short, inrush_aten::Processor::of(caps), &marks).expect("lowers");
    let mut plan = inrush_sched::fuse(loops, caps, &options).expect("fuses");
    inrush_sched::layout(&mut plan, caps, &options).expect("arranges");
    match expand_blocks(&whole, &folded, &marks, plan) {
        Err(_) => Outcome::NotAlike,
        Ok(mut plan) => {
            inrush_sched::plan_memory(&mut plan).expect("plans memory");
            inrush_sched::verify(&plan).expect("a good plan");
            Outcome::Rolled(Box::new(plan))
        }
    }
}

fn devices() -> [Caps; 3] {
    [
        Caps::cpu(Isa::Avx2, 2),
        Caps::cpu(Isa::Avx512, 64),
        inrush_devices::model("h100").expect("a preset"),
    ]
}

/// Rolls a graph up and compares with the plan of the whole.
fn same(text: &str) {
    for caps in devices() {
        let (rolled, straight) = both(text, &caps).expect("rolled up");
        assert_eq!(rolled.print(), straight.print());
        let refusals =
            |p: &Plan| -> Vec<String> { p.refusals.iter().map(|r| p.show_refusal(r)).collect() };
        assert_eq!(refusals(&rolled), refusals(&straight));
    }
}

fn verified() -> Options {
    Options {
        verify: true,
        ..Options::default()
    }
}

/// The plan of a graph that was rolled up, and that of the whole; `None` where it is not rolled up.
fn both(text: &str, caps: &Caps) -> Option<(Box<Plan>, Plan)> {
    let Outcome::Rolled(plan) = rolled(text, caps) else {
        return None;
    };
    let (mut straight, _) = Pipeline::new(caps, &verified(), &mut ())
        .straight(graph(text))
        .expect("compiles");
    inrush_sched::plan_memory(&mut straight).expect("plans memory");
    Some((plan, straight))
}

/// Text of a graph in the making.
struct Text(String, usize);

impl Text {
    fn new() -> Text {
        Text("graph t\nline0: \"model.py:1 in forward\"\n".into(), 0)
    }
    fn add(&mut self, ty: &str, source: &str) -> usize {
        let k = self.1;
        self.1 += 1;
        writeln!(self.0, "%{k} v{k}: {ty} = {source}").expect("a string");
        k
    }
    fn end(mut self, outputs: &[usize]) -> String {
        for (k, v) in outputs.iter().enumerate() {
            writeln!(self.0, "output {k}: %{v}").expect("a string");
        }
        self.0
    }
}

const T: &str = "f32[8, 32]";

/// Product, bias, activation, residual, norm; the weights of a block are those of number `w(block)`.
fn blocks(
    count: usize,
    weights: usize,
    sources: &str,
    end: impl Fn(&[usize]) -> Vec<usize>,
) -> String {
    let mut t = Text::new();
    let mut x = t.add(T, "input 0");
    let (g, b) = (
        t.add("f32[32]", "parameter g"),
        t.add("f32[32]", "parameter b"),
    );
    let ws: Vec<usize> = (0..weights)
        .map(|k| match sources {
            "input" => t.add("f32[32, 32]", &format!("input {}", k + 1)),
            _ => t.add("f32[32, 32]", &format!("{sources} w{k}")),
        })
        .collect();
    let mut results = Vec::new();
    for k in 0..count {
        let w = ws[k % weights];
        let y = t.add(T, &format!("aten.linear.default(%{x}, %{w}, %{b})"));
        let y = t.add(T, &format!("aten.gelu.default(%{y}, \"none\")"));
        let y = t.add(T, &format!("aten.add.Tensor(%{x}, %{y}, 1)"));
        let y = t.add(
            T,
            &format!("aten.layer_norm.default(%{y}, [32], %{g}, %{b}, 1e-5, false)"),
        );
        x = t.add(T, &format!("aten.softmax.int(%{y}, 1)"));
        results.push(x);
    }
    t.end(&end(&results))
}

fn last(results: &[usize]) -> Vec<usize> {
    results.last().copied().into_iter().collect()
}

#[test]
fn blocks_with_weights_of_their_own() {
    same(&blocks(14, 14, "parameter", last));
    same(&blocks(14, 14, "input", last));
}

#[test]
fn blocks_that_share_weights() {
    same(&blocks(14, 1, "parameter", last));
    same(&blocks(14, 3, "parameter", last));
}

#[test]
fn results_of_blocks_at_the_ends_may_be_read_later() {
    same(&blocks(14, 14, "parameter", |r| vec![r[0], r[12], r[13]]));
}

/// As in the forward graph of a training step.
#[test]
fn all_blocks_may_give_outputs() {
    same(&blocks(14, 14, "input", <[usize]>::to_vec));
    same(&blocks(14, 14, "input", |r| {
        r.iter().rev().copied().collect()
    }));
    // Outputs of the first blocks and the last one alone.
    same(&blocks(14, 14, "input", |r| r[..13].to_vec()));
}

/// One output twice: the second is a copy.
#[test]
fn outputs_that_are_copies() {
    let twice = |r: &[usize]| r.iter().flat_map(|v| [*v, *v]).collect();
    let text = blocks(14, 14, "input", twice);
    let caps = Caps::cpu(Isa::Avx2, 2);
    if let Outcome::Rolled(_) = rolled(&text, &caps) {
        same(&text);
    }
}

#[test]
fn a_result_of_an_inner_block_that_is_an_output_ends_the_run() {
    let text = blocks(14, 14, "parameter", |r| vec![r[6], r[13]]);
    let caps = Caps::cpu(Isa::Avx2, 2);
    assert!(!matches!(rolled(&text, &caps), Outcome::Rolled(_)));
    // Behind it there are enough blocks again.
    same(&blocks(20, 20, "parameter", |r| vec![r[3], r[19]]));
}

/// A chain of pointwise operators becomes one kernel after the other of many operators each, blocks or not.
#[test]
fn what_is_fused_across_blocks_is_not_repeated() {
    let mut t = Text::new();
    let (mut a, mut x) = (t.add(T, "input 0"), t.add(T, "input 1"));
    for k in 0..200 {
        let op = ["mul.Tensor", "maximum.default"][k % 2];
        let y = t.add(T, &format!("aten.{op}(%{x}, %{a})"));
        (a, x) = (x, y);
    }
    let caps = Caps::cpu(Isa::Avx2, 2);
    assert!(matches!(rolled(&t.end(&[x]), &caps), Outcome::NotAlike));
}

/// Each block reads the results of the two blocks before it: the first is like no other.
#[test]
fn blocks_that_read_further_back() {
    let mut t = Text::new();
    let w = t.add("f32[32, 32]", "parameter w");
    let (mut a, mut x) = (t.add(T, "input 0"), t.add(T, "input 1"));
    for _ in 0..20 {
        let y = t.add(T, &format!("aten.mm.default(%{x}, %{w})"));
        let z = t.add(T, &format!("aten.mm.default(%{a}, %{w})"));
        let y = t.add(T, &format!("aten.sub.Tensor(%{y}, %{z}, 1)"));
        let y = t.add(T, &format!("aten.softmax.int(%{y}, 1)"));
        (a, x) = (x, y);
    }
    let caps = Caps::cpu(Isa::Avx2, 2);
    assert!(!matches!(rolled(&t.end(&[x]), &caps), Outcome::Rolled(_)));
}

/// The last operators read a result of a block that would be left out.
#[test]
fn inner_results_that_are_read_behind_the_run() {
    let mut t = Text::new();
    let w = t.add("f32[32, 32]", "parameter w");
    let mut xs = vec![t.add(T, "input 0")];
    for k in 0..20 {
        let y = t.add(T, &format!("aten.mm.default(%{}, %{w})", xs[k]));
        let y = t.add(T, &format!("aten.sigmoid.default(%{y})"));
        xs.push(t.add(T, &format!("aten.softmax.int(%{y}, 1)")));
    }
    let y = t.add(T, &format!("aten.mm.default(%{}, %{w})", xs[9]));
    let y = t.add(T, &format!("aten.sub.Tensor(%{y}, %{}, 1)", xs[20]));
    let caps = Caps::cpu(Isa::Avx2, 2);
    assert!(matches!(rolled(&t.end(&[y]), &caps), Outcome::NoRun));
}

/// Each block computes something of its weight alone, which runs when weights are loaded.
#[test]
fn blocks_with_work_at_load() {
    let mut t = Text::new();
    let mut x = t.add(T, "input 0");
    let ws: Vec<usize> = (0..16)
        .map(|k| t.add("f32[32, 32]", &format!("parameter w{k}")))
        .collect();
    for w in ws {
        let w = t.add("f32[32, 32]", &format!("aten.exp.default(%{w})"));
        let w = t.add("f32[32, 32]", &format!("aten.softmax.int(%{w}, 1)"));
        let y = t.add(T, &format!("aten.mm.default(%{x}, %{w})"));
        x = t.add(T, &format!("aten.softmax.int(%{y}, 1)"));
    }
    same(&t.end(&[x]));
}

/// An input that an inner block reads gets new contents, which depend on nothing in the blocks.
#[test]
fn inputs_that_are_overwritten() {
    let text = |inputs: usize, target: usize| {
        let mut t = Text::new();
        let mut x = t.add(T, "input 0");
        let ws: Vec<usize> = (0..inputs)
            .map(|k| t.add("f32[32, 32]", &format!("input {}", k + 1)))
            .collect();
        let new = t.add("f32[32, 32]", &format!("aten.exp.default(%{})", ws[target]));
        for k in 0..16 {
            let w = ws[k % inputs];
            let y = t.add(T, &format!("aten.mm.default(%{x}, %{w})"));
            x = t.add(T, &format!("aten.softmax.int(%{y}, 1)"));
        }
        let mut text = t.end(&[x]);
        writeln!(text, "mutate {}: %{new}", target + 1).expect("a string");
        text
    };
    let caps = Caps::cpu(Isa::Avx2, 2);
    assert!(matches!(rolled(&text(16, 7), &caps), Outcome::NoRun));
    // Only the first block reads the one that is overwritten, or all of them do.
    for text in [text(16, 0), text(1, 0)] {
        if let Outcome::Rolled(plan) = rolled(&text, &caps) {
            let straight = Pipeline::new(&caps, &verified(), &mut ()).straight(graph(&text));
            assert_eq!(plan.print(), straight.expect("compiles").0.print());
        }
    }
}

#[test]
fn sizes_may_be_symbolic() {
    same(&symbolic(&blocks(14, 14, "parameter", last)));
}

/// The rows of the text's inputs are `s`.
fn symbolic(text: &str) -> String {
    let sizes = [
        ("[8", "[s"),
        ("(8", "(s"),
        (" 8,", " s,"),
        (" 8]", " s]"),
        ("[256", "[32*s"),
    ];
    let text = (sizes.iter()).fold(text.to_string(), |text, (from, to)| text.replace(from, to));
    text.replacen("graph t\n", "graph t\nsize s in [1, 64] hint 8\n", 1)
}

/// Attention of two heads in blocks, and once more after them. `mask` makes each block's mask, of type `bool[8, 8]`.
fn masked(mask: impl Fn(&mut Text, usize) -> usize) -> String {
    let (rows, scores) = ("f32[2, 8, 32]", "f32[2, 8, 8]");
    let mut t = Text::new();
    let mut x = t.add(rows, "input 0");
    let g = t.add("f32[32]", "parameter g");
    for k in 0..16 {
        t.add("i64[8, 8]", &format!("input {}", 16 + k));
    }
    for k in 0..15 {
        let w = t.add("f32[2, 32, 32]", &format!("input {}", k + 1));
        let q = t.add(rows, &format!("aten.bmm.default(%{x}, %{w})"));
        let back = t.add(
            "f32[2, 32, 8] strides [256, 1, 32]",
            &format!("aten.transpose.int(%{x}, 1, 2)"),
        );
        let a = t.add(scores, &format!("aten.bmm.default(%{q}, %{back})"));
        let mask = mask(&mut t, k);
        let a = t.add(
            scores,
            &format!("aten.where.ScalarOther(%{mask}, %{a}, -1e9)"),
        );
        let a = t.add(scores, &format!("aten.softmax.int(%{a}, 2)"));
        let y = t.add(rows, &format!("aten.bmm.default(%{a}, %{x})"));
        let y = match k {
            14 => t.add(rows, &format!("aten.tanh.default(%{y})")),
            _ => y,
        };
        let y = t.add(rows, &format!("aten.add.Tensor(%{x}, %{y}, 1)"));
        x = t.add(
            rows,
            &format!("aten.layer_norm.default(%{y}, [32], %{g}, none, 1e-5, false)"),
        );
    }
    t.end(&[x])
}

/// A causal mask, of the size alone.
fn causal(t: &mut Text, _: usize) -> usize {
    let kind = "dtype.i64, none, none, none";
    let at = t.add("i64[8]", &format!("aten.arange.default(8, {kind})"));
    let row = t.add("i64[8, 1]", &format!("aten.unsqueeze.default(%{at}, 1)"));
    t.add("bool[8, 8]", &format!("aten.le.Tensor(%{at}, %{row})"))
}

/// A mask that depends on what all blocks read and on an input of the block, and is too dear to be computed twice.
fn running(t: &mut Text, k: usize) -> usize {
    let all = format!("aten.add.Tensor(%2, %{}, 1)", 3 + k);
    let all = t.add("i64[8, 8]", &all);
    let most = t.add(
        "i64[8, 8]",
        &format!("aten.cumsum.default(%{all}, 1, none)"),
    );
    t.add("bool[8, 8]", &format!("aten.gt.Scalar(%{most}, 3)"))
}

#[test]
fn masks_that_blocks_share() {
    same(&masked(causal));
    same(&symbolic(&masked(causal)));
}

/// Masks of all blocks are made by one kernel, which is none that repeats.
#[test]
fn masks_of_blocks_that_are_made_together() {
    for text in [masked(running), symbolic(&masked(running))] {
        for caps in devices() {
            assert!(matches!(rolled(&text, &caps), Outcome::NotAlike), "{text}");
        }
    }
}

/// Numbers from a seed (a linear congruential generator; the upper bits are good enough to choose by).
struct Choice(u64);

impl Choice {
    fn below(&mut self, n: usize) -> usize {
        self.0 = (self.0.wrapping_mul(6364136223846793005)).wrapping_add(1442695040888963407);
        (self.0 >> 33) as usize % n
    }
}

/// Calls on tensors of type [`T`], on what the block before gave, on inputs of all blocks and of its own.
#[derive(Clone)]
struct Program(Vec<(usize, usize, usize)>);

impl Program {
    fn draw(c: &mut Choice) -> Program {
        let calls = 3 + c.below(7);
        Program(
            (0..calls)
                .map(|_| (c.below(14), c.below(64), c.below(64)))
                .collect(),
        )
    }

    /// Writes one block that reads `values`, and gives what it made. `w` is a matrix, `b` a row.
    fn write(&self, t: &mut Text, values: &[usize], w: usize, b: usize) -> Vec<usize> {
        let mut known = values.to_vec();
        for (op, left, right) in &self.0 {
            // Mostly what was made last.
            let at = |k: usize| match k % 3 {
                0 => known[k / 3 % known.len()],
                _ => known[known.len() - 1],
            };
            let (x, y) = (at(*left), at(*right));
            let made = match op {
                0 => t.add(T, &format!("aten.sigmoid.default(%{x})")),
                1 => t.add(T, &format!("aten.add.Tensor(%{x}, %{y}, 1)")),
                2 => t.add(T, &format!("aten.mul.Tensor(%{x}, %{b})")),
                3 => t.add(T, &format!("aten.softmax.int(%{x}, 1)")),
                4 => t.add(T, &format!("aten.softmax.int(%{x}, 0)")),
                5 => t.add(T, &format!("aten.cumsum.default(%{x}, 1, none)")),
                6 | 7 => t.add(T, &format!("aten.mm.default(%{x}, %{w})")),
                8 => t.add(T, &format!("aten.flip.default(%{x}, [1])")),
                9 => {
                    let most = t.add("f32[8, 1]", &format!("aten.amax.default(%{x}, [1], true)"));
                    t.add(T, &format!("aten.sub.Tensor(%{y}, %{most}, 1)"))
                }
                10 => {
                    let row = t.add("f32[32]", &format!("aten.exp.default(%{b})"));
                    let row = t.add("f32[32]", &format!("aten.softmax.int(%{row}, 0)"));
                    t.add(T, &format!("aten.add.Tensor(%{x}, %{row}, 1)"))
                }
                11 => {
                    let sums = t.add(
                        "f32[32]",
                        &format!("aten.sum.dim_IntList(%{x}, [0], false, none)"),
                    );
                    t.add(T, &format!("aten.maximum.default(%{y}, %{sums})"))
                }
                12 => {
                    let half = "f32[8, 16]";
                    let a = t.add(
                        &format!("{half} strides [32, 1]"),
                        &format!("aten.slice.Tensor(%{x}, 1, 0, 16, 1)"),
                    );
                    let b = t.add(
                        &format!("{half} strides [32, 1]"),
                        &format!("aten.slice.Tensor(%{y}, 1, 16, 32, 1)"),
                    );
                    let b = t.add(half, &format!("aten.neg.default(%{b})"));
                    t.add(T, &format!("aten.cat.default([%{b}, %{a}], 1)"))
                }
                _ => t.add(T, &format!("aten.gelu.default(%{x}, \"none\")")),
            };
            known.push(made);
        }
        known.split_off(values.len())
    }
}

/// Blocks drawn by chance, with something before and after them: what is rolled up is right, and enough is.
#[test]
fn blocks_drawn_by_chance() {
    let (mut rolled_up, all) = (0, 150);
    for seed in 0..all {
        let mut c = Choice(seed);
        let (block, other) = (Program::draw(&mut c), Program::draw(&mut c));
        let (count, sources) = (10 + c.below(8), ["parameter", "input"][c.below(2)]);
        let (around, wide, outputs) = (c.below(3), c.below(2), c.below(4));
        let mut t = Text::new();
        let (mut x, m) = (t.add(T, "input 0"), t.add(T, "input 1"));
        let source = |t: &mut Text, ty: &str, k: usize| match sources {
            "input" => t.add(ty, &format!("input {}", 2 + k)),
            _ => t.add(ty, &format!("parameter p{k}")),
        };
        let ws: Vec<usize> = (0..=count)
            .map(|k| source(&mut t, "f32[32, 32]", k))
            .collect();
        let bs: Vec<usize> = (0..=count)
            .map(|k| source(&mut t, "f32[32]", count + 1 + k))
            .collect();
        let mut p = m;
        if around > 0 {
            let made = other.write(&mut t, &[x, m], ws[count], bs[count]);
            (x, p) = (made[made.len() - 1], made[0]);
        }
        let mut given = Vec::new();
        for k in 0..count {
            let values: &[usize] = if wide > 0 { &[m, p, x] } else { &[m, x] };
            let made = block.write(&mut t, values, ws[k], bs[k]);
            x = made[made.len() - 1];
            if outputs == 1 {
                given.push(made[0]);
            }
        }
        if around > 1 {
            let made = other.write(&mut t, &[x, m], ws[count], bs[count]);
            x = made[made.len() - 1];
        }
        given.push(x);
        let text = t.end(&given);
        let text = if seed % 3 == 0 { symbolic(&text) } else { text };
        for (mut rolled, mut straight) in devices().iter().filter_map(|caps| both(&text, caps)) {
            // Which pairs are tried, and which of several reasons is met first, depends on how far apart two steps are.
            rolled.refusals.clear();
            straight.refusals.clear();
            assert_eq!(rolled.print(), straight.print(), "{text}");
            rolled_up += 1;
        }
    }
    assert!(rolled_up > all as usize, "{rolled_up} of {}", 3 * all);
}
