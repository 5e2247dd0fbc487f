//! The second tier of the cache, which machines share: `INRUSH_REMOTE_CACHE` names it.
//!
//! What is not in the cache's folder is looked for there, and what is built is stored there by a thread of its own after it was
//! stored in the folder. Contents are not trusted: entries have a digest, and a message authentication code where a secret is set,
//! and what was read passes the checks of the folder's own entries. A tier that fails is off for the rest of the process (circuit
//! breaker): the reason is a notice, and everything goes on with the folder alone.
//!
//! A request runs in a thread of its own, so that a server or a file system that hangs costs no more than
//! [`Settings::longest_request`], once.

mod entry;
mod folder;
mod queue;
mod settings;

pub use entry::{LARGEST, Part};
pub use queue::Source;
pub use settings::Settings;

use entry::Refusal;
use inrush_base::{Error, Result};
use queue::Queue;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, mpsc};
use std::time::{Duration, Instant};

/// A store of entries by name, which may be slow, absent or wrong. Names are a kind, a slash and a key of plain characters.
pub trait Tier: Send + Sync {
    /// Returns the entry of a name, None if there is none. No more than [`LARGEST`] bytes and one are read.
    ///
    /// # Errors
    /// What is wrong with the tier.
    fn get(&self, name: &str) -> Result<Option<Vec<u8>>>;

    /// Stores an entry, in the place of an earlier one.
    ///
    /// # Errors
    /// What is wrong with the tier.
    fn put(&self, name: &str, entry: &[u8]) -> Result<()>;

    /// Asks the tier for a sign of life.
    ///
    /// # Errors
    /// What is wrong with the tier.
    fn ping(&self) -> Result<()>;
}

/// Opens a tier. Nothing need be connected yet.
pub type Open = fn(&Settings) -> Result<Arc<dyn Tier>>;

/// Characters of a reason that are shown.
const LONGEST_REASON: usize = 300;

/// Kinds of tiers by the scheme of their addresses.
static KINDS: Mutex<Vec<(&'static str, Open)>> = Mutex::new(Vec::new());

/// Adds a kind of tiers. Programs that reach networks do so at their start; folders are always there.
pub fn add_kind(scheme: &'static str, open: Open) {
    let mut kinds = locked(&KINDS);
    kinds.retain(|(s, _)| *s != scheme);
    kinds.push((scheme, open));
}

/// Figures of the tier in this process.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Counts {
    /// Entries that were found and taken.
    pub hits: u64,
    /// Entries that were asked for in vain.
    pub misses: u64,
    /// Entries that were found and not taken: damaged, or not written with the secret.
    pub refused: u64,
    /// Entries that were stored.
    pub stored: u64,
    /// Entries that were not stored: too large, too many at once, or the tier was off by then.
    pub dropped: u64,
}

