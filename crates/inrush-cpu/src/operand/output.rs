//! Results: handed to a generated epilogue, or stored as they are.

use super::{Affine, Target};
use inrush_base::{DType, Error, Result};
use std::ffi::c_void;

/// Called with a finished block of results: `acc[(m - m0) * ld + (n - n0)]` for `m` in `m0..m1`, `n` in `n0..n1`, in the
/// type that sums are held in. Calls cover every result once, come from several threads in no fixed order, and `acc` is
/// theirs to overwrite. In a grouped product `n` counts through all groups.
///
/// # Safety
/// It must not unwind, and must write only what belongs to the block it is given.
pub type EpilogueFn = unsafe extern "C" fn(
    args: *const *mut u8,
    syms: *const i64,
    acc: *const c_void,
    ld: i64,
    batch: i64,
    m0: i64,
    m1: i64,
    n0: i64,
    n1: i64,
);

/// A function with the pointers that it expects.
#[derive(Clone, Copy)]
pub struct Epilogue {
    pub f: EpilogueFn,
    pub args: *const *mut u8,
    pub syms: *const i64,
}

/// A strided result: element `(batch, m, n)` is at the sum of the three maps' offsets.
#[derive(Clone, Copy)]
pub struct StoreView {
    pub ptr: *mut u8,
    pub dtype: DType,
    pub batch: Affine,
    pub rows: Affine,
    /// Through all groups.
    pub cols: Affine,
}

/// The destination of results.
#[derive(Clone, Copy)]
#[allow(clippy::large_enum_variant, reason = "one for each call, on the stack")]
pub enum Output {
    Epilogue(Epilogue),
    Store(StoreView),
}

/// A block of results, before it is known where it goes.
pub(crate) struct Block<T> {
    pub acc: *mut T,
    pub ld: usize,
    pub batch: usize,
    pub m: (usize, usize),
    pub n: (usize, usize),
}

impl StoreView {
    /// Returns the elements between rows, where each row is one run of memory and rows follow each other evenly.
    pub(crate) fn in_rows(&self) -> Option<usize> {
        let (step, 1) = (self.rows.stride()?, self.cols.stride()?) else {
            return None;
        };
        usize::try_from(step).ok()
    }
}

impl Output {
    /// Refuses a view that does not have one place for each result, or whose dtype cannot be written from `T`.
    pub(crate) fn check<T: Target>(&self, batch: usize, m: usize, n: usize) -> Result<()> {
        let Output::Store(view) = self else {
            return Ok(());
        };
        if T::writer(view.dtype).is_none() {
            return Err(Error::unsupported(format!(
                "storing {} sums as {}",
                T::DTYPE,
                view.dtype
            )));
        }
        let have = (view.batch.len(), view.rows.len(), view.cols.len());
        if have != (batch, m, n) {
            return Err(Error::internal(format!(
                "a product of {:?} is stored to a view of {have:?} (batch, m, n)",
                (batch, m, n)
            )));
        }
        Ok(())
    }

    /// # Safety
    /// [`Output::check`] has passed; `b` is readable; the pointers given by the user are good for what they describe.
    pub(crate) unsafe fn put<T: Target>(&self, b: &Block<T>) {
        match self {
            Output::Epilogue(e) => {
                // SAFETY: the user vouches for the function and its arguments.
                unsafe {
                    (e.f)(
                        e.args,
                        e.syms,
                        b.acc.cast(),
                        b.ld as i64,
                        b.batch as i64,
                        b.m.0 as i64,
                        b.m.1 as i64,
                        b.n.0 as i64,
                        b.n.1 as i64,
                    )
                }
            }
            Output::Store(view) => {
                let Some(write) = T::writer(view.dtype) else {
                    return;
                };
                let size = view.dtype.size() as isize;
                let base = view.ptr.wrapping_offset(view.batch.offset(b.batch) * size);
                let mut rows = view.rows.walk(b.m.0);
                let (inner, step) = view.cols.inner();
                let width = b.n.1 - b.n.0;
                if b.ld == width
                    && step == 1
                    && inner == width
                    && view.rows.stride() == Some(width as isize)
                {
                    // The block is one run of memory in the result too.
                    let to = base.wrapping_offset(
                        (view.rows.offset(b.m.0) + view.cols.offset(b.n.0)) * size,
                    );
                    // SAFETY: as below.
                    unsafe { write(b.acc, 1, to, 1, width * (b.m.1 - b.m.0)) };
                    return;
                }
                for m in 0..b.m.1 - b.m.0 {
                    let row = base.wrapping_offset(rows.next() * size);
                    let mut n = b.n.0;
                    while n < b.n.1 {
                        // Up to the end of the fastest level of columns.
                        let run = (inner - n % inner).min(b.n.1 - n);
                        let to = row.wrapping_offset(view.cols.offset(n) * size);
                        // SAFETY: source within the block, destination vouched for by the user.
                        unsafe {
                            let from = b.acc.add(m * b.ld + (n - b.n.0));
                            write(from, 1, to, step, run);
                        }
                        n += run;
                    }
                }
            }
        }
    }
}
