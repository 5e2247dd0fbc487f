//! Sampling of images and volumes at a grid of points, and its gradients.
//!
//! Along each dimension a point reads a few *taps* of the image, each with a weight; what it reads of the image are all
//! combinations of taps. The gradient of a point has, along one dimension, the taps' slopes in place of their weights.
//!
//! ```text
//! grid x in -1..1  ->  position p in the image      centres (align_corners) or edges are -1 and 1
//! p  ->  p inside                                   zeros: nothing; border: clip; reflection: fold
//! p  ->  taps                                       1 nearest, 2 linear, 4 cubic
//! taps of all dimensions  ->  corners               up to 8 (linear volumes) or 16 (cubic images)
//! ```
//!
//! Each step returns, next to the position, its derivative by the grid's coordinate (*growth*), so
//! that slopes of taps follow from the chain rule. Positions depend on data, so taps are indirect
//! indices; they need no check, because a tap outside the image is masked instead.
//!
//! Everything up to the taps is independent of the channel. Loop interchange in stage tile can run
//! channels inside the vector loop, so that it is computed once a pixel.

use crate::ops::index::scatter::filled;
use crate::ops::norm::backward::mask;
use crate::{BodyBuilder, Call, Lower, Meta, Processor, Route, Row, Tensor, meta};
use inrush_base::{DType, Error, Result, Scalar};
use inrush_expr::Expr;
use inrush_graph::Type;
use inrush_loops::{ReduceOp, ScalarOp as S, StmtId, StoreMode};

/// The value of a point outside the image.
/// Values of `padding_mode`.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Outside {
    /// Taps outside read 0.
    Zeros,
    /// Positions are moved to the nearest pixel.
    Border,
    /// Positions are mirrored at the ends until they are inside.
    Reflection,
}

/// Values of `interpolation_mode`. Cubic is for images only, as in eager.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Interpolation {
    Linear,
    Nearest,
    Cubic,
}

/// The constants of a call.
#[derive(Copy, Clone)]
struct Mode {
    interpolation: Interpolation,
    outside: Outside,
    /// True if -1 and 1 are the centres of the outermost pixels, false if their outer edges.
    align_corners: bool,
}

impl Mode {
    /// Fails for numbers that are no mode, and for cubic interpolation of volumes.
    fn of(call: &Call, spatial: usize) -> Result<Mode> {
        Ok(Mode {
            outside: match call.const_int("padding_mode")? {
                0 => Outside::Zeros,
                1 => Outside::Border,
                2 => Outside::Reflection,
                _ => return Err(call.unsupported("padding_mode", "unknown mode")),
            },
            interpolation: match call.const_int("interpolation_mode")? {
                0 => Interpolation::Linear,
                1 => Interpolation::Nearest,
                2 if spatial == 2 => Interpolation::Cubic,
                _ => return Err(call.unsupported("interpolation_mode", "unknown mode")),
            },
            align_corners: call.bool("align_corners")?,
        })
    }
}

/// A place along one dimension that a point reads.
#[derive(Copy, Clone)]
struct Tap {
    /// Indirect index into the dimension; may be read where `inside` is true only.
    index: Expr,
    /// True if the tap is within the image.
    inside: StmtId,
    /// Nothing where it is 1.
    weight: Option<StmtId>,
    /// How the weight grows with the grid's coordinate; nothing where it does not.
    slope: Option<StmtId>,
}

/// Arithmetic on positions along one dimension of a grid.
struct Line<'b, 'g> {
    body: &'b mut BodyBuilder<'g>,
    /// Elements of the image along this dimension.
    size: Expr,
    mode: Mode,
}

