//! Loads, stores and atomics.

use crate::function::Emitter;
use crate::{ops, types};
use inrush_base::{DType, Error, Result, Scalar};
use inrush_expr::Expr;
use inrush_kernel::block::{BlockStore, DimRole};
use inrush_kernel::{KBufId, ValId};
use inrush_loops::StoreMode;

impl Emitter<'_> {
    /// `pointer + offset`, spread over `shape`.
    fn address(&mut self, buf: KBufId, offset: Expr, shape: u32) -> Result<String> {
        let pointer = self.buffer(buf);
        let text = self.offset(offset)?;
        let have = self.expr_shape(offset);
        if shape & !have == 0 {
            return Ok(format!("{pointer} + ({text})"));
        }
        // A constant offset has no dimensions, and a tensor of addresses needs them.
        let ty = if self.block.wide { "int64" } else { "int32" };
        let spread = match self.exprs.as_int(offset) {
            Some(v) => format!("tl.full({}, {v}, tl.{ty})", self.shape(shape)),
            None => self.spread(text, have, shape),
        };
        Ok(format!("{pointer} + {spread}"))
    }

    /// The masks of dimensions and the value's own.
    fn lanes(&self, shape: u32, mask: Option<ValId>) -> Result<Option<String>> {
        let own = mask.map(|m| self.text(m)).transpose()?;
        Ok(match (self.mask(shape), own) {
            (Some(a), Some(b)) => Some(format!("{a} & {b}")),
            (a, b) => a.or(b),
        })
    }

    /// Writes a load, by a descriptor or by pointers, with the masks of its dimensions.
    pub(crate) fn load(
        &mut self,
        v: ValId,
        buf: KBufId,
        offset: Expr,
        mask: Option<ValId>,
        fill: Scalar,
    ) -> Result<String> {
        let shape = self.block.shapes[v.index()];
        let mask = mask.filter(|m| self.state.tail_mask.is_none_or(|s| s.holds != *m));
        let stored = self.block.buffers[buf.index()].dtype;
        let widened = |text: String| match stored.compute() == stored {
            true => text,
            false => ops::widened(&text, stored, self.caps),
        };
        let policy = self.policy(v, offset, shape);
        if mask.is_none()
            && let Some(text) = self.load_descriptor(buf, offset, shape, policy)?
        {
            return Ok(widened(text));
        }
        let address = self.address(buf, offset, shape)?;
        let mut text = format!("tl.load({address}");
        if let Some(lanes) = self.lanes(shape, mask)? {
            text.push_str(&format!(", {lanes}"));
            // What is loaded past the tile's end is never used, but indices computed from it must stay sane.
            let fill = mask.map_or(Scalar::Int(0), |_| fill);
            let other = match types::encoding(stored, self.caps) {
                Some(f) => f.encode(fill.as_f64() as f32).to_string(),
                None => types::literal(fill, stored.compute()),
            };
            text.push_str(&format!(", other={other}"));
        }
        if let Some(policy) = policy {
            text.push_str(&format!(", eviction_policy=\"{policy}\""));
        }
        text.push(')');
        Ok(widened(text))
    }

    /// How long a load should stay in the cache: what other programs or later loops read again stays, what is read once in
    /// a reduction goes.
    fn policy(&mut self, v: ValId, offset: Expr, shape: u32) -> Option<&'static str> {
        let reduced = self.block.reduced()?;
        let left = self.state.loads_left.get_mut(&v)?;
        *left -= 1;
        // Said of every element, it takes more instructions than it saves time.
        let whole = self.block.dims[reduced].role == DimRole::Persistent;
        if whole && self.facts.contiguous.is_some() {
            return None;
        }
        if *left > 0 {
            return Some("evict_last");
        }
        // What goes first of two streams is slower (an H200, by 9 % in f32): the one that is waited for stays.
        if self.facts.first_rows.contains(&v) {
            return Some("evict_last");
        }
        let along = shape & (1 << reduced) != 0;
        let grid = (self.block.dims.iter().enumerate())
            .filter(|(_, d)| d.role == DimRole::Grid)
            .any(|(i, d)| shape & (1 << i) != 0 || self.exprs.contains_sym(offset, d.sym));
        let grid = grid || self.looks_up(offset);
        match (along, grid) {
            (true, true) => Some("evict_first"),
            (true, false) => Some("evict_last"),
            _ => None,
        }
    }

    /// Writes a store, likewise.
    pub(crate) fn store(&mut self, s: &BlockStore) -> Result<()> {
        let stored = self.block.buffers[s.buf.index()].dtype;
        let value = match self.constant(s.value) {
            Some(c) => format!(
                "tl.full([], {}, tl.{})",
                types::literal(c, stored.compute()),
                types::name(stored.compute())?
            ),
            None => self.text(s.value)?,
        };
        if self.store_descriptor(s, &value)? {
            return Ok(());
        }
        let value = match s.mode {
            StoreMode::Set => ops::to_float8(&value, stored, self.caps).unwrap_or(value),
            _ => value,
        };
        let address = self.address(s.buf, s.offset, s.shape)?;
        let lanes = self.lanes(s.shape, s.mask)?;
        let mask = lanes.map_or(String::new(), |m| format!(", {m}"));
        if s.mode == StoreMode::Set {
            self.line(format!("tl.store({address}, {value}{mask})"));
            return Ok(());
        }
        let f = match (s.mode, stored) {
            (StoreMode::Add, DType::F16 | DType::BF16 | DType::F32 | DType::F64)
            | (StoreMode::Add, DType::I32 | DType::U32 | DType::I64 | DType::U64) => "atomic_add",
            (StoreMode::Max, DType::I32 | DType::U32 | DType::I64 | DType::U64) => "atomic_max",
            (StoreMode::Min, DType::I32 | DType::U32 | DType::I64 | DType::U64) => "atomic_min",
            // Floats have an atomic sum only; their extremes have to keep NaN.
            _ => return self.exchange(s, &value),
        };
        let have = self.block.shapes[s.value.index()];
        let typed = format!("{value}.to(tl.{})", types::name(stored)?);
        let value = self.spread(typed, have, s.shape);
        // Atomics take masks by name.
        let mask = match mask.as_str() {
            "" => String::new(),
            m => format!(", mask={}", &m[2..]),
        };
        self.line(format!("tl.{f}({address}, {value}{mask}, sem=\"relaxed\")"));
        Ok(())
    }

    /// Combines values in memory where the machine has no instruction for it: compare and exchange until nothing came
    /// between.
    fn exchange(&mut self, s: &BlockStore, value: &str) -> Result<()> {
        let stored = self.block.buffers[s.buf.index()].dtype;
        let bits = match stored.size() {
            2 => "int16",
            4 => "int32",
            8 => "int64",
            // The hardware exchanges no single bytes.
            _ => {
                return Err(Error::unsupported(format!(
                    "combining {stored} values by `{}` in memory on a GPU",
                    s.mode.text()
                )));
            }
        };
        let f = match (s.mode, stored.is_float()) {
            (StoreMode::Mul, _) => "exchange_multiply",
            (StoreMode::Max, true) => "exchange_nan_max",
            (StoreMode::Min, true) => "exchange_nan_min",
            (StoreMode::Max, false) => "exchange_int_max",
            (StoreMode::Min, false) => "exchange_int_min",
            (StoreMode::Add | StoreMode::Set, _) => "exchange_add",
        };
        let shape = match self.tile_dims().is_empty() {
            true => "[1]".to_string(),
            false => self.shape(s.shape),
        };
        let pointer = self.buffer(s.buf);
        let wide = if self.block.wide { "int64" } else { "int32" };
        let offset = match self.exprs.as_int(s.offset) {
            Some(v) => format!("tl.full({shape}, {v}, tl.{wide})"),
            None => format!("tl.broadcast_to({}, {shape})", self.offset(s.offset)?),
        };
        let lanes = match self.lanes(s.shape, s.mask)? {
            Some(m) => format!("tl.broadcast_to({m}, {shape})"),
            None => format!("tl.full({shape}, 1, tl.int1)"),
        };
        let compute = types::name(stored.compute())?;
        self.line(format!(
            "{f}({pointer}, {offset}, tl.broadcast_to({value}.to(tl.{compute}), {shape}), {lanes}, tl.{bits})"
        ));
        Ok(())
    }
}
