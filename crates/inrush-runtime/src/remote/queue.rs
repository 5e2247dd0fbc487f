//! Entries that wait to be stored in the second tier, and the thread that stores them.

use super::entry::{LARGEST, Part};
use super::{Remote, locked};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// Entries that wait at most. They are names of files, so the bound is on the time that they take.
const MOST: usize = 512;

/// Where the contents of a file come from.
#[derive(Clone, Debug)]
pub enum Source {
    /// From a file, which is read when the entry's turn comes.
    File(PathBuf),
    /// From memory.
    Memory(Vec<u8>),
}

type Job = (String, Vec<(String, Source)>);

#[derive(Default)]
struct State {
    waiting: VecDeque<Job>,
    /// The thread is storing an entry, or about to look for one.
    working: bool,
}

/// The queue of a tier. Its thread ends when nothing waits, and is started again.
#[derive(Default)]
pub(super) struct Queue {
    state: Mutex<State>,
    done: Condvar,
}

impl Queue {
    /// Adds an entry. Returns false if there is no room or no thread for it.
    pub(super) fn push(
        &self,
        remote: &Arc<Remote>,
        name: String,
        files: Vec<(String, Source)>,
    ) -> bool {
        let mut state = locked(&self.state);
        if state.waiting.len() >= MOST {
            return false;
        }
        state.waiting.push_back((name, files));
        if state.working {
            return true;
        }
        let own = remote.clone();
        let thread = std::thread::Builder::new().name("inrush tier writer".into());
        state.working = thread.spawn(move || own.queue.work(&own)).is_ok();
        if !state.working {
            state.waiting.pop_back();
        }
        state.working
    }

    fn work(&self, remote: &Remote) {
        loop {
            let mut state = locked(&self.state);
            let Some((name, files)) = state.waiting.pop_front() else {
                state.working = false;
                drop(state);
                self.done.notify_all();
                return;
            };
            drop(state);
            remote.send(name, files);
        }
    }

    /// Waits until nothing is left, no longer than `bound`. Returns how many entries were left, which are forgotten.
    pub(super) fn finish(&self, bound: Duration) -> u64 {
        let end = Instant::now() + bound;
        let mut state = locked(&self.state);
        while state.working {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.done.wait_timeout(state, left);
            state = waited.unwrap_or_else(std::sync::PoisonError::into_inner).0;
        }
        let left = state.waiting.len();
        state.waiting.clear();
        left as u64
    }
}

/// Reads the files of an entry; None if one is gone, or they are too large.
pub(super) fn read(files: Vec<(String, Source)>) -> Option<Vec<Part>> {
    let mut room = LARGEST as u64;
    let mut out = Vec::with_capacity(files.len());
    for (name, source) in files {
        let bytes = match source {
            Source::Memory(bytes) => bytes,
            Source::File(path) => {
                let length = std::fs::metadata(&path).ok()?.len();
                if length > room {
                    return None;
                }
                std::fs::read(path).ok()?
            }
        };
        room = room.checked_sub(bytes.len() as u64)?;
        out.push((name, bytes));
    }
    Some(out)
}
