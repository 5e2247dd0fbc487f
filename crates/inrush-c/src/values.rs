//! Values of a kernel as variables in C: what they are called, whether they differ between lanes, what they are declared as.
//!
//! | value | variable | example |
//! |---|---|---|
//! | constant | none: its text stands wherever it is used | `1.0f` |
//! | uniform | one scalar | `const f32 v3 = ..;` |
//! | uniform, differs by jammed row | one scalar a row | `v3_0`, `v3_1` |
//! | varies over lanes | one vector a copy | `v3_0`, `v3_1`, or `v3` of a lone copy |
//! | varies, but not by copy | one vector, which all copies read | `v3_0` |

use crate::helpers::Name;
use crate::kernel::Emitter;
use crate::text::{Text, joined, paren};
use crate::types::{self, CType, each_lane};
use inrush_base::{DType, Error, Isa, Result};
use inrush_expr::Expr;
use inrush_kernel::{Def, ValId};
use std::fmt::Write;

/// The C variable of a value.
#[derive(Clone, Debug)]
pub(crate) enum Var {
    /// A constant, or a variable that is the same in all lanes.
    Uniform(Name),
    /// The same in all lanes, and of its own for each of the rows that are side by side.
    Rows(Vec<Name>),
    /// A vector for each copy of the lanes loop: this letter and the value's number.
    Lanes(char),
    /// A vector that all rows that are side by side have in common: the variable of the first copy.
    Common,
}

