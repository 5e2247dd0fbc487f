//! Loads: contiguous, strided, gathered, masked, partial.
//!
//! A load is one expression where a target has one for it: a vector in memory, a helper for strides, gathers or masks. Else
//! it is a loop over lanes.
//!
//! The forms, in the order in which they are tried:
//!
//! | form | when | example |
//! |---|---|---|
//! | one element | offset, mask and buffer are uniform | `b0[s0]` |
//! | whole vector | contiguous, all lanes live | `*(const f32x16u *)(b0 + i0)` |
//! | part of a vector | contiguous, `c` live lanes | `ldp_f32x16(b0 + i0, c)` |
//! | permuted vector | indices that are mostly neighbours | `ldn_f32x8(b0, 0, n5)` |
//! | second elements | strided by two | `ld2_f32x8(b0 + 2*i0)` |
//! | strided | any other step | `lds_f32x8(b0 + i0*s0, s0)` |
//! | masked | a mask that differs between lanes | `ldm_f32x8(b0 + i0, v3)` |
//! | gathered | 32-bit indices, AVX-512 | `ldg_f32x16(b0, n5)` |
//! | loop over lanes | anything else | `for (k..) m4[k] = b0[..]` |
//!
//! A lane that a mask excludes is not read, since its offset may be outside of the buffer. It takes
//! the fill.

use crate::helpers::Name;
use crate::kernel::Emitter;
use crate::text::joined;
use crate::types::{self, CType, each_lane};
use inrush_base::tally::{Way, reached};
use inrush_base::{DType, Isa, Result, Scalar};
use inrush_expr::{Expr, Exprs, Node, Sym};
use inrush_kernel::{Access, Def, KBufId, ValId};

/// Bytes of a row from which on the hardware does not fetch the next one by itself.
const PREFETCHED_ROW: i64 = 2048;

/// A load into vectors, and what its text depends on.
struct VectorLoad {
    v: ValId,
    buf: KBufId,
    /// In elements of the buffer.
    offset: Expr,
    d: DType,
    /// How the offset moves from lane to lane.
    kind: Access,
    /// It reads a local that holds whole vectors.
    own: bool,
    /// Name of the mask; true if it differs between lanes.
    mask: Option<(Name, bool)>,
    /// Value of lanes that the mask excludes, as a literal.
    fill: String,
    /// Number of live lanes, if that may be less than the width.
    count: Option<String>,
    /// C type of an element, lanes, C type of the vector.
    elem: CType,
    w: u32,
    ty: Name,
    /// Every second element of a dtype for which there are helpers.
    second: bool,
}

impl VectorLoad {
    /// Returns true if there is a mask that differs between lanes.
    fn mask_varies(&self) -> bool {
        self.mask.as_ref().is_some_and(|m| m.1)
    }

    /// The mask, if it differs between lanes.
    fn varying_mask(&self) -> Option<&str> {
        self.mask.as_ref().filter(|m| m.1).map(|m| &*m.0)
    }

    /// A vector at a place in memory.
    fn vector_at(&self, buf: &str, at: &str) -> String {
        joined!(
            "(",
            self.ty,
            ")*(const ",
            self.ty,
            "u *)(",
            buf,
            " + ",
            at,
            ")"
        )
    }
}

