//! Tensors at the runtime's border: what a caller passes in and gets back.

use crate::weights::WeightView;
use inrush_base::{DType, Error, Result, Scalar, same_strides};
use inrush_cpu::Bytes;
use std::any::Any;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};

/// Alignment of every allocation, in bytes: a cache line and the widest vector.
pub const ALIGN: usize = 64;

/// A block of bytes: an aligned allocation, or memory of another owner.
pub struct Storage {
    block: Bytes,
    /// Takes the block when its last reference is dropped.
    home: Weak<Recycler>,
    /// Memory that takes the place of the block.
    foreign: Option<Foreign>,
    /// The effect of a call that writes the memory.
    writes: Writes,
}

/// The effect of writes into memory that a caller passes.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Writes {
    /// The caller sees them.
    Seen,
    /// Its owner forbids them.
    Forbidden,
    /// The caller does not see them: the memory is a copy that was made because of strides or alignment.
    Lost,
}

/// Memory of another owner, which is dropped when the memory is no longer used.
struct Foreign {
    ptr: *mut u8,
    len: usize,
    _owner: Box<dyn Any + Send + Sync>,
}

// SAFETY: plain memory; who makes a `Storage` of it promises that other threads may use it.
unsafe impl Send for Foreign {}
// SAFETY: as above; shared access only hands out the address.
unsafe impl Sync for Foreign {}

/// Blocks of earlier outputs, for reuse. Page faults of a fresh block of many megabytes cost more than the kernel that fills
/// it; a recycled block has none.
#[derive(Default)]
pub(crate) struct Recycler {
    /// The oldest first.
    blocks: Mutex<Vec<Storage>>,
    /// True if small blocks are kept too.
    keeps_small: AtomicBool,
}

/// Blocks that one recycler keeps at most.
const KEPT: usize = 8;
/// The same for one that keeps small blocks.
const KEPT_OF_LOOPS: usize = 64;
/// Smaller blocks are left to the allocator, which keeps them itself.
const WORTH_KEEPING: usize = 128 << 10;

impl Recycler {
    /// Keeps blocks of any size from now on: for the bodies of loops, whose turns ask for the same blocks again and again.
    pub fn keep_small(&self) {
        self.keeps_small.store(true, Ordering::Relaxed);
    }

    /// A block of `len` bytes with unspecified contents, that comes back here when it is dropped.
    pub fn take(self: &Arc<Self>, len: usize) -> Result<Storage> {
        if len < WORTH_KEEPING && !self.keeps_small.load(Ordering::Relaxed) {
            return Storage::uninit(len);
        }
        let mut blocks = self.blocks.lock().unwrap_or_else(|e| e.into_inner());
        let found = blocks
            .iter()
            .position(|b| b.len() == len)
            .map(|at| blocks.swap_remove(at));
        drop(blocks);
        let mut block = match found {
            Some(b) => b,
            None => Storage::uninit(len)?,
        };
        block.home = Arc::downgrade(self);
        Ok(block)
    }
}

impl Storage {
    /// A block with unspecified contents: write before reading.
    ///
    /// # Errors
    /// A machine error when there is too little memory.
    pub fn uninit(len: usize) -> Result<Storage> {
        let block = Bytes::new(len).ok_or_else(|| out_of_memory(len))?;
        Ok(Storage {
            block,
            home: Weak::new(),
            foreign: None,
            writes: Writes::Seen,
        })
    }

    /// Wraps memory that `owner` keeps alive. `owner` is dropped with the storage.
    ///
    /// # Safety
    /// `ptr` is valid for reads of `len` bytes from any thread while `owner` lives, and for writes where a call writes to it
    /// (a mutated input, an output of [`crate::Model::run_into`]).
    pub unsafe fn foreign(ptr: *mut u8, len: usize, owner: Box<dyn Any + Send + Sync>) -> Storage {
        let foreign = Foreign {
            ptr,
            len,
            _owner: owner,
        };
        Storage {
            block: Bytes::EMPTY,
            home: Weak::new(),
            foreign: Some(foreign),
            writes: Writes::Seen,
        }
    }

