//! Launches and matrix products in a row, recorded as one.
//!
//! A call whose addresses are those of calls before, which PyTorch's allocator gives as a rule, issues the recording: the host
//! needs a launch's time for all of it. Any other call issues the steps themselves. Nothing is copied, and memory is made and
//! released as without recordings.

use super::blas::Blas;
use super::engine::{Frame, Kept, Ready, Stop};
use super::owned::Owned;
use super::plan;
use inrush_base::{Error, Result};
use inrush_cuda::driver::{DevicePtr, Driver, Kernel, Recording, Stream};
use rustc_hash::{FxHashMap, FxHasher};
use smallvec::SmallVec;
use std::collections::hash_map::Entry;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// Calls with the same addresses before the one that records.
const WARM: u32 = 2;
/// Sets of addresses whose calls are counted.
const SEEN: usize = 8;
/// Recordings of one place that are kept, and that are made at most: addresses that never settle are not worth more.
const KEPT: usize = 4;
const MADE: usize = 16;

/// What a recording is good for.
#[derive(Clone, PartialEq, Hash)]
struct Key {
    stream: usize,
    /// How cuBLAS computes.
    mode: i32,
    bases: SmallVec<[DevicePtr; 32]>,
}

/// Memory that recorded products use while they run, one for each stream.
struct Workspace {
    _memory: Owned,
    address: DevicePtr,
}

struct Recorded {
    key: Key,
    recording: Recording,
    /// What it runs must stay loaded.
    _kernels: Vec<Arc<Kernel>>,
    _workspace: Arc<Workspace>,
}

/// What a plan knows of one of its runs.
#[derive(Default)]
pub struct Place {
    /// Digests of addresses that calls had, and how often.
    seen: Vec<(u64, u32)>,
    made: usize,
    /// Recordings that no call issues at present, the one used last at the end.
    kept: Vec<Recorded>,
}

enum Found {
    Recorded(Recorded),
    /// It is worth recording.
    Familiar,
    New,
}

impl Place {
    fn find(&mut self, key: &Key) -> Found {
        if let Some(at) = self.kept.iter().rposition(|r| r.key == *key) {
            return Found::Recorded(self.kept.remove(at));
        }
        if self.made >= MADE {
            return Found::New;
        }
        let mut digest = FxHasher::default();
        key.hash(&mut digest);
        let digest = digest.finish();
        let calls = match self.seen.iter().position(|s| s.0 == digest) {
            Some(at) => self.seen.remove(at).1,
            None => 0,
        };
        if calls >= WARM {
            self.made += 1;
            return Found::Familiar;
        }
        if self.seen.len() >= SEEN {
            self.seen.remove(0);
        }
        self.seen.push((digest, calls + 1));
        Found::New
    }

    fn keep(&mut self, recorded: Recorded) {
        if self.kept.len() >= KEPT {
            self.kept.remove(0);
        }
        self.kept.push(recorded);
    }
}

/// What records on a device: a stream and a handle of cuBLAS's that belong to nobody else.
struct Recorder {
    stream: Stream,
    handle: usize,
    /// By stream that recordings are issued on.
    workspaces: FxHashMap<usize, Weak<Workspace>>,
}

/// The recorders by device; who holds them is the only one that records.
fn recorders() -> &'static Mutex<FxHashMap<i32, Recorder>> {
    static RECORDERS: OnceLock<Mutex<FxHashMap<i32, Recorder>>> = OnceLock::new();
    RECORDERS.get_or_init(Mutex::default)
}

/// Bytes of cuBLAS's workspace, as PyTorch has it: which algorithm is chosen depends on them. `None` where the user chose.
fn workspace_bytes(driver: &Driver) -> Option<u64> {
    if std::env::var_os("CUBLAS_WORKSPACE_CONFIG").is_some() {
        return None;
    }
    let hopper = driver.capability().is_ok_and(|major| major >= 9);
    Some(if hopper {
        32 << 20
    } else {
        (8 << 20) + (128 << 10)
    })
}

