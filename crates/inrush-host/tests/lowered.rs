//! Graphs become host programs that need no interpreter.

#![cfg(feature = "compiler")]

use inrush_base::{Caps, ErrorKind};
use inrush_host::native::{Lowered, Object, compile};
use inrush_host::program::{Device, Step};
use inrush_program::GpuTarget;

const GPU: Device = Device { kind: 1, index: 0 };

/// The host program of a graph's text, compiled for a preset.
fn lowered(text: &str, libraries: inrush_compile::Libraries) -> inrush_base::Result<Lowered> {
    let caps: Caps = inrush_devices::model("h100").unwrap();
    let graph = inrush_graph::text::parse(text).unwrap();
    let options = inrush_compile::Options {
        libraries,
        strict: true,
        ..Default::default()
    };
    let target = GpuTarget {
        backend: "cuda".into(),
        arch: "90".into(),
        warp: 32,
    };
    compile(graph, (&caps, &target), GPU, &options, &mut ())
}

const LAYER: &str = "graph g\n\
    %0 w: f32[16, 8] = parameter w\n\
    %1 b: f32[16] = parameter b\n\
    %2 x: f32[4, 3, 8] = input 0\n\
    %3 h: f32[4, 3, 16] = aten.linear.default(%2, %0, %1)\n\
    %4 y: f32[4, 3, 16] = aten.relu.default(%3)\n\
    output 0: %4\n";

#[test]
fn layers_are_products_of_a_library_or_compiled_whole() {
    use inrush_compile::Libraries;
    use inrush_host::program::StepKind;
    let library = |s: &Step| matches!(s.kind, StepKind::Library(_));
    let with = lowered(LAYER, Libraries::Products).unwrap();
    with.check().unwrap();
    assert_eq!(with.program.steps.iter().filter(|s| library(s)).count(), 1);
    assert_eq!(with.inputs, ["x"]);
    let weights = [Object::Weight("w".into()), Object::Weight("b".into())];
    assert_eq!(with.objects, weights);
    let without = lowered(LAYER, Libraries::None).unwrap();
    assert!(!without.program.steps.iter().any(library));
    assert_eq!(without.program.steps.len(), 1);
}

#[test]
fn operators_that_only_pytorch_has_are_listed() {
    let text = "graph g\n\
        %0 x: f32[4, 4] = input 0\n\
        %1 y: f32[4, 4] = foreign.one.default(%0)\n\
        %2 z: f32[4, 4] = foreign.two.default(%1)\n\
        output 0: %2\n";
    let error = lowered(text, inrush_compile::Libraries::None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    let text = error.to_string();
    assert!(
        text.contains("`foreign.one.default`") && text.contains("`foreign.two.default`"),
        "{text}"
    );
}
