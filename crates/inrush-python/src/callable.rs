//! Compiled graphs as Python callables.
//!
//! A [`Compiled`] has a program for all sizes and, on GPUs, may have others for some sizes, those of
//! the traced call first ([`special`]). Each is a [`Version`], which goes through two states:
//!
//! ```text
//! pending --finish--> ready            kernels are built; calls run the program
//! ```
//!
//! With the option `later` the compiler returns in state pending, and the build goes on in a
//! thread. The first call waits for it. The interpreter's lock is released while it waits, and
//! signals are answered between two waits, so that Ctrl-C ends a long build. Kernels for other sizes
//! are built in threads once those for the traced sizes are ready. If a build has failed, calls run the
//! function that was captured ([`Compiled::replace`]).

use crate::compile::{self, Outcome, Pending, Report, Settings, State, Tune, special};
use crate::errors::raise;
use crate::host::run::{MachineCode, Runner};
use crate::host::shim::shims;
use inrush_base::{Error, PersistentProducts};
use inrush_host::program::HostProgram;
use pyo3::exceptions::PyValueError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyDict, PyList, PyString, PyTuple};
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

/// A compiled graph. It is called with its flat arguments, or as AOTAutograd does with one list of them, which it empties
/// so that inputs can be freed during the call. It gives a tuple.
#[pyclass(frozen, weakref, module = "inrush._native")]
pub struct Compiled {
    /// The program for all sizes.
    general: Version,
    /// Specialised programs, in the order in which a call tries them. The first is for the sizes of the traced call.
    special: Vec<(Vec<special::Check>, Version)>,
    /// The function that calls run after a failed build.
    instead: OnceLock<Py<PyAny>>,
    /// True if calls enter the interpreter: for a called operator or a step that only Python does.
    python: bool,
    /// Threads that the user asked for; `None` uses PyTorch's pool. Kept for `pickle`.
    threads: Option<usize>,
}

/// A program and its machine code.
struct Version {
    /// Set once the kernels are loaded. Read without a lock by every call.
    ready: OnceLock<(Runner, Report)>,
    /// The build that goes on or did not start. Never locked while the interpreter's lock is held.
    pending: Mutex<Unbuilt>,
}

/// A program before it is ready.
enum Unbuilt {
    Pending(Box<Pending>),
    /// A thread reads it and gives it back ([`Version::stored`]).
    Lent,
    /// The program is ready, or its build has failed.
    None,
}

