//! Graphs of the driver: a whole call, captured once for a set of input sizes and issued as one from then on.
//!
//! A captured call has a host with memory of its own, so that no other call writes where its kernels do. Inputs are copied into
//! its fixed buffers and outputs out of them. Weights are read where they are: a set of weights has its own captures. After a
//! swap the calls on the new set are captured anew, unless its memory was captured before; two places alternate.

use super::call::CallState;
use super::process::Process;
use super::tensor::{DeviceTensor, Output};
use crate::gpu::driver::{DevicePtr, Marker, Recording, Stream};
use crate::program::{HostProgram, StepKind};
use inrush_base::Result;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Captured calls that are kept.
const MOST: usize = 32;
/// Keys whose calls are counted.
const SEEN: usize = 64;

/// The sizes and weights that a captured call was made for.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Key {
    /// Values of the symbols: all sizes follow from them.
    pub(super) symbols: Vec<Option<i64>>,
    /// The addresses of the set of weights.
    pub(super) set: Vec<DevicePtr>,
}

/// A captured call.
pub(super) struct Captured {
    pub(super) key: Key,
    pub(super) recording: Recording,
    /// Fixed buffers by input; `None` for those that are no tensors of the device.
    pub(super) inputs: Vec<Option<DeviceTensor>>,
    pub(super) outputs: Vec<Output>,
    /// The end of the last call that used the buffers.
    pub(super) done: Marker,
    /// Owns the memory that kernels write, and cuBLAS's workspace.
    pub(super) _host: Process,
}

/// The way that a call is to take.
pub(super) enum Found {
    Captured(Box<Captured>),
    /// Capture this call: its sizes came before.
    Familiar,
    /// Run it as usual.
    New,
}

/// The captured calls of a model.
#[derive(Default)]
pub(super) struct Graphs {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Those that no call uses, the one used last at the end.
    idle: Vec<Captured>,
    seen: Vec<Key>,
    /// Captured calls of each key that exist or are being made.
    made: Vec<(Key, usize)>,
}

/// Says why the calls of a program cannot be captured.
pub(super) fn refusal(program: &HostProgram) -> Option<String> {
    let flow = |k: &StepKind| matches!(k, StepKind::Work(w) if !w.bodies().is_empty());
    if let Some(at) = program.steps.iter().position(|s| flow(&s.kind)) {
        return Some(format!("step {at} is control flow, which the host decides"));
    }
    if program.symbols.iter().any(|s| s.after.is_some()) {
        return Some("a size depends on data, which the host reads during the call".into());
    }
    let on_host = |k: &StepKind| matches!(k, StepKind::Call(_) | StepKind::Work(_));
    let at = program.steps.iter().position(|s| on_host(&s.kind))?;
    Some(format!("step {at} is work of the host"))
}

impl Graphs {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks for a captured call. At most `each` calls of one key are captured, as many as run at once.
    pub(super) fn find(&self, key: &Key, each: usize) -> Found {
        let mut state = self.lock();
        if let Some(at) = state.idle.iter().rposition(|c| c.key == *key) {
            return Found::Captured(Box::new(state.idle.remove(at)));
        }
        if !state.seen.contains(key) {
            if state.seen.len() >= SEEN {
                state.seen.remove(0);
            }
            state.seen.push(key.clone());
            return Found::New;
        }
        match state.made.iter_mut().find(|m| m.0 == *key) {
            Some(made) if made.1 >= each => return Found::New,
            Some(made) => made.1 += 1,
            None => state.made.push((key.clone(), 1)),
        }
        Found::Familiar
    }

    /// Takes a captured call back. The one that was used least recently is dropped where there are too many.
    pub(super) fn give(&self, captured: Captured) {
        let mut state = self.lock();
        state.idle.push(captured);
        if state.idle.len() > MOST {
            let old = state.idle.remove(0);
            state.forget(&old.key);
            drop(state);
            // Freeing its memory waits for its work.
            drop(old);
        }
    }

    /// Forgets a captured call that was not made, or that failed.
    pub(super) fn forget(&self, key: &Key) {
        self.lock().forget(key);
    }
}

impl State {
    fn forget(&mut self, key: &Key) {
        if let Some(at) = self.made.iter().position(|m| m.0 == *key) {
            self.made[at].1 -= 1;
            if self.made[at].1 == 0 {
                self.made.remove(at);
            }
        }
    }
}

impl Captured {
    /// Issues the call on a stream: copies arguments in, replays, and copies outputs out.
    ///
    /// # Errors
    /// Too little memory, and those of the driver.
    pub(super) fn issue(
        &self,
        host: &Process,
        call: &mut CallState<'_>,
        stream: Stream,
    ) -> Result<()> {
        self.done.wait(stream)?;
        call.copy_in(host, &self.inputs)?;
        // SAFETY: the addresses are of this captured call's memory, and of the set of weights that the call holds.
        unsafe { self.recording.launch(stream)? };
        call.copy_out(host, &self.inputs, &self.outputs)?;
        self.done.record(stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: i64) -> Key {
        Key {
            symbols: vec![Some(n)],
            set: vec![512],
        }
    }

    #[test]
    fn the_second_call_of_a_size_is_captured_and_each_key_is_bounded() {
        let graphs = Graphs::default();
        assert!(matches!(graphs.find(&key(1), 2), Found::New));
        assert!(matches!(graphs.find(&key(1), 2), Found::Familiar));
        assert!(matches!(graphs.find(&key(2), 2), Found::New));
        assert!(matches!(graphs.find(&key(1), 2), Found::Familiar));
        assert!(matches!(graphs.find(&key(1), 2), Found::New));
        graphs.forget(&key(1));
        assert!(matches!(graphs.find(&key(1), 2), Found::Familiar));
        let other = Key {
            set: vec![1024],
            ..key(1)
        };
        assert!(matches!(graphs.find(&other, 2), Found::New));
    }
}
