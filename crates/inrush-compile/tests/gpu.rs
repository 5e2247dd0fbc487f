//! Launches of programs for GPUs.

use inrush_base::Error;
use inrush_compile::{Candidate, Compiled, Observer, Options, Tile, Tuner, compile};
use inrush_program::Step;

fn compiled(text: &str, observer: &mut dyn Observer) -> Result<Compiled, Error> {
    let graph = inrush_graph::text::parse(text)?;
    let caps = inrush_devices::model("h100").expect("a preset");
    compile(graph, &caps, &Options::default(), observer)
}

/// Titles of the kernels in the order of the launches.
fn launches(c: &Compiled) -> Vec<&str> {
    (c.program.steps.iter())
        .map(|s| match s {
            Step::Launch(l) => c.program.kernels[l.kernel as usize].title.as_str(),
            Step::Contract(_) | Step::Library(_) => "a step of the CPU",
        })
        .collect()
}

/// A step of momentum for each of `lengths`.
fn optimiser(lengths: &[i64]) -> String {
    let n = lengths.len();
    let mut text = String::from("graph t\n");
    for (k, length) in lengths.iter().enumerate() {
        for (i, name) in ["p", "g", "m"].iter().enumerate() {
            let value = 3 * k + i;
            text.push_str(&format!(
                "%{value} {name}{k}: f32[{length}] = input {value}\n"
            ));
        }
    }
    for (k, length) in lengths.iter().enumerate() {
        let (p, g, m) = (3 * k, 3 * k + 1, 3 * k + 2);
        let at = 3 * n + 3 * k;
        text.push_str(&format!(
            "%{at} a{k}: f32[{length}] = aten.mul.Tensor(%{m}, 0.9)\n\
             %{} b{k}: f32[{length}] = aten.add.Tensor(%{at}, %{g}, 1)\n\
             %{} c{k}: f32[{length}] = aten.sub.Tensor(%{p}, %{}, 0.1)\n",
            at + 1,
            at + 2,
            at + 1,
        ));
    }
    for k in 0..n {
        let at = 3 * n + 3 * k;
        text.push_str(&format!("output {}: %{}\n", 2 * k, at + 1));
        text.push_str(&format!("output {}: %{}\n", 2 * k + 1, at + 2));
    }
    text
}

#[test]
fn an_optimisers_step_is_one_launch() {
    // Large and small, and one that does not end at a multiple of what a thread loads.
    let c = compiled(&optimiser(&[768 * 3072, 768, 3072, 1000, 7]), &mut ()).expect("compiles");
    assert_eq!(launches(&c).len(), 1);
    let text = &c.kernels[0].text;
    // All of one kind have one copy of the code, but for that end.
    assert!(
        text.contains("_part1(") && !text.contains("_part2("),
        "{text}"
    );
    assert_eq!(c.kernels[0].signature.len(), 5 * 5);
}

#[test]
fn many_tensors_are_several_launches() {
    let lengths: Vec<i64> = (0..150).map(|k| 16 * (k + 1)).collect();
    let c = compiled(&optimiser(&lengths), &mut ()).expect("compiles");
    assert_eq!(launches(&c).len(), 3);
    for k in &c.kernels {
        assert!(k.signature.len() <= 256);
    }
}

#[test]
fn what_depends_on_another_step_is_not_beside_it() {
    let c = compiled(
        "graph t
%0 x: f32[64, 32] = input 0
%1 y: f32[10, 20] = input 1
%2 a: f32[64] = aten.sum.dim_IntList(%0, [1], false, none)
%3 b: f32[] = aten.sum.default(%2, none)
%4 c: f32[20] = aten.amax.default(%1, [0], false)
%5 d: f32[64, 32] = aten.mul.Tensor(%0, %3)
output 0: %2
output 1: %4
output 2: %5
",
        &mut (),
    )
    .expect("compiles");
    let all = launches(&c);
    assert!(all.len() >= 2, "{all:?}");
    // The extreme of columns, which depends on nothing, is beside the first sums.
    assert!(all[0].ends_with("_and_1_more"), "{all:?}");
    assert!(all[1..].iter().all(|t| !t.contains("_more")), "{all:?}");
}

