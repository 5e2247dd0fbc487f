//! Random numbers: what an element is, given its random bits. Where seeds and streams come from says [`crate::random`].
//!
//! Two rows make loops: `inrush.uniform` and `inrush.random_integers`. All distributions are
//! decompositions over them:
//!
//! ```text
//! word     = Philox4x32-10(key = seed, counter = position, word number = stream + k)
//! uniform  = (top bits of a word) * 2^-digits                    in [0, 1)
//! normal   = sqrt(-2 log(1 - u)) cos(2 pi v)                     Box and Muller
//! ```
//!
//! A word is a pure function of seed, position and stream, so a draw is a pointwise operation: it
//! fuses with what uses it, and may be computed twice. Numbers differ from eager's for the same
//! seed; their distribution does not. A row without a seed refuses ([`crate::random`]).

use crate::ops::decomposed;
use crate::props::{Prop, SortAxis};
use crate::{Args, BodyBuilder, Builder, Call, Lower, Meta, Route, Row, Tensor, meta};
use inrush_base::{DType, Error, Result, Scalar};
use inrush_expr::Expr;
use inrush_graph::{Arg, Type, ValueId};
use inrush_loops::{ScalarOp as S, StmtId};

/// The random words of one element of a body over the result's sizes.
struct Words {
    /// Lower and upper half of the seed, `i32`.
    key: [StmtId; 2],
    /// Lower and upper half of the row-major position in the result, `i32`.
    counter: [StmtId; 2],
    /// First word number of the call.
    stream: i64,
}

impl Words {
    /// The position is one of the logical result, not of memory, so that layouts change no number.
    fn new<'g>(lw: &Lower<'g>, body: &mut BodyBuilder<'g>, call: &Call<'g>) -> Result<Words> {
        let seed = lw.arg(call, "seed")?;
        let e = body.exprs;
        let seed = body.load(&seed, &[e.int(0)]);
        let half = body.constant(Scalar::Int(32), DType::I64);
        let upper = body.op(S::Shr, &[seed, half]);
        let key = [body.cast(seed, DType::I32), body.cast(upper, DType::I32)];
        let outer = body.outer();
        let sizes = &call.out(0)?.sizes;
        let strides = e.contiguous_strides(sizes);
        let at = e.sum(outer.iter().zip(&strides).map(|(i, s)| e.mul(*i, *s)));
        // The upper half of a position is the constant 0 for most tensors.
        let few = e.prove_le(e.product(sizes.iter().copied()), e.int(1 << 32));
        let beyond = match few {
            true => body.constant(Scalar::Int(0), DType::I32),
            false => body.index_as(e.floordiv(at, e.int(1 << 32)), DType::I32),
        };
        let counter = [body.index_as(at, DType::I32), beyond];
        let stream = call.const_int("stream")?;
        Ok(Words {
            key,
            counter,
            stream,
        })
    }

    /// Word number `k`, as an `i32`.
    /// Words `4 n` to `4 n + 3` come of one block of the generator.
    fn word(&self, body: &mut BodyBuilder, k: i64) -> StmtId {
        let stream = body.constant(Scalar::Int(self.stream + k), DType::I32);
        let ([a, b], [c, d]) = (self.key, self.counter);
        body.op(S::Philox, &[a, b, c, d, stream])
    }

    /// The first `bits` bits of word `k` as an integer of dtype `to` that is not negative.
    /// The top bits are taken; the shift is arithmetic, so the sign is masked off.
    fn bits(&self, body: &mut BodyBuilder, k: i64, bits: u32, to: DType) -> StmtId {
        let word = self.word(body, k);
        // An `i32` word has a sign; as `i64` it has room for all bits without one.
        if bits == 32 {
            let wide = body.cast(word, DType::I64);
            let mask = body.constant(Scalar::Int(u32::MAX as i64), DType::I64);
            return body.op(S::And, &[wide, mask]);
        }
        let by = body.constant(Scalar::Int(32 - bits as i64), DType::I32);
        let mask = body.constant(Scalar::Int((1 << bits) - 1), DType::I32);
        let shifted = body.op(S::Shr, &[word, by]);
        let number = body.op(S::And, &[shifted, mask]);
        body.cast(number, to)
    }
}

