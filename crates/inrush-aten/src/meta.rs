//! Types of results: ATen's promotion, broadcasting, and the dispatch over [`Meta`].
//!
//! Promotion follows `torch.result_type`: operands fall into three standings (tensors with
//! dimensions, tensors without, Python numbers), and a lower standing raises the dtype only
//! to a higher class (bool, integer, float, complex):
//!
//! ```text
//! i32[3] + i64[]   -> i32      the same class: dimensions win
//! i32[3] + 1.5     -> f32      a higher class: the default float
//! bf16[3] + f32[]  -> bf16
//! bool[3] + 2      -> i64      a number's own dtype, if it decides
//! ```
//!
//! Strides that are inferred here are row-major or those of a view. The archive or PyTorch
//! declares the strides that eager has, and the declared type wins.

use crate::{Args, Call, Meta, Operand, Pointwise, Promo, Route};
use inrush_base::{DType, DTypeClass, Error, Result, promote};
use inrush_expr::{Expr, Exprs};
use inrush_graph::{TensorType, Type, Value};

/// Types of the results of a call. `None` for operators that only decompose.
pub fn infer(args: Args, values: &[Value]) -> Option<Result<Vec<Type>>> {
    let call = Call::new(args, values, &[]);
    match (args.op.row.meta, args.op.row.route) {
        (Meta::Fn(f), _) => Some(f(&call)),
        (Meta::Route, Route::Pointwise(p)) => Some(pointwise(&call, &p)),
        (Meta::Route, Route::View(f)) => Some(view(&call, f)),
        (Meta::Route, Route::Lower(_) | Route::Decompose(_) | Route::Assert) => None,
    }
}

/// A row-major tensor as an operator's only result.
pub fn one(exprs: &Exprs, dtype: DType, sizes: Vec<Expr>) -> Result<Vec<Type>> {
    Ok(vec![tensor(exprs, dtype, sizes)])
}

/// A row-major tensor type, for operators with several results.
pub fn tensor(exprs: &Exprs, dtype: DType, sizes: Vec<Expr>) -> Type {
    Type::Tensor(TensorType::contiguous(exprs, dtype, sizes))
}

/// dtype that operands promote to, and dtype of the result.
pub fn promoted(call: &Call, p: &Pointwise) -> Result<(DType, DType)> {
    let mut promotion = Promotion::default();
    let mut first = None;
    // Conditions (`?mask`) are converted to bool and have no say.
    for name in p.operands.iter().filter(|n| !n.starts_with('?')) {
        match call.operand(name)? {
            None => continue,
            Some(Operand::Tensor(v)) => match &call.values()[v.index()].ty {
                Type::Tensor(t) => {
                    first.get_or_insert(t.dtype);
                    promotion.tensor(t.dtype, t.rank());
                }
                Type::Int(_) => promotion.scalar(DType::I64),
                Type::Bool => promotion.scalar(DType::Bool),
                _ => promotion.scalar(DType::F32),
            },
            Some(Operand::Scalar(s)) => promotion.scalar(s.default_dtype()),
            Some(Operand::Int(_)) => promotion.scalar(DType::I64),
        }
    }
    let common = promotion
        .result()
        .ok_or_else(|| Error::input("no operand has a dtype"))?;
    if common.class() == DTypeClass::Complex {
        return Err(Error::unsupported(format!("dtype {common}")));
    }
    Ok(match p.promo {
        Promo::Common => (common, common),
        Promo::Division if call.given("rounding_mode") => (common, common),
        Promo::Float | Promo::Division if common.is_float() => (common, common),
        Promo::Float | Promo::Division => (DType::F32, DType::F32),
        Promo::First => first
            .map(|d| (d, d))
            .ok_or_else(|| Error::input("the first operand must be a tensor"))?,
        Promo::Compare => (common, DType::Bool),
        Promo::Logical => (DType::Bool, DType::Bool),
    })
}

