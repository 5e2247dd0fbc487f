//! Poisoned memory: a mode for tests in which a wrong kernel is seen at once.
//!
//! Before a step that is the first to name an arena buffer, the buffer's bytes are filled with a pattern that is NaN in every
//! float type and huge in every integer type, so that a read of what no step wrote shows in the result. After each step the rest
//! of the arena, with a guard at either end, has to be what it was before: a write outside of the step's buffers is an error
//! that names the kernel and the buffer that was hit.

use crate::exec::Extent;
use inrush_base::{Error, Result};
use inrush_program::{BufferId, Program, Step};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

static ON: AtomicBool = AtomicBool::new(false);

/// Bytes of the guards in front of the arena and after it.
pub(crate) const GUARD: usize = 4096;
/// NaN as a half, `bfloat16`, `f32` and `f64`; beyond 32,000 as an integer of any width from 16 bits on.
const PATTERN: [u8; 2] = [0xf5, 0x7f];

/// Turns the mode on for all later calls of the process.
pub fn enable() {
    ON.store(true, Ordering::Relaxed);
}

pub(crate) fn enabled() -> bool {
    ON.load(Ordering::Relaxed)
}

/// Fills memory with the pattern.
///
/// # Safety
/// `ptr` is valid for writes of `len` bytes.
pub(crate) unsafe fn fill(ptr: *mut u8, len: usize) {
    // SAFETY: the caller's promise.
    let bytes =
        unsafe { std::slice::from_raw_parts_mut(ptr.cast::<std::mem::MaybeUninit<u8>>(), len) };
    for (at, b) in bytes.iter_mut().enumerate() {
        b.write(PATTERN[at % 2]);
    }
}

/// The arena of one call. Positions count from the start of the guard in front.
pub(crate) struct Watch<'a> {
    program: &'a Program,
    /// Of each buffer that is in the arena.
    extents: &'a [Option<Extent>],
    /// The block, of as many bytes as `before`. Steps write it by addresses of their own between looks.
    memory: *mut u8,
    before: Vec<u8>,
    known: Vec<bool>,
}

impl<'a> Watch<'a> {
    /// Fills the block.
    ///
    /// # Safety
    /// `memory` is valid for reads and writes of `len` bytes while this lives, and no step runs during a call of a method.
    pub unsafe fn new(
        program: &'a Program,
        extents: &'a [Option<Extent>],
        memory: *mut u8,
        len: usize,
    ) -> Self {
        // SAFETY: the caller's promise.
        unsafe { fill(memory, len) };
        let before = vec![0; len];
        let known = vec![false; extents.len()];
        Watch {
            program,
            extents,
            memory,
            before,
            known,
        }
    }

    fn bytes(&self) -> &[u8] {
        // SAFETY: `new` wrote all of it, and its caller promised that no step runs now.
        unsafe { std::slice::from_raw_parts(self.memory, self.before.len()) }
    }

    fn place(&self, b: BufferId) -> Option<Range<usize>> {
        let e = self.extents[b as usize].as_ref()?;
        Some(GUARD + e.offset..GUARD + e.offset + e.bytes)
    }

    /// Poisons what these steps are the first to name, unless they read another buffer of the same place.
    pub fn begin(&mut self, steps: &[Step]) {
        let named: Vec<BufferId> = steps.iter().flat_map(buffers).collect();
        let old: Vec<Range<usize>> = (named.iter())
            .filter(|b| self.known[**b as usize])
            .filter_map(|b| self.place(*b))
            .collect();
        for b in named {
            let Some(own) = self.place(b).filter(|_| !self.known[b as usize]) else {
                continue;
            };
            self.known[b as usize] = true;
            if !old.iter().any(|o| o.start < own.end && own.start < o.end) {
                debug_assert!(own.end <= self.before.len());
                // SAFETY: places are parts of the arena, which is larger by both guards; no step runs now.
                unsafe { fill(self.memory.add(own.start), own.len()) };
            }
        }
        // SAFETY: as in `bytes`; the copy is memory of its own.
        let now = unsafe { std::slice::from_raw_parts(self.memory, self.before.len()) };
        self.before.copy_from_slice(now);
    }

    /// Compares what these steps had no business with.
    ///
    /// # Errors
    /// An internal error that names kernel and buffer.
    pub fn end(&self, steps: &[Step]) -> Result<()> {
        let mut own: Vec<Range<usize>> = (steps.iter().flat_map(buffers))
            .filter_map(|b| self.place(b))
            .collect();
        own.sort_by_key(|r| r.start);
        let (now, mut from) = (self.bytes(), 0);
        for part in own.into_iter().chain(std::iter::once(now.len()..now.len())) {
            if from < part.start {
                let rest = from..part.start;
                let differs =
                    (now[rest.clone()].iter().zip(&self.before[rest])).position(|(a, b)| a != b);
                if let Some(at) = differs {
                    return Err(self.error(steps, from + at));
                }
            }
            from = from.max(part.end);
        }
        Ok(())
    }

    fn error(&self, steps: &[Step], at: usize) -> Error {
        let titles: Vec<String> = (steps.iter())
            .map(|s| match s {
                Step::Launch(l) => (l.kernel, &l.origins),
                Step::Contract(c) => (c.epilogue, &c.origins),
            })
            .map(|(k, origins)| {
                let title = &self.program.kernels[k as usize].title;
                format!("`{title}` ({})", origins.join(", "))
            })
            .collect();
        let names: Vec<String> = (steps.iter().flat_map(buffers))
            .map(|b| format!("`{}`", self.program.buffers[b as usize].name))
            .collect();
        let hit = (0..self.extents.len() as BufferId)
            .filter(|b| self.known[*b as usize])
            .find(|b| self.place(*b).is_some_and(|r| r.contains(&at)));
        let hit = match hit {
            Some(b) => format!("buffer `{}`", self.program.buffers[b as usize].name),
            None if at < GUARD => "the guard in front of the arena".into(),
            None if at >= self.before.len() - GUARD => "the guard after the arena".into(),
            None => "a gap between buffers".into(),
        };
        Error::internal(format!(
            "kernel {} wrote outside of its buffers {}, into {hit}",
            titles.join(" with "),
            names.join(", "),
        ))
    }
}

/// The buffers that a step is given.
fn buffers(step: &Step) -> Vec<BufferId> {
    match step {
        Step::Launch(l) => l.buffers.clone(),
        Step::Contract(c) => [c.a, c.b]
            .into_iter()
            .chain(c.buffers.iter().copied())
            .collect(),
    }
}
