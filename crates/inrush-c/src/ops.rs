//! Operations, conversions and selections of values, each as a scalar or as vectors.

use crate::approx;
use crate::helpers::Name;
use crate::kernel::Emitter;
use crate::text::Text;
use crate::types::{self, CType};
use crate::values::Var;
use inrush_base::{DType, Error, Result};
use inrush_kernel::{Def, ValId};
use inrush_loops::ScalarOp;

/// A vector, or what makes one of a scalar, and the scalar.
/// The name of the broadcast is kept apart, so that the text is written once, straight into the
/// line.
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
    /// Writes an operation. If it gives a mask, notes the comparison that it was made of.
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
        let raw = self.masks.source.take();
        if raw.is_some() || !self.masks.sources.is_empty() {
            let (name, _) = self.var(v)?;
            match raw {
                Some(raw) => self.masks.sources.insert(name, raw),
                None => self.masks.sources.remove(&name),
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
            self.declare(
                v,
                ["(", types::scalar(d).name(), ")(", &a, sign, &b, ")"],
                false,
            );
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
        if let Some(sum) = self.facts.peephole.sum(v) {
            return Some(sum);
        }
        let Def::Op { op, args } = &self.kernel.value(v).def else {
            return None;
        };
        match args.as_slice() {
            [arg]
                if self.dtype(*arg) != DType::Bool && self.elem(self.dtype(*arg)) == CType::F32 =>
            {
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
        // All copies are declared first: the call returns them through pointers.
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
        let ty = self.helpers.vector(CType::F32, w);
        let (args, names) = (x.join(", "), y.join(", "));
        let places = y.join(", &");
        self.line(format_args!("{ty} {names}; {f}({args}, &{places});"));
        self.vars[v.index()] = Some(Var::Lanes('v'));
        Ok(true)
    }

    /// One vector of a sum that has a function of its own.
    pub(crate) fn fused_sum(&mut self, v: ValId) -> Result<bool> {
        let Some((name, arg)) = self.facts.peephole.sum(v) else {
            return Ok(false);
        };
        if !self.varies(arg)? {
            let (x, _) = self.var(arg)?;
            // A uniform operand: the library's scalar function, and the sum as it was written.
            let text = match name {
                approx::ONE_PLUS_ERF => {
                    let f = self.helpers.libm("erf", CType::F32, 1);
                    format!("1.0f + {f}({x} * 0.707106781f)")
                }
                _ => format!("1.0f + {}({x})", self.helpers.libm("tanh", CType::F32, 1)),
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

    /// A comparison of vectors of `elem` as a mask of this loop.
    pub(crate) fn mask(&mut self, text: &str, elem: CType) -> String {
        let m = self.mask_elem();
        let ty = self.helpers.vector(m, self.width());
        if elem.bytes() == m.bytes() {
            return format!("({ty})({text})");
        }
        // Selections between elements of this size take the comparison as it is.
        let int = elem.int_like();
        let own = self.helpers.vector(int, self.width());
        // Pointers of jammed stencils are `q` with the number of a value.
        let name = format!("cmp{}", self.masks.count);
        self.masks.count += 1;
        self.line(format_args!("const {own} {name} = ({own})({text});"));
        self.masks.source = Some((name.clone(), int));
        self.helpers.convert(&name, int, m, self.width(), self.caps)
    }

    /// A mask of this loop over elements of C type `elem`.
    pub(crate) fn mask_of(&mut self, m: &str, elem: CType) -> String {
        if elem.bytes() == self.mask_elem().bytes() {
            return m.to_string();
        }
        let int = elem.int_like();
        match self.masks.sources.get(m) {
            // The mask came of a comparison of this size: no conversion there and back.
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

    /// Writes a conversion.
    pub(crate) fn cast(&mut self, v: ValId, arg: ValId, to: DType) -> Result<()> {
        let from = self.dtype(arg);
        let (x, varies) = self.var(arg)?;
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

    /// Spells the conversion of a scalar.
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

    /// Spells the conversion of a vector.
    fn cast_vector(&mut self, x: &str, from: DType, to: DType) -> String {
        let w = self.width();
        let convert = |e: &mut Self, x: &str, from: CType, elem: CType| {
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
            let x = if from_elem == CType::F32 {
                x
            } else {
                convert(self, &x, from_elem, CType::F32)
            };
            let round = self.helpers.rounded(to.name(), w, self.caps);
            return format!("{round}({x})");
        }
        let elem = self.elem(to);
        convert(self, &x, from_elem, elem)
    }

    /// Writes a reinterpretation of bits.
    pub(crate) fn bitcast(&mut self, v: ValId, arg: ValId, from: DType, to: DType) -> Result<()> {
        // A byte of a truth value is 0 or 1; any other byte counts as true.
        if (from == DType::Bool) != (to == DType::Bool)
            && [from, to].iter().all(|d| d.size() == 1 && !d.is_float())
        {
            return self.cast(v, arg, to);
        }
        let (x, varies) = self.var(arg)?;
        if [from, to].contains(&DType::Bool) {
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

/// Returns the sign of a comparison.
pub(crate) fn comparison(op: ScalarOp) -> Option<&'static str> {
    Some(match op {
        ScalarOp::Eq => "==",
        ScalarOp::Ne => "!=",
        ScalarOp::Lt => "<",
        ScalarOp::Le => "<=",
        ScalarOp::Gt => ">",
        ScalarOp::Ge => ">=",
        _ => return None,
    })
}

pub(crate) fn unsupported(op: ScalarOp, d: DType) -> Error {
    Error::unsupported(format!("`{}` of {d} in a C kernel", op.text()))
}
