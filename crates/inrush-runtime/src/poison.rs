//! Calls in poisoned memory: see [`inrush_cpu::poison`], the mode for tests.
//!
//! Before a step that is the first to name an arena buffer, the buffer's bytes are filled with the pattern, so that a read of
//! unwritten memory shows in the result. Outputs and scratch of a step are in blocks with guards. After each step, the rest of
//! the arena and all guards must be unchanged: a write outside of the step's buffers is an error that names the kernel and the
//! buffer.

use crate::exec::Extent;
use crate::model::root;
use crate::tensor::{Storage, Tensor, Value};
use inrush_base::{Error, Result};
use inrush_cpu::Bytes;
pub(crate) use inrush_cpu::poison::{GUARD, fill, noted};
pub use inrush_cpu::poison::{enable, enabled};
use inrush_program::{BufferId, Place, Program, Step};
use std::ops::Range;
use std::sync::Arc;

/// Memory of a buffer outside of the arena.
pub(crate) type Fence<'a> = (BufferId, &'a Bytes);

/// The memory that a call takes and gives. `copies` are those of inputs.
pub(crate) fn fences<'a>(
    program: &Program,
    inputs: &'a [Value],
    copies: &'a [Option<Tensor>],
    outputs: &'a [Option<Arc<Storage>>],
) -> Vec<Fence<'a>> {
    let of = |b: &inrush_program::Buffer| match b.place {
        Place::Output { output } => outputs[output as usize].as_deref(),
        Place::Input { input } => match (copies.get(input as usize), inputs.get(input as usize)) {
            (Some(Some(t)), _) | (_, Some(Value::Tensor(t))) => Some(&*t.storage),
            _ => None,
        },
        _ => None,
    };
    (program.buffers.iter().enumerate())
        .filter_map(|(id, b)| Some((id as BufferId, of(b)?.block())))
        .collect()
}

/// The arena of one call, or the block of what load steps compute. Positions count from the start of the guard in front.
pub(crate) struct Watch<'a> {
    program: &'a Program,
    /// Of each buffer that is in the arena.
    extents: &'a [Option<Extent>],
    fences: &'a [Fence<'a>],
    /// The block, of as many bytes as `before`. Between checks, steps write it through raw addresses.
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
        fences: &'a [Fence<'a>],
        (memory, len): (*mut u8, usize),
    ) -> Self {
        // SAFETY: the caller's promise.
        unsafe {
            fill(memory, GUARD);
            fill(memory.add(GUARD), len - 2 * GUARD);
            fill(memory.add(len - GUARD), GUARD);
        }
        // SAFETY: just written.
        let before = unsafe { std::slice::from_raw_parts(memory, len) }.to_vec();
        let known = vec![false; extents.len()];
        Watch {
            program,
            extents,
            fences,
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

    /// Poisons the buffers that these steps are the first to name, unless they read another buffer in the same memory.
    pub fn begin(&mut self, steps: &[Step]) {
        let owner = |b| root(self.program, b).0;
        let named: Vec<BufferId> = steps.iter().flat_map(buffers).map(owner).collect();
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
    }

    /// Checks that these steps changed no memory but that of their buffers.
    ///
    /// # Errors
    /// An internal error that names kernel and buffer.
    pub fn end(&mut self, steps: &[Step]) -> Result<()> {
        if let Some(what) = noted() {
            return Err(Error::internal(format!(
                "kernel {}: {what}",
                titles(self.program, steps)
            )));
        }
        let broken = |f: &Fence| f.1.broken().map(|side| (f.0, side));
        if let Some((b, side)) = self.fences.iter().find_map(broken) {
            let hit = format!(
                "the guard {side} `{}`",
                self.program.buffers[b as usize].name
            );
            return Err(self.error(steps, &hit));
        }
        let mut own: Vec<Range<usize>> = (steps.iter().flat_map(buffers))
            .filter_map(|b| self.place(b))
            .collect();
        own.sort_by_key(|r| r.start);
        let (len, mut from) = (self.before.len(), 0);
        for part in own.into_iter().chain(std::iter::once(len..len)) {
            if from < part.start {
                self.unchanged(from..part.start)
                    .map_err(|at| self.error(steps, &self.name(at)))?;
            }
            from = from.max(part.end);
            // SAFETY: as in `bytes`; the copy is memory of its own.
            let now =
                unsafe { std::slice::from_raw_parts(self.memory.add(part.start), part.len()) };
            self.before[part].copy_from_slice(now);
        }
        Ok(())
    }

    /// Finds the first byte that changed.
    fn unchanged(&self, rest: Range<usize>) -> Result<(), usize> {
        let (now, before) = (&self.bytes()[rest.clone()], &self.before[rest.clone()]);
        if now == before {
            return Ok(());
        }
        let first = now.iter().zip(before).position(|(a, b)| a != b);
        Err(rest.start + first.unwrap_or(0))
    }

    /// Returns the name of the buffer at an address, for errors.
    fn name(&self, at: usize) -> String {
        let hit = (0..self.extents.len() as BufferId)
            .filter(|b| self.known[*b as usize])
            .find(|b| self.place(*b).is_some_and(|r| r.contains(&at)));
        match hit {
            Some(b) => format!("buffer `{}`", self.program.buffers[b as usize].name),
            None if at < GUARD => "the guard in front of the arena".into(),
            None if at >= self.before.len() - GUARD => "the guard after the arena".into(),
            None => "a gap between buffers".into(),
        }
    }

    fn error(&self, steps: &[Step], hit: &str) -> Error {
        let names: Vec<String> = (steps.iter().flat_map(buffers))
            .map(|b| format!("`{}`", self.program.buffers[b as usize].name))
            .collect();
        Error::internal(format!(
            "kernel {} wrote outside of its buffers {}, into {hit}",
            titles(self.program, steps),
            names.join(", "),
        ))
    }
}

/// Names the kernels of steps and the operators that they compute.
fn titles(program: &Program, steps: &[Step]) -> String {
    let titles: Vec<String> = (steps.iter())
        .map(|s| match s {
            Step::Launch(l) => (&program.kernels[l.kernel as usize].title, &l.origins),
            Step::Contract(c) => (&program.kernels[c.epilogue as usize].title, &c.origins),
            Step::Library(c) => (&c.function, &c.origins),
        })
        .map(|(title, origins)| format!("`{title}` ({})", origins.join(", ")))
        .collect();
    titles.join(" with ")
}

/// Returns the buffers of a step.
fn buffers(step: &Step) -> Vec<BufferId> {
    match step {
        Step::Launch(l) => l.buffers.clone(),
        Step::Library(c) => {
            let all = c.inputs.iter().chain(&c.outputs);
            all.map(|o| o.buffer).collect()
        }
        Step::Contract(c) => [c.a, c.b]
            .into_iter()
            .chain(c.buffers.iter().copied())
            .collect(),
    }
}