impl Emitter<'_> {
    /// Writes a load: one element for all lanes, a plain vector, or one of the other forms.
    pub(crate) fn load(
        &mut self,
        v: ValId,
        buf: KBufId,
        offset: Expr,
        mask: Option<ValId>,
        fill: Scalar,
    ) -> Result<()> {
        let d = self.kernel.buffer(buf).dtype;
        self.storable(d)?;
        let mask = mask.map(|m| self.var(m)).transpose()?;
        let kind = self.access(offset);
        let own = self.per_lane(buf);
        // Only masks ask for it.
        let fill = match mask {
            Some(_) => types::literal(fill, d.compute()),
            None => String::new(),
        };
        let mask_varies = mask.as_ref().is_some_and(|m| m.1);
        if kind == Access::Uniform && !mask_varies && !own {
            let at = self.expr(offset, false)?;
            let mut text = self.widen(&format!("{buf}[{at}]"), d);
            if let Some((m, _)) = mask {
                text = format!("{m} ? {text} : {fill}");
            }
            self.declare(v, &*text, false);
            return Ok(());
        }
        let w = self.width();
        let elem = types::memory(d);
        let l = VectorLoad {
            v,
            buf,
            offset,
            d,
            kind,
            own,
            mask,
            fill,
            count: self.state.lane.as_ref().and_then(|l| l.count.clone()),
            elem,
            w,
            ty: self.helpers.vector(elem, w),
            second: matches!(kind, Access::Strided(step) if self.exprs.is_int(step, 2))
                && matches!(elem, CType::F32 | CType::F64 | CType::I32 | CType::I64),
        };
        // The text below is wrong where a conversion follows the load, or a tile holds it.
        let stored = d.is_narrow_float() || d == DType::Bool || self.state.tiles.contains_key(&v);
        if !stored && !own && kind == Access::Contiguous && l.mask.is_none() && l.count.is_none() {
            self.prefetch(v, buf, offset)?;
            let (buf, at) = self.place(v, buf, offset)?;
            let text = [
                "(",
                &l.ty,
                ")*(const ",
                &l.ty,
                "u *)(",
                &buf,
                " + ",
                &at,
                ")",
            ];
            self.declare(v, text, true);
            return Ok(());
        }
        let text = self.vector_load(&l)?;
        self.declare(v, &*text, true);
        Ok(())
    }

    /// Spells the value of a load that differs between lanes.
    fn vector_load(&mut self, l: &VectorLoad) -> Result<String> {
        let mut whole = self.load_whole(l)?;
        let mut under_mask = self.load_under_mask(l)?;
        let unmasked = l.mask.is_none() && l.count.is_none();
        let gathered = match l.kind {
            // Lanes that are mostly neighbours are better loaded together.
            Access::Gather if unmasked && self.mostly_contiguous(l.offset) => None,
            Access::Gather if !l.own && whole.is_none() && under_mask.is_none() => {
                self.load_gathered(l.buf, l.offset, l.varying_mask(), &l.count)?
            }
            _ => None,
        };
        if l.mask_varies() {
            under_mask = under_mask.or(gathered);
        } else {
            whole = whole.or(gathered);
        }
        // Lanes that are not loaded are zeros already, but for those of an element that is broadcast.
        let zeroed = under_mask.is_some() && l.kind != Access::Uniform && is_zero(&l.fill);
        // A uniform mask is applied after the load, which is in bounds only where it holds: the
        // text is `m ? load : fill`.
        let selects = !zeroed && (!l.mask_varies() || under_mask.is_some());
        match whole.or(under_mask) {
            Some(raw) => {
                let value = self.widen_vector(&raw, l.d);
                Ok(if selects {
                    self.fill_masked(l, value)
                } else {
                    value
                })
            }
            None => {
                let name = self.load_by_lane(l)?;
                let value = self.widen_vector(&name, l.d);
                Ok(self.fill_masked(l, value))
            }
        }
    }

    /// Spells a value with the fill in lanes that the mask excludes.
    fn fill_masked(&mut self, l: &VectorLoad, value: String) -> String {
        let Some((m, varies)) = &l.mask else {
            return value;
        };
        let fill = self.spread_out(&l.fill, l.d.compute());
        if *varies {
            self.select(m, &value, &fill, l.d.compute())
        } else {
            format!("{m} ? {value} : {fill}")
        }
    }

    /// Spells the bits of all lanes as they are in memory, as one expression, if there is one. Masks are not looked at.
    fn load_whole(&mut self, l: &VectorLoad) -> Result<Option<String>> {
        let (buf, w, elem) = (l.buf, l.w, l.elem);
        if let Some((array, lo)) = self.state.tiles.get(&l.v) {
            let (copies, copy) = self
                .state
                .lane
                .as_ref()
                .map_or((1, 0), |l| (l.copies, l.copy));
            return Ok(Some(format!(
                "({0})*(const {0}u *)({array} + ({1} - {lo}) * {2} + {3})",
                l.ty,
                self.state.tile_index,
                w * copies,
                w * copy
            )));
        }
        if l.mask_varies() {
            return Ok(None);
        }
        if l.own {
            if l.kind != Access::Uniform {
                return Ok(None);
            }
            let at = self.expr(l.offset, false)?;
            return Ok(Some(format!(
                "({0})*(const {0}u *)({buf} + ({at}) * {w})",
                l.ty
            )));
        }
        if l.kind == Access::Contiguous {
            if l.count.is_none() {
                self.prefetch(l.v, buf, l.offset)?;
            }
            let (buf, at) = self.place(l.v, buf, l.offset)?;
            return Ok(Some(match &l.count {
                None => l.vector_at(&buf, &at),
                Some(c) => {
                    let f = self.helpers.load_part(elem, w, self.caps);
                    joined!(f, "(", buf, " + ", at, ", ", c, ")")
                }
            }));
        }
        if let (None, None, Some(text)) = (&l.mask, &l.count, self.load_near(buf, l.offset)?) {
            return Ok(Some(text));
        }
        if l.second {
            let at = self.expr(l.offset, false)?;
            let part = l.count.is_some();
            let f = self.helpers.load_second(elem, w, part, self.caps);
            return Ok(Some(match &l.count {
                Some(c) => format!("{f}({buf} + {at}, {c})"),
                None => format!("{f}({buf} + {at})"),
            }));
        }
        if let (Access::Strided(step), None) = (l.kind, &l.count) {
            let (at, step) = (self.expr(l.offset, false)?, self.expr(step, false)?);
            reached(Way::Gather);
            let f = self.helpers.load_strided(elem, w);
            return Ok(Some(format!("{f}({buf} + {at}, {step})")));
        }
        Ok(None)
    }

    /// Spells a load under a mask that differs between lanes, as one expression, if there is one. Other lanes are zeros.
    fn load_under_mask(&mut self, l: &VectorLoad) -> Result<Option<String>> {
        let Some(m) = l.varying_mask().filter(|_| !l.own) else {
            return Ok(None);
        };
        match l.kind {
            Access::Uniform => {
                let text = self.load_spread(l.buf, l.offset, m, &l.count)?;
                Ok(Some(text))
            }
            Access::Contiguous => self.load_where(l.buf, l.offset, m, &l.count, false),
            _ if l.second => self.load_where(l.buf, l.offset, m, &l.count, true),
            _ => Ok(None),
        }
    }

    /// Writes a loop over lanes that fills a variable, and returns its name.
    fn load_by_lane(&mut self, l: &VectorLoad) -> Result<Name> {
        let (buf, w, ty) = (l.buf, l.w, &l.ty);
        let at = self.expr(l.offset, true)?;
        let at = if l.own {
            format!("({at}) * {w} + k")
        } else {
            at
        };
        // A uniform mask guards every lane; one that varies is asked for each.
        let guard = match &l.mask {
            Some((m, true)) => format!("if ({m}[k]) "),
            Some((m, false)) => format!("if ({m}) "),
            None => String::new(),
        };
        let name = self.lanes_name('m', l.v);
        let each = format!("{guard}{name}[k] = {buf}[{at}];");
        let plain = !l.own && l.mask.is_none() && l.count.is_none();
        // The offsets of the first and last lane tell at run time whether one load does for all.
        let text = if plain && self.mostly_contiguous(l.offset) {
            format!(
                "{ty} {name} = {{0}}; {{ i64 p, q; {{ const i32 k = 0; p = {at}; }} {{ const i32 k = {w} - 1; q = {at}; }} \
                 if (q - p == {w} - 1) {name} = *(const {ty}u *)({buf} + p); else for (i32 k = 0; k < {w}; k++) {each} }}"
            )
        } else {
            let lanes = each_lane(&self.lane_count());
            format!("{ty} {name} = {{0}}; {lanes} {each}")
        };
        self.line(text.as_str());
        Ok(name)
    }

    /// Gathers lanes whose indices grow with the lane, as resampling's do, so that most are neighbours: loads one vector and
    /// permutes it.
    fn load_near(&mut self, buf: KBufId, offset: Expr) -> Result<Option<String>> {
        let elem = types::memory(self.kernel.buffer(buf).dtype);
        let native = match self.caps.isa {
            Isa::Avx2 => self.width() == 8,
            Isa::Avx512 => matches!(self.width(), 8 | 16),
            _ => false,
        };
        if elem != CType::F32 || !native {
            return Ok(None);
        }
        let syms = self.exprs.free_syms(offset);
        let Some((sym, v)) = (syms.iter()).find_map(|s| self.short.get(s).map(|v| (*s, *v))) else {
            return Ok(None);
        };
        // Indices that are integers from the beginning, as the steps of a search, are no neighbours.
        let Def::Indirect { value, .. } = self.kernel.value(v).def else {
            return Ok(None);
        };
        if self.dtype(value) == DType::I32 {
            return Ok(None);
        }
        let Some((c, rest)) = self.exprs.affine(offset, &[sym]) else {
            return Ok(None);
        };
        if !self.exprs.is_int(c[0], 1) || self.expr_varies(rest) {
            return Ok(None);
        }
        let (f, at) = (
            self.helpers.load_near(self.width()),
            self.expr(rest, false)?,
        );
        let index = self.lanes_name('n', v);
        Ok(Some(format!("{f}({buf}, {at}, {index})")))
    }

    /// Elements by indices of 32 bits, by the machine's instruction for that, zeros where `mask` is not set; `None` where there
    /// is none, or what of an offset differs between lanes may need more bits.
    fn load_gathered(
        &mut self,
        buf: KBufId,
        offset: Expr,
        mask: Option<&str>,
        count: &Option<String>,
    ) -> Result<Option<String>> {
        let elem = types::memory(self.kernel.buffer(buf).dtype);
        let w = self.width();
        // What is the same for all lanes is added in 64 bits.
        let (rest, varying) = self.parted(offset);
        let Some(index) = self.short_expr(varying)? else {
            return Ok(None);
        };
        let mut masks: Vec<String> = mask.iter().map(|m| self.mask_of(m, elem)).collect();
        if let Some(c) = count {
            let lanes = self.helpers.lane_mask(elem.int_like(), w);
            masks.push(format!("{lanes}({c})"));
        }
        let Some(f) = self
            .helpers
            .load_gathered(elem, w, !masks.is_empty(), self.caps)
        else {
            return Ok(None);
        };
        let at = self.expr(rest, false)?;
        let mask = if masks.is_empty() {
            String::new()
        } else {
            format!(", {}", masks.join(" & "))
        };
        Ok(Some(format!("{f}({buf} + {at}, {index}{mask})")))
    }

    /// One element for all lanes, read if any of them wants it, zeros otherwise.
    fn load_spread(
        &mut self,
        buf: KBufId,
        offset: Expr,
        mask: &str,
        count: &Option<String>,
    ) -> Result<String> {
        let (elem, w) = (types::memory(self.kernel.buffer(buf).dtype), self.width());
        let int = elem.int_like();
        let mut mask = self.mask_of(mask, elem);
        if let Some(c) = count {
            let lanes = self.helpers.lane_mask(int, w);
            mask = format!("{mask} & {lanes}({c})");
        }
        let any = self.helpers.lanes_test("any", int, w, self.caps);
        let (vector, spread) = (
            self.helpers.vector(elem, w),
            self.helpers.broadcast(elem, w),
        );
        let at = self.expr(offset, false)?;
        Ok(format!(
            "({any}({mask}) ? {spread}({buf}[{at}]) : ({vector}){{0}})"
        ))
    }

    /// Contiguous elements, or every second one, under a mask of lanes by the machine's instruction for that, zeros elsewhere;
    /// `None` where there is none.
    fn load_where(
        &mut self,
        buf: KBufId,
        offset: Expr,
        mask: &str,
        count: &Option<String>,
        second: bool,
    ) -> Result<Option<String>> {
        let elem = types::memory(self.kernel.buffer(buf).dtype);
        let w = self.width();
        let f = if second {
            (self.helpers.load_second_where(elem, w, self.caps)).map(|f| f.to_string())
        } else {
            self.helpers.load_where(elem, w, self.caps)
        };
        let Some(f) = f else {
            return Ok(None);
        };
        let mut mask = self.mask_of(mask, elem);
        if let Some(c) = count {
            let lanes = self.helpers.lane_mask(elem.int_like(), w);
            mask = format!("{mask} & {lanes}({c})");
        }
        let at = self.expr(offset, false)?;
        Ok(Some(format!("{f}({buf} + {at}, {mask})")))
    }

    /// Returns true if an offset grows by one from lane to lane except for jumps back and stops. Lanes are then contiguous if and
    /// only if the last is `width - 1` after the first.
    fn mostly_contiguous(&self, offset: Expr) -> bool {
        let Some(lane) = &self.state.lane else {
            return false;
        };
        lane.width > 2
            && steps(self.exprs, offset, lane.sym, &|s| self.sym_varies(s))
                .is_some_and(|(_, most)| most == 1)
    }

    /// Fetches what the next unit will load. A kernel that goes over a row several times waits for memory in the first pass
    /// and computes in the others: the last one fetches the next row.
    fn prefetch(&mut self, v: ValId, buf: KBufId, offset: Expr) -> Result<()> {
        let (Some(unit), true) = (self.facts.inner_grid_axis, self.state.last_use[v.index()])
        else {
            return Ok(());
        };
        let bytes = self.kernel.buffer(buf).dtype.size() as i64;
        // Once for each cache line.
        let along = self.state.lane.as_ref().filter(|l| l.rows.is_none());
        // Bytes from the first lane of the turn to this copy.
        let at = along.map_or(0, |l| i64::from(l.copy * l.width) * bytes);
        if at % 64 != 0 {
            return Ok(());
        }
        let Some(step) = self.exprs.coefficient(offset, unit) else {
            return Ok(());
        };
        // Rows that the second level of cache keeps in addition to the current one.
        let row = self.exprs.hint(step).saturating_abs().saturating_mul(bytes);
        if !(PREFETCHED_ROW..=self.caps.l2_bytes as i64 / 4).contains(&row) {
            return Ok(());
        }
        let (at, step) = (self.expr(offset, false)?, self.expr(step, false)?);
        self.line(format_args!(
            "__builtin_prefetch({buf} + {at} + {step}, 0, 2);"
        ));
        Ok(())
    }
}

