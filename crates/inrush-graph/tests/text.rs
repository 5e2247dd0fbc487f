//! The text form reads back to what it prints; hostile text is an error.

use inrush_graph::{text, verify};

const ALL: &str = "\
graph everything
size s0 in [1, 64] hint 8
unbacked u8 in [0, inf]
line0: \"model.py:12 in \\\"forward\\\"\"
in_tree \"[(*, *), {}]\"
%0 x: f32[s0, 3] = input 0
%1 n: int s0 = input 1
%2 w: f32[4, 3] = parameter fc.weight
%3 mean: f32[3] = buffer \"bn/mean\" persistent
%4 c: bool[] = constant c0
guard s0 <= 2*u8 + 1 because \"torch._check\"
%5 t: f32[3, 4] strides [1, 3] = aten.t.default(%2) at line0 for aten.linear.default
%6 max: f32[s0], %7 at: i64[s0] = aten.max.dim(%0, -1, false)
%8 all: f32[s0, 3] = odd.op(none, true, [%0, none], tensors[], [], [2, s0 - 1], -1.5, inf, floats[1.0], bools[true], \"a b\", dtype.u8, u8, format.channels_last, other \"cpu\", -3, 1e-300)
call aten._assert.default(%4)
%9 item: float = aten.item.default(%4)
%10 fft: opaque \"complex64\" = aten.fft_fft.default(%0)
output 0: %8
output 1: scalar 2.5
output 2: none
mutate 3: %3
";

#[test]
fn text_reads_back() {
    let g = text::parse(ALL).unwrap();
    assert_eq!(g.print(), ALL);
    verify::verify(&g).unwrap();
}

#[test]
fn breaches_stand_on_their_line() {
    let mut g = text::parse(ALL).unwrap();
    g.nodes.swap(0, 2);
    g.nodes[0].args[2] = inrush_graph::Arg::Value(inrush_graph::ValueId(5));
    let e = verify::verify(&g).unwrap_err().to_string();
    assert!(e.contains("^ `t` is used before it is defined"), "{e}");
}

#[test]
fn hostile_text_is_an_error() {
    for bad in [
        "",
        "graph",
        "graph g\n%1: f32[] = input 0",
        "graph g\n%0: f32[ = input 0",
        "graph g\n%0: q32[] = input 0",
        "graph g\noutput 0: %0",
        "graph g\noutput -1: none",
        "graph g\n%0: f32[s9] = input 0",
        "graph g\nsize s0 in [3, 1]",
        "graph g\n%0: f32[2] = aten.rand.default([2]) for",
    ] {
        assert!(text::parse(bad).is_err(), "{bad}");
    }
    let deep = format!("graph g\n%0: int {}1", "(".repeat(100_000));
    assert!(text::parse(&deep).is_err());
}
