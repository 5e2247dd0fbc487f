//! Operands that are packed at load, each for the algorithm that is chosen then.

use crate::Pool;
use crate::algorithms::conv::{self, ConvAlgorithm};
use crate::algorithms::depthwise::Filters;
use crate::algorithms::direct_nchw::{DirectNchw, PackedA};
use crate::algorithms::winograd::Winograd;
use crate::kernels::with_element;
use crate::operand::{Contraction, ConvShape, PackedB, RhsPanels, RhsView};
use inrush_base::{DType, Isa, Result};

/// An operand that was packed at load.
pub enum Packed {
    /// The right operand of a GEMM.
    Rhs(PackedB),
    /// The left operand of a direct NCHW convolution.
    Lhs(PackedA),
    /// Transformed filters, for tiles of so many outputs a side.
    Winograd(usize, PackedB),
    /// One filter a channel.
    Depthwise(Filters),
}

impl Packed {
    /// Packs the right operand of a contraction, at `ptr`. `convolution`: all sizes but the number of images are those of every
    /// call, so that filters may be packed for a convolution's algorithm. `None` where there is nothing to pack.
    ///
    /// # Safety
    /// Every element that `c` describes at `ptr` is readable for the length of the call.
    pub unsafe fn right(
        pool: &Pool,
        isa: Isa,
        c: &Contraction,
        ptr: *const u8,
        convolution: bool,
    ) -> Result<Option<Packed>> {
        let shape = c.convolution().filter(|_| convolution);
        if let Some((shape, strides)) = shape.filter(|_| c.a_dtype == DType::F32) {
            let algorithm = ConvAlgorithm::choose(&shape, c.acc, isa, pool.threads());
            if algorithm != ConvAlgorithm::Direct {
                // SAFETY: the caller's contract.
                let filters = unsafe {
                    Self::filters(pool, isa, c.acc, &shape, algorithm, ptr, c.b_dtype, strides)
                };
                return filters.map(Some);
            }
        }
        let (matrices, k, cols) = c.right()?;
        if k.is_empty() || cols.is_empty() || matrices.is_empty() {
            return Ok(None);
        }
        let view = RhsView {
            ptr,
            dtype: c.b_dtype,
            matrices,
            k,
            cols,
        };
        // SAFETY: the caller's contract.
        let packed = unsafe { PackedB::pack(pool, isa, c.acc, &view) }?;
        Ok(Some(Packed::Rhs(packed)))
    }

    /// Returns how [`Packed::right`] packs the operand, if the panels are a permutation of its elements that depends on nothing
    /// but the level: not for filters, whose algorithm depends on the threads.
    pub fn panels(isa: Isa, c: &Contraction, convolution: bool) -> Result<Option<RhsPanels>> {
        let filters = convolution && c.a_dtype == DType::F32 && c.convolution().is_some();
        let (matrices, k, cols) = c.right()?;
        if filters || c.b_dtype != c.acc || k.is_empty() || cols.is_empty() || matrices.is_empty() {
            return Ok(None);
        }
        RhsPanels::of(isa, c.acc, (matrices, k, cols)).map(Some)
    }

    /// Takes a right operand that is packed already, in `len` bytes at `ptr`, instead of packing it.
    ///
    /// # Errors
    /// An internal error for panels of another level, or another number of bytes.
    ///
    /// # Safety
    /// The memory is aligned to its elements, readable while this lives, and nothing writes it.
    pub unsafe fn lent(isa: Isa, panels: &RhsPanels, ptr: *const u8, len: usize) -> Result<Packed> {
        // SAFETY: the caller's contract.
        unsafe { PackedB::lent(isa, panels, ptr, len) }.map(Packed::Rhs)
    }

    /// Packs the left operand of a contraction, at `ptr`, where the right one is read in place and the left one cannot be.
    ///
    /// # Safety
    /// As [`Packed::right`].
    pub unsafe fn left(
        pool: &Pool,
        isa: Isa,
        c: &Contraction,
        ptr: *const u8,
    ) -> Result<Option<Packed>> {
        if DirectNchw::plan(c.nchw()?, c.acc, c.b_dtype, isa)?.is_none() {
            return Ok(None);
        }
        let (matrices, k, cols) = c.left()?;
        let view = RhsView {
            ptr,
            dtype: c.a_dtype,
            matrices,
            k,
            cols,
        };
        // SAFETY: the caller's contract.
        let packed = unsafe { PackedA::pack(pool, isa, c.acc, &view) }?;
        Ok(packed.map(Packed::Lhs))
    }

    /// Packs filters `[c_out, c_in / groups, depth, height, width]` of the given strides (in elements) for an algorithm.
    ///
    /// # Safety
    /// Every filter element is readable for the length of the call.
    #[allow(clippy::too_many_arguments, reason = "two callers, each with a type")]
    pub(super) unsafe fn filters(
        pool: &Pool,
        isa: Isa,
        acc: DType,
        shape: &ConvShape,
        algorithm: ConvAlgorithm,
        ptr: *const u8,
        dtype: DType,
        strides: [isize; 5],
    ) -> Result<Packed> {
        let depthwise = algorithm == ConvAlgorithm::Depthwise;
        let view = conv::filters(shape, depthwise, ptr, dtype, strides)?;
        // SAFETY: the caller's contract.
        unsafe {
            Ok(match algorithm {
                ConvAlgorithm::Direct => Packed::Rhs(PackedB::pack(pool, isa, acc, &view)?),
                ConvAlgorithm::Winograd(out) => {
                    Packed::Winograd(out, Winograd::pack(pool, isa, out, &view)?)
                }
                ConvAlgorithm::Depthwise => {
                    Packed::Depthwise(with_element!(acc, T => Filters::pack::<T>(&view))??)
                }
            })
        }
    }

    /// Returns bytes held.
    pub fn bytes(&self) -> usize {
        match self {
            Packed::Rhs(b) | Packed::Winograd(_, b) => b.bytes(),
            Packed::Lhs(a) => a.bytes(),
            Packed::Depthwise(f) => f.bytes(),
        }
    }
}
