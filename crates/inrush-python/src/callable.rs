//! Compiled graphs as Python callables.
//!
//! A [`Compiled`] goes through up to three states, each entered once:
//!
//! ```text
//! pending --finish--> ready            kernels are built; calls run the program
//!    |
//!    '----replace---> instead          the build failed; calls run the function that was captured
//! ```
//!
//! With the option `later` the compiler returns in state pending, and the build goes on in a
//! thread. The first call waits for it. The interpreter's lock is released while it waits, and
//! signals are answered between two waits, so that Ctrl-C ends a long build.

use crate::compile::{self, Outcome, Pending, Report, Settings, Tune};
use crate::errors::raise;
use crate::host::run::{MachineCode, Runner};
use inrush_base::Error;
use inrush_host::program::HostProgram;
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};
use smallvec::SmallVec;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Instant;

/// A compiled graph. It is called with its flat arguments, or as AOTAutograd does with one list of them, which it empties
/// so that inputs can be freed during the call. It gives a tuple.
#[pyclass(frozen, weakref, module = "inrush._native")]
pub struct Compiled {
    /// Set once the kernels are loaded. Read without a lock by every call.
    ready: OnceLock<(Runner, Report)>,
    /// The build that goes on. Never locked while the interpreter's lock is held.
    pending: Mutex<Option<Box<Pending>>>,
    /// The function that calls run after a failed build.
    instead: OnceLock<Py<PyAny>>,
    /// True if calls enter the interpreter: for a called operator or a step that only Python does.
    python: bool,
    /// Threads that the user asked for; `None` uses PyTorch's pool. Kept for `pickle`.
    threads: Option<usize>,
}

impl Compiled {
    /// Wraps a graph whose machine code is loaded.
    pub fn new(runner: Runner, report: Report, threads: Option<usize>) -> Compiled {
        let python = runner.program.enters_interpreter();
        Compiled {
            ready: OnceLock::from((runner, report)),
            pending: Mutex::default(),
            instead: OnceLock::new(),
            python,
            threads,
        }
    }

    /// Waits for the build for a bounded time. Returns false if it goes on.
    fn wait(&self) -> PyResult<bool> {
        let mut pending = self.pending.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have waited for it meanwhile, with or without success.
        if self.ready.get().is_none() {
            if pending.as_mut().is_some_and(|p| !p.is_built()) {
                return Ok(false);
            }
            if let Some(p) = pending.take() {
                let _ = self.ready.set(p.finish()?);
            }
        }
        Ok(true)
    }

    /// Returns the runner and the report, after the build if it still runs.
    fn ready(&self, py: Python<'_>) -> PyResult<&(Runner, Report)> {
        if let Some(r) = self.ready.get() {
            return Ok(r);
        }
        // Interrupts are answered between two waits; the build stays pending.
        while !py.detach(|| self.wait())? {
            py.check_signals()?;
        }
        self.ready
            .get()
            .ok_or_else(|| raise(Error::machine("the kernels of this graph were not built")))
    }
}

impl Compiled {
    /// Calls the uncompiled function with the calling convention of this object: one list is
    /// emptied and passed as separate arguments, and any sequence that comes back becomes a tuple.
    #[cold]
    fn run_instead<'py>(
        &self,
        f: &Bound<'py, PyAny>,
        args: &Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let out = match args.len() {
            1 if let Ok(list) = args.get_borrowed_item(0)?.cast::<PyList>() => {
                let items = list.to_tuple();
                list.call_method0(intern!(f.py(), "clear"))?;
                f.call1(items)?
            }
            _ => f.call1(args)?,
        };
        let items: Vec<_> = out.try_iter()?.collect::<PyResult<_>>()?;
        PyTuple::new(f.py(), items)
    }
}

#[pymethods]
impl Compiled {
    /// Tells AOTAutograd that a call takes one list of arguments, which it empties.
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
        if let Some(f) = self.instead.get() {
            return self.run_instead(f.bind(py), args);
        }
        let runner = &self.ready(py)?.0;
        let out = match args.len() {
            1 if let Ok(list) = args.get_borrowed_item(0)?.cast::<PyList>() => {
                let items: SmallVec<[Bound<'py, PyAny>; 16]> = list.iter().collect();
                list.call_method0(intern!(py, "clear"))?;
                runner.run(py, items.into_iter())?
            }
            _ => runner.run(py, args.iter())?,
        };
        PyTuple::new(py, out)
    }