/// Writes multiples of `2^-digits` in `[0, 1)`, all equally likely. Up to 24 digits are exact in
/// `f32`; 53 digits of `f64` take 27 bits of one word and 26 of the next.
fn uniform_lowering<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    let t = call.out(0)?;
    let mut body = lw.body(&t.sizes);
    let words = Words::new(lw, &mut body, call)?;
    let dtype = t.dtype.compute();
    let digits = u32::try_from(call.const_int("digits")?).unwrap_or(0);
    let value = match (digits, dtype) {
        (1..=24, _) => {
            let n = words.bits(&mut body, 0, digits, dtype);
            let unit = body.float(0.5f64.powi(digits as i32), dtype);
            body.op(S::Mul, &[n, unit])
        }
        (53, DType::F64) => {
            let (high, low) = (
                words.bits(&mut body, 0, 27, dtype),
                words.bits(&mut body, 1, 26, dtype),
            );
            let shift = body.float((1u64 << 26) as f64, dtype);
            let n = body.op(S::Fma, &[high, shift, low]);
            let unit = body.float(0.5f64.powi(53), dtype);
            body.op(S::Mul, &[n, unit])
        }
        _ => return Err(call.unsupported("digits", "1 to 24, or 53 of f64")),
    };
    Ok(vec![lw.store_new(body, value, t.dtype, &t.sizes)])
}

/// `f32` unless the call asks for another dtype.
fn uniform_meta(c: &Call) -> Result<Vec<Type>> {
    let dtype = c.dtype("dtype")?.unwrap_or(DType::F32);
    meta::one(c.exprs, dtype, c.ints("size")?.to_vec())
}

/// Integers from `low` on, below `high`. A range below 2^31 takes the upper half of the product with 32 bits, a larger one
/// the remainder of 63 bits: as even as 32 bits can be, which is what eager gives too.
/// Of `n` numbers made from `b` random bits some are likelier than others by about `n / 2^b`.
fn integers_lowering<'g>(lw: &mut Lower<'g>, call: &Call<'g>) -> Result<Vec<Tensor>> {
    let t = call.out(0)?;
    let (low, high) = (call.int("low")?, call.int("high")?);
    let mut body = lw.body(&t.sizes);
    let words = Words::new(lw, &mut body, call)?;
    let e = body.exprs;
    let range = e.sub(high, low);
    let count = body.index_value(range);
    // Ends may be symbolic: they are values, not constants.
    let base = body.index_value(low);
    let first = words.bits(&mut body, 0, 32, DType::I64);
    let value = if e.prove_lt(range, e.int(1 << 31)) {
        let product = body.op(S::Mul, &[first, count]);
        let half = body.constant(Scalar::Int(32), DType::I64);
        body.op(S::Shr, &[product, half])
    } else {
        let second = words.bits(&mut body, 1, 32, DType::I64);
        let by = body.constant(Scalar::Int(31), DType::I64);
        let upper = body.op(S::Shl, &[first, by]);
        let both = body.op(S::Xor, &[upper, second]);
        let mask = body.constant(Scalar::Int(i64::MAX), DType::I64);
        let both = body.op(S::And, &[both, mask]);
        body.op(S::Remainder, &[both, count])
    };
    let value = body.op(S::Add, &[value, base]);
    Ok(vec![lw.store_new(body, value, DType::I64, &t.sizes)])
}

/// Always `i64`; callers convert.
fn integers_meta(c: &Call) -> Result<Vec<Type>> {
    meta::one(c.exprs, DType::I64, c.ints("size")?.to_vec())
}

/// Draws for one operator. Every draw takes its own words of the operator's stream.
struct Draw {
    /// A tensor of one `i64`.
    seed: ValueId,
    /// The next unused word number.
    stream: i64,
}

/// Streams of operators are eight words apart ([`crate::random`]), so at most four draws may be
/// made.
impl Draw {
    fn new(args: &Args) -> Result<Draw> {
        if args.op.schema().position("generator").is_some() && args.given("generator") {
            return Err(args.unsupported("generator", "a generator's state is PyTorch's"));
        }
        Ok(Draw {
            seed: args
                .opt_value("seed")?
                .ok_or_else(|| Error::unsupported("random numbers without a seed"))?,
            stream: args.const_int("stream")?,
        })
    }

    /// Uniform numbers from 0 on, below 1 even when they are rounded to `dtype`; of its compute dtype.
    /// The digits are those of `dtype`: with more, the greatest numbers would round up to 1.
    fn uniform(&mut self, b: &mut Builder, sizes: &[Expr], dtype: DType) -> Result<ValueId> {
        let digits = match dtype {
            DType::F64 => 53,
            DType::F16 => 11,
            DType::BF16 => 8,
            _ => 24,
        };
        let stream = b.int(self.stream);
        self.stream += 2;
        b.call(
            "inrush.uniform.default",
            &[
                self.seed.into(),
                stream,
                sizes.to_vec().into(),
                dtype.compute().into(),
                b.int(digits),
            ],
        )
    }

