//! The choice of an algorithm: once for known sizes, strides and dtypes, in [`Plan`]. A plan is run any number of times, at
//! other addresses, and allocates nothing then but scratch that its threads keep.
//!
//! | algorithm | right operand | chosen for |
//! |---|---|---|
//! | Winograd, depthwise | packed filters | what filters were packed for |
//! | direct NCHW | in place | windows of an image, or few rows and a short sum |
//! | split-K | in place | long sums with few results |
//! | grouped | packed or in place | groups of so few columns that several fill a vector |
//! | GEMV | in place | few rows |
//! | GEMM | packed, or packed on the way | the rest |
//!
//! The first that applies is taken, from the top.

mod conv;
mod packed;

use crate::Pool;
use crate::algorithms::conv::{self as convolution, ConvAlgorithm, InputCopy};
use crate::algorithms::depthwise::Depthwise;
use crate::algorithms::direct_nchw::{DirectNchw, Left};
use crate::algorithms::gemm::Gemm;
use crate::algorithms::gemv::Gemv;
use crate::algorithms::grouped::{self, Grouped};
use crate::algorithms::split_k::SplitK;
use crate::algorithms::winograd::Winograd;
use crate::kernels::with_element;
use crate::operand::{
    Affine, Columns, Contraction, ConvShape, GemmShape, Lhs, LhsLayout, Output, Rhs, RhsLayout,
    RhsView, StoreView,
};
use inrush_base::tally::{Way, reached};
use inrush_base::{DType, Error, Isa, Result};

pub use conv::Conv;
pub use packed::Packed;

/// A product or convolution of known sizes with its algorithm.
#[derive(Clone, Debug)]
pub struct Plan {
    acc: DType,
    /// Results: batches, rows, columns of all groups.
    results: (usize, usize, usize),
    /// Full panels have most of the columns.
    full_panels: bool,
    algorithm: Algorithm,
}

/// An algorithm, and what its operands look like.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "one for each plan")]
enum Algorithm {
    Gemm(Product, Gemm),
    Gemv(InPlace, Gemv),
    SplitK(InPlace, SplitK),
    Grouped(Product, Grouped),
    /// The left operand where it was not packed; its columns are the rows.
    DirectNchw(RhsLayout, DirectNchw),
    Winograd(Option<InputCopy>, Winograd),
    Depthwise(Option<InputCopy>, Depthwise),
}

/// Operands of a product: the right one is packed at load where there is no layout of it.
#[derive(Clone, Debug)]
struct Product {
    shape: GemmShape,
    acc: DType,
    isa: Isa,
    columns: Columns,
    lhs: LhsLayout,
    view: Option<RhsLayout>,
}

/// Operands of a product that are both read in place.
#[derive(Clone, Debug)]
struct InPlace {
    lhs: LhsLayout,
    view: RhsLayout,
}

/// Addresses of a call's operands. Those that were packed at load may be null.
#[derive(Clone, Copy)]
pub struct Operands<'a> {
    /// The left operand, or the input of a convolution.
    pub a: *const u8,
    /// The right operand, or the image of a direct NCHW convolution.
    pub b: *const u8,
    pub packed: Option<&'a Packed>,
}