#[test]
fn offsets_beyond_32_bits_are_wide() {
    let graph = |rows: i64| {
        format!(
            "graph t
%0 x: i8[{rows}, 65536] = input 0
%1 y: i8[{rows}, 65536] = aten.add.Tensor(%0, %0, 1)
%2 z: i64[{rows}] = aten.sum.dim_IntList(%0, [1], false, dtype.i64)
output 0: %1
output 1: %2
"
        )
    };
    let wide = compiled(&graph(40000), &mut ()).expect("compiles");
    assert!(
        wide.kernels
            .iter()
            .all(|k| k.text.contains("tl.program_id(0).to(tl.int64)"))
    );
    let narrow = compiled(&graph(4000), &mut ()).expect("compiles");
    assert!(
        narrow
            .kernels
            .iter()
            .all(|k| !k.text.contains("tl.program_id(0).to(tl.int64)"))
    );
}

/// Many warps are slow.
#[derive(Default)]
struct Watch {
    timed: usize,
    won: Vec<Tile>,
}

impl Tuner for Watch {
    fn known(&mut self, _rule: &Candidate) -> Option<Tile> {
        None
    }
    fn time(&mut self, candidates: &[Candidate]) -> Vec<Option<f64>> {
        self.timed += candidates.len();
        (candidates.iter())
            .map(|c| Some(c.kernel.warps as f64))
            .collect()
    }
    fn keep(&mut self, _rule: &Candidate, winner: Tile, before: f64, after: f64) {
        assert!(after <= before);
        self.won.push(winner);
    }
}

impl Observer for Watch {
    fn tuner(&mut self) -> Option<&mut dyn Tuner> {
        Some(self)
    }
}

#[test]
fn a_program_has_the_tiles_that_were_fastest() {
    let text = "graph t
%0 x: f32[4096, 4096] = input 0
%1 s: f32[4096, 4096] = aten.softmax.int(%0, -1, none)
output 0: %1
";
    let by_rule = compiled(text, &mut ()).expect("compiles");
    assert!(by_rule.kernels[0].warps > 2);
    let mut watch = Watch::default();
    let tuned = compiled(text, &mut watch).expect("compiles");
    assert!(watch.timed > 5 && watch.won.len() == 1);
    assert_eq!(tuned.kernels[0].warps, watch.won[0].warps);
    assert!(tuned.kernels[0].warps < by_rule.kernels[0].warps);
}

#[test]
fn products_and_attentions_are_tuned() {
    let product = "graph t
%0 x: bf16[1, 4096] = input 0
%1 w: bf16[4096, 4096] strides [1, 4096] = input 1
%2 y: bf16[1, 4096] = aten.mm.default(%0, %1)
output 0: %2
";
    let attention = "graph t
%0 q: bf16[4, 8, 512, 64] = input 0
%1 k: bf16[4, 8, 512, 64] = input 1
%2 v: bf16[4, 8, 512, 64] = input 2
%3 y: bf16[4, 8, 512, 64] = aten.scaled_dot_product_attention.default(%0, %1, %2)
output 0: %3
";
    for text in [product, attention] {
        let rule = compiled(text, &mut ()).expect("compiles").kernels;
        let mut watch = Watch::default();
        let tuned = compiled(text, &mut watch).expect("compiles").kernels;
        assert!(watch.timed > 5 && watch.won.len() == 1, "{rule:?}");
        assert!(tuned[0].warps < rule[0].warps, "{tuned:?}");
    }
}

/// The text of the one kernel of a function of the rows of `x: f32[400, 50257]`.
fn of_rows(operators: &str) -> String {
    let text = format!("graph t\n%0 x: f32[400, 50257] = input 0\n{operators}");
    let c = compiled(&text, &mut ()).expect("compiles");
    assert_eq!(launches(&c).len(), 1, "{operators}");
    c.kernels[0].text.clone()
}

#[test]
fn long_rows_are_walked_once_for_a_softmaxs_maximum_and_sum() {
    let walks = |text: &str| text.matches(" in range(0, 50257, RBLOCK):").count();
    let softmax = "%1 y: f32[400, 50257] = aten.softmax.int(%0, -1, none)\noutput 0: %1\n";
    let softmax = of_rows(softmax);
    assert_eq!(walks(&softmax), 2, "{softmax}");
    // The second walk begins where the first ended.
    assert_eq!(softmax.matches("for rback in ").count(), 1, "{softmax}");
    let one = of_rows("%1 y: f32[400] = aten.logsumexp.default(%0, [1], false)\noutput 0: %1\n");
    assert_eq!(walks(&one), 1, "{one}");
    assert!(!one.contains("rback"), "{one}");
}

