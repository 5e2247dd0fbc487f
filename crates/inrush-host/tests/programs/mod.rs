//! Small programs for tests: segments that double a tensor, and products.

use inrush_base::{DType, Scalar};
use inrush_host::program::{
    Call, Device, Gpu, HostProgram, Layout, Library, LibraryOp, Lowered, Object, Out, Read,
    Segment, Step, StepKind, Symbol,
};
use inrush_program::{
    Buffer, Dt, GpuKernel, GpuTarget, Input, InputType, Kernel, Launch, Output, Place, Program,
    Reads, Size, SizeId, SymbolSource,
};

const F32: Dt = Dt(DType::F32);
/// Lines of size arithmetic.
const ZERO: SizeId = SizeId(0);
const N: SizeId = SizeId(1);
const BYTES: SizeId = SizeId(3);
const ONE: SizeId = SizeId(4);
const TWO: SizeId = SizeId(5);

fn lines() -> Vec<Size> {
    vec![
        Size::Const(0),
        Size::Sym(0),
        Size::Const(4),
        Size::Mul(N, SizeId(2)),
        Size::Const(1),
        Size::Const(2),
    ]
}

fn buffer(name: &str, place: Place, written: bool) -> Buffer {
    Buffer {
        name: name.into(),
        dtype: F32,
        place,
        bytes: BYTES,
        written,
    }
}

/// Doubles a tensor of `n` floats twice, with a value of the arena in between.
fn doubles() -> Program {
    let launch = |from, to| {
        inrush_program::Step::Launch(Launch {
            kernel: 0,
            buffers: vec![from, to],
            sizes: vec![N],
            units: ONE,
            unit_cost: N,
            scratch_bytes: ZERO,
            serial: false,
            beside: false,
            origins: Vec::new(),
        })
    };
    Program {
        name: "doubles".into(),
        symbols: vec![inrush_program::Symbol {
            name: "n".into(),
            lower: 0,
            upper: 1 << 40,
            source: SymbolSource::Dim {
                input: 0,
                dim: 0,
                factor: 1,
                offset: 0,
            },
        }],
        sizes: lines(),
        inputs: vec![Input {
            name: "x".into(),
            ty: InputType::Tensor {
                dtype: F32,
                sizes: vec![N],
                strides: vec![ONE],
            },
            reads: Reads::Elements,
        }],
        buffers: vec![
            buffer("x", Place::Input { input: 0 }, false),
            buffer("t", Place::Arena { offset: ZERO }, true),
            buffer("y", Place::Output { output: 0 }, true),
        ],
        arena_bytes: BYTES,
        load_bytes: ZERO,
        parts: None,
        kernels: vec![Kernel {
            symbol: "twice".into(),
            title: "mul".into(),
            checks: Vec::new(),
        }],
        steps: vec![launch(0, 1), launch(1, 2)],
        outputs: vec![
            Output::Tensor {
                buffer: 2,
                dtype: F32,
                sizes: vec![N],
                strides: vec![ONE],
            },
            Output::Scalar {
                value: Scalar::Bool(true).into(),
            },
        ],
        ..Program::default()
    }
}

/// Returns the segment over slots: its tensor, the result, and a flag if it is asked for.
pub fn segment(input: usize, output: usize, flag: Option<usize>) -> Step {
    let mut program = doubles();
    program.outputs.truncate(1 + usize::from(flag.is_some()));
    Step {
        kind: StepKind::Segment(Segment {
            program,
            inputs: vec![input],
            symbols: vec![0],
            outputs: [output].into_iter().chain(flag).collect(),
        }),
        frees: Vec::new(),
        binds_symbols: false,
    }
}