impl<'g> Line<'_, 'g> {
    /// A constant of the dtype of `like`.
    fn c(&mut self, like: StmtId, value: f64) -> StmtId {
        let dtype = self.body.dtype(like);
        self.body.float(value, dtype)
    }

    /// `x op c`.
    fn by(&mut self, op: S, x: StmtId, c: f64) -> StmtId {
        let c = self.c(x, c);
        self.body.op(op, &[x, c])
    }

    fn op(&mut self, op: S, a: StmtId, b: StmtId) -> StmtId {
        self.body.op(op, &[a, b])
    }

    /// The size plus `c`, as a float like `like`.
    fn extent(&mut self, like: StmtId, c: i64) -> StmtId {
        let e = self.body.exprs;
        let v = self.body.index_value(e.add(self.size, e.int(c)));
        let dtype = self.body.dtype(like);
        self.body.cast(v, dtype)
    }

    /// -1 to 1 as a position in the image, and how it grows.
    /// `align_corners`: `(x + 1) / 2 * (size - 1)`; otherwise `((x + 1) * size - 1) / 2`.
    fn position(&mut self, x: StmtId) -> (StmtId, StmtId) {
        let moved = self.by(S::Add, x, 1.0);
        if self.mode.align_corners {
            let half = self.by(S::Mul, moved, 0.5);
            let last = self.extent(x, -1);
            return (self.op(S::Mul, half, last), self.by(S::Mul, last, 0.5));
        }
        let size = self.extent(x, 0);
        let scaled = self.op(S::Mul, moved, size);
        let scaled = self.by(S::Sub, scaled, 1.0);
        (self.by(S::Mul, scaled, 0.5), self.by(S::Mul, size, 0.5))
    }

    /// Within the image; at its ends and beyond nothing grows.
    fn clip(&mut self, x: StmtId, growth: StmtId) -> (StmtId, StmtId) {
        let zero = self.c(x, 0.0);
        let last = self.extent(x, -1);
        let v = self.op(S::Maximum, x, zero);
        let v = self.op(S::Minimum, v, last);
        let (above, below) = (self.op(S::Gt, x, zero), self.op(S::Lt, x, last));
        let within = self.op(S::And, above, below);
        (v, self.body.select(within, growth, zero))
    }

    /// Folds a position back at the image's ends: between centres with `align_corners`, else between edges.
    fn reflect(&mut self, x: StmtId, growth: StmtId) -> (StmtId, StmtId) {
        let (low, span) = if self.mode.align_corners {
            (0.0, self.extent(x, -1))
        } else {
            (-0.5, self.extent(x, 0))
        };
        let zero = self.c(x, 0.0);
        let signed = self.by(S::Sub, x, low);
        let from = self.body.op(S::Abs, &[signed]);
        // With a single element there is nothing to fold over.
        let some = self.op(S::Gt, span, zero);
        let one = self.c(x, 1.0);
        let period = self.body.select(some, span, one);
        let quotient = self.op(S::Div, from, period);
        // Number of folds: an even one leaves the direction as it is.
        let flips = self.body.op(S::Floor, &[quotient]);
        let whole = self.op(S::Mul, flips, period);
        let rest = self.op(S::Sub, from, whole);
        let two = self.c(x, 2.0);
        let odd = self.op(S::Remainder, flips, two);
        let even = self.op(S::Eq, odd, zero);
        let back = self.op(S::Sub, period, rest);
        let folded = self.body.select(even, rest, back);
        let folded = self.body.select(some, folded, zero);
        // Before the image it runs the other way, and with every fold it turns.
        let before = self.op(S::Lt, signed, zero);
        let along = self.op(S::Xor, even, before);
        let other = self.body.op(S::Neg, &[growth]);
        let growth = self.body.select(along, growth, other);
        let growth = self.body.select(some, growth, zero);
        // Between edges it may still be half a pixel outside of the centres, so the caller clips.
        (self.by(S::Add, folded, low), growth)
    }

    /// Applies the policy for points outside the image.
    fn outside(&mut self, x: StmtId, growth: StmtId) -> (StmtId, StmtId) {
        match self.mode.outside {
            Outside::Zeros => (x, growth),
            Outside::Border => self.clip(x, growth),
            Outside::Reflection => {
                let (folded, growth) = self.reflect(x, growth);
                self.clip(folded, growth)
            }
        }
    }

    /// The tap at an integral position; outside of the image, or of a position that is no number, there is none.
    fn tap(&mut self, at: StmtId, weight: Option<StmtId>, slope: Option<StmtId>) -> Tap {
        let zero = self.c(at, 0.0);
        let last = self.extent(at, -1);
        let (a, b) = (self.op(S::Ge, at, zero), self.op(S::Le, at, last));
        let inside = self.op(S::And, a, b);
        let v = self.body.cast(at, DType::I64);
        let index = (self.body).indirect(v, self.size, false, false, Some(inside));
        Tap {
            index,
            inside,
            weight,
            slope,
        }
    }

    /// Returns the taps that the grid's coordinate `x` reads.
    /// For the nearest mode a tie goes to the even pixel, as in eager.
    fn taps(&mut self, x: StmtId) -> Vec<Tap> {
        let (p, growth) = self.position(x);
        if self.mode.interpolation == Interpolation::Cubic {
            return self.cubic(p, growth);
        }
        let (p, growth) = self.outside(p, growth);
        if self.mode.interpolation == Interpolation::Nearest {
            let at = self.body.op(S::Round, &[p]);
            return vec![self.tap(at, None, None)];
        }
        let low = self.body.op(S::Floor, &[p]);
        let w1 = self.op(S::Sub, p, low);
        let one = self.c(p, 1.0);
        let w0 = self.op(S::Sub, one, w1);
        let high = self.by(S::Add, low, 1.0);
        let falling = self.body.op(S::Neg, &[growth]);
        // The two weights sum to 1, so their slopes are opposite.
        vec![
            self.tap(low, Some(w0), Some(falling)),
            self.tap(high, Some(w1), Some(growth)),
        ]
    }

    /// Four taps by the convolution with `A = -0.75`; it is they that are folded back, not the point.
    fn cubic(&mut self, p: StmtId, growth: StmtId) -> Vec<Tap> {
        const A: f64 = -0.75;
        // Weights of taps 0 to 1 and 1 to 2 away, by powers of the distance, and their derivatives.
        const NEAR: &[f64] = &[A + 2.0, -(A + 3.0), 0.0, 1.0];
        const FAR: &[f64] = &[A, -5.0 * A, 8.0 * A, -4.0 * A];
        let low = self.body.op(S::Floor, &[p]);
        let t = self.op(S::Sub, p, low);
        let mut taps = Vec::new();
        for (step, powers) in [(-1, FAR), (0, NEAR), (1, NEAR), (2, FAR)] {
            // Distances run against the position behind it.
            let (distance, sign) = match step {
                -1 | 0 => (self.by(S::Sub, t, step as f64), 1.0),
                _ => {
                    let c = self.c(t, step as f64);
                    (self.op(S::Sub, c, t), -1.0)
                }
            };
            let weight = self.polynomial(distance, powers);
            let [a, b, c, _] = *powers else { continue };
            let slope = self.polynomial(distance, &[3.0 * a * sign, 2.0 * b * sign, c * sign]);
            let slope = self.op(S::Mul, slope, growth);
            let at = self.by(S::Add, low, step as f64);
            let (at, _) = self.outside(at, growth);
            taps.push(self.tap(at, Some(weight), Some(slope)));
        }
        taps
    }

    /// By Horner's rule, highest power first.
    fn polynomial(&mut self, x: StmtId, powers: &[f64]) -> StmtId {
        let mut sum = self.c(x, powers[0]);
        for c in &powers[1..] {
            let product = self.op(S::Mul, sum, x);
            sum = self.by(S::Add, product, *c);
        }
        sum
    }
}

