//! Scalar operations on vectors: GNU vector extensions where C has an operator, helper functions elsewhere.

use crate::helpers::Name;
use crate::kernel::Emitter;
use crate::ops::{comparison, unsupported};
use crate::types::CType;
use inrush_base::{DType, Result, Scalar};
use inrush_kernel::{Def, ValId};
use inrush_loops::ScalarOp;
use inrush_loops::scalar::OpClass;
use smallvec::SmallVec;

/// The operands of an operation as vectors, and the types that its text needs.
struct Operands<'x> {
    op: ScalarOp,
    args: &'x [ValId],
    /// Their vectors; a uniform operand is broadcast already.
    x: &'x [Name],
    /// dtype and C type of the last operand, and number of lanes.
    d: DType,
    elem: CType,
    w: u32,
    /// The vector type, and that of integers of the same size.
    ty: Name,
    int: CType,
    int_ty: Name,
}

impl Operands<'_> {
    /// Returns true if operands are floats.
    fn is_float(&self) -> bool {
        self.elem.is_float()
    }

    /// Spells a binary operator.
    fn infix(&self, sign: &str) -> String {
        format!("{} {sign} {}", self.x[0], self.x[1])
    }
}

impl Emitter<'_> {
    /// Spells an operation on vectors.
    pub(crate) fn vector_op(&mut self, op: ScalarOp, args: &[ValId]) -> Result<String> {
        let d = self.dtype(*args.last().unwrap_or(&ValId(0)));
        let w = self.width();
        if op == ScalarOp::Where {
            let (cond, cond_varies) = self.var(args[0])?;
            let (a, b) = (self.vector(args[1])?, self.vector(args[2])?);
            return Ok(if cond_varies {
                self.select(&cond, &a, &b, d)
            } else {
                format!("{cond} ? {a} : {b}")
            });
        }
        let mut x: SmallVec<[Name; 4]> = SmallVec::new();
        for a in args {
            x.push(self.vector(*a)?);
        }
        if d == DType::Bool {
            return logic(op, &x).ok_or_else(|| unsupported(op, d));
        }
        let elem = self.elem(d);
        let int = elem.int_like();
        let o = Operands {
            op,
            args,
            x: &x,
            d,
            elem,
            w,
            ty: self.helpers.vector(elem, w),
            int,
            int_ty: self.helpers.vector(int, w),
        };
        if let Some(text) = self.vector_arithmetic(&o) {
            return Ok(text);
        }
        if let Some(text) = self.vector_test(&o)? {
            return Ok(text);
        }
        match self.vector_function(&o) {
            Some(f) => Ok(format!("{f}({})", x.join(", "))),
            None => Err(unsupported(op, d)),
        }
    }

    /// Spells what operators of C and one or two helpers do.
    fn vector_arithmetic(&mut self, o: &Operands) -> Option<String> {
        let (x, ty, int_ty) = (o.x, &o.ty, &o.int_ty);
        Some(match o.op {
            // Compilers contract it to one instruction where the target has one.
            ScalarOp::Fma => format!("{} * {} + {}", x[0], x[1], x[2]),
            ScalarOp::Neg => format!("-{}", x[0]),
            ScalarOp::Abs if o.is_float() => {
                let m = self.sign_mask(o);
                format!("({ty})(({int_ty}){} & ~{m})", x[0])
            }
            ScalarOp::Abs if o.d.is_unsigned() => x[0].to_string(),
            // The mask of negative lanes is -1: `(x ^ m) - m` negates these.
            ScalarOp::Abs => format!("({0} ^ ({0} < 0)) - ({0} < 0)", x[0]),
            // Every lane by the same number of bits, which is in range.
            ScalarOp::Shl if self.is_count(o.args[1], o.d) => o.infix("<<"),
            ScalarOp::Shr if self.is_count(o.args[1], o.d) => o.infix(">>"),
            ScalarOp::Maximum | ScalarOp::Minimum => self.vector_extreme(o),
            ScalarOp::Reciprocal => {
                let one = self.spread_out("1", o.d);
                format!("{one} / {}", x[0])
            }
            ScalarOp::Rsqrt => {
                let f = self.helpers.rounding("sqrt", o.elem, o.w, self.caps);
                let one = self.spread_out("1", o.d);
                format!("{one} / {f}({})", x[0])
            }
            ScalarOp::Sign => {
                let sign = format!("(({0} < 0) - ({0} > 0))", x[0]);
                if o.is_float() {
                    format!("__builtin_convertvector({sign}, {ty})")
                } else {
                    format!("({ty}){sign}")
                }
            }
            ScalarOp::Copysign => {
                let m = self.sign_mask(o);
                format!(
                    "({ty})((({int_ty}){} & ~{m}) | (({int_ty}){} & {m}))",
                    x[0], x[1]
                )
            }
            ScalarOp::Floor | ScalarOp::Ceil | ScalarOp::Trunc | ScalarOp::Round
                if !o.is_float() =>
            {
                x[0].to_string()
            }
            ScalarOp::And => o.infix("&"),
            ScalarOp::Or => o.infix("|"),
            ScalarOp::Xor => o.infix("^"),
            ScalarOp::Not => format!("~{}", x[0]),
            _ => return None,
        })
    }

    /// Spells a maximum or minimum. Against a constant one instruction does it, with the operands in the right order.
    fn vector_extreme(&mut self, o: &Operands) -> String {
        let x = o.x;
        let which = if o.op == ScalarOp::Maximum {
            "max"
        } else {
            "min"
        };
        if let Some(c) = (0..2).find(|i| self.is_number(o.args[*i])) {
            let f = self.helpers.clamp(which, o.elem, o.w, self.caps);
            format!("{f}({}, {})", x[1 - c], x[c])
        } else {
            let f = self.helpers.extreme(which, o.elem, o.w, self.caps);
            format!("{f}({}, {})", x[0], x[1])
        }
    }

    /// Spells an operation whose result is a mask.
    fn vector_test(&mut self, o: &Operands) -> Result<Option<String>> {
        let (x, elem) = (o.x, o.elem);
        if let Some(sign) = comparison(o.op) {
            // Indices of 64 bits that are known to fit compare as 32 bits.
            let short = match o.d {
                DType::I64 => (self.short_index(o.args[0])?).zip(self.short_index(o.args[1])?),
                _ => None,
            };
            return Ok(Some(match short {
                Some((a, b)) => self.mask(&format!("{a} {sign} {b}"), CType::I32),
                None => self.mask(&o.infix(sign), elem),
            }));
        }
        Ok(Some(match o.op {
            ScalarOp::IsNan => self.mask(&format!("{0} != {0}", x[0]), elem),
            ScalarOp::IsInf if o.is_float() => {
                let m = self.sign_mask(o);
                let inf = if elem == CType::F32 {
                    "__builtin_inff()"
                } else {
                    "__builtin_inf()"
                };
                let inf = self.spread_out(inf, o.d);
                let (ty, int_ty) = (&o.ty, &o.int_ty);
                self.mask(&format!("({ty})(({int_ty}){} & ~{m}) == {inf}", x[0]), elem)
            }
            ScalarOp::IsInf => {
                let zero = self.spread_out("0", o.d);
                self.mask(&format!("{zero} != {zero}"), elem)
            }
            ScalarOp::Signbit => {
                let zero = self.helpers.broadcast(o.int, o.w);
                self.mask(&format!("({}){} < {zero}(0)", o.int_ty, x[0]), o.int)
            }
            _ => return Ok(None),
        }))
    }

    /// Returns the helper that takes all operands.
    fn vector_function(&mut self, o: &Operands) -> Option<Name> {
        let (op, elem, w, caps) = (o.op, o.elem, o.w, self.caps);
        let float = o.is_float();
        Some(match op {
            ScalarOp::Philox => self.helpers.philox(w, caps),
            ScalarOp::Logaddexp if float => self.helpers.logaddexp(elem, w, caps),
            ScalarOp::Gcd => self.helpers.gcd(elem, w).into(),
            ScalarOp::Recurrence => {
                let q = o.args.last().map(|q| &self.kernel.value(*q).def);
                // A `q` of constant zero needs no division in each step.
                let divides = !matches!(q, Some(Def::Const(c)) if c.as_f64() == 0.0);
                self.helpers.recurrence(elem, w, divides, caps).into()
            }
            ScalarOp::Kummer | ScalarOp::GammaFraction if float => {
                self.helpers.converging(op, elem, w, caps).into()
            }
            ScalarOp::Remainder | ScalarOp::Fmod if elem == CType::F32 => {
                self.helpers.left_over(op.text(), w, caps)
            }
            ScalarOp::Remainder
            | ScalarOp::FloorDiv
            | ScalarOp::TruncDiv
            | ScalarOp::Shl
            | ScalarOp::Shr => {
                let f = self.helpers.guarded(op.text(), elem);
                self.helpers.by_lane(&f, elem, w, 2).into()
            }
            ScalarOp::Fmod if !float => {
                let f = self.helpers.guarded("fmod", elem);
                self.helpers.by_lane(&f, elem, w, 2).into()
            }
            // `rint` rounds ties to even, as PyTorch does.
            ScalarOp::Round => self.helpers.rounding("rint", elem, w, caps),
            ScalarOp::Sqrt | ScalarOp::Floor | ScalarOp::Ceil | ScalarOp::Trunc => {
                self.helpers.rounding(op.text(), elem, w, caps)
            }
            ScalarOp::Nextafter if float => self.helpers.nextafter(elem, w, caps),
            _ if op.class() == OpClass::Math && float => {
                self.helpers.math(op.text(), elem, w, op.arity(), caps)
            }
            _ => return None,
        })
    }

    /// Spells a vector of sign bits.
    fn sign_mask(&mut self, o: &Operands) -> String {
        let bit = if o.elem == CType::F32 {
            "(-2147483647-1)"
        } else {
            "(-9223372036854775807ll-1)"
        };
        let f = self.helpers.broadcast(o.int, o.w);
        format!("{f}({bit})")
    }

    /// An index that fits in 32 bits, as a vector of them: comparisons take half of the registers.
    pub(crate) fn short_index(&mut self, v: ValId) -> Result<Option<String>> {
        let (exprs, w) = (self.exprs, self.width());
        // Indices of lanes past the last element count on.
        let fits = |lo: i64, hi: i64| lo >= i32::MIN.into() && hi <= (i32::MAX - 64).into();
        let (first, moves) = match (self.kernel.value(v).def.clone(), &self.state.lane) {
            (Def::Const(c), _) if fits(c.as_i64(), c.as_i64()) => (c.as_i64().to_string(), false),
            (Def::Index(e), Some(lane)) if fits(exprs.range(e).lo, exprs.range(e).hi) => {
                let moves = match exprs.affine(e, &[lane.sym]) {
                    _ if !self.expr_varies(e) => false,
                    Some((c, rest)) if exprs.is_int(c[0], 1) && !self.expr_varies(rest) => true,
                    _ => return Ok(None),
                };
                (format!("(i32)({})", self.expr(e, false)?), moves)
            }
            _ => return Ok(None),
        };
        let bc = self.helpers.broadcast(CType::I32, w);
        Ok(Some(if moves {
            format!("({bc}({first}) + {})", self.helpers.iota(CType::I32, w))
        } else {
            format!("{bc}({first})")
        }))
    }

    /// A constant that is not NaN (any integer constant).
    fn is_number(&self, v: ValId) -> bool {
        match self.kernel.value(v).def {
            Def::Const(Scalar::Float(f)) => !f.is_nan(),
            Def::Const(_) => true,
            _ => false,
        }
    }

    /// A constant number of bits that values of `d` can be shifted by.
    fn is_count(&self, v: ValId, d: DType) -> bool {
        matches!(self.kernel.value(v).def, Def::Const(c) if (0..8 * d.size() as i64).contains(&c.as_i64()))
    }
}

/// Operations on bools as masks.
fn logic(op: ScalarOp, x: &[Name]) -> Option<String> {
    let (a, b) = (&x[0], x.get(1));
    let b = || b.cloned();
    Some(match op {
        ScalarOp::And | ScalarOp::Mul | ScalarOp::Minimum => format!("{a} & {}", b()?),
        ScalarOp::Or | ScalarOp::Add | ScalarOp::Maximum => format!("{a} | {}", b()?),
        ScalarOp::Xor | ScalarOp::Ne => format!("{a} ^ {}", b()?),
        ScalarOp::Eq => format!("~({a} ^ {})", b()?),
        ScalarOp::Lt => format!("~{a} & {}", b()?),
        ScalarOp::Le => format!("~{a} | {}", b()?),
        ScalarOp::Gt => format!("{a} & ~{}", b()?),
        ScalarOp::Ge => format!("{a} | ~{}", b()?),
        ScalarOp::Not => format!("~{a}"),
        _ => return None,
    })
}
