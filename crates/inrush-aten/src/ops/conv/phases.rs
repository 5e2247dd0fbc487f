//! Transposed convolutions with strides by phases (sub-pixel decomposition), without inserting
//! zeros between the elements.
//!
//! Element `i` of the input adds to the elements `i * stride + tap` of the result. An element that
//! is `phase` after a multiple of the stride is reached by the taps `phase`, `phase + stride`, ...
//! only. So phases are columns of a product, as channels are, and the sum runs over the steps from
//! tap to tap. If the stride does not divide the kernel, some phases have one tap less than others.
//! These are products of their own, because a tap of zeros is not neutral where the input is
//! infinite.
//!
//! ```text
//! stride 2, kernel 4, phases p in {0, 1}, steps j in {0, 1}
//!
//! y[2*m + p] = sum over c, j of  x[c, m - j] * w[c, p + 2*j]
//!
//!     M: image, m      N: channel, p      K: c, j
//! ```
//!
//! With `stride - 1` zeros inserted, a fraction of `1 - 1/stride` of the multiplications
//! along each dimension would be by zero. Here there is none. The price is an interleaving of
//! phases in the result, which is a matter of coordinates: the product stores to
//! `m * phases + p`.

use crate::lower::product::{Product, Role, Target};
use crate::ops::conv::convolution::{Conv, add_bias};
use crate::ops::padding::{in_bounds, load_or_zero, zeros_around};
use crate::{Lower, Tensor};
use inrush_base::{DType, Error, Result};
use inrush_expr::{Expr, Exprs};

/// One spatial dimension.
/// The places of a result along one dimension, ordered by phase.
pub struct Phases {
    stride: i64,
    /// How far back in the input each tap of a phase reads.
    step: i64,
    /// The first place of the result: this many strides, and this many places.
    skipped: i64,
    first: i64,
    /// Multiples of the stride from there to the end of the result.
    multiples: Expr,
    /// Phases that any tap reaches: most taps first.
    alike: Vec<Alike>,
}

/// Phases, from one on, that have as many taps.
/// `from` is the first phase, `phases` their number and `taps` the number of taps of each.
#[derive(Copy, Clone)]
struct Alike {
    from: i64,
    phases: i64,
    taps: i64,
}

impl Phases {
    /// The dimensions of a convolution that is better done so.
    /// Returns `None` if no dimension has a stride, a stride meets a dilation, or kernel,
    /// stride, padding or dilation is not a constant, and for integers. Then inserted zeros
    /// do.
    pub fn of(exprs: &Exprs, conv: &Conv, dtype: DType) -> Option<Vec<Phases>> {
        let one = |e: Expr| exprs.is_int(e, 1);
        if !dtype.is_float()
            || exprs.is_int(conv.group_in, 0)
            || conv.windows.iter().all(|w| one(w.stride))
        {
            return None;
        }
        (conv.windows.iter().zip(&conv.output))
            .map(|(w, size)| {
                if !one(w.stride) && !one(w.dilation) {
                    return None;
                }
                let (stride, kernel) = (exprs.as_int(w.stride)?, exprs.as_int(w.kernel)?);
                let (before, step) = (exprs.as_int(w.before)?, exprs.as_int(w.dilation)?);
                if kernel < 1 {
                    return None;
                }
                // The first `kernel % stride` phases have a tap more than the others.
                let (taps, longer) = (kernel / stride, kernel % stride);
                let alike = [(0, longer, taps + 1), (longer, stride - longer, taps)];
                let alike = alike.map(|(from, phases, taps)| Alike { from, phases, taps });
                let first = before.rem_euclid(stride);
                let reach = exprs.add(*size, exprs.int(first + stride - 1));
                Some(Phases {
                    stride,
                    step,
                    skipped: before.div_euclid(stride),
                    first,
                    multiples: exprs.floordiv(reach, exprs.int(stride)),
                    alike: (alike.into_iter())
                        .filter(|a| a.phases > 0 && a.taps > 0)
                        .collect(),
                })
            })
            .collect()
    }

    /// The first entry of `alike` has the most: those with an extra tap come first.
    fn most_taps(&self) -> i64 {
        self.alike[0].taps
    }
}

