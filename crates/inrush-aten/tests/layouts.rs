//! Exported programs with strides that eager's results do not have.

use inrush_aten::layouts;
use inrush_graph::text::parse;

/// The graph's values after the correction: name and type, those of `names`.
fn corrected(text: &str) -> Result<String, String> {
    let mut graph = parse(text).expect("the text is a graph");
    layouts::correct(&mut graph).map_err(|e| e.to_string())?;
    Ok(graph.print())
}

fn line<'a>(text: &'a str, name: &str) -> &'a str {
    let named = format!(" {name}: ");
    text.lines().find(|l| l.contains(&named)).expect(name)
}

#[test]
fn what_is_wrong_is_corrected_and_carried_on() {
    let text = corrected(
        "graph t
%0 x: f32[2, 5, 4, 3] strides [60, 1, 15, 5] = input 0
%1 r: f32[2, 5, 4, 3] = aten.roll.default(%0, [1], [0])
%2 p: f32[2, 5, 6, 5] = aten.pad.default(%1, [1, 1, 1, 1], \"reflect\")
%3 y: f32[2, 5, 6, 5] = aten.mul.Scalar(%2, 2.0)
%4 t: f32[5, 2, 6, 5] = aten.transpose.int(%3, 0, 1)
%5 c: f32[2, 5, 6, 5] = aten.contiguous.default(%3)
%6 k: f32[2, 5, 6, 5] = aten.clone.default(%3)
output 0: %4
",
    )
    .expect("all is known");
    assert!(
        line(&text, "r").contains("strides [60, 1, 15, 5]"),
        "{text}"
    );
    assert!(
        line(&text, "p").contains("strides [150, 1, 25, 5]"),
        "{text}"
    );
    assert!(
        line(&text, "y").contains("strides [150, 1, 25, 5]"),
        "{text}"
    );
    assert!(
        line(&text, "t").contains("strides [1, 150, 25, 5]"),
        "{text}"
    );
    assert!(!line(&text, "c").contains("strides"), "{text}");
    assert!(
        line(&text, "k").contains("strides [150, 1, 25, 5]"),
        "{text}"
    );
}

#[test]
fn a_roll_by_nothing_is_row_major_as_pieces_disagree() {
    let text = corrected(
        "graph t
%0 x: f32[2, 5, 4, 3] strides [60, 1, 15, 5] = input 0
%1 r: f32[2, 5, 4, 3] strides [60, 1, 15, 5] = aten.roll.default(%0, [2], [0])
output 0: %1
",
    );
    assert!(!line(&text.expect("known"), "r").contains("strides"));
}

#[test]
fn fresh_results_have_places_of_their_own() {
    let text = corrected(
        "graph t
%0 x: f32[3, 1] = input 0
%1 s: f32[3, 2] = input 1
%2 e: f32[3, 4] strides [1, 0] = aten.expand.default(%0, [3, 4])
%3 a: f32[3, 4] strides [1, 0] = aten.slice_scatter.default(%2, %1, 1, 0, 2, 1)
%4 b: f32[3, 4] strides [1, 0] = aten.gelu.default(%2)
output 0: %3
output 1: %4
",
    )
    .expect("all is known");
    assert!(line(&text, "e").contains("strides [1, 0]"), "{text}");
    assert!(!line(&text, "a").contains("strides"), "{text}");
    assert!(!line(&text, "b").contains("strides"), "{text}");
}

#[test]
fn the_first_operand_decides_where_operands_disagree() {
    let text = corrected(
        "graph t
%0 x: f32[3, 4] strides [1, 3] = input 0
%1 y: f32[3, 4] = input 1
%2 a: f32[3, 4] = aten.copysign.Tensor(%0, %1)
%3 b: f32[3, 4] strides [1, 3] = aten.copysign.Tensor(%1, %0)
output 0: %2
",
    )
    .expect("all is known");
    assert!(line(&text, "a").contains("strides [1, 3]"), "{text}");
    assert!(!line(&text, "b").contains("strides"), "{text}");
}

#[test]
fn rules_of_their_own_are_as_eager_has_them() {
    let text = corrected(
        "graph t
%0 x: f32[2, 3, 6, 5] strides [1, 60, 10, 2] = input 0
%1 y: f32[6, 5] strides [1, 6] = input 1
%2 p: f32[2, 1, 3, 2], %3 i: i64[2, 1, 3, 2] = aten.max_pool3d_with_indices.default(%0, [3, 2, 2])
%4 l: f32[2, 3, 6, 5] = aten.ldexp.Tensor(%0, %1)
%5 b: f32[6, 5] = aten.binary_cross_entropy.default(%1, %1, none, 0)
%6 q: f32[2, 1, 3, 2] = aten.max_pool3d.default(%0, [3, 2, 2])
%7 m: f32[] = aten.binary_cross_entropy.default(%1, %1)
output 0: %2
",
    )
    .expect("all is known");
    assert!(
        text.contains("p: f32[2, 1, 3, 2] strides [1, 12, 4, 2]"),
        "{text}"
    );
    assert!(
        line(&text, "l").contains("strides [1, 60, 10, 2]"),
        "{text}"
    );
    assert!(line(&text, "b").contains("strides [1, 6]"), "{text}");
    assert!(!line(&text, "m").contains("strides"), "{text}");
}

#[test]
fn positions_in_an_unknown_layout_are_refused() {
    let graph = "graph t
%0 x: f32[2, 5, 4, 3] strides [60, 1, 15, 5] = input 0
%1 w: f32[4, 5, 1, 1] = input 1
%2 r: f32[2, 5, 4, 3] = aten.roll.default(%0, [1], [0])
%3 c: f32[2, 4, 4, 3] = aten.conv2d.default(%2, %1)
%4 a: f32[5, 4] = aten.as_strided.default(%3, [5, 4], [4, 1], 0)
output 0: %4
";
    let error = corrected(graph).expect_err("the layout of a convolution has no rule");
    assert!(error.contains("layout is not known"), "{error}");
}

#[test]
fn every_line_of_the_table_names_an_operator_or_is_pytorchs_alone() {
    for (operator, devices, rules) in layouts::rules() {
        assert!(operator.starts_with("aten."), "{operator}");
        let known = matches!(devices, "cpu" | "cuda" | "any");
        assert!(known, "{operator}: {devices}");
        for rule in rules.split(';') {
            let mut words = rule.split_whitespace();
            let kind = words.next().expect("a rule");
            let known = [
                "-",
                "contiguous",
                "pointwise",
                "format",
                "storage",
                "like",
                "roll",
                "index",
                "pad",
                "rrelu_backward",
                "ldexp",
                "pool3d",
                "fft_c2c",
                "fft_r2c",
                "fft_c2r",
            ];
            assert!(known.contains(&kind), "{operator}: {rule}");
            let Some(op) = inrush_aten::lookup(operator) else {
                continue;
            };
            for name in words {
                let position = op.schema().position(name);
                assert!(position.is_some(), "{operator} has no parameter `{name}`");
            }
        }
    }
}