    /// Sets the effect of writes into the memory. A call that would write it is refused unless the caller sees them.
    #[must_use]
    pub fn with_writes(mut self, writes: Writes) -> Storage {
        self.writes = writes;
        self
    }

    /// Returns the effect of writes into the memory.
    pub fn writes(&self) -> Writes {
        self.writes
    }

    /// A block of zeros. Errors as [`Storage::uninit`].
    pub fn zeroed(len: usize) -> Result<Storage> {
        let s = Self::uninit(len)?;
        // SAFETY: a fresh block of that length.
        unsafe { std::ptr::write_bytes(s.as_ptr(), 0, len) };
        Ok(s)
    }

    /// A copy of `bytes`. Errors as [`Storage::uninit`].
    pub fn from_bytes(bytes: &[u8]) -> Result<Storage> {
        let s = Storage::uninit(bytes.len())?;
        // SAFETY: `s` is a fresh block of that length.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), s.as_ptr(), bytes.len()) };
        Ok(s)
    }

    /// Returns the number of bytes.
    pub fn len(&self) -> usize {
        self.foreign.as_ref().map_or(self.block.len(), |f| f.len)
    }

    /// Returns true if there are no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the address of the first byte.
    pub fn as_ptr(&self) -> *mut u8 {
        self.foreign.as_ref().map_or(self.block.ptr(), |f| f.ptr)
    }

    /// Returns the bytes.
    pub fn bytes(&self) -> &[u8] {
        if self.is_empty() {
            return &[];
        }
        // SAFETY: the block has this length; kernels have written what is read.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len()) }
    }

    /// Returns the block, which may have guards; an empty one for memory of another owner.
    pub(crate) fn block(&self) -> &Bytes {
        &self.block
    }
}

fn out_of_memory(len: usize) -> Error {
    Error::out_of_memory(format!("out of memory: {len} bytes are not to be had"))
}

impl Drop for Storage {
    fn drop(&mut self) {
        if let Some(home) = self.home.upgrade() {
            let most = if home.keeps_small.load(Ordering::Relaxed) {
                KEPT_OF_LOOPS
            } else {
                KEPT
            };
            let mut blocks = home.blocks.lock().unwrap_or_else(|e| e.into_inner());
            // Where data decide about sizes, the oldest may never be asked for again.
            let oldest = (blocks.len() >= most).then(|| blocks.remove(0));
            blocks.push(Storage {
                block: std::mem::replace(&mut self.block, Bytes::EMPTY),
                home: Weak::new(),
                foreign: None,
                writes: Writes::Seen,
            });
            drop(blocks);
            drop(oldest);
        }
    }
}

/// A tensor: shared storage seen through sizes and strides (in elements) from `offset` (in elements).
#[derive(Clone)]
pub struct Tensor {
    pub dtype: DType,
    pub sizes: Vec<i64>,
    pub strides: Vec<i64>,
    pub offset: usize,
    pub storage: Arc<Storage>,
}

/// An input or output of a call.
#[derive(Clone)]
pub enum Value {
    Tensor(Tensor),
    Int(i64),
    Scalar(Scalar),
    None,
}

/// Row-major strides; a zero size counts as one.
pub fn contiguous_strides(sizes: &[i64]) -> Vec<i64> {
    let mut strides = vec![1; sizes.len()];
    for d in (0..sizes.len().saturating_sub(1)).rev() {
        strides[d] = strides[d + 1] * sizes[d + 1].max(1);
    }
    strides
}

/// Elements from the first to the last one that a tensor of these sizes and non-negative strides touches; `None` on overflow.
pub fn extent(sizes: &[i64], strides: &[i64]) -> Option<usize> {
    if sizes.contains(&0) {
        return Some(0);
    }
    let mut last = 0i64;
    for (s, t) in sizes.iter().zip(strides) {
        last = last.checked_add((s - 1).checked_mul(*t)?)?;
    }
    usize::try_from(last.checked_add(1)?).ok()
}