impl Plan {
    /// Plans a contraction on `threads` threads, with an operand that was packed for it; `None` where there is no result.
    pub fn new(
        c: &Contraction,
        packed: Option<&Packed>,
        isa: Isa,
        threads: usize,
    ) -> Result<Option<Plan>> {
        crate::isa::check(isa)?;
        let (batch, rows) = (c.batches()?, c.rows()?);
        let (matrices, k, cols) = c.right()?;
        if batch.is_empty() || rows.is_empty() || cols.is_empty() {
            return Ok(None);
        }
        match packed {
            Some(Packed::Winograd(out, _)) => {
                let (shape, _) = c.convolution().ok_or_else(|| {
                    Error::internal("a convolution at load is none for the sizes of a call")
                })?;
                reached(match out {
                    2 => Way::Winograd2,
                    _ => Way::Winograd4,
                });
                let algorithm = ConvAlgorithm::Winograd(*out);
                return Plan::conv(&shape, c.a_dtype, c.acc, isa, threads, algorithm).map(Some);
            }
            Some(Packed::Depthwise(_)) => {
                return Err(Error::internal(
                    "a contraction with filters of a depthwise convolution",
                ));
            }
            Some(Packed::Lhs(_)) | None => {
                if let Some(plan) = Plan::nchw(c, isa)? {
                    return Ok(Some(plan));
                }
            }
            Some(Packed::Rhs(_)) => {}
        }
        let (taps, run, k_step) = if k.is_empty() {
            (vec![0], 0, 1)
        } else {
            c.taps()?
        };
        let shape = GemmShape {
            batch: batch.len(),
            groups: 1,
            m: rows.len(),
            n: cols.len(),
            taps: taps.len(),
            k: run,
        };
        let lhs = LhsLayout {
            dtype: c.a_dtype,
            matrices: batch,
            rows,
            taps,
            k_step,
        };
        let view = match packed {
            Some(Packed::Rhs(_)) => None,
            _ => Some(RhsLayout {
                dtype: c.b_dtype,
                // An operand in place names a matrix for every batch.
                matrices: if matrices.len() == batch.len() {
                    matrices
                } else {
                    Affine::linear(batch.len(), 0)
                },
                k,
                cols,
            }),
        };
        Plan::of_layouts(shape, c.acc, isa, threads, lhs, view).map(Some)
    }

    /// Plans a product that is summed in `acc` (f32, f64, i32 or i64) on `threads` threads, for operands that look like these.
    /// `rhs`: the right operand in place; `None` says that it is packed at load.
    pub fn product(
        shape: GemmShape,
        acc: DType,
        isa: Isa,
        threads: usize,
        lhs: &Lhs,
        rhs: Option<&RhsView>,
    ) -> Result<Plan> {
        crate::isa::check(isa)?;
        let view = rhs.map(RhsView::layout);
        Plan::of_layouts(shape, acc, isa, threads, LhsLayout::of(lhs), view)
    }

    fn of_layouts(
        shape: GemmShape,
        acc: DType,
        isa: Isa,
        threads: usize,
        lhs: LhsLayout,
        view: Option<RhsLayout>,
    ) -> Result<Plan> {
        let s = &shape;
        check_operands(s, &lhs, view.as_ref())?;
        let copies = lhs.dtype != acc || lhs.k_step != 1;
        let gemm = Gemm::plan(shape, acc, isa, threads, view.is_none(), copies)?;
        let columns = *gemm.columns();
        let plan = |algorithm| Plan {
            acc,
            results: (s.batch, s.m, s.groups * s.n),
            full_panels: 2 * columns.full * columns.width > s.n,
            algorithm,
        };
        let product = |lhs, view| Product {
            shape,
            acc,
            isa,
            columns,
            lhs,
            view,
        };
        if s.batch * s.groups == 0 || s.m == 0 || s.n == 0 {
            return Ok(plan(Algorithm::Gemm(product(lhs, view), gemm)));
        }
        // Layouts without addresses, for the plans to look at.
        let left = lhs.at(std::ptr::null());
        let right = view.as_ref().map(|v| v.at(std::ptr::null()));
        if let (Some(right), Some(view)) = (&right, &view)
            && let Some(split_k) = SplitK::plan(s, &left, right, acc, isa)?
        {
            let view = *view;
            return Ok(plan(Algorithm::SplitK(InPlace { lhs, view }, split_k)));
        }
        if let Some(grouped) = Grouped::plan(s, &left, acc, isa)? {
            return Ok(plan(Algorithm::Grouped(product(lhs, view), grouped)));
        }
        if let (Some(right), Some(view)) = (&right, &view)
            && let Some(gemv) = Gemv::plan(s, right, acc, isa)?
        {
            let view = *view;
            return Ok(plan(Algorithm::Gemv(InPlace { lhs, view }, gemv)));
        }
        Ok(plan(Algorithm::Gemm(product(lhs, view), gemm)))
    }

