//! Compiled graphs as source.

use crate::errors::raise;
use crate::host::run::Runner;
use inrush_base::Error;
use inrush_runtime::cc;
use inrush_source::{Code, Object, Unit};
use pyo3::prelude::*;

/// Prints a graph as a file of Python. Objects of the interpreter are named by `inrush.source.expression`.
pub fn python(py: Python<'_>, runner: &Runner, name: &str) -> PyResult<String> {
    let program = &runner.program;
    let expression = py.import("inrush.source")?.getattr("expression")?;
    let mut objects = Vec::with_capacity(runner.objects.len());
    for o in &runner.objects {
        let (named, text): (bool, String) = expression.call1((o,))?.extract()?;
        objects.push(match named {
            true => Object::Expression(text),
            false => Object::Missing(text),
        });
    }
    let libraries: &[&str] = match program.vector_math {
        true => &["-lmvec", "-lm"],
        false => &["-lm"],
    };
    let flags;
    let (target, code) = match &program.gpu {
        None => {
            let isa = program.isa().map_err(raise)?;
            flags = cc::compile_flags(isa);
            let code = Code::C {
                flags: &flags,
                libraries,
            };
            (format!("a CPU of level {}", isa.name()), code)
        }
        Some(gpu) => {
            let mut kinds = inrush_devices::ALL.into_iter();
            let kind = kinds.find(|d| d.backend == gpu.target.backend);
            let kind = kind.ok_or_else(|| raise(Error::internal("a GPU of no kind")))?;
            let target = format!("{} {}", gpu.target.backend, gpu.target.arch);
            (target, Code::Gpu(kind))
        }
    };
    inrush_source::python(&Unit {
        name,
        target: &target,
        program,
        objects: &objects,
        inputs: &[],
        archive: None,
        code,
    })
    .map_err(raise)
}