impl Counts {
    /// Returns the figures with their names in reports.
    pub fn named(&self) -> [(&'static str, u64); 5] {
        [
            ("hits", self.hits),
            ("misses", self.misses),
            ("refused", self.refused),
            ("stored", self.stored),
            ("dropped", self.dropped),
        ]
    }
}

#[derive(Default)]
struct Tally {
    hits: AtomicU64,
    misses: AtomicU64,
    refused: AtomicU64,
    stored: AtomicU64,
    dropped: AtomicU64,
}

fn add(to: &AtomicU64, n: u64) {
    to.fetch_add(n, Ordering::Relaxed);
}

/// The second tier of a process.
pub struct Remote {
    settings: Settings,
    tier: Option<Arc<dyn Tier>>,
    /// The reason for which the tier is off.
    off: OnceLock<String>,
    /// The reason for which nothing more is stored: readers of a tier need not be allowed to write.
    no_stores: OnceLock<String>,
    /// The first entry that was refused.
    refused: OnceLock<String>,
    tally: Tally,
    queue: Queue,
}

/// The tier that was opened last, and for which process: threads and connections do not survive a fork.
static CURRENT: Mutex<Option<(u32, Arc<Remote>)>> = Mutex::new(None);
/// Settings that cannot be read.
static UNREADABLE: Mutex<Option<String>> = Mutex::new(None);

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Remote {
    /// Returns the tier that the environment names now, in this process; None if it names none.
    pub fn current() -> Option<Arc<Remote>> {
        let settings = match Settings::from_environment() {
            Ok(settings) => {
                *locked(&UNREADABLE) = None;
                settings?
            }
            Err(e) => {
                *locked(&UNREADABLE) = Some(format!(
                    "the second tier of the cache is not used: {}",
                    e.message()
                ));
                return None;
            }
        };
        let process = std::process::id();
        let mut current = locked(&CURRENT);
        if let Some((of, remote)) = &*current
            && *of == process
            && remote.settings == settings
        {
            return Some(remote.clone());
        }
        let made = Arc::new(Remote::open(settings));
        if let Some((of, old)) = current.replace((process, made.clone()))
            && of != process
        {
            // The parent's connections are not closed in its name.
            std::mem::forget(old);
        }
        Some(made)
    }

    /// Returns the tier that this process used last.
    fn last() -> Option<Arc<Remote>> {
        let current = locked(&CURRENT);
        let (of, remote) = current.as_ref()?;
        (*of == std::process::id()).then(|| remote.clone())
    }

    /// Opens a tier. One that cannot be opened is off.
    pub fn open(settings: Settings) -> Remote {
        let remote = |tier| Remote {
            settings: settings.clone(),
            tier,
            off: OnceLock::new(),
            no_stores: OnceLock::new(),
            refused: OnceLock::new(),
            tally: Tally::default(),
            queue: Queue::default(),
        };
        match open(&settings) {
            Ok(tier) => remote(Some(tier)),
            Err(e) => {
                let made = remote(None);
                made.turn_off(e.message());
                made
            }
        }
    }

    /// Returns what a user should know: why the tier this process used last is off, or that entries were refused.
    pub fn last_notice() -> Option<String> {
        let unreadable = locked(&UNREADABLE).clone();
        Remote::last().and_then(|r| r.notice()).or(unreadable)
    }

    /// Waits until the tier that this process used last has what was queued for it, no longer than `bound`.
    pub fn finish_last(bound: Duration) {
        if let Some(remote) = Remote::last() {
            remote.finish(bound);
        }
    }

    /// Returns the settings that it was opened with.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Returns why the tier is off; None while it is on.
    pub fn why_off(&self) -> Option<&str> {
        self.off.get().map(String::as_str)
    }

    /// Returns what a user should know: why the tier is off, or that entries were refused.
    pub fn notice(&self) -> Option<String> {
        let name = self.settings.shown();
        if let Some(why) = self.off.get() {
            return Some(format!(
                "the second tier of the cache, `{name}`, is off for this process: {why}"
            ));
        }
        if let Some(why) = self.no_stores.get() {
            return Some(format!(
                "the second tier of the cache, `{name}`, is only read by this process: {why}"
            ));
        }
        let why = self.refused.get()?;
        Some(format!("the second tier of the cache, `{name}`: {why}"))
    }

    /// Returns the figures so far.
    pub fn counts(&self) -> Counts {
        let read = |n: &AtomicU64| n.load(Ordering::Relaxed);
        Counts {
            hits: read(&self.tally.hits),
            misses: read(&self.tally.misses),
            refused: read(&self.tally.refused),
            stored: read(&self.tally.stored),
            dropped: read(&self.tally.dropped),
        }
    }

    /// Returns the files of an entry; None if it is not there, was refused, or the tier is off.
    pub fn get(&self, kind: &str, key: &str) -> Option<Vec<Part>> {
        let name = format!("{kind}/{key}");
        let asked = name.clone();
        let found = self.within_time(move |tier| tier.get(&asked))?;
        let Some(bytes) = found else {
            add(&self.tally.misses, 1);
            return None;
        };
        let taken = if bytes.len() > LARGEST {
            Err(Refusal::Damaged)
        } else {
            entry::decode(&name, &bytes, self.settings.secret.as_ref())
        };
        match taken {
            Ok(parts) => {
                add(&self.tally.hits, 1);
                Some(parts)
            }
            Err(why) => {
                self.refuse(&name, why);
                None
            }
        }
    }

    /// Counts an entry that passed its digest and not the checks of the cache's folder, as one that was refused.
    pub fn take_back(&self, kind: &str, key: &str) {
        self.tally.hits.fetch_sub(1, Ordering::Relaxed);
        self.refuse(&format!("{kind}/{key}"), Refusal::Damaged);
    }

    /// Counts an entry that was found and lacks what is asked for as one that is not there.
    pub fn lacks(&self) {
        self.tally.hits.fetch_sub(1, Ordering::Relaxed);
        add(&self.tally.misses, 1);
    }

    fn refuse(&self, name: &str, why: Refusal) {
        add(&self.tally.refused, 1);
        let why = match why {
            Refusal::Damaged => "is damaged",
            Refusal::NotAuthentic => "was not written with the secret of INRUSH_REMOTE_CACHE_KEY",
        };
        let _ = (self.refused).set(format!(
            "the entry `{name}` {why} and is not used, nor are others like it"
        ));
    }

    /// Has an entry stored in the background. Returns at once.
    pub fn put(self: &Arc<Remote>, kind: &str, key: &str, files: Vec<(String, Source)>) {
        if self.stores_nothing() || !self.queue.push(self, format!("{kind}/{key}"), files) {
            add(&self.tally.dropped, 1);
        }
    }

    /// Waits until everything that was queued is stored, no longer than `bound`. What is left then is dropped.
    pub fn finish(&self, bound: Duration) {
        add(&self.tally.dropped, self.queue.finish(bound));
    }

    /// Asks the tier for a sign of life, and returns how long that took.
    ///
    /// # Errors
    /// Why it is off.
    pub fn ping(&self) -> Result<Duration> {
        let start = Instant::now();
        self.within_time(|tier| tier.ping());
        match self.off.get() {
            None => Ok(start.elapsed()),
            Some(why) => Err(Error::machine(why.clone())),
        }
    }

    fn stores_nothing(&self) -> bool {
        self.off.get().is_some() || self.no_stores.get().is_some()
    }

    /// Stores an entry now. A failure ends storing, not reading: readers need not be allowed to write, and large entries take long.
    fn send(&self, name: String, files: Vec<(String, Source)>) {
        if self.stores_nothing() {
            add(&self.tally.dropped, 1);
            return;
        }
        let entry = queue::read(files)
            .and_then(|parts| entry::encode(&name, &parts, self.settings.secret.as_ref()));
        let stored = entry.is_some_and(|e| match self.ask(move |tier| tier.put(&name, &e)) {
            Ok(()) => true,
            Err(why) => {
                let _ = self.no_stores.set(plain(&why));
                false
            }
        });
        let count = if stored {
            &self.tally.stored
        } else {
            &self.tally.dropped
        };
        add(count, 1);
    }

    /// Makes a request. A failure, or no answer in time, turns the tier off.
    fn within_time<T: Send + 'static>(
        &self,
        request: impl FnOnce(&dyn Tier) -> Result<T> + Send + 'static,
    ) -> Option<T> {
        if self.off.get().is_some() {
            return None;
        }
        match self.ask(request) {
            Ok(answer) => Some(answer),
            Err(why) => {
                self.turn_off(&why);
                None
            }
        }
    }

