//! Convolutions of NHWC images as their callers see them: sizes, filters, input.

use super::{Operands, Packed, Plan};
use crate::Pool;
use crate::algorithms::conv::ConvAlgorithm;
use crate::operand::{ConvShape, Output};
use inrush_base::{DType, Isa, Result};

/// The plan of a convolution. Filters are packed by any plan of the same channels, groups, kernel and [`ConvAlgorithm`], for
/// whatever input sizes.
#[derive(Clone, Debug)]
pub struct Conv {
    shape: ConvShape,
    isa: Isa,
    acc: DType,
    algorithm: ConvAlgorithm,
    plan: Plan,
}

impl Conv {
    /// Returns the algorithm that is likely to be fastest for these sizes.
    pub fn choose(shape: &ConvShape, acc: DType, isa: Isa, threads: usize) -> ConvAlgorithm {
        ConvAlgorithm::choose(shape, acc, isa, threads)
    }

    /// Plans a convolution over an input of `dtype` that is summed in `acc` on `threads` threads, by an algorithm: what
    /// [`Conv::choose`] returns, or that of filters that are packed already.
    pub fn plan(
        shape: ConvShape,
        dtype: DType,
        acc: DType,
        isa: Isa,
        threads: usize,
        algorithm: ConvAlgorithm,
    ) -> Result<Conv> {
        let plan = Plan::conv(&shape, dtype, acc, isa, threads, algorithm)?;
        Ok(Conv {
            shape,
            isa,
            acc,
            algorithm,
            plan,
        })
    }

    /// Returns the plan, which takes the input as its left operand.
    pub fn into_plan(self) -> Plan {
        self.plan
    }

    /// Returns the sizes planned for.
    pub fn shape(&self) -> &ConvShape {
        &self.shape
    }

    /// Packs filters `[c_out, c_in / groups, depth, height, width]` of the given strides (in elements).
    ///
    /// # Safety
    /// Every filter element is readable for the length of the call.
    pub unsafe fn pack(
        &self,
        pool: &Pool,
        ptr: *const u8,
        dtype: DType,
        strides: [isize; 5],
    ) -> Result<Packed> {
        let (shape, algorithm) = (&self.shape, self.algorithm);
        // SAFETY: the caller's contract.
        unsafe {
            Packed::filters(
                pool, self.isa, self.acc, shape, algorithm, ptr, dtype, strides,
            )
        }
    }

    /// Convolves the input at `input`. Results are rows of `batch * depth * height * width` output pixels (`m`) and columns of
    /// output channels (`n`), in one batch.
    ///
    /// # Safety
    /// Every input element that the shape describes, with what is between pixels of a line, and every place that `out`
    /// describes is valid for the length of the call; results overlap no input.
    pub unsafe fn run(
        &self,
        pool: &Pool,
        input: *const u8,
        filters: &Packed,
        out: &Output,
    ) -> Result<()> {
        let operands = Operands {
            a: input,
            b: std::ptr::null(),
            packed: Some(filters),
        };
        // SAFETY: the caller's contract.
        unsafe { self.plan.run(pool, &operands, out) }
    }
}
