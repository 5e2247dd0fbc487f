//! The bound on the cache's folder: what was used least recently goes when there is more than `INRUSH_CACHE_LIMIT` allows.
//!
//! Nothing is counted when an entry is stored. A process looks at the folder after it has stored a twentieth of the bound, and with
//! its first entry if no process has looked for an hour: the time of the file `bounded` tells. A thread of its own does that, under
//! a lock that makes it one process. Entries that were used within [`IN_USE`] stay, so that what a process has just found or is
//! building is not taken from it; uses are noted in the times of files, no more than once an hour.

use crate::cache::Cache;
use inrush_base::{Error, Result};
use std::fs::{self, File, FileTimes};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

/// The bound, unless the disk is small: bytes.
const MOST: u64 = 10_000_000_000;
/// Part of the disk that the cache may take: one of these.
const PART_OF_DISK: u64 = 10;
/// Time after its last use for which an entry stays. Longer than any build, and than the time between finding and loading it.
const IN_USE: Duration = Duration::from_secs(3600);
/// Time for which uses of an entry are not noted again.
const NOTED: Duration = Duration::from_secs(IN_USE.as_secs() / 2);
/// Time after which any process looks at the folder.
const OFTEN: Duration = Duration::from_secs(3600);
/// Part of the bound that a process stores before it looks again: one of these.
const PART: u64 = 20;
/// Name of the file whose time says when a process looked last, and which it locks.
const MARK: &str = "bounded";

/// Bytes that this process stored since it looked last.
static STORED: AtomicU64 = AtomicU64::new(0);
/// True when this process has stored anything.
static BEGUN: AtomicBool = AtomicBool::new(false);
/// The process whose thread looks at the folder; 0 if none does.
static LOOKING: Mutex<u32> = Mutex::new(0);
static DONE: Condvar = Condvar::new();

/// The bound of a cache.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Limit {
    /// Bytes; None if there is no bound.
    pub bytes: Option<u64>,
    /// Says why what the environment asks for is not used.
    pub notice: Option<String>,
}

impl Limit {
    /// Returns the bound of a folder: that of `INRUSH_CACHE_LIMIT`, else 10 GB or a tenth of the disk, whichever is less.
    pub fn of(dir: &Path) -> Limit {
        let asked = std::env::var("INRUSH_CACHE_LIMIT").unwrap_or_default();
        Limit::read(&asked, || disk(dir))
    }

    fn read(asked: &str, disk: impl Fn() -> Option<u64>) -> Limit {
        let usual = || disk().map_or(MOST, |bytes| MOST.min(bytes / PART_OF_DISK));
        let asked = asked.trim();
        let (bytes, notice) = match asked {
            "" => (Some(usual()), None),
            "none" => (None, None),
            _ => match size(asked) {
                Ok(bytes) => (Some(bytes), None),
                Err(e) => {
                    let told =
                        format!("INRUSH_CACHE_LIMIT is not used: {}, or `none`", e.message());
                    (Some(usual()), Some(told))
                }
            },
        };
        Limit { bytes, notice }
    }
}

/// Reads a number of bytes, with a unit of powers of 1000 or without.
///
/// # Errors
/// An input error that says how one is written.
///
/// # Examples
/// ```
/// use inrush_runtime::cache_limit::size;
/// assert_eq!(size("1.5 GB").unwrap(), 1_500_000_000);
/// assert!(size("much").is_err());
/// ```
pub fn size(text: &str) -> Result<u64> {
    let split = text.find(|c: char| c.is_ascii_alphabetic());
    let (number, unit) = text.split_at(split.unwrap_or(text.len()));
    let factor = match unit.to_ascii_uppercase().as_str() {
        "" | "B" => 1.0,
        "K" | "KB" => 1e3,
        "M" | "MB" => 1e6,
        "G" | "GB" => 1e9,
        "T" | "TB" => 1e12,
        other => {
            let why = format!("`{other}` is no unit: B, KB, MB, GB or TB");
            return Err(Error::input(why));
        }
    };
    match number.trim().parse::<f64>() {
        Ok(n) if n >= 0.0 && n.is_finite() => Ok((n * factor) as u64),
        _ => Err(Error::input(format!(
            "`{text}` is not a size, such as 500MB"
        ))),
    }
}

/// Returns the bytes of the disk that holds a folder, or would.
fn disk(dir: &Path) -> Option<u64> {
    let there = dir.ancestors().find(|d| d.exists())?;
    let found = rustix::fs::statvfs(there).ok()?;
    found.f_blocks.checked_mul(found.f_frsize)
}

/// Notes that a file was used now, unless its times say so nearly.
pub fn touch(path: &Path) {
    let now = SystemTime::now();
    let noted = fs::metadata(path).is_ok_and(|m| {
        let used = m.accessed().ok().max(m.modified().ok());
        used.is_some_and(|u| now.duration_since(u).is_ok_and(|age| age < NOTED))
    });
    if !noted && let Ok(file) = File::open(path) {
        // In a cache that others own nothing is removed by this user either.
        let _ = file.set_times(FileTimes::new().set_accessed(now));
    }
}

