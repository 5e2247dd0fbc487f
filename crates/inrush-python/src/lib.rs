//! The Python module `inrush._native`.
//!
//! ```text
//! fx         FX GraphModule -> Graph, and what the graph cannot hold: FX nodes, attributes, lists
//!   device   the GPU that most tensors are on
//!   target   called functions: names of operators, memoized by identity
//!   types    metadata of values -> types
//!   symbols  SymInt -> expressions, ranges, hints
//!   args     Python arguments -> arguments of the graph
//!   results  metadata of results -> values, items of lists
//!   kernels  Triton kernels of the user -> launches
//! compile    the stages, the C compiler, and what a call needs -> HostProgram, Runner
//! host       calls in this process, on CPUs and (by `inrush-host`) on GPUs
//! callable   the Python object that is called
//! overlap    aliasing of tensors, for guards
//! package    exported programs, compiled ahead of time and loaded
//! remote     second tier of the cache, for what Python keeps
//! source     compiled graphs as source
//! errors     inrush's errors as Python exceptions
//! ```
//!
//! The module does not link libtorch. Compiling reaches PyTorch's objects through the interpreter;
//! calls use its stable C functions, which `host/shim.rs` looks up in the running process. One
//! binary therefore serves several releases of PyTorch.
//!
//! Lock discipline: stages, builds and native steps run without the interpreter's lock
//! (`Python::detach`). A thread that holds that lock never blocks on a mutex whose owner may want
//! it: `callable::Version::pending` is locked by detached threads only, the table of targets is never locked
//! while Python runs, and graphs that are captured are taken by `try_lock`.

mod callable;
mod compile;
mod errors;
pub mod fx;
mod host;
mod operators;
mod overlap;
mod package;
mod remote;
mod source;
mod tensor_property;

use pyo3::prelude::*;

// Of this library alone: PyTorch and the interpreter keep theirs.
#[global_allocator]
static ALLOCATOR: inrush_alloc::Allocator = inrush_alloc::Allocator;

/// inrush's native half; use the package `inrush`.
#[pymodule]
mod _native {
    use super::*;

    #[pymodule_export]
    use super::errors::{Error, InputError, InternalError, MachineError, UnsupportedError};

    #[pymodule_export]
    use super::callable::{Compiled, compile_fx, restore};

    #[pymodule_export]
    use super::tensor_property::TensorProperty;

    #[pymodule_export]
    use super::operators::{is_operator_registered, load_operators, register};

    #[pymodule_export]
    use super::package::{
        check_aoti, compile_package, load_device_package, load_package, pack_aoti, package_targets,
    };

    /// Returns the level of this machine's processor that kernels are compiled for.
    #[pyfunction]
    fn cpu() -> &'static str {
        inrush_cpu::detect().name()
    }

    /// Says why kernels cannot be issued on the current stream of a kind's first device in this process; None if they can.
    #[pyfunction]
    fn refusal(py: Python<'_>, torch_name: &str) -> PyResult<Option<String>> {
        let device = host::kinds::kinds(py)?.parse(torch_name)?;
        Ok(host::kinds::refusal(py, device).map(|e| e.message().to_string()))
    }

    /// Ends measuring in the background, since the process ends.
    #[pyfunction]
    fn stop_tuning() {
        inrush_host::gpu::tune::stop_background();
    }

    /// Starts the processes that build kernels for GPUs, in the background.
    #[pyfunction]
    fn warm_triton(py: Python<'_>) -> PyResult<()> {
        host::triton::warm(py)
    }

    /// Returns the folder that holds inrush's caches.
    #[pyfunction]
    fn cache_dir() -> std::path::PathBuf {
        inrush_runtime::cache::Cache::default_dir()
    }

    /// Says why the folder that the environment names does not hold the caches; None if it does.
    #[pyfunction]
    fn cache_notice() -> Option<String> {
        inrush_runtime::cache::CachePlace::find().notice
    }

    #[pymodule_export]
    use super::remote::{
        cache_stored, finish_cache, remote_fetch, remote_notice, remote_status, remote_store, touch,
    };

    /// Makes tiers over networks known.
    #[pymodule_init]
    fn init(_module: &Bound<'_, PyModule>) -> PyResult<()> {
        inrush_remote::install();
        Ok(())
    }

    /// Returns true if an expression of sizes can represent a SymInt. Any other has to be computed
    /// by a node of the graph.
    #[pyfunction]
    fn expressible(size: &Bound<'_, PyAny>) -> PyResult<bool> {
        fx::expressible(size)
    }

    /// Returns true if the bytes that some two of these tensors span overlap. All are strided, and
    /// neither fake nor wrappers.
    #[pyfunction]
    fn overlaps(tensors: &Bound<'_, pyo3::types::PyTuple>) -> PyResult<bool> {
        overlap::overlaps(tensors)
    }

    /// The table of layouts that PyTorch's shape functions have wrong: operator, devices, rules of the results.
    #[pyfunction]
    fn layout_rules() -> Vec<(&'static str, &'static str, &'static str)> {
        inrush_aten::layouts::rules().collect()
    }

    /// Seconds that the import of `gm` takes, for tests of its speed.
    #[pyfunction]
    fn import_seconds(gm: &Bound<'_, PyAny>) -> PyResult<f64> {
        let start = std::time::Instant::now();
        fx::import(gm.py(), gm, None, false, fx::Sizes::Symbolic)?;
        Ok(start.elapsed().as_secs_f64())
    }

    /// Returns the text form of the graph that `gm` is imported as.
    #[pyfunction]
    fn import_text(gm: &Bound<'_, PyAny>) -> PyResult<String> {
        let found = fx::device(gm.py(), gm, host::kinds::kinds(gm.py())?)?;
        let imported = fx::import(gm.py(), gm, found.gpu, false, fx::Sizes::Symbolic)?;
        inrush_graph::verify::verify(&imported.graph).map_err(errors::raise)?;
        Ok(imported.graph.print())
    }
}
