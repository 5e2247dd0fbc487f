//! Device memory that is used again by later work of the same stream.
//!
//! Freed blocks wait by size. Work is issued on one stream, so a block may be written again as soon as it was freed: the
//! device gets to that after it is done with the old contents. The block with the lowest address is taken first, so that calls
//! of the same sizes get the same addresses, which batches and recordings of launches ask for.

use crate::gpu::driver::{self, DevicePtr, Driver};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Sizes of blocks are multiples of this.
const GRAIN: usize = 512;

/// The memory of one stream.
pub struct Pool {
    driver: Driver,
    /// By size and address.
    free: Mutex<BTreeMap<(usize, DevicePtr), driver::Memory>>,
}

/// A block of memory, which goes back to its pool.
pub struct Block {
    pool: Arc<Pool>,
    /// Taken when the block is dropped.
    memory: Option<driver::Memory>,
}

impl Pool {
    pub fn new(driver: Driver) -> Arc<Pool> {
        Arc::new(Pool {
            driver,
            free: Mutex::default(),
        })
    }

    /// Returns a block of at least `bytes` bytes with unspecified contents; `None` if the device has too little memory.
    pub fn take(self: &Arc<Self>, bytes: usize) -> Option<Block> {
        let size = bytes.max(1).checked_next_multiple_of(GRAIN)?;
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let first = free.range((size, 0)..).next().map(|(key, _)| *key);
        let found = first.filter(|key| key.0 == size);
        let found = found.and_then(|key| free.remove(&key));
        let memory = match found.map_or_else(|| self.driver.allocate(size), Ok) {
            Ok(memory) => memory,
            Err(_) => {
                // Freeing waits for the device.
                free.clear();
                self.driver.allocate(size).ok()?
            }
        };
        drop(free);
        Some(Block {
            pool: self.clone(),
            memory: Some(memory),
        })
    }
}

impl Block {
    pub fn address(&self) -> DevicePtr {
        self.memory.as_ref().map_or(0, driver::Memory::address)
    }
}

impl Drop for Block {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            let mut free = self
                .pool
                .free
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            free.insert((memory.bytes(), memory.address()), memory);
        }
    }
}
