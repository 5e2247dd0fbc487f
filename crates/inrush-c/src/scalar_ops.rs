//! Scalar operations on scalars: operators of C and builtins where there are some, helper functions elsewhere.

use crate::helpers::Name;
use crate::kernel::Emitter;
use crate::ops::{comparison, unsupported};
use crate::types::{self, CType};
use inrush_base::{DType, Result};
use inrush_kernel::ValId;
use inrush_loops::ScalarOp;
use inrush_loops::scalar::OpClass;
use smallvec::SmallVec;

impl Emitter<'_> {
    /// Spells an operation on scalars.
    pub(crate) fn scalar_op(&mut self, op: ScalarOp, args: &[ValId]) -> Result<String> {
        let mut x: SmallVec<[Name; 4]> = SmallVec::new();
        for a in args {
            x.push(self.var(*a)?.0);
        }
        let d = self.dtype(*args.last().unwrap_or(&ValId(0)));
        if let Some(text) = scalar_text(op, d, &x) {
            return Ok(text);
        }
        match self.scalar_function(op, types::scalar(d)) {
            Some(f) => Ok(format!("{f}({})", x.join(", "))),
            None => Err(unsupported(op, d)),
        }
    }

    /// Returns the helper or library function that takes all operands.
    fn scalar_function(&mut self, op: ScalarOp, elem: CType) -> Option<Name> {
        let caps = self.caps;
        let float = elem.is_float();
        Some(match op {
            ScalarOp::FloorDiv
            | ScalarOp::TruncDiv
            | ScalarOp::Remainder
            | ScalarOp::Shl
            | ScalarOp::Shr => self.helpers.guarded(op.text(), elem),
            ScalarOp::Fmod if !float => self.helpers.guarded(op.text(), elem),
            ScalarOp::Maximum => self.helpers.extreme("max", elem, 1, caps),
            ScalarOp::Minimum => self.helpers.extreme("min", elem, 1, caps),
            ScalarOp::Philox => self.helpers.philox(1, caps),
            ScalarOp::Logaddexp if float => self.helpers.logaddexp(elem, 1, caps),
            ScalarOp::Gcd => self.helpers.gcd(elem, 1).into(),
            ScalarOp::Recurrence => self.helpers.recurrence(elem, 1, true, caps).into(),
            ScalarOp::Kummer | ScalarOp::GammaFraction if float => {
                self.helpers.converging(op, elem, 1, caps).into()
            }
            _ if op.class() == OpClass::Math && float => {
                self.helpers.libm(op.text(), elem, op.arity()).into()
            }
            _ => return None,
        })
    }
}

/// Spells what operators and builtins of C do.
fn scalar_text(op: ScalarOp, d: DType, x: &[Name]) -> Option<String> {
    let elem = types::scalar(d);
    let float = elem.is_float();
    let suffix = if elem == CType::F32 { "f" } else { "" };
    let infix = |sign: &str| format!("({elem})({} {sign} {})", x[0], x[1]);
    let builtin = |name: &str| format!("__builtin_{name}{suffix}({})", x[0]);
    if let Some(sign) = comparison(op) {
        return Some(format!("{} {sign} {}", x[0], x[1]));
    }
    Some(match op {
        ScalarOp::Fma => format!("({elem})({} * {} + {})", x[0], x[1], x[2]),
        ScalarOp::Neg => format!("({elem})(-{})", x[0]),
        ScalarOp::Abs if float => builtin("fabs"),
        ScalarOp::Abs => format!("({elem})({0} < 0 ? -{0} : {0})", x[0]),
        ScalarOp::Reciprocal => format!("1 / {}", x[0]),
        ScalarOp::Sqrt => builtin("sqrt"),
        ScalarOp::Rsqrt => format!("1 / {}", builtin("sqrt")),
        ScalarOp::Sign => format!("({elem})(({0} > 0) - ({0} < 0))", x[0]),
        ScalarOp::Copysign => format!("__builtin_copysign{suffix}({}, {})", x[0], x[1]),
        ScalarOp::Floor | ScalarOp::Ceil | ScalarOp::Trunc | ScalarOp::Round if !float => {
            x[0].to_string()
        }
        ScalarOp::Floor => builtin("floor"),
        ScalarOp::Ceil => builtin("ceil"),
        ScalarOp::Trunc => builtin("trunc"),
        ScalarOp::Round => builtin("rint"),
        ScalarOp::IsNan => format!("{0} != {0}", x[0]),
        ScalarOp::IsInf if float => format!("{} == __builtin_inf()", builtin("fabs")),
        ScalarOp::IsInf => "0".into(),
        ScalarOp::Signbit if float => format!("{} != 0", builtin("signbit")),
        ScalarOp::Signbit => format!("{} < 0", x[0]),
        ScalarOp::And => infix("&"),
        ScalarOp::Or => infix("|"),
        ScalarOp::Xor => infix("^"),
        ScalarOp::Not if d == DType::Bool => format!("!{}", x[0]),
        ScalarOp::Not => format!("({elem})(~{})", x[0]),
        ScalarOp::Where => format!("{} ? {} : {}", x[0], x[1], x[2]),
        _ => return None,
    })
}
