//! Products of matrices, convolutions and other operators that are linear in each factor.
//!
//! A product of complex factors is the sum of real products over all choices of a part from each factor, with the power of `i`
//! that the choice has: two complex factors make four real products.

use super::context::{Cx, V, Z};
use inrush_base::Result;
use inrush_graph::{Arg, ValueId};

/// Complex factors of one product. Each doubles the number of real ones.
const MOST_FACTORS: usize = 4;

impl Cx<'_, '_> {
    /// Calls `op` with `args`, linear in each of `factors`, which are put where `place` says.
    fn product(
        &mut self,
        factors: &[V],
        mut call: impl FnMut(&mut Self, &[ValueId]) -> Result<ValueId>,
    ) -> Result<V> {
        let complex: Vec<usize> = (0..factors.len())
            .filter(|k| matches!(factors[*k], V::Complex(_)))
            .collect();
        if complex.len() > MOST_FACTORS {
            return Err(self.unsupported("a product of more than four complex factors"));
        }
        let (mut re, mut im): (Option<ValueId>, Option<ValueId>) = (None, None);
        for choice in 0..1usize << complex.len() {
            let mut chosen = Vec::with_capacity(factors.len());
            for (k, f) in factors.iter().enumerate() {
                chosen.push(match f {
                    V::Real(v) => *v,
                    V::Complex(z) => {
                        let bit = complex.iter().position(|c| *c == k).unwrap_or(0);
                        if choice >> bit & 1 == 1 { z.im } else { z.re }
                    }
                });
            }
            let term = call(self, &chosen)?;
            let power = choice.count_ones() % 4;
            let sum = if power % 2 == 0 { &mut re } else { &mut im };
            *sum = Some(match (*sum, power >= 2) {
                (None, false) => term,
                (None, true) => self.un("neg", term)?,
                (Some(sum), false) => self.bin("add", sum, term)?,
                (Some(sum), true) => self.bin("sub", sum, term)?,
            });
        }
        match (re, im) {
            (Some(re), Some(im)) => Ok(V::Complex(Z { re, im })),
            (Some(re), None) => Ok(V::Real(re)),
            _ => Err(self.unsupported("a product without factors")),
        }
    }

    /// The product of the named factors by an operator of two tensors.
    fn product_by(&mut self, op: &str, x: V, y: V) -> Result<V> {
        self.product(&[x, y], |cx, f| cx.b.call(op, &[f[0].into(), f[1].into()]))
    }
}

/// An operator of two factors, which are its first arguments.
pub(super) fn pair(cx: &mut Cx) -> Result<Vec<V>> {
    let (x, y) = factors(cx)?;
    let rest = cx.args[2..].to_vec();
    let op = cx.op;
    let out = cx.product(&[x, y], |cx, f| {
        let mut args: Vec<Arg> = vec![f[0].into(), f[1].into()];
        args.extend(rest.iter().cloned());
        cx.b.call(op, &args)
    })?;
    Ok(vec![out])
}

fn factors(cx: &mut Cx) -> Result<(V, V)> {
    let dtype = cx.dtype()?;
    let (x, y) = (cx.args[0].clone(), cx.args[1].clone());
    Ok((cx.lift(&x, dtype)?, cx.lift(&y, dtype)?))
}

/// The first factor is conjugated.
pub(super) fn vdot(cx: &mut Cx) -> Result<Vec<V>> {
    let (x, y) = factors(cx)?;
    let x = cx.conjugate(x)?;
    Ok(vec![cx.product_by("aten.dot.default", x, y)?])
}

pub(super) fn einsum(cx: &mut Cx) -> Result<Vec<V>> {
    let dtype = cx.dtype_of_list("tensors")?;
    let Arg::Values(list) = cx.arg("tensors")?.clone() else {
        return Err(cx.unsupported("einsum without tensors"));
    };
    let mut factors = Vec::with_capacity(list.len());
    for v in list.into_iter().flatten() {
        factors.push(cx.lift(&v.into(), dtype)?);
    }
    let (op, equation) = (cx.op, cx.arg("equation")?.clone());
    let out = cx.product(&factors, |cx, f| {
        cx.b.call(op, &[equation.clone(), f.to_vec().into()])
    })?;
    Ok(vec![out])
}

