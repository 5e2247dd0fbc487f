//! Scalar operations: the core is spelled, math functions follow one naming rule.

use crate::{float8, types};
use inrush_base::{Caps, DType, Error, Float8, Result};
use inrush_loops::ScalarOp;
use inrush_loops::scalar::OpClass;

/// Math functions that the language itself has, which are the device's fast ones; all others are `libdevice`'s, which uses
/// the C library's names.
const BUILTIN: &[ScalarOp] = &[
    ScalarOp::Exp,
    ScalarOp::Exp2,
    ScalarOp::Log,
    ScalarOp::Log2,
    ScalarOp::Sin,
    ScalarOp::Cos,
    ScalarOp::Erf,
];

/// `op` of operands of compute dtype `d`. Operands are names or literals, at least one of them no literal.
pub(crate) fn spell(op: ScalarOp, a: &[String], d: DType) -> Result<String> {
    use ScalarOp::*;
    let float = d.is_float();
    let boolean = d == DType::Bool;
    let ty = types::name(d)?;
    let (x, y) = (
        a.first().cloned().unwrap_or_default(),
        a.get(1).cloned().unwrap_or_default(),
    );
    let infix = |o: &str| format!("{x} {o} {y}");
    let call = |f: &str| format!("{f}({})", a.join(", "));
    // Booleans are numbers 0 and 1 where their order counts.
    let number = |t: &str| match boolean {
        true => format!("{t}.to(tl.int32)"),
        false => t.to_string(),
    };
    let ordered = |o: &str| format!("{} {o} {}", number(&x), number(&y));
    Ok(match op {
        Add if boolean => infix("|"),
        Mul if boolean => infix("&"),
        Sub if boolean => infix("^"),
        Maximum if boolean => infix("|"),
        Minimum if boolean => infix("&"),
        Abs | Neg | Sign if boolean => x,
        Add => infix("+"),
        // Contracted with a product that gave `x`, a difference would be the rounding of that product instead of zero.
        Sub if float && x == y => format!("tl.abs({x}) * 0.0"),
        Sub => infix("-"),
        Mul => infix("*"),
        Div => infix("/"),
        Fma => format!("{x} * {y} + {}", a[2]),
        // Zero minus zero would lose the sign.
        Neg if float => format!("{x} * -1.0"),
        Neg => format!("0 - {x}"),
        Abs if d.is_unsigned() => x,
        Abs => call("tl.abs"),
        FloorDiv if d.is_unsigned() => call("trunc_div"),
        FloorDiv => call("floor_div"),
        TruncDiv => call("trunc_div"),
        Remainder if float => call("float_remainder"),
        Remainder if d.is_unsigned() => call("uint_remainder"),
        Remainder => call("int_remainder"),
        Fmod if !float => call("int_fmod"),
        Maximum if float => call("nan_max"),
        Minimum if float => call("nan_min"),
        Maximum => call("tl.maximum"),
        Minimum => call("tl.minimum"),
        Reciprocal => format!("1.0 / {x}"),
        // Rounded to the nearest, as eager's; the plain one is approximate.
        Sqrt if d == DType::F32 => call("tl.sqrt_rn"),
        Sqrt => call("tl.sqrt"),
        Rsqrt if d == DType::F32 => call("rsqrt"),
        Rsqrt => call("libdevice.rsqrt"),
        Sign if d.is_unsigned() => format!("({x} != 0).to(tl.{ty})"),
        Sign => format!("({x} > 0).to(tl.{ty}) - ({x} < 0).to(tl.{ty})"),
        Floor => call("tl.floor"),
        Ceil => call("tl.ceil"),
        Trunc => call("libdevice.trunc"),
        Round => call("libdevice.nearbyint"),
        Copysign => call("libdevice.copysign"),
        Eq => infix("=="),
        Ne => infix("!="),
        Lt => ordered("<"),
        Le => ordered("<="),
        Gt => ordered(">"),
        Ge => ordered(">="),
        IsNan if float => format!("{x} != {x}"),
        IsInf if float => format!("tl.abs({x}) == float(\"inf\")"),
        IsNan | IsInf => format!("{x} != {x}"),
        Signbit if float => {
            let int = if d == DType::F64 { "int64" } else { "int32" };
            format!("{x}.to(tl.{int}, bitcast=True) < 0")
        }
        Signbit => format!("{} < 0", number(&x)),
        And => infix("&"),
        Or => infix("|"),
        Xor => infix("^"),
        Not if boolean => format!("{x} == 0"),
        Not => format!("~{x}"),
        Shl | Shr => shift(op, d, &x, &y),
        Where => call("tl.where"),
        Philox => call("random_bits"),
        Gcd => call("gcd"),
        Logaddexp if float => call("logaddexp"),
        Recurrence => call("recurrence"),
        Kummer if float => call("kummer"),
        GammaFraction if float => call("gamma_fraction"),
        _ if op.class() != OpClass::Math || !float => {
            return Err(Error::unsupported(format!(
                "the operation `{}` of {d} in a Triton kernel",
                op.text()
            )));
        }
        _ if BUILTIN.contains(&op) => call(&format!("tl.{}", op.text())),
        _ => call(&format!("libdevice.{}", op.text())),
    })
}

