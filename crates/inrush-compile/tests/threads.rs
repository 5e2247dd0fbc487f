//! The pipeline's result does not depend on how many threads its stages use.

use inrush_base::{Caps, Isa};
use inrush_compile::{Observer, Options};
use std::fmt::Write;

/// Kernels that all differ, with sizes that are known only at a call, so that stages make expressions of their own for each.
fn graph() -> String {
    let mut text = String::from("graph many\nsize s0 in [2, 100] hint 32\n");
    let mut next = 0;
    let mut outputs = String::new();
    for k in 0..48 {
        let columns = 3 + 5 * k;
        let ty = format!("f32[s0, {columns}]");
        let mut value = |ty: &str, name: &str, call: String| {
            let _ = writeln!(text, "%{next} {name}{k}: {ty} = {call}");
            next += 1;
            next - 1
        };
        let x = value(&ty, "x", format!("input {}", 2 * k));
        let at = value(
            &format!("i64[{columns}]"),
            "at",
            format!("input {}", 2 * k + 1),
        );
        let a = value(&ty, "a", format!("aten.gelu.default(%{x}, \"none\")"));
        let b = value(&ty, "b", format!("aten.softmax.int(%{a}, -1, none)"));
        let c = value(&ty, "c", format!("aten.flip.default(%{b}, [1])"));
        let d = value(&ty, "d", format!("aten.add.Tensor(%{c}, %{x}, {})", k + 1));
        let e = value(&ty, "e", format!("aten.cumsum.default(%{d}, 1)"));
        // Additions that may meet within a row, and rows that do not: whether units may run side by side is asked of offsets.
        let f = value(
            &ty,
            "f",
            format!("aten.index_add.default(%{e}, 1, %{at}, %{a}, 1)"),
        );
        let _ = writeln!(outputs, "output {k}: %{f}");
    }
    text + &outputs
}

/// The text of every stage.
#[derive(Default)]
struct Texts(Vec<String>);

impl Observer for Texts {
    fn end(&mut self, stage: &'static str, text: &dyn Fn() -> String) {
        self.0.push(format!("{stage}\n{}", text()));
    }
}

#[test]
fn threads_change_nothing() {
    let compile = |threads: usize| {
        let graph = inrush_graph::text::parse(&graph()).expect("the graph parses");
        let options = Options {
            pieces: 3,
            threads,
            ..Options::default()
        };
        let mut texts = Texts::default();
        let caps = Caps::cpu(Isa::Avx2, 4);
        let made = inrush_compile::compile(graph, &caps, &options, &mut texts).expect("compiles");
        (texts.0, made.program.to_string(), made.pieces)
    };
    let alone = compile(1);
    assert!(alone.1.matches("kernel ").count() > 40, "{}", alone.1);
    for threads in [0, 2, 3, 8] {
        let several = compile(threads);
        for (a, b) in alone.0.iter().zip(&several.0) {
            assert_eq!(a, b, "{threads} threads");
        }
        assert_eq!(alone, several, "{threads} threads");
    }
}
