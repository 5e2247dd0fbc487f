//! The second tier over a folder: two caches share it, and whatever is wrong with it, things are built.

use inrush_runtime::cache::Cache;
use inrush_runtime::remote::{Counts, Remote, Settings, Source, Tier, add_kind};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const KEY: &str = "0123456789abcdef";
const LONG: Duration = Duration::from_secs(20);

fn remote(folder: &Path, secret: Option<&str>) -> Arc<Remote> {
    let url = format!("file://{}", folder.display());
    Arc::new(Remote::open(Settings::new(&url, secret)))
}

fn put(remote: &Arc<Remote>, key: &str, bytes: &[u8]) {
    let files = vec![("a.bin".to_string(), Source::Memory(bytes.to_vec()))];
    remote.put("objects", key, files);
    remote.finish(LONG);
}

fn only_file(folder: &Path) -> PathBuf {
    folder.join("objects/01").join(KEY)
}

#[test]
fn entries_are_found_by_others() {
    let dir = tempfile::tempdir().expect("a folder");
    let (one, other) = (remote(dir.path(), None), remote(dir.path(), None));
    assert_eq!(other.get("objects", KEY), None);
    put(&one, KEY, b"code");
    let found = other.get("objects", KEY).expect("there");
    assert_eq!(found, [("a.bin".to_string(), b"code".to_vec())]);
    let counts = Counts {
        hits: 1,
        misses: 1,
        ..Counts::default()
    };
    assert_eq!(other.counts(), counts);
    assert_eq!(one.counts().stored, 1);
    assert_eq!((one.notice(), other.notice()), (None, None));
}

#[test]
fn damaged_entries_are_refused_and_replaced() {
    let dir = tempfile::tempdir().expect("a folder");
    let one = remote(dir.path(), None);
    put(&one, KEY, b"code");
    let path = only_file(dir.path());
    let good = fs::read(&path).expect("a file");
    let mut flipped = good.clone();
    *flipped.last_mut().expect("bytes") ^= 1;
    for wrong in [&b"garbage"[..], b"", &good[..good.len() - 1], &flipped] {
        fs::write(&path, wrong).expect("written");
        let other = remote(dir.path(), None);
        assert_eq!(other.get("objects", KEY), None);
        assert_eq!(other.counts().refused, 1);
        let notice = other.notice().expect("a notice");
        assert!(notice.contains("is damaged"), "{notice}");
        // It goes on.
        put(&other, KEY, b"code");
        assert!(other.get("objects", KEY).is_some());
    }
    // An entry under another key.
    fs::write(&path, &good).expect("written");
    fs::copy(&path, path.with_file_name("01ff")).expect("copied");
    assert_eq!(one.get("objects", "01ff"), None);
}

#[test]
fn a_secret_keeps_entries_of_others_out() {
    let dir = tempfile::tempdir().expect("a folder");
    put(&remote(dir.path(), None), KEY, b"theirs");
    let ours = remote(dir.path(), Some("secret"));
    assert_eq!(ours.get("objects", KEY), None);
    let notice = ours.notice().expect("a notice");
    assert!(notice.contains("INRUSH_REMOTE_CACHE_KEY"), "{notice}");
    put(&ours, KEY, b"ours");
    let same = remote(dir.path(), Some("secret"));
    assert!(same.get("objects", KEY).is_some());
    assert_eq!(remote(dir.path(), Some("guess")).get("objects", KEY), None);
}

#[test]
fn a_tier_that_fails_is_off() {
    let dir = tempfile::tempdir().expect("a folder");
    let gone = remote(&dir.path().join("not mounted"), None);
    assert_eq!(gone.get("objects", KEY), None);
    let why = gone.why_off().expect("off").to_string();
    assert!(why.contains("not mounted"), "{why}");
    put(&gone, KEY, b"code");
    assert_eq!(gone.counts().dropped, 1);
    let unknown = Arc::new(Remote::open(Settings::new("ftp://x", None)));
    let notice = unknown.notice().expect("off");
    assert!(
        notice.contains("`ftp://x`") && notice.contains("`file://`"),
        "{notice}"
    );
    assert!(unknown.ping().is_err());
}

