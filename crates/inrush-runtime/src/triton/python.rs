//! A Python interpreter that has Triton, for processes that are no Python.

use super::{Pool, Setup};
use crate::cache::Cache;
use inrush_base::{Error, Result};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The process that builds kernels.
const WORKER: &str = include_str!("../../../../python/inrush/triton/worker.py");
/// Longest build of one kernel.
const PATIENCE: Duration = Duration::from_secs(300);
/// Workers at most; each holds Triton's library, some 100 MB.
const MAX_WORKERS: usize = 16;
/// Prints the release of Triton, whose builds for some vendors have other names, then the folders of NVIDIA's libraries that
/// Python packages bring.
const FIND: &str = "\
import glob, importlib.metadata, os, sysconfig
try:
    print(importlib.metadata.version('triton'))
except importlib.metadata.PackageNotFoundError:
    found = [e.dist for e in importlib.metadata.entry_points(group='triton.backends') if e.dist]
    if not found:
        raise
    print(found[0].version)
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
pub struct Python {
    path: PathBuf,
    /// Release of Triton.
    triton: String,
    /// Folders with libraries of NVIDIA's.
    folders: Vec<PathBuf>,
}

impl Python {
    /// Asks the interpreter that `INRUSH_PYTHON` names, else `python3`, once for everything: starting an interpreter is slow.
    ///
    /// # Errors
    /// Those of [`Python::at`].
    pub fn find() -> Result<Python> {
        Python::at(None)
    }

    /// Asks the interpreter that `INRUSH_PYTHON` names, else the one at a path, else `python3`.
    ///
    /// # Errors
    /// A machine error that says what to install for an interpreter that does not start or has no Triton.
    pub fn at(otherwise: Option<&Path>) -> Result<Python> {
        let named = std::env::var_os("INRUSH_PYTHON").map(PathBuf::from);
        let path = (named.or_else(|| otherwise.map(PathBuf::from)))
            .unwrap_or_else(|| PathBuf::from("python3"));
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

    /// Returns folders with libraries of NVIDIA's, which Python packages bring.
    pub fn folders(&self) -> &[PathBuf] {
        &self.folders
    }

    /// Returns Triton's names of the back ends that are installed.
    pub fn backends(&self) -> Vec<String> {
        let out = Command::new(&self.path)
            .args(["-c", FIND_BACKENDS])
            .output();
        let found = out.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_string());
        let found = found.unwrap_or_default();
        let names = found.split(", ").filter(|n| !n.is_empty());
        names.map(str::to_string).collect()
    }

    /// Returns the interpreter, the release of Triton and these back ends, for readers.
    pub fn summary(&self, backends: &[String]) -> String {
        let backends = match backends {
            [] => "no back ends: install Triton again".to_string(),
            names => format!("back ends {}", names.join(", ")),
        };
        format!("{} in {}, {backends}", self.triton, self.path.display())
    }

    /// Returns the release of Triton.
    pub fn release(&self) -> &str {
        &self.triton
    }

    /// Returns the pool that builds kernels, with their PTX if that is asked for. The workers' script is written to the cache.
    ///
    /// # Errors
    /// A machine error where the script cannot be written.
    pub fn pool(&self, ptx: bool) -> Result<Pool> {
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
            shared: true,
        }))
    }
}
