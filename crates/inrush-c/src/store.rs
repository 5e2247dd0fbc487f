//! Stores: contiguous, scattered, masked, partial, streamed past the caches, combining with what is in memory.
//!
//! Stores of mode `Set` take the form of the load at the same offset: an element, a vector, part of
//! one, or lane by lane. Halves and bools are narrowed first. Other modes read, combine and write
//! back; lanes that may meet in one element do so one after the other, so that none is lost. Units
//! of different threads that could meet are kept apart by the grid.

use crate::helpers::Name;
use crate::kernel::Emitter;
use crate::types::{self, CType, each_lane};
use inrush_base::tally::{Way, reached};
use inrush_base::{DType, Isa, Result};
use inrush_expr::Expr;
use inrush_kernel::{Access, BufRole, KBufId, ValId};
use inrush_loops::StoreMode;

impl Emitter<'_> {
    /// Writes a store: a vector, one element, or lanes one by one. Modes other than `Set` combine.
    pub(crate) fn store(
        &mut self,
        buf: KBufId,
        offset: Expr,
        value: ValId,
        mode: StoreMode,
        mask: Option<ValId>,
    ) -> Result<()> {
        let d = self.kernel.buffer(buf).dtype;
        self.storable(d)?;
        let (text, varies) = self.var(value)?;
        let mask = mask.map(|m| self.var(m)).transpose()?;
        let mask_varies = mask.as_ref().is_some_and(|m| m.1);
        let kind = self.access(offset);
        let own = self.per_lane(buf);
        let elem = types::memory(d);
        let w = self.width();
        if mode != StoreMode::Set {
            return self.combine(buf, offset, &text, varies, mode, mask);
        }
        let whole = self.state.lane.as_ref().is_some_and(|l| l.count.is_none());
        // Most stores: no conversion, no mask. Written without the cases below.
        let as_it_is = !d.is_narrow_float() && d != DType::Bool && mask.is_none();
        if as_it_is
            && whole
            && !own
            && kind == Access::Contiguous
            && !self.streams(buf, w * elem.bytes())
        {
            let vector = self.vector(value)?;
            let ty = self.helpers.vector(elem, w);
            let (at, buf) = (self.expr(offset, false)?, self.buffer_name(buf));
            self.line(["*(", &ty, "u *)(", &buf, " + ", &at, ") = ", &vector, ";"]);
            return Ok(());
        }
        let guard = match &mask {
            Some((m, false)) => format!("if ({m}) "),
            _ => String::new(),
        };
        if !mask_varies && !own && kind == Access::Uniform {
            let at = self.expr(offset, false)?;
            // Of lanes that write to one place the last counts.
            let text = if varies {
                let lanes = self.lane_count();
                let picked = format!("{text}[{lanes} - 1]");
                if d == DType::Bool {
                    format!("-{picked}")
                } else {
                    picked
                }
            } else {
                text.to_string()
            };
            let raw = self.narrow(&text, d);
            self.line(format_args!("{guard}{buf}[{at}] = {raw};"));
            return Ok(());
        }
        let vector = self.vector(value)?;
        let raw = self.narrow_vector(&vector, d);
        let ty = self.helpers.vector(elem, w);
        let count = self.state.lane.as_ref().and_then(|l| l.count.clone());
        if !mask_varies && own && kind == Access::Uniform {
            let at = self.expr(offset, false)?;
            self.line(format_args!(
                "{guard}*({ty}u *)({buf} + ({at}) * {w}) = {raw};"
            ));
        } else if !mask_varies && !own && kind == Access::Contiguous {
            let at = self.expr(offset, false)?;
            match count {
                None if self.streams(buf, w * elem.bytes()) => {
                    let f = self.helpers.stream(elem, w);
                    self.line(format_args!("{guard}{f}({buf} + {at}, {raw});"));
                }
                None => {
                    let buf = self.buffer_name(buf);
                    self.line([
                        &*guard, "*(", &ty, "u *)(", &buf, " + ", &at, ") = ", &raw, ";",
                    ]);
                }
                Some(c) => {
                    let f = self.helpers.store_part(elem, w, self.caps);
                    let buf = self.buffer_name(buf);
                    self.line([
                        &*guard, &f, "(", &buf, " + ", &at, ", ", &raw, ", ", &c, ");",
                    ]);
                }
            }
        } else {
            self.scatter(buf, offset, &raw, mask)?;
        }
        Ok(())
    }

    /// Stores the lanes of a vector, which is given as it is in memory, one by one.
    fn scatter(
        &mut self,
        buf: KBufId,
        offset: Expr,
        raw: &str,
        mask: Option<(Name, bool)>,
    ) -> Result<()> {
        reached(Way::Scatter);
        let (elem, w) = (types::memory(self.kernel.buffer(buf).dtype), self.width());
        let ty = self.helpers.vector(elem, w);
        let at = self.expr(offset, true)?;
        let at = if self.per_lane(buf) {
            format!("({at}) * {w} + k")
        } else {
            at
        };
        let lanes = each_lane(&self.lane_count());
        let (guard, each) = match &mask {
            Some((m, true)) => (String::new(), format!("if ({m}[k]) ")),
            Some((m, false)) => (format!("if ({m}) "), String::new()),
            None => (String::new(), String::new()),
        };
        self.line(format_args!(
            "{guard}{{ const {ty} w = {raw}; {lanes} {each}{buf}[{at}] = w[k]; }}"
        ));
        Ok(())
    }

    /// Returns true if vectors of so many bytes are written to this buffer by non-temporal stores.
    fn streams(&self, buf: KBufId, bytes: u32) -> bool {
        // There are no such stores for other targets.
        let widest = match self.caps.isa {
            Isa::Avx2 => 32,
            Isa::Avx512 => 64,
            Isa::Scalar | Isa::Neon => return false,
        };
        self.kernel.buffer(buf).role == BufRole::Stream
            && matches!(bytes, 16 | 32 | 64)
            && bytes <= widest
    }

    /// A store that combines with what is there, one element after the other.
    fn combine(
        &mut self,
        buf: KBufId,
        offset: Expr,
        value: &str,
        varies: bool,
        mode: StoreMode,
        mask: Option<(Name, bool)>,
    ) -> Result<()> {
        let d = self.kernel.buffer(buf).dtype;
        let own = self.per_lane(buf);
        // No two lanes meet: whole vectors are read, combined and written.
        let contiguous = !own
            && self.access(offset) == Access::Contiguous
            && self.state.lane.as_ref().is_some_and(|l| l.count.is_none())
            && mask.as_ref().is_none_or(|m| !m.1)
            && d != DType::Bool;
        if contiguous {
            return self.combine_vector(buf, offset, value, varies, mode, mask);
        }
        reached(Way::Combine);
        let lanes_loop = self.state.lane.is_some();
        // Lanes add one after the other; what differs between their places has 32 bits where these are enough.
        let (rest, varying) = self.parted(offset);
        let short = if lanes_loop && self.expr_varies(offset) {
            self.short_expr(varying)?
        } else {
            None
        };
        if !own
            && (mode, varies) == (StoreMode::Add, true)
            && let (Some(index), Some((m, true))) = (&short, &mask)
            && self.add_by_index(buf, rest, index, value, m)?
        {
            return Ok(());
        }
        let (places, at) = match short {
            Some(index) => {
                let (ty, rest) = (
                    self.helpers.vector(CType::I32, self.width()),
                    self.expr(rest, false)?,
                );
                (
                    format!("const {ty} o = {index}; "),
                    format!("({rest}) + o[k]"),
                )
            }
            None => (String::new(), self.expr(offset, lanes_loop)?),
        };
        // In scratch each lane has elements of its own, one vector apart.
        let at = if own {
            format!("({at}) * {} + k", self.width())
        } else {
            at
        };
        let elem = types::scalar(d);
        let pick = |text: &str, varies: bool| {
            if varies {
                format!("{text}[k]")
            } else {
                text.to_string()
            }
        };
        // A lane of a mask is -1, a bool in memory 1.
        let new = match (d, varies) {
            (DType::Bool, true) => format!("-{value}[k]"),
            _ => pick(value, varies),
        };
        let old = self.widen("*p", d);
        let both = match mode {
            StoreMode::Add if d == DType::Bool => format!("{old} | {new}"),
            StoreMode::Mul if d == DType::Bool => format!("{old} & {new}"),
            _ => self.both(mode, elem, 1, &old, new),
        };
        let both = self.narrow(&both, d);
        let guard = match &mask {
            Some((m, v)) => format!("if ({}) ", pick(m, *v)),
            None => String::new(),
        };
        let ty = types::memory(d);
        let body = format!("{guard}{{ {ty} *p = {buf} + ({at}); *p = {both}; }}");
        if lanes_loop {
            let lanes = each_lane(&self.lane_count());
            if places.is_empty() {
                self.line(format_args!("{lanes} {body}"))
            } else {
                self.line(format_args!("{{ {places}{lanes} {body} }}"))
            }
        } else {
            self.line(body.as_str());
        }
        Ok(())
    }

    /// Adds lanes to elements by indices of 32 bits, under a mask, if the target has a fast way.
    fn add_by_index(
        &mut self,
        buf: KBufId,
        rest: Expr,
        index: &str,
        value: &str,
        mask: &str,
    ) -> Result<bool> {
        let d = self.kernel.buffer(buf).dtype;
        let Some(add) = self.add_lanes(d) else {
            return Ok(false);
        };
        let mut m = self.mask_of(mask, types::scalar(d));
        if let Some(c) = self.state.lane.as_ref().and_then(|l| l.count.clone()) {
            let w = self.width();
            let lanes = self.helpers.lane_mask(types::scalar(d).int_like(), w);
            m = format!("{m} & {lanes}({c})");
        }
        let rest = self.expr(rest, false)?;
        self.line(format_args!(
            "{add}({buf} + ({rest}), {index}, {value}, {m});"
        ));
        Ok(true)
    }

    /// Returns a helper that adds lanes to elements of a buffer of dtype `d`, if the target has a fast one and `d` is stored as
    /// it is computed with.
    fn add_lanes(&mut self, d: DType) -> Option<Name> {
        let elem = types::scalar(d);
        let same = types::memory(d) == elem;
        let w = self.width();
        same.then(|| self.helpers.add_lanes(elem, w, self.caps))?
    }

    /// Combines the old contents and the stored value, in `w` lanes.
    fn both(&mut self, mode: StoreMode, elem: CType, w: u32, old: &str, new: String) -> String {
        match mode {
            StoreMode::Add => format!("{old} + {new}"),
            StoreMode::Mul => format!("{old} * {new}"),
            StoreMode::Max | StoreMode::Min => {
                let which = if mode == StoreMode::Max { "max" } else { "min" };
                let f = self.helpers.extreme(which, elem, w, self.caps);
                format!("{f}({old}, {new})")
            }
            StoreMode::Set => new,
        }
    }

    /// Writes a combining store whose lanes are contiguous.
    fn combine_vector(
        &mut self,
        buf: KBufId,
        offset: Expr,
        value: &str,
        varies: bool,
        mode: StoreMode,
        mask: Option<(Name, bool)>,
    ) -> Result<()> {
        let d = self.kernel.buffer(buf).dtype;
        reached(Way::CombineVector);
        let (elem, w) = (types::scalar(d), self.width());
        let at = self.expr(offset, false)?;
        let ty = self.helpers.vector(types::memory(d), w);
        let old = self.widen_vector(&format!("({ty})*p"), d);
        let new = if varies {
            value.to_string()
        } else {
            self.spread_out(value, d.compute())
        };
        let both = self.both(mode, elem, w, &old, new);
        let both = self.narrow_vector(&format!("({both})"), d);
        let guard = mask.map_or(String::new(), |(m, _)| format!("if ({m}) "));
        self.line(format_args!(
            "{guard}{{ {ty}u *p = ({ty}u *)({buf} + ({at})); *p = {both}; }}"
        ));
        Ok(())
    }
}