    /// Uniform numbers of full precision above 0, up to 1.
    /// One minus a uniform number: its logarithm is finite.
    fn above_zero(&mut self, b: &mut Builder, sizes: &[Expr], dtype: DType) -> Result<ValueId> {
        let u = self.uniform(b, sizes, dtype.compute())?;
        b.call("aten.rsub.Scalar", &[u.into(), Arg::Float(1.0)])
    }

    /// Numbers of mean 0 and variance 1, by Box and Muller; of the compute dtype.
    /// The method gives a second normal number, by the sine. It is not used: elements would have to
    /// share their draws.
    fn normal(&mut self, b: &mut Builder, sizes: &[Expr], dtype: DType) -> Result<ValueId> {
        let u = self.above_zero(b, sizes, dtype)?;
        let log = b.unary("aten.log.default", u)?;
        let square = b.scale(log, -2.0)?;
        let radius = b.unary("aten.sqrt.default", square)?;
        let v = self.uniform(b, sizes, dtype.compute())?;
        let angle = b.scale(v, std::f64::consts::TAU)?;
        let cos = b.unary("aten.cos.default", angle)?;
        b.mul(radius, cos)
    }

    /// `i64` numbers from `low` on, below `high`.
    fn integers(
        &mut self,
        b: &mut Builder,
        sizes: &[Expr],
        low: Expr,
        high: Expr,
    ) -> Result<ValueId> {
        let stream = b.int(self.stream);
        self.stream += 2;
        b.call(
            "inrush.random_integers.default",
            &[
                self.seed.into(),
                stream,
                sizes.to_vec().into(),
                low.into(),
                high.into(),
            ],
        )
    }

    /// True with probability `p`.
    fn bernoulli(&mut self, b: &mut Builder, sizes: &[Expr], p: f64) -> Result<ValueId> {
        let u = self.uniform(b, sizes, DType::F32)?;
        b.call("aten.lt.Scalar", &[u.into(), Arg::Float(p)])
    }
}

/// Sizes and dtype of the result: those of `self`, or those asked for.
fn wanted(b: &Builder, args: &Args, default: Option<DType>) -> Result<(Vec<Expr>, DType)> {
    let schema = args.op.schema();
    let asked = match schema.position("dtype") {
        Some(_) => args.dtype("dtype")?,
        None => None,
    };
    if schema.position("size").is_some() {
        let dtype = asked.or(default).unwrap_or(DType::F32);
        return Ok((args.ints("size")?.to_vec(), dtype));
    }
    let t = b.tensor(args.value("self")?)?;
    Ok((t.sizes, asked.unwrap_or(t.dtype)))
}

/// Refuses dtypes that are no floats.
fn floats(dtype: DType) -> Result<()> {
    match dtype.is_float() {
        true => Ok(()),
        false => Err(Error::unsupported(format!("random numbers of {dtype}"))),
    }
}

/// One result of the given dtype.
fn done(b: &mut Builder, v: ValueId, dtype: DType) -> Result<Vec<ValueId>> {
    Ok(vec![b.cast(v, dtype)?])
}

/// Uniform numbers in `[0, 1)`.
fn rand(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (sizes, dtype) = wanted(b, args, None)?;
    floats(dtype)?;
    let u = Draw::new(args)?.uniform(b, &sizes, dtype)?;
    done(b, u, dtype)
}

/// Normal numbers of mean 0 and variance 1.
fn randn(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (sizes, dtype) = wanted(b, args, None)?;
    floats(dtype)?;
    let n = Draw::new(args)?.normal(b, &sizes, dtype)?;
    done(b, n, dtype)
}

/// Computed as `i64` and converted; the range must not be known to be empty.
fn randint(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (sizes, dtype) = wanted(b, args, Some(DType::I64))?;
    let low = match args.op.schema().position("low") {
        Some(_) => args.int("low")?,
        None => b.exprs.int(0),
    };
    let high = args.int("high")?;
    if b.exprs.prove_le(high, low) {
        return Err(Error::input("the range from `low` to `high` is empty"));
    }
    let n = Draw::new(args)?.integers(b, &sizes, low, high)?;
    done(b, n, dtype)
}

/// The order of random keys.
/// Keys have 63 bits, so that equal ones are unlikely for any `n` that fits into memory.
fn randperm(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (n, zero) = (args.int("n")?, b.exprs.int(0));
    let most = b.exprs.int(i64::MAX);
    let keys = Draw::new(args)?.integers(b, &[n], zero, most)?;
    let order = b.call("aten.argsort.default", &[keys.into()])?;
    done(b, order, args.dtype("dtype")?.unwrap_or(DType::I64))
}