/// Types of a pointwise result: promoted dtype, sizes of all operands broadcast, conditions
/// included.
fn pointwise(call: &Call, p: &Pointwise) -> Result<Vec<Type>> {
    let (_, dtype) = promoted(call, p)?;
    let mut sizes: Vec<Expr> = Vec::new();
    for name in p.operands {
        if let Some(Operand::Tensor(v)) = call.operand(name.trim_start_matches('?'))?
            && let Type::Tensor(t) = &call.values()[v.index()].ty
        {
            sizes = broadcast(call.exprs, &sizes, &t.sizes)?;
        }
    }
    one(call.exprs, dtype, sizes)
}

/// Types of a view's results, with the strides that the source's strides give.
fn view(call: &Call, f: fn(&Call) -> Result<Vec<crate::View>>) -> Result<Vec<Type>> {
    let source = call.viewed()?;
    f(call)?
        .into_iter()
        .map(|v| {
            let strides = v.strides(call.exprs, &source.strides);
            Ok(Type::Tensor(TensorType {
                dtype: source.dtype,
                sizes: v.sizes,
                strides,
            }))
        })
        .collect()
}

/// Sizes of two shapes broadcast together. Sizes are equal when their canonical forms are.
/// A symbol that may be 1 at some call does not broadcast: only sizes that are 1 for sure do.
pub fn broadcast(exprs: &Exprs, a: &[Expr], b: &[Expr]) -> Result<Vec<Expr>> {
    let rank = a.len().max(b.len());
    let at = |s: &[Expr], d: usize| (d + s.len()).checked_sub(rank).map(|k| s[k]);
    (0..rank)
        .map(|d| match (at(a, d), at(b, d)) {
            (Some(x), Some(y)) => {
                if exprs.prove_eq(x, y) || exprs.is_int(y, 1) {
                    Ok(x)
                } else if exprs.is_int(x, 1) {
                    Ok(y)
                } else {
                    Err(Error::input(format!(
                        "sizes {} and {} do not broadcast",
                        exprs.show_list(a),
                        exprs.show_list(b)
                    )))
                }
            }
            (Some(x), None) | (None, Some(x)) => Ok(x),
            (None, None) => Ok(exprs.int(1)),
        })
        .collect()
}

/// ATen's promotion over operands of three standings: tensors with dimensions, zero-dimensional tensors, numbers. A lower
/// standing decides only if its class is higher.
#[derive(Default)]
pub struct Promotion {
    /// Common dtype of the tensors with dimensions, without them, and of the numbers; `None`
    /// without any of that standing.
    dims: Option<DType>,
    zero: Option<DType>,
    number: Option<DType>,
}

impl Promotion {
    pub fn tensor(&mut self, dtype: DType, rank: usize) {
        let slot = if rank > 0 {
            &mut self.dims
        } else {
            &mut self.zero
        };
        *slot = Some(slot.map_or(dtype, |d| promote(d, dtype)));
    }

    /// Adds a number by the dtype that it has by itself: bool, `i64` or the default float.
    pub fn scalar(&mut self, dtype: DType) {
        self.number = Some(self.number.map_or(dtype, |d| promote(d, dtype)));
    }

    /// Returns the common dtype; `None` if nothing was added.
    pub fn result(&self) -> Option<DType> {
        combine(self.dims, combine(self.zero, self.number))
    }
}

/// Joins two standings: `low` raises the class of `high`, and otherwise gives way.
fn combine(high: Option<DType>, low: Option<DType>) -> Option<DType> {
    let (Some(h), Some(l)) = (high, low) else {
        return high.or(low);
    };
    Some(match (h.class(), l.class()) {
        (DTypeClass::Complex, _) => h,
        (_, DTypeClass::Complex) => promote(h, l),
        (DTypeClass::Float, _) => h,
        (DTypeClass::Bool, _) | (_, DTypeClass::Float) => promote(h, l),
        _ => h,
    })
}

/// The common dtype of a list of tensors (`cat`, `stack`).
pub fn common_dtype<'t>(types: impl IntoIterator<Item = &'t TensorType>) -> Option<DType> {
    let mut p = Promotion::default();
    for t in types {
        p.tensor(t.dtype, t.rank());
    }
    p.result()
}
