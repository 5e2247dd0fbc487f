//! The dtypes that each operation takes.

use crate::{ReduceOp, ScalarOp};
use inrush_base::DType;

/// Returns the reason why `op` does not take operands of compute dtype `d`; `None` if it does.
pub(super) fn refuses(op: ScalarOp, d: DType) -> Option<&'static str> {
    use ScalarOp::*;
    if d != d.compute() {
        return Some("is not a compute dtype");
    }
    let (ok, why) = match op {
        Add | Sub | Mul | Fma | Neg | Abs | Sign | Remainder | Fmod => (
            d.is_float() || d.is_int(),
            "is no number (use the bit operations)",
        ),
        FloorDiv | TruncDiv | Shl | Shr | Gcd => (d.is_int(), "is no integer"),
        And | Or | Xor | Not => (
            d.is_int() || d == DType::Bool,
            "is neither integer nor bool",
        ),
        Maximum | Minimum | Eq | Ne | Lt | Le | Gt | Ge | Where => (
            d.is_float() || d.is_int() || d == DType::Bool,
            "has no order or choice here",
        ),
        Philox => (d == DType::I32, "is not i32"),
        _ => (d.is_float(), "is no float"),
    };
    (!ok).then_some(why)
}

/// Returns the dtype that a reduction of values of `d` gives, or why there is none.
pub(super) fn reduced(op: ReduceOp, d: DType) -> Result<DType, &'static str> {
    let real = d.is_float() || d.is_int() || d == DType::Bool;
    match op {
        _ if d != d.compute() || !real => Err("is not a compute dtype"),
        ReduceOp::ArgMax | ReduceOp::ArgMin => Ok(DType::I64),
        ReduceOp::Any | ReduceOp::All if d != DType::Bool => Err("is not bool"),
        ReduceOp::XorSum if d.is_float() => Err("has no bits to combine"),
        ReduceOp::LogSumExp if !d.is_float() => Err("is no float"),
        ReduceOp::Sum | ReduceOp::Prod if d == DType::Bool => Err("is no number"),
        _ => Ok(d),
    }
}
