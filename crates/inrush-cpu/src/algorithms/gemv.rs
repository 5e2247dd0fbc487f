//! GEMV: products of few rows whose right operand is read in place, once. Packing it would cost more than it saves.
//! Threads share the columns; the loops are those of [`crate::kernels::gemv`].

use crate::Pool;
use crate::kernels::gemv::{Axpy, DOT_K_BLOCK, Dot, GemvLoops, Loops};
use crate::kernels::with_element;
use crate::operand::scratch::{self, ALIGN, Owner};
use crate::operand::{
    Affine, Block, GemmShape, Lhs, Output, Packable, RhsView, RowCopy, Shared, part,
};
use inrush_base::tally::{Way, reached};
use inrush_base::{DType, Error, Isa, Result};

/// How a right operand can be read in place; see [`crate::kernels::gemv`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Dot,
    Axpy { step: isize },
}

/// Most rows for which reading in place beats packing.
const DOT_ROWS: usize = 12;
const AXPY_ROWS: usize = 16;

/// Returns the form for `rows` rows, if any.
fn form(rows: usize, view: &RhsView) -> Option<Form> {
    let unit = |map: &Affine| map.len() == 1 || map.stride() == Some(1);
    match view.k.stride() {
        Some(step) if rows <= AXPY_ROWS && unit(&view.cols) => Some(Form::Axpy { step }),
        Some(_) if rows <= DOT_ROWS && unit(&view.k) => Some(Form::Dot),
        _ => None,
    }
}

/// Returns the columns of one unit of work, so that threads have enough units and a unit's results stay in the first cache.
fn chunk(matrices: usize, rows: usize, n: usize, threads: usize) -> usize {
    let most = (4096 / rows.max(1)).clamp(64, 1024);
    let parts = n.div_ceil(most);
    let wanted = (4 * threads).div_ceil(matrices.max(1));
    let parts = parts.max(wanted.min(n.div_ceil(64))).max(1);
    n.div_ceil(parts).next_multiple_of(16)
}

/// Cycles below which a dispatch costs more than it gives.
const SERIAL: usize = 8000;

/// The plan of a GEMV.
#[derive(Clone, Debug)]
pub(crate) struct Gemv {
    shape: GemmShape,
    acc: DType,
    isa: Isa,
    form: Form,
}

impl Gemv {
    /// Plans a product of few rows; `None` where it has many, or the right operand has no loops.
    pub(crate) fn plan(
        shape: &GemmShape,
        view: &RhsView,
        acc: DType,
        isa: Isa,
    ) -> Result<Option<Gemv>> {
        let has_loops = with_element!(acc, T => T::gemv(isa, view.dtype).is_some())?;
        let form = form(shape.m, view).filter(|_| has_loops && shape.taps * shape.k > 0);
        Ok(form.map(|form| Gemv {
            shape: *shape,
            acc,
            isa,
            form,
        }))
    }

    /// # Safety
    /// As [`crate::Plan::run`], for operands as planned for.
    pub(crate) unsafe fn run(
        &self,
        pool: &Pool,
        lhs: &Lhs,
        view: &RhsView,
        out: &Output,
    ) -> Result<()> {
        reached(match self.form {
            Form::Dot => Way::Dot,
            Form::Axpy { .. } => Way::Axpy,
        });
        // SAFETY: the caller's contract.
        with_element!(self.acc, T => unsafe { self.run_as::<T>(pool, lhs, view, out) })?
    }

    unsafe fn run_as<T: Packable + GemvLoops>(
        &self,
        pool: &Pool,
        lhs: &Lhs,
        view: &RhsView,
        out: &Output,
    ) -> Result<()> {
        let s = &self.shape;
        let loops =
            T::gemv(self.isa, view.dtype).ok_or_else(|| Error::internal("a plan without loops"))?;
        let direct = lhs.dtype == T::DTYPE && (lhs.k_step == 1 || s.k == 1) && s.taps == 1;
        let copy_lhs = RowCopy::<T>::new(lhs.dtype, self.isa)?;
        let call = Call {
            plan: self,
            lhs,
            copy_lhs: (!direct).then_some(copy_lhs),
            view,
            loops,
            out,
        };
        let matrices = s.batch * s.groups;
        let cycles = (matrices * s.n)
            .saturating_mul(s.taps * s.k)
            .saturating_mul(s.m.max(8))
            / 16;
        let threads = if cycles < SERIAL { 1 } else { pool.threads() };
        let parts = s.n.div_ceil(chunk(matrices, s.m, s.n, threads));
        let units = matrices * parts;
        let call = Shared(&call);
        let grain = if threads == 1 { units } else { 1 };
        pool.parallel_for(units, grain, &|range| {
            for unit in range {
                // Whole vectors, so that only the last part has a remainder.
                let vectors = part(s.n.div_ceil(16), parts, unit % parts);
                let n = (vectors.0 * 16, (vectors.1 * 16).min(s.n));
                if n.0 < n.1 {
                    // SAFETY: units are disjoint parts of the result; the caller vouches for the pointers.
                    unsafe { call.get().unit(unit / parts, n) };
                }
            }
        })
    }
}