/// 1 with probability `p`, a number.
fn bernoulli_number(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let t = b.tensor(args.value("self")?)?;
    let p = args.float("p")?;
    if !(0.0..=1.0).contains(&p) {
        return Err(Error::input(format!("{p} is no probability")));
    }
    let hit = Draw::new(args)?.bernoulli(b, &t.sizes, p)?;
    done(b, hit, t.dtype)
}

/// 1 with the probabilities that a tensor gives.
fn bernoulli(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let t = b.tensor(args.value("self")?)?;
    let p = match args.op.schema().position("p") {
        Some(_) => args.value("p")?,
        None => args.value("self")?,
    };
    let dtype = b.dtype(p)?;
    floats(dtype)?;
    let u = Draw::new(args)?.uniform(b, &t.sizes, dtype.compute())?;
    let p = b.widen(p)?;
    // Probabilities are data: a bad one fails the call.
    let p = b.between(p, Arg::Float(0.0), Arg::Float(1.0))?;
    let hit = b.call("aten.lt.Tensor", &[u.into(), p.into()])?;
    done(b, hit, t.dtype)
}

/// Argument `p`, checked at compile time.
fn probability(args: &Args) -> Result<f64> {
    match args.float("p")? {
        p if (0.0..=1.0).contains(&p) => Ok(p),
        p => Err(Error::input(format!("argument `p`: {p} is no probability"))),
    }
}

/// `x` with elements put to zero where the mask of sizes `drawn` says so, the others scaled to keep the mean; and the mask.
/// `drawn` broadcasts to the sizes of `x`: with ones in it, whole features share one draw.
fn drop(
    b: &mut Builder,
    draw: &mut Draw,
    x: ValueId,
    drawn: &[Expr],
    p: f64,
) -> Result<(ValueId, ValueId)> {
    let keep = draw.bernoulli(b, drawn, 1.0 - p)?;
    let dtype = b.dtype(x)?;
    // With everything dropped there is nothing to scale.
    let scale = if p < 1.0 { 1.0 / (1.0 - p) } else { 0.0 };
    // A product rather than a selection: a dropped NaN or infinity is NaN, as in eager.
    let kept = b.cast(keep, dtype.compute())?;
    let factor = b.scale(kept, scale)?;
    let wide = b.widen(x)?;
    let y = b.mul(wide, factor)?;
    Ok((b.cast(y, dtype)?, keep))
}

/// The input itself outside of training and for `p = 0`.
fn dropout(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (x, p) = (args.value("input")?, probability(args)?);
    if !args.bool("train")? || p == 0.0 {
        return Ok(vec![x]);
    }
    let sizes = b.sizes(x)?;
    Ok(vec![drop(b, &mut Draw::new(args)?, x, &sizes, p)?.0])
}

/// Drops whole features: one draw for each of the first two dimensions.
fn feature_dropout(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (x, p) = (args.value("input")?, probability(args)?);
    if !args.bool("train")? || p == 0.0 {
        return Ok(vec![x]);
    }
    let sizes = features(b, x)?;
    Ok(vec![drop(b, &mut Draw::new(args)?, x, &sizes, p)?.0])
}

/// Batch and channel sizes, followed by ones.
fn features(b: &Builder, x: ValueId) -> Result<Vec<Expr>> {
    let mut sizes = b.sizes(x)?;
    if sizes.len() < 2 {
        return Err(Error::input("features need two dimensions"));
    }
    sizes[2..].fill(b.exprs.int(1));
    Ok(sizes)
}

/// Dropped elements take the value that `selu` saturates at, then all are shifted and scaled to keep mean and variance.
/// With `s` the saturation the factor is `a = ((s^2 p + 1) (1 - p))^-1/2` and the shift `s a p`
/// (Klambauer et al., "Self-Normalizing Neural Networks", 2017).
fn alpha(b: &mut Builder, args: &Args, by_feature: bool) -> Result<Vec<ValueId>> {
    // `scale * alpha` of `selu`, without its sign.
    const SATURATION: f64 = 1.758_099_340_847_376_6;
    let (x, p) = (args.value("input")?, probability(args)?);
    if !args.bool("train")? || p == 0.0 {
        return Ok(vec![x]);
    }
    if p == 1.0 {
        return Ok(vec![b.scale(x, 0.0)?]);
    }
    let sizes = match by_feature {
        true => features(b, x)?,
        false => b.sizes(x)?,
    };
    let keep = Draw::new(args)?.bernoulli(b, &sizes, 1.0 - p)?;
    let a = 1.0 / ((SATURATION * SATURATION * p + 1.0) * (1.0 - p)).sqrt();
    let dtype = b.dtype(x)?;
    let wide = b.widen(x)?;
    let scaled = b.scale(wide, a)?;
    let kept = b.by("aten.add.Scalar", scaled, SATURATION * a * p)?;
    // A dropped element is multiplied by zero, which leaves NaN what it is.
    let zero = b.scale(wide, 0.0)?;
    let gone = b.by("aten.add.Scalar", zero, SATURATION * a * (p - 1.0))?;
    let y = b.select(keep, kept, gone)?;
    done(b, y, dtype)
}

