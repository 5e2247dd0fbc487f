//! Common parts of loads and stores: how an access moves with the lanes, dtypes in memory, tiles that are transposed.

use crate::kernel::Emitter;
use crate::types::{self, CType};
use inrush_base::{DType, Error, Result};
use inrush_expr::{Expr, Sym};
use inrush_kernel::{Access, BufRole, Def, Item, KBufId, Loop, access};
use smallvec::SmallVec;

impl Emitter<'_> {
    /// Classifies an offset for the open vector loop.
    pub(crate) fn access(&mut self, offset: Expr) -> Access {
        let Some(lane) = &self.state.lane else {
            return Access::Uniform;
        };
        let lane = lane.sym;
        // Copies of a lanes loop follow each other. Of symbols that vary, one may come to do so.
        if let Some((of, along, known)) = self.state.access_memo
            && (of, along) == (offset, lane)
            && !self.some_vary
        {
            return known;
        }
        let kind = access(self.exprs, offset, lane, |s| self.sym_varies(s));
        self.state.access_memo = Some((offset, lane, kind));
        kind
    }

    /// Returns true if a buffer holds whole vectors, and a vector loop is open.
    pub(crate) fn per_lane(&self, buf: KBufId) -> bool {
        self.state.lane.is_some()
            && matches!(
                self.kernel.buffer(buf).role,
                BufRole::Local { per_lane: true, .. }
            )
    }

    /// Refuses dtypes that C kernels cannot hold in memory.
    pub(crate) fn storable(&self, d: DType) -> Result<()> {
        if matches!(d, DType::C64 | DType::C128) {
            return Err(Error::unsupported(format!("{d} in memory of a C kernel")));
        }
        Ok(())
    }

    /// Transposes what the loads of a tile's loop read: each array holds a vector over the lanes for each of its points.
    pub(crate) fn transpose(&mut self, l: &Loop, lo: &str, hi: &str, step: i64) -> Result<()> {
        let Some(lane) = self.state.lane.clone() else {
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
            // Contiguous along the tile's loop and strided over the lanes: rows of memory, read as
            // columns.
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
            self.state.tiles.insert(*v, (name, lo.to_string()));
        }
        Ok(())
    }

    /// The compute value of a scalar in memory.
    pub(crate) fn widen(&mut self, raw: &str, d: DType) -> String {
        match d {
            d if d.is_narrow_float() => {
                let f = self.helpers.half(d.name(), false, 1, self.caps);
                format!("{f}({raw})")
            }
            _ => raw.to_string(),
        }
    }

    /// Returns the compute value of a vector in memory.
    pub(crate) fn widen_vector(&mut self, raw: &str, d: DType) -> String {
        let w = self.width();
        match d {
            d if d.is_narrow_float() => {
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
    pub(crate) fn narrow(&mut self, value: &str, d: DType) -> String {
        match d {
            d if d.is_narrow_float() => {
                let f = self.helpers.half(d.name(), true, 1, self.caps);
                format!("{f}({value})")
            }
            _ => format!("({})({value})", types::memory(d)),
        }
    }

    /// Converts a vector from the compute dtype to the stored one.
    pub(crate) fn narrow_vector(&mut self, value: &str, d: DType) -> String {
        let w = self.width();
        match d {
            d if d.is_narrow_float() => {
                let f = self.helpers.half(d.name(), true, w, self.caps);
                format!("{f}({value})")
            }
            DType::Bool => {
                let mask = self.mask_elem();
                let bits = format!("{value} & 1");
                self.helpers.convert(&bits, mask, CType::U8, w, self.caps)
            }
            _ => value.to_string(),
        }
    }
}
