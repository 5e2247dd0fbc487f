//! Rules of memory: accesses stay within buffers, and what threads hand each other through memory waits at a barrier.

use super::broken;
use crate::block::{Block, each_store};
use crate::{Def, KBufId};
use inrush_base::Result;
use inrush_expr::Expr;
use inrush_loops::{BufId, Tables};

/// An access: storage, offset, dimensions of the tile, and whether it happens in the loop that is open.
type Access = (BufId, Expr, u32, bool);

/// Accesses since the last barrier.
pub(super) struct Hazards<'a> {
    block: &'a Block,
    storage: &'a [BufId],
    loaded: Vec<Access>,
    stored: Vec<Access>,
    in_loop: bool,
}

impl<'a> Hazards<'a> {
    pub fn new(block: &'a Block, storage: &'a [BufId]) -> Hazards<'a> {
        Hazards {
            block,
            storage,
            loaded: Vec::new(),
            stored: Vec::new(),
            in_loop: false,
        }
    }

    fn storage(&self, b: KBufId) -> BufId {
        let buf = self.block.buffers[b.index()].buf;
        self.storage.get(buf.index()).copied().unwrap_or(buf)
    }

    /// Threads have waited for each other: what comes after conflicts with nothing before it.
    pub fn barrier(&mut self) {
        self.loaded.clear();
        self.stored.clear();
    }

    /// Begins a walk.
    pub fn open(&mut self) {
        self.in_loop = true;
    }

    /// Ends a walk. Its accesses are no longer of the same step as what follows.
    pub fn close(&mut self) {
        self.in_loop = false;
        let all = self.loaded.iter_mut().chain(&mut self.stored);
        all.for_each(|a| a.3 = false);
    }

    /// A load sees no store of another thread without a barrier in between. In a loop, a thread may read back what it stored
    /// at the same place in the same step.
    pub fn load(&mut self, b: KBufId, offset: Expr, shape: u32) -> Result<()> {
        let storage = self.storage(b);
        let race = self
            .stored
            .iter()
            .any(|(s, o, d, inner)| *s == storage && !(*inner && *o == offset && *d == shape));
        if race {
            return broken(format!("{b} has been stored to: a barrier is missing"));
        }
        self.loaded.push((storage, offset, shape, self.in_loop));
        Ok(())
    }

    /// A store overtakes no load of another thread: a thread may overwrite what it loaded itself, which is so where both
    /// accesses go over the whole tile by one offset.
    pub fn store(&mut self, b: KBufId, offset: Expr, shape: u32, full: u32) -> Result<()> {
        let storage = self.storage(b);
        let race = self.loaded.iter().any(|(s, o, d, inner)| {
            let own = *o == offset && *d == shape && (*d == full || *inner);
            *s == storage && !own
        });
        if race {
            return broken(format!("{b} has been loaded from: a barrier is missing"));
        }
        self.stored.push((storage, offset, shape, self.in_loop));
        Ok(())
    }
}

/// Checks that accesses without a mask of their own, whose offsets are sums of axes of known length, stay within their
/// storages.
pub(super) fn in_bounds(tables: Tables, block: &Block) -> Result<()> {
    let mut accesses: Vec<(KBufId, Expr)> = Vec::new();
    for v in &block.values {
        if let Def::Load {
            buf,
            offset,
            mask: None,
            ..
        } = v.def
        {
            accesses.push((buf, offset));
        }
    }
    each_store(&block.items, &mut |s| {
        if s.mask.is_none() {
            accesses.push((s.buf, s.offset));
        }
    });
    if let Some(p) = &block.product {
        accesses.extend([(p.a.buf, p.a.offset), (p.b.buf, p.b.offset)]);
    }
    if let Some(a) = &block.attention {
        // Lists of blocks hold fewer positions than their rows.
        let operands = [&a.query, &a.key, &a.value].into_iter().chain(a.grad());
        let operands = operands.chain(a.results());
        accesses.extend(operands.map(|o| (o.buf, o.offset)));
    }
    for (buf, offset) in accesses {
        let known =
            reach(tables, block, offset).zip(length(tables, block.buffers[buf.index()].buf));
        if let Some(((low, high), length)) = known
            && (low < 0 || high >= length)
        {
            return broken(format!(
                "{buf}, which has {length} elements, is accessed at {low}..={high}"
            ));
        }
    }
    Ok(())
}

/// The least and the greatest value of an offset that is a sum of multiples of axes of known length. `None` for others, and
/// where an axis has no points.
fn reach(tables: Tables, block: &Block, offset: Expr) -> Option<(i64, i64)> {
    let ex = tables.exprs;
    let k = block.product.as_ref().map(|p| (p.k, p.extent));
    let sides = block.attention.iter().flat_map(|a| [a.d, a.n]);
    let k = k.into_iter().chain(sides.map(|s| (s.sym, s.extent)));
    let axes = (block.dims.iter().map(|d| (d.sym, d.extent)).chain(k)).collect::<Vec<_>>();
    let syms: Vec<_> = axes.iter().map(|a| a.0).collect();
    let (coefficients, rest) = ex.affine(offset, &syms)?;
    let mut range = (ex.as_int(rest)?, ex.as_int(rest)?);
    for (c, (_, extent)) in coefficients.iter().zip(&axes) {
        let last = ex.as_int(*extent)?.checked_sub(1).filter(|n| *n >= 0)?;
        let end = ex.as_int(*c)?.checked_mul(last)?;
        range = (
            range.0.checked_add(end.min(0))?,
            range.1.checked_add(end.max(0))?,
        );
    }
    Some(range)
}

/// Elements of the storage that a buffer is in, where it holds elements of the buffer's size.
fn length(tables: Tables, buf: BufId) -> Option<i64> {
    let ex = tables.exprs;
    let owner = tables.buffer(tables.storage(buf));
    if owner.dtype.size() != tables.buffer(buf).dtype.size() {
        return None;
    }
    let layout = owner.layout.as_ref()?;
    let mut last = ex.as_int(layout.offset)?;
    for (n, s) in owner.sizes.iter().zip(&layout.strides) {
        let steps = ex.as_int(*n)? - 1;
        last = last.checked_add(steps.checked_mul(ex.as_int(*s)?)?.max(0))?;
    }
    last.checked_add(1)
}
