//! Graphs become host programs that need no interpreter.

#![cfg(feature = "compiler")]

use inrush_base::{Caps, ErrorKind};
use inrush_host::native::user_kernels::{Chosen, Configuration, Given, UserSource};
use inrush_host::native::{Lowered, Object, compile, compile_with};
use inrush_host::program::{Argument, Device, Step, StepKind, UserKernel};
use inrush_program::{GpuKernel, GpuTarget};

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

/// The steps of a layer over `rows` rows of `terms` features, and how many are calls of the library.
fn layer(rows: &str, dtype: &str, columns: usize, terms: usize) -> (usize, usize) {
    let text = format!(
        "graph g\n\
        %0 w: {dtype}[{columns}, {terms}] = parameter w\n\
        %1 b: {dtype}[{columns}] = parameter b\n\
        %2 x: {dtype}[{rows}, {terms}] = input 0\n\
        %3 h: {dtype}[{rows}, {columns}] = aten.linear.default(%2, %0, %1)\n\
        %4 y: {dtype}[{rows}, {columns}] = aten.relu.default(%3)\n\
        output 0: %4\n"
    );
    let lowered = lowered(&text, inrush_compile::Libraries::Products).unwrap();
    lowered.check().unwrap();
    let steps = &lowered.program.steps;
    let library = |s: &&Step| matches!(s.kind, StepKind::Library(_));
    (steps.len(), steps.iter().filter(library).count())
}

