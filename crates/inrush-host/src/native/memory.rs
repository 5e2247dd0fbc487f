//! Device memory that is used again by later work of the same stream.
//!
//! Freed blocks wait by stream and size. A block may be written again as soon as it was freed, because the device gets to later
//! work of the stream after it is done with the old contents. Work of another stream gets a freed block only through the driver,
//! which waits for the device before it gives memory away. The block with the lowest address is taken first, so that calls
//! of the same sizes get the same addresses, which batches and recordings of launches ask for.

use crate::gpu::driver::{self, Context, DevicePtr, Driver, Stream};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};

/// Sizes of blocks are multiples of this.
const GRAIN: usize = 512;
/// Streams whose freed blocks are kept.
const MAX_STREAMS: usize = 32;

/// The memory of calls on a device.
pub struct Pool {
    driver: Driver,
    context: Context,
    /// By stream, size and address.
    free: Mutex<BTreeMap<(usize, usize, DevicePtr), driver::Memory>>,
}

/// A block of memory, which goes back to its pool.
pub struct Block {
    pool: Arc<Pool>,
    stream: Stream,
    /// Taken when the block is dropped.
    memory: Option<driver::Memory>,
}

impl Pool {
    pub fn new(driver: Driver, context: Context) -> Arc<Pool> {
        Arc::new(Pool {
            driver,
            context,
            free: Mutex::default(),
        })
    }

    /// Returns a block of at least `bytes` bytes with unspecified contents, for work of a stream; `None` if the device has too
    /// little memory. The context of the pool is current.
    pub fn take(self: &Arc<Self>, bytes: usize, stream: Stream) -> Option<Block> {
        let size = bytes.max(1).checked_next_multiple_of(GRAIN)?;
        let mut free = self.free.lock().unwrap_or_else(PoisonError::into_inner);
        let first = free
            .range((stream.0, size, 0)..)
            .next()
            .map(|(key, _)| *key);
        let found = first.filter(|key| (key.0, key.1) == (stream.0, size));
        let memory = match found.and_then(|key| free.remove(&key)) {
            Some(memory) => memory,
            None => {
                let streams: BTreeSet<usize> = free.keys().map(|k| k.0).collect();
                if streams.len() > MAX_STREAMS {
                    self.driver.synchronize_all().ok()?;
                    free.retain(|key, _| key.0 == stream.0);
                }
                match self.driver.allocate(size) {
                    Ok(memory) => memory,
                    Err(_) => {
                        // Work may still use it.
                        self.driver.synchronize_all().ok()?;
                        free.clear();
                        self.driver.allocate(size).ok()?
                    }
                }
            }
        };
        drop(free);
        Some(Block {
            pool: self.clone(),
            stream,
            memory: Some(memory),
        })
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        // Memory is freed in the context that it is from. Without the context the process is at its end.
        let entered = self.driver.enter(self.context);
        let free = self.free.get_mut().unwrap_or_else(PoisonError::into_inner);
        match entered {
            Ok(_entered) => {
                // Work may still use it. After a failure of the device nothing does.
                _ = self.driver.synchronize_all();
                free.clear();
            }
            Err(_) => std::mem::forget(std::mem::take(free)),
        }
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
            free.insert((self.stream.0, memory.bytes(), memory.address()), memory);
        }
    }
}
