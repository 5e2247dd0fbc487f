//! Scalar operations, conversions and selections, on scalars and on vectors.

use crate::approx;
use crate::helpers::Name;
use crate::kernel::Emitter;
use crate::text::Text;
use crate::types::{self, is_float};
use crate::values::Var;
use inrush_base::{DType, Error, Result, Scalar};
use inrush_kernel::{Def, ValId};
use inrush_loops::ScalarOp;
use inrush_loops::scalar::OpClass;
use smallvec::SmallVec;

/// A vector, or what makes one of a scalar, and the scalar.
struct Operand(Option<Name>, Name);

impl Text for Operand {
    fn put(self, out: &mut String) {
        match self.0 {
            Some(f) => [&*f, "(", &self.1, ")"].put(out),
            None => out.push_str(&self.1),
        }
    }
}

impl Emitter<'_> {
    pub(crate) fn op(&mut self, v: ValId, op: ScalarOp, args: &[ValId]) -> Result<()> {
        let mut varies = false;
        for a in args {
            varies |= self.varies(*a)?;
        }
        if !self.infix(v, op, args, varies)? {
            let text = if varies {
                self.vector_op(op, args)?
            } else {
                self.scalar_op(op, args)?
            };
            self.declare(v, &*text, varies);
        }
        let raw = self.mask_source.take();
        if raw.is_some() || !self.mask_sources.is_empty() {
            let (name, _) = self.var(v)?;
            match raw {
                Some(raw) => self.mask_sources.insert(name, raw),
                None => self.mask_sources.remove(&name),
            };
        }
        Ok(())
    }

    /// Arithmetic, which most operations are, written as it comes.
    fn infix(&mut self, v: ValId, op: ScalarOp, args: &[ValId], varies: bool) -> Result<bool> {
        let sign = match op {
            ScalarOp::Add => " + ",
            ScalarOp::Sub => " - ",
            ScalarOp::Mul => " * ",
            ScalarOp::Div => " / ",
            _ => return Ok(false),
        };
        let &[a, b] = args else { return Ok(false) };
        let d = self.dtype(b);
        if !varies {
            let (a, b) = (self.var(a)?.0, self.var(b)?.0);
            self.declare(v, ["(", types::scalar(d), ")(", &a, sign, &b, ")"], false);
            return Ok(true);
        }
        if d == DType::Bool {
            return Ok(false);
        }
        let (a, b) = (self.operand(a)?, self.operand(b)?);
        let (elem, w) = (self.elem(d), self.width());
        self.helpers.arithmetic(elem, w);
        self.declare(v, (a, sign, b), true);
        Ok(true)
    }

    /// A value as a vector, which is not spelled yet.
    fn operand(&mut self, v: ValId) -> Result<Operand> {
        let (name, varies) = self.var(v)?;
        let (d, w) = (self.dtype(v), self.width());
        if !varies && d == DType::Bool {
            return Ok(Operand(None, self.spread_out(&name, d).into()));
        }
        let spread = (!varies).then(|| self.helpers.broadcast(types::scalar(d), w));
        Ok(Operand(spread, name))
    }

    /// The function of `f32` vectors that `v` is, and of what.
    fn function_of(&self, v: ValId) -> Option<(&'static str, ValId)> {
        if let Some(sum) = self.peephole.sum(v) {
            return Some(sum);
        }
        let Def::Op { op, args } = &self.kernel.value(v).def else {
            return None;
        };
        match args.as_slice() {
            [arg] if self.dtype(*arg) != DType::Bool && self.elem(self.dtype(*arg)) == "f32" => {
                Some((op.text(), *arg))
            }
            _ => None,
        }
    }

    /// The value in `n` copies of the lanes loop, this one and the next, by one call, where there is a function for that.
    pub(crate) fn together(&mut self, v: ValId, n: u32) -> Result<bool> {
        let Some((name, arg)) = self.function_of(v) else {
            return Ok(false);
        };
        if n < 2 || !self.varies(arg)? {
            return Ok(false);
        }
        let w = self.width();
        let Some(f) = approx::together(self.helpers, name, w, n, self.caps) else {
            return Ok(false);
        };
        let (mut x, mut y) = (Vec::new(), Vec::new());
        for k in 0..n {
            if k > 0 {
                self.next_copy();
            }
            x.push(self.vector(arg)?);
            y.push(self.lanes_name('v', v));
        }
        let ty = self.helpers.vector("f32", w);
        let (args, names) = (x.join(", "), y.join(", "));
        let places = y.join(", &");
        self.line(format_args!("{ty} {names}; {f}({args}, &{places});"));
        self.vars[v.index()] = Some(Var::Lanes('v'));
        Ok(true)
    }

    /// One vector of a sum that has a function of its own.
    pub(crate) fn fused_sum(&mut self, v: ValId) -> Result<bool> {
        let Some((name, arg)) = self.peephole.sum(v) else {
            return Ok(false);
        };
        if !self.varies(arg)? {
            let (x, _) = self.var(arg)?;
            let text = match name {
                approx::ONE_PLUS_ERF => {
                    let f = self.helpers.libm("erf", "f32", 1);
                    format!("1.0f + {f}({x} * 0.707106781f)")
                }
                _ => format!("1.0f + {}({x})", self.helpers.libm("tanh", "f32", 1)),
            };
            self.declare(v, &*text, false);
            return Ok(true);
        }
        let x = self.vector(arg)?;
        let w = self.width();
        let Some(f) = approx::function(self.helpers, name, w, self.caps) else {
            return Ok(false);
        };
        self.declare(v, [&*f, "(", &x, ")"], true);
        Ok(true)
    }

    fn scalar_op(&mut self, op: ScalarOp, args: &[ValId]) -> Result<String> {
        let mut x: SmallVec<[Name; 4]> = SmallVec::new();
        for a in args {
            x.push(self.var(*a)?.0);
        }
        let d = self.dtype(*args.last().unwrap_or(&ValId(0)));
        let elem = types::scalar(d);
        let float = is_float(elem);
        let suffix = if elem == "f32" { "f" } else { "" };
        let infix = |sign: &str| format!("({elem})({} {sign} {})", x[0], x[1]);
        let compare = |sign: &str| format!("{} {sign} {}", x[0], x[1]);
        let builtin = |name: &str| format!("__builtin_{name}{suffix}({})", x[0]);
        Ok(match op {
            ScalarOp::Fma => format!("({elem})({} * {} + {})", x[0], x[1], x[2]),
            ScalarOp::Neg => format!("({elem})(-{})", x[0]),
            ScalarOp::Abs if float => builtin("fabs"),
            ScalarOp::Abs => format!("({elem})({0} < 0 ? -{0} : {0})", x[0]),
            ScalarOp::Remainder if float => {
                let f = self.helpers.guarded("remainder", elem);
                format!("{f}({}, {})", x[0], x[1])
            }
            ScalarOp::FloorDiv
            | ScalarOp::TruncDiv
            | ScalarOp::Remainder
            | ScalarOp::Shl
            | ScalarOp::Shr => {
                let f = self.helpers.guarded(op.text(), elem);
                format!("{f}({}, {})", x[0], x[1])
            }
            ScalarOp::Fmod if !float => {
                let f = self.helpers.guarded("fmod", elem);
                format!("{f}({}, {})", x[0], x[1])
            }
            ScalarOp::Maximum | ScalarOp::Minimum => {
                let which = if op == ScalarOp::Maximum {
                    "max"
                } else {
                    "min"
                };
                let f = self.helpers.extreme(which, elem, 1, self.caps);
                format!("{f}({}, {})", x[0], x[1])
            }
            ScalarOp::Reciprocal => format!("1 / {}", x[0]),
            ScalarOp::Sqrt => builtin("sqrt"),
            ScalarOp::Rsqrt => format!("1 / __builtin_sqrt{suffix}({})", x[0]),
            ScalarOp::Sign => format!("({elem})(({0} > 0) - ({0} < 0))", x[0]),
            ScalarOp::Copysign => format!("__builtin_copysign{suffix}({}, {})", x[0], x[1]),
            ScalarOp::Floor | ScalarOp::Ceil | ScalarOp::Trunc | ScalarOp::Round if !float => {
                x[0].to_string()
            }
            ScalarOp::Floor => builtin("floor"),
            ScalarOp::Ceil => builtin("ceil"),
            ScalarOp::Trunc => builtin("trunc"),
            ScalarOp::Round => builtin("rint"),
            ScalarOp::Eq => compare("=="),
            ScalarOp::Ne => compare("!="),
            ScalarOp::Lt => compare("<"),
            ScalarOp::Le => compare("<="),
            ScalarOp::Gt => compare(">"),
            ScalarOp::Ge => compare(">="),
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
            ScalarOp::Philox => {
                let f = self.helpers.philox(1, self.caps);
                format!("{f}({})", x.join(", "))
            }
            ScalarOp::Logaddexp if float => {
                let f = self.helpers.logaddexp(elem, 1, self.caps);
                format!("{f}({}, {})", x[0], x[1])
            }
            ScalarOp::Gcd => {
                let f = self.helpers.gcd(elem, 1);
                format!("{f}({}, {})", x[0], x[1])
            }
            ScalarOp::Recurrence => {
                let f = self.helpers.recurrence(elem, 1, true, self.caps);
                format!("{f}({})", x.join(", "))
            }
            ScalarOp::Kummer | ScalarOp::GammaFraction if float => {
                let f = self.helpers.converging(op, elem, 1, self.caps);
                format!("{f}({})", x.join(", "))
            }
            _ if op.class() == OpClass::Math && float => {
                let f = self.helpers.libm(op.text(), elem, op.arity());
                format!("{f}({})", x.join(", "))
            }
            _ => return Err(unsupported(op, d)),
        })
    }

    fn vector_op(&mut self, op: ScalarOp, args: &[ValId]) -> Result<String> {
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
        let float = is_float(elem);
        let ty = self.helpers.vector(elem, w);
        let int = types::int_like(elem);
        let int_ty = self.helpers.vector(int, w);
        let infix = |sign: &str| format!("{} {sign} {}", x[0], x[1]);
        let caps = self.caps;
        let sign_bit = if elem == "f32" {
            "(-2147483647-1)"
        } else {
            "(-9223372036854775807ll-1)"
        };
        let sign_mask = |e: &mut Self| {
            let f = e.helpers.broadcast(int, w);
            format!("{f}({sign_bit})")
        };
        Ok(match op {
            ScalarOp::Fma => format!("{} * {} + {}", x[0], x[1], x[2]),
            ScalarOp::Neg => format!("-{}", x[0]),
            ScalarOp::Abs if float => {
                let m = sign_mask(self);
                format!("({ty})(({int_ty}){} & ~{m})", x[0])
            }
            ScalarOp::Abs if d.is_unsigned() => x[0].to_string(),
            ScalarOp::Abs => format!("({0} ^ ({0} < 0)) - ({0} < 0)", x[0]),
            // Every lane by the same number of bits, which is in range.
            ScalarOp::Shl if self.is_count(args[1], d) => infix("<<"),
            ScalarOp::Shr if self.is_count(args[1], d) => infix(">>"),
            ScalarOp::Philox => {
                let f = self.helpers.philox(w, caps);
                format!("{f}({})", x.join(", "))
            }
            ScalarOp::Logaddexp if float => {
                let f = self.helpers.logaddexp(elem, w, caps);
                format!("{f}({}, {})", x[0], x[1])
            }
            ScalarOp::Gcd => {
                let f = self.helpers.gcd(elem, w);
                format!("{f}({}, {})", x[0], x[1])
            }
            ScalarOp::Recurrence => {
                let q = args.last().map(|q| &self.kernel.value(*q).def);
                let divides = !matches!(q, Some(Def::Const(c)) if c.as_f64() == 0.0);
                let f = self.helpers.recurrence(elem, w, divides, caps);
                format!("{f}({})", x.join(", "))
            }
            ScalarOp::Kummer | ScalarOp::GammaFraction if float => {
                let f = self.helpers.converging(op, elem, w, caps);
                format!("{f}({})", x.join(", "))
            }
            ScalarOp::Remainder | ScalarOp::Fmod if elem == "f32" => {
                let f = self.helpers.left_over(op.text(), w, caps);
                format!("{f}({}, {})", x[0], x[1])
            }
            ScalarOp::Remainder
            | ScalarOp::FloorDiv
            | ScalarOp::TruncDiv
            | ScalarOp::Shl
            | ScalarOp::Shr => {
                let f = self.helpers.guarded(op.text(), elem);
                let f = self.helpers.by_lane(&f, elem, w, 2);
                format!("{f}({}, {})", x[0], x[1])
            }
            ScalarOp::Fmod if !float => {
                let f = self.helpers.guarded("fmod", elem);
                let f = self.helpers.by_lane(&f, elem, w, 2);
                format!("{f}({}, {})", x[0], x[1])
            }
            ScalarOp::Maximum | ScalarOp::Minimum => {
                let which = if op == ScalarOp::Maximum {
                    "max"
                } else {
                    "min"
                };
                // Against a constant one instruction does it, with the operands in the right order.
                if let Some(c) = (0..2).find(|i| self.is_number(args[*i])) {
                    let f = self.helpers.clamp(which, elem, w, caps);
                    format!("{f}({}, {})", x[1 - c], x[c])
                } else {
                    let f = self.helpers.extreme(which, elem, w, caps);
                    format!("{f}({}, {})", x[0], x[1])
                }
            }
            ScalarOp::Reciprocal => {
                let one = self.spread_out("1", d);
                format!("{one} / {}", x[0])
            }
            ScalarOp::Sqrt | ScalarOp::Rsqrt => {
                let f = self.helpers.rounding("sqrt", elem, w, caps);
                if op == ScalarOp::Sqrt {
                    format!("{f}({})", x[0])
                } else {
                    let one = self.spread_out("1", d);
                    format!("{one} / {f}({})", x[0])
                }
            }
            ScalarOp::Sign => {
                let sign = format!("(({0} < 0) - ({0} > 0))", x[0]);
                if float {
                    format!("__builtin_convertvector({sign}, {ty})")
                } else {
                    format!("({ty}){sign}")
                }
            }
            ScalarOp::Copysign => {
                let m = sign_mask(self);
                format!(
                    "({ty})((({int_ty}){} & ~{m}) | (({int_ty}){} & {m}))",
                    x[0], x[1]
                )
            }
            ScalarOp::Floor | ScalarOp::Ceil | ScalarOp::Trunc | ScalarOp::Round => {
                if !float {
                    return Ok(x[0].to_string());
                }
                let which = match op {
                    ScalarOp::Round => "rint",
                    _ => op.text(),
                };
                let f = self.helpers.rounding(which, elem, w, caps);
                format!("{f}({})", x[0])
            }
            ScalarOp::Eq
            | ScalarOp::Ne
            | ScalarOp::Lt
            | ScalarOp::Le
            | ScalarOp::Gt
            | ScalarOp::Ge => {
                let sign = match op {
                    ScalarOp::Eq => "==",
                    ScalarOp::Ne => "!=",
                    ScalarOp::Lt => "<",
                    ScalarOp::Le => "<=",
                    ScalarOp::Gt => ">",
                    _ => ">=",
                };
                let short = match d {
                    DType::I64 => self.short_index(args[0])?.zip(self.short_index(args[1])?),
                    _ => None,
                };
                match short {
                    Some((a, b)) => self.mask(&format!("{a} {sign} {b}"), "i32"),
                    None => self.mask(&infix(sign), elem),
                }
            }
            ScalarOp::IsNan => self.mask(&format!("{0} != {0}", x[0]), elem),
            ScalarOp::IsInf if float => {
                let m = sign_mask(self);
                let inf = if elem == "f32" {
                    "__builtin_inff()"
                } else {
                    "__builtin_inf()"
                };
                let inf = self.spread_out(inf, d);
                self.mask(&format!("({ty})(({int_ty}){} & ~{m}) == {inf}", x[0]), elem)
            }
            ScalarOp::IsInf => {
                let zero = self.spread_out("0", d);
                self.mask(&format!("{zero} != {zero}"), elem)
            }
            ScalarOp::Signbit => {
                let zero = self.helpers.broadcast(int, w);
                self.mask(&format!("({int_ty}){} < {zero}(0)", x[0]), int)
            }
            ScalarOp::And => infix("&"),
            ScalarOp::Or => infix("|"),
            ScalarOp::Xor => infix("^"),
            ScalarOp::Not => format!("~{}", x[0]),
            ScalarOp::Nextafter if float => {
                let f = self.helpers.nextafter(elem, w, caps);
                format!("{f}({}, {})", x[0], x[1])
            }
            _ if op.class() == OpClass::Math && float => {
                let f = self.helpers.math(op.text(), elem, w, op.arity(), caps);
                format!("{f}({})", x.join(", "))
            }
            _ => return Err(unsupported(op, d)),
        })
    }

    /// An index that fits in 32 bits, as a vector of them: comparisons take half of the registers.
    fn short_index(&mut self, v: ValId) -> Result<Option<String>> {
        let (exprs, w) = (self.exprs, self.width());
        // Lanes behind the last element count on.
        let fits = |lo: i64, hi: i64| lo >= i32::MIN.into() && hi <= (i32::MAX - 64).into();
        let (first, moves) = match (self.kernel.value(v).def.clone(), &self.lane) {
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
        let bc = self.helpers.broadcast("i32", w);
        Ok(Some(if moves {
            format!("({bc}({first}) + {})", self.helpers.iota("i32", w))
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

    /// A comparison of vectors of `elem` as a mask of this loop.
    fn mask(&mut self, text: &str, elem: &str) -> String {
        let m = self.mask_elem();
        let ty = self.helpers.vector(m, self.width());
        if types::bytes(elem) == types::bytes(m) {
            return format!("({ty})({text})");
        }
        // Selections between elements of this size take the comparison as it is.
        let int = types::int_like(elem);
        let own = self.helpers.vector(int, self.width());
        let name = format!("q{}", self.mask_count);
        self.mask_count += 1;
        self.line(format_args!("const {own} {name} = ({own})({text});"));
        self.mask_source = Some((name.clone(), int));
        self.helpers.convert(&name, int, m, self.width(), self.caps)
    }

    /// A mask of this loop over elements of C type `elem`.
    pub(crate) fn mask_of(&mut self, m: &str, elem: &'static str) -> String {
        if types::bytes(elem) == types::bytes(self.mask_elem()) {
            return m.to_string();
        }
        let int = types::int_like(elem);
        match self.mask_sources.get(m) {
            Some((raw, of)) if *of == int => raw.clone(),
            _ => {
                let elem = self.mask_elem();
                self.helpers.convert(m, elem, int, self.width(), self.caps)
            }
        }
    }

    /// `m ? a : b` by lanes, for values of dtype `d`.
    pub(crate) fn select(&mut self, m: &str, a: &str, b: &str, d: DType) -> String {
        let w = self.width();
        let elem = self.elem(d);
        let sel = self.helpers.select(elem, w, self.caps);
        let m = self.mask_of(m, elem);
        format!("{sel}({m}, {a}, {b})")
    }

    pub(crate) fn cast(&mut self, v: ValId, arg: ValId, to: DType) -> Result<()> {
        let from = self.dtype(arg);
        let (x, varies) = self.var(arg)?;
        if to.is_narrow_float() && to.size() == 1 {
            return Err(Error::unsupported(format!("conversion to {to}")));
        }
        // No instruction converts 64 bits to floats.
        let short = if varies && from == DType::I64 && to != DType::Bool {
            self.short_index(arg)?
        } else {
            None
        };
        let text = if let Some(x) = short {
            self.cast_vector(&x, DType::I32, to)
        } else if varies {
            self.cast_vector(&x, from, to)
        } else {
            self.cast_scalar(&x, from, to)
        };
        self.declare(v, &*text, varies);
        Ok(())
    }

    fn cast_scalar(&mut self, x: &str, from: DType, to: DType) -> String {
        if to == DType::Bool {
            return format!("{x} != 0");
        }
        if to.is_narrow_float() {
            let (st, ld) = (
                self.helpers.half(to.name(), true, 1, self.caps),
                self.helpers.half(to.name(), false, 1, self.caps),
            );
            return format!("{ld}({st}((f32)({x})))");
        }
        let ty = types::scalar(to);
        if from.is_float() && to.is_int() && to != DType::I64 && to != DType::U64 {
            // By way of 64 bits: what does not fit wraps, where C leaves it open.
            return format!("({ty})(i64)({x})");
        }
        format!("({ty})({x})")
    }

    fn cast_vector(&mut self, x: &str, from: DType, to: DType) -> String {
        let w = self.width();
        let convert = |e: &mut Self, x: &str, from: &'static str, elem: &'static str| {
            e.helpers.convert(x, from, elem, w, e.caps)
        };
        if from == to {
            return x.to_string();
        }
        if to == DType::Bool {
            let zero = self.spread_out("0", from);
            let elem = self.elem(from);
            return self.mask(&format!("{x} != {zero}"), elem);
        }
        // Masks become 0 and 1.
        let (x, from_elem) = if from == DType::Bool {
            (format!("({x} & 1)"), self.mask_elem())
        } else {
            (x.to_string(), self.elem(from))
        };
        if to.is_narrow_float() {
            let x = if from_elem == "f32" {
                x
            } else {
                convert(self, &x, from_elem, "f32")
            };
            let round = self.helpers.rounded(to.name(), w, self.caps);
            return format!("{round}({x})");
        }
        let elem = self.elem(to);
        convert(self, &x, from_elem, elem)
    }

    pub(crate) fn bitcast(&mut self, v: ValId, arg: ValId, from: DType, to: DType) -> Result<()> {
        // A byte of a truth value is 0 or 1; any other byte counts as true.
        if (from == DType::Bool) != (to == DType::Bool)
            && [from, to].iter().all(|d| d.size() == 1 && !d.is_float())
        {
            return self.cast(v, arg, to);
        }
        let (x, varies) = self.var(arg)?;
        if [from, to]
            .iter()
            .any(|d| *d == DType::Bool || d.is_narrow_float() && d.size() == 1)
        {
            return Err(Error::unsupported(format!("the bits of {from} as {to}")));
        }
        let w = if varies { self.width() } else { 1 };
        let mut x = x.to_string();
        if from.is_narrow_float() {
            let f = self.helpers.half(from.name(), true, w, self.caps);
            x = format!("{f}({x})");
        }
        // Now `x` has the C type of `from` in memory; give it that of `to`.
        let (a, b) = (types::memory(from), types::memory(to));
        if a != b {
            x = if varies {
                let ty = self.helpers.vector(b, w);
                format!("({ty})({x})")
            } else {
                let f = self.helpers.bits(a, b);
                format!("{f}({x})")
            };
        }
        if to.is_narrow_float() {
            let f = self.helpers.half(to.name(), false, w, self.caps);
            x = format!("{f}({x})");
        }
        self.declare(v, &*x, varies);
        Ok(())
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

fn unsupported(op: ScalarOp, d: DType) -> Error {
    Error::unsupported(format!("`{}` of {d} in a C kernel", op.text()))
}
