//! Printed files of small programs.

mod common;

use common::scaled;
use inrush_base::{Device, ErrorKind};
use inrush_program::host::{HostProgram, StepKind};
use inrush_source::{Code, Object, Unit, host_program, python};

const NONE: Code<'static> = Code::C {
    flags: &["-O2"],
    libraries: &["-lm"],
};

/// Reads the program, with `replacements` in its text.
fn program(replacements: &[(&str, &str)]) -> HostProgram {
    let program = scaled(replacements);
    host_program(program, vec!["int x;\n".into()])
        .unwrap()
        .program
}

fn unit(program: &HostProgram) -> Unit<'_> {
    Unit {
        name: "scaled",
        target: "a CPU",
        program,
        objects: &[],
        inputs: &[],
        archive: Some("scaled.pt2"),
        code: NONE,
        guards: &[],
        bounds: &[],
        expected: None,
    }
}

#[test]
fn a_program_is_a_function_with_its_guards_buffers_and_launches() {
    let program = program(&[]);
    let text = python(&unit(&program)).unwrap();
    let expected = r#"def load_segment():
    """Runs the steps that depend on weights alone."""
    scale = WEIGHTS["a.scale"]
    half = memory(3, torch.float32)
    # aten.div.Tensor
    halve_kernel([scale, half], [], units=1, cost=1)
    return (half,)


def segment(x, n):
    """Runs the kernels of `scaled`."""
    within("n", n, 2, 64)
    guard(n % 2 == 0, "the size is even", n % 2, 0)
    x = laid_out("x", x, torch.float32, (n, 3), (3, 1))
    (half,) = LOADED["segment"]
    t = memory(3 * n, torch.float32)
    # aten.mul.Tensor
    mul_add_kernel([x, half, t], [n], units=n, cost=12, scratch=12, serial=True)
    y = strided_memory((n, 3), (3, 1), torch.float32)
    # aten.mm.default
    sum_kernel(
        contract(torch.float32, t, 0, x, 0, batch=[], m=[(n, 3)], n=[(3, 1)], k=[(1, 1, 1)]),
        [y],
        [],
    )
    del t
    return y
"#;
    assert!(text.contains(expected), "{text}");
    for part in [
        "mul_add_kernel = Kernel(\"f1\", [(OutOfRange, \"index out of \\\"range\\\"\")])\n",
        "sum_kernel = Epilogue(\"f2\")\n",
        "    \"a.scale\": (torch.float32, (3,), (1,)),\n",
        "    LOADED[\"segment\"] = load_segment()\n",
        "    y = segment(x, n)\n    return (y,)\n",
        "    n = 8\n    return [\n        drawn(torch.float32, (n, 3), (3, 1)),  # x\n",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
}

#[test]
fn printing_is_deterministic() {
    let program = program(&[]);
    let first = python(&unit(&program)).unwrap();
    assert_eq!(first, python(&unit(&program)).unwrap());
}

#[test]
fn what_has_no_source_is_named() {
    let program = program(&[(
        "load launch k0 [b1, b2] sizes [] units 1 cost 1 scratch 0 from [aten.div.Tensor]",
        "load library toy.gru [] [b1[z1]] -> [b2[z1]] from [aten.gru.input]",
    )]);
    let error = python(&unit(&program)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.message().contains("toy.gru"), "{error}");
    let program = self::program(&[]);
    let without = Unit {
        archive: None,
        ..unit(&program)
    };
    let error = python(&without).unwrap_err();
    assert!(error.message().contains("archive"), "{error}");
    let mut program = self::program(&[]);
    program.constants.push((0, 0));
    let objects = [Object::Missing("the function `f`".into())];
    let missing = Unit {
        objects: &objects,
        ..unit(&program)
    };
    let error = python(&missing).unwrap_err();
    assert!(error.message().contains("the function `f`"), "{error}");
}

#[test]
fn damaged_programs_are_errors() {
    let device = Device {
        name: "toy",
        torch_name: "toy",
        torch_build: "toy",
        backend: "toy",
        backend_package: ("toy", "`toy`"),
        binary: "toy",
        presets: &[],
        cpp: None,
        runs: None,
    };
    let program = program(&[]);
    let of_gpu = Unit {
        code: Code::Gpu(&device),
        ..unit(&program)
    };
    assert!(python(&of_gpu).is_err());
    let mut broken = program.clone();
    broken.outputs.push(inrush_program::host::Out::Slot(99));
    assert!(python(&unit(&broken)).is_err());
    let mut broken = program.clone();
    if let StepKind::Segment(s) = &mut broken.steps[0].kind {
        s.program.kernels.pop();
    }
    assert!(python(&unit(&broken)).is_err());
    let mut broken = program;
    if let StepKind::Segment(s) = &mut broken.steps[0].kind {
        s.inputs.clear();
    }
    assert!(python(&unit(&broken)).is_err());
}

#[test]
fn library_functions_are_calls_of_pytorch() {
    let program = program(&[(
        "load launch k0 [b1, b2] sizes [] units 1 cost 1 scratch 0 from [aten.div.Tensor]",
        "load library topk [0, true, true] [b1[z1]] -> [b2[z1]] from [aten.topk.default]",
    )]);
    let text = python(&unit(&program)).unwrap();
    let call = "    # aten.topk.default\n    library(\"topk\", [(scale, (3,))], [(half, (3,))], 0, True, True)\n";
    assert!(text.contains(call), "{text}");
}

/// A loop that doubles a tensor, whose condition reads it, over a body with a weight.
const LOOP: &str = r#"program loop
symbol n in [2, 64] = input 0 dim 0
size z0 = n
size z1 = 1
size z2 = 4
size z3 = 4 * n
input 0 x: f32[n] strides [1]
b0 y: f32 0 bytes written = output 0
arena 0 bytes
load arena 0 bytes
output 0: b0 f32[n] strides [1]
parts 2 slots
  symbol n = %0 dim 0
  size z0 = n
  size z1 = 1
  inputs [%0]
  while [%0] -> [%1] from "the loop\n  at model.py:3"
  condition [carried 0]
    program more
    symbol n in [2, 64] = input 0 dim 0
    size z0 = n
    size z1 = 1
    size z2 = 4
    size z3 = 4 * n
    input 0 a: f32[n] strides [1]
    b0 a: f32 z3 bytes = input 0
    b1 more: bool z1 bytes written = output 0
    kernel k0 f0 less checks []
    arena 0 bytes
    load arena 0 bytes
    launch k0 [b0, b1] sizes [n] units 1 cost 1 scratch 0 from [aten.lt.Scalar]
    output 0: b1 bool[] strides []
  end
  body [carried 0]
    program turn
    symbol n in [2, 64] = input 0 dim 0
    size z0 = n
    size z1 = 1
    size z2 = 4
    size z3 = 4 * n
    input 0 a: f32[n] strides [1]
    b0 a: f32 z3 bytes = input 0
    b1 twice: f32 z3 bytes written = output 0
    kernel k0 f1 double checks []
    arena 0 bytes
    load arena 0 bytes
    launch k0 [b0, b1] sizes [n] units 1 cost 1 scratch 0 from [aten.mul.Scalar]
    output 0: b1 f32[n] strides [1]
  end
  output 0: %1
end
"#;

#[test]
fn loops_call_functions_of_the_file() {
    let program = inrush_program::text::parse(LOOP).unwrap_or_else(|e| panic!("{e}"));
    let lowered = host_program(program, vec!["int x;\n".into()]).unwrap();
    let text = python(&Unit::of(&lowered, &[], NONE)).unwrap();
    let expected = r#"    n = solve("x", x, 0)
    within("n", n, 2, 64)
    x = laid_out("x", x, torch.float32, (n,), (1,))
    # the loop
    # at model.py:3
    value = x
    while condition_0(value):
        value = body_0(value)
    (value,) = owned([value], [x])
    value = conformed(value, (n,), (1,))
    return (value,)
"#;
    assert!(text.contains(expected), "{text}");
    let expected = r#"def body_0(a):
    """A program that control flow calls."""
    n = solve("a", a, 0)
    twice = body_0_segment(a, n)
    return twice
"#;
    assert!(text.contains(expected), "{text}");
}

#[test]
fn every_function_of_the_library_is_printed() {
    for f in inrush_library::all() {
        let call = format!(
            "load library {} [] [b1[z1]] -> [b2[z1]] from [aten.some.default]",
            f.name
        );
        let program = program(&[(
            "load launch k0 [b1, b2] sizes [] units 1 cost 1 scratch 0 from [aten.div.Tensor]",
            &call,
        )]);
        let text = python(&unit(&program));
        assert!(text.is_ok(), "{}: {text:?}", f.name);
    }
}
