//! Programs for GPUs: graphs compiled for one, kernels built by Triton in worker processes.
//!
//! Nothing here needs a GPU. Triton is a Python package of the interpreter that `INRUSH_PYTHON` names.

use crate::progress::Progress;
use crate::session::{self, Times, Watch};
use inrush_base::{Caps, Error, Result};
use inrush_compile::{Libraries, Options};
use inrush_graph::Graph;
use inrush_host::gpu::build;
use inrush_host::native::{self, Lowered};
use inrush_host::program::Device;
use inrush_program::GpuTarget;
use inrush_runtime::cache::Cache;
use inrush_runtime::triton::{Binary, Pool, Setup};
use std::io::Write;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

/// The process that builds kernels.
const WORKER: &str = include_str!("../../../python/inrush/triton/worker.py");
/// Longest build of one kernel.
const PATIENCE: Duration = Duration::from_secs(300);
/// Workers at most; each holds Triton's library, some 100 MB.
const MAX_WORKERS: usize = 16;
/// Prints the release of Triton, then the folders of NVIDIA's libraries that Python packages bring.
const FIND: &str = "\
import glob, importlib.metadata, os, sysconfig
print(importlib.metadata.version('triton'))
roots = {sysconfig.get_path('purelib'), sysconfig.get_path('platlib')}
for root in sorted(roots):
    for folder in sorted(glob.glob(os.path.join(root, 'nvidia', '*', 'lib'))):
        print(folder)
";

/// Prints the back ends of Triton that are installed, without importing Triton.
const FIND_BACKENDS: &str = "\
import importlib.metadata
print(', '.join(sorted(e.name for e in importlib.metadata.entry_points(group='triton.backends'))))
";

/// A Python interpreter with Triton.
pub(crate) struct Python {
    path: PathBuf,
    /// Release of Triton.
    triton: String,
    /// Folders with libraries of NVIDIA's.
    pub(crate) folders: Vec<PathBuf>,
}

impl Python {
    /// Asks the interpreter once for everything: starting an interpreter is slow.
    pub(crate) fn find() -> Result<Python> {
        let path = std::env::var_os("INRUSH_PYTHON").unwrap_or_else(|| "python3".into());
        let path = PathBuf::from(path);
        let failed = |why: String| {
            Error::machine(format!(
                "kernels for GPUs are built by the Python package `triton`: `{}` does not import it ({why}); \
                 INRUSH_PYTHON names another interpreter",
                path.display()
            ))
        };
        let out = Command::new(&path)
            .args(["-c", FIND])
            .output()
            .map_err(|e| failed(e.to_string()))?;
        if !out.status.success() {
            let text = String::from_utf8_lossy(&out.stderr);
            return Err(failed(text.lines().last().unwrap_or_default().to_string()));
        }
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let mut lines = text.lines();
        Ok(Python {
            triton: lines.next().unwrap_or_default().to_string(),
            folders: lines.map(PathBuf::from).collect(),
            path,
        })
    }

    /// Returns the interpreter, the release of Triton and its back ends, for readers.
    pub(crate) fn summary(&self) -> String {
        let out = Command::new(&self.path)
            .args(["-c", FIND_BACKENDS])
            .output();
        let found = out.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_string());
        let backends = match found.unwrap_or_default() {
            none if none.is_empty() => "no back ends: install Triton again".to_string(),
            names => format!("back ends {names}"),
        };
        format!("{} in {}, {backends}", self.triton, self.path.display())
    }

    /// Returns the pool that builds kernels, with their PTX if that is asked for. The workers' script is written to the cache.
    pub(crate) fn pool(&self, ptx: bool) -> Result<Pool> {
        let folder = Cache::default_dir().join("triton");
        let script = folder.join("worker.py");
        if std::fs::read(&script).ok().as_deref() != Some(WORKER.as_bytes()) {
            // Written to a temporary file and renamed: another process may read the script
            // meanwhile.
            let write = || -> std::io::Result<()> {
                std::fs::create_dir_all(&folder)?;
                let mut file = tempfile::NamedTempFile::new_in(&folder)?;
                file.write_all(WORKER.as_bytes())?;
                file.persist(&script).map_err(|e| e.error)?;
                Ok(())
            };
            write().map_err(|e| Error::machine(format!("{}: {e}", script.display())))?;
        }
        Ok(Pool::new(Setup {
            python: self.path.clone(),
            script,
            folder,
            version: self.triton.clone(),
            workers: std::thread::available_parallelism().map_or(1, |n| n.get().min(MAX_WORKERS)),
            patience: PATIENCE,
            ptx,
        }))
    }
}

/// A GPU that graphs are compiled for.
pub(crate) struct Gpu<'a> {
    pub(crate) caps: &'a Caps,
    pub(crate) target: &'a GpuTarget,
    pub(crate) device: Device,
    pub(crate) libraries: Libraries,
}

/// Compiles a graph for a GPU. No kernel is built.
pub(crate) fn lower(
    graph: Graph,
    gpu: &Gpu<'_>,
    progress: &Progress,
    times: &mut Times,
) -> Result<Lowered> {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let options = Options {
        threads: threads.min(8),
        libraries: gpu.libraries,
        verify: session::verify(),
        ..Options::default()
    };
    let mut watch = Watch {
        times,
        progress,
        start: Instant::now(),
    };
    let target = (gpu.caps, gpu.target);
    native::compile(graph, target, gpu.device, &options, &mut watch)
}

/// Compiles a graph for a GPU and builds its kernels. Returns true with them if all were in the cache.
pub(crate) fn compile(
    graph: Graph,
    gpu: &Gpu<'_>,
    pool: &Pool,
    progress: &Progress,
    times: &mut Times,
) -> Result<(Lowered, Vec<Binary>, bool)> {
    let lowered = lower(graph, gpu, progress, times)?;
    let start = Instant::now();
    progress.step(format!(
        "build: {} kernels by Triton",
        lowered.kernels().len()
    ));
    let (binaries, cached) = build::build_all(pool, &lowered)?;
    times.stages.push(("build", start.elapsed()));
    Ok((lowered, binaries, cached))
}