/// Returns a chain of segments, each of which multiplies by 4: slots 0, 2, 3 and so on; the first one gives a flag in slot 1.
/// The number is that of the last slot.
#[allow(dead_code)] // Not every test has chains.
pub fn chain(count: usize) -> (Vec<Step>, usize) {
    let from = |k| if k == 0 { 0 } else { k + 1 };
    let steps = (0..count)
        .map(|k| segment(from(k), k + 2, (k == 0).then_some(1)))
        .collect();
    (steps, count + 1)
}

/// Returns the target of a device: an H100, an MI300X or a Max 1550.
fn target(device: Device) -> GpuTarget {
    let name = inrush_host::devices::name(device);
    let (backend, arch, warp) = match name.split(':').next() {
        Some("rocm") => ("hip", "gfx942", 64),
        Some("xpu") => ("xpu", "pvc", 32),
        _ => ("cuda", "90", 32),
    };
    GpuTarget {
        backend: backend.into(),
        arch: arch.into(),
        warp,
    }
}

pub fn program(
    device: Device,
    steps: Vec<Step>,
    slots: usize,
    output: usize,
    flag: usize,
) -> HostProgram {
    let flat = Layout {
        dtype: F32,
        sizes: vec![N],
        strides: vec![ONE],
    };
    let square = Layout {
        dtype: F32,
        sizes: vec![TWO, TWO],
        strides: vec![TWO, ONE],
    };
    let mut layouts = vec![Some(flat); slots];
    layouts[flag] = None;
    for step in &steps {
        if let StepKind::Library(l) = &step.kind {
            for s in l.inputs.iter().flatten().chain(&l.outs) {
                layouts[*s] = Some(square.clone());
            }
        }
    }
    let signature = [("x", "*fp32"), ("y", "*fp32"), ("n", "i32")];
    HostProgram {
        steps,
        symbols: vec![Symbol {
            slot: 0,
            read: Read::Dim {
                dim: 0,
                factor: 1,
                offset: 0,
            },
            after: None,
        }],
        sizes: lines(),
        slots,
        inputs: vec![0],
        constants: Vec::new(),
        outputs: vec![Out::Slot(output), Out::Slot(flag)],
        pieces: Vec::new(),
        isa: String::new(),
        vector_math: false,
        gpu: Some(Gpu {
            graphs: false,
            keeps_arguments: false,
            target: target(device),
            device,
            kernels: vec![GpuKernel {
                symbol: "twice".into(),
                function: "twice".into(),
                signature: (signature.iter())
                    .map(|(n, t)| (n.to_string(), t.to_string()))
                    .collect(),
                ..GpuKernel::default()
            }],
            layouts,
        }),
    }
}

/// A product of two square matrices of two rows.
pub fn product(a: usize, b: usize, out: usize, call: Option<Call>) -> Step {
    Step {
        kind: StepKind::Library(Library {
            op: LibraryOp::Mm,
            inputs: vec![Some(a), Some(b)],
            outs: vec![out],
            call,
        }),
        frees: Vec::new(),
        binds_symbols: false,
    }
}

/// Returns `p * p` for `p = 4 x * w`, with the weight `w` in slot 3.
#[allow(dead_code)] // Not every test has products.
pub fn two_products(device: Device) -> HostProgram {
    let steps = vec![
        segment(0, 1, Some(2)),
        product(1, 3, 4, None),
        product(4, 4, 5, None),
    ];
    let mut program = program(device, steps, 6, 5, 2);
    program.constants = vec![(3, 0)];
    program
}

/// Lowers a program whose input is `x` and whose constants are the weights `w` with the number of their slot.
#[allow(dead_code)] // Packages name their own inputs.
pub fn lowered(program: HostProgram) -> Lowered {
    let objects = (program.constants.iter())
        .map(|c| Object::Weight(format!("w{}", c.1)))
        .collect();
    let lowered = Lowered {
        objects,
        inputs: vec!["x".into()],
        program,
        complex: Default::default(),
        guards: Vec::new(),
        bounds: Vec::new(),
        expected: Default::default(),
    };
    lowered.check().unwrap();
    lowered
}