/// The result and the mask; without training nothing is dropped.
/// A missing `train` means training.
fn native_dropout(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (x, p) = (args.value("input")?, probability(args)?);
    let sizes = b.sizes(x)?;
    if args.given("train") && !args.bool("train")? {
        let mask = b.full(&sizes, 1.0, DType::Bool)?;
        return Ok(vec![x, mask]);
    }
    let (y, keep) = drop(b, &mut Draw::new(args)?, x, &sizes, p)?;
    Ok(vec![y, keep])
}

/// From `from` up to `to`.
/// Rounding may give `to` itself.
fn uniform(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (sizes, dtype) = wanted(b, args, None)?;
    floats(dtype)?;
    let (from, to) = (args.float("from")?, args.float("to")?);
    if from > to {
        return Err(Error::input("`from` is above `to`"));
    }
    let u = Draw::new(args)?.uniform(b, &sizes, dtype)?;
    let scaled = b.scale(u, to - from)?;
    let v = b.by("aten.add.Scalar", scaled, from)?;
    done(b, v, dtype)
}

/// Normal numbers with the mean and deviation of the call, each a number or a tensor.
fn normal(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let schema = args.op.schema();
    let tensor = |name: &str| match args.arg(name) {
        Ok(Arg::Value(v)) => Some(*v),
        _ => None,
    };
    let (mean, std) = (tensor("mean"), tensor("std"));
    let (sizes, dtype) = match (mean, std) {
        (None, None) if schema.position("mean").is_some() => wanted(b, args, None)?,
        (Some(m), Some(s)) => {
            let (m, s) = (b.tensor(m)?, b.tensor(s)?);
            let sizes = meta::broadcast(b.exprs, &m.sizes, &s.sizes)?;
            (sizes, m.dtype)
        }
        (Some(v), None) | (None, Some(v)) => {
            let t = b.tensor(v)?;
            (t.sizes, t.dtype)
        }
        _ => return Err(args.unsupported("mean", "a number or a tensor")),
    };
    floats(dtype)?;
    let n = Draw::new(args)?.normal(b, &sizes, dtype)?;
    let scaled = match std {
        Some(s) => {
            let s = b.widen(s)?;
            let s = b.between(s, Arg::Float(0.0), Arg::Float(f64::INFINITY))?;
            b.mul(n, s)?
        }
        None => {
            let std = args.float("std")?;
            if std < 0.0 {
                return Err(Error::input("a negative standard deviation"));
            }
            b.scale(n, std)?
        }
    };
    let v = match mean {
        Some(m) => {
            let m = b.widen(m)?;
            b.add(scaled, m)?
        }
        None => b.by("aten.add.Scalar", scaled, args.float("mean")?)?,
    };
    done(b, v, dtype)
}

/// The exponential of a normal number.
fn log_normal(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let dtype = wanted(b, args, None)?.1;
    let n = normal(b, args)?[0];
    let n = b.widen(n)?;
    let v = b.unary("aten.exp.default", n)?;
    done(b, v, dtype)
}

/// `-log(u) / lambda`.
/// Inverse transform sampling.
fn exponential(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (sizes, dtype) = wanted(b, args, None)?;
    floats(dtype)?;
    let lambda = args.float("lambd")?;
    if lambda <= 0.0 {
        return Err(Error::input("`lambd` must be positive"));
    }
    let u = Draw::new(args)?.above_zero(b, &sizes, dtype)?;
    let log = b.unary("aten.log.default", u)?;
    let v = b.scale(log, -1.0 / lambda)?;
    done(b, v, dtype)
}

/// How many trials of probability `p` it takes: `ceil(log(u) / log(1 - p))`, at least one.
/// Inverse transform sampling.
fn geometric(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (sizes, dtype) = wanted(b, args, None)?;
    let p = args.float("p")?;
    if !(p > 0.0 && p < 1.0) {
        return Err(Error::input("`p` must lie between 0 and 1"));
    }
    let u = Draw::new(args)?.above_zero(b, &sizes, DType::F32)?;
    let log = b.unary("aten.log.default", u)?;
    let trials = b.scale(log, 1.0 / (-p).ln_1p())?;
    let up = b.unary("aten.ceil.default", trials)?;
    let v = b.by("aten.clamp_min.default", up, 1.0)?;
    done(b, v, dtype)
}

