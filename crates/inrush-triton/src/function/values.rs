//! Values of a block program: each is a line, or stands where it is used.

use super::Emitter;
use crate::{float8, ops, types};
use inrush_base::{DType, Error, Result, Scalar};
use inrush_expr::Expr;
use inrush_kernel::{Def, ValId};
use inrush_loops::ScalarOp;

impl Emitter<'_> {
    /// Returns the dtype that a value is computed in.
    pub(crate) fn dtype(&self, v: ValId) -> DType {
        self.block.value(v).dtype
    }

    /// Returns the number that a value is, if it is one.
    pub(crate) fn constant(&self, v: ValId) -> Option<Scalar> {
        match self.block.value(v).def {
            Def::Const(c) => Some(c),
            _ => None,
        }
    }

    /// The text of a value: its name, or a constant as a tensor.
    pub(crate) fn text(&self, v: ValId) -> Result<String> {
        if let Some(c) = self.constant(v) {
            let d = self.dtype(v);
            let ty = types::name(d)?;
            return Ok(format!("tl.full([], {}, tl.{ty})", types::literal(c, d)));
        }
        if self.state.tail_mask.is_some_and(|s| s.holds == v) {
            return Ok("tl.full([], 1, tl.int1)".into());
        }
        let name = self.names.values.get(&v).cloned();
        name.ok_or_else(|| Error::internal(format!("{v} is used before it is defined")))
    }

    /// `text` of dimensions `have` spread over those of `want`.
    pub(crate) fn spread(&self, text: String, have: u32, want: u32) -> String {
        match want & !have {
            0 => text,
            _ => format!("tl.broadcast_to({text}, {})", self.shape(want | have)),
        }
    }

    /// Writes the line of a value. Some need none: constants, functions that their sum computes,
    /// masks known to hold.
    pub(crate) fn define(&mut self, v: ValId) -> Result<()> {
        let value = self.block.value(v).clone();
        if self.state.tail_mask.is_some_and(|s| s.needs_no_line(v)) {
            return Ok(());
        }
        if let Def::Op { op, args } = &value.def
            && let Some(left) = self.simplified(*op, args)
        {
            let (have, want) = (
                self.block.shapes[left.index()],
                self.block.shapes[v.index()],
            );
            let text = self.spread(self.text(left)?, have, want);
            self.names.values.insert(v, text);
            return Ok(());
        }
        let text = match &value.def {
            Def::Const(_) => return Ok(()),
            Def::Sum(1..) => "grad_product".to_string(),
            Def::Sum(_) if self.block.attention.is_some() => "product".to_string(),
            Def::Sum(_) => "acc".to_string(),
            Def::Final(a) => self.final_value(*a, value.dtype)?,
            Def::Running { acc, value: of } => self.running(*acc, *of, value.dtype)?,
            Def::Sorted { value: of } => self.sorted(*of, value.dtype)?,
            Def::Index(e) if self.facts.narrow.contains(&v) => format!("({})", self.offset(*e)?),
            Def::Index(e) => self.index(*e, value.dtype)?,
            Def::Load {
                buf,
                offset,
                mask,
                fill,
            } => self.load(v, *buf, *offset, *mask, *fill)?,
            Def::Op { .. } if self.facts.fused.alone(v) => return Ok(()),
            Def::Op { .. } if self.facts.fused.sum(v).is_some() => {
                let (f, arg) = self
                    .facts
                    .fused
                    .sum(v)
                    .ok_or_else(|| Error::internal("no sum"))?;
                format!("{f}({})", self.text(arg)?)
            }
            Def::Op { op, args } => self.operation(v, *op, args)?,
            Def::Cast { arg, to } => {
                ops::cast(&self.text(*arg)?, self.dtype(*arg), *to, self.caps)?
            }
            Def::Bitcast { arg, from, to } => self.bitcast(*arg, *from, *to)?,
            Def::Indirect { .. } => return self.indirect(v),
        };
        let name = self.fresh();
        self.line(format!("{name} = {text}"));
        self.names.values.insert(v, name);
        Ok(())
    }

    /// Returns the text of an index expression as a value.
    fn index(&self, e: Expr, dtype: DType) -> Result<String> {
        let ty = types::name(dtype)?;
        if let Some(i) = self.exprs.as_int(e) {
            return Ok(format!("tl.full([], {i}, tl.{ty})"));
        }
        let (text, wide) = self.wide_expr(e)?;
        Ok(match (wide, dtype) {
            (true, DType::I64) if self.exprs.as_sym(e).is_none() => text,
            _ => format!("({text}).to(tl.{ty})"),
        })
    }

    /// Returns the text of an operation. Constants are literals where the operation takes them.
    fn operation(&self, v: ValId, op: ScalarOp, args: &[ValId]) -> Result<String> {
        let d = match op {
            ScalarOp::Where => self.dtype(v),
            _ => self.dtype(args[0]),
        };
        let constant: Vec<bool> = (args.iter()).map(|a| self.constant(*a).is_some()).collect();
        let literal = ops::literals(op, d, &constant);
        let mut texts = Vec::new();
        for (k, a) in args.iter().enumerate() {
            texts.push(match self.constant(*a) {
                Some(c) if literal[k] => {
                    let text = types::literal(c, d);
                    if text.starts_with('-') {
                        format!("({text})")
                    } else {
                        text
                    }
                }
                _ => self.text(*a)?,
            });
        }
        if let Some(by) = self.shift_by_constant(op, args) {
            let sign = if op == ScalarOp::Shl { "<<" } else { ">>" };
            return Ok(format!("{} {sign} {by}", texts[0]));
        }
        match self.divisor_of_row(v, op, args) {
            Some(c) => {
                let [c, r] = [c, 1.0 / c].map(|f| types::literal(Scalar::Float(f), d));
                Ok(format!("quotient({}, {c}, {r})", texts[0]))
            }
            None => ops::spell(op, &texts, d),
        }
    }

    /// Returns the number of bits of a shift that is known to be in range.
    fn shift_by_constant(&self, op: ScalarOp, args: &[ValId]) -> Option<i64> {
        if !matches!(op, ScalarOp::Shl | ScalarOp::Shr) {
            return None;
        }
        let by = self.constant(*args.get(1)?)?.as_i64();
        let bits = 8 * self.dtype(args[0]).size() as i64;
        (0..bits).contains(&by).then_some(by)
    }

    /// Returns the text of a value whose bits are taken for another dtype.
    fn bitcast(&self, arg: ValId, from: DType, to: DType) -> Result<String> {
        let mut x = self.text(arg)?;
        let mut from = from;
        if let Some(stored) = ops::to_float8(&x, from, self.caps) {
            x = match types::encoding(from, self.caps) {
                Some(_) => stored,
                None => format!("{stored}.to(tl.uint8, bitcast=True)"),
            };
            from = DType::U8;
        } else if from != self.dtype(arg) {
            x = format!("{x}.to(tl.{})", types::name(from)?);
        }
        if let Some(f) = types::encoding(to, self.caps) {
            let code = match from {
                DType::U8 => x,
                DType::Bool => format!("{x}.to(tl.uint8)"),
                _ => format!("{x}.to(tl.uint8, bitcast=True)"),
            };
            return Ok(float8::number(&code, f));
        }
        // Predicates are one bit wide in Triton, a byte in memory.
        let bits = match (from, to) {
            (DType::Bool, DType::Bool) => x,
            (_, DType::Bool) => format!("({x} != 0)"),
            (DType::Bool, to) => format!("{x}.to(tl.{})", types::name(to)?),
            (_, to) => format!("{x}.to(tl.{}, bitcast=True)", types::name(to)?),
        };
        Ok(if to.compute() == to {
            bits
        } else {
            format!("{bits}.to(tl.float32)")
        })
    }

    /// Checks an index and makes it known as a symbol.
    fn indirect(&mut self, v: ValId) -> Result<()> {
        let block = self.block;
        let Def::Indirect {
            value,
            sym,
            size,
            wrap,
            check,
            mask,
        } = &block.value(v).def
        else {
            return Err(Error::internal("no index"));
        };
        let mut name = self.text(*value)?;
        let extent = self.offset(*size)?;
        if *wrap {
            let wrapped = self.fresh();
            self.line(format!(
                "{wrapped} = tl.where({name} < 0, {name} + {extent}, {name})"
            ));
            name = wrapped;
        }
        let shape = block.shapes[v.index()];
        if let Some(c) = check {
            let message = self.blame(&block.checks[*c as usize]);
            let mut lanes: Vec<String> = self.mask(shape).into_iter().collect();
            if let Some(m) = mask {
                lanes.push(self.text(*m)?);
            }
            let mask = match lanes.is_empty() {
                true => String::new(),
                false => format!(", mask={}", lanes.join(" & ")),
            };
            self.line(format!(
                "tl.device_assert(({name} >= 0) & ({name} < {extent}), \"{message}\"{mask})"
            ));
            self.asserts = true;
        }
        let index = self.fresh();
        let ty = if block.wide { "int64" } else { "int32" };
        // The mask may have dimensions that the index has not; addresses count on all of them.
        let have = block.shapes[value.index()] | self.expr_shape(*size);
        let text = self.spread(format!("{name}.to(tl.{ty})"), have, shape);
        self.line(format!("{index} = {text}"));
        self.names.symbols.insert(*sym, index.clone());
        self.names.values.insert(v, index);
        Ok(())
    }

    /// Returns true if an expression has an index that was read from memory.
    pub(crate) fn looks_up(&self, e: Expr) -> bool {
        let syms = self.exprs.free_syms(e);
        (self.block.values.iter())
            .any(|v| matches!(v.def, Def::Indirect { sym, .. } if syms.contains(&sym)))
    }

    /// Returns the dimensions of an expression.
    pub(crate) fn expr_shape(&self, e: Expr) -> u32 {
        self.exprs.free_syms(e).iter().fold(0, |m, s| {
            let dim = (self.block.dims.iter()).position(|d| d.sym == *s && d.is_tile());
            let indirect = (self.block.values.iter().zip(&self.block.shapes))
                .find(|(v, _)| matches!(v.def, Def::Indirect { sym, .. } if sym == *s));
            m | dim.map_or(0, |i| 1 << i) | indirect.map_or(0, |(_, shape)| *shape)
        })
    }

    /// The constant by which a number of `f32` is divided that a kernel has one of for each row, as means are.
    fn divisor_of_row(&self, v: ValId, op: ScalarOp, args: &[ValId]) -> Option<f64> {
        let at = self.block.reduced()?;
        let divides = op == ScalarOp::Div && self.block.value(v).dtype == DType::F32;
        if !divides || self.block.shapes[v.index()] & (1 << at) != 0 {
            return None;
        }
        let c = self.constant(args[1])?.as_f64();
        (1e-30..1e30).contains(&c.abs()).then_some(c)
    }
}
