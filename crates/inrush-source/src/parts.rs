//! Programs in parts as host programs: the form in which all programs are printed.

use inrush_base::{Error, Result};
use inrush_program::host::{
    Bounds, Expected, HostProgram, Layout, Lowered, Object, Out, Step, StepKind,
};
use inrush_program::parts::{self, Body, Cond, Scan, Sequence, While, Work};
use inrush_program::{
    Dt, Guard, Input, InputType, Output, Place, Program, Size, SizeId, SymbolSource,
};

/// Returns the host program of a program for a CPU: its steps if it is in parts, else the program as the only step. `pieces` are
/// the sources of all kernels.
///
/// # Errors
/// An input error for a damaged program.
pub fn host_program(program: Program, pieces: Vec<String>) -> Result<Lowered> {
    program.verify()?;
    let mut lowered = lower(program)?;
    lowered.program.pieces = pieces;
    Ok(lowered)
}

fn lower(mut program: Program) -> Result<Lowered> {
    let inputs: Vec<String> = program.inputs.iter().map(|i| i.name.clone()).collect();
    if let Some(parts) = program.parts.take() {
        return lower_parts(program, *parts, inputs);
    }
    let of_data = |s: &inrush_program::Symbol| matches!(s.source, SymbolSource::Data);
    if program.symbols.iter().any(of_data) {
        return Err(Error::input("a size that depends on data outside of parts"));
    }
    Ok(Lowered {
        program: HostProgram::of(program),
        objects: Vec::new(),
        inputs,
        complex: Default::default(),
        guards: Vec::new(),
        bounds: Vec::new(),
        expected: Expected::default(),
    })
}

fn damaged(what: &str) -> Error {
    Error::input(format!("the program is damaged: {what}"))
}

/// Lowers a program in parts. `outer` is the program that callers see.
fn lower_parts(outer: Program, parts: Sequence, inputs: Vec<String>) -> Result<Lowered> {
    // The size arithmetic of what callers see follows that of the steps.
    let first = parts.sizes.len() as u32;
    let mut sizes = parts.sizes;
    let moved = |id: SizeId| SizeId(id.0 + first);
    sizes.extend(outer.sizes.iter().map(|line| shifted(line, first)));
    let mut objects = Vec::new();
    let mut constants = Vec::new();
    let mut layouts: Vec<Option<Layout>> = vec![None; parts.slots];
    for (slot, name) in &parts.weights {
        let found = outer.buffers.iter().find_map(|b| match &b.place {
            Place::Weight(w) if w.name == *name => Some((b.dtype, w)),
            _ => None,
        });
        let (dtype, w) = found.ok_or_else(|| damaged("a weight without a layout"))?;
        let mut numbers = |all: &[i64]| -> Vec<SizeId> {
            let begin = sizes.len() as u32;
            sizes.extend(all.iter().map(|n| Size::Const(*n)));
            (begin..sizes.len() as u32).map(SizeId).collect()
        };
        layouts[*slot] = Some(Layout {
            dtype,
            sizes: numbers(&w.sizes),
            strides: numbers(&w.strides),
        });
        constants.push((*slot, objects.len()));
        objects.push(Object::Weight(name.clone()));
    }
    let all_moved = |ids: &[SizeId]| ids.iter().map(|id| moved(*id)).collect::<Vec<_>>();
    let mut outputs = Vec::new();
    for (o, promised) in parts.outputs.iter().zip(&outer.outputs) {
        outputs.push(match (o, promised) {
            (_, Output::Mutation) => continue,
            (
                parts::Out::Slot(slot),
                Output::Tensor {
                    dtype,
                    sizes,
                    strides,
                    ..
                },
            ) => {
                layouts[*slot].get_or_insert_with(|| Layout {
                    dtype: *dtype,
                    sizes: all_moved(sizes),
                    strides: all_moved(strides),
                });
                Out::Slot(*slot)
            }
            (parts::Out::Slot(slot), _) => Out::Slot(*slot),
            (parts::Out::Size(id), _) => Out::Size(*id),
            (parts::Out::Scalar(n), _) => {
                objects.push(Object::Scalar(*n));
                Out::Constant(objects.len() - 1)
            }
            (parts::Out::None, _) => {
                objects.push(Object::None);
                Out::Constant(objects.len() - 1)
            }
        });
    }
    let count = parts.steps.len();
    let mut steps = Vec::with_capacity(count);
    for (at, step) in parts.steps.into_iter().enumerate() {
        if let parts::StepKind::Write(all) = &step.kind {
            if at + 1 != count {
                return Err(damaged("new contents before the last step"));
            }
            outputs.extend(all.iter().map(|w| Out::Mutation {
                value: w.from,
                into: w.to,
            }));
            continue;
        }
        steps.push(Step {
            kind: lower_step(step.kind)?,
            frees: step.frees,
            binds_symbols: parts.symbols.iter().any(|s| s.after == Some(at)),
        });
    }
    let expected = Expected {
        inputs: outer.inputs.iter().map(|i| input(i, &moved)).collect(),
        layouts,
    };
    Ok(Lowered {
        program: HostProgram {
            steps,
            symbols: parts.symbols,
            sizes,
            slots: parts.slots,
            inputs: parts.inputs,
            constants,
            outputs,
            pieces: Vec::new(),
            isa: String::new(),
            vector_math: false,
            gpu: None,
        },
        objects,
        inputs,
        complex: Default::default(),
        guards: (outer.guards.iter())
            .map(|g| Guard {
                left: moved(g.left),
                right: moved(g.right),
                ..g.clone()
            })
            .collect(),
        bounds: (outer.symbols.iter())
            .map(|s| Bounds {
                name: s.name.clone(),
                lower: s.lower,
                upper: s.upper,
            })
            .collect(),
        expected,
    })
}

