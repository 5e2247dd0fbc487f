//! The second tier of the cache and the bound on its folder, for what Python keeps.

use inrush_base::Error;
use inrush_runtime::cache::{self, Cache};
use inrush_runtime::cache_limit;
use inrush_runtime::remote::{Remote, Source};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Returns what became of the second tier in this process; None if the environment names none.
#[pyfunction]
pub fn remote_status(py: Python<'_>) -> PyResult<Option<Bound<'_, PyDict>>> {
    let Some(remote) = Remote::current() else {
        return Ok(None);
    };
    let d = PyDict::new(py);
    d.set_item("tier", remote.settings().shown())?;
    d.set_item("off", remote.why_off())?;
    for (name, n) in remote.counts().named() {
        d.set_item(name, n)?;
    }
    Ok(Some(d))
}

/// Says why the second tier is off, or that it has entries that are not taken.
#[pyfunction]
pub fn remote_notice() -> Option<String> {
    Remote::last_notice()
}

/// Writes the files of an entry into a folder, those that are not there. Returns their names; none if there is no such entry, or
/// they cannot be written.
#[pyfunction]
pub fn remote_fetch(py: Python<'_>, kind: &str, key: &str, folder: PathBuf) -> Vec<String> {
    py.detach(|| {
        let parts = Remote::current().and_then(|r| r.get(kind, key));
        let Some(parts) = parts.filter(|_| std::fs::create_dir_all(&folder).is_ok()) else {
            return Vec::new();
        };
        let new = parts.into_iter().filter(|(n, _)| !folder.join(n).exists());
        let written = new.filter(|(n, bytes)| write(&folder, n, bytes).is_ok());
        written.map(|(n, _)| n).collect()
    })
}

/// Writes a file whole or not at all. Names of entries are plain.
fn write(folder: &Path, name: &str, bytes: &[u8]) -> std::io::Result<()> {
    let builder = tempfile::Builder::new().prefix(".tmp").tempfile_in(folder);
    let mut file = builder?;
    file.write_all(bytes)?;
    file.persist(folder.join(name)).map_err(|e| e.error)?;
    Ok(())
}

/// Has files stored in the second tier, in the background.
#[pyfunction]
pub fn remote_store(py: Python<'_>, kind: &str, key: &str, files: Vec<PathBuf>) {
    py.detach(|| {
        let Some(remote) = Remote::current() else {
            return;
        };
        let named = files.into_iter().filter_map(|path| {
            let name = path.file_name()?.to_str()?.to_string();
            Some((name, Source::File(path)))
        });
        remote.put(kind, key, named.collect());
    });
}

/// Tells the bound on the cache's folder of files that were stored.
#[pyfunction]
pub fn cache_stored(files: Vec<PathBuf>) {
    let bytes = files.iter().filter_map(|f| Some(f.metadata().ok()?.len()));
    cache_limit::stored(&Cache::open_default(), bytes.sum());
}

/// Notes that a file of the cache was used now.
#[pyfunction]
pub fn touch(path: PathBuf) {
    cache_limit::touch(&path);
}

/// Waits until what was queued for the second tier is stored and the folder is bounded, a number of seconds at most.
#[pyfunction]
pub fn finish_cache(py: Python<'_>, seconds: f64) -> PyResult<()> {
    let bound = Duration::try_from_secs_f64(seconds)
        .map_err(|e| crate::errors::raise(Error::input(format!("{seconds} s: {e}"))))?;
    py.detach(|| cache::finish(bound));
    Ok(())
}
