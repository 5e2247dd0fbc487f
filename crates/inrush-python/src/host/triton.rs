//! The pool of Triton workers, which all graphs of the process share.
//!
//! Triton compiles in processes of its own, so that several kernels are built at once and the
//! graph's process need not import it.

use crate::errors::raise;
use inrush_base::{Error, Result};
use inrush_runtime::cache::Cache;
use inrush_runtime::triton::{Pool, Setup};
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

/// The pool, or the reason for which there is none; looked up once.
static POOL: OnceLock<std::result::Result<Pool, Error>> = OnceLock::new();

/// Longest build of one kernel.
const PATIENCE: Duration = Duration::from_secs(300);
/// Workers at most; each holds Triton's library, some 100 MB.
const MAX_WORKERS: usize = 16;

/// Returns the pool of this process.
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

/// Finds interpreter, script and release of Triton.
fn setup(py: Python<'_>) -> Result<Setup> {
    let find = || -> PyResult<(PathBuf, PathBuf, String)> {
        let python = py.import("sys")?.getattr("executable")?.extract()?;
        let package: PathBuf = py.import("inrush")?.getattr("__file__")?.extract()?;
        let version = (py.import("inrush.gpu")?.getattr("triton_release")?)
            .call0()?
            .extract()?;
        Ok((
            python,
            package.with_file_name("triton").join("worker.py"),
            version,
        ))
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
        ptx: false,
        shared: true,
    })
}

/// Returns a pool for packages, which keep the PTX of their kernels too.
pub fn package_pool(py: Python<'_>) -> PyResult<Pool> {
    let setup = setup(py).map_err(raise)?;
    Ok(Pool::new(Setup { ptx: true, ..setup }))
}

/// Starts the server that forks the workers, in the background.
pub fn warm(py: Python<'_>) -> PyResult<()> {
    static STARTED: OnceLock<()> = OnceLock::new();
    let pool = pool(py)?;
    if STARTED.set(()).is_ok() {
        // Nothing waits for it; a failure shows at the first build.
        std::thread::spawn(|| _ = pool.warm());
    }
    Ok(())
}