impl Tensor {
    /// A row-major tensor from its bytes.
    ///
    /// # Errors
    /// When the bytes are not what dtype and sizes ask for.
    pub fn from_bytes(dtype: DType, sizes: Vec<i64>, bytes: &[u8]) -> Result<Tensor> {
        let numel = sizes
            .iter()
            .try_fold(1i64, |a, s| if *s < 0 { None } else { a.checked_mul(*s) })
            .and_then(|n| usize::try_from(n).ok())
            .and_then(|n| n.checked_mul(dtype.size()));
        if numel != Some(bytes.len()) {
            return Err(Error::input(format!(
                "a {dtype} tensor of sizes {sizes:?} does not have {} bytes",
                bytes.len()
            )));
        }
        let strides = contiguous_strides(&sizes);
        Ok(Tensor {
            dtype,
            sizes,
            strides,
            offset: 0,
            storage: Arc::new(Storage::from_bytes(bytes)?),
        })
    }

    /// Copies a weight into a row-major tensor.
    ///
    /// # Errors
    /// An input error for a weight that is larger than its bytes, a machine error if there is no memory.
    pub fn from_view(view: &WeightView<'_>) -> Result<Tensor> {
        let need = (view.strides.len() == view.sizes.len() && view.strides.iter().all(|s| *s >= 0))
            .then(|| extent(view.sizes, view.strides)?.checked_mul(view.dtype.size()))
            .flatten();
        if need.is_none_or(|n| n > view.bytes.len()) {
            return Err(Error::input("a weight has too few bytes"));
        }
        let dense = contiguous_strides(view.sizes);
        let out = Tensor::zeros(view.dtype, view.sizes.to_vec(), dense)?;
        if out.numel() > 0 {
            // SAFETY: the bytes have every coordinate (checked above), and so has the fresh tensor.
            unsafe {
                copy_strided(
                    view.bytes.as_ptr(),
                    view.strides,
                    out.data(),
                    &out.strides,
                    view.sizes,
                    view.dtype.size(),
                );
            }
        }
        Ok(out)
    }

    /// A zero-filled tensor of the given strides.
    pub fn zeros(dtype: DType, sizes: Vec<i64>, strides: Vec<i64>) -> Result<Tensor> {
        let bytes = extent(&sizes, &strides)
            .and_then(|n| n.checked_mul(dtype.size()))
            .ok_or_else(|| Error::input(format!("a tensor of sizes {sizes:?} is too large")))?;
        Ok(Tensor {
            dtype,
            sizes,
            strides,
            offset: 0,
            storage: Arc::new(Storage::zeroed(bytes)?),
        })
    }

    pub fn numel(&self) -> usize {
        self.sizes.iter().product::<i64>() as usize
    }

