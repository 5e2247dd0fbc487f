//! Loads and stores: contiguous, strided, gathered, masked, partial.

use crate::helpers::Name;
use crate::kernel::Emitter;
use crate::text::joined;
use crate::types::{self, each_lane};
use inrush_base::tally::{Way, reached};
use inrush_base::{DType, Error, Isa, Result, Scalar};
use inrush_expr::{Expr, Exprs, Node, Sym};
use inrush_kernel::{Access, BufRole, Def, Item, KBufId, Loop, ValId, access};
use inrush_loops::StoreMode;
use smallvec::SmallVec;

/// Bytes of a row from which on the hardware does not fetch the next one by itself.
const PREFETCHED_ROW: i64 = 2048;

impl Emitter<'_> {
    fn access(&mut self, offset: Expr) -> Access {
        let Some(lane) = &self.lane else {
            return Access::Uniform;
        };
        let lane = lane.sym;
        // Copies of a lanes loop follow each other. Of symbols that vary, one may come to do so.
        if let Some((of, along, known)) = self.access_memo
            && (of, along) == (offset, lane)
            && !self.some_vary
        {
            return known;
        }
        let kind = access(self.exprs, offset, lane, |s| self.sym_varies(s));
        self.access_memo = Some((offset, lane, kind));
        kind
    }

    fn per_lane(&self, buf: KBufId) -> bool {
        self.lane.is_some()
            && matches!(
                self.kernel.buffer(buf).role,
                BufRole::Local { per_lane: true, .. }
            )
    }

    fn storable(&self, d: DType) -> Result<()> {
        if d.is_narrow_float() && d.size() == 1 || matches!(d, DType::C64 | DType::C128) {
            return Err(Error::unsupported(format!("{d} in memory of a C kernel")));
        }
        Ok(())
    }

    /// Transposes what the loads of a tile's loop read: each array holds a vector over the lanes for each of its points.
    pub(crate) fn transpose(&mut self, l: &Loop, lo: &str, hi: &str, step: i64) -> Result<()> {
        let Some(lane) = self.lane.clone() else {
            return Ok(());
        };
        // Indices that the loop itself loads are not known before it.
        let found = l.body.iter().filter_map(|item| match item {
            Item::Let(v) => match self.kernel.value(*v).def {
                Def::Indirect { sym, .. } => Some(sym),
                _ => None,
            },
            _ => None,
        });
        let found: SmallVec<[Sym; 4]> = found.collect();
        for item in &l.body {
            let Item::Let(v) = item else { continue };
            let Def::Load {
                buf,
                offset,
                mask: None,
                ..
            } = self.kernel.value(*v).def
            else {
                continue;
            };
            if (self.exprs.free_syms(offset).iter()).any(|s| found.contains(s)) {
                continue;
            }
            let Access::Strided(stride) = self.access(offset) else {
                continue;
            };
            let along = access(self.exprs, offset, l.sym, |_| false);
            let b = self.kernel.buffer(buf);
            if along != Access::Contiguous || b.role != BufRole::In {
                continue;
            }
            let elem = types::memory(b.dtype);
            let w = (lane.width * lane.copies) as i64;
            let f = self.helpers.tile(elem, self.caps);
            let (at, stride) = (self.expr(offset, false)?, self.expr(stride, false)?);
            let name = format!("x{}", v.0);
            let lanes = match &lane.count {
                Some(c) => c.clone(),
                None => w.to_string(),
            };
            self.line(format_args!(
                "{elem} {name}[{}] __attribute__((aligned(64)));",
                step * w
            ));
            self.line(format_args!(
                "{f}({name}, {w}, {buf} + {at}, {stride}, {hi} - {lo}, {lanes});"
            ));
            self.tiles.insert(*v, (name, lo.to_string()));
        }
        Ok(())
    }

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
        let raw_ty = self.helpers.vector(elem, w);
        let count = self.lane.as_ref().and_then(|l| l.count.clone());
        let as_it_lies = !d.is_narrow_float() && d != DType::Bool && !self.tiles.contains_key(&v);
        if as_it_lies && !own && kind == Access::Contiguous && mask.is_none() && count.is_none() {
            self.prefetch(v, buf, offset)?;
            let (buf, at) = self.place(v, buf, offset)?;
            let text = [
                "(",
                &raw_ty,
                ")*(const ",
                &raw_ty,
                "u *)(",
                &buf,
                " + ",
                &at,
                ")",
            ];
            self.declare(v, text, true);
            return Ok(());
        }
        let second = matches!(kind, Access::Strided(step) if self.exprs.is_int(step, 2))
            && matches!(elem, "f32" | "f64" | "i32" | "i64");
        // The bits as they lie in memory, as one expression or filled in lane by lane.
        let whole = if let Some((array, lo)) = self.tiles.get(&v) {
            let (copies, copy) = self.lane.as_ref().map_or((1, 0), |l| (l.copies, l.copy));
            Some(format!(
                "({raw_ty})*(const {raw_ty}u *)({array} + ({} - {lo}) * {} + {})",
                self.tile_index,
                w * copies,
                w * copy
            ))
        } else if mask_varies {
            None
        } else if own && kind == Access::Uniform {
            let at = self.expr(offset, false)?;
            Some(format!(
                "({raw_ty})*(const {raw_ty}u *)({buf} + ({at}) * {w})"
            ))
        } else if own {
            None
        } else if kind == Access::Contiguous {
            if count.is_none() {
                self.prefetch(v, buf, offset)?;
            }
            let (buf, at) = self.place(v, buf, offset)?;
            Some(match &count {
                None => {
                    joined!(
                        "(",
                        raw_ty,
                        ")*(const ",
                        raw_ty,
                        "u *)(",
                        buf,
                        " + ",
                        at,
                        ")"
                    )
                }
                Some(c) => {
                    let f = self.helpers.load_part(elem, w, self.caps);
                    joined!(f, "(", buf, " + ", at, ", ", c, ")")
                }
            })
        } else if let (None, None, Some(text)) = (&mask, &count, self.load_near(buf, offset)?) {
            Some(text)
        } else if second {
            let at = self.expr(offset, false)?;
            let part = count.is_some();
            let f = self.helpers.load_second(elem, w, part, self.caps);
            Some(match &count {
                Some(c) => format!("{f}({buf} + {at}, {c})"),
                None => format!("{f}({buf} + {at})"),
            })
        } else if let (Access::Strided(step), None) = (kind, &count) {
            let (at, step) = (self.expr(offset, false)?, self.expr(step, false)?);
            reached(Way::Gather);
            let f = self.helpers.load_strided(elem, w);
            Some(format!("{f}({buf} + {at}, {step})"))
        } else {
            None
        };
        let own_mask = match &mask {
            Some((m, true)) if !own && kind == Access::Uniform => {
                Some(self.load_spread(buf, offset, m, &count)?)
            }
            Some((m, true)) if !own && kind == Access::Contiguous => {
                self.load_where(buf, offset, m, &count, false)?
            }
            Some((m, true)) if !own && second => self.load_where(buf, offset, m, &count, true)?,
            _ => None,
        };
        let unmasked = mask.is_none() && count.is_none();
        let gathered = match kind {
            // Lanes that mostly stand beside each other are better loaded together.
            Access::Gather if unmasked && self.mostly_contiguous(offset) => None,
            Access::Gather if !own && whole.is_none() && own_mask.is_none() => {
                let varying = mask.as_ref().filter(|m| m.1).map(|m| m.0.to_string());
                self.load_gathered(buf, offset, varying.as_deref(), &count)?
            }
            _ => None,
        };
        let (whole, own_mask) = if mask_varies {
            (whole, own_mask.or(gathered))
        } else {
            (whole.or(gathered), own_mask)
        };
        // Lanes that are not loaded are zeros already, but for those of an element that is spread out.
        let zeroed = own_mask.is_some() && kind != Access::Uniform && is_zero(&fill);
        let masked = if mask_varies && own_mask.is_none() {
            None
        } else {
            mask.clone().filter(|_| !zeroed)
        };
        let text = match whole.or(own_mask) {
            Some(raw) => {
                let value = self.widen_vector(&raw, d);
                match masked {
                    Some((m, true)) => {
                        let fill = self.spread_out(&fill, d.compute());
                        self.select(&m, &value, &fill, d.compute())
                    }
                    Some((m, _)) => {
                        let fill = self.spread_out(&fill, d.compute());
                        format!("{m} ? {value} : {fill}")
                    }
                    None => value,
                }
            }
            None => {
                let at = self.expr(offset, true)?;
                let at = if own { format!("({at}) * {w} + k") } else { at };
                let guard = match &mask {
                    Some((m, true)) => format!("if ({m}[k]) "),
                    Some((m, false)) => format!("if ({m}) "),
                    None => String::new(),
                };
                let name = self.lanes_name('m', v);
                let each = format!("{guard}{name}[k] = {buf}[{at}];");
                let near =
                    !own && mask.is_none() && count.is_none() && self.mostly_contiguous(offset);
                let text = if near {
                    format!(
                        "{raw_ty} {name} = {{0}}; {{ i64 p, q; {{ const i32 k = 0; p = {at}; }} {{ const i32 k = {w} - 1; q = {at}; }} \
                     if (q - p == {w} - 1) {name} = *(const {raw_ty}u *)({buf} + p); else for (i32 k = 0; k < {w}; k++) {each} }}"
                    )
                } else {
                    let lanes = each_lane(&self.lane_count());
                    format!("{raw_ty} {name} = {{0}}; {lanes} {each}")
                };
                self.line(text.as_str());
                let value = self.widen_vector(&name, d);
                match &mask {
                    None => value,
                    Some((m, varies)) => {
                        let fill = self.spread_out(&fill, d.compute());
                        if *varies {
                            self.select(m, &value, &fill, d.compute())
                        } else {
                            format!("{m} ? {value} : {fill}")
                        }
                    }
                }
            }
        };
        self.declare(v, &*text, true);
        Ok(())
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
        if elem != "f32" || !native {
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
            let lanes = self.helpers.lane_mask(types::int_like(elem), w);
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
        let int = types::int_like(elem);
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
            let lanes = self.helpers.lane_mask(types::int_like(elem), w);
            mask = format!("{mask} & {lanes}({c})");
        }
        let at = self.expr(offset, false)?;
        Ok(Some(format!("{f}({buf} + {at}, {mask})")))
    }

    /// Returns true if an offset grows by one from lane to lane except for jumps back and stops. Lanes are then contiguous if and
    /// only if the last is `width - 1` after the first.
    fn mostly_contiguous(&self, offset: Expr) -> bool {
        let Some(lane) = &self.lane else {
            return false;
        };
        lane.width > 2
            && steps(self.exprs, offset, lane.sym, &|s| self.sym_varies(s))
                .is_some_and(|(_, most)| most == 1)
    }

    /// Fetches what the next unit will load. A kernel that goes over a row several times waits for memory in the first pass
    /// and computes in the others: the last one fetches the next row.
    fn prefetch(&mut self, v: ValId, buf: KBufId, offset: Expr) -> Result<()> {
        let (Some(unit), true) = (self.inner_grid_axis, self.last_use[v.index()]) else {
            return Ok(());
        };
        let bytes = self.kernel.buffer(buf).dtype.size() as i64;
        // Once for each cache line.
        let along = self.lane.as_ref().filter(|l| l.rows.is_none());
        let at = along.map_or(0, |l| i64::from(l.copy * l.width) * bytes);
        if at % 64 != 0 {
            return Ok(());
        }
        let Some(step) = self.exprs.coefficient(offset, unit) else {
            return Ok(());
        };
        // Rows that the second level of cache keeps beside the current one.
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

    /// The compute value of a scalar in memory.
    fn widen(&mut self, raw: &str, d: DType) -> String {
        match d {
            DType::F16 | DType::BF16 => {
                let f = self.helpers.half(d.name(), false, 1, self.caps);
                format!("{f}({raw})")
            }
            _ => raw.to_string(),
        }
    }

    fn widen_vector(&mut self, raw: &str, d: DType) -> String {
        let w = self.width();
        match d {
            DType::F16 | DType::BF16 => {
                let f = self.helpers.half(d.name(), false, w, self.caps);
                format!("{f}({raw})")
            }
            DType::Bool => {
                let mask = self.mask_elem();
                let wide = self
                    .helpers
                    .convert(raw, types::memory(d), mask, w, self.caps);
                format!("-{wide}")
            }
            _ => raw.to_string(),
        }
    }

    /// Converts a scalar from the compute dtype to the stored one.
    fn narrow(&mut self, value: &str, d: DType) -> String {
        match d {
            DType::F16 | DType::BF16 => {
                let f = self.helpers.half(d.name(), true, 1, self.caps);
                format!("{f}({value})")
            }
            _ => format!("({})({value})", types::memory(d)),
        }
    }

    fn narrow_vector(&mut self, value: &str, d: DType) -> String {
        let w = self.width();
        match d {
            DType::F16 | DType::BF16 => {
                let f = self.helpers.half(d.name(), true, w, self.caps);
                format!("{f}({value})")
            }
            DType::Bool => {
                let mask = self.mask_elem();
                let bits = format!("{value} & 1");
                self.helpers.convert(&bits, mask, "u8", w, self.caps)
            }
            _ => value.to_string(),
        }
    }

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
        let whole = self.lane.as_ref().is_some_and(|l| l.count.is_none());
        let as_it_is = !d.is_narrow_float() && d != DType::Bool && mask.is_none();
        if as_it_is
            && whole
            && !own
            && kind == Access::Contiguous
            && !self.streams(buf, w * types::bytes(elem))
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
        let count = self.lane.as_ref().and_then(|l| l.count.clone());
        if !mask_varies && own && kind == Access::Uniform {
            let at = self.expr(offset, false)?;
            self.line(format_args!(
                "{guard}*({ty}u *)({buf} + ({at}) * {w}) = {raw};"
            ));
        } else if !mask_varies && !own && kind == Access::Contiguous {
            let at = self.expr(offset, false)?;
            match count {
                None if self.streams(buf, w * types::bytes(elem)) => {
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
            reached(Way::Scatter);
            let at = self.expr(offset, true)?;
            let at = if own { format!("({at}) * {w} + k") } else { at };
            let lanes = each_lane(&self.lane_count());
            let each = match &mask {
                Some((m, true)) => format!("if ({m}[k]) "),
                _ => String::new(),
            };
            self.line(format_args!(
                "{guard}{{ const {ty} w = {raw}; {lanes} {each}{buf}[{at}] = w[k]; }}"
            ));
        }
        Ok(())
    }

    /// Returns true if vectors of so many bytes are written to this buffer by non-temporal stores.
    fn streams(&self, buf: KBufId, bytes: u32) -> bool {
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
        let beside = !own
            && self.access(offset) == Access::Contiguous
            && self.lane.as_ref().is_some_and(|l| l.count.is_none())
            && mask.as_ref().is_none_or(|m| !m.1)
            && d != DType::Bool;
        if beside {
            return self.combine_vector(buf, offset, value, varies, mode, mask);
        }
        reached(Way::Combine);
        let lanes_loop = self.lane.is_some();
        // Lanes add one after the other; what differs between their places has 32 bits where these are enough.
        let (rest, varying) = self.parted(offset);
        let short = if lanes_loop && self.expr_varies(offset) {
            self.short_expr(varying)?
        } else {
            None
        };
        if !own
            && let (Some(index), Some((m, true))) = (&short, &mask)
            && (mode, varies) == (StoreMode::Add, true)
            && let Some(add) = self.add_lanes(d)
        {
            let mut m = self.mask_of(m, types::scalar(d));
            if let Some(c) = self.lane.as_ref().and_then(|l| l.count.clone()) {
                let w = self.width();
                let lanes = self.helpers.lane_mask(types::int_like(types::scalar(d)), w);
                m = format!("{m} & {lanes}({c})");
            }
            let rest = self.expr(rest, false)?;
            self.line(format_args!(
                "{add}({buf} + ({rest}), {index}, {value}, {m});"
            ));
            return Ok(());
        }
        let (places, at) = match short {
            Some(index) => {
                let (ty, rest) = (
                    self.helpers.vector("i32", self.width()),
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

    /// Returns a helper that adds lanes to elements of a buffer of dtype `d`, if the target has a fast one and `d` is stored as
    /// it is computed with.
    fn add_lanes(&mut self, d: DType) -> Option<Name> {
        let elem = types::scalar(d);
        let same = types::memory(d) == elem;
        let w = self.width();
        same.then(|| self.helpers.add_lanes(elem, w, self.caps))?
    }

    /// Combines the old contents and the stored value, in `w` lanes.
    fn both(
        &mut self,
        mode: StoreMode,
        elem: &'static str,
        w: u32,
        old: &str,
        new: String,
    ) -> String {
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