impl Version {
    fn new(state: State) -> Version {
        let (ready, pending) = match state {
            State::Ready(runner, report) => (OnceLock::from((runner, report)), Unbuilt::None),
            State::Pending(p) => (OnceLock::new(), Unbuilt::Pending(p)),
        };
        Version {
            ready,
            pending: Mutex::new(pending),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Unbuilt> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts the build in a thread, unless it runs or is done.
    fn start(&self) -> Result<(), Error> {
        match &mut *self.lock() {
            Unbuilt::Pending(p) => p.start(),
            // Who needs it starts it.
            Unbuilt::Lent | Unbuilt::None => Ok(()),
        }
    }

    /// Waits for the build for a bounded time. Returns false if it goes on.
    fn wait(&self) -> PyResult<bool> {
        let mut pending = self.lock();
        // Another thread may have waited for it meanwhile, with or without success.
        if self.ready.get().is_some() {
            return Ok(true);
        }
        match &mut *pending {
            Unbuilt::Pending(p) => {
                if !p.is_built().map_err(raise)? {
                    return Ok(false);
                }
            }
            Unbuilt::Lent => {
                drop(pending);
                std::thread::sleep(LENT);
                return Ok(false);
            }
            Unbuilt::None => {}
        }
        if let Unbuilt::Pending(p) = std::mem::replace(&mut *pending, Unbuilt::None) {
            let _ = self.ready.set(p.finish()?);
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

    /// Calls `with` with the program, its objects and its report, built or not.
    fn stored<T>(
        &self,
        py: Python<'_>,
        with: impl FnOnce(&HostProgram, &[Py<PyAny>], &Report) -> PyResult<T>,
    ) -> PyResult<T> {
        let pending = loop {
            let taken = py.detach(|| {
                let mut pending = self.lock();
                match &*pending {
                    Unbuilt::Pending(_) => std::mem::replace(&mut *pending, Unbuilt::Lent),
                    Unbuilt::Lent => Unbuilt::Lent,
                    Unbuilt::None => Unbuilt::None,
                }
            });
            match taken {
                Unbuilt::Pending(p) => break p,
                Unbuilt::Lent => py.detach(|| std::thread::sleep(LENT)),
                Unbuilt::None => {
                    let (runner, report) = self.ready(py)?;
                    return with(&runner.program, &runner.objects, report);
                }
            }
        };
        // Without a lock: `with` runs Python.
        let lent = Lent {
            version: self,
            pending: Some(pending),
        };
        match &lent.pending {
            Some(p) => with(&p.program, &p.objects, &p.report),
            None => Err(raise(Error::internal("a program that is lent is gone"))),
        }
    }
}

/// A program that was taken out for a while; it goes back when this is dropped, after a panic too.
struct Lent<'a> {
    version: &'a Version,
    pending: Option<Box<Pending>>,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        // Whoever holds the lock meanwhile finds the program lent, and waits for nothing.
        if let Some(p) = self.pending.take() {
            *self.version.lock() = Unbuilt::Pending(p);
        }
    }
}

/// How long a thread sleeps before it looks again at a program that another one reads.
const LENT: Duration = Duration::from_millis(2);

impl Compiled {
    /// Wraps what the compiler gave.
    fn new(outcome: Outcome, threads: Option<usize>) -> Compiled {
        let enters = |s: &State| match s {
            State::Ready(runner, _) => runner.program.enters_interpreter(),
            State::Pending(p) => p.program.enters_interpreter(),
        };
        let versions = |(checks, s)| (checks, Version::new(s));
        Compiled {
            python: enters(&outcome.general) || outcome.special.iter().any(|(_, s)| enters(s)),
            general: Version::new(outcome.general),
            special: outcome.special.into_iter().map(versions).collect(),
            instead: OnceLock::new(),
            threads,
        }
    }

    /// Returns the version that the first call runs.
    fn first(&self) -> &Version {
        self.special.first().map_or(&self.general, |(_, v)| v)
    }

    /// Returns the version for the arguments of a call.
    fn version<'py>(
        &self,
        py: Python<'py>,
        argument: &dyn Fn(usize) -> Option<Bound<'py, PyAny>>,
    ) -> PyResult<&Version> {
        if self.special.is_empty() {
            return Ok(&self.general);
        }
        let shims = shims(py)?;
        let fits = |s: &&(Vec<special::Check>, Version)| special::fits(&s.0, shims, argument);
        Ok(self
            .special
            .iter()
            .find(fits)
            .map_or(&self.general, |s| &s.1))
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
            return match f.bind(py).cast::<Compiled>() {
                Ok(other) => other.get().__call__(py, args),
                Err(_) => self.run_instead(f.bind(py), args),
            };
        }
        let out = match args.len() {
            1 if let Ok(list) = args.get_borrowed_item(0)?.cast::<PyList>() => {
                let items: SmallVec<[Bound<'py, PyAny>; 16]> = list.iter().collect();
                let version = self.version(py, &|k| items.get(k).cloned())?;
                list.call_method0(intern!(py, "clear"))?;
                version.ready(py)?.0.run(py, items.into_iter())?
            }
            _ => {
                let version = self.version(py, &|k| args.get_item(k).ok())?;
                version.ready(py)?.0.run(py, args.iter())?
            }
        };
        PyTuple::new(py, out)
    }

    /// Waits until the machine code of the first call is loaded, and has that for other sizes built in a thread. Raises errors of
    /// the C compiler and of the loader.
    fn finish(&self, py: Python<'_>) -> PyResult<()> {
        self.first().ready(py)?;
        let mut others = (self.special.iter().skip(1).map(|s| &s.1)).chain([&self.general]);
        if !self.special.is_empty() {
            py.detach(|| others.try_for_each(Version::start))
                .map_err(raise)?;
        }
        Ok(())
    }

    /// Has calls run `function`: since [`Compiled::finish`] failed, or since the same graph has better kernels. Captured calls are given
    /// up.
    fn replace(&self, py: Python<'_>, function: Py<PyAny>) -> PyResult<()> {
        let _ = self.instead.set(function);
        let versions = [&self.general]
            .into_iter()
            .chain(self.special.iter().map(|s| &s.1));
        for (runner, _) in versions.filter_map(|v| v.ready.get()) {
            if let MachineCode::Gpu(engine) = &runner.code {
                engine.forget_graphs(py)?;
            }
        }
        Ok(())
    }

    /// True if calls may enter Python.
    #[getter]
    fn enters_python(&self) -> bool {
        self.python
    }

    /// Returns the graph as the source of a file of `language`, `python` or `cpp`, in which it is called `name`. The source is that
    /// for all sizes.
    #[pyo3(signature = (name, language="python"))]
    fn source(&self, py: Python<'_>, name: &str, language: &str) -> PyResult<String> {
        let print = |program: &HostProgram, objects: &[Py<PyAny>], _: &Report| {
            crate::source::print(py, program, objects, name, language)
        };
        self.general.stored(py, print)
    }

    /// How `pickle` writes it: programs and reports as bytes, the objects of each as a list in which operators stand by name.
    fn __reduce__<'py>(slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyTuple>> {
        let py = slf.py();
        let this = slf.get();
        let mut lists = Vec::new();
        let mut store = |v: &Version| {
            v.stored(py, |program, objects, report| {
                lists.push(portable(py, objects)?);
                Ok((program.clone(), report.clone()))
            })
        };
        let stored = Stored {
            general: store(&this.general)?,
            special: (this.special.iter())
                .map(|(checks, v)| Ok((checks.clone(), store(v)?)))
                .collect::<PyResult<_>>()?,
            threads: this.threads,
        };
        let bytes =
            serde_json::to_vec(&stored).map_err(|e| PyValueError::new_err(e.to_string()))?;
        let restore = py.import("inrush._native")?.getattr("restore")?;
        (restore, (PyBytes::new(py, &bytes), lists)).into_pyobject(py)
    }

