//! All that the folder of the caches keeps, by kind: shown, bounded and cleared.
//!
//! ```text
//! 04/9fab...so, .sum     objects        machine code of the C compiler
//! triton/binaries/       triton         machine code of kernels for GPUs, with their sources
//! triton/records/        triton         kernels that packages of source had built, ready to be launched
//! graphs/BUILD/          graphs         graphs of torch.compile
//! graphs/BUILD/captures/ graphs         what Dynamo captured
//! tuned/                 tuned          tiles that won
//! kernels/               kernels        configurations of users' kernels that won
//! reproductions/         reproductions  graphs that failed
//! ```
//!
//! An entry is the files of one name in a folder, or a folder. Processes that use the cache at the same time make again what is
//! gone.

use crate::cache::Cache;
use inrush_base::{Error, Result};
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

/// The folder of captured frames among the graphs of a build: its children are entries.
const CAPTURES: &str = "captures";

/// A kind of entries.
pub struct CacheKind {
    pub name: &'static str,
    /// A word about what it holds, for users.
    pub what: &'static str,
    /// Returns the folders whose children are entries.
    folders: fn(&Path) -> Vec<PathBuf>,
}

/// All kinds.
pub const KINDS: &[CacheKind] = &[
    CacheKind {
        name: "objects",
        what: "machine code for CPUs",
        folders: |dir| {
            let two_digits = |p: &PathBuf| {
                let name = p.file_name().and_then(|n| n.to_str()).unwrap_or_default();
                name.len() == 2 && name.chars().all(|c| c.is_ascii_hexdigit())
            };
            subfolders(dir).into_iter().filter(two_digits).collect()
        },
    },
    CacheKind {
        name: "triton",
        what: "kernels for GPUs",
        folders: |dir| {
            ["binaries", "sources", "records"]
                .map(|f| dir.join("triton").join(f))
                .into()
        },
    },
    CacheKind {
        name: "graphs",
        what: "graphs of torch.compile",
        folders: |dir| {
            let builds = subfolders(&dir.join("graphs"));
            (builds.iter())
                .flat_map(|b| [b.clone(), b.join(CAPTURES)])
                .collect()
        },
    },
    CacheKind {
        name: "tuned",
        what: "tuned tiles",
        folders: |dir| vec![dir.join("tuned")],
    },
    CacheKind {
        name: "kernels",
        what: "tuned kernels of users",
        folders: |dir| vec![dir.join("kernels")],
    },
    CacheKind {
        name: "reproductions",
        what: "graphs that failed",
        folders: |dir| vec![dir.join("reproductions")],
    },
];

/// Entries of a kind in numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct KindUsage {
    pub entries: usize,
    pub bytes: u64,
}

/// An entry on disk.
struct Entry {
    kind: usize,
    paths: Vec<PathBuf>,
    bytes: u64,
    /// The time of the last write or, where the file system tells, read.
    used: SystemTime,
}

/// Returns the kind of this name.
///
/// # Errors
/// An input error that lists the kinds.
pub fn kind(name: &str) -> Result<&'static CacheKind> {
    KINDS.iter().find(|k| k.name == name).ok_or_else(|| {
        let names: Vec<&str> = KINDS.iter().map(|k| k.name).collect();
        Error::input(format!(
            "the cache has no `{name}`: it has {}",
            names.join(", ")
        ))
    })
}

impl Cache {
    /// Counts the entries of each kind, in the order of [`KINDS`]. What cannot be read counts nothing.
    pub fn kinds(&self) -> Vec<KindUsage> {
        count(&self.entries())
    }

    /// Removes the entries of the kinds in `names`. Returns what was removed, by kind.
    ///
    /// # Errors
    /// A machine error for an entry that cannot be removed; those before it are gone.
    pub fn clear_kinds(&self, names: &[&str]) -> Result<Vec<KindUsage>> {
        let mut all = self.entries();
        all.retain(|e| names.contains(&KINDS[e.kind].name));
        self.remove(&all)?;
        Ok(count(&all))
    }

    /// Removes the entries that were used least recently, until those that stay have no more than `bytes`. Returns what was removed,
    /// by kind.
    ///
    /// # Errors
    /// As for [`Cache::clear_kinds`].
    pub fn bound(&self, bytes: u64) -> Result<Vec<KindUsage>> {
        let mut all = self.oldest_first();
        let mut kept: u64 = all.iter().map(|e| e.bytes).sum();
        let mut gone = 0;
        while kept > bytes && gone < all.len() {
            kept -= all[gone].bytes;
            gone += 1;
        }
        all.truncate(gone);
        self.remove(&all)?;
        Ok(count(&all))
    }

