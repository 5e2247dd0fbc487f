//! Compiled graphs as source.

use crate::errors::raise;
use inrush_base::Error;
use inrush_host::program::HostProgram;
use inrush_runtime::cc;
use inrush_source::{Code, Object, Unit};
use pyo3::prelude::*;

/// Prints a graph as a file of Python or C++. Objects of the interpreter are named by `inrush.source.expression`.
pub fn print(
    py: Python<'_>,
    program: &HostProgram,
    held: &[Py<PyAny>],
    name: &str,
    language: &str,
) -> PyResult<String> {
    let is_cpp = match language {
        "python" => false,
        "cpp" => true,
        other => {
            return Err(raise(Error::input(format!(
                "source is printed in the languages `python` and `cpp`, not `{other}`"
            ))));
        }
    };
    let expression = py.import("inrush.source")?.getattr("expression")?;
    let mut objects = Vec::with_capacity(held.len());
    for o in held {
        let (named, text): (bool, String) = expression.call1((o,))?.extract()?;
        objects.push(if named {
            Object::Expression(text)
        } else {
            Object::Missing(text)
        });
    }
    let libraries: &[&str] = if program.vector_math {
        &["-lmvec", "-lm"]
    } else {
        &["-lm"]
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
        Some(_) if is_cpp => {
            return Err(raise(Error::unsupported(
                "graphs of torch.compile for GPUs are printed as Python: `inrush compile --emit cpp` prints exported programs for GPUs as C++",
            )));
        }
        Some(gpu) => {
            let mut kinds = inrush_devices::ALL.into_iter();
            let kind = kinds.find(|d| d.backend == gpu.target.backend);
            let kind = kind.ok_or_else(|| raise(Error::internal("a GPU of no kind")))?;
            let target = format!("{} {}", gpu.target.backend, gpu.target.arch);
            (target, Code::Gpu(kind))
        }
    };
    let unit = Unit {
        name,
        target: &target,
        program,
        objects: &objects,
        inputs: &[],
        archive: None,
        code,
        guards: &[],
        bounds: &[],
        expected: None,
    };
    let text = if is_cpp {
        inrush_source::cpp(&unit).map(|file| file.text)
    } else {
        inrush_source::python(&unit)
    };
    text.map_err(raise)
}