    /// Returns what compiling did: kernels, called operators with reasons, times of the stages in seconds.
    fn report<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (runner, r) = self.first().ready(py)?;
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
/// node's target). `of_traced_sizes`, by default `gm`, is specialised for the sizes of the traced call; all other programs are made
/// of `gm`.
#[pyfunction]
#[pyo3(signature = (gm, options=None, resolve=None, of_traced_sizes=None))]
pub fn compile_fx(
    py: Python<'_>,
    gm: &Bound<'_, PyAny>,
    options: Option<&Bound<'_, PyDict>>,
    resolve: Option<&Bound<'_, PyAny>>,
    of_traced_sizes: Option<&Bound<'_, PyAny>>,
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
            "products" => {
                let name: String = v.extract()?;
                settings.products = match name.as_str() {
                    "auto" => None,
                    "library" => Some(PersistentProducts::Never),
                    "kernel" => Some(PersistentProducts::Always),
                    _ => return Err(PyValueError::new_err(format!("products by `{name}`"))),
                };
            }
            "tune" => {
                let name: String = v.extract()?;
                settings.tune = match name.as_str() {
                    "never" => Tune::Never,
                    "now" => Tune::Now,
                    "background" => Tune::Background,
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
    let outcome = compile::compile(py, gm, of_traced_sizes.unwrap_or(gm), &settings, resolve)?;
    let compiled = Compiled::new(outcome, settings.threads);
    if !settings.later {
        compiled.finish(py)?;
    }
    Ok(compiled)
}

/// A compiled graph in the cache.
#[derive(Serialize, Deserialize)]
struct Stored {
    general: (HostProgram, Report),
    special: Vec<(Vec<special::Check>, (HostProgram, Report))>,
    threads: Option<usize>,
}

/// An object of a graph for `pickle`, and true if it is the name of an operator.
type Portable<'py> = (bool, Bound<'py, PyAny>);

/// Returns objects as they are stored. Operators are written by name and looked up again by [`restore`]. For every other object
/// Python decides in what form, if any, it can be stored.
fn portable<'py>(py: Python<'py>, objects: &[Py<PyAny>]) -> PyResult<Vec<Portable<'py>>> {
    let overload = py.import("torch")?.getattr("_ops")?.getattr("OpOverload")?;
    let portable = py
        .import("inrush.autograd.aot_cache")?
        .getattr("portable")?;
    let store = |o: &Py<PyAny>| {
        let o = o.bind(py);
        Ok(match o.is_instance(&overload)? {
            true => (true, o.call_method0("name")?),
            false => (false, portable.call1((o,))?),
        })
    };
    objects.iter().map(store).collect()
}

