//! Compiled graphs as Python callables.

use crate::compile::{self, Report, Settings};
use crate::run::Runner;
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString, PyTuple};
use smallvec::SmallVec;

/// A compiled graph. It is called with its flat arguments, or as AOTAutograd does with one list of them, which it empties
/// so that inputs can be freed during the call. It gives a tuple.
#[pyclass(frozen, module = "inrush._native")]
pub struct Compiled {
    runner: Runner,
    report: Report,
}

#[pymethods]
impl Compiled {
    /// What tells AOTAutograd how it is called.
    #[classattr]
    fn _boxed_call() -> bool {
        true
    }

    #[pyo3(signature = (*args))]
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        args: &Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let out = match args.len() {
            1 if let Ok(list) = args.get_borrowed_item(0)?.cast::<PyList>() => {
                let items: SmallVec<[Bound<'py, PyAny>; 16]> = list.iter().collect();
                list.call_method0(intern!(py, "clear"))?;
                self.runner.run(py, items.into_iter())?
            }
            _ => self.runner.run(py, args.iter())?,
        };
        PyTuple::new(py, out)
    }

    /// What compiling did: kernels, called operators with reasons, times of the stages in seconds.
    fn report<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let r = &self.report;
        let d = PyDict::new(py);
        let stages = PyDict::new(py);
        for (name, took) in &r.stages {
            stages.set_item(name, took.as_secs_f64())?;
        }
        d.set_item("stages", stages)?;
        d.set_item("kernels", &r.kernels)?;
        d.set_item("contractions", r.contractions)?;
        d.set_item("segments", r.segments)?;
        let calls = r
            .calls
            .iter()
            .map(|(op, reason, line)| {
                let c = PyDict::new(py);
                c.set_item("op", op)?;
                c.set_item("reason", reason)?;
                c.set_item("line", line)?;
                Ok(c)
            })
            .collect::<PyResult<Vec<_>>>()?;
        d.set_item("calls", calls)?;
        d.set_item("cached", r.cached)?;
        d.set_item("refusals", &r.refusals)?;
        Ok(d)
    }
}

/// Compiles an FX graph module of ATen operators.
///
/// `options` may hold `strict`, `threads` and `trace`; `resolve` tells what to call for an FX node that is not compiled (by
/// default the node's target).
#[pyfunction]
#[pyo3(signature = (gm, options=None, resolve=None))]
pub fn compile_fx(
    py: Python<'_>,
    gm: &Bound<'_, PyAny>,
    options: Option<&Bound<'_, PyDict>>,
    resolve: Option<&Bound<'_, PyAny>>,
) -> PyResult<Compiled> {
    let mut settings = Settings::default();
    for (k, v) in options.iter().flat_map(|d| d.iter()) {
        if v.is_none() {
            continue;
        }
        match k.cast::<PyString>()?.to_str()? {
            "strict" => settings.strict = v.extract()?,
            "threads" => settings.threads = Some(v.extract()?),
            "trace" => settings.trace = Some(v.extract()?),
            other => return Err(PyValueError::new_err(format!("unknown setting `{other}`"))),
        }
    }
    let (runner, report) = compile::compile(py, gm, &settings, resolve)?;
    Ok(Compiled { runner, report })
}
