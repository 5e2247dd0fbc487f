//! Graphs with operators that have to be called: where they are cut, and what passes between the pieces.

use inrush_base::{Caps, DType, Isa};
use inrush_compile::{Options, Request, Sequence, SymbolFrom, What, compile_sequence};
use inrush_graph::{Graph, ValueId};

fn compile(text: &str) -> (Graph, Sequence) {
    let graph = inrush_graph::text::parse(text).expect("the graph parses");
    let caps = Caps::cpu(Isa::Avx2, 2);
    let sequence = compile_sequence(
        graph.clone(),
        &Request::default(),
        &caps,
        &Options::default(),
        &mut (),
    )
    .expect("compiles");
    (graph, sequence)
}

/// The parts as `segment a b -> c`, `call op a -> b`, `view a -> b`.
fn show(graph: &Graph, s: &Sequence) -> Vec<String> {
    let names = |vs: &[ValueId]| {
        let names: Vec<&str> = vs.iter().map(|v| graph.value(*v).name.as_str()).collect();
        names.join(" ")
    };
    s.parts
        .iter()
        .map(|p| match &p.what {
            What::Segment(s) => format!("segment {} -> {}", names(&s.inputs), names(&s.outputs)),
            What::Call(c) => format!("call {} -> {}", c.op, names(&c.outs)),
            What::View(v) => format!("view {} -> {}", names(&[v.base]), names(&[v.value])),
        })
        .collect()
}

#[test]
fn an_unknown_operator_is_called_between_segments() {
    let (g, s) = compile(
        "graph t
%0 x: f32[4, 8] = input 0
%1 a: f32[4, 8] = aten.relu.default(%0)
%2 b: f32[4, 8] = mylib.twist.default(%1)
%3 c: f32[4, 8] = aten.neg.default(%2)
%4 d: f32[4, 8] = aten.add.Tensor(%3, %1, 1)
output 0: %4
",
    );
    assert_eq!(
        show(&g, &s),
        [
            "segment x -> a",
            "call mylib.twist.default -> b",
            "segment b a -> d"
        ]
    );
    let What::Call(call) = &s.parts[1].what else {
        panic!()
    };
    assert_eq!(call.reason, "no lowering");
    // `x` is last read by the first segment, `a` and `b` by the second.
    assert_eq!(names(&g, &s.parts[0].frees), ["x"]);
    assert_eq!(names(&g, &s.parts[2].frees), ["b", "a"]);
}

fn names(g: &Graph, vs: &[ValueId]) -> Vec<String> {
    vs.iter().map(|v| g.value(*v).name.clone()).collect()
}

#[test]
fn a_call_that_needs_nothing_of_the_open_segment_does_not_end_it() {
    let (g, s) = compile(
        "graph t
%0 x: f32[4] = input 0
%1 a: f32[4] = aten.relu.default(%0)
%2 b: f32[4] = aten.fft_thing.default(%0)
%3 c: f32[4] = aten.add.Tensor(%1, %2, 1)
output 0: %3
",
    );
    assert_eq!(
        show(&g, &s),
        ["call aten.fft_thing.default -> b", "segment x b -> c"]
    );
}

#[test]
fn views_cross_as_their_roots() {
    let (g, s) = compile(
        "graph t
%0 x: f32[4, 8] = input 0
%1 t: f32[8, 4] strides [1, 8] = aten.t.default(%0)
%2 r: f32[3, 4] strides [1, 8] = aten.slice.Tensor(%1, 0, 2, 5, 1)
%3 a: f32[3, 4] strides [1, 8] = mylib.twist.default(%2)
%4 b: f32[3, 4] strides [1, 8] = aten.neg.default(%2)
output 0: %2
output 1: %3
output 2: %4
",
    );
    assert_eq!(
        show(&g, &s),
        [
            "view x -> r",
            "call mylib.twist.default -> a",
            "segment x -> b"
        ]
    );
    let What::View(view) = &s.parts[0].what else {
        panic!()
    };
    assert_eq!(
        s.sizes[view.offset.0 as usize],
        inrush_program::Size::Const(2)
    );
}

#[test]
fn sizes_read_from_data_become_known_after_their_call() {
    let (g, s) = compile(
        "graph t
unbacked u0 in [0, 100]
%0 x: f32[10] = input 0
%1 n: i64[u0, 1] = aten.nonzero_of_some_kind.default(%0)
%2 y: f32[u0, 1] = aten._to_copy.default(%1, dtype.f32, none, none, none, false, none)
output 0: %2
",
    );
    assert_eq!(
        show(&g, &s),
        [
            "call aten.nonzero_of_some_kind.default -> n",
            "segment n -> y"
        ]
    );
    assert_eq!(s.symbols.len(), 1);
    assert_eq!(s.symbols[0].after, Some(0));
    assert!(matches!(
        s.symbols[0].source,
        SymbolFrom::Dim {
            dim: 0,
            factor: 1,
            offset: 0,
            ..
        }
    ));
}