    /// Makes a request in a thread of its own. Returns why there is no answer, or none in time.
    fn ask<T: Send + 'static>(
        &self,
        request: impl FnOnce(&dyn Tier) -> Result<T> + Send + 'static,
    ) -> std::result::Result<T, String> {
        let tier = (self.tier.clone()).ok_or_else(|| "it cannot be opened".to_string())?;
        let (tell, told) = mpsc::channel();
        let thread = std::thread::Builder::new().name("inrush tier".into());
        let started = thread.spawn(move || {
            // A request that was given up has no one to tell.
            let _ = tell.send(request(&*tier));
        });
        started.map_err(|e| format!("no thread can be started: {e}"))?;
        let longest = self.settings.longest_request();
        match told.recv_timeout(longest) {
            Ok(answer) => answer.map_err(|e| e.message().to_string()),
            Err(mpsc::RecvTimeoutError::Timeout) => Err(format!(
                "a request took longer than {:.1} s",
                longest.as_secs_f64()
            )),
            Err(mpsc::RecvTimeoutError::Disconnected) => Err("a request panicked".into()),
        }
    }

    fn turn_off(&self, why: &str) {
        let _ = self.off.set(plain(why));
    }
}

/// Returns a reason in one line. Messages may quote what a server says.
fn plain(why: &str) -> String {
    let line = why.split_whitespace().collect::<Vec<_>>().join(" ");
    let line = line.chars().filter(|c| !c.is_control());
    line.take(LONGEST_REASON).collect()
}

fn open(settings: &Settings) -> Result<Arc<dyn Tier>> {
    let scheme = settings.url.split_once("://").map_or("", |(s, _)| s);
    if scheme == "file" {
        return folder::open(settings);
    }
    let found = locked(&KINDS)
        .iter()
        .find(|(s, _)| *s == scheme)
        .map(|k| k.1);
    if let Some(open) = found {
        return open(settings);
    }
    let mut known = vec!["file"];
    known.extend(locked(&KINDS).iter().map(|k| k.0));
    Err(Error::input(format!(
        "its address begins with none of {}",
        known
            .iter()
            .map(|s| format!("`{s}://`"))
            .collect::<Vec<_>>()
            .join(", ")
    )))
}