/// One call of a plan.
struct Call<'a, T: 'static> {
    plan: &'a Gemv,
    lhs: &'a Lhs<'a>,
    /// Set where rows cannot be read in place.
    copy_lhs: Option<RowCopy<T>>,
    view: &'a RhsView,
    loops: &'static Loops<T>,
    out: &'a Output,
}

impl<T: Packable + GemvLoops> Call<'_, T> {
    /// Computes columns `n.0..n.1` of one matrix.
    unsafe fn unit(&self, matrix: usize, n: (usize, usize)) {
        let s = &self.plan.shape;
        let depth = s.taps * s.k;
        let width = n.1 - n.0;
        let ld = width.next_multiple_of(16);
        let round = |bytes: usize| bytes.next_multiple_of(ALIGN);
        let sums = round(s.m * size_of::<*const T>());
        let offsets = sums + round(s.m * ld * size_of::<T>());
        let copies = offsets + round(width * size_of::<isize>());
        let copied = if self.copy_lhs.is_some() {
            s.m * depth
        } else {
            0
        };
        scratch::with(
            Owner::Unit,
            copies + round(copied * size_of::<T>()),
            |memory| {
                // SAFETY: the parts of the memory are as large as their users need; operands were checked.
                unsafe {
                    let x = memory.cast::<*const T>();
                    self.rows(matrix, x, memory.add(copies).cast());
                    let c = memory.add(sums).cast::<T>();
                    let size = self.view.dtype.size() as isize;
                    let base = self.view.matrices.offset(matrix);
                    match self.plan.form {
                        Form::Axpy { step } => {
                            std::slice::from_raw_parts_mut(c, s.m * ld).fill(T::default());
                            let at = base + self.view.cols.offset(n.0);
                            (self.loops.axpy)(&Axpy {
                                x,
                                rows: s.m,
                                k: depth,
                                w: self.view.ptr.wrapping_offset(at * size),
                                step,
                                n: width,
                                c,
                                ldc: ld,
                            });
                        }
                        Form::Dot => {
                            let cols = memory.add(offsets).cast::<isize>();
                            let mut walk = self.view.cols.walk(n.0);
                            for j in 0..width {
                                *cols.add(j) = walk.next();
                            }
                            let k_block = if s.m > 3 { DOT_K_BLOCK } else { depth.max(1) };
                            for k0 in (0..depth).step_by(k_block) {
                                if k0 > 0 {
                                    for i in 0..s.m {
                                        *x.add(i) = (*x.add(i)).add(k_block);
                                    }
                                }
                                (self.loops.dot)(&Dot {
                                    x,
                                    rows: s.m,
                                    k: k_block.min(depth - k0),
                                    w: self.view.ptr.wrapping_offset((base + k0 as isize) * size),
                                    cols,
                                    n: width,
                                    c,
                                    ldc: ld,
                                    accumulate: k0 > 0,
                                });
                            }
                        }
                    }
                    let group = matrix % s.groups;
                    self.out.put(&Block {
                        acc: c,
                        ld,
                        batch: matrix / s.groups,
                        m: (0, s.m),
                        n: (group * s.n + n.0, group * s.n + n.1),
                    });
                }
            },
        );
    }

    /// Points at rows of contiguous products; others are copied to `to`.
    unsafe fn rows(&self, matrix: usize, pointers: *mut *const T, to: *mut T) {
        let (s, lhs) = (&self.plan.shape, self.lhs);
        let size = lhs.dtype.size() as isize;
        let base = lhs.matrices.offset(matrix);
        for i in 0..s.m {
            let row = base + lhs.rows.offset(i);
            let at = |offset: isize| lhs.ptr.wrapping_offset((row + offset) * size);
            // SAFETY: elements of the operand; `to` takes all rows.
            unsafe {
                let Some(copy) = self.copy_lhs else {
                    *pointers.add(i) = at(lhs.taps[0]).cast();
                    continue;
                };
                let line = to.add(i * s.taps * s.k);
                for (t, tap) in lhs.taps.iter().enumerate() {
                    copy.run(at(*tap), lhs.k_step, line.add(t * s.k), s.k);
                }
                *pointers.add(i) = line;
            }
        }
    }
}