    /// Removes the entries that were used least recently, none that was used after `since`, until those that stay have no more than
    /// `bytes`. Returns what was removed, by kind. What cannot be removed stays.
    pub(crate) fn bound_old(&self, bytes: u64, since: SystemTime) -> Vec<KindUsage> {
        let all = self.oldest_first();
        let mut kept: u64 = all.iter().map(|e| e.bytes).sum();
        let mut gone = vec![KindUsage::default(); KINDS.len()];
        for e in all {
            if kept <= bytes || e.used > since {
                break;
            }
            // A process may have taken the entry since it was listed.
            if last_use(&e.paths) <= since && self.remove(std::slice::from_ref(&e)).is_ok() {
                kept -= e.bytes;
                gone[e.kind].entries += 1;
                gone[e.kind].bytes += e.bytes;
            }
        }
        gone
    }

    /// Returns all entries, those that were used least recently first.
    fn oldest_first(&self) -> Vec<Entry> {
        let mut all = self.entries();
        // Names break ties, so that equal caches are cut equally.
        all.sort_by(|a, b| (a.used, &a.paths).cmp(&(b.used, &b.paths)));
        all
    }

    fn entries(&self) -> Vec<Entry> {
        let mut all = Vec::new();
        for (kind, k) in KINDS.iter().enumerate() {
            for folder in (k.folders)(self.dir()) {
                entries(&folder, kind, &mut all);
            }
        }
        all
    }

    fn remove(&self, all: &[Entry]) -> Result<()> {
        for path in all.iter().flat_map(|e| &e.paths) {
            remove(path).map_err(|e| {
                Error::machine(format!(
                    "cannot remove `{}` from the cache: {e}",
                    path.display()
                ))
            })?;
        }
        Ok(())
    }
}

fn count(all: &[Entry]) -> Vec<KindUsage> {
    let mut out = vec![KindUsage::default(); KINDS.len()];
    for e in all {
        out[e.kind].entries += 1;
        out[e.kind].bytes += e.bytes;
    }
    out
}

/// Returns the folders in a folder, sorted; links are none.
fn subfolders(dir: &Path) -> Vec<PathBuf> {
    let mut all: Vec<PathBuf> = (children(dir).into_iter())
        .filter(|p| fs::symlink_metadata(p).is_ok_and(|m| m.is_dir()))
        .collect();
    all.sort();
    all
}

fn children(dir: &Path) -> Vec<PathBuf> {
    // A link out of the cache is not the cache's.
    if !fs::symlink_metadata(dir).is_ok_and(|m| m.is_dir()) {
        return Vec::new();
    }
    let found = fs::read_dir(dir).into_iter().flatten().flatten();
    found.map(|e| e.path()).collect()
}

/// Adds the entries of a folder: files of one name, whatever their extension, are one.
fn entries(folder: &Path, kind: usize, all: &mut Vec<Entry>) {
    let mut by_name: BTreeMap<String, Entry> = BTreeMap::new();
    for path in children(folder) {
        let Ok(meta) = fs::symlink_metadata(&path) else {
            continue;
        };
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned());
        let name = name.unwrap_or_default();
        if name.starts_with('.') || (name == CAPTURES && meta.is_dir()) {
            // A file that another process is writing, or a folder of entries.
            continue;
        }
        let stem = name.split('.').next().unwrap_or_default().to_string();
        let (bytes, used) = measure(&path, &meta);
        let e = by_name.entry(stem).or_insert(Entry {
            kind,
            paths: Vec::new(),
            bytes: 0,
            used: SystemTime::UNIX_EPOCH,
        });
        e.paths.push(path);
        e.bytes += bytes;
        e.used = e.used.max(used);
    }
    for (_, mut e) in by_name {
        e.paths.sort();
        all.push(e);
    }
}

/// Returns the bytes of a file or of all files in a folder, and when it was used last.
fn measure(path: &Path, meta: &fs::Metadata) -> (u64, SystemTime) {
    let written = meta.modified().unwrap_or(SystemTime::UNIX_EPOCH);
    let used = meta.accessed().map_or(written, |read| read.max(written));
    if !meta.is_dir() {
        return (meta.len(), used);
    }
    // A folder is read by whoever looks at it: its files tell.
    let (mut bytes, mut last) = (0, SystemTime::UNIX_EPOCH);
    for child in children(path) {
        if let Ok(meta) = fs::symlink_metadata(&child) {
            let (more, used) = measure(&child, &meta);
            bytes += more;
            last = last.max(used);
        }
    }
    (bytes, last)
}

/// Returns when any of these files or folders was used last.
fn last_use(paths: &[PathBuf]) -> SystemTime {
    let of = |p: &PathBuf| fs::symlink_metadata(p).map(|meta| measure(p, &meta).1);
    let all = paths.iter().filter_map(|p| of(p).ok());
    all.max().unwrap_or(SystemTime::UNIX_EPOCH)
}

