//! A call that is rewritten: its arguments as parts, and the calls that take its place.

use super::part_of;
use inrush_aten::{Builder, Schema};
use inrush_base::{DType, DTypeClass, Error, Result};
use inrush_expr::Expr;
use inrush_graph::{Arg, Type, ValueId};
use rustc_hash::FxHashMap;

/// The parts of a complex value: tensors of one dtype and equal sizes.
#[derive(Copy, Clone, Debug)]
pub(super) struct Z {
    pub(super) re: ValueId,
    pub(super) im: ValueId,
}

/// A value as the rewritten graph holds it.
#[derive(Copy, Clone, Debug)]
pub(super) enum V {
    Real(ValueId),
    Complex(Z),
}

/// Writes the calls that take the place of one. Returns its results.
pub(super) type Rule = fn(&mut Cx) -> Result<Vec<V>>;

pub(super) struct Cx<'a, 'g> {
    pub(super) b: &'a mut Builder<'g>,
    pub(super) parts: &'a FxHashMap<ValueId, Z>,
    /// The operator, for a write the functional one.
    pub(super) op: &'a str,
    pub(super) schema: &'a Schema,
    /// One for each parameter of the schema.
    pub(super) args: &'a [Arg],
    /// Types of the results, as the graph declares them.
    pub(super) declared: &'a [Type],
}

impl Cx<'_, '_> {
    pub(super) fn arg(&self, name: &str) -> Result<&Arg> {
        (self.schema.position(name).and_then(|at| self.args.get(at)))
            .ok_or_else(|| Error::internal(format!("no argument `{name}`")))
    }

    /// Returns true if the argument is there.
    pub(super) fn given(&self, name: &str) -> bool {
        !matches!(self.arg(name), Ok(Arg::None) | Err(_))
    }

    /// Returns true if the first result is declared complex.
    pub(super) fn gives_complex(&self) -> bool {
        matches!(self.declared.first(), Some(Type::Tensor(t)) if t.dtype.class() == DTypeClass::Complex)
    }

    /// Returns the dtype to compute in: that of the parts of the result, or of the widest complex operand.
    pub(super) fn dtype(&self) -> Result<DType> {
        if let Some(Type::Tensor(t)) = self.declared.first()
            && t.dtype.class() == DTypeClass::Complex
        {
            return part_of(t.dtype);
        }
        let mut widest = DType::F32;
        for z in (self.args.iter()).filter_map(|a| match a {
            Arg::Value(v) => self.parts.get(v),
            _ => None,
        }) {
            if self.b.dtype(z.re)? == DType::F64 {
                widest = DType::F64;
            }
        }
        Ok(widest)
    }

    /// Returns an operand in the dtype of the computation; a number becomes a tensor without dimensions.
    pub(super) fn operand(&mut self, name: &str) -> Result<V> {
        let arg = self.arg(name)?.clone();
        let dtype = self.dtype()?;
        self.lift(&arg, dtype)
    }

    /// Returns an argument as a tensor of `dtype`, or as the parts of a complex one.
    pub(super) fn lift(&mut self, arg: &Arg, dtype: DType) -> Result<V> {
        Ok(match arg {
            Arg::Value(v) => match self.parts.get(v).copied() {
                Some(z) => V::Complex(Z {
                    re: self.b.cast(z.re, dtype)?,
                    im: self.b.cast(z.im, dtype)?,
                }),
                None => V::Real(self.b.cast(*v, dtype)?),
            },
            Arg::Complex(re, im) => V::Complex(Z {
                re: self.number(Arg::Float(*re), dtype)?,
                im: self.number(Arg::Float(*im), dtype)?,
            }),
            Arg::Int(_) | Arg::Float(_) | Arg::Bool(_) => V::Real(self.number(arg.clone(), dtype)?),
            other => {
                let what = format!("an operand of complex numbers is {other:?}");
                return Err(Error::unsupported(what));
            }
        })
    }

    /// Returns a tensor without dimensions that holds a number.
    pub(super) fn number(&mut self, value: Arg, dtype: DType) -> Result<ValueId> {
        self.b.call(
            "aten.full.default",
            &[Arg::Ints(Vec::new()), value, dtype.into()],
        )
    }

    /// Returns the parts of an operand; a real one has zeros for its imaginary part.
    pub(super) fn complex(&mut self, name: &str) -> Result<Z> {
        let v = self.operand(name)?;
        self.widen(v)
    }