/// Answers after a while.
struct Slow;

impl Tier for Slow {
    fn get(&self, _name: &str) -> inrush_base::Result<Option<Vec<u8>>> {
        std::thread::sleep(LONG);
        Ok(None)
    }
    fn put(&self, _name: &str, _entry: &[u8]) -> inrush_base::Result<()> {
        std::thread::sleep(LONG);
        Ok(())
    }
    fn ping(&self) -> inrush_base::Result<()> {
        panic!("a fault of the tier")
    }
}

#[test]
fn a_tier_that_hangs_or_panics_costs_a_bounded_time() {
    add_kind("slow", |_| Ok(Arc::new(Slow)));
    let mut settings = Settings::new("slow://", None);
    (settings.connect, settings.read) = (Duration::from_millis(20), Duration::from_millis(20));
    let start = Instant::now();
    let reader = Remote::open(settings.clone());
    assert_eq!(reader.get("objects", KEY), None);
    assert!(reader.why_off().expect("off").contains("longer than 0.1 s"));
    assert_eq!(reader.get("objects", KEY), None);
    let writer = Arc::new(Remote::open(settings));
    put(&writer, KEY, b"code");
    let notice = writer.notice().expect("a notice");
    assert!(notice.contains("is only read"), "{notice}");
    let panics = Remote::open(Settings::new("slow://", None))
        .ping()
        .expect_err("a fault");
    assert!(panics.message().contains("panicked"), "{panics}");
    // Two requests of 100 ms each; the tier itself would take 40 s.
    assert!(start.elapsed() < LONG / 2, "{:?}", start.elapsed());
}

/// Has one entry and takes none.
struct ReadOnly(Vec<u8>);

impl Tier for ReadOnly {
    fn get(&self, _name: &str) -> inrush_base::Result<Option<Vec<u8>>> {
        Ok(Some(self.0.clone()))
    }
    fn put(&self, _name: &str, _entry: &[u8]) -> inrush_base::Result<()> {
        Err(inrush_base::Error::machine("no right to write"))
    }
    fn ping(&self) -> inrush_base::Result<()> {
        Ok(())
    }
}

#[test]
fn a_tier_that_takes_nothing_is_still_read() {
    add_kind("readonly", |_| {
        let dir = tempfile::tempdir().expect("a folder");
        put(&remote(dir.path(), None), KEY, b"code");
        let entry = fs::read(only_file(dir.path())).expect("a file");
        Ok(Arc::new(ReadOnly(entry)))
    });
    let reader = Arc::new(Remote::open(Settings::new("readonly://", None)));
    for _ in 0..2 {
        put(&reader, KEY, b"other");
        assert!(reader.get("objects", KEY).is_some());
    }
    let counts = reader.counts();
    assert_eq!((counts.hits, counts.stored, counts.dropped), (2, 0, 2));
    let notice = reader.notice().expect("a notice");
    assert!(
        notice.contains("is only read by this process: no right to write"),
        "{notice}"
    );
    assert_eq!(reader.why_off(), None);
}

#[test]
fn a_writer_that_does_not_end_is_left() {
    add_kind("slower", |_| Ok(Arc::new(Slow)));
    let remote = Arc::new(Remote::open(Settings::new("slower://", None)));
    let start = Instant::now();
    for key in ["aa", "bb", "cc"] {
        remote.put("objects", key, Vec::new());
    }
    assert!(start.elapsed() < Duration::from_secs(1), "puts do not wait");
    remote.finish(Duration::from_millis(50));
    assert!(start.elapsed() < Duration::from_secs(5));
    assert_eq!(remote.counts().dropped, 2);
}

#[test]
fn caches_in_folders_of_their_own_use_no_tier() {
    let dir = tempfile::tempdir().expect("a folder");
    let cache = Cache::at(dir.path().join("cache"));
    let built = cache.get_or_build(KEY, "so", |work| {
        let made = work.join("made");
        fs::write(&made, b"code").expect("written");
        Ok(made)
    });
    assert!(!built.expect("built").1);
    assert!(!dir.path().join("cache/bounded").exists());
}
