//! Strided tiles by block pointers or tensor descriptors, where the caller chose these and the tile allows it.
//!
//! A descriptor names base, sizes and strides of a tensor. It is made once: by the program ahead of its first use, or by the
//! executor (a tensor map). On Hopper and later the copy engine (TMA) uses it, and bypasses the caches of the program's own
//! accesses. So a kernel loads by descriptors only what nothing in it writes, and stores by them only what nothing in it reads.
//!
//! | pointers | when | text |
//! |---|---|---|
//! | block | any strided tile of two dimensions or more | `tl.load(tl.make_block_ptr(..))` |
//! | descriptor | strides and base are multiples of 16 bytes | `desc0.load([..])`, made ahead |
//! | map | as descriptors, and known to the launch | `desc0.load([..])`, a parameter |
//!
//! A descriptor has its dimensions from the slowest to the fastest in memory. The tile has them in
//! the order of the axes, so that what is loaded or stored may have to be permuted.

use crate::function::{Emitter, Role};
use crate::{Argument, ArgumentSource, types};
use inrush_base::{DType, Gpu, Result};
use inrush_expr::{Expr, Sym, SymMap};
use inrush_kernel::block::{BlockItem, BlockStore, DimRole, Pointers};
use inrush_kernel::{BufRole, Def, KBufId};
use inrush_loops::StoreMode;

/// Dimensions of a descriptor at most.
const MAX_RANK: usize = 5;
/// The length of a tile's rows is a multiple of this, too.
const BYTES: i64 = Gpu::COPY_BYTES;

/// A tile of a buffer: an element for every point of the block's tile, or of an operand's.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Strided {
    pub buf: KBufId,
    /// Offset of the tensor's first element. It depends on no axis of the tile.
    pub base: Expr,
    /// By dimension of the tile.
    pub strides: Vec<Expr>,
    /// Sizes of the tensor and of the tile, by dimension.
    pub extents: Vec<Expr>,
    pub blocks: Vec<i64>,
    /// Dimensions of the tile from the slowest in memory to the fastest.
    pub order: Vec<usize>,
}