    /// Plans a contraction whose right operand is an image that is read in place, where that is the better way.
    fn nchw(c: &Contraction, isa: Isa) -> Result<Option<Plan>> {
        let shape = c.nchw()?;
        let Some(direct) = DirectNchw::plan(shape, c.acc, c.b_dtype, isa)? else {
            return Ok(None);
        };
        let (matrices, k, cols) = c.left()?;
        let left = RhsLayout {
            dtype: c.a_dtype,
            matrices,
            k,
            cols,
        };
        Ok(Some(Plan {
            acc: c.acc,
            results: (shape.matrices.len(), shape.m, shape.cols.len()),
            full_panels: false,
            algorithm: Algorithm::DirectNchw(left, direct),
        }))
    }

    /// Plans a convolution over an input of `dtype` by a given algorithm: that of the filters, where they are packed already.
    pub(crate) fn conv(
        s: &ConvShape,
        dtype: DType,
        acc: DType,
        isa: Isa,
        threads: usize,
        algorithm: ConvAlgorithm,
    ) -> Result<Plan> {
        s.check()?;
        crate::isa::check(isa)?;
        if !algorithm.applies(s, acc) {
            return Err(Error::internal(format!(
                "{algorithm:?} does not apply to {s:?}"
            )));
        }
        let copy = || match dtype == acc {
            true => Ok(None),
            false => InputCopy::plan(s, dtype).map(Some),
        };
        let algorithm = match algorithm {
            ConvAlgorithm::Direct => {
                let (shape, lhs) = convolution::lower(s, dtype)?;
                return Plan::of_layouts(shape, acc, isa, threads, lhs, None);
            }
            ConvAlgorithm::Winograd(out) => {
                Algorithm::Winograd(copy()?, Winograd::plan(s, isa, threads, out)?)
            }
            ConvAlgorithm::Depthwise => {
                let geometry = convolution::geometry(s)?;
                Algorithm::Depthwise(copy()?, Depthwise::plan(geometry, acc, isa, threads)?)
            }
        };
        let pixels = s.output().iter().product::<usize>();
        Ok(Plan {
            acc,
            results: (1, s.batch * pixels, s.c_out),
            full_panels: false,
            algorithm,
        })
    }

    /// Returns true if sums that are only copied are best stored by the engine: most leave the registers for where they are
    /// stored.
    pub fn stores(&self, view: &StoreView) -> bool {
        let rows = view.in_rows().is_some() && self.full_panels;
        let stores = match &self.algorithm {
            Algorithm::Gemm(..) | Algorithm::Gemv(..) | Algorithm::SplitK(..) => rows,
            Algorithm::Grouped(p, _) => rows || grouped::rows_of_groups(view, &p.shape).is_some(),
            Algorithm::DirectNchw(_, direct) => direct.stores(view),
            Algorithm::Winograd(..) | Algorithm::Depthwise(..) => false,
        };
        stores && view.dtype == self.acc
    }

