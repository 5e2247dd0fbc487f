//! The loop of a matrix product: tiles of both operands, summed along `k` by `tl.dot`.
//!
//! ```text
//! acc = tl.zeros([YBLOCK, XBLOCK], tl.float32)
//! for koffset in range(0, 4096, KBLOCK):
//!     k = (koffset + tl.arange(0, KBLOCK))
//!     lhs = tl.load(in_ptr0 + ..)      [YBLOCK, KBLOCK], with k[None, :]
//!     rhs = tl.load(in_ptr1 + ..)      [KBLOCK, XBLOCK], with k[:, None]
//!     acc = tl.dot(lhs, rhs, acc)
//! ```

use crate::function::Emitter;
use inrush_base::{DType, Result};
use inrush_kernel::block::{Operand, Product};

impl Emitter<'_> {
    /// Writes the loop over `k`, which leaves the sum in `acc`.
    pub(crate) fn product(&mut self, p: &Product) -> Result<()> {
        let dims = self.tile_dims();
        let (rows, columns) = (dims[0], dims[1]);
        let extent = self.offset(p.extent)?;
        let ty = if p.dtype == DType::F64 {
            "float64"
        } else {
            "float32"
        };
        self.line(format!("acc = tl.zeros([YBLOCK, XBLOCK], tl.{ty})"));
        self.line(format!("for koffset in range(0, {extent}, KBLOCK):"));
        self.indented(|e| {
            let wide = match e.block.wide {
                true => ".to(tl.int64)",
                false => "",
            };
            e.line(format!("k = (koffset + tl.arange(0, KBLOCK)){wide}"));
            e.operand("lhs", &p.a, p, "k[None, :]", 1 << rows)?;
            e.operand("rhs", &p.b, p, "k[:, None]", 1 << columns)?;
            // What eager computes in float32 is not rounded to tf32.
            let precision = match e.block.buffers[p.a.buf.index()].dtype {
                DType::F32 => ", input_precision=\"ieee\"",
                _ => "",
            };
            let out = if p.dtype == DType::F64 {
                ", out_dtype=tl.float64"
            } else {
                ""
            };
            e.line(format!("acc = tl.dot(lhs, rhs, acc{precision}{out})"));
            Ok(())
        })
    }

    /// Loads one operand; `shape` is its dimension of the result's tile.
    fn operand(&mut self, name: &str, o: &Operand, p: &Product, k: &str, shape: u32) -> Result<()> {
        self.names.symbols.insert(p.k, k.into());
        let pointer = self.buffer(o.buf);
        let offset = self.offset(o.offset)?;
        let mut masks: Vec<String> = self.mask(shape).into_iter().collect();
        if !p.exact {
            let extent = self.offset(p.extent)?;
            masks.push(format!("({k} < {extent})"));
        }
        // Each operand spans its dimension even where its offset does not depend on it.
        let size = if name == "lhs" {
            "[YBLOCK, KBLOCK]"
        } else {
            "[KBLOCK, XBLOCK]"
        };
        let text = match self.exprs.as_int(o.offset) {
            Some(v) => format!("tl.full({size}, {v}, tl.int32)"),
            None => format!("tl.broadcast_to({offset}, {size})"),
        };
        let mask = match masks.is_empty() {
            true => String::new(),
            false => format!(", {}, other=0.0", masks.join(" & ")),
        };
        self.line(format!("{name} = tl.load({pointer} + {text}{mask})"));
        Ok(())
    }
}