/// Removes a file or folder; one that is gone already is fine. Links are removed, not followed.
fn remove(path: &Path) -> io::Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(m) if m.is_dir() => fs::remove_dir_all(path),
        Ok(_) => fs::remove_file(path),
        Err(e) => Err(e),
    };
    match removed {
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn write(dir: &Path, name: &str, bytes: usize, age: u64) {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(&path, vec![0; bytes]).expect("a file");
        let time = SystemTime::now() - Duration::from_secs(age);
        let times = fs::FileTimes::new().set_modified(time).set_accessed(time);
        let file = fs::File::options().write(true).open(&path).expect("a file");
        file.set_times(times).expect("times");
    }

    fn filled() -> (tempfile::TempDir, Cache) {
        let dir = tempfile::tempdir().expect("a folder");
        let at = dir.path();
        write(at, "0a/bc.so", 100, 50);
        write(at, "0a/bc.sum", 10, 50);
        write(at, "triton/binaries/k.cubin", 1000, 10);
        write(at, "triton/binaries/k.json", 20, 10);
        write(at, "triton/worker.py", 5, 100);
        write(at, "graphs/build/entry/part", 300, 20);
        write(at, "graphs/build/entry/other/part", 30, 40);
        write(at, "graphs/build/captures/frame/one", 40, 45);
        write(at, "tuned/t.json", 7, 30);
        write(at, "tuned/.tmpAb12", 70, 1);
        write(at, "kernels/w.json", 8, 60);
        write(at, "reproductions/today-x/model.pt", 400, 70);
        write(at, "notes/mine.txt", 9, 1000);
        let cache = Cache::at(at.to_path_buf());
        (dir, cache)
    }

    fn usage(cache: &Cache) -> Vec<(usize, u64)> {
        cache.kinds().iter().map(|u| (u.entries, u.bytes)).collect()
    }

    #[test]
    fn entries_of_every_kind_are_counted() {
        let (_dir, cache) = filled();
        let all = [(1, 110), (1, 1020), (2, 370), (1, 7), (1, 8), (1, 400)];
        assert_eq!(usage(&cache), all);
        assert_eq!(usage(&Cache::at("/nowhere/at/all".into())), [(0, 0); 6]);
    }

    #[test]
    fn kinds_are_cleared_alone() {
        let (dir, cache) = filled();
        let gone = cache.clear_kinds(&["triton", "graphs"]).expect("removed");
        assert_eq!(
            (gone[1].bytes, gone[2].bytes, gone[0].bytes),
            (1020, 370, 0)
        );
        assert_eq!(usage(&cache)[1..3], [(0, 0), (0, 0)]);
        assert_eq!(usage(&cache)[0], (1, 110));
        let all: Vec<&str> = KINDS.iter().map(|k| k.name).collect();
        cache.clear_kinds(&all).expect("removed");
        assert_eq!(usage(&cache), [(0, 0); 6]);
        // Files of others stay.
        assert!(dir.path().join("notes/mine.txt").exists());
        assert!(dir.path().join("triton/worker.py").exists());
        // So does what another process is writing.
        assert!(dir.path().join("tuned/.tmpAb12").exists());
        assert!(kind("objects").is_ok());
        let wrong = kind("object").err().expect("an error").to_string();
        assert!(wrong.contains("triton, graphs"), "{wrong}");
    }

    #[test]
    fn the_least_recently_used_go_first() {
        let (_dir, cache) = filled();
        let total: u64 = usage(&cache).iter().map(|u| u.1).sum();
        let gone = cache.bound(total).expect("nothing to remove");
        assert!(gone.iter().all(|u| u.entries == 0));
        // The reproduction is the oldest, then comes the user's kernel, then the object.
        cache.bound(total - 1).expect("removed");
        assert_eq!(usage(&cache)[5], (0, 0));
        assert_eq!(usage(&cache)[4], (1, 8));
        cache.bound(total - 400 - 9).expect("removed");
        assert_eq!((usage(&cache)[4], usage(&cache)[0]), ((0, 0), (0, 0)));
        cache.bound(1100).expect("removed");
        assert_eq!(
            usage(&cache),
            [(0, 0), (1, 1020), (0, 0), (0, 0), (0, 0), (0, 0)]
        );
        cache.bound(0).expect("removed");
        assert_eq!(usage(&cache), [(0, 0); 6]);
    }

    #[test]
    fn links_out_of_the_cache_are_not_followed() {
        let (dir, cache) = filled();
        let other = tempfile::tempdir().expect("a folder");
        write(other.path(), "precious", 1, 1);
        for name in ["tuned/link", "aa"] {
            std::os::unix::fs::symlink(other.path(), dir.path().join(name)).expect("a link");
        }
        let all: Vec<&str> = KINDS.iter().map(|k| k.name).collect();
        cache.clear_kinds(&all).expect("removed");
        assert!(other.path().join("precious").exists());
        assert!(!dir.path().join("tuned/link").exists());
    }
}
