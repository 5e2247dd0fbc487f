//! Tests of plans that no device runs.

use super::{Op, Plan, plan};
use crate::gpu::kernels::Kernels;
use crate::gpu::placement::Placement;
use crate::program::{Device, Gpu, HostProgram, Layout, Library, LibraryOp, Out, Step, StepKind};
use inrush_base::DType;
use inrush_program::{Dt, GpuTarget, Size, SizeId};
use rustc_hash::FxHashMap;

/// Layers of the program.
const LAYERS: usize = 6;
/// Rows and columns of a layer's weight, which has 64 MiB.
const WIDE: i64 = 4096;

/// A chain of products of `x`, in slot 0, with weights. An output in the middle is a tensor of the host's.
fn layers(keeps_arguments: bool) -> HostProgram {
    let layout = |rows| Layout {
        dtype: Dt(DType::F32),
        sizes: vec![SizeId(rows), SizeId(1)],
        strides: vec![SizeId(1), SizeId(2)],
    };
    let (weight, value) = (|k: usize| 1 + k, |k: usize| 1 + LAYERS + k);
    let product = |k: usize| Step {
        kind: StepKind::Library(Library {
            op: LibraryOp::Mm,
            inputs: vec![Some(if k == 0 { 0 } else { value(k - 1) }), Some(weight(k))],
            outs: vec![value(k)],
            call: None,
        }),
        frees: Vec::new(),
        binds_symbols: false,
    };
    let mut layouts = vec![Some(layout(0))];
    layouts.extend((0..LAYERS).map(|_| Some(layout(1))));
    layouts.extend((0..LAYERS).map(|_| Some(layout(0))));
    HostProgram {
        steps: (0..LAYERS).map(product).collect(),
        symbols: Vec::new(),
        sizes: vec![Size::Const(128), Size::Const(WIDE), Size::Const(1)],
        slots: 1 + 2 * LAYERS,
        inputs: (0..=LAYERS).collect(),
        constants: Vec::new(),
        outputs: [LAYERS / 2, LAYERS - 1]
            .map(|k| Out::Slot(value(k)))
            .to_vec(),
        pieces: Vec::new(),
        isa: String::new(),
        vector_math: false,
        gpu: Some(Gpu {
            graphs: false,
            keeps_arguments,
            target: GpuTarget {
                backend: "cuda".into(),
                arch: "90".into(),
                warp: 32,
            },
            device: Device { kind: 1, index: 0 },
            kernels: Vec::new(),
            layouts,
        }),
    }
}

fn planned(program: &HostProgram) -> Plan {
    let sizes = [Some(128), Some(WIDE), Some(1)];
    let (placement, kernels) = (Placement::of(program), FxHashMap::default());
    let steps = 0..program.steps.len();
    plan(
        program,
        &placement,
        steps,
        &[],
        &sizes,
        &kernels,
        &Kernels::new(Vec::new()),
    )
    .unwrap()
}

/// Numbers of steps: all recordable runs, the longest of them, memory made before the first of them, memory made later.
fn counts(plan: &Plan) -> [usize; 4] {
    let length = |op: &Op| match op {
        Op::Recordable(r) => Some(r.ops.len()),
        _ => None,
    };
    let runs: Vec<usize> = plan.ops.iter().filter_map(length).collect();
    let issues = |op: &&Op| matches!(op, Op::Recordable(_) | Op::Library(_));
    let first = plan.ops.iter().position(|op| issues(&op)).unwrap();
    let made = |ops: &[Op]| ops.iter().filter(|o| matches!(o, Op::Allocate(_))).count();
    let longest = runs.iter().copied().max().unwrap_or(0);
    [
        runs.len(),
        longest,
        made(&plan.ops[..first]),
        made(&plan.ops[first..]),
    ]
}

#[test]
fn weights_that_the_caller_holds_do_not_cut_a_recording() {
    let plan = planned(&layers(true));
    assert_eq!(counts(&plan), [1, LAYERS, 2, 0]);
    assert!(!plan.ops.iter().any(|op| matches!(op, Op::Free { .. })));
}

#[test]
fn memory_that_a_call_releases_is_released_in_time() {
    let plan = planned(&layers(false));
    let [_, longest, _, later] = counts(&plan);
    assert!(longest < LAYERS && later > 0, "{:?}", counts(&plan));
    let freed = |op: &&Op| matches!(op, Op::Free { .. });
    assert_eq!(plan.ops.iter().filter(freed).count(), 1 + LAYERS);
}