/// Tells that bytes were stored in a cache. From time to time a thread looks at the folder and removes what is too much.
pub fn stored(cache: &Cache, bytes: u64) {
    let total = STORED.fetch_add(bytes, Ordering::Relaxed) + bytes;
    let first = !BEGUN.swap(true, Ordering::Relaxed);
    let Some(limit) = cache.limit() else {
        return;
    };
    if total < limit / PART && (!first || was_looked_at(cache.dir())) {
        return;
    }
    let mut looking = locked();
    if *looking == std::process::id() {
        return;
    }
    let own = cache.clone();
    let thread = std::thread::Builder::new().name("inrush cache bound".into());
    let started = thread.spawn(move || {
        look(&own, limit, IN_USE);
        *locked() = 0;
        DONE.notify_all();
    });
    if started.is_ok() {
        *looking = std::process::id();
        STORED.store(0, Ordering::Relaxed);
    }
}

/// Waits for a thread that looks at the folder, no longer than `bound`.
pub fn finish(bound: Duration) {
    let end = Instant::now() + bound;
    let mut looking = locked();
    while *looking == std::process::id() {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        let waited = DONE.wait_timeout(looking, left);
        looking = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
}

fn locked() -> std::sync::MutexGuard<'static, u32> {
    LOOKING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns true if a process has looked at the folder lately.
fn was_looked_at(dir: &Path) -> bool {
    let looked = fs::metadata(dir.join(MARK)).and_then(|m| m.modified());
    looked.is_ok_and(|t| t.elapsed().is_ok_and(|age| age < OFTEN))
}

/// Removes what is more than the bound and was not used within `in_use`. One process at a time does so.
fn look(cache: &Cache, limit: u64, in_use: Duration) {
    let mark = File::options()
        .create(true)
        .write(true)
        .truncate(false)
        .open(cache.dir().join(MARK));
    // A folder that cannot be written does not grow.
    let Ok(mark) = mark else { return };
    if mark.try_lock().is_err() {
        return;
    }
    let now = SystemTime::now();
    let _ = mark.set_times(FileTimes::new().set_modified(now));
    let since = now.checked_sub(in_use).unwrap_or(SystemTime::UNIX_EPOCH);
    // A tenth is left free, so that the next entries need no look.
    if cache.kinds().iter().map(|u| u.bytes).sum::<u64>() > limit {
        cache.bound_old(limit - limit / 10, since);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache_kinds::KindUsage;

    fn write(dir: &Path, name: &str, bytes: usize, age: u64) {
        let path = dir.join(name);
        fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
        fs::write(&path, vec![0; bytes]).expect("a file");
        set_age(&path, age);
    }

    fn set_age(path: &Path, age: u64) {
        let time = SystemTime::now() - Duration::from_secs(age);
        let times = FileTimes::new().set_modified(time).set_accessed(time);
        let file = File::options().write(true).open(path).expect("a file");
        file.set_times(times).expect("times");
    }

    fn filled() -> (tempfile::TempDir, Cache) {
        let dir = tempfile::tempdir().expect("a folder");
        write(dir.path(), "0a/old.so", 100, 9000);
        write(dir.path(), "0a/older.so", 100, 9999);
        write(dir.path(), "0a/new.so", 100, 10);
        let cache = Cache::at(dir.path().to_path_buf());
        (dir, cache)
    }

    fn objects(cache: &Cache) -> KindUsage {
        cache.kinds()[0]
    }

    #[test]
    fn bounds_are_read() {
        let of = |asked: &str, disk: Option<u64>| Limit::read(asked, || disk);
        assert_eq!(of("", None).bytes, Some(MOST));
        assert_eq!(of("", Some(1 << 50)).bytes, Some(MOST));
        assert_eq!(of("", Some(5000)).bytes, Some(500));
        assert_eq!(of("2GB", Some(5000)).bytes, Some(2_000_000_000));
        assert_eq!(of("none", Some(5000)).bytes, None);
        let wrong = of("2 pounds", Some(5000));
        assert_eq!(wrong.bytes, Some(500));
        let notice = wrong.notice.expect("a notice");
        assert!(notice.contains("INRUSH_CACHE_LIMIT"), "{notice}");
        assert!(disk(Path::new("/")).is_some_and(|d| d > 1 << 20));
    }

    #[test]
    fn the_oldest_go_until_a_tenth_of_the_bound_is_free() {
        let (dir, cache) = filled();
        look(&cache, 300, IN_USE);
        assert_eq!(objects(&cache).entries, 3, "the bound is kept");
        look(&cache, 299, IN_USE);
        assert!(!dir.path().join("0a/older.so").exists());
        assert_eq!(objects(&cache).entries, 2);
        assert!(was_looked_at(dir.path()));
    }

    #[test]
    fn what_was_used_lately_stays() {
        let (dir, cache) = filled();
        touch(&dir.path().join("0a/older.so"));
        look(&cache, 0, IN_USE);
        assert!(dir.path().join("0a/older.so").exists(), "it was used");
        assert!(dir.path().join("0a/new.so").exists());
        assert!(!dir.path().join("0a/old.so").exists());
    }

    #[test]
    fn one_process_looks_at_a_time() {
        let (dir, cache) = filled();
        let mark = File::create(dir.path().join(MARK)).expect("a file");
        mark.lock().expect("a lock");
        look(&cache, 0, IN_USE);
        assert_eq!(objects(&cache).entries, 3);
        mark.unlock().expect("unlocked");
        look(&cache, 0, IN_USE);
        assert_eq!(objects(&cache).entries, 1);
    }

    #[test]
    fn a_use_is_noted_once() {
        let (dir, _cache) = filled();
        let path = dir.path().join("0a/new.so");
        let before = fs::metadata(&path)
            .and_then(|m| m.accessed())
            .expect("a time");
        touch(&path);
        let after = fs::metadata(&path)
            .and_then(|m| m.accessed())
            .expect("a time");
        assert_eq!(before, after);
    }
}
