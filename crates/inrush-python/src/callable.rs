//! Compiled graphs as Python callables.

use crate::compile::{self, Report, Settings, Tune};
use crate::errors::raise;
use crate::recipe::Recipe;
use crate::run::{MachineCode, Runner};
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};
use smallvec::SmallVec;
use std::time::Instant;

/// A compiled graph. It is called with its flat arguments, or as AOTAutograd does with one list of them, which it empties
/// so that inputs can be freed during the call. It gives a tuple.
#[pyclass(frozen, module = "inrush._native")]
pub struct Compiled {
    runner: Runner,
    report: Report,
    /// Threads that the user asked for.
    threads: Option<usize>,
}

impl Compiled {
    pub fn new(runner: Runner, report: Report, threads: Option<usize>) -> Compiled {
        Compiled {
            runner,
            report,
            threads,
        }
    }
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

    /// How `pickle` writes it: the recipe and the report as bytes, the objects as a list in which operators stand by name.
    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyTuple>> {
        let py = slf.py();
        let this = slf.get();
        let bytes = serde_json::to_vec(&(&this.runner.recipe, &this.report, this.threads))
            .map_err(|e| PyValueError::new_err(e.to_string()))?;
        let overload = py.import("torch")?.getattr("_ops")?.getattr("OpOverload")?;
        let portable = py.import("inrush._cache")?.getattr("portable")?;
        let mut objects = Vec::new();
        for o in &this.runner.objects {
            let o = o.bind(py);
            objects.push(match o.is_instance(&overload)? {
                true => (true, o.call_method0("name")?),
                false => (false, portable.call1((o,))?),
            });
        }
        let restore = py.import("inrush._native")?.getattr("restore")?;
        (restore, (PyBytes::new(py, &bytes), objects)).into_pyobject(py)
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
        d.set_item("libraries", &r.libraries)?;
        let mut tuned = r.tuned.clone();
        if let MachineCode::Gpu(engine) = &self.runner.code {
            tuned.extend(engine.tuned());
        }
        d.set_item("tuned", tuned)?;
        d.set_item("untuned", r.untuned)?;
        d.set_item("python", self.runner.recipe.enters_python())?;
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
/// `options` may hold what [`Settings`] has; `resolve` tells what to call for an FX node that is not compiled (by default the
/// node's target).
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
            "fallback_random" => settings.fallback_random = v.extract()?,
            "threads" => settings.threads = Some(v.extract()?),
            "trace" => settings.trace = Some(v.extract()?),
            "cudagraphs" => settings.graphs = v.extract()?,
            "pointers" => {
                let name: String = v.extract()?;
                settings.pointers = name.parse().map_err(crate::errors::raise)?;
            }
            "tune" => {
                let name: String = v.extract()?;
                settings.tune = match name.as_str() {
                    "never" => Tune::Never,
                    "now" => Tune::Now,
                    "at call" => Tune::AtCall,
                    "known" => Tune::Known,
                    _ => return Err(PyValueError::new_err(format!("tuning `{name}`"))),
                };
            }
            "gpu" => settings.gpu = Some(v.extract()?),
            "interpret" => settings.interpret = v.extract()?,
            other => return Err(PyValueError::new_err(format!("unknown setting `{other}`"))),
        }
    }
    let (runner, report) = compile::compile(py, gm, &settings, resolve)?;
    Ok(Compiled {
        runner,
        report,
        threads: settings.threads,
    })
}

/// Reads a compiled graph back; machine code comes from the cache, or is built again from the source.
#[pyfunction]
pub fn restore(
    py: Python<'_>,
    bytes: &[u8],
    objects: Vec<(bool, Bound<'_, PyAny>)>,
) -> PyResult<Compiled> {
    let start = Instant::now();
    let (mut recipe, mut report, threads): (Recipe, Report, Option<usize>) =
        serde_json::from_slice(bytes)
            .map_err(|e| PyValueError::new_err(format!("a stored graph is damaged: {e}")))?;
    recipe.check(objects.len()).map_err(raise)?;
    let ops = py.import("torch")?.getattr("ops")?;
    let mut held = Vec::with_capacity(objects.len());
    for (named, o) in objects {
        held.push(match named {
            true => operator(&ops, o.cast::<PyString>()?.to_str()?)?.unbind(),
            false => o.unbind(),
        });
    }
    let pool = compile::pool(py, threads)?;
    let (code, cached) = compile::load(py, &mut recipe, &pool)?;
    report.stages = vec![("restore".into(), start.elapsed())];
    report.cached = cached;
    Ok(Compiled {
        runner: Runner::new(recipe, held, code),
        report,
        threads,
    })
}

/// The operator of a name like `aten::add.Tensor`.
fn operator<'py>(ops: &Bound<'py, PyAny>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    let wrong = || PyValueError::new_err(format!("`{name}` names no operator"));
    let (namespace, rest) = name.split_once("::").ok_or_else(wrong)?;
    let (op, overload) = rest.split_once('.').unwrap_or((rest, "default"));
    ops.getattr(namespace)?.getattr(op)?.getattr(overload)
}
