//! Sizes and strides of a convolution.

use super::Affine;
use inrush_base::{Error, Result};

/// Sizes of a convolution over an input that holds its zero padding already. Dimensions are depth, height, width; those
/// that a convolution does not have are 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConvShape {
    pub batch: usize,
    pub groups: usize,
    /// Channels of all groups.
    pub c_in: usize,
    pub c_out: usize,
    /// Input sizes, padding included.
    pub input: [usize; 3],
    /// Elements between neighbours along batch, depth, height, width; channels are contiguous.
    pub strides: [isize; 4],
    pub kernel: [usize; 3],
    pub step: [usize; 3],
    pub dilation: [usize; 3],
}

impl ConvShape {
    /// Returns a plain two-dimensional convolution over a dense `[batch, height, width, c_in]` input.
    pub fn new_2d(
        batch: usize,
        c_in: usize,
        c_out: usize,
        input: [usize; 2],
        kernel: [usize; 2],
        step: usize,
    ) -> Self {
        let row = (input[1] * c_in) as isize;
        let image = row * input[0] as isize;
        ConvShape {
            batch,
            groups: 1,
            c_in,
            c_out,
            input: [1, input[0], input[1]],
            strides: [image, image, row, c_in as isize],
            kernel: [1, kernel[0], kernel[1]],
            step: [1, step, step],
            dilation: [1; 3],
        }
    }

    /// Returns output sizes: depth, height, width.
    pub fn output(&self) -> [usize; 3] {
        std::array::from_fn(|d| {
            let reach = self.dilation[d] * self.kernel[d].saturating_sub(1) + 1;
            match self.input[d].checked_sub(reach) {
                Some(room) if self.kernel[d] > 0 => room / self.step[d].max(1) + 1,
                _ => 0,
            }
        })
    }

    pub(crate) fn depthwise(&self) -> bool {
        self.groups > 1 && self.groups == self.c_in && self.groups == self.c_out
    }

    pub(crate) fn check(&self) -> Result<()> {
        if self.groups == 0
            || !self.c_in.is_multiple_of(self.groups)
            || !self.c_out.is_multiple_of(self.groups)
        {
            return Err(Error::input(format!(
                "{} and {} channels do not divide into {} groups",
                self.c_in, self.c_out, self.groups
            )));
        }
        if self.step.contains(&0) || self.dilation.contains(&0) || self.kernel.contains(&0) {
            return Err(Error::input(format!(
                "a convolution with a zero step, dilation or kernel: {self:?}"
            )));
        }
        Ok(())
    }
}

/// Where output lines and taps are in the input.
#[derive(Clone, Debug)]
pub(crate) struct Geometry {
    /// Output lines (batch, depth, height) to the input offset of their first pixel.
    pub lines: Affine,
    /// Output pixels of a line, and elements between their inputs.
    pub width: usize,
    pub step: isize,
    pub taps: Vec<isize>,
    pub channels: usize,
    /// Input pixels that one line of output reads.
    pub reach: usize,
}