impl Emitter<'_> {
    /// C text of a value, and whether it differs between lanes.
    pub(crate) fn var(&mut self, v: ValId) -> Result<(Name, bool)> {
        match &self.vars[v.index()] {
            Some(Var::Uniform(text)) => Ok((text.clone(), false)),
            Some(Var::Rows(names)) => match names.get(self.copy() as usize) {
                Some(name) => Ok((name.clone(), false)),
                None => Err(no_value(v)),
            },
            Some(Var::Lanes(letter)) => Ok((self.lanes_name(*letter, v), true)),
            Some(Var::Common) => Ok((self.helpers.variable('v', v.0, Some(0)), true)),
            None => Err(no_value(v)),
        }
    }

    /// The name of the current copy of a value that differs between lanes.
    pub(crate) fn lanes_name(&mut self, letter: char, v: ValId) -> Name {
        let several = self.state.lane.as_ref().filter(|l| l.copies > 1);
        let copy = several.map(|l| l.copy);
        self.helpers.variable(letter, v.0, copy)
    }

    /// A variable `v..` that was declared as a vector for each time that the value is evaluated.
    fn lanes_var(&self, v: ValId) -> Var {
        if self.all_copies() > 1 && self.copies(v) == 1 {
            Var::Common
        } else {
            Var::Lanes('v')
        }
    }

    /// Returns true if a value differs between lanes.
    pub(crate) fn varies(&self, v: ValId) -> Result<bool> {
        let var = self.vars[v.index()].as_ref();
        var.map(|x| matches!(x, Var::Lanes(_) | Var::Common))
            .ok_or_else(|| no_value(v))
    }

    /// Returns the dtype that a value is computed in.
    pub(crate) fn dtype(&self, v: ValId) -> DType {
        self.kernel.value(v).dtype
    }

    /// Returns the lanes of the open vector loop; 1 without one.
    pub(crate) fn width(&self) -> u32 {
        self.state.lane.as_ref().map_or(1, |l| l.width)
    }

    /// The integer type of masks in the open lanes loop.
    pub(crate) fn mask_elem(&self) -> CType {
        self.mask_elem_of(self.width())
    }

    /// The integer type of masks of `w` lanes.
    pub(crate) fn mask_elem_of(&self, w: u32) -> CType {
        // Bytes that a lane has in a register: masks fill as many registers as most values of the
        // loop.
        match self.caps.vector_bytes as u32 / w {
            0 | 1 => CType::I8,
            2 => CType::I16,
            8.. if self.facts.has_64bit => CType::I64,
            _ => CType::I32,
        }
    }

    /// C element type of a varying value of dtype `d`.
    pub(crate) fn elem(&self, d: DType) -> CType {
        if d == DType::Bool {
            self.mask_elem()
        } else {
            types::scalar(d)
        }
    }

    /// The value as a vector.
    pub(crate) fn vector(&mut self, v: ValId) -> Result<Name> {
        let (text, varies) = self.var(v)?;
        if varies {
            return Ok(text);
        }
        let d = self.dtype(v);
        Ok(self.spread_out(&text, d).into())
    }

    /// A scalar in every lane.
    pub(crate) fn spread_out(&mut self, text: &str, d: DType) -> String {
        let w = self.width();
        let elem = self.elem(d);
        let f = self.helpers.broadcast(elem, w);
        if d == DType::Bool {
            joined!(f, "(-(", text, "))")
        } else {
            joined!(f, "(", text, ")")
        }
    }

    /// Declares the variable of `v` with an initial value and remembers it.
    pub(crate) fn declare(&mut self, v: ValId, text: impl Text, varies: bool) {
        let d = self.dtype(v);
        self.writer.indent();
        self.writer.out.push_str("const ");
        if varies {
            let (elem, w) = (self.elem(d), self.width());
            self.writer.out.push_str(self.helpers.vector_name(elem, w));
        } else {
            self.writer.out.push_str(types::scalar(d).name());
        }
        let by_row = !varies && self.differs_by_row(v);
        let copy = (self.state.lane.as_ref()).filter(|l| (varies || by_row) && l.copies > 1);
        let copy = copy.map(|l| l.copy);
        let name = self.helpers.variable_name('v', v.0, copy);
        self.writer.out.push(' ');
        self.writer.out.push_str(name);
        self.writer.out.push_str(" = ");
        text.put(&mut self.writer.out);
        self.writer.out.push_str(";\n");
        let name = name.clone();
        if !by_row {
            self.vars[v.index()] = Some(if varies {
                self.lanes_var(v)
            } else {
                Var::Uniform(name)
            });
            return;
        }
        match &mut self.vars[v.index()] {
            // The first copy starts the list anew: several loops may evaluate a value.
            Some(Var::Rows(names)) if copy != Some(0) => names.push(name),
            other => *other = Some(Var::Rows(vec![name])),
        }
    }

    /// Returns true if a value is uniform over lanes but differs between jammed rows.
    pub(crate) fn differs_by_row(&self, v: ValId) -> bool {
        let Some(row) = self.state.lane.as_ref().and_then(|l| l.rows) else {
            return false;
        };
        let def = &self.kernel.value(v).def;
        let mut any = def.expr().is_some_and(|e| self.exprs.contains_sym(e, row));
        def.each_operand(|x| any |= matches!(self.vars[x.index()], Some(Var::Rows(_))));
        any
    }

    /// Writes the statements that compute a value.
    pub(crate) fn value(&mut self, v: ValId) -> Result<()> {
        let value = self.kernel.value(v);
        let d = value.dtype;
        if matches!(d, DType::C64 | DType::C128) {
            return Err(Error::unsupported("complex numbers in a C kernel"));
        }
        match &value.def {
            Def::Const(c) => {
                self.vars[v.index()] = Some(Var::Uniform(types::literal(*c, d).into()));
                Ok(())
            }
            Def::Index(e) => self.index(v, *e),
            Def::Load {
                buf,
                offset,
                mask,
                fill,
            } => self.load(v, *buf, *offset, *mask, *fill),
            Def::Op { op, args } => {
                if self.fused_sum(v)? {
                    Ok(())
                } else {
                    self.op(v, *op, args)
                }
            }
            Def::Cast { arg, to } => self.cast(v, *arg, *to),
            Def::Bitcast { arg, from, to } => self.bitcast(v, *arg, *from, *to),
            Def::Indirect { .. } => self.indirect(v),
            Def::Final(a) => self.finish(v, *a),
            Def::Running { acc, value } => self.running(v, *acc, *value),
            Def::Sorted { .. } => Err(Error::internal("a sort in a C kernel")),
            Def::Sum(_) => self.sum(v),
        }
    }

    /// Writes an index expression as a value: a scalar, a ramp over the lanes, or lane by lane.
    fn index(&mut self, v: ValId, e: Expr) -> Result<()> {
        let d = self.dtype(v);
        if !self.expr_varies(e) {
            let text = self.expr(e, false)?;
            let ty = types::scalar(d);
            match d {
                DType::Bool => self.declare(v, ["(", &text, ") != 0"], false),
                _ => self.declare(v, ["(", ty.name(), ")(", &text, ")"], false),
            }
            return Ok(());
        }
        let lane = self.state.lane.clone().expect("it varies");
        let elem = self.elem(d);
        let ty = self.helpers.vector(elem, lane.width);
        // `first + step * (0, 1, 2, ..)`, where the rest and the step are uniform.
        let affine = self.exprs.affine(e, &[lane.sym]).filter(|(c, rest)| {
            d != DType::Bool && !self.expr_varies(*rest) && !self.expr_varies(c[0])
        });
        if let Some((c, _)) = affine {
            let first = self.expr(e, false)?;
            let step = self.expr(c[0], false)?;
            let bc = self.helpers.broadcast(elem, lane.width);
            let iota = self.helpers.iota(elem, lane.width);
            if self.exprs.is_int(c[0], 1) {
                self.declare(
                    v,
                    [&*bc, "((", elem.name(), ")(", &first, ")) + ", &iota],
                    true,
                );
            } else {
                let text =
                    format_args!("{bc}(({elem})({first})) + {bc}(({elem})({step})) * {iota}");
                self.declare(v, text, true);
            }
            return Ok(());
        }
        if d == DType::I32
            && let Some(text) = self.short_expr(e)?
        {
            self.declare(v, &*text, true);
            return Ok(());
        }
        let text = self.expr(e, true)?;
        let text = if d == DType::Bool {
            format!("-(({text}) != 0)")
        } else {
            text
        };
        let name = self.lanes_name('v', v);
        self.line(format_args!(
            "{ty} {name}; {} {name}[k] = ({elem})({text});",
            each_lane(&lane.width.to_string())
        ));
        self.vars[v.index()] = Some(self.lanes_var(v));
        Ok(())
    }

    /// Writes an index that is read from data: makes it an `i64` symbol for offsets. Wraps negative
    /// ones by the size, takes 0 where the mask excludes it, and checks the range; a failing check
    /// returns from the function.
    ///
    /// If it varies and is known to be in range, it is kept as an `i32` vector too. Offsets of 32
    /// bits gather twice as many lanes in an instruction.
    fn indirect(&mut self, v: ValId) -> Result<()> {
        let Def::Indirect {
            value,
            sym,
            size,
            wrap,
            check,
            mask,
        } = self.kernel.value(v).def.clone()
        else {
            return Ok(());
        };
        let (index, index_varies) = self.var(value)?;
        let mask = mask.map(|m| self.var(m)).transpose()?;
        // A uniform index under a mask that varies is another one (0) in masked lanes.
        let varies = index_varies || mask.as_ref().is_some_and(|m| m.1);
        let name = format!("t{}", v.0);
        let from = match &self.kernel.value(value).def {
            Def::Cast { arg, .. } => Some((*arg, self.dtype(*arg))),
            _ => None,
        };
        // Masks of all lanes alike choose between loops, not between lanes.
        let by_lane = mask.as_ref().is_none_or(|m| m.1);
        let in_range = !wrap && check.is_none() && by_lane && index_varies;
        if in_range && self.exprs.range(size).hi <= i32::MAX.into() {
            // Lowering knows that it is in range where the mask is set, so that half of the bits do.
            let w = self.width();
            let x = match from {
                Some((arg, d @ (DType::F32 | DType::F64)))
                    if d == DType::F32 || self.caps.isa == Isa::Avx512 =>
                {
                    let x = self.vector(arg)?;
                    let memory = types::memory(d);
                    Some(self.helpers.convert(&x, memory, CType::I32, w, self.caps))
                }
                _ if self.dtype(value) == DType::I32 => Some(index.to_string()),
                _ => None,
            };
            if let Some(mut x) = x {
                if let Some((m, _)) = &mask {
                    x = format!("{x} & {}", self.mask_of(m, CType::I32));
                }
                let (short, ty) = (self.lanes_name('n', v), self.helpers.vector(CType::I32, w));
                self.line(format_args!("const {ty} {short} = {x};"));
                self.short.insert(sym, v);
                let x = self
                    .helpers
                    .convert(&short, CType::I32, CType::I64, w, self.caps);
                let ty = self.helpers.vector(CType::I64, w);
                let own = self.lanes_name('t', v);
                self.line(format_args!("const {ty} {own} = {x};"));
                self.some_vary = true;
                self.names.insert(sym, (name.into(), true));
                self.vars[v.index()] = Some(Var::Lanes('t'));
                return Ok(());
            }
        }
        let size = self.expr(size, false)?;
        let at = |text: &str, varies: bool| {
            if varies {
                format!("{text}[k]")
            } else {
                text.to_string()
            }
        };
        let mut body = format!("i64 t = (i64){};", at(&index, index_varies));
        if wrap {
            _ = write!(body, " if (t < 0) t += {};", paren(&size));
        }
        if let Some((m, mv)) = &mask {
            _ = write!(body, " if (!{}) t = 0;", at(m, *mv));
        }
        if let Some(c) = check {
            // One unsigned comparison for both ends; a masked lane passes even where the dimension is empty.
            let unless = match &mask {
                Some((m, mv)) => format!("{} && ", at(m, *mv)),
                None => String::new(),
            };
            _ = write!(
                body,
                " if (__builtin_expect({unless}(u64)t >= (u64)({size}), 0)) return {};",
                c + 1
            );
        }
        if varies {
            let w = self.width();
            let ty = self.helpers.vector(CType::I64, w);
            let lanes = each_lane(&self.lane_count());
            let name = self.lanes_name('t', v);
            self.line(format_args!(
                "{ty} {name} = {{0}}; {lanes} {{ {body} {name}[k] = t; }}"
            ));
            self.vars[v.index()] = Some(Var::Lanes('t'));
        } else {
            self.line(format_args!("i64 {name}; {{ {body} {name} = t; }}"));
            self.vars[v.index()] = Some(Var::Uniform(name.as_str().into()));
        }
        self.some_vary |= varies;
        self.names.insert(sym, (name.into(), varies));
        Ok(())
    }
}

/// Reports a use ahead of the definition, which the kernel's verifier excludes.
fn no_value(v: ValId) -> Error {
    Error::internal(format!("{v} has no value here"))
}