/// A literal that vectors of zeros already are.
fn is_zero(literal: &str) -> bool {
    matches!(literal, "0" | "0.0" | "0.0f")
}

/// The least and the greatest difference of `e` between neighbouring lanes; `None` where nothing is known. Bounds saturate.
fn steps(exprs: &Exprs, e: Expr, lane: Sym, varies: &dyn Fn(Sym) -> bool) -> Option<(i64, i64)> {
    let of = |e: Expr| steps(exprs, e, lane, varies);
    Some(match exprs.node(e) {
        Node::Const(_) => (0, 0),
        Node::Sym(s) if s == lane => (1, 1),
        Node::Sym(s) if varies(s) => return None,
        Node::Sym(_) => (0, 0),
        Node::Sum { terms, .. } => {
            let mut sum = (0i64, 0i64);
            for (c, t) in terms {
                let (a, b) = of(t)?;
                let (a, b) = (a.saturating_mul(c), b.saturating_mul(c));
                sum = (
                    sum.0.saturating_add(a.min(b)),
                    sum.1.saturating_add(a.max(b)),
                );
            }
            sum
        }
        Node::Product(f) => {
            if f.iter().all(|t| of(*t) == Some((0, 0))) {
                (0, 0)
            } else {
                return None;
            }
        }
        // The quotient of a lane's index does not go on by one.
        Node::FloorDiv(a, b) if of(a)? == (0, 0) && of(b)? == (0, 0) => (0, 0),
        Node::FloorDiv(..) => return None,
        Node::Mod(a, b) => match (of(a)?, of(b)?) {
            ((0, 0), (0, 0)) => (0, 0),
            // Less a multiple of the divisor where it wraps.
            ((low, high), (0, 0)) if low >= 0 && exprs.range(b).lo > 0 => (i64::MIN, high),
            _ => return None,
        },
        Node::Min(a, b) | Node::Max(a, b) => {
            let (a, b) = (of(a)?, of(b)?);
            (a.0.min(b.0), a.1.max(b.1))
        }
    })
}

#[cfg(test)]
mod tests {
    use super::steps;
    use inrush_expr::Exprs;

    #[test]
    fn indices_that_wrap_or_turn_go_on_by_one_at_most() {
        let e = Exprs::new();
        let lane = e.index_sym(0, e.int(1024));
        let (i, n) = (e.sym_expr(lane), e.int(1024));
        let of = |x| steps(&e, x, lane, &|_| false);
        let moved = e.modulo(e.add(i, e.int(1017)), n);
        assert_eq!(of(moved), Some((i64::MIN, 1)));
        let turned = e.max(e.sub(i, e.int(3)), e.sub(e.int(3), i));
        assert_eq!(of(turned), Some((-1, 1)));
        assert_eq!(of(e.sub(e.int(9), turned)), Some((-1, 1)));
        assert_eq!(of(e.mul(e.int(2), i)), Some((2, 2)));
        assert_eq!(of(e.floordiv(i, e.int(2))), None);
    }
}