/// The convolution as products of multiples of the stride and taps with channels and phases.
pub fn products<'g>(
    lw: &mut Lower<'g>,
    conv: &Conv,
    along: &[Phases],
    x: &Tensor,
    w: &Tensor,
    bias: Option<&Tensor>,
) -> Result<Tensor> {
    let e = lw.exprs;
    // Zeros before the input, for the taps that reach back, and after it.
    let around: Vec<_> = (along.iter().zip(&conv.windows))
        .map(|(p, v)| {
            let behind = e.add(e.sub(p.multiples, v.input), e.int(p.skipped));
            (e.int((p.most_taps() - 1) * p.step - p.skipped), behind)
        })
        .collect();
    let source = zeros_around(lw, x, &around);
    // A part for each choice of a kind of phases along each dimension: up to 2 per dimension.
    let mut parts: Vec<Vec<Alike>> = vec![Vec::new()];
    for p in along {
        let longer = |part: &Vec<Alike>| {
            p.alike
                .iter()
                .map(|a| [part.as_slice(), &[*a]].concat())
                .collect::<Vec<_>>()
        };
        parts = parts.iter().flat_map(longer).collect();
    }
    let sizes = conv.sizes(e);
    let spatial = sizes.len() - along.len();
    // One product gives all there is.
    let covers = |part: &[Alike]| part.iter().zip(along).all(|(a, p)| a.phases == p.stride);
    if let [part] = parts.as_slice()
        && covers(part)
    {
        // No copy: the result is a window of the product, which `first` places precede.
        let all = product(lw, conv, along, part, (&source, w), x.dtype, bias)?;
        let mut at = crate::view::indices(e, &sizes);
        for (i, p) in at[spatial..].iter_mut().zip(along) {
            *i = e.add(*i, e.int(p.first));
        }
        return Ok(Tensor {
            coords: all.at(e, &at),
            sizes,
            ..all
        });
    }
    let dtype = x.dtype.compute();
    let sums = (parts.iter())
        .map(|part| product(lw, conv, along, part, (&source, w), dtype, None))
        .collect::<Result<Vec<_>>>()?;
    let mut body = lw.body(&sizes);
    let outer = body.outer();
    let mut value = None;
    for (part, sum) in parts.iter().zip(&sums) {
        let mut at = outer.clone();
        let mut checks = Vec::new();
        for ((i, p), a) in at[spatial..].iter_mut().zip(along).zip(part) {
            let place = e.add(*i, e.int(p.first));
            let phase = e.sub(e.modulo(place, e.int(p.stride)), e.int(a.from));
            checks.push((phase, e.int(a.phases)));
            let multiple = e.floordiv(place, e.int(p.stride));
            *i = e.add(e.mul(multiple, e.int(a.phases)), phase);
        }
        let mask = in_bounds(&mut body, &checks);
        let v = load_or_zero(&mut body, sum, &at, mask);
        // Places that no tap reaches hold the bias alone.
        value = Some(match (value, mask) {
            (Some(other), Some(mask)) => body.select(mask, v, other),
            _ => v,
        });
    }
    let Some(value) = value else {
        return Err(Error::internal("a kernel without taps"));
    };
    let value = add_bias(&mut body, value, bias, outer[spatial - 1]);
    Ok(lw.store_new(body, value, x.dtype, &sizes))
}

/// The places of the result that have these phases along each dimension, with `multiples * phases` places each.
fn product<'g>(
    lw: &mut Lower<'g>,
    conv: &Conv,
    along: &[Phases],
    part: &[Alike],
    (source, w): (&Tensor, &Tensor),
    dtype: DType,
    bias: Option<&Tensor>,
) -> Result<Tensor> {
    let e = lw.exprs;
    let mut p = Product::new(e);
    let g = p.axis(Role::Batch, conv.groups);
    let image = conv.batch.map(|n| p.axis(Role::M, n));
    let at: Vec<Expr> = (along.iter())
        .map(|d| p.axis(Role::M, d.multiples))
        .collect();
    let co = p.axis(Role::N, conv.group_out);
    let mut axes = |role: Role, of: fn(&Alike) -> i64| -> Vec<Expr> {
        part.iter().map(|a| p.axis(role, e.int(of(a)))).collect()
    };
    let (phases, taps) = (axes(Role::N, |a| a.phases), axes(Role::K, |a| a.taps));
    let ci = p.axis(Role::K, conv.group_in);
    let in_channel = e.add(e.mul(g, conv.group_in), ci);
    let out_channel = e.add(e.mul(g, conv.group_out), co);

    let mut from: Vec<Expr> = image.into_iter().collect();
    let channel = from.len();
    let (mut index, mut weight) = (from.clone(), vec![in_channel, co]);
    from.push(in_channel);
    index.push(out_channel);
    let mut sizes = conv.sizes(e);
    for (d, (p, a)) in along.iter().zip(part).enumerate() {
        // The last of most taps reads what is first in the padded input.
        let back = e.sub(e.int(p.most_taps() - 1), taps[d]);
        from.push(e.add(at[d], e.mul(back, e.int(p.step))));
        let tap = e.add(phases[d], e.mul(taps[d], e.int(p.stride)));
        weight.push(e.add(tap, e.int(a.from)));
        index.push(e.add(e.mul(at[d], e.int(a.phases)), phases[d]));
        sizes[channel + 1 + d] = e.mul(p.multiples, e.int(a.phases));
    }
    let target = Target {
        dtype,
        sizes,
        index,
    };
    p.lower(lw, (source, from), (w, weight), target, |body, sum, at| {
        Ok(add_bias(body, sum, bias, at[channel]))
    })
}