    /// Waits until machine code is loaded. Raises errors of the C compiler and of the loader.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        self.ready(py).map(|_| ())
    }

    /// Has calls run `function`, since [`Compiled::finish`] failed.
    fn replace(&self, function: Py<PyAny>) {
        let _ = self.instead.set(function);
    }

    /// True if calls may enter Python.
    #[getter]
    fn enters_python(&self) -> bool {
        self.python
    }

    /// Returns the graph as the source of a file of `language`, `python` or `cpp`, in which it is called `name`.
    #[pyo3(signature = (name, language="python"))]
    fn source(&self, py: Python<'_>, name: &str, language: &str) -> PyResult<String> {
        crate::source::print(py, &self.ready(py)?.0, name, language)
    }

    /// How `pickle` writes it: the program and the report as bytes, the objects as a list in which operators stand by name.
    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyTuple>> {
        let py = slf.py();
        let this = slf.get();
        let (runner, report) = this.ready(py)?;
        let bytes = serde_json::to_vec(&(&runner.program, report, this.threads))
            .map_err(|e| PyValueError::new_err(e.to_string()))?;
        // Operators are written by name and looked up again by `restore`. For every other object
        // Python decides in what form, if any, it can be stored.
        let overload = py.import("torch")?.getattr("_ops")?.getattr("OpOverload")?;
        let portable = py
            .import("inrush.autograd.aot_cache")?
            .getattr("portable")?;
        let mut objects = Vec::new();
        for o in &runner.objects {
            let o = o.bind(py);
            objects.push(match o.is_instance(&overload)? {
                true => (true, o.call_method0("name")?),
                false => (false, portable.call1((o,))?),
            });
        }
        let restore = py.import("inrush._native")?.getattr("restore")?;
        (restore, (PyBytes::new(py, &bytes), objects)).into_pyobject(py)
    }

    /// Returns what compiling did: kernels, called operators with reasons, times of the stages in seconds.
    fn report<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (runner, r) = self.ready(py)?;
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
        if let MachineCode::Gpu(engine) = &runner.code {
            tuned.extend(engine.tuned());
        }
        d.set_item("tuned", tuned)?;
        d.set_item("untuned", r.untuned)?;
        d.set_item("python", self.python)?;
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
        // None means "as by default", so that Python need not filter what the user left out.
        if v.is_none() {
            continue;
        }
        match k.cast::<PyString>()?.to_str()? {
            "strict" => settings.strict = v.extract()?,
            "fallback_random" => settings.fallback_random = v.extract()?,
            "inference" => settings.inference = v.extract()?,
            "keeps_arguments" => settings.keeps_arguments = v.extract()?,
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
            "later" => settings.later = v.extract()?,
            other => return Err(PyValueError::new_err(format!("unknown setting `{other}`"))),
        }
    }
    Ok(match compile::compile(py, gm, &settings, resolve)? {
        Outcome::Ready(runner, report) => Compiled::new(runner, report, settings.threads),
        Outcome::Pending(p) => Compiled {
            ready: OnceLock::new(),
            python: p.program.enters_interpreter(),
            pending: Mutex::new(Some(p)),
            instead: OnceLock::new(),
            threads: settings.threads,
        },
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
    let (mut program, mut report, threads): (HostProgram, Report, Option<usize>) =
        serde_json::from_slice(bytes)
            .map_err(|e| PyValueError::new_err(format!("a stored graph is damaged: {e}")))?;
    program.check(objects.len()).map_err(raise)?;
    let ops = py.import("torch")?.getattr("ops")?;
    let mut held = Vec::with_capacity(objects.len());
    for (named, o) in objects {
        held.push(match named {
            true => operator(&ops, o.cast::<PyString>()?.to_str()?)?.unbind(),
            false => o.unbind(),
        });
    }
    // The source is part of the program. A cache that was cleared, or another machine, builds
    // again.
    let pool = compile::pool(py, threads)?;
    let (code, cached) = compile::load(py, &mut program, &pool)?;
    report.stages = vec![("restore".into(), start.elapsed())];
    report.cached = cached;
    Ok(Compiled::new(
        Runner::new(program, held, code),
        report,
        threads,
    ))
}

/// The operator of a name like `aten::add.Tensor`.
fn operator<'py>(ops: &Bound<'py, PyAny>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    let wrong = || PyValueError::new_err(format!("`{name}` names no operator"));
    let (namespace, rest) = name.split_once("::").ok_or_else(wrong)?;
    let (op, overload) = rest.split_once('.').unwrap_or((rest, "default"));
    ops.getattr(namespace)?.getattr(op)?.getattr(overload)
}
