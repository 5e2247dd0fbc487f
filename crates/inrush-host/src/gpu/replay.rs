//! Launches and matrix products in a row, recorded as one.
//!
//! A call whose addresses are those of calls before, which caching allocators give as a rule, issues the recording: the host
//! needs a launch's time for all of it. Any other call issues the steps themselves. Nothing is copied, and memory is made and
//! released as without recordings.

use super::cublas::Blas;
use super::driver::{DevicePtr, Driver, Kernel, Recording, Stream};
use super::engine::{BoundPlan, CachedTensors, Frame, Stop};
use super::plan;
use crate::host::Host;
use inrush_base::{Error, Result};
use rustc_hash::{FxHashMap, FxHasher};
use smallvec::SmallVec;
use std::any::Any;
use std::collections::hash_map::Entry;
use std::hash::{Hash, Hasher};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// Calls with the same addresses before the one that records.
const WARM: u32 = 2;
/// Sets of addresses whose calls are counted, for each recording that is kept.
const SEEN: usize = 2;
/// Limit of recordings made, for each that is kept. A caller whose addresses keep changing is not recorded beyond it.
const MADE: usize = 4;

/// Conditions under which a recording may be issued.
#[derive(Clone, PartialEq, Hash)]
struct Key {
    stream: usize,
    /// How cuBLAS computes.
    mode: i32,
    bases: SmallVec<[DevicePtr; 32]>,
}

/// Memory that recorded products use while they run, one for each stream.
struct Workspace {
    /// A tensor of some host's.
    _memory: Box<dyn Any + Send + Sync>,
    address: DevicePtr,
}

struct Recorded {
    key: Key,
    recording: Recording,
    /// Its kernels must stay loaded.
    _kernels: Vec<Arc<Kernel>>,
    _workspace: Arc<Workspace>,
}

/// Recordings of one of a plan's recordable runs of steps.
#[derive(Default)]
pub struct Recordings {
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

impl Recordings {
    /// Looks for a recording. A place keeps `kept` of them.
    fn find(&mut self, key: &Key, kept: usize) -> Found {
        if let Some(at) = self.kept.iter().rposition(|r| r.key == *key) {
            return Found::Recorded(self.kept.remove(at));
        }
        if self.made >= MADE * kept {
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
        if self.seen.len() >= SEEN * kept {
            self.seen.remove(0);
        }
        self.seen.push((digest, calls + 1));
        Found::New
    }

    fn keep(&mut self, recorded: Recorded, kept: usize) {
        if self.kept.len() >= kept {
            self.kept.remove(0);
        }
        self.kept.push(recorded);
    }
}

/// Records work of a device: on a stream and a handle of cuBLAS's of its own.
struct Recorder {
    stream: Stream,
    handle: usize,
    /// By stream that recordings are issued on.
    workspaces: FxHashMap<usize, Weak<Workspace>>,
}

/// The recorders by kind and index of the device; who holds them is the only one that records.
fn recorders() -> &'static Mutex<FxHashMap<[i32; 2], Recorder>> {
    static RECORDERS: OnceLock<Mutex<FxHashMap<[i32; 2], Recorder>>> = OnceLock::new();
    RECORDERS.get_or_init(Mutex::default)
}

/// Returns the bytes of cuBLAS's workspace, as PyTorch has it: which algorithm is chosen depends on them. `None` where the user chose.
fn workspace_bytes(driver: &Driver) -> Option<u64> {
    if std::env::var_os("CUBLAS_WORKSPACE_CONFIG").is_some() {
        return None;
    }
    let hopper = driver.properties().is_ok_and(|p| p.major >= 9);
    Some(if hopper {
        32 << 20
    } else {
        (8 << 20) + (128 << 10)
    })
}

impl<H: Host> Frame<'_, H> {
    /// Issues a recordable run of steps: as one if they were recorded before.
    pub(super) fn recordable(
        &mut self,
        r: &plan::Recordable,
        bound: &BoundPlan<H>,
        cached: &mut CachedTensors<H>,
    ) -> std::result::Result<(), Stop<H::Error>> {
        let Some((blas, handle)) = self.blas.filter(|_| self.may_record()) else {
            return self.native(&r.ops, bound, cached);
        };
        let driver = self.driver().map_err(Stop::Failed)?;
        // What others capture is to be made of launches.
        if driver.is_capturing(self.stream).map_err(Stop::Failed)? {
            return self.native(&r.ops, bound, cached);
        }
        let key = Key {
            stream: self.stream.0,
            mode: blas.mode(handle),
            bases: r.bases.iter().map(|b| self.bases[*b as usize]).collect(),
        };
        let place = || {
            bound.recordings[r.id]
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
        };
        let found = place().find(&key, H::RECORDINGS);
        let recorded = match found {
            Found::New => return self.native(&r.ops, bound, cached),
            Found::Recorded(recorded) => recorded,
            Found::Familiar => match self.record(&driver, blas, r, key, bound, cached) {
                Ok(recorded) => recorded,
                Err(_) => {
                    place().made = MADE * H::RECORDINGS;
                    return self.native(&r.ops, bound, cached);
                }
            },
        };
        // SAFETY: the addresses are those of this call, and the stream is the one that the workspace is for.
        let done = unsafe { recorded.recording.launch(self.stream) };
        place().keep(recorded, H::RECORDINGS);
        done.map_err(Stop::Failed)
    }

    fn record(
        &mut self,
        driver: &Driver,
        blas: &'static Blas,
        r: &plan::Recordable,
        key: Key,
        bound: &BoundPlan<H>,
        cached: &mut CachedTensors<H>,
    ) -> Result<Recorded> {
        let refused = || Error::unsupported("cuBLAS does not record");
        let bytes = workspace_bytes(driver).ok_or_else(refused)?;
        let mut recorders = recorders().lock().unwrap_or_else(PoisonError::into_inner);
        let device = self.device();
        let device = [device.kind, device.index];
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
                    _memory: Box::new(memory),
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
            self.native(&r.ops, bound, cached)
                .map_err(|stop| match stop {
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

    const KEPT: usize = 4;

    fn key(bases: &[u64]) -> Key {
        Key {
            stream: 0,
            mode: 0,
            bases: bases.into(),
        }
    }

    #[test]
    fn familiar_addresses_are_recorded_and_others_are_not() {
        let mut place = Recordings::default();
        for k in 0..100 {
            assert!(matches!(place.find(&key(&[k, 1]), KEPT), Found::New));
        }
        for _ in 0..WARM {
            assert!(matches!(place.find(&key(&[7, 7]), KEPT), Found::New));
            assert!(matches!(place.find(&key(&[8, 7]), KEPT), Found::New));
        }
        assert!(matches!(place.find(&key(&[7, 7]), KEPT), Found::Familiar));
        assert!(matches!(place.find(&key(&[8, 7]), KEPT), Found::Familiar));
        // One that is made again and again is given up.
        let mut more = 0;
        for _ in 0..100 {
            more += usize::from(matches!(place.find(&key(&[9, 7]), KEPT), Found::Familiar));
        }
        assert_eq!(more, MADE * KEPT - 2);
    }
}