    /// Returns the algorithm's name.
    pub fn algorithm(&self) -> &'static str {
        match &self.algorithm {
            Algorithm::Gemm(..) => "gemm",
            Algorithm::Gemv(..) => "gemv",
            Algorithm::SplitK(..) => "split-k",
            Algorithm::Grouped(..) => "grouped",
            Algorithm::DirectNchw(..) => "direct-nchw",
            Algorithm::Winograd(..) => "winograd",
            Algorithm::Depthwise(..) => "depthwise",
        }
    }

    /// Computes the results.
    ///
    /// # Safety
    /// Every element that the plan's layouts describe at these addresses, and every place that `out` describes, is valid for
    /// the length of the call. So is what is between the elements of a line of an image. Results overlap neither operand nor
    /// each other.
    pub unsafe fn run(&self, pool: &Pool, operands: &Operands, out: &Output) -> Result<()> {
        let (batch, m, n) = self.results;
        with_element!(self.acc, T => out.check::<T>(batch, m, n))??;
        let &Operands { a, b, packed } = operands;
        // SAFETY: the caller's contract; layouts were checked against sizes by the plan.
        unsafe {
            match &self.algorithm {
                Algorithm::Gemm(p, gemm) => {
                    p.with_rhs(operands, |rhs| gemm.run(pool, &p.lhs.at(a), rhs, out))
                }
                Algorithm::Grouped(p, grouped) => {
                    p.with_rhs(operands, |rhs| grouped.run(pool, &p.lhs.at(a), rhs, out))
                }
                Algorithm::Gemv(p, gemv) => gemv.run(pool, &p.lhs.at(a), &p.view.at(b), out),
                Algorithm::SplitK(p, split_k) => {
                    split_k.run(pool, &p.lhs.at(a), &p.view.at(b), out)
                }
                Algorithm::DirectNchw(left, direct) => match packed {
                    Some(Packed::Lhs(p)) => direct.run(pool, Left::Packed(p), b, out),
                    Some(_) => Err(other_plan()),
                    None => direct.run(pool, Left::View(&left.at(a)), b, out),
                },
                Algorithm::Winograd(copy, winograd) => {
                    let Some(Packed::Winograd(size, filters)) = packed else {
                        return Err(other_plan());
                    };
                    if *size != winograd.out {
                        return Err(other_plan());
                    }
                    self.with_input(pool, copy, a, |input| {
                        winograd.run(pool, input.cast(), filters, out)
                    })
                }
                Algorithm::Depthwise(copy, depthwise) => {
                    let Some(Packed::Depthwise(filters)) = packed else {
                        return Err(other_plan());
                    };
                    self.with_input(pool, copy, a, |input| {
                        depthwise.run(pool, input, filters, out)
                    })
                }
            }
        }
    }

    /// Calls `f` with the input in the type of the sums.
    ///
    /// # Safety
    /// As [`Plan::run`].
    unsafe fn with_input(
        &self,
        pool: &Pool,
        copy: &Option<InputCopy>,
        input: *const u8,
        f: impl FnOnce(*const u8) -> Result<()>,
    ) -> Result<()> {
        match copy {
            None => f(input),
            // SAFETY: the caller's contract.
            Some(copy) => with_element!(self.acc, T => unsafe { copy.with::<T>(pool, input, f) })?,
        }
    }
}

impl Product {
    /// Calls `f` with the right operand, packed or at its address.
    fn with_rhs(&self, o: &Operands, f: impl FnOnce(Rhs) -> Result<()>) -> Result<()> {
        match (&self.view, o.packed) {
            // A left operand that was packed serves other sizes.
            (Some(view), None | Some(Packed::Lhs(_))) => f(Rhs::View(&view.at(o.b))),
            (None, Some(Packed::Rhs(b))) => {
                (self.shape).check_packed(b, self.isa, self.acc, &self.columns)?;
                f(Rhs::Packed(b))
            }
            _ => Err(other_plan()),
        }
    }
}

fn other_plan() -> Error {
    Error::internal("an operand was packed for another plan, or is missing")
}

/// Refuses operands that do not have the product's sizes.
fn check_operands(s: &GemmShape, lhs: &LhsLayout, view: Option<&RhsLayout>) -> Result<()> {
    let matrices = s.batch * s.groups;
    if (lhs.matrices.len(), lhs.rows.len(), lhs.taps.len()) != (matrices, s.m, s.taps) {
        return Err(Error::internal(format!(
            "a left operand of {} matrices, {} rows, {} taps in a product of {s:?}",
            lhs.matrices.len(),
            lhs.rows.len(),
            lhs.taps.len()
        )));
    }
    let Some(v) = view else {
        return Ok(());
    };
    if (v.matrices.len(), v.k.len(), v.cols.len()) != (matrices, s.taps * s.k, s.n) {
        return Err(Error::internal(format!(
            "a right operand of {} x {} x {} in a product of {s:?}",
            v.matrices.len(),
            v.k.len(),
            v.cols.len()
        )));
    }
    Ok(())
}