/// `median + sigma tan(pi (u - 1/2))`.
/// Inverse transform sampling: the quantile function of a uniform number.
fn cauchy(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (sizes, dtype) = wanted(b, args, None)?;
    floats(dtype)?;
    let u = Draw::new(args)?.uniform(b, &sizes, dtype.compute())?;
    let centred = b.by("aten.sub.Scalar", u, 0.5)?;
    let angle = b.scale(centred, std::f64::consts::PI)?;
    let tan = b.unary("aten.tan.default", angle)?;
    let scaled = b.scale(tan, args.float("sigma")?)?;
    let v = b.by("aten.add.Scalar", scaled, args.float("median")?)?;
    done(b, v, dtype)
}

/// Categories in proportion to weights. Without replacement: the largest of weights over exponential numbers.
/// With replacement: a binary search for `u * total` in the running sums of the weights.
fn multinomial(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let weights = args.value("self")?;
    let t = b.tensor(weights)?;
    floats(t.dtype)?;
    let count = args.int("num_samples")?;
    let mut draw = Draw::new(args)?;
    let weights = b.widen(weights)?;
    let dtype = b.dtype(weights)?;
    let last = b.int(-1);
    let Some((categories, rows)) = t.sizes.split_last() else {
        return Err(Error::input("weights need one dimension or two"));
    };
    // Infinite weights are refused, as in eager; NaN is in no range.
    let most = match dtype {
        DType::F64 => f64::MAX,
        _ => f32::MAX as f64,
    };
    let weights = b.between(weights, Arg::Float(0.0), Arg::Float(most))?;
    let whole = b.sum(weights, &[-1], true)?;
    // A row of zeros has no category to draw.
    let some = b.by("aten.gt.Scalar", whole, 0.0)?;
    let weights = b.assured(weights, some)?;
    // The exponential race: the first arrivals of processes with these rates are a sample without
    // replacement.
    if !args.bool("replacement")? {
        if b.exprs.prove_lt(*categories, count) {
            return Err(Error::input("more samples than categories"));
        }
        let u = draw.above_zero(b, &t.sizes, dtype)?;
        let log = b.unary("aten.log.default", u)?;
        let e = b.unary("aten.neg.default", log)?;
        let score = b.div(weights, e)?;
        let top = b.call_multi("aten.topk.default", &[score.into(), count.into(), last])?;
        return Ok(vec![top[1]]);
    }
    let sums = b.call("aten.cumsum.default", &[weights.into(), last.clone()])?;
    let end = b.exprs.sub(*categories, b.exprs.int(1));
    let total = b.narrow(sums, rows.len(), end, b.exprs.int(1))?;
    let mut sizes = rows.to_vec();
    sizes.push(count);
    let u = draw.uniform(b, &sizes, dtype)?;
    let at = b.mul(u, total)?;
    let found = b.call(
        "aten.searchsorted.Tensor",
        &[sums.into(), at.into(), Arg::Bool(false), Arg::Bool(true)],
    )?;
    // Rounding may take a number up to the total.
    Ok(vec![b.call(
        "aten.clamp_max.default",
        &[found.into(), end.into()],
    )?])
}

/// A leaky slope between `lower` and `upper` for each negative element, and the slopes (1 for the others).
/// Outside of training the slope is the middle of the range, and the noise is returned unchanged.
fn rrelu(b: &mut Builder, args: &Args) -> Result<Vec<ValueId>> {
    let (x, noise) = (args.value("self")?, args.value("noise")?);
    let (lower, upper) = (
        args.scalar("lower")?.as_f64(),
        args.scalar("upper")?.as_f64(),
    );
    if !args.bool("training")? {
        let slope = [Arg::Float((lower + upper) / 2.0)];
        let y = b.call("aten.leaky_relu.default", &[x.into(), slope[0].clone()])?;
        return Ok(vec![y, noise]);
    }
    let t = b.tensor(x)?;
    let u = Draw::new(args)?.uniform(b, &t.sizes, t.dtype.compute())?;
    let scaled = b.scale(u, upper - lower)?;
    let slope = b.by("aten.add.Scalar", scaled, lower)?;
    let slope = b.cast(slope, t.dtype)?;
    // Zero counts as negative; its slope multiplies nothing but is part of the noise.
    let negative = b.by("aten.le.Scalar", x, 0.0)?;
    let slope = b.select_or(negative, slope, 1.0)?;
    Ok(vec![b.mul(x, slope)?, slope])
}