    /// Returns the tensor as a weight that is stored in its memory.
    pub fn view(&self) -> WeightView<'_> {
        let start = self.offset * self.dtype.size();
        WeightView {
            dtype: self.dtype,
            sizes: &self.sizes,
            strides: &self.strides,
            bytes: self.storage.bytes().get(start..).unwrap_or_default(),
        }
    }

    /// Address of the element at coordinates zero.
    pub fn data(&self) -> *mut u8 {
        // SAFETY: the offset is inside the storage (checked when the tensor was made).
        unsafe { self.storage.as_ptr().add(self.offset * self.dtype.size()) }
    }

    /// Returns true if the strides of all dimensions of more than one element are `strides`, or if there are no elements.
    pub fn lies_as(&self, strides: &[i64]) -> bool {
        same_strides(&self.sizes, &self.strides, strides)
    }

    /// Returns the elements in row-major order as bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = vec![0u8; self.numel() * self.dtype.size()];
        // SAFETY: strides stay inside the storage.
        unsafe { copy_row_major(self.data(), &self.strides, &self.sizes, &mut out) };
        out
    }

    /// Returns a copy with other strides.
    pub fn with_strides(&self, strides: &[i64]) -> Result<Tensor> {
        let out = Tensor::zeros(self.dtype, self.sizes.clone(), strides.to_vec())?;
        // SAFETY: a fresh tensor of the same dtype and sizes.
        unsafe { self.copy_to(&out) };
        Ok(out)
    }

    /// Copies the elements into another tensor of the same dtype and sizes.
    ///
    /// # Safety
    /// The other's memory may be written, and both hold every coordinate.
    pub(crate) unsafe fn copy_to(&self, to: &Tensor) {
        if self.numel() > 0 {
            // SAFETY: the caller's promise.
            unsafe {
                copy_strided(
                    self.data(),
                    &self.strides,
                    to.data(),
                    &to.strides,
                    &self.sizes,
                    self.dtype.size(),
                );
            }
        }
    }
}

/// Copies elements in row-major order into `out`, which has room for exactly these.
///
/// # Safety
/// `from` is the element with coordinates zero; every coordinate below `sizes` is in its block.
pub(crate) unsafe fn copy_row_major(
    from: *const u8,
    strides: &[i64],
    sizes: &[i64],
    out: &mut [u8],
) {
    if out.is_empty() {
        return;
    }
    let size = out.len() / sizes.iter().product::<i64>() as usize;
    let dense = contiguous_strides(sizes);
    let is_dense =
        (sizes.iter().zip(strides.iter().zip(&dense))).all(|(n, (a, b))| *n == 1 || a == b);
    // SAFETY: the caller's promise; `out` holds all elements.
    unsafe {
        if is_dense {
            std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), out.len());
        } else {
            copy_strided(from, strides, out.as_mut_ptr(), &dense, sizes, size);
        }
    }
}

/// Copies strided elements to a fresh row-major tensor, such as elements that are not aligned to their size.
///
/// # Errors
/// A machine error if there is no memory.
///
/// # Safety
/// `data` is the element with coordinates zero, and every coordinate below `sizes` is in readable memory.
pub unsafe fn row_major_copy(
    data: *const u8,
    dtype: DType,
    sizes: Vec<i64>,
    strides: &[i64],
) -> Result<Tensor> {
    let to = contiguous_strides(&sizes);
    let bytes = sizes.iter().product::<i64>() as usize * dtype.size();
    let out = Tensor {
        dtype,
        sizes,
        strides: to.clone(),
        offset: 0,
        storage: Arc::new(Storage::zeroed(bytes)?.with_writes(Writes::Lost)),
    };
    // SAFETY: the caller's promise; `out` is a fresh block with all coordinates.
    unsafe { copy_strided(data, strides, out.data(), &to, &out.sizes, dtype.size()) };
    Ok(out)
}

/// Copies a strided block of elements of `size` bytes.
///
/// # Safety
/// Every coordinate below `sizes` is inside both blocks.
pub unsafe fn copy_strided(
    from: *const u8,
    from_strides: &[i64],
    to: *mut u8,
    to_strides: &[i64],
    sizes: &[i64],
    size: usize,
) {
    let rank = sizes.len();
    let mut at = vec![0i64; rank];
    loop {
        let pos =
            |strides: &[i64]| at.iter().zip(strides).map(|(a, s)| a * s).sum::<i64>() * size as i64;
        // SAFETY: by the caller's promise.
        unsafe {
            std::ptr::copy_nonoverlapping(
                from.offset(pos(from_strides) as isize),
                to.offset(pos(to_strides) as isize),
                size,
            )
        };
        let mut d = rank;
        loop {
            if d == 0 {
                return;
            }
            d -= 1;
            at[d] += 1;
            if at[d] < sizes[d] {
                break;
            }
            at[d] = 0;
        }
    }
}
