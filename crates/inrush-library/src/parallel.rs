//! Loops over disjoint parts of an output, shared by the threads of a pool.

use inrush_base::{Error, Result};
use inrush_cpu::Pool;
use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Mutex;

/// Elements that are worth a thread's while: some ten microseconds of light work.
pub(crate) const ELEMENTS: usize = 1 << 13;

/// Returns the fewest units that a thread takes at a time, for units of `cost` elements each.
pub(crate) fn grain(cost: usize) -> usize {
    (ELEMENTS / cost.max(1)).max(1)
}

/// A slice whose elements several threads write, each its own.
pub(crate) struct Shared<'a, T> {
    ptr: *mut T,
    len: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: access goes through unsafe functions, whose callers keep to elements of their own.
unsafe impl<T: Send> Sync for Shared<'_, T> {}

impl<'a, T: Copy> Shared<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Shared {
            ptr: slice.as_mut_ptr(),
            len: slice.len(),
            slice: PhantomData,
        }
    }

    /// Writes an element.
    ///
    /// # Safety
    /// No other thread accesses it at the same time.
    #[inline]
    pub(crate) unsafe fn set(&self, at: usize, value: T) {
        assert!(at < self.len);
        // SAFETY: in bounds; the caller keeps others away.
        unsafe { self.ptr.add(at).write(value) }
    }

    /// Reads an element.
    ///
    /// # Safety
    /// No other thread writes it at the same time.
    #[inline]
    pub(crate) unsafe fn get(&self, at: usize) -> T {
        assert!(at < self.len);
        // SAFETY: in bounds; the caller keeps others away.
        unsafe { self.ptr.add(at).read() }
    }

    /// Returns a part of the slice.
    ///
    /// # Safety
    /// Nothing else accesses these elements while the part is in use.
    #[inline]
    #[allow(clippy::mut_from_ref, reason = "the caller keeps parts disjoint")]
    pub(crate) unsafe fn part(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len);
        // SAFETY: in bounds; the caller keeps others away.
        unsafe { std::slice::from_raw_parts_mut(self.ptr.add(range.start), range.len()) }
    }
}

/// Calls `f` on ranges that together cover `0..units`, as [`Pool::parallel_for`], and returns the first error by unit order of
/// those that were met.
pub(crate) fn try_for(
    pool: &Pool,
    units: usize,
    grain: usize,
    f: impl Fn(Range<usize>) -> Result<()> + Sync,
) -> Result<()> {
    let failed: Mutex<Option<(usize, Error)>> = Mutex::new(None);
    pool.parallel_for(units, grain, &|range| {
        let start = range.start;
        if let Err(e) = f(range) {
            let mut first = failed.lock().unwrap_or_else(|p| p.into_inner());
            if first.as_ref().is_none_or(|(at, _)| start < *at) {
                *first = Some((start, e));
            }
        }
    })?;
    match failed.into_inner().unwrap_or_else(|p| p.into_inner()) {
        Some((_, e)) => Err(e),
        None => Ok(()),
    }
}

/// Allocates a zeroed scratch of `len` elements, or says that there is no memory for it.
pub(crate) fn scratch<T: Copy + Default>(len: usize) -> Result<Vec<T>> {
    let mut out = Vec::new();
    out.try_reserve_exact(len)
        .map_err(|_| Error::out_of_memory(format!("no memory for {len} elements of scratch")))?;
    out.resize(len, T::default());
    Ok(out)
}
