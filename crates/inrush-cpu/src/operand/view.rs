//! Operands that are read where they are in memory, and copies of runs of their elements.

use super::{Affine, CopyFn, Packable, Target};
use crate::kernels::pack::{PackLoop, PackRows};
use inrush_base::{DType, Error, Isa, Result};

/// A right operand in place: element `(matrix, k, n)` at the sum of the three maps' offsets. `k` counts through all
/// taps.
#[derive(Clone, Copy)]
pub struct RhsView {
    pub ptr: *const u8,
    pub dtype: DType,
    pub matrices: Affine,
    pub k: Affine,
    pub cols: Affine,
}

/// An operand without its address: what plans keep of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RhsLayout {
    pub dtype: DType,
    pub matrices: Affine,
    pub k: Affine,
    pub cols: Affine,
}

impl RhsLayout {
    /// Returns the operand at an address.
    pub(crate) fn at(&self, ptr: *const u8) -> RhsView {
        RhsView {
            ptr,
            dtype: self.dtype,
            matrices: self.matrices,
            k: self.k,
            cols: self.cols,
        }
    }
}

impl RhsView {
    pub(crate) fn layout(&self) -> RhsLayout {
        RhsLayout {
            dtype: self.dtype,
            matrices: self.matrices,
            k: self.k,
            cols: self.cols,
        }
    }
}

/// Lets a reference with raw pointers inside cross into the pool; the pointers' users keep to their own parts.
pub(crate) struct Shared<'a, T>(pub &'a T);
// SAFETY: see above; every user says why its parts are apart.
unsafe impl<T> Sync for Shared<'_, T> {}
impl<'a, T> Shared<'a, T> {
    pub(crate) fn get(&self) -> &'a T {
        self.0
    }
}

pub(crate) fn reader<T: Target>(dtype: DType) -> Result<CopyFn<u8, T>> {
    T::reader(dtype).ok_or_else(|| Error::unsupported(format!("matrix operands of dtype {dtype}")))
}

/// Copies runs of elements; by instructions where they are contiguous.
#[derive(Clone, Copy)]
pub(crate) struct RowCopy<T: 'static> {
    copy: CopyFn<u8, T>,
    pack: Option<&'static PackLoop<T>>,
    size: usize,
}

impl<T: Packable> RowCopy<T> {
    pub(crate) fn new(dtype: DType, isa: Isa) -> Result<Self> {
        Ok(RowCopy {
            copy: reader::<T>(dtype)?,
            pack: T::pack(isa, dtype),
            size: dtype.size(),
        })
    }

    /// Returns the address of an element of what is copied.
    pub(crate) fn place(&self, base: *const u8, element: isize) -> *const u8 {
        base.wrapping_offset(element * self.size as isize)
    }

    /// Copies `n` neighbours to places `step` elements apart.
    ///
    /// # Safety
    /// They are readable, and `dst` can take them.
    pub(crate) unsafe fn scatter(&self, src: *const u8, dst: *mut T, step: usize, n: usize) {
        // SAFETY: the caller's contract.
        unsafe { (self.copy)(src, 1, dst, step as isize, n) }
    }

    /// Copies `n` elements, `step` elements apart, to neighbours.
    ///
    /// # Safety
    /// They are readable, and `dst` can take them.
    pub(crate) unsafe fn run(&self, src: *const u8, step: isize, dst: *mut T, n: usize) {
        let (mut src, mut dst, mut n) = (src, dst, n);
        // SAFETY: the caller's contract.
        unsafe {
            if let Some(pack) = self.pack.filter(|p| step == 1 && n >= p.lanes) {
                let panels = n / pack.lanes;
                (pack.run)(&PackRows {
                    src,
                    step: 0,
                    rows: 1,
                    nv: 1,
                    panels,
                    dst,
                    panel_step: pack.lanes,
                });
                let done = panels * pack.lanes;
                src = src.wrapping_add(done * self.size);
                dst = dst.wrapping_add(done);
                n -= done;
            }
            (self.copy)(src, step, dst, 1, n);
        }
    }
}