/// Spells a shift. By a number of bits that is out of range it gives zero, or the sign.
fn shift(op: ScalarOp, d: DType, x: &str, y: &str) -> String {
    let bits = 8 * d.size();
    let in_range = format!("({y} >= 0) & ({y} < {bits})");
    match op {
        ScalarOp::Shl => format!("tl.where({in_range}, {x} << {y}, 0)"),
        _ if d.is_unsigned() => format!("tl.where({in_range}, {x} >> {y}, 0)"),
        _ => format!("{x} >> tl.where({in_range}, {y}, {})", bits - 1),
    }
}

/// Which operands may be literals: an operation needs an operand whose type says what the literals are.
pub(crate) fn literals(op: ScalarOp, d: DType, constant: &[bool]) -> Vec<bool> {
    let typed = match op {
        ScalarOp::Where => constant[1..].iter().any(|c| !c),
        _ => constant.iter().any(|c| !c),
    };
    // What calls a method of the operand needs a tensor.
    let method = matches!(op, ScalarOp::Signbit | ScalarOp::Fma | ScalarOp::Sign);
    let plain = typed && !method && d != DType::F64 && d != DType::Bool;
    // Functions of several operands take tensors.
    let infix = matches!(
        op,
        ScalarOp::Add
            | ScalarOp::Sub
            | ScalarOp::Mul
            | ScalarOp::Div
            | ScalarOp::Eq
            | ScalarOp::Ne
            | ScalarOp::Lt
            | ScalarOp::Le
            | ScalarOp::Gt
            | ScalarOp::Ge
            | ScalarOp::And
            | ScalarOp::Or
            | ScalarOp::Xor
            | ScalarOp::Where
            | ScalarOp::Maximum
            | ScalarOp::Minimum
    );
    (0..constant.len())
        .map(|k| plain && infix && !(op == ScalarOp::Where && k == 0))
        .collect()
}

/// A float32 as a float of eight bits as memory has it, rounded as eager does; nothing for other types.
pub(crate) fn to_float8(x: &str, to: DType, caps: &Caps) -> Option<String> {
    Some(match types::encoding(to, caps) {
        Some(f) => float8::code(x, f),
        None => {
            Float8::of(to)?;
            format!("to_{to}({x})")
        }
    })
}

/// Returns a stored float of eight bits or a half, as a float32.
pub(crate) fn widened(x: &str, from: DType, caps: &Caps) -> String {
    match types::encoding(from, caps) {
        Some(f) => float8::number(x, f),
        None => format!("{x}.to(tl.float32)"),
    }
}

/// A value converted with ATen's meaning; the result has the compute dtype of `to`.
pub(crate) fn cast(x: &str, from: DType, to: DType, caps: &Caps) -> Result<String> {
    let ty = types::name(to)?;
    Ok(match to {
        DType::Bool if from == DType::Bool => x.into(),
        DType::Bool => format!("({x} != 0)"),
        _ if to.is_narrow_float() => {
            // Through float32 in one rounding step, as eager does.
            let wide = match from {
                DType::F32 => x.to_string(),
                _ => format!("{x}.to(tl.float32)"),
            };
            match to_float8(&wide, to, caps) {
                Some(narrow) => widened(&narrow, to, caps),
                None => format!("{wide}.to(tl.{ty}).to(tl.float32)"),
            }
        }
        _ if from == to => x.into(),
        // By way of 32 bits: what does not fit wraps.
        _ if from.is_float() && to.is_int() && to.size() < 4 => {
            format!("{x}.to(tl.int32).to(tl.{ty})")
        }
        DType::U32 | DType::U64 if from.is_float() => format!("{x}.to(tl.int64).to(tl.{ty})"),
        _ => format!("{x}.to(tl.{ty})"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_of_one_value_is_not_left_to_contraction() {
        let args = ["t5".to_string(), "t5".to_string()];
        let f32 = spell(ScalarOp::Sub, &args, DType::F32).unwrap();
        assert_eq!(f32, "tl.abs(t5) * 0.0");
        assert_eq!(spell(ScalarOp::Sub, &args, DType::I32).unwrap(), "t5 - t5");
    }
}
