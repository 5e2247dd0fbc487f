//! Device memory that is used again by later work of the same stream.
//!
//! Freed blocks wait by stream and size. A block may be written again as soon as it was freed, because the device gets to later
//! work of the stream after it is done with the old contents. Work of another stream gets a freed block only through the driver,
//! which waits for the device before it gives memory away. The block with the lowest address is taken first, so that calls
//! of the same sizes get the same addresses, which batches and recordings of launches ask for.

use crate::gpu::driver::{self, Context, DevicePtr, Driver, Stream};
use crate::shape::Shape;
use inrush_base::{Error, Result, same_strides};
use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// Sizes of blocks are multiples of this.
const GRAIN: usize = 512;
/// Streams whose freed blocks are kept.
const MAX_STREAMS: usize = 32;

/// Owns memory of a device. Dropping it gives the memory to later work of the stream that it was allocated for.
pub type Owner = Arc<dyn Any + Send + Sync>;

/// A tensor library of the process that lends its memory to calls, and copies tensors from one layout to another. The context of
/// the device is current where its methods are called.
pub trait TensorLibrary: Send + Sync + fmt::Debug {
    /// Allocates a tensor of this shape for work of a stream, with unspecified contents; `None` if the device has too little
    /// memory. The address is a multiple of 512, unless the tensor has no elements.
    fn allocate(&self, shape: &Shape, stream: Stream) -> Option<(Owner, DevicePtr)>;

    /// Copies elements from one tensor to another of the same dtype and sizes, in the order of the stream's work.
    ///
    /// # Errors
    /// Those of the library.
    ///
    /// # Safety
    /// Both addresses are of tensors of these shapes until the work is done. No two elements of the first share memory.
    unsafe fn copy(
        &self,
        to: (DevicePtr, &Shape),
        from: (DevicePtr, &Shape),
        stream: Stream,
    ) -> Result<()>;
}

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

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Pool")
    }
}

/// The memory that a host allocates from.
#[derive(Clone, Debug)]
pub enum Memory {
    Driver(Arc<Pool>),
    Library(Arc<dyn TensorLibrary>),
}

impl Memory {
    /// Allocates a tensor for work of a stream: see [`TensorLibrary::allocate`].
    pub fn allocate(&self, shape: &Shape, stream: Stream) -> Option<(Owner, DevicePtr)> {
        match self {
            Memory::Library(m) => m.allocate(shape, stream),
            Memory::Driver(pool) => {
                let bytes = usize::try_from(shape.bytes().ok()?).ok()?;
                let block = pool.take(bytes, stream)?;
                let address = block.address();
                Some((Arc::new(block), address))
            }
        }
    }

    /// Allocates a block for work of any stream, which goes back to its allocator when its owner is dropped.
    ///
    /// # Errors
    /// Too little memory, and those of the driver.
    pub fn allocate_block(&self, driver: &Driver, bytes: u64) -> Result<(Owner, DevicePtr)> {
        match self {
            Memory::Driver(_) => {
                let memory = driver.allocate(bytes as usize)?;
                let address = memory.address();
                Ok((Arc::new(memory), address))
            }
            Memory::Library(m) => {
                let made = m.allocate(&Shape::of_bytes(bytes.max(1)), Stream(0));
                let made = made.ok_or_else(|| {
                    Error::out_of_memory(format!(
                        "the device has too little memory for {bytes} bytes"
                    ))
                })?;
                // Work of the stream that it was used by before may still run.
                driver.synchronize_all()?;
                Ok(made)
            }
        }
    }

    /// Copies a tensor to one of the same dtype and sizes, whose strides may be others.
    ///
    /// # Errors
    /// An unsupported error for other strides where memory is the driver's.
    ///
    /// # Safety
    /// As for [`TensorLibrary::copy`]; tensors of the same strides may have elements that share memory.
    pub unsafe fn copy(
        &self,
        driver: &Driver,
        to: (DevicePtr, &Shape),
        from: (DevicePtr, &Shape),
        stream: Stream,
    ) -> Result<()> {
        let bytes = to.1.bytes()? as usize;
        match self {
            _ if bytes == 0 => Ok(()),
            _ if same_strides(&to.1.sizes, &to.1.strides, &from.1.strides) => {
                // SAFETY: the caller's promise; both span as many bytes.
                unsafe { driver.copy(to.0, from.0, bytes, stream) }
            }
            // SAFETY: the caller's promise.
            Memory::Library(m) => unsafe { m.copy(to, from, stream) },
            Memory::Driver(_) => Err(Error::unsupported(
                "the driver copies no tensor into one of other strides",
            )),
        }
    }

    /// Returns true if tensors of other strides can be copied.
    pub fn copies_strides(&self) -> bool {
        matches!(self, Memory::Library(_))
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