fn lower_step(step: parts::StepKind) -> Result<StepKind> {
    Ok(match step {
        parts::StepKind::Segment(s) => StepKind::Segment(s),
        parts::StepKind::View(v) => StepKind::View(v),
        parts::StepKind::Dynamic(d) => StepKind::Work(Box::new(Work::Dynamic(d))),
        parts::StepKind::Custom(c) => StepKind::Work(Box::new(Work::Custom(c))),
        parts::StepKind::Cond(c) => StepKind::Work(Box::new(Work::Cond(Cond {
            predicate: c.predicate,
            then: lower_body(c.then)?,
            otherwise: lower_body(c.otherwise)?,
            outs: c.outs,
            origin: c.origin,
        }))),
        parts::StepKind::While(w) => StepKind::Work(Box::new(Work::While(While {
            condition: lower_body(w.condition)?,
            body: lower_body(w.body)?,
            carried: w.carried,
            outs: w.outs,
            origin: w.origin,
        }))),
        parts::StepKind::Scan(s) => StepKind::Work(Box::new(Work::Scan(Scan {
            body: lower_body(s.body)?,
            carried: s.carried,
            sliced: s.sliced,
            outs: s.outs,
            stacked: s.stacked,
            origin: s.origin,
        }))),
        parts::StepKind::Write(_) => return Err(damaged("new contents before the last step")),
    })
}

fn lower_body(body: Body) -> Result<Body<Lowered>> {
    Ok(Body {
        program: lower(body.program)?,
        inputs: body.inputs,
    })
}

/// Returns a line of size arithmetic that refers to lines further on.
fn shifted(line: &Size, by: u32) -> Size {
    let to = |id: SizeId| SizeId(id.0 + by);
    match *line {
        Size::Const(_) | Size::Sym(_) => *line,
        Size::Add(a, b) => Size::Add(to(a), to(b)),
        Size::Mul(a, b) => Size::Mul(to(a), to(b)),
        Size::FloorDiv(a, b) => Size::FloorDiv(to(a), to(b)),
        Size::Mod(a, b) => Size::Mod(to(a), to(b)),
        Size::Min(a, b) => Size::Min(to(a), to(b)),
        Size::Max(a, b) => Size::Max(to(a), to(b)),
    }
}

/// Returns an input with sizes of another list.
fn input(i: &Input, moved: &dyn Fn(SizeId) -> SizeId) -> Input {
    let all = |ids: &[SizeId]| ids.iter().map(|id| moved(*id)).collect();
    let ty = match &i.ty {
        InputType::Tensor {
            dtype,
            sizes,
            strides,
        } => InputType::Tensor {
            dtype: Dt(dtype.0),
            sizes: all(sizes),
            strides: all(strides),
        },
        InputType::Int { value } => InputType::Int {
            value: moved(*value),
        },
        InputType::Constant { value } => InputType::Constant { value: *value },
        InputType::Ignored => InputType::Ignored,
    };
    Input { ty, ..i.clone() }
}
