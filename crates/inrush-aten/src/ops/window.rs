//! Arithmetic of sliding windows: output sizes, padding, and the bounds of adaptive windows.

use inrush_base::{Error, Result};
use inrush_expr::{Expr, Exprs};

/// One spatial dimension of a convolution or pooling.
/// Sizes may be symbolic. `input`, `before` and `after` count elements, `stride` and `dilation` are
/// steps in elements.
#[derive(Copy, Clone, Debug)]
pub(crate) struct Window {
    pub input: Expr,
    pub kernel: Expr,
    pub stride: Expr,
    pub dilation: Expr,
    /// Rows of padding before and after.
    pub before: Expr,
    pub after: Expr,
}

impl Window {
    /// Extent of the dilated kernel.
    pub fn span(&self, exprs: &Exprs) -> Expr {
        let one = exprs.int(1);
        let steps = exprs.sub(self.kernel, one);
        exprs.add(exprs.mul(steps, self.dilation), one)
    }

    /// `floor((input + before + after - span) / stride) + 1`; with `ceil`, a last partial window counts when it starts
    /// inside the input or the padding before it.
    pub fn output(&self, exprs: &Exprs, ceil: bool) -> Expr {
        let one = exprs.int(1);
        let padded = exprs.sum([self.input, self.before, self.after]);
        let room = exprs.sub(padded, self.span(exprs));
        if !ceil {
            return exprs.add(exprs.floordiv(room, self.stride), one);
        }
        let by_room = exprs.add(exprs.ceildiv(room, self.stride), one);
        let last = exprs.sub(exprs.add(self.input, self.before), one);
        let by_start = exprs.add(exprs.floordiv(last, self.stride), one);
        exprs.min(by_room, by_start)
    }

    /// Returns the input position of kernel tap `tap` for output position `at`, which may be in the
    /// padding.
    pub fn position(&self, exprs: &Exprs, at: Expr, tap: Expr) -> Expr {
        let start = exprs.sub(exprs.mul(at, self.stride), self.before);
        exprs.add(start, exprs.mul(tap, self.dilation))
    }
}

/// `rank` values from an argument list that holds one value for all dimensions, or one for each.
pub(crate) fn per_dimension(what: &str, values: &[Expr], rank: usize) -> Result<Vec<Expr>> {
    match values.len() {
        1 => Ok(vec![values[0]; rank]),
        n if n == rank => Ok(values.to_vec()),
        n => Err(Error::input(format!(
            "{what} has {n} entries for {rank} spatial dimensions"
        ))),
    }
}

/// Start and end (exclusive) of adaptive window `at`: `floor(at * input / output)`, `ceil((at + 1) * input / output)`.
/// Neighbouring windows overlap where the output does not divide the input: 7 elements in 3 windows
/// are `0..3`, `2..5`, `4..7`.
pub(crate) fn adaptive_bounds(exprs: &Exprs, at: Expr, input: Expr, output: Expr) -> (Expr, Expr) {
    let start = exprs.floordiv(exprs.mul(at, input), output);
    let next = exprs.mul(exprs.add(at, exprs.int(1)), input);
    (start, exprs.ceildiv(next, output))
}

/// The largest number of rows in an adaptive window.
/// Windows of one pool differ in size; loops run over this number of taps and mask those beyond the
/// window's end.
pub(crate) fn adaptive_kernel(exprs: &Exprs, input: Expr, output: Expr) -> Expr {
    if let Some(k) = exprs.divide_exact(input, output) {
        return k;
    }
    let whole = exprs.add(exprs.ceildiv(input, output), exprs.int(1));
    exprs.min(whole, input)
}