/// The taps of each dimension for the point at `at` (batch, then the grid's points) of the grid.
fn taps<'g>(
    body: &mut BodyBuilder<'g>,
    grid: &Tensor,
    at: &[Expr],
    spatial: &[Expr],
    mode: Mode,
) -> Vec<Vec<Tap>> {
    let mut all = Vec::new();
    for (d, size) in spatial.iter().enumerate() {
        // The grid's components name the last dimension first.
        let component = body.exprs.int((spatial.len() - 1 - d) as i64);
        let v = body.load(grid, &[at, &[component]].concat());
        let mut line = Line {
            body,
            size: *size,
            mode,
        };
        all.push(line.taps(v));
    }
    all
}

/// All combinations of one tap of each dimension, the last dimension running fastest.
fn corners(taps: &[Vec<Tap>]) -> Vec<Vec<Tap>> {
    taps.iter().fold(vec![Vec::new()], |corners, taps| {
        corners
            .iter()
            .flat_map(|c| taps.iter().map(|t| [c.as_slice(), &[*t]].concat()))
            .collect()
    })
}

/// Returns a mask that is true if all of a corner's taps are in the image.
fn inside(body: &mut BodyBuilder, corner: &[Tap]) -> StmtId {
    let first = corner[0].inside;
    (corner[1..].iter()).fold(first, |m, t| body.op(S::And, &[m, t.inside]))
}

