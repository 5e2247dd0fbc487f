//! Arenas for the intermediates of calls: each belongs to one call at a time, and all models of the process share them.
//!
//! Blocks are kept between calls. Fresh memory costs a page fault for every 4 KiB: for 64 MiB more than filling them
//! ten times. A model that is not running holds no block.

use crate::tensor::Storage;
use inrush_base::Result;
use std::sync::{Mutex, MutexGuard};

/// Free blocks, smallest first.
static FREE: Mutex<Vec<Storage>> = Mutex::new(Vec::new());

/// Blocks that are kept: as many calls can run in parallel without allocating.
const KEPT: usize = 8;

fn free() -> MutexGuard<'static, Vec<Storage>> {
    FREE.lock().unwrap_or_else(|e| e.into_inner())
}

/// A block, given back when dropped.
pub(crate) struct Arena(Option<Storage>);

impl Arena {
    /// Returns a block of at least this many bytes with unspecified contents; `None` for zero.
    ///
    /// # Errors
    /// A machine error when there is no memory.
    pub fn lend(bytes: usize) -> Result<Arena> {
        if bytes == 0 {
            return Ok(Arena(None));
        }
        let known = {
            let mut free = free();
            let fits = free.partition_point(|s| s.len() < bytes);
            // If none fits, the largest is freed and a larger one allocated.
            (fits < free.len())
                .then(|| free.remove(fits))
                .or_else(|| free.pop())
        };
        Ok(Arena(Some(match known {
            Some(s) if s.len() >= bytes => s,
            small => {
                // Freed first, so that the peak is the new block alone.
                drop(small);
                Storage::uninit(bytes)?
            }
        })))
    }

    pub fn as_ptr(&self) -> *mut u8 {
        self.0
            .as_ref()
            .map_or(std::ptr::null_mut(), Storage::as_ptr)
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let Some(block) = self.0.take() else { return };
        let mut free = free();
        let at = free.partition_point(|s| s.len() < block.len());
        free.insert(at, block);
        if free.len() > KEPT {
            // Outside of the lock: freeing memory takes time.
            let smallest = free.remove(0);
            std::mem::drop(free);
            std::mem::drop(smallest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_lent_again_and_never_twice_at_once() -> Result<()> {
        let first = Arena::lend(1 << 20)?;
        let second = Arena::lend(1 << 20)?;
        assert_ne!(first.as_ptr(), second.as_ptr());
        drop((first, second));
        let many: Vec<Arena> = (1..20)
            .map(|n| Arena::lend(n << 12))
            .collect::<Result<_>>()?;
        let mut at: Vec<_> = many.iter().map(Arena::as_ptr).collect();
        at.sort();
        at.dedup();
        assert_eq!(at.len(), 19);
        drop(many);
        assert!(free().len() <= KEPT);
        assert!(free().is_sorted_by_key(Storage::len));
        assert!(Arena::lend(0)?.as_ptr().is_null());
        Ok(())
    }
}
