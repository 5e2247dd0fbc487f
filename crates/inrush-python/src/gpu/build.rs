//! Kernels from the pool of Triton workers, which all graphs of the process share.

use super::arena::ALIGNMENT;
use super::pack;
use crate::errors::raise;
use crate::fx::kernels;
use crate::recipe::Gpu;
use inrush_base::{Error, ErrorKind, Result};
use inrush_cuda::driver::{Driver, Kernel};
use inrush_program::GpuKernel;
use inrush_runtime::cache::Cache;
use inrush_runtime::triton::{Binary, Pool, Setup};
use pyo3::prelude::*;
use rustc_hash::FxHashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

static POOL: OnceLock<std::result::Result<Pool, Error>> = OnceLock::new();

/// Longest build of one kernel.
const PATIENCE: Duration = Duration::from_secs(300);
/// Workers at most; each holds Triton's library, some 100 MB.
const MAX_WORKERS: usize = 16;

/// The pool of this process.
pub fn pool(py: Python<'_>) -> PyResult<&'static Pool> {
    let made = match POOL.get() {
        Some(p) => p,
        None => {
            let setup = setup(py);
            POOL.get_or_init(|| setup.map(Pool::new))
        }
    };
    made.as_ref().map_err(|e| raise(e.clone()))
}

fn setup(py: Python<'_>) -> Result<Setup> {
    let find = || -> PyResult<(PathBuf, PathBuf, String)> {
        let python = py.import("sys")?.getattr("executable")?.extract()?;
        let package: PathBuf = py.import("inrush")?.getattr("__file__")?.extract()?;
        let version = py
            .import("importlib.metadata")?
            .call_method1("version", ("triton",))?
            .extract()?;
        Ok((python, package.with_file_name("triton_worker.py"), version))
    };
    let (python, script, version) = find().map_err(|e| {
        Error::machine(format!(
            "kernels for GPUs are built by the Python package `triton`, which is not installed ({e})"
        ))
    })?;
    Ok(Setup {
        python,
        script,
        folder: Cache::default_dir().join("triton"),
        version,
        workers: std::thread::available_parallelism().map_or(1, |n| n.get().min(MAX_WORKERS)),
        patience: PATIENCE,
    })
}

/// Starts what forks the workers, in the background.
pub fn warm(py: Python<'_>) -> PyResult<()> {
    static STARTED: OnceLock<()> = OnceLock::new();
    let pool = pool(py)?;
    if STARTED.set(()).is_ok() {
        // Nobody waits for it; a failure shows at the first build.
        std::thread::spawn(|| _ = pool.warm());
    }
    Ok(())
}

/// Binaries of a graph's kernels, and whether all of them were there already.
pub fn build(pool: &Pool, gpu: &Gpu) -> Result<(Vec<Binary>, bool)> {
    let sources: Vec<_> = gpu.kernels.iter().collect();
    let (results, cached) = pool.build_all(&sources, &gpu.target);
    let users = |k: &GpuKernel| k.symbol.starts_with(kernels::PREFIX);
    let mut binaries = Vec::with_capacity(results.len());
    for (r, k) in results.into_iter().zip(&gpu.kernels) {
        // A kernel of the user's is the user's to mend.
        let r = r.map_err(|e| match users(k) && e.kind() == ErrorKind::Internal {
            true => Error::input(e.message().to_string()),
            false => e,
        });
        binaries.push(r?);
    }
    for (b, k) in binaries.iter().zip(&gpu.kernels) {
        let odd = b.ctas != 1 || b.cooperative || b.scratch_align > ALIGNMENT;
        if users(k) && odd {
            return Err(Error::unsupported(format!(
                "the Triton kernel `{}` asks for clusters, a cooperative launch or scratch memory beyond the usual alignment",
                k.function
            )));
        }
        if odd {
            return Err(Error::internal(format!(
                "the kernel `{}` asks for clusters, a cooperative launch or scratch memory beyond the usual alignment",
                k.function
            )));
        }
    }
    Ok((binaries, cached))
}

/// Kernels that are loaded, by device and file: graphs share them. They stay: what somebody captured may launch them when the
/// function that it was captured from is gone.
type Loaded = FxHashMap<(i32, PathBuf), Arc<Kernel>>;
static LOADED: Mutex<Option<Loaded>> = Mutex::new(None);

/// Loads binaries into the current context.
pub fn load(binaries: &[Binary], gpu: &Gpu) -> Result<Vec<Arc<Kernel>>> {
    let driver = Driver::get()?;
    let mut all = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    let all = all.get_or_insert_default();
    (binaries.iter().zip(&gpu.kernels))
        .map(|(b, k)| {
            let key = (gpu.device.index, b.path.clone());
            if let Some(k) = all.get(&key) {
                return Ok(k.clone());
            }
            let code = std::fs::read(&b.path)
                .map_err(|e| Error::machine(format!("{}: {e}", b.path.display())))?;
            let threads = b.warps * gpu.target.warp;
            let kernel = driver.load(&code, &b.symbol, threads, b.shared)?;
            let kernel = match b.maps.is_empty() {
                true => kernel,
                false => kernel.with_places(pack::places(&k.signature)?),
            };
            let kernel = Arc::new(kernel);
            all.insert(key, kernel.clone());
            Ok(kernel)
        })
        .collect()
}
