//! Work of the host between kernels, over a driver that is a small C library: choices, and programs that are damaged.

mod driver;
mod programs;

use driver::{ALL, Machine, binary, floats, gpu, log, tensor, with_driver};
use inrush_base::DType;
use inrush_host::native::{Lowered, Model, Options};
use inrush_host::program::{Layout, Step, StepKind};
use inrush_program::Dt;
use inrush_program::parts::{Body, Cond, MOST_NESTED, Operand, Work};
use inrush_runtime::{MemoryWeights, Tensor, Value};
use programs::{chain, lowered, program};

/// Multiplies by a power of 4.
fn quadruple(times: usize) -> Lowered {
    let (steps, last) = chain(times);
    lowered(program(gpu(), steps, times + 2, last, 1))
}

/// Chooses by a bool between two programs, which take a tensor and give one and a flag.
fn choice(then: Lowered, otherwise: Lowered) -> Lowered {
    let body = |program: Lowered| Body {
        inputs: vec![Operand::Slot(0); program.inputs.len()],
        program,
    };
    let work = Work::Cond(Cond {
        predicate: 3,
        then: body(then),
        otherwise: body(otherwise),
        outs: vec![1, 2],
        origin: "node `cond`".into(),
    });
    let step = Step {
        kind: StepKind::Work(Box::new(work)),
        frees: Vec::new(),
        binds_symbols: false,
    };
    let mut program = program(gpu(), vec![step], 4, 1, 2);
    program.inputs.push(3);
    if let Some(gpu) = &mut program.gpu {
        gpu.layouts[3] = Some(Layout {
            dtype: Dt(DType::Bool),
            sizes: Vec::new(),
            strides: Vec::new(),
        });
    }
    Lowered {
        inputs: vec!["x".into(), "p".into()],
        program,
        ..quadruple(1)
    }
}

fn cond(l: &mut Lowered) -> &mut Cond<Lowered> {
    match &mut l.program.steps[0].kind {
        StepKind::Work(w) => match &mut **w {
            Work::Cond(c) => c,
            _ => panic!("a choice"),
        },
        _ => panic!("work"),
    }
}

#[test]
fn a_choice_runs_one_program_on_memory_of_the_call() {
    let name = "a_choice_runs_one_program_on_memory_of_the_call";
    let machine = Machine {
        is_late: true,
        kinds: ALL,
        ..Machine::default()
    };
    with_driver(name, machine, |folder| {
        let lowered = choice(quadruple(1), quadruple(2));
        lowered.check().expect("a choice");
        assert_eq!((lowered.kernels().len(), lowered.launches()), (3, 6));
        let binaries = vec![binary(folder); 3];
        let weights = MemoryWeights::default();
        let model = Model::new(lowered, binaries, &weights, gpu(), None, Options::default());
        let model = model.expect("a model");
        for (which, factor) in [(true, 4.0), (false, 16.0), (true, 4.0)] {
            let p = Tensor::from_bytes(DType::Bool, Vec::new(), &[u8::from(which)]);
            let p = Value::Tensor(p.expect("a bool"));
            log(folder);
            let out = model.run(&[tensor(&[1.0, -2.0, 3.0]), p]).expect("a call");
            assert_eq!(floats(&out[0]), [factor, -2.0 * factor, 3.0 * factor]);
            let launches = if which { 2 } else { 4 };
            let seen = log(folder);
            let count = |word: &str| seen.iter().filter(|l| l.contains(word)).count();
            assert_eq!(count("launch twice"), launches, "{seen:?}");
            // The predicate, then the result.
            assert_eq!((count("to host 1"), count("to host")), (2, 2), "{seen:?}");
        }
        let graphs = Options {
            capture: true,
            ..Options::default()
        };
        let captured = choice(quadruple(1), quadruple(2));
        let e = Model::new(
            captured,
            vec![binary(folder); 3],
            &weights,
            gpu(),
            None,
            graphs,
        );
        let e = e.err().expect("no captures").to_string();
        assert!(e.contains("control flow"), "{e}");
    });
}

#[test]
fn damaged_work_is_refused() {
    let whole = || choice(quadruple(1), quadruple(2));
    whole().check().expect("a choice");
    let damages: [(&str, fn(&mut Lowered)); 8] = [
        ("other inputs", |l| cond(l).then.inputs.clear()),
        ("other inputs", |l| {
            cond(l).then.inputs[0] = Operand::Carried(0)
        }),
        ("other inputs", |l| {
            cond(l).then.inputs[0] = Operand::Slice(0)
        }),
        ("other outputs", |l| {
            cond(l).outs.pop();
        }),
        ("damaged", |l| cond(l).outs[0] = 9),
        ("damaged", |l| cond(l).predicate = 9),
        ("before it is defined", |l| cond(l).predicate = 1),
        ("damaged", |l| {
            l.program.steps[0].binds_symbols = false_symbol(l)
        }),
    ];
    for (word, damage) in damages {
        let mut l = whole();
        damage(&mut l);
        let e = l.check().expect_err(word).to_string();
        assert!(e.contains(word), "{word}: {e}");
    }
    let mut nested = quadruple(1);
    for _ in 0..MOST_NESTED {
        nested = choice(nested, quadruple(1));
    }
    nested.check().expect("as deep as it may be");
    let e = choice(nested, quadruple(1)).check().expect_err("too deep");
    assert!(e.to_string().contains("too many programs"), "{e}");
}

/// Makes a symbol read from a step that does not say so.
fn false_symbol(l: &mut Lowered) -> bool {
    l.program.symbols[0].after = Some(0);
    false
}