/// `v` times all factors there are.
fn times(body: &mut BodyBuilder, v: StmtId, factors: &[Option<StmtId>]) -> StmtId {
    let product = (factors.iter().flatten().copied()).reduce(|a, b| body.op(S::Mul, &[a, b]));
    product.map_or(v, |w| body.op(S::Mul, &[v, w]))
}

/// Batch and spatial dimensions of the grid with the channels of the input.
/// Fails unless the grid has as many dimensions as the input.
fn grid_sizes(x: &[Expr], grid: &[Expr]) -> Result<Vec<Expr>> {
    match (x, grid) {
        ([n, c, _, _], [_, points @ .., _]) | ([n, c, _, _, _], [_, points @ .., _])
            if points.len() + 2 == x.len() =>
        {
            Ok([&[*n, *c], points].concat())
        }
        _ => Err(Error::input(
            "a grid samples images of two dimensions, or volumes of three, by as many components",
        )),
    }
}

/// Returns the sizes of what a grid samples, or why it does not fit the input.
fn checked_sizes(call: &Call) -> Result<Vec<Expr>> {
    let (x, grid) = (call.tensor("input")?, call.tensor("grid")?);
    let sizes = grid_sizes(&x.sizes, &grid.sizes)?;
    let spatial = &x.sizes[2..];
    let name = call.op.row.name;
    let other = match spatial.len() {
        2 => "_3d",
        _ => "_2d",
    };
    if name.contains(other) {
        return Err(Error::input(format!(
            "{name} does not take {} spatial dimensions",
            spatial.len()
        )));
    }
    Mode::of(call, spatial.len())?;
    let e = call.exprs;
    call.same(x.sizes[0], grid.sizes[0], "the batch of the grid")?;
    let components = e.int(spatial.len() as i64);
    let last = grid.sizes[grid.sizes.len() - 1];
    call.same(last, components, "the components of the grid")?;
    for size in spatial {
        call.at_most(e.int(1), *size, "the extent of what is sampled")?;
    }
    Ok(sizes)
}

/// Samples `input[n, c, y, x]` at the points of `grid[n, i, j, (x, y)]`; volumes alike.
fn sample<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    let (x, grid) = (lw.arg(call, "input")?, lw.arg(call, "grid")?);
    let sizes = grid_sizes(&x.sizes, &grid.sizes)?;
    let mode = Mode::of(call, sizes.len() - 2)?;
    let mut body = lw.body(&sizes);
    let outer = body.outer();
    let at = [&outer[..1], &outer[2..]].concat();
    let taps = taps(&mut body, &grid, &at, &x.sizes[2..], mode);
    let mut sum = None;
    for corner in corners(&taps) {
        let mask = inside(&mut body, &corner);
        let mut at = outer[..2].to_vec();
        at.extend(corner.iter().map(|t| t.index));
        let v = body.load_masked(&x, &at, mask, Scalar::Int(0));
        let weights: Vec<_> = corner.iter().map(|t| t.weight).collect();
        let v = times(&mut body, v, &weights);
        sum = Some(body.add_to(sum, v));
    }
    let v = sum.ok_or_else(|| Error::internal("no corners"))?;
    Ok(vec![lw.store_new(body, v, x.dtype, &sizes)])
}

