//! A contraction: sums of products over common axes of two strided operands, as a compiled program describes it.

use super::{Affine, ConvShape, NchwShape};
use inrush_base::{DType, Error, Result};

/// Most separate runs of products.
const MOST_TAPS: usize = 1 << 16;

/// `C[batch, m, n] = sum over k of A[batch, m, k] * B[batch, k, n]`: sizes and strides (in elements) of each level, slowest
/// first.
#[derive(Clone, Debug)]
pub struct Contraction {
    /// Type of the sums, and of both operands' elements.
    pub acc: DType,
    pub a_dtype: DType,
    pub b_dtype: DType,
    /// Size, stride in `A`, stride in `B`.
    pub batch: Vec<(usize, isize, isize)>,
    /// Size, stride in `A`.
    pub m: Vec<(usize, isize)>,
    /// Size, stride in `B`.
    pub n: Vec<(usize, isize)>,
    /// Size, stride in `A`, stride in `B`. What is contiguous in `A` comes last: see [`Contraction::sort`].
    pub k: Vec<(usize, isize, isize)>,
}

/// Maps of one operand: matrices, `k`, and rows or columns.
pub(crate) type Maps = (Affine, Affine, Affine);

impl Contraction {
    /// Puts the levels of `k` in the order of their strides in `A`, slowest first, without those of one element. The order of
    /// summation is free; equals keep the given one.
    pub fn sort(&mut self) {
        self.k.retain(|l| l.0 != 1);
        self.k
            .sort_by_key(|l| std::cmp::Reverse(l.1.unsigned_abs()));
    }

    /// Returns the map of the left operand by batch: a matrix for every batch.
    pub(crate) fn batches(&self) -> Result<Affine> {
        let levels: Vec<(usize, isize)> = self.batch.iter().map(|l| (l.0, l.1)).collect();
        Affine::new(&levels)
    }

    /// Returns the map of the left operand's rows.
    pub(crate) fn rows(&self) -> Result<Affine> {
        Affine::new(&self.m)
    }

    /// Returns offsets of the outer levels of `k` in `A`, and the length and step of the inner run.
    pub(crate) fn taps(&self) -> Result<(Vec<isize>, usize, isize)> {
        let Some(&(mut run, step, _)) = self.k.last() else {
            return Ok((vec![0], 1, 1));
        };
        let mut outer = self.k.len() - 1;
        while outer > 0 && self.k[outer - 1].1 == step * run as isize {
            run *= self.k[outer - 1].0;
            outer -= 1;
        }
        let levels: Vec<(usize, isize)> = self.k[..outer].iter().map(|l| (l.0, l.1)).collect();
        let map = Affine::new(&levels)?;
        if map.len() > MOST_TAPS {
            return Err(Error::unsupported(format!(
                "a contraction with {} separate runs of products",
                map.len()
            )));
        }
        Ok(((0..map.len()).map(|t| map.offset(t)).collect(), run, step))
    }

    /// Returns the two-dimensional convolution of step 1 with 3 x 3 filters that this is, and the filters' strides. `m` counts
    /// images (where there are several), lines and pixels, `n` output channels, `k` the filter's lines, pixels and channels.
    pub(crate) fn convolution(&self) -> Option<(ConvShape, [isize; 5])> {
        let (batch, image, lines, pixels) = match *self.m.as_slice() {
            [(oh, row), (ow, pixel)] => (1, 0, (oh, row), (ow, pixel)),
            [(n, image), (oh, row), (ow, pixel)] => (n, image, (oh, row), (ow, pixel)),
            _ => return None,
        };
        let (&[(c_out, o)], &[(3, row, h), (3, pixel, w), (c_in, 1, i)]) =
            (self.n.as_slice(), self.k.as_slice())
        else {
            return None;
        };
        if self.batch.iter().any(|l| l.0 != 1) || (lines.1, pixels.1) != (row, pixel) {
            return None;
        }
        let input = [lines.0.checked_add(2)?, pixels.0.checked_add(2)?];
        let mut shape = ConvShape::new_2d(batch, c_in, c_out, input, [3, 3], 1);
        shape.strides = [image, image, row, pixel];
        Some((shape, [o, i, 0, h, w]))
    }

    /// Returns the right operand's maps. One matrix where no batch level moves in it.
    pub(crate) fn right(&self) -> Result<Maps> {
        let moving = self.batch.iter().any(|l| l.2 != 0 && l.0 > 1);
        let matrices = if moving {
            let levels: Vec<(usize, isize)> = self.batch.iter().map(|l| (l.0, l.2)).collect();
            Affine::new(&levels)?
        } else {
            Affine::ONE
        };
        let k: Vec<(usize, isize)> = self.k.iter().map(|l| (l.0, l.2)).collect();
        Ok((matrices, Affine::new(&k)?, Affine::new(&self.n)?))
    }

    /// Returns the left operand's maps. One matrix for all batches that do not move in it.
    pub(crate) fn left(&self) -> Result<Maps> {
        let moving: Vec<(usize, isize)> = (self.batch.iter())
            .filter(|l| l.1 != 0)
            .map(|l| (l.0, l.1))
            .collect();
        let k: Vec<(usize, isize)> = self.k.iter().map(|l| (l.0, l.1)).collect();
        Ok((Affine::new(&moving)?, Affine::new(&k)?, self.rows()?))
    }

    /// Returns the product as one whose right operand is read in place, with one left matrix for all batches that do not move
    /// in it.
    pub(crate) fn nchw(&self) -> Result<NchwShape> {
        // Batches count the matrices of the left operand through the levels that move in it.
        let mut index = 1;
        let mut lefts: Vec<(usize, isize)> = Vec::with_capacity(self.batch.len());
        for l in self.batch.iter().rev() {
            lefts.push((l.0, if l.1 == 0 { 0 } else { index }));
            if l.1 != 0 {
                index *= l.0 as isize;
            }
        }
        lefts.reverse();
        let right = |of: &[(usize, isize, isize)]| {
            let levels: Vec<(usize, isize)> = of.iter().map(|l| (l.0, l.2)).collect();
            Affine::new(&levels)
        };
        Ok(NchwShape {
            m: self.m.iter().map(|l| l.0).product(),
            lefts: Affine::new(&lefts)?,
            matrices: right(&self.batch)?,
            k: right(&self.k)?,
            cols: Affine::new(&self.n)?,
        })
    }
}