#[test]
fn a_refused_node_is_called_with_the_reason() {
    let (g, s) = compile(
        "graph t
%0 x: f32[4, 4] = input 0
%1 a: f32[4, 4] = aten.relu.default(%0)
%2 b: i16[4, 8] = aten.view.dtype(%1, dtype.i16)
%3 c: i16[4, 8] = aten.neg.default(%2)
output 0: %3
",
    );
    assert_eq!(
        show(&g, &s),
        [
            "segment x -> a",
            "call aten.view.dtype -> b",
            "segment b -> c"
        ]
    );
    let What::Call(call) = &s.parts[1].what else {
        panic!()
    };
    assert!(call.reason.contains("size"), "{}", call.reason);
}

#[test]
fn a_view_that_its_row_does_not_take_is_called() {
    let (g, s) = compile(
        "graph t
%0 x: f32[4] = input 0
%1 a: f32[] = aten.select.int(%0, 0, 7)
%2 b: f32[] = aten.neg.default(%1)
output 0: %2
",
    );
    assert_eq!(
        show(&g, &s),
        ["call aten.select.int -> a", "segment a -> b"]
    );
}

/// Each selection is the only one that reads the one before: branches would stand in branches without end.
#[test]
fn a_long_chain_of_selections_nests_a_few_branches() {
    let mut text = String::from(
        "graph t\n%0 x: f32[1000] = input 0\n%1 m: bool[1000] = input 1\n%2 z: f32[1000] = input 2\n",
    );
    let (mut last, mut next) = (0, 3);
    for _ in 0..300 {
        for (op, args) in [
            ("sinh.default", format!("%{last}")),
            ("where.self", format!("%1, %{next}, %2")),
        ] {
            text += &format!("%{next} v{next}: f32[1000] = aten.{op}({args})\n");
            last = next;
            next += 1;
        }
    }
    text += &format!("output 0: %{last}\n");
    let (_, s) = compile(&text);
    let code = s.pieces.concat();
    assert!(code.contains("any_i32x"), "no branch");
    let depth = code.chars().scan(0, |open, c| {
        *open += i32::from(c == '{') - i32::from(c == '}');
        Some(*open)
    });
    assert!(depth.max().unwrap_or(0) < 16);
}

#[test]
fn attention_is_called_where_its_scores_leave_the_caches() {
    let attention = |tokens: i64| {
        let (g, s) = compile(&format!(
            "graph t
%0 q: f32[1, 8, {tokens}, 64] = input 0
%1 o: f32[1, 8, {tokens}, 64], %2 l: f32[1, 8, {tokens}] = aten._scaled_dot_product_flash_attention_for_cpu.default(%0, %0, %0)
output 0: %1
"
        ));
        show(&g, &s)
    };
    assert_eq!(attention(512), ["segment q -> o"]);
    let call = "call aten._scaled_dot_product_flash_attention_for_cpu.default -> o l";
    assert_eq!(attention(1024), [call]);
}

#[test]
fn a_view_of_a_dtype_of_the_same_size_shares_memory() {
    let (g, s) = compile(
        "graph t
%0 x: f32[4, 8] = input 0
%1 a: f32[4, 8] = aten.relu.default(%0)
%2 b: i32[4, 8] = aten.view.dtype(%1, dtype.i32)
%3 c: i32[8, 4] strides [1, 8] = aten.t.default(%2)
%4 d: i32[4, 8] = aten.neg.default(%2)
output 0: %1
output 1: %3
output 2: %4
",
    );
    assert_eq!(show(&g, &s), ["segment x -> a d", "view a -> c"]);
    let What::View(view) = &s.parts[1].what else {
        panic!()
    };
    assert_eq!(view.dtype, Some(DType::I32));
}

#[test]
fn strides_that_are_returned_are_called() {
    let (g, s) = compile(
        "graph t
%0 x: f32[16] = input 0
%1 a: f32[16] = aten.relu.default(%0)
%2 d: f32[2, 2] = aten.as_strided.default(%1, [2, 2], [2, 1], 0)
%3 e: f32[2, 2] = aten.neg.default(%2)
%4 b: f32[2, 2] strides [4, 1] = aten.as_strided.default(%1, [2, 2], [4, 1], 3)
%5 c: f32[2, 2] strides [1, 4] = aten.t.default(%4)
output 0: %5
output 1: %3
",
    );
    assert_eq!(
        show(&g, &s),
        [
            "segment x -> a e",
            "call aten.as_strided.default -> b",
            "view b -> c"
        ]
    );
}