/// Reads a compiled graph back; machine code comes from the cache, or is built again from the source. `lists` has the objects of
/// each program.
#[pyfunction]
pub fn restore(
    py: Python<'_>,
    bytes: &[u8],
    lists: Vec<Vec<(bool, Bound<'_, PyAny>)>>,
) -> PyResult<Compiled> {
    let damaged = |e: String| PyValueError::new_err(format!("a stored graph is damaged: {e}"));
    let stored: Stored = serde_json::from_slice(bytes).map_err(|e| damaged(e.to_string()))?;
    let mut lists = lists.into_iter();
    let mut objects = || {
        let list = lists.next();
        held(
            py,
            list.ok_or_else(|| damaged("objects are missing".into()))?,
        )
    };
    let threads = stored.threads;
    let (program, report) = stored.general;
    // What the first call needs is loaded at once.
    let at_need = !stored.special.is_empty();
    let general = restored(py, program, report, objects()?, threads, at_need)?;
    let mut special = Vec::with_capacity(stored.special.len());
    for (checks, (program, report)) in stored.special {
        let at_need = !special.is_empty();
        let state = restored(py, program, report, objects()?, threads, at_need)?;
        special.push((checks, state));
    }
    let outcome = Outcome { general, special };
    Ok(Compiled::new(outcome, threads))
}

/// Makes a stored program ready, or has it built `at_need`. A cache that was cleared, or another machine, builds again from the
/// source, which is part of the program.
fn restored(
    py: Python<'_>,
    mut program: HostProgram,
    mut report: Report,
    objects: Vec<Py<PyAny>>,
    threads: Option<usize>,
    at_need: bool,
) -> PyResult<State> {
    let start = Instant::now();
    program.check(objects.len()).map_err(raise)?;
    let pool = compile::pool(py, threads)?;
    if at_need {
        let pending = Pending::new(py, program, objects, report, pool)?;
        return Ok(State::Pending(Box::new(pending)));
    }
    let (code, cached) = compile::load(py, &mut program, &pool)?;
    report.stages = vec![("restore".into(), start.elapsed())];
    report.cached = cached;
    Ok(State::Ready(Runner::new(program, objects, code), report))
}

/// Returns the objects of a stored program.
fn held(py: Python<'_>, objects: Vec<(bool, Bound<'_, PyAny>)>) -> PyResult<Vec<Py<PyAny>>> {
    let ops = py.import("torch")?.getattr("ops")?;
    let find = |(named, o): (bool, Bound<'_, PyAny>)| {
        Ok(match named {
            true => operator(&ops, o.cast::<PyString>()?.to_str()?)?.unbind(),
            false => o.unbind(),
        })
    };
    objects.into_iter().map(find).collect()
}

/// The operator of a name like `aten::add.Tensor`.
fn operator<'py>(ops: &Bound<'py, PyAny>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    let wrong = || PyValueError::new_err(format!("`{name}` names no operator"));
    let (namespace, rest) = name.split_once("::").ok_or_else(wrong)?;
    let (op, overload) = rest.split_once('.').unwrap_or((rest, "default"));
    ops.getattr(namespace)?.getattr(op)?.getattr(overload)
}