/// The schema of an operator that draws.
macro_rules! draws {
    ($params:literal, $returns:literal) => {
        concat!(
            "(",
            $params,
            ", Tensor? seed=None, int stream=0) -> ",
            $returns
        )
    };
    ($params:literal) => {
        draws!($params, "Tensor")
    };
}
/// The same for one that makes a tensor.
macro_rules! makes {
    ($params:literal) => {
        concat!(
            "(",
            $params,
            ", *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, Tensor? seed=None, int stream=0) -> Tensor"
        )
    };
}
macro_rules! makes_like {
    ($params:literal) => {
        concat!(
            "(",
            $params,
            ", *, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None, MemoryFormat? memory_format=None, Tensor? seed=None, int stream=0) -> Tensor"
        )
    };
}

const DROPOUT: &str = draws!("Tensor input, float p, bool train");
const DROPOUT_EXAMPLE: &str = "(f32[2,3], 0.5, true, i64[1])";

pub const ROWS: &[Row] = &[
    Row {
        name: "inrush.uniform.default",
        schema: "(Tensor seed, int stream, SymInt[] size, ScalarType? dtype=None, int digits=24) -> Tensor",
        meta: Meta::Fn(uniform_meta),
        route: Route::Lower(uniform_lowering),
        example: "(i64[1], 8, [2,3])", props: &[],
    },
    Row {
        name: "inrush.random_integers.default",
        schema: "(Tensor seed, int stream, SymInt[] size, SymInt low, SymInt high) -> Tensor",
        meta: Meta::Fn(integers_meta),
        route: Route::Lower(integers_lowering),
        example: "(i64[1], 8, [2,3], -3, 7)", props: &[],
    },
    decomposed(
        "aten.rand.default",
        makes!("SymInt[] size"),
        rand,
        "([2,3], seed=i64[1])",
    ).with(&[Prop::Draws]),
    decomposed(
        "aten.rand_like.default",
        makes_like!("Tensor self"),
        rand,
        "(f16[2,3], seed=i64[1])",
    ).with(&[Prop::Draws]),
    decomposed(
        "aten.randn.default",
        makes!("SymInt[] size"),
        randn,
        "([2,3], seed=i64[1])",
    ).with(&[Prop::Draws]),
    decomposed(
        "aten.randn_like.default",
        makes_like!("Tensor self"),
        randn,
        "(f64[2,3], seed=i64[1])",
    ).with(&[Prop::Draws]),
    decomposed(
        "aten.randint.default",
        makes!("SymInt high, SymInt[] size"),
        randint,
        "(9, [2,3], seed=i64[1])",
    ).with(&[Prop::Draws]),
    decomposed(
        "aten.randint.low",
        makes!("SymInt low, SymInt high, SymInt[] size"),
        randint,
        "(-9, 9, [2,3], seed=i64[1])",
    ).with(&[Prop::Draws]),
    decomposed(
        "aten.randint_like.default",
        makes_like!("Tensor self, SymInt high"),
        randint,
        "(f32[2,3], 9, seed=i64[1])",
    ).with(&[Prop::Draws]),
    decomposed(
        "aten.randint_like.low_dtype",
        makes_like!("Tensor self, SymInt low, SymInt high"),
        randint,
        "(i32[2,3], -9, 9, seed=i64[1])",
    ).with(&[Prop::Draws]),
    decomposed(
        "aten.randperm.default",
        makes!("SymInt n"),
        randperm,
        "(5, seed=i64[1])",
    ).with(&[Prop::Draws, Prop::Sorts(SortAxis::Count)]),
    decomposed(
        "aten.bernoulli.default",
        draws!("Tensor self, *, Generator? generator=None"),
        bernoulli,
        "(f32[2,3]{0:1}, seed=i64[1])",
    ).with(&[Prop::Draws]),
    decomposed(
        "aten.bernoulli.p",
        draws!("Tensor self, float p, *, Generator? generator=None"),
        bernoulli_number,
        "(f32[2,3], 0.5, seed=i64[1])",
    ).with(&[Prop::Draws]),
    decomposed(
        "aten.bernoulli.float",
        draws!("Tensor self, float p=0.5, *, Generator? generator=None"),
        bernoulli_number,
        "(f32[2,3], 0.5, seed=i64[1])",
    ).with(&[Prop::Draws]),
    decomposed(
        "aten.bernoulli.Tensor",
        draws!("Tensor self, Tensor p, *, Generator? generator=None"),
        bernoulli,
        "(f32[2,3], f64[3]{0:1}, seed=i64[1])",
    ).with(&[Prop::Draws]),
    decomposed("aten.dropout.default", DROPOUT, dropout, DROPOUT_EXAMPLE).with(&[Prop::Draws]),
    decomposed(
        "aten.feature_dropout.default",
        DROPOUT,
        feature_dropout,
        "(f32[2,3,4], 0.5, true, i64[1])",
    ).with(&[Prop::Draws]),
    decomposed(
        "aten.alpha_dropout.default",
        DROPOUT,
        |b, a| alpha(b, a, false),
        DROPOUT_EXAMPLE,
    ).with(&[Prop::Draws]),
    decomposed(
        "aten.feature_alpha_dropout.default",
        DROPOUT,
        |b, a| alpha(b, a, true),
        "(f32[2,3,4], 0.5, true, i64[1])",
    ).with(&[Prop::Draws]),
    decomposed(
        "aten.native_dropout.default",
        draws!("Tensor input, float p, bool? train", "(Tensor, Tensor)"),
        native_dropout,
        "(f32[4], 0.5, true, i64[1])",
    ).with(&[Prop::Draws]),
    decomposed(
        "aten.uniform.default",
        draws!("Tensor self, float from=0, float to=1, *, Generator? generator=None"),
        uniform,
        "(bf16[2,3], -1.0, 1.0, seed=i64[1])",
    ).with(&[Prop::Draws]),
    decomposed(
        "aten.normal.default",
        draws!("Tensor self, float mean=0, float std=1, *, Generator? generator=None"),
        normal,
        "(f32[2,3], 1.0, 2.0, seed=i64[1])",
    ).with(&[Prop::Draws]),
    decomposed(
        "aten.normal_functional.default",
        draws!("Tensor self, float mean=0, float std=1, *, Generator? generator=None"),
        normal,
        "(f32[2,3], 1.0, 2.0, seed=i64[1])",
    ).with(&[Prop::Draws]),
    decomposed(
        "aten.normal.Tensor_float",
        draws!("Tensor mean, float std=1, *, Generator? generator=None"),
        normal,
        "(f32[2,3], 2.0, seed=i64[1])",
    ).with(&[Prop::Draws]),
    decomposed(
        "aten.normal.float_Tensor",
        draws!("float mean, Tensor std, *, Generator? generator=None"),
        normal,
        "(1.0, f32[2,3]{0:1}, seed=i64[1])",
    ).with(&[Prop::Draws]),
    decomposed(
        "aten.normal.Tensor_Tensor",
        draws!("Tensor mean, Tensor std, *, Generator? generator=None"),
        normal,
        "(f32[2,3], f32[3]{0:1}, seed=i64[1])",
    ).with(&[Prop::Draws]),
    decomposed(
        "aten.normal.float_float",
        draws!(
            "float mean, float std, SymInt[] size, *, Generator? generator=None, ScalarType? dtype=None, Layout? layout=None, Device? device=None, bool? pin_memory=None"
        ),
        normal,
        "(1.0, 2.0, [2,3], seed=i64[1])",
    ).with(&[Prop::Draws]),
    decomposed(
        "aten.log_normal.default",
        draws!("Tensor self, float mean=1, float std=2, *, Generator? generator=None"),
        log_normal,
        "(f32[2,3], seed=i64[1])",
    ).with(&[Prop::Draws]),
    decomposed(
        "aten.exponential.default",
        draws!("Tensor self, float lambd=1, *, Generator? generator=None"),
        exponential,
        "(f32[2,3], 2.0, seed=i64[1])",
    ).with(&[Prop::Draws]),
    decomposed(
        "aten.geometric.default",
        draws!("Tensor self, float p, *, Generator? generator=None"),
        geometric,
        "(f32[2,3], 0.25, seed=i64[1])",
    ).with(&[Prop::Draws]),
    decomposed(
        "aten.cauchy.default",
        draws!("Tensor self, float median=0, float sigma=1, *, Generator? generator=None"),
        cauchy,
        "(f32[2,3], seed=i64[1])",
    ).with(&[Prop::Draws]),
    decomposed(
        "aten.multinomial.default",
        draws!(
            "Tensor self, SymInt num_samples, bool replacement=False, *, Generator? generator=None"
        ),
        multinomial,
        "(f32[2,5]{0.1:1}, 3, true, seed=i64[1])",
    ).with(&[Prop::Draws]),
    decomposed(
        "aten.rrelu_with_noise_functional.default",
        draws!(
            "Tensor self, Tensor noise, Scalar lower=0.125, Scalar upper=0.3333333333333333, bool training=False, Generator? generator=None",
            "(Tensor, Tensor noise_out)"
        ),
        rrelu,
        "(f32[2,3], f32[2,3], training=true, seed=i64[1])",
    ).with(&[Prop::Draws]),
];