impl Emitter<'_> {
    /// Returns how tiles are to be named. Only kernels of their own with offsets of 32 bits have a choice. A persistent product
    /// stores by tensor maps.
    fn pointers(&self) -> Pointers {
        match (self.role, self.block.chosen) {
            (Role::Kernel { .. }, Some(t)) if !self.block.wide => t.pointers,
            _ => Pointers::Plain,
        }
    }

    /// Returns the strided tile that an access over `shape` is, if it is one.
    fn descriptor_of(&self, buf: KBufId, offset: Expr, shape: u32) -> Option<Strided> {
        let (ex, dims) = (self.exprs, self.tile_dims());
        let whole = dims.iter().all(|i| shape & (1 << i) != 0);
        if !whole || dims.len() < 2 || dims.len() > MAX_RANK {
            return None;
        }
        let dtype = self.block.buffers[buf.index()].dtype;
        if matches!(dtype, DType::Bool) || dtype.is_float() && dtype.size() == 1 {
            return None;
        }
        let syms: Vec<Sym> = dims.iter().map(|i| self.block.dims[*i].sym).collect();
        let (coefs, base) = ex.affine(offset, &syms)?;
        // What the rest depends on is known before anything is loaded.
        let known = |e: Expr| self.expr_shape(e) == 0 && !self.looks_up(e);
        // A dimension of stride zero is no dimension of a tensor.
        let fine = |c: &Expr| ex.range(*c).lo > 0 && known(*c);
        if !known(base) || !coefs.iter().all(fine) {
            return None;
        }
        let mut order: Vec<usize> = (0..dims.len()).collect();
        // At the hints: the order decides about speed, not about what is accessed.
        order.sort_by_key(|i| std::cmp::Reverse(ex.hint(coefs[*i])));
        Some(Strided {
            buf,
            base,
            strides: coefs.to_vec(),
            extents: dims.iter().map(|i| self.block.dims[*i].extent).collect(),
            blocks: dims.iter().map(|i| self.block.dims[*i].block).collect(),
            order,
        })
    }

    /// Returns true if the copy engine takes a tile.
    fn fits_engine(&self, s: &Strided) -> bool {
        let ex = self.exprs;
        let size = self.block.buffers[s.buf.index()].dtype.size() as i64;
        let whole = |e: Expr| ex.is_int(ex.modulo(ex.mul(e, ex.int(size)), ex.int(BYTES)), 0);
        let Some((last, others)) = s.order.split_last() else {
            return false;
        };
        let long = |e: &Expr| ex.range(*e).hi <= i32::MAX as i64;
        ex.is_int(s.strides[*last], 1)
            && others.iter().all(|i| whole(s.strides[*i]))
            && whole(s.base)
            && s.blocks[*last] * size >= BYTES
            && s.extents.iter().all(long)
    }

    /// Returns true if a launch can bring the descriptor of a tile: nothing about it depends on the program, and it is not empty.
    fn fits_launch(&self, s: &Strided) -> bool {
        let ex = self.exprs;
        let params = |e: Expr| {
            let known = |sym: &Sym| self.block.sizes.iter().any(|p| p.sym == *sym);
            ex.free_syms(e).iter().all(known)
        };
        params(s.base)
            && s.strides.iter().all(|e| params(*e))
            && (s.extents.iter()).all(|e| params(*e) && ex.range(*e).lo > 0)
    }

    /// The parameters for descriptors that launches bring.
    pub(crate) fn maps(&self) -> Result<Vec<Argument>> {
        if self.pointers() != Pointers::Map && !self.is_persistent() {
            return Ok(Vec::new());
        }
        let ex = self.exprs;
        let mut values = SymMap::default();
        (self.block.sizes.iter()).for_each(|p| values.insert(p.sym, p.value));
        (self.descriptors.iter().enumerate())
            .map(|(name, s)| {
                let extents = s.order.iter().map(|i| s.extents[*i]);
                let numbers: Vec<Expr> = std::iter::once(s.base)
                    .chain(extents)
                    .chain(s.order.iter().map(|i| s.strides[*i]))
                    .map(|e| ex.subst(e, &values))
                    .collect();
                let block: Vec<String> =
                    (s.order.iter()).map(|i| s.blocks[*i].to_string()).collect();
                let b = &self.block.buffers[s.buf.index()];
                Ok(Argument {
                    name: format!("desc{name}"),
                    ty: format!(
                        "tensordesc<{}[{}]>",
                        types::signature(b.dtype)?,
                        block.join(", ")
                    ),
                    source: ArgumentSource::Map {
                        buf: b.buf,
                        writes: crate::writes(b),
                        numbers,
                    },
                    divisible: false,
                })
            })
            .collect()
    }

    /// Makes the descriptors that `items` will use, or has them brought by the launch.
    pub(crate) fn describe(&mut self, items: &[BlockItem]) -> Result<()> {
        let pointers = self.pointers();
        if !matches!(pointers, Pointers::Descriptor | Pointers::Map) {
            return Ok(());
        }
        for item in items {
            let found = match item {
                BlockItem::Loop(w) => {
                    self.describe(&w.body)?;
                    None
                }
                BlockItem::Let(v) => match &self.block.value(*v).def {
                    Def::Load {
                        buf,
                        offset,
                        mask: None,
                        ..
                    } if self.block.buffers[buf.index()].role == BufRole::In => {
                        self.descriptor_of(*buf, *offset, self.block.shapes[v.index()])
                    }
                    _ => None,
                },
                BlockItem::Store(s) => self.stored(s),
                _ => None,
            };
            let Some(s) = found.filter(|s| self.fits_engine(s)) else {
                continue;
            };
            if self.descriptors.contains(&s) {
                continue;
            }
            if pointers == Pointers::Map {
                if self.fits_launch(&s) {
                    self.descriptors.push(s);
                }
                continue;
            }
            let dims = self.tile_dims();
            let mut lists = [Vec::new(), Vec::new(), Vec::new()];
            for i in &s.order {
                let d = self.block.dims[dims[*i]];
                lists[0].push(self.extent(&d)?);
                lists[1].push(self.offset(s.strides[*i])?);
                lists[2].push(self.block_name(dims[*i]).to_string());
            }
            let [shape, strides, block] = lists.map(|l| l.join(", "));
            let base = self.first(&s)?;
            let name = self.descriptors.len();
            self.line(format!(
                "desc{name} = tl.make_tensor_descriptor({base}, shape=[{shape}], strides=[{strides}], block_shape=[{block}])"
            ));
            self.descriptors.push(s);
        }
        Ok(())
    }

    /// The tile that a store is, if it is one.
    fn stored(&self, s: &BlockStore) -> Option<Strided> {
        // A buffer that the kernel reads too is accessed by pointers alone: the engine bypasses the
        // caches.
        let own = self.block.buffers[s.buf.index()].role == BufRole::Out;
        let plain = s.mode == StoreMode::Set && s.mask.is_none();
        match own && plain {
            true => self.descriptor_of(s.buf, s.offset, s.shape),
            false => None,
        }
    }

    /// Spells the address of a tensor's first element.
    fn first(&mut self, s: &Strided) -> Result<String> {
        let pointer = self.buffer(s.buf);
        Ok(match self.exprs.is_int(s.base, 0) {
            true => pointer,
            false => format!("{pointer} + ({})", self.offset(s.base)?),
        })
    }

    /// Where this program's tile begins along each dimension.
    fn begins(&self) -> Vec<String> {
        (self.tile_dims().into_iter())
            .map(|i| match self.block.dims[i].role {
                DimRole::Grid => format!("{}pid * {}", self.letter(i), self.block_name(i)),
                DimRole::Persistent => "0".into(),
                DimRole::Looped => "roffset".into(),
            })
            .collect()
    }

    /// Spells a block pointer to this program's tile.
    fn block_pointer(&mut self, s: &Strided) -> Result<String> {
        let dims = self.tile_dims();
        let mut lists = [Vec::new(), Vec::new(), Vec::new()];
        for (i, stride) in dims.iter().zip(&s.strides) {
            let d = self.block.dims[*i];
            lists[0].push(self.extent(&d)?);
            lists[1].push(self.offset(*stride)?);
            lists[2].push(self.block_name(*i).to_string());
        }
        let [shape, strides, block] = lists.map(|l| l.join(", "));
        let base = self.first(s)?;
        let begins = self.begins().join(", ");
        let order: Vec<String> = s.order.iter().rev().map(usize::to_string).collect();
        let order = order.join(", ");
        Ok(format!(
            "tl.make_block_ptr({base}, shape=[{shape}], strides=[{strides}], offsets=[{begins}], block_shape=[{block}], order=[{order}])"
        ))
    }

    /// The dimensions along which a tile may reach beyond the end.
    fn boundary(&self) -> String {
        let open: Vec<String> = (self.tile_dims().iter().enumerate())
            .filter(|(_, i)| !self.block.dims[**i].exact)
            .map(|(k, _)| k.to_string())
            .collect();
        match open.is_empty() {
            true => String::new(),
            false => format!(", boundary_check=[{}]", open.join(", ")),
        }
    }

    /// The descriptor of a tile, and where in it this program's part begins.
    fn described(&self, s: &Strided) -> Option<(usize, String)> {
        let at = self.descriptors.iter().position(|d| d == s)?;
        let begins = self.begins();
        let begins: Vec<&str> = s.order.iter().map(|i| begins[*i].as_str()).collect();
        Some((at, begins.join(", ")))
    }

    /// A load by what the caller chose; nothing where it has to be a plain one. `policy` is how long it stays in the cache.
    pub(crate) fn load_descriptor(
        &mut self,
        buf: KBufId,
        offset: Expr,
        shape: u32,
        policy: Option<&str>,
    ) -> Result<Option<String>> {
        let pointers = self.pointers();
        if pointers == Pointers::Plain {
            return Ok(None);
        }
        let Some(s) = self.descriptor_of(buf, offset, shape) else {
            return Ok(None);
        };
        if pointers == Pointers::Block {
            let pointer = self.block_pointer(&s)?;
            let mut text = format!("tl.load({pointer}");
            let boundary = self.boundary();
            if !boundary.is_empty() {
                text.push_str(&format!("{boundary}, padding_option=\"zero\""));
            }
            if let Some(policy) = policy {
                text.push_str(&format!(", eviction_policy=\"{policy}\""));
            }
            return Ok(Some(text + ")"));
        }
        let loads = self.block.buffers[buf.index()].role == BufRole::In;
        Ok(self.described(&s).filter(|_| loads).map(|(at, begins)| {
            let text = format!("desc{at}.load([{begins}])");
            // Tile dimension `i` is the descriptor's `order.position(i)`.
            let places: Vec<usize> = (0..s.order.len())
                .filter_map(|i| s.order.iter().position(|o| *o == i))
                .collect();
            permuted(text, &places)
        }))
    }

    /// Stores a tile by what the caller chose; false where it has to be a plain store.
    pub(crate) fn store_descriptor(&mut self, s: &BlockStore, value: &str) -> Result<bool> {
        let pointers = self.pointers();
        let plain = s.mode == StoreMode::Set && s.mask.is_none();
        if pointers == Pointers::Plain || !plain {
            return Ok(false);
        }
        let Some(tile) = self.descriptor_of(s.buf, s.offset, s.shape) else {
            return Ok(false);
        };
        let have = match self.constant(s.value) {
            Some(_) => 0,
            None => self.block.shapes[s.value.index()],
        };
        let dtype = types::name(self.block.buffers[s.buf.index()].dtype)?;
        let value = self.spread(format!("{value}.to(tl.{dtype})"), have, s.shape);
        if pointers == Pointers::Block {
            let pointer = self.block_pointer(&tile)?;
            let boundary = self.boundary();
            self.line(format!("tl.store({pointer}, {value}{boundary})"));
            return Ok(true);
        }
        if self.stored(s).is_none() {
            return Ok(false);
        }
        let Some((at, begins)) = self.described(&tile) else {
            return Ok(false);
        };
        let value = permuted(value, &tile.order);
        self.line(format!("desc{at}.store([{begins}], {value})"));
        Ok(true)
    }
}

/// `text` with its dimensions in another order.
fn permuted(text: String, order: &[usize]) -> String {
    if order.is_sorted() {
        return text;
    }
    let order: Vec<String> = order.iter().map(usize::to_string).collect();
    format!("tl.permute({text}, {})", order.join(", "))
}
