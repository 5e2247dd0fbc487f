//! The build cache: a directory of files named by the hash of what they were built from.
//!
//! Entries are written under a temporary name and renamed, checked by digest when read, and rebuilt when damaged. A lock
//! file for each key makes two processes that want one entry build it once. The cache that the environment names looks for what it
//! lacks in the second tier, see [`crate::remote`], and keeps itself below a bound, see [`crate::cache_limit`].

use crate::cache_limit::{self, Limit};
pub use crate::cache_place::CachePlace;
use crate::remote::{Remote, Source};
use inrush_base::{Error, Result};
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Prefix of the folders in which entries are built.
const BUILD: &str = "build-";

/// Extension of the empty files that note facts.
const NOTE: &str = "note";

/// A cache directory.
#[derive(Clone, Debug)]
pub struct Cache {
    dir: PathBuf,
    /// Set where entries are looked for in the second tier and stored there, and the folder is bounded.
    shared: Option<Shared>,
}

/// The second tier and the bound of a cache, read from the environment by the thread that opened it: others may change the
/// environment while builds run.
#[derive(Clone)]
struct Shared {
    remote: Option<Arc<Remote>>,
    limit: Option<u64>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let tier = self.remote.as_ref().map(|r| r.settings().shown());
        write!(f, "tier {tier:?}, at most {:?} bytes", self.limit)
    }
}

/// Kind of the entries in the second tier.
const OBJECTS: &str = "objects";

/// Waits for what caches do in the background, no longer than `bound`: storing in the second tier, keeping the folder bounded.
pub fn finish(bound: Duration) {
    let start = Instant::now();
    Remote::finish_last(bound);
    cache_limit::finish(bound.saturating_sub(start.elapsed()));
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

    /// Returns the cache that the environment names, with its second tier and its bound.
    pub fn open_default() -> Cache {
        let dir = Self::default_dir();
        let shared = Shared {
            remote: Remote::current(),
            limit: Limit::of(&dir).bytes,
        };
        Cache {
            dir,
            shared: Some(shared),
        }
    }

    /// Returns a cache in a folder, without a second tier or bound.
    pub fn at(dir: PathBuf) -> Cache {
        Cache { dir, shared: None }
    }

    /// Returns the second tier, where there is one.
    pub(crate) fn remote(&self) -> Option<Arc<Remote>> {
        self.shared.as_ref()?.remote.clone()
    }

    /// Returns the most bytes that the folder may hold, where it is bounded.
    pub(crate) fn limit(&self) -> Option<u64> {
        self.shared.as_ref()?.limit
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
            cache_limit::touch(&path);
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
        let remote = self.remote();
        let found = match &remote {
            Some(remote) => self.fetch(remote, key, ext, work.path())?,
            None => None,
        };
        let there = found.is_some();
        let (built, digest) = match found {
            Some(found) => found,
            None => {
                let built = build(work.path())?;
                let digest = digest(&built).map_err(|e| self.fail("read", &built, e))?;
                (built, digest)
            }
        };
        let sum = work.path().join("sum");
        fs::write(&sum, digest.to_hex().as_bytes()).map_err(|e| self.fail("write", &sum, e))?;
        // The sum goes first: an entry without a matching sum is damaged, never trusted.
        let sum_path = path.with_extension("sum");
        vacate(&sum_path)?;
        vacate(&path)?;
        fs::rename(&sum, &sum_path).map_err(|e| self.fail("write", &sum_path, e))?;
        fs::rename(&built, &path).map_err(|e| self.fail("write", &path, e))?;
        let _ = fs::remove_file(&lock_path);
        if let Some(remote) = remote.filter(|_| !there) {
            let named = |p: &Path, ext: &str| (format!("{key}.{ext}"), Source::File(p.into()));
            remote.put(
                OBJECTS,
                key,
                vec![named(&path, ext), named(&sum_path, "sum")],
            );
        }
        if self.shared.is_some() {
            cache_limit::stored(self, fs::metadata(&path).map_or(0, |m| m.len()));
        }
        Ok((path, there))
    }

    /// Writes an entry of the second tier into a folder. Returns its file and digest; None if there is none, or it is damaged.
    fn fetch(
        &self,
        remote: &Remote,
        key: &str,
        ext: &str,
        into: &Path,
    ) -> Result<Option<(PathBuf, blake3::Hash)>> {
        let Some(parts) = remote.get(OBJECTS, key) else {
            return Ok(None);
        };
        let part = |ext: &str| {
            let name = format!("{key}.{ext}");
            parts.iter().find(|(n, _)| *n == name).map(|(_, b)| b)
        };
        let (Some(bytes), Some(sum)) = (part(ext), part("sum")) else {
            remote.take_back(OBJECTS, key);
            return Ok(None);
        };
        let digest = blake3::hash(bytes);
        if digest.to_hex().as_bytes() != sum.as_slice() {
            remote.take_back(OBJECTS, key);
            return Ok(None);
        }
        let path = into.join("found");
        fs::write(&path, bytes).map_err(|e| self.fail("write", &path, e))?;
        Ok(Some((path, digest)))
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