    /// Returns the value as a complex one.
    pub(super) fn widen(&mut self, v: V) -> Result<Z> {
        Ok(match v {
            V::Complex(z) => z,
            V::Real(re) => Z {
                re,
                im: self.zeros(re)?,
            },
        })
    }

    pub(super) fn zeros(&mut self, like: ValueId) -> Result<ValueId> {
        self.b.call("aten.zeros_like.default", &[like.into()])
    }

    /// Calls an operator of one tensor.
    pub(super) fn un(&mut self, op: &str, x: ValueId) -> Result<ValueId> {
        self.b.call(&format!("aten.{op}.default"), &[x.into()])
    }

    /// Calls an operator of two tensors.
    pub(super) fn bin(&mut self, op: &str, x: ValueId, y: ValueId) -> Result<ValueId> {
        self.b
            .call(&format!("aten.{op}.Tensor"), &[x.into(), y.into()])
    }

    /// Calls an operator of a tensor and a number.
    pub(super) fn by(&mut self, op: &str, x: ValueId, y: f64) -> Result<ValueId> {
        self.b
            .call(&format!("aten.{op}.Tensor"), &[x.into(), Arg::Float(y)])
    }

    /// Compares with a number.
    pub(super) fn is(&mut self, op: &str, x: ValueId, y: f64) -> Result<ValueId> {
        self.b
            .call(&format!("aten.{op}.Scalar"), &[x.into(), Arg::Float(y)])
    }

    /// `mask ? x : y`.
    pub(super) fn select(&mut self, mask: ValueId, x: ValueId, y: ValueId) -> Result<ValueId> {
        self.b
            .call("aten.where.self", &[mask.into(), x.into(), y.into()])
    }

    /// Applies a function of real tensors to each part.
    pub(super) fn each(
        &mut self,
        z: Z,
        f: impl Fn(&mut Self, ValueId) -> Result<ValueId>,
    ) -> Result<Z> {
        Ok(Z {
            re: f(self, z.re)?,
            im: f(self, z.im)?,
        })
    }

    /// Returns `v` broadcast to the sizes of `like`.
    pub(super) fn broadcast(&mut self, v: ValueId, like: ValueId) -> Result<ValueId> {
        let (have, want) = (self.b.sizes(v)?, self.b.sizes(like)?);
        if have == want {
            return Ok(v);
        }
        self.b.call("aten.expand.default", &[v.into(), want.into()])
    }

    /// The sizes that the first result is declared to have.
    pub(super) fn declared_sizes(&self) -> Result<Vec<Expr>> {
        match self.declared.first() {
            Some(Type::Tensor(t)) => Ok(t.sizes.clone()),
            _ => Err(Error::internal("the call gives no tensor")),
        }
    }

    /// The refusal of a case that a rule does not cover.
    pub(super) fn unsupported(&self, what: &str) -> Error {
        Error::unsupported(format!("complex numbers: {what}"))
    }

    /// Brings results to the kind and dtype that the graph declares. With `fresh` a part that may share memory is copied.
    pub(super) fn finish(&mut self, found: Vec<V>, fresh: bool) -> Result<Vec<V>> {
        if found.len() < self.declared.len() {
            let (have, want) = (found.len(), self.declared.len());
            return Err(Error::internal(format!(
                "a rule gives {have} results, {want} are wanted"
            )));
        }
        let mut out = Vec::with_capacity(found.len());
        for (v, ty) in found.into_iter().zip(self.declared) {
            let Type::Tensor(t) = ty else {
                out.push(v);
                continue;
            };
            let v = match (v, t.dtype.class() == DTypeClass::Complex) {
                (v, true) => {
                    let z = self.widen(v)?;
                    let part = part_of(t.dtype)?;
                    let im = self.broadcast(z.im, z.re)?;
                    let re = self.broadcast(z.re, im)?;
                    let z = Z { re, im };
                    V::Complex(self.each(z, |cx, v| cx.b.cast(v, part))?)
                }
                (V::Real(v), false) => V::Real(v),
                (V::Complex(_), false) => {
                    return Err(self.unsupported("a complex result is declared real"));
                }
            };
            out.push(match (v, fresh) {
                (V::Complex(z), true) => V::Complex(self.each(z, |cx, v| cx.un("clone", v))?),
                (v, _) => v,
            });
        }
        Ok(out)
    }
}
