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
//!
//! Where the device has no `tl.dot` of the type, the loop adds one outer product a step:
//!
//! ```text
//! for koffset in range(0, 4096):
//!     lhs = tl.load(in_ptr0 + ..)      [YBLOCK, 1]
//!     rhs = tl.load(in_ptr1 + ..)      [1, XBLOCK]
//!     acc += lhs * rhs
//! ```

use crate::function::Emitter;
use crate::{ops, types};
use inrush_base::{Caps, DType, Float8, Result};
use inrush_kernel::block::{Block, Operand, Product};

/// Returns true if the device has no `tl.dot` for the block's product.
pub(crate) fn by_outer_products(block: &Block, caps: &Caps) -> bool {
    let double = (block.product.as_ref()).is_some_and(|p| p.dtype == DType::F64);
    double && caps.gpu.as_ref().is_some_and(|g| !g.dot_f64)
}

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
        if by_outer_products(self.block, self.caps) {
            return self.outer_products(p, &extent, 1 << rows, 1 << columns);
        }
        self.line(format!("for koffset in range(0, {extent}, KBLOCK):"));
        self.indented(|e| {
            let wide = match e.block.wide {
                true => ".to(tl.int64)",
                false => "",
            };
            e.line(format!("k = (koffset + tl.arange(0, KBLOCK)){wide}"));
            let bound = (!p.exact).then_some(extent.as_str());
            e.names.symbols.insert(p.k, "k[None, :]".into());
            e.operand(
                "lhs",
                &p.a,
                "[YBLOCK, KBLOCK]",
                [e.mask(1 << rows), below("k[None, :]", bound)],
            )?;
            e.names.symbols.insert(p.k, "k[:, None]".into());
            e.operand(
                "rhs",
                &p.b,
                "[KBLOCK, XBLOCK]",
                [e.mask(1 << columns), below("k[:, None]", bound)],
            )?;
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

    /// Writes the loop that adds the outer product of a column and a row at each `k`.
    fn outer_products(&mut self, p: &Product, extent: &str, row: u32, column: u32) -> Result<()> {
        self.line(format!("for koffset in range(0, {extent}):"));
        self.indented(|e| {
            let width = if e.block.wide { 64 } else { 32 };
            e.line(format!("k = tl.full([1, 1], 0, tl.int{width}) + koffset"));
            e.names.symbols.insert(p.k, "k".into());
            e.operand("lhs", &p.a, "[YBLOCK, 1]", [e.mask(row), None])?;
            e.operand("rhs", &p.b, "[1, XBLOCK]", [e.mask(column), None])?;
            e.line("acc += lhs * rhs");
            Ok(())
        })
    }

    /// Loads one operand. It spans `shape` even where its offset does not depend on each dimension.
    fn operand(
        &mut self,
        name: &str,
        o: &Operand,
        shape: &str,
        masks: [Option<String>; 2],
    ) -> Result<()> {
        let pointer = self.buffer(o.buf);
        let offset = self.offset(o.offset)?;
        let masks: Vec<String> = masks.into_iter().flatten().collect();
        let stored = self.block.buffers[o.buf.index()].dtype;
        let zero = if types::encoding(stored, self.caps).is_some() {
            "0"
        } else {
            "0.0"
        };
        let text = match self.exprs.as_int(o.offset) {
            Some(v) => format!("tl.full({shape}, {v}, tl.int32)"),
            None => format!("tl.broadcast_to({offset}, {shape})"),
        };
        let mask = match masks.is_empty() {
            true => String::new(),
            false => format!(", {}, other={zero}", masks.join(" & ")),
        };
        let load = format!("tl.load({pointer} + {text}{mask})");
        // Halves hold the numbers of all floats of eight bits, whose own sums are short of bits on Hopper.
        let value = match Float8::of(stored) {
            Some(_) => format!("{}.to(tl.float16)", ops::widened(&load, stored, self.caps)),
            None => load,
        };
        self.line(format!("{name} = {value}"));
        Ok(())
    }
}

/// Returns the mask of `k` below `bound`.
fn below(k: &str, bound: Option<&str>) -> Option<String> {
    bound.map(|bound| format!("({k} < {bound})"))
}