#[test]
fn walks_whose_order_matters_go_forward() {
    // Running sums of a row less its mean.
    let text = of_rows(
        "%1 m: f32[400, 1] = aten.mean.dim(%0, [1], true, none)\n\
         %2 d: f32[400, 50257] = aten.sub.Tensor(%0, %1, 1)\n\
         %3 y: f32[400, 50257] = aten.cumsum.default(%2, 1, none)\n\
         output 0: %3\n",
    );
    assert!(
        text.contains("associative_scan") && !text.contains("rback"),
        "{text}"
    );
}

/// The text of the kernel that normalises rows of `sizes` with weights.
fn of_norm(dtype: &str, rows: i64, length: i64) -> String {
    let row = format!("{dtype}[{rows}, {length}]");
    let weight = format!("{dtype}[{length}]");
    let c = compiled(
        &format!(
            "graph t\n%0 x: {row} = input 0\n%1 w: {weight} = input 1\n%2 b: {weight} = input 2\n\
             %3 y: {row} = aten.layer_norm.default(%0, [{length}], %1, %2, 1e-5, true)\noutput 0: %3\n"
        ),
        &mut (),
    );
    let c = c.expect("compiles");
    assert_eq!(launches(&c).len(), 1, "{row}");
    c.kernels[0].text.clone()
}

#[test]
fn rows_that_begin_anywhere_move_as_their_narrowest_access() {
    // What lies beside an element belongs to the next thread, although vectors of weights could be read.
    for (rows, length) in [(400, 50257), (16383, 4095)] {
        let text = of_norm("bf16", rows, length);
        assert!(text.contains("tl.max_contiguous("), "{text}");
    }
    assert!(of_norm("bf16", 400, 50260).contains("tl.arange(0, RBLOCK), 4)"));
    assert!(!of_norm("bf16", 400, 50264).contains("max_contiguous"));
    assert!(!of_norm("f32", 16384, 4096).contains("max_contiguous"));
    // Nothing else in the kernel is wider.
    let softmax = of_rows("%1 y: f32[400, 50257] = aten.softmax.int(%0, -1, none)\noutput 0: %1\n");
    assert!(!softmax.contains("max_contiguous"), "{softmax}");
}

#[test]
fn only_the_last_step_along_such_a_row_has_a_mask() {
    let text = of_norm("bf16", 400, 50257);
    let lines: Vec<&str> = text.lines().collect();
    let walks = lines
        .iter()
        .enumerate()
        .filter(|(_, l)| l.trim_start().starts_with("for "));
    let mut seen = 0;
    for (at, _) in walks {
        let body = lines[at + 1..]
            .iter()
            .take_while(|l| l.starts_with("        "));
        assert!(body.clone().all(|l| !l.contains("rmask")), "{text}");
        assert!(body.clone().any(|l| l.contains("tl.load")), "{text}");
        seen += 1;
    }
    assert_eq!(seen, 2, "{text}");
    assert_eq!(text.matches("rmask = r < 50257").count(), 2, "{text}");
    // Rows of vectors keep the mask of all steps.
    let text = of_norm("bf16", 400, 50264);
    assert!(text.contains("in range(0, 50264, RBLOCK):"), "{text}");
}

#[test]
fn what_is_read_behind_a_store_is_not_written_over() {
    // The kernel that takes the hypotenuse stores what it looked up before it reads the sums, which nothing reads any more.
    let text = "graph t
%0 x: f32[3, 3] = input 0
%1 var: f32[3] = aten.var.correction(%0, [-1], 0, false)
%2 roll: f32[3] = aten.roll.default(%1, [-1], [-1])
%3 relu: f32[3] = aten.relu.default(%2)
%4 arange: i64[3] = aten.arange.default(3, none, none, none, false)
%5 flip: i64[3] = aten.flip.default(%4, [0])
%6 index: f32[3] = aten.index.Tensor(%2, [%5])
%7 zeros: i64[3] = aten.zeros.default([3], dtype.i64, none, none, false)
%8 sums: f32[3] = aten.index_add.default(%3, 0, %7, %3, 1)
%9 hypot: f32[3] = aten.hypot.default(%8, %6)
%10 first: f32[1] = aten.slice.Tensor(%6, -1, 0, 1, 1)
%11 last: f32[1] = aten.slice.Tensor(%9, 0, 2, 3, 1)
%12 copy: f32[1] = aten.copy.default(%10, %11, false)
%13 scatter: f32[3] = aten.slice_scatter.default(%6, %12, -1, 0, 1, 1)
%14 loss: f32[3] = aten.smooth_l1_loss.default(%13, %3, 0, 1.0)
%15 sum: f32[] = aten.sum.default(%14, none)
output 0: %15
";
    let c = compiled(text, &mut ()).expect("compiles");
    let kernel = (c.kernels.iter()).find(|k| k.text.contains("libdevice.hypot"));
    let text = &kernel.expect("a hypotenuse").text;
    // Programs wait where what they read may be what they wrote.
    assert_eq!(text.matches("tl.store").count(), 2, "{text}");
    assert!(!text.contains("debug_barrier"), "{text}");
}

