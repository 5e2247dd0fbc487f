//! Pointwise operators: promotion of operands, then the row's scalar function, then one store.

use super::body::BodyBuilder;
use super::{Lower, Tensor};
use crate::{Call, Operand, Pointwise, meta};
use inrush_base::{DType, Error, Result, Scalar};
use inrush_graph::Type;
use inrush_loops::{ScalarOp, StmtId};
use std::ops::{Deref, DerefMut};

/// What a scalar function sees: the body, the call, and the dtype that operands were promoted to.
pub struct Pw<'a, 'g> {
    pub body: &'a mut BodyBuilder<'g>,
    pub call: &'a Call<'g>,
    pub dtype: DType,
}

impl<'g> Deref for Pw<'_, 'g> {
    type Target = BodyBuilder<'g>;
    fn deref(&self) -> &BodyBuilder<'g> {
        self.body
    }
}
impl DerefMut for Pw<'_, '_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        self.body
    }
}

impl Pw<'_, '_> {
    /// A constant of the compute dtype.
    pub fn c(&mut self, value: f64) -> StmtId {
        let dtype = self.dtype;
        // Small integers are exact in every dtype; integer dtypes must not go through floats.
        let value = if dtype.is_float() {
            Scalar::Float(value)
        } else {
            Scalar::Int(value as i64)
        };
        self.body.constant(value, dtype)
    }

    /// A number among the arguments, as a constant of the compute dtype.
    pub fn number(&mut self, name: &str) -> Result<StmtId> {
        let value = self.call.scalar(name)?;
        let dtype = self.dtype;
        Ok(self.body.constant(value, dtype))
    }

    pub fn op1(&mut self, op: ScalarOp, a: StmtId) -> StmtId {
        self.body.op(op, &[a])
    }

    pub fn op2(&mut self, op: ScalarOp, a: StmtId, b: StmtId) -> StmtId {
        self.body.op(op, &[a, b])
    }

    pub fn is_float(&self) -> bool {
        self.dtype.is_float()
    }
}

impl<'g> Lower<'g> {
    pub(super) fn pointwise(&mut self, call: &Call<'g>, p: &Pointwise) -> Result<Tensor> {
        let (dtype, result) = meta::promoted(call, p)?;
        let sizes = call.out(0)?.sizes.clone();
        let mut body = self.body(&sizes);
        let mut operands = Vec::with_capacity(p.operands.len());
        for name in p.operands {
            let (name, dtype) = match name.strip_prefix('?') {
                Some(condition) => (condition, DType::Bool),
                None => (*name, dtype),
            };
            if let Some(operand) = call.operand(name)? {
                operands.push(self.operand(&mut body, operand, dtype)?);
            }
        }
        let mut pw = Pw {
            body: &mut body,
            call,
            dtype,
        };
        let value = (p.function)(&mut pw, &operands)?;
        Ok(self.store_new(body, value, result, &sizes))
    }

    /// An operand as a value of dtype `dtype`, broadcast over the outer axes of `body`.
    pub fn operand(
        &self,
        body: &mut BodyBuilder<'g>,
        operand: Operand,
        dtype: DType,
    ) -> Result<StmtId> {
        match operand {
            Operand::Scalar(s) => Ok(body.constant(s, dtype)),
            Operand::Int(e) => {
                let v = body.index_value(e);
                Ok(body.cast(v, dtype.compute()))
            }
            Operand::Tensor(v) => match &self.graph.value(v).ty {
                Type::Tensor(_) => {
                    let t = self.tensor(v)?;
                    let value = body.load_broadcast(&t);
                    // A load already has the precision of its buffer's dtype.
                    Ok(if t.dtype == dtype {
                        value
                    } else {
                        body.cast(value, dtype)
                    })
                }
                Type::Int(e) => {
                    let v = body.index_value(*e);
                    Ok(body.cast(v, dtype.compute()))
                }
                other => Err(Error::unsupported(format!(
                    "operand `{}` of type {other:?}",
                    self.graph.value(v).name
                ))),
            },
        }
    }
}