/// The gradients of the input, to which points add what they read of it, and of the grid, summed over channels.
fn sample_backward<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    let (x, grid) = (lw.arg(call, "input")?, lw.arg(call, "grid")?);
    let grad = lw.arg(call, "grad_output")?;
    let mode = Mode::of(call, x.sizes.len().saturating_sub(2))?;
    let sizes = grid_sizes(&x.sizes, &grid.sizes)?;
    let to_input = gradient_of_input(lw, &x, &grid, &grad, &sizes, mode);
    let to_grid = match mode.interpolation {
        Interpolation::Nearest => filled(lw, &grid.sizes, grid.dtype, Scalar::Int(0)),
        _ => gradient_of_grid(lw, &x, &grid, &grad, mode)?,
    };
    Ok(vec![to_input, to_grid])
}

/// Scatters: every corner adds `grad * weights` to the pixel that it read.
fn gradient_of_input<'g>(
    lw: &mut Lower<'g>,
    x: &Tensor,
    grid: &Tensor,
    grad: &Tensor,
    sizes: &[Expr],
    mode: Mode,
) -> Tensor {
    let out = filled(lw, &x.sizes, x.dtype, Scalar::Int(0));
    let count = corners_of(mode, sizes.len() - 2);
    // What several corners add to one element is added one after the other, by one body for each corner. On CPUs all corners
    // share a body, which finds their places and weights once.
    let each = match lw.processor {
        Processor::Cpu => count,
        _ => 1,
    };
    for first in (0..count).step_by(each) {
        let mut body = lw.body(sizes);
        let outer = body.outer();
        let at = [&outer[..1], &outer[2..]].concat();
        let taps = taps(&mut body, grid, &at, &x.sizes[2..], mode);
        let g = body.load(grad, &outer);
        for corner in &corners(&taps)[first..first + each] {
            let mask = inside(&mut body, corner);
            let weights: Vec<_> = corner.iter().map(|t| t.weight).collect();
            let v = times(&mut body, g, &weights);
            let mut to = outer[..2].to_vec();
            to.extend(corner.iter().map(|t| t.index));
            let coords = out.at(lw.exprs, &to);
            body.store_with(out.buf, &coords, v, StoreMode::Add, Some(mask));
        }
        lw.push(body);
    }
    out
}

/// How many corners a point has.
fn corners_of(mode: Mode, spatial: usize) -> usize {
    let taps: usize = match mode.interpolation {
        Interpolation::Nearest => 1,
        Interpolation::Linear => 2,
        Interpolation::Cubic => 4,
    };
    taps.pow(spatial as u32)
}

