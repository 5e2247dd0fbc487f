//! Gradients of attentions of drawn sizes, dtypes, masks and score functions: interpreters of graphs, loops and block programs agree.
//!
//! Drawn graphs of all levels have none, since only GPUs compile them. `INRUSH_DRAWN_GRADIENTS` sets how many are drawn.

mod common;

use common::Random;

/// The text of a graph, one value a line.
struct Text {
    lines: String,
    values: usize,
}

impl Text {
    fn add(&mut self, ty: &str, what: &str) -> String {
        let id = format!("%{}", self.values);
        self.lines
            .push_str(&format!("{id} v{}: {ty} = {what}\n", self.values));
        self.values += 1;
        id
    }
}

fn of<T: Copy>(r: &mut Random, list: &[T]) -> T {
    list[r.below(list.len())]
}

/// Draws the score function and what its gradient multiplies the score's by, if not by one.
fn scores(
    t: &mut Text,
    r: &mut Random,
    product: &str,
    bias: &str,
    points: &str,
) -> (String, Option<String>) {
    let scaled = t.add(points, &format!("aten.mul.Tensor({product}, 0.25)"));
    match r.below(3) {
        0 => (scaled, None),
        1 => (
            t.add(points, &format!("aten.add.Tensor({scaled}, {bias}, 1)")),
            None,
        ),
        _ => {
            let tanh = t.add(points, &format!("aten.tanh.default({scaled})"));
            let square = t.add(points, &format!("aten.mul.Tensor({tanh}, {tanh})"));
            let slope = t.add(points, &format!("aten.rsub.Scalar({square}, 1, 1)"));
            (tanh, Some(slope))
        }
    }
}

/// Draws a mask, or `none`.
fn mask(t: &mut Text, r: &mut Random, [m, k]: [usize; 2]) -> String {
    let kind = r.below(4);
    if kind == 0 {
        return "none".into();
    }
    let [i, j] = [m, k].map(|n| {
        t.add(
            &format!("i64[{n}]"),
            &format!("aten.arange.default({n}, none, none, none, false)"),
        )
    });
    let row = t.add(
        &format!("i64[{m}, 1]"),
        &format!("aten.view.default({i}, [{m}, 1])"),
    );
    let both = format!("bool[{m}, {k}]");
    let mut keep = match kind {
        1 => t.add(&both, &format!("aten.le.Tensor({j}, {row})")),
        2 => t.add(&both, &format!("aten.lt.Tensor({row}, {j})")),
        _ => {
            // Keys of the same document.
            let [a, b] = [(&row, format!("i64[{m}, 1]")), (&j, format!("i64[{k}]"))]
                .map(|(x, ty)| t.add(&ty, &format!("aten.div.Tensor_mode({x}, 7, \"floor\")")));
            t.add(&both, &format!("aten.eq.Tensor({a}, {b})"))
        }
    };
    keep = t.add(
        &format!("bool[1, 1, {m}, {k}]"),
        &format!("aten.view.default({keep}, [1, 1, {m}, {k}])"),
    );
    keep
}

fn draw(r: &mut Random) -> String {
    let dtype = of(r, &["f16", "bf16", "f32"]);
    let (batch, own, group) = (of(r, &[1, 2]), of(r, &[1, 2]), of(r, &[1, 1, 2, 3]));
    let heads = own * group;
    let (m, k) = (1 + r.below(40), 1 + r.below(40));
    let (d, n) = (of(r, &[16, 17, 24, 32, 64, 128]), of(r, &[8, 16, 18, 40]));
    let of_keys = if r.below(3) == 0 { 1 } else { batch };
    let points = format!("f32[{batch}, {heads}, {m}, {k}]");
    let mut t = Text {
        lines: "graph drawn\n".into(),
        values: 0,
    };
    let types = [
        format!("{dtype}[{batch}, {heads}, {m}, {d}]"),
        format!("{dtype}[{of_keys}, {own}, {k}, {d}]"),
        format!("{dtype}[{of_keys}, {own}, {k}, {n}]"),
        format!("{dtype}[{batch}, {heads}, {m}, {n}]"),
        format!("f32[{batch}, {heads}, {m}, 1]"),
        format!("f32[{m}, {k}]"),
    ];
    let inputs: Vec<String> = (types.iter().enumerate())
        .map(|(at, ty)| t.add(ty, &format!("input {at}")))
        .collect();
    let [q, key, v, g, delta, bias] = inputs.as_slice() else {
        unreachable!("six inputs")
    };
    let [s, of_weights] = [(q, key), (g, v)].map(|(a, b)| {
        t.add(
            &points,
            &format!("inrush.attention_product.default({a}, {b})"),
        )
    });
    let (score, slope) = scores(&mut t, r, &s, bias, &points);
    let p = t.add(&points, &format!("aten.sigmoid.default({score})"));
    let away = t.add(
        &points,
        &format!("aten.sub.Tensor({of_weights}, {delta}, 1)"),
    );
    let mut w = t.add(&points, &format!("aten.mul.Tensor({p}, {away})"));
    if let Some(slope) = slope {
        w = t.add(&points, &format!("aten.mul.Tensor({w}, {slope})"));
    }
    let keep = mask(&mut t, r, [m, k]);
    let operands = format!("{q}, {key}, {v}, {g}, {s}, {of_weights}, {w}");
    let rest = format!("{keep}, none, none, none, none, 0, 0");
    let op = format!("inrush.attention_grad_query.default({operands}, {rest})");
    let dq = t.add(&types[0], &op);
    let sums = if (of_keys, own) == (batch, heads) {
        dtype
    } else {
        "f32"
    };
    let (a, b) = (t.values, t.values + 1);
    t.lines.push_str(&format!(
        "%{a} dk: {sums}[{batch}, {heads}, {k}, {d}], %{b} dv: {sums}[{batch}, {heads}, {k}, {n}] = \
         inrush.attention_grad_key_value.default({operands}, {p}, {rest})\n\
         output 0: {dq}\noutput 1: %{a}\noutput 2: %{b}\n"
    ));
    t.lines
}

#[test]
fn drawn_gradients_agree() {
    let count = std::env::var("INRUSH_DRAWN_GRADIENTS").ok();
    let count = count.and_then(|n| n.parse().ok()).unwrap_or(40);
    for seed in 0..count {
        let mut r = Random(u64::wrapping_mul(seed + 1, 0x9E37_79B9_7F4A_7C15) | 1);
        (0..20).for_each(|_| _ = r.below(2));
        let text = draw(&mut r);
        let graph = inrush_graph::text::parse(&text).unwrap_or_else(|e| panic!("{e}\n{text}"));
        let told = inrush_filetest::agree(&graph, &["h100", "ordinary"]);
        let told = told.unwrap_or_else(|e| panic!("seed {seed}: {e}\n{text}"));
        assert!(
            told.contains("graph, loops, blocks agree"),
            "seed {seed}: {told}\n{text}"
        );
    }
}