pub(super) fn linear(cx: &mut Cx) -> Result<Vec<V>> {
    let (x, w) = (cx.operand("input")?, cx.operand("weight")?);
    let out = cx.product_by("aten.linear.default", x, w)?;
    if !cx.given("bias") {
        return Ok(vec![out]);
    }
    let bias = cx.operand("bias")?;
    Ok(vec![cx.plus(out, bias)?])
}

/// `beta * self + alpha * product`.
fn added(cx: &mut Cx, op: &str, names: [&str; 2]) -> Result<Vec<V>> {
    let (x, y) = (cx.operand(names[0])?, cx.operand(names[1])?);
    let product = cx.product_by(op, x, y)?;
    let (alpha, beta) = (cx.operand("alpha")?, cx.operand("beta")?);
    let (product, base) = (cx.times(product, alpha)?, cx.operand("self")?);
    let base = cx.times(base, beta)?;
    Ok(vec![cx.plus(product, base)?])
}

pub(super) fn addmm(cx: &mut Cx) -> Result<Vec<V>> {
    added(cx, "aten.mm.default", ["mat1", "mat2"])
}

pub(super) fn addmv(cx: &mut Cx) -> Result<Vec<V>> {
    added(cx, "aten.mv.default", ["mat", "vec"])
}

pub(super) fn baddbmm(cx: &mut Cx) -> Result<Vec<V>> {
    added(cx, "aten.bmm.default", ["batch1", "batch2"])
}

/// Convolutions: the bias, one number for each channel, is added to the sum of the real ones.
pub(super) fn convolution(cx: &mut Cx) -> Result<Vec<V>> {
    let (x, w) = (cx.operand("input")?, cx.operand("weight")?);
    let (op, args) = (cx.op, cx.args.to_vec());
    let out = cx.product(&[x, w], |cx, f| {
        let mut args = args.clone();
        (args[0], args[1], args[2]) = (f[0].into(), f[1].into(), Arg::None);
        cx.b.call(op, &args)
    })?;
    if !cx.given("bias") {
        return Ok(vec![out]);
    }
    let (bias, rank) = (cx.operand("bias")?, cx.declared_sizes()?.len());
    let spatial = match x {
        V::Complex(z) => cx.b.rank(z.re)?,
        V::Real(v) => cx.b.rank(v)?,
    };
    debug_assert_eq!(rank, spatial);
    let weight = match w {
        V::Complex(z) => cx.b.rank(z.re)?,
        V::Real(v) => cx.b.rank(v)?,
    };
    let mut sizes = vec![cx.b.exprs.int(-1)];
    sizes.extend(vec![cx.b.exprs.int(1); weight - 2]);
    let shape = |cx: &mut Cx, v: ValueId| {
        cx.b.call("aten.view.default", &[v.into(), sizes.clone().into()])
    };
    let bias = match bias {
        V::Real(v) => V::Real(shape(cx, v)?),
        V::Complex(z) => V::Complex(cx.each(z, |cx, v| shape(cx, v))?),
    };
    Ok(vec![cx.plus(out, bias)?])
}

impl Cx<'_, '_> {
    /// Returns the dtype of the computation for a list of operands.
    fn dtype_of_list(&self, name: &str) -> Result<inrush_base::DType> {
        let mut widest = self.dtype()?;
        if let Arg::Values(list) = self.arg(name)? {
            for z in list.iter().flatten().filter_map(|v| self.parts.get(v)) {
                if self.b.dtype(z.re)? == inrush_base::DType::F64 {
                    widest = inrush_base::DType::F64;
                }
            }
        }
        Ok(widest)
    }
}