#[test]
fn quotients_of_rows_are_rounded_as_eager_rounds_them() {
    let text = of_norm("f32", 16383, 4095);
    assert!(text.contains("quotient("), "{text}");
    let c = compiled(
        "graph t\n%0 x: f32[400, 512] = input 0\n%1 y: f32[400, 512] = aten.div.Tensor(%0, %0)\n\
         %2 s: f32[400] = aten.sum.dim_IntList(%1, [1], false, none)\noutput 0: %2\n",
        &mut (),
    );
    let text = &c.expect("compiles").kernels[0].text;
    assert!(!text.contains("quotient("), "{text}");
}

#[test]
fn a_softmax_of_few_long_rows_reads_them_twice() {
    for dtype in ["f32", "bf16"] {
        let c = compiled(
            &format!(
                "graph t\n%0 x: {dtype}[8, 50257] = input 0\n\
                 %1 y: {dtype}[8, 50257] = aten.softmax.int(%0, -1, none)\noutput 0: %1\n"
            ),
            &mut (),
        );
        let c = c.expect("compiles");
        // Maxima and sums of chunks, both of rows, results.
        assert_eq!(launches(&c).len(), 3, "{dtype}: {:?}", launches(&c));
        let chunks =
            (c.kernels.iter()).find(|k| k.text.contains("50257 * ") && k.text.contains("nan_max"));
        let text = &chunks.expect("a kernel of chunks").text;
        // The last chunk, which is not whole, may have a branch of its own.
        let whole = text.split("    else:").next().unwrap_or_default();
        assert_eq!(whole.matches("tl.load(").count(), 1, "{text}");
        assert_eq!(whole.matches("tl.sum(").count(), 1, "{text}");
    }
    // Where rows are many, nothing is computed twice.
    let c = compiled(
        "graph t\n%0 x: f32[400, 50257] = input 0\n%1 y: f32[400, 50257] = aten.softmax.int(%0, -1, none)\noutput 0: %1\n",
        &mut (),
    );
    assert_eq!(launches(&c.expect("compiles")).len(), 1);
}

#[test]
fn tiles_of_few_rows() {
    // Sizes of the tile, warps.
    let tile = |text: &str| {
        let c = compiled(text, &mut ()).expect("compiles");
        let k = &c.kernels[0];
        let sizes: Vec<i64> = k.constants.iter().map(|c| c.1).collect();
        (sizes, k.warps)
    };
    // A thread for each column.
    let sum = |rows: i64, columns: i64| {
        tile(&format!(
            "graph t\n%0 x: f32[{rows}, {columns}] = input 0\n\
             %1 s: f32[{columns}] = aten.sum.dim_IntList(%0, [0], false, none)\noutput 0: %1\n"
        ))
    };
    assert_eq!(sum(8, 50257), (vec![256, 8], 8));
    assert_eq!(sum(3, 600), (vec![16, 4], 1));
    assert_eq!(sum(40, 50257), (vec![64, 64], 8));
    // Accesses that jump, and ones that do not, if some values are of rows.
    let of = |operators: &str| {
        let text = format!("graph t\n%0 x: f32[8, 50257] = input 0\n{operators}");
        tile(&text)
    };
    let turned = of(
        "%1 t: f32[50257, 8] strides [1, 50257] = aten.transpose.int(%0, 0, 1)\n\
         %2 y: f32[50257, 8] = aten.contiguous.default(%1)\noutput 0: %2\n",
    );
    assert_eq!(turned, (vec![1024], 8));
    let plain = of(
        "%1 w: f32[8, 1] = input 1\n%2 y: f32[8, 50257] = aten.mul.Tensor(%0, %1)\noutput 0: %2\n",
    );
    assert_eq!(plain, (vec![512], 8));
}
