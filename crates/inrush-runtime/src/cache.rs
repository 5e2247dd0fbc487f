//! The build cache: a directory of files named by the hash of what they were built from.
//!
//! Entries are written under a temporary name and renamed, checked by digest when read, and rebuilt when damaged. A lock
//! file for each key makes two processes that want one entry build it once.

pub use crate::cache_place::CachePlace;
use inrush_base::{Error, Result};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Prefix of the folders in which entries are built.
const BUILD: &str = "build-";

/// Extension of the empty files that note facts.
const NOTE: &str = "note";

/// A cache directory.
#[derive(Clone, Debug)]
pub struct Cache {
    dir: PathBuf,
}

/// The cache's contents in numbers, for `inrush cache` and `inrush doctor`.
#[derive(Clone, Debug, Default)]
pub struct Usage {
    pub entries: usize,
    pub bytes: u64,
}

impl Cache {
    /// Returns the folder of the caches, see [`CachePlace`].
    pub fn default_dir() -> PathBuf {
        CachePlace::find().dir
    }

    pub fn open_default() -> Cache {
        Cache::at(Self::default_dir())
    }

    pub fn at(dir: PathBuf) -> Cache {
        Cache { dir }
    }

    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn entry(&self, key: &str, ext: &str) -> PathBuf {
        self.dir
            .join(&key[..2])
            .join(format!("{}.{ext}", &key[2..]))
    }

    fn fail(&self, what: &str, path: &Path, e: io::Error) -> Error {
        Error::machine(format!(
            "cannot {what} `{}` in the build cache: {e} (set INRUSH_CACHE_DIR to a writable directory)",
            path.display()
        ))
    }

    /// Returns the file of `key`, and true if it was there. `build` makes it inside a fresh directory and returns its path.
    pub fn get_or_build(
        &self,
        key: &str,
        ext: &str,
        build: impl FnOnce(&Path) -> Result<PathBuf>,
    ) -> Result<(PathBuf, bool)> {
        let path = self.entry(key, ext);
        if self.is_sound(&path) {
            return Ok((path, true));
        }
        let parent = path
            .parent()
            .expect("entries lie in a folder")
            .to_path_buf();
        fs::create_dir_all(&parent).map_err(|e| self.fail("create", &parent, e))?;
        let lock_path = path.with_extension("lock");
        let vacate = |p: &Path| vacate(p).map_err(|e| self.fail("replace", p, e));
        vacate(&lock_path)?;
        let lock = File::create(&lock_path).map_err(|e| self.fail("create", &lock_path, e))?;
        // A file system without locks only costs a second build.
        let locked = lock.lock().is_ok();
        if locked && self.is_sound(&path) {
            return Ok((path, true));
        }
        self.sweep(Duration::from_secs(24 * 3600));
        let work = tempfile::Builder::new()
            .prefix(BUILD)
            .tempdir_in(&self.dir)
            .map_err(|e| self.fail("create a folder in", &self.dir, e))?;
        let built = build(work.path())?;
        let digest = digest(&built).map_err(|e| self.fail("read", &built, e))?;
        let sum = work.path().join("sum");
        fs::write(&sum, digest.to_hex().as_bytes()).map_err(|e| self.fail("write", &sum, e))?;
        // The sum goes first: an entry without a matching sum is damaged, never trusted.
        let sum_path = path.with_extension("sum");
        vacate(&sum_path)?;
        vacate(&path)?;
        fs::rename(&sum, &sum_path).map_err(|e| self.fail("write", &sum_path, e))?;
        fs::rename(&built, &path).map_err(|e| self.fail("write", &path, e))?;
        let _ = fs::remove_file(&lock_path);
        Ok((path, false))
    }

    /// Returns true if a fact was noted under `key`.
    pub(crate) fn is_noted(&self, key: &str) -> bool {
        self.entry(key, NOTE).is_file()
    }

    /// Notes a fact under `key`, in an empty file. Where the cache cannot be written it is found again.
    pub(crate) fn note(&self, key: &str) {
        let path = self.entry(key, NOTE);
        let folder = path.parent().map(fs::create_dir_all);
        if folder.is_some_and(|made| made.is_ok()) {
            let _ = File::create(path);
        }
    }

    /// Removes the folders of builds that were killed: those that nothing was made in for `age`. A folder that cannot be
    /// removed stays, which does no harm.
    fn sweep(&self, age: Duration) {
        for entry in fs::read_dir(&self.dir).into_iter().flatten().flatten() {
            let left = entry.file_name().to_string_lossy().starts_with(BUILD);
            let old = (entry.metadata().and_then(|m| m.modified()))
                .is_ok_and(|t| t.elapsed().is_ok_and(|e| e > age));
            if left && old {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }

    /// Returns true if the entry exists and has the digest that was stored with it.
    fn is_sound(&self, path: &Path) -> bool {
        let Ok(sum) = fs::read(path.with_extension("sum")) else {
            return false;
        };
        digest(path).is_ok_and(|d| d.to_hex().as_bytes() == sum.as_slice())
    }

    /// Counts entries; a missing directory is an empty cache.
    pub fn usage(&self) -> Usage {
        let mut usage = Usage::default();
        for file in self.files() {
            usage.entries += (file
                .extension()
                .is_some_and(|e| e != "sum" && e != "lock" && e != NOTE))
                as usize;
            usage.bytes += file.metadata().map_or(0, |m| m.len());
        }
        usage
    }

    fn files(&self) -> Vec<PathBuf> {
        let list = |dir: &Path| -> Vec<PathBuf> {
            fs::read_dir(dir)
                .into_iter()
                .flatten()
                .flatten()
                .map(|e| e.path())
                .collect()
        };
        let mut files: Vec<PathBuf> = list(&self.dir)
            .into_iter()
            .filter(|d| d.is_dir() && d.file_name().is_some_and(|n| n.len() == 2))
            .flat_map(|d| list(&d))
            .filter(|f| {
                f.extension()
                    .is_some_and(|e| e == "so" || e == "sum" || e == "lock" || e == NOTE)
            })
            .collect();
        files.sort();
        files
    }
}

/// Removes a folder in the place of a file, which is damage like any other.
fn vacate(path: &Path) -> io::Result<()> {
    match fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path),
        _ => Ok(()),
    }
}

fn digest(path: &Path) -> io::Result<blake3::Hash> {
    Ok(blake3::hash(&fs::read(path)?))
}