impl Frame<'_> {
    /// Steps of a run: as one where they were recorded before.
    pub(super) fn run(
        &mut self,
        r: &plan::Run,
        ready: &Ready,
        kept: &mut Kept,
    ) -> std::result::Result<(), Stop> {
        let Some((blas, handle)) = self.blas.filter(|_| self.may_record()) else {
            return self.native(&r.ops, ready, kept);
        };
        let driver = Driver::get().map_err(Stop::Failed)?;
        // What somebody captures is to be made of launches.
        if driver.is_capturing(self.stream).map_err(Stop::Failed)? {
            return self.native(&r.ops, ready, kept);
        }
        let key = Key {
            stream: self.stream.0,
            mode: blas.mode(handle),
            bases: r.bases.iter().map(|b| self.bases[*b as usize]).collect(),
        };
        let place = || {
            ready.runs[r.id]
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
        };
        let found = place().find(&key);
        let recorded = match found {
            Found::New => return self.native(&r.ops, ready, kept),
            Found::Recorded(recorded) => recorded,
            Found::Familiar => match self.record(&driver, blas, r, key, ready, kept) {
                Ok(recorded) => recorded,
                Err(_) => {
                    place().made = MADE;
                    return self.native(&r.ops, ready, kept);
                }
            },
        };
        // SAFETY: the addresses are those of this call, and the stream is the one that the workspace is for.
        let done = unsafe { recorded.recording.launch(self.stream) };
        place().keep(recorded);
        done.map_err(Stop::Failed)
    }

    fn record(
        &mut self,
        driver: &Driver,
        blas: &'static Blas,
        r: &plan::Run,
        key: Key,
        ready: &Ready,
        kept: &mut Kept,
    ) -> Result<Recorded> {
        let refused = || Error::unsupported("cuBLAS does not record");
        let bytes = workspace_bytes(driver).ok_or_else(refused)?;
        let mut recorders = recorders().lock().unwrap_or_else(PoisonError::into_inner);
        let device = self.device_index();
        let recorder = match recorders.entry(device) {
            Entry::Occupied(e) => e.into_mut(),
            Entry::Vacant(e) => e.insert(Recorder {
                stream: driver.stream()?,
                handle: blas.create().ok_or_else(refused)?,
                workspaces: FxHashMap::default(),
            }),
        };
        let workspace = match recorder.workspaces.get(&key.stream).and_then(Weak::upgrade) {
            Some(w) => w,
            None => {
                let (memory, address) = self.memory(bytes).ok_or_else(refused)?;
                let made = Arc::new(Workspace {
                    _memory: memory,
                    address,
                });
                recorder
                    .workspaces
                    .insert(key.stream, Arc::downgrade(&made));
                made
            }
        };
        let (stream, handle) = (recorder.stream, recorder.handle);
        if !blas.direct(handle, stream, (workspace.address, bytes), key.mode) {
            return Err(refused());
        }
        let before = (self.stream, self.blas, self.recording);
        (self.stream, self.blas, self.recording) = (stream, Some((blas, handle)), true);
        let recording = driver.record(stream, || {
            self.native(&r.ops, ready, kept).map_err(|stop| match stop {
                Stop::Failed(e) => e,
                _ => Error::internal("a step that cannot be recorded"),
            })
        });
        (self.stream, self.blas, self.recording) = before;
        Ok(Recorded {
            key,
            recording: recording?,
            _kernels: self.kernels(),
            _workspace: workspace,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(bases: &[u64]) -> Key {
        Key {
            stream: 0,
            mode: 0,
            bases: bases.into(),
        }
    }

    #[test]
    fn familiar_addresses_are_recorded_and_others_are_not() {
        let mut place = Place::default();
        for k in 0..100 {
            assert!(matches!(place.find(&key(&[k, 1])), Found::New));
        }
        for _ in 0..WARM {
            assert!(matches!(place.find(&key(&[7, 7])), Found::New));
            assert!(matches!(place.find(&key(&[8, 7])), Found::New));
        }
        assert!(matches!(place.find(&key(&[7, 7])), Found::Familiar));
        assert!(matches!(place.find(&key(&[8, 7])), Found::Familiar));
        // One that is made again and again is given up.
        let mut more = 0;
        for _ in 0..100 {
            more += usize::from(matches!(place.find(&key(&[9, 7])), Found::Familiar));
        }
        assert_eq!(more, MADE - 2);
    }
}
