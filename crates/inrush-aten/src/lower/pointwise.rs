//! Pointwise operators: promotion of operands, then the row's scalar function, then one store.
//!
//! ```text
//! add.Tensor(x: bf16[4,1], y: f32[3], alpha=2)
//!
//! body [i0: 4, i1: 3] {
//!   v0: f32 = load b0[i0, 0]       a load widens halves
//!   v1: f32 = load b1[i1]
//!   v2: f32 = const 2
//!   v3: f32 = mul v1, v2
//!   v4: f32 = add v0, v3
//!   store b2[i0, i1] = v4
//! }
//! ```
//!
//! Promotion decides two dtypes: that in which the function computes, and that of the result.
//! Numbers among the operands follow `numbers.txt`, because eager's kernels round some of
//! them to the tensors' dtype and keep others.

use super::body::BodyBuilder;
use super::{Lower, Tensor};
use crate::numbers::{Number, Precision};
use crate::{Call, Operand, Pointwise, Processor, meta};
use inrush_base::{DType, Error, Result, Scalar};
use inrush_graph::Type;
use inrush_loops::{ScalarOp, StmtId};
use std::ops::{Deref, DerefMut};

/// The context of a scalar function: the body, the call, and the dtype that operands were promoted
/// to.
pub struct Pw<'a, 'g> {
    pub body: &'a mut BodyBuilder<'g>,
    pub call: &'a Call<'g>,
    /// The dtype that operands were promoted to. A half is computed in `f32`, but rounds as
    /// this dtype.
    pub dtype: DType,
    pub processor: Processor,
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

    /// A number among the arguments, rounded as its operator does, as a constant of the compute dtype.
    pub fn number(&mut self, name: &str) -> Result<StmtId> {
        let dtype = self.dtype;
        let value = self.call.rounded(name, dtype, self.processor)?;
        Ok(self.body.constant(value, dtype))
    }

    /// Returns a number among the arguments, rounded as its operator does.
    pub fn float(&self, name: &str) -> Result<f64> {
        let value = self.call.rounded(name, self.dtype, self.processor)?;
        Ok(value.as_f64())
    }

    /// Returns whether an operand is a number, or a tensor without dimensions, which eager's kernels for CPUs take as one.
    pub fn is_number(&self, name: &str) -> Result<bool> {
        Ok(match self.call.operand(name)? {
            Some(Operand::Tensor(v)) => match &self.call.values()[v.index()].ty {
                Type::Tensor(t) => t.rank() == 0 && self.processor == Processor::Cpu,
                _ => true,
            },
            other => other.is_some(),
        })
    }

    /// Rounds an intermediate to the tensors' dtype on CPUs, where eager's kernel stores each of its steps in that dtype.
    pub fn step(&mut self, a: StmtId) -> StmtId {
        match self.processor {
            Processor::Cpu => self.body.cast(a, self.dtype),
            Processor::Gpu => a,
        }
    }

    pub fn op1(&mut self, op: ScalarOp, a: StmtId) -> StmtId {
        self.body.op(op, &[a])
    }

    pub fn op2(&mut self, op: ScalarOp, a: StmtId, b: StmtId) -> StmtId {
        self.body.op(op, &[a, b])
    }

    /// Integer and bool operands take other branches in many rows: they have no NaN and no
    /// infinity.
    pub fn is_float(&self) -> bool {
        self.dtype.is_float()
    }
}

impl<'g> Lower<'g> {
    /// An operand that is none in the call is left out, and the row's function sees fewer
    /// values.
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
                let number = call.number_of(name, self.processor);
                operands.push(self.rounded_operand(&mut body, operand, number, dtype)?);
            }
        }
        let mut pw = Pw {
            body: &mut body,
            call,
            dtype,
            processor: self.processor,
        };
        let value = (p.function)(&mut pw, &operands)?;
        Ok(self.store_new(body, value, result, &sizes))
    }

    /// An operand as a value of dtype `dtype`, broadcast over the outer axes of `body`. A number is rounded as its operator
    /// does, and so is a tensor without dimensions on a CPU.
    fn rounded_operand(
        &self,
        body: &mut BodyBuilder<'g>,
        operand: Operand,
        number: Number,
        dtype: DType,
    ) -> Result<StmtId> {
        let kept = number.precision != Precision::Tensor;
        let dtype = match operand {
            Operand::Scalar(s) => return Ok(body.constant(number.round(s, dtype), dtype)),
            Operand::Int(_) if kept => dtype.compute(),
            // On CPUs eager reads a tensor without dimensions as a number and does not round
            // it.
            Operand::Tensor(v) if kept => match &self.graph.value(v).ty {
                Type::Tensor(t) if t.rank() > 0 || self.processor == Processor::Gpu => dtype,
                _ => dtype.compute(),
            },
            _ => dtype,
        };
        self.operand(body, operand, dtype)
    }

    /// An operand as a value of dtype `dtype`, broadcast over the outer axes of `body`.
    pub fn operand(
        &self,
        body: &mut BodyBuilder<'g>,
        operand: Operand,
        dtype: DType,
    ) -> Result<StmtId> {
        match operand {
            Operand::Scalar(s) => Ok(body.constant(s.convert(dtype), dtype)),
            Operand::Int(e) => {
                let v = body.index_value(e);
                Ok(body.cast(v, dtype))
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
                    Ok(body.cast(v, dtype))
                }
                other => Err(Error::unsupported(format!(
                    "operand `{}` of type {other:?}",
                    self.graph.value(v).name
                ))),
            },
        }
    }
}
