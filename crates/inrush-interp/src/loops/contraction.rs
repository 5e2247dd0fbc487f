//! Runs contractions: the sum of products at every point, then the epilogue.
//!
//! ```text
//! for each point of batch, m, n
//!     acc = 0
//!     for each point of k    acc += a[batch, m, k] * b[batch, k, n]
//! epilogue over batch, m, n, reading acc
//! ```
//!
//! Accesses are affine, so they need no evaluation at each point: a position is a base and a sum
//! of steps times indices. Bounds are checked once, at the corners of the iteration space. This
//! is the one place where the interpreter gives up some obviousness for speed, since contractions
//! have most of the points.

use super::{Run, for_each_point};
use crate::index::size;
use inrush_base::{DType, Error, Result, Scalar};
use inrush_expr::Sym;
use inrush_loops::{Access, Axis, Contraction, ScalarOp, eval};

/// An affine access as a position in storage: `base + sum(steps[axis] * index[axis])`.
/// Positions count elements of the storage.
struct Linear {
    buf: usize,
    /// With the buffer's offset and the constant parts of all coordinates.
    base: i64,
    /// One for each axis of the contraction, in the order of `Contraction::axes`, k axes last.
    steps: Vec<i64>,
}

impl Run<'_> {
    /// Runs a contraction and its epilogue. Holds all sums in memory in between.
    pub(super) fn contraction(&mut self, c: &Contraction) -> Result<()> {
        let axes: Vec<Axis> = c.axes().copied().collect();
        let extents: Vec<i64> = axes
            .iter()
            .map(|a| size(&self.p.exprs, a.size, &self.symbols))
            .collect::<Result<_>>()?;
        let outer = axes.len() - c.k.len();
        // Without points no corner exists, and operands may be empty too.
        let empty = extents.contains(&0);
        let (a, b) = if !empty {
            (
                self.linear(&c.a, &axes, &extents)?,
                self.linear(&c.b, &axes, &extents)?,
            )
        } else {
            (Linear::nothing(&axes), Linear::nothing(&axes))
        };
        let wide = self.options.wide_sums && c.dtype == DType::F32;
        let d = if wide { DType::F64 } else { c.dtype };
        let mut sums = Vec::new();
        for_each_point(&extents[..outer], |at| {
            let mut acc = Scalar::Int(0).convert(d);
            let (pa, pb) = (a.at(at), b.at(at));
            for_each_point(&extents[outer..], |k| {
                let x = self
                    .memory
                    .read_at(a.buf, position(pa.wrapping_add(a.inner(outer, k)))?)?;
                let y = self
                    .memory
                    .read_at(b.buf, position(pb.wrapping_add(b.inner(outer, k)))?)?;
                acc = match d {
                    // The frequent cases are written out. Rounding once or twice per product is
                    // allowed.
                    // Products are rounded to `f32` before they are added; kernels may fuse both.
                    DType::F32 => {
                        let product = x.as_f64() as f32 * y.as_f64() as f32;
                        Scalar::Float((acc.as_f64() as f32 + product) as f64)
                    }
                    DType::F64 => Scalar::Float(acc.as_f64() + x.as_f64() * y.as_f64()),
                    _ => {
                        let product = eval::op(ScalarOp::Mul, d, &[x, y])?;
                        eval::op(ScalarOp::Add, d, &[acc, product])?
                    }
                };
                Ok(())
            })?;
            sums.push(acc.convert(c.dtype));
            Ok(())
        })?;
        self.body(&c.epilogue, [Some(&sums), None])
    }

    /// Returns the positions of an access, checked at the corners of the iteration space: affine
    /// coordinates are extreme there.
    fn linear(&self, x: &Access, axes: &[Axis], extents: &[i64]) -> Result<Linear> {
        let exprs = &self.p.exprs;
        let syms: Vec<Sym> = axes.iter().map(|a| a.sym).collect();
        let view = &self.memory.views[x.buf.index()];
        let mut out = Linear {
            buf: x.buf.index(),
            base: view.offset,
            steps: vec![0; axes.len()],
        };
        for (d, coord) in x.coords.iter().enumerate() {
            let (coefs, rest) = exprs.affine(*coord, &syms).ok_or_else(|| {
                Error::internal(format!("`{}` is not affine", exprs.show(*coord)))
            })?;
            let rest = size(exprs, rest, &self.symbols)?;
            // Wide: text may hold any numbers. What is in bounds is small, and steps of axes of one point do not matter.
            let (mut low, mut high) = (rest as i128, rest as i128);
            out.base = out.base.wrapping_add(rest.wrapping_mul(view.strides[d]));
            for (k, coef) in coefs.iter().enumerate() {
                let coef = size(exprs, *coef, &self.symbols)?;
                let step = coef.wrapping_mul(view.strides[d]);
                out.steps[k] = out.steps[k].wrapping_add(step);
                let end = coef as i128 * (extents[k] as i128 - 1);
                low += end.min(0);
                high += end.max(0);
            }
            if low < 0 || high >= view.sizes[d] as i128 {
                return Err(Error::input(format!(
                    "dimension {d} of {} is read at {low}..={high}, size {}",
                    x.buf, view.sizes[d]
                )));
            }
        }
        Ok(out)
    }
}

impl Linear {
    /// Returns an access that is never made.
    fn nothing(axes: &[Axis]) -> Linear {
        Linear {
            buf: 0,
            base: 0,
            steps: vec![0; axes.len()],
        }
    }
    /// Returns the position for batch, m and n indices, at the first point of the k axes.
    fn at(&self, outer: &[i64]) -> i64 {
        let steps = outer.iter().zip(&self.steps);
        steps.fold(self.base, |at, (i, s)| at.wrapping_add(i.wrapping_mul(*s)))
    }
    /// Returns the distance from there that the k indices make; `outer` is the number of other
    /// axes.
    fn inner(&self, outer: usize, k: &[i64]) -> i64 {
        let steps = k.iter().zip(&self.steps[outer..]);
        steps.fold(0i64, |at, (i, s)| at.wrapping_add(i.wrapping_mul(*s)))
    }
}

fn position(at: i64) -> Result<usize> {
    usize::try_from(at).map_err(|_| Error::internal("a negative position"))
}