/// Gathers: for each component, sum over channels and corners of `grad * pixel * weights`, with the
/// slope in place of the weight of that component.
fn gradient_of_grid<'g>(
    lw: &mut Lower<'g>,
    x: &Tensor,
    grid: &Tensor,
    grad: &Tensor,
    mode: Mode,
) -> Result<Tensor> {
    let Some((_, points)) = grid.sizes.split_last() else {
        return Err(Error::internal("a grid without components"));
    };
    let out = lw.temp(grid.dtype, &grid.sizes);
    let mut body = lw.body(points);
    let point = body.outer();
    let channel = body.reduce_axes(&x.sizes[1..2])[0];
    let spatial = &x.sizes[2..];
    let taps = taps(&mut body, grid, &point, spatial, mode);
    let at = [&point[..1], &[channel], &point[1..]].concat();
    let g = body.load(grad, &at);
    // All components at once: they read the same elements.
    let mut sums: Vec<Option<StmtId>> = vec![None; spatial.len()];
    for corner in corners(&taps) {
        let mask = inside(&mut body, &corner);
        let mut at = vec![point[0], channel];
        at.extend(corner.iter().map(|t| t.index));
        let v = body.load_masked(x, &at, mask, Scalar::Int(0));
        for (d, sum) in sums.iter_mut().enumerate() {
            let own = |(k, t): (usize, &Tap)| if k == d { t.slope } else { t.weight };
            let factors: Vec<_> = corner.iter().enumerate().map(own).collect();
            let v = times(&mut body, v, &factors);
            *sum = Some(body.add_to(*sum, v));
        }
    }
    for (d, sum) in sums.into_iter().enumerate() {
        let v = sum.ok_or_else(|| Error::internal("no corners"))?;
        let v = body.op(S::Mul, &[v, g]);
        let v = body.reduce(ReduceOp::Sum, v);
        let v = body.cast_for_store(v, grid.dtype);
        // The grid's components name the last dimension first.
        let component = body.exprs.int((spatial.len() - 1 - d) as i64);
        body.store(out.buf, &[point.as_slice(), &[component]].concat(), v);
    }
    lw.push(body);
    Ok(out)
}

/// The type of what a grid samples.
fn sample_meta(call: &Call) -> Result<Vec<Type>> {
    meta::one(
        call.exprs,
        call.tensor("input")?.dtype,
        checked_sizes(call)?,
    )
}

/// Both gradients have the types of what they are gradients of; the mask changes no type.
fn backward_meta(call: &Call) -> Result<Vec<Type>> {
    let grad = &call.tensor("grad_output")?.sizes;
    call.same_sizes(grad, &checked_sizes(call)?, "the gradient")?;
    mask(call, 2)?;
    let of = |name: &str| -> Result<Type> {
        let t = call.tensor(name)?;
        Ok(meta::tensor(call.exprs, t.dtype, t.sizes.clone()))
    };
    Ok(vec![of("input")?, of("grid")?])
}

const SAMPLE: &str = "(Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool align_corners) -> Tensor";
const BACKWARD: &str = "(Tensor grad_output, Tensor input, Tensor grid, int interpolation_mode, int padding_mode, bool align_corners, bool[2] output_mask) -> (Tensor, Tensor)";

const fn forward(name: &'static str, example: &'static str) -> Row {
    Row {
        name,
        schema: SAMPLE,
        meta: Meta::Fn(sample_meta),
        route: Route::Lower(sample),
        example,
        props: &[],
    }
}

const fn backward(name: &'static str, example: &'static str) -> Row {
    Row {
        name,
        schema: BACKWARD,
        meta: Meta::Fn(backward_meta),
        route: Route::Lower(sample_backward),
        example,
        props: &[],
    }
}

pub const ROWS: &[Row] = &[
    forward(
        "aten.grid_sampler.default",
        "(f32[1,2,4,5], f32[1,3,3,2]{-1.5:1.5}, 0, 0, false)",
    ),
    forward(
        "aten.grid_sampler_2d.default",
        "(f32[1,2,4,5], f32[1,3,3,2]{-2.5:2.5}, 2, 2, true)",
    ),
    forward(
        "aten.grid_sampler_3d.default",
        "(f32[1,2,3,4,5], f32[1,3,2,3,3]{-2.5:2.5}, 0, 2, false)",
    ),
    backward(
        "aten.grid_sampler_2d_backward.default",
        "(f32[2,3,3,4], f32[2,3,4,5], f32[2,3,4,2]{-1.6:1.6}, 2, 2, false, [true,true])",
    ),
    backward(
        "aten.grid_sampler_3d_backward.default",
        "(f32[1,2,3,2,3], f32[1,2,3,4,5], f32[1,3,2,3,3]{-1.6:1.6}, 0, 2, false, [true,true])",
    ),
];