#[test]
fn few_rows_of_halves_are_one_kernel() {
    for dtype in ["f16", "bf16"] {
        assert_eq!(layer("16", dtype, 4096, 1024), (1, 0));
        assert_eq!(layer("2", dtype, 2048, 1024), (1, 0));
        assert_eq!(layer("2, 8", dtype, 2048, 1024), (1, 0));
        // More rows are so only if sums are short; they are the library's, and so are fewer columns.
        assert_eq!(layer("17", dtype, 4096, 1024), (1, 0));
        assert_eq!(layer("17", dtype, 4096, 4096).1, 1);
        assert_eq!(layer("2", dtype, 2047, 1024).1, 1);
    }
    assert_eq!(layer("16", "f32", 4096, 1024).1, 1);
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

/// A launch of a kernel that adds two tensors of eight elements, in one of two configurations.
const LAUNCHES: &str = "graph g\n\
    %0 x: f32[8] = input 0\n\
    %1 y: f32[8] = aten.relu.default(%0)\n\
    %2 a: f32[8] = inrush.triton_kernel.default([%0, %1, none], [8], [2, 1, 1, 4, 1, 1], 0, \"add\")\n\
    %3 b: f32[8] = inrush.triton_kernel.default([%2, %2, none], [8], [2, 1, 1, 4, 1, 1], 0, \"add\")\n\
    output 0: %3\n";

/// The kernel of [`LAUNCHES`].
fn add() -> UserSource {
    let configuration = |block: usize| Configuration {
        kernel: GpuKernel {
            function: "add".into(),
            text: format!("BLOCK = {block}\n"),
            signature: [
                ("x", "*fp32"),
                ("y", "*fp32"),
                ("out", "*fp32"),
                ("n", "i32"),
            ]
            .map(|(name, ty)| (name.into(), ty.into()))
            .to_vec(),
            ..GpuKernel::default()
        },
        arguments: vec![
            Given::Tensor(0),
            Given::Tensor(1),
            Given::Tensor(2),
            Given::Number(0),
        ],
        aligned: vec![0],
        title: format!("BLOCK: {block}"),
    };
    UserSource {
        name: "add".into(),
        written: vec![2],
        configurations: vec![configuration(4), configuration(2)],
        measured: None,
    }
}

/// The host program of a graph's text with launches of [`add`] in a configuration.
fn with_launches(text: &str, at: usize) -> inrush_base::Result<Lowered> {
    let caps: Caps = inrush_devices::model("h100").unwrap();
    let graph = inrush_graph::text::parse(text).unwrap();
    let target = GpuTarget {
        backend: "cuda".into(),
        arch: "90".into(),
        warp: 32,
    };
    let why = "the fastest here";
    let source = &add();
    let chosen = [Chosen { source, at, why }];
    let options = inrush_compile::Options::default();
    compile_with(graph, (&caps, &target), GPU, &options, &chosen, &mut ())
}

/// The launches of users' kernels.
fn launches(lowered: &Lowered) -> Vec<&UserKernel> {
    (lowered.program.steps.iter())
        .filter_map(|s| match &s.kind {
            StepKind::Kernel(k) => Some(k),
            _ => None,
        })
        .collect()
}

#[test]
fn launches_of_users_kernels_are_steps_in_the_chosen_configuration() {
    for (at, programs) in [(0, 2), (1, 4)] {
        let lowered = with_launches(LAUNCHES, at).unwrap();
        lowered.check().unwrap();
        let all = launches(&lowered);
        assert_eq!(all.len(), 2);
        let kernels = &lowered.program.gpu.as_ref().unwrap().kernels;
        let users = |k: &&GpuKernel| k.symbol.starts_with("triton.add.");
        assert_eq!(kernels.iter().filter(users).count(), 1, "equal kernels");
        for k in all {
            let one = Argument::Int(1);
            assert_eq!(k.grid, [Argument::Int(programs), one, one]);
            assert_eq!(k.arguments[3], Argument::Int(8));
            assert_eq!(k.tensors[2], None);
            assert!(
                k.title
                    .starts_with(&format!("add, configuration {} of 2", at + 1))
            );
        }
        assert_eq!(lowered.launches(), 3);
    }
}

#[test]
fn launches_without_their_kernel_are_refused() {
    let alone = lowered(LAUNCHES, inrush_compile::Libraries::None).unwrap_err();
    assert_eq!(alone.kind(), ErrorKind::Unsupported);
    assert!(
        alone.to_string().contains("`inrush.aot_compile`"),
        "{alone}"
    );
    for (from, to) in [
        ("[2, 1, 1, 4, 1, 1]", "[2, 1, 1]"),
        ("[8], ", "[], "),
        ("[%0, %1, none]", "[%0, %1]"),
        (", 0, \"add\"", ", -1, \"add\""),
        (", 0, \"add\"", ", 7, \"add\""),
    ] {
        let error = with_launches(&LAUNCHES.replace(from, to), 1).unwrap_err();
        let refused = matches!(error.kind(), ErrorKind::Input | ErrorKind::Unsupported);
        assert!(refused, "{to}: {error}");
    }
}

#[test]
fn cpus_refuse_launches_of_users_kernels() {
    let graph = inrush_graph::text::parse(LAUNCHES).unwrap();
    let caps = Caps::cpu(inrush_base::Isa::Avx2, 1);
    let options = inrush_compile::Options::default();
    let error = inrush_compile::compile(graph, &caps, &options, &mut ()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("GPUs only:\n  `add`"), "{error}");
}

#[test]
fn damaged_launches_are_found() {
    let whole = with_launches(LAUNCHES, 0).unwrap();
    type Damage = fn(&mut UserKernel);
    let damages: [Damage; 12] = [
        |k| k.aligned[0] = 9,
        |k| k.kernel = 100,
        |k| k.tensors[0] = Some(1 << 30),
        |k| k.tensors[0] = None,
        |k| k.written[0] = 3,
        |k| k.written.push(0),
        |k| k.outs[0] = 1 << 30,
        |k| k.arguments[0] = Argument::Int(1),
        |k| k.arguments[3] = Argument::Tensor(0),
        |k| k.arguments[0] = Argument::Descriptor(0),
        |k| k.arguments[0] = Argument::Descriptor(77),
        |k| k.grid[0] = Argument::Float(1.0),
    ];
    for (at, damage) in damages.iter().enumerate() {
        let mut damaged = whole.clone();
        let step = (damaged.program.steps.iter_mut()).find_map(|s| match &mut s.kind {
            StepKind::Kernel(k) => Some(k),
            _ => None,
        });
        damage(step.unwrap());
        let error = damaged.check().expect_err(&format!("damage {at}"));
        assert_eq!(error.kind(), ErrorKind::Input, "damage {at}: {error}");
    }
}

#[test]
fn operands_of_users_kernels_keep_the_layout_that_they_were_traced_with() {
    // Of a program of one piece stage normalize drops copies, whose strides nothing needs.
    let text = "graph g\n\
        %0 x: f32[16, 2] = input 0\n\
        %1 h: f32[8, 2] strides [4, 1] = aten.slice.Tensor(%0, 0, 0, 16, 2)\n\
        %2 c: f32[8, 2] = aten.clone.default(%1, format.contiguous)\n\
        %3 a: f32[8, 2] = inrush.triton_kernel.default([%2, %2, none], [8], [2, 1, 1, 4, 1, 1], 0, \"add\")\n\
        output 0: %3\n\
        output 1: %2\n";
    let lowered = with_launches(text, 0).unwrap();
    let gpu = lowered.program.gpu.as_ref().unwrap();
    let constant = |id: &inrush_program::SizeId| match lowered.program.sizes[id.0 as usize] {
        inrush_program::Size::Const(v) => v,
        _ => panic!("a size that is no constant"),
    };
    let strides = |slot: usize| -> Vec<i64> {
        let layout = gpu.layouts[slot].as_ref().unwrap();
        layout.strides.iter().map(constant).collect()
    };
    let [launch] = launches(&lowered)[..] else {
        panic!("one launch")
    };
    for slot in launch.tensors.iter().flatten() {
        assert_eq!(strides(*slot), [2, 1]);
        let view = |s: &Step| matches!(&s.kind, StepKind::View(v) if v.value == *slot);
        assert!(!lowered.program.steps.iter().any(view), "a view is no copy");
    }
    // Nor is an output that eager copies a view with the strides of the copy.
    let view = |s: &Step| matches!(s.kind, StepKind::View(_));
    assert!(!lowered.program.steps.iter().any(view));
}
