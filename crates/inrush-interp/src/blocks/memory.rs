//! Memory of block programs: arenas and storages as bytes, since buffers share them.
//!
//! Typed storages would not do: the memory plan gives one range of an arena to buffers of several
//! dtypes in turn. Bytes begin as 0xFF, so that an element that is read before anything was
//! written there shows as NaN or -1. An arena is not poisoned again when a buffer ends: a read
//! that comes too late finds the next buffer's bytes.

use crate::index::{Symbols, size, sizes};
use crate::tensor::{Tensor, numel};
use inrush_base::{DType, Error, Result, Scalar};
use inrush_expr::Expr;
use inrush_loops::{BufId, BufferKind, Loops, eval};

/// Where the buffers have their bytes; one for each buffer. Buffers that it does not know have storages of their own, as
/// aliases allow.
#[derive(Clone, Debug, Default)]
pub struct BlockMemory {
    /// In the order of the buffers; may be shorter, and the others have storages of their own
    /// then.
    pub spots: Vec<Spot>,
    /// Bytes of each arena.
    pub arenas: Vec<Expr>,
}

/// The bytes of a buffer.
#[derive(Copy, Clone, Debug)]
pub enum Spot {
    /// A storage of its own, or that of the buffer that it is an alias of.
    Own,
    /// In an arena, from this byte on.
    Arena { arena: usize, offset: Expr },
}

/// The byte of memory that nothing has written: NaN as any float, -1 as any integer.
const POISON: u8 = 0xFF;

/// Bytes that all memory may have.
const MAX_BYTES: i64 = 1 << 32;

/// One buffer's view of a region.
/// Strides and offset count elements from `from` on.
struct View {
    dtype: DType,
    sizes: Vec<i64>,
    strides: Vec<i64>,
    offset: i64,
    /// Arenas come first in the list of regions, then storages.
    region: usize,
    /// The bytes of the region that are the buffer's.
    from: usize,
    to: usize,
    name: String,
}

/// Views stand in the order of the buffers.
pub(super) struct Memory {
    views: Vec<View>,
    regions: Vec<Vec<u8>>,
}

impl Memory {
    /// Allocates arenas and storages at the sizes of this call.
    pub(super) fn new(p: &Loops, places: &BlockMemory, symbols: &Symbols) -> Result<Memory> {
        let mut m = Memory {
            views: Vec::new(),
            regions: Vec::new(),
        };
        for e in &places.arenas {
            m.region(size(&p.exprs, *e, symbols)?)?;
        }
        for k in 0..p.buffers.len() {
            let view = m.view(p, places, symbols, BufId::from_index(k))?;
            m.views.push(view);
        }
        Ok(m)
    }

    /// Adds poisoned bytes and returns their region.
    fn region(&mut self, bytes: i64) -> Result<usize> {
        if !(0..=MAX_BYTES).contains(&bytes) {
            return Err(Error::input(format!(
                "{bytes} bytes are too many for the interpreter"
            )));
        }
        self.regions.push(vec![POISON; bytes as usize]);
        Ok(self.regions.len() - 1)
    }

    /// Returns the view of a buffer, with a storage for it if no spot is given.
    fn view(
        &mut self,
        p: &Loops,
        places: &BlockMemory,
        symbols: &Symbols,
        id: BufId,
    ) -> Result<View> {
        let b = p.buffer(id);
        let layout =
            (b.layout.as_ref()).ok_or_else(|| Error::internal(format!("{id} has no layout")))?;
        let mut view = View {
            dtype: b.dtype,
            sizes: sizes(&p.exprs, &b.sizes, symbols)?,
            strides: sizes(&p.exprs, &layout.strides, symbols)?,
            offset: size(&p.exprs, layout.offset, symbols)?,
            region: 0,
            from: 0,
            to: 0,
            name: format!("{id} ({})", b.name),
        };
        let spot = places.spots.get(id.index()).copied().unwrap_or(Spot::Own);
        // The alias's own dtype counts elements of the shared bytes, so `view.dtype` needs no
        // conversion here.
        if let BufferKind::Alias { of } = b.kind {
            let missing = || Error::internal(format!("{id} shares the bytes of a later buffer"));
            let other = self.views.get(of.index()).ok_or_else(missing)?;
            (view.region, view.from, view.to) = (other.region, other.from, other.to);
            return Ok(view);
        }
        let bytes = view.extent()?.saturating_mul(b.dtype.size() as i64);
        let (region, from) = match spot {
            Spot::Arena { arena, offset } => (arena, size(&p.exprs, offset, symbols)?),
            _ => (self.region(bytes)?, 0),
        };
        let length = self.regions.get(region).map_or(0, |r| r.len() as i64);
        let to = from.saturating_add(bytes);
        // A memory plan that is too small, or a spot outside of it, is the compiler's mistake.
        if from < 0 || to > length {
            let name = &view.name;
            return Err(Error::internal(format!(
                "{name} has bytes {from}..{to} of an arena of {length}"
            )));
        }
        (view.region, view.from, view.to) = (region, from as usize, to as usize);
        Ok(view)
    }

    /// The bytes of an element of a buffer's storage.
    fn element(&self, buf: BufId, at: i64) -> Result<(usize, std::ops::Range<usize>)> {
        let v = (self.views.get(buf.index()))
            .ok_or_else(|| Error::internal(format!("there is no buffer {buf}")))?;
        let size = v.dtype.size();
        let length = ((v.to - v.from) / size) as i64;
        // A buffer's part of an arena has neighbours: the check is against the buffer, not the
        // arena.
        if !(0..length).contains(&at) {
            return Err(Error::internal(format!(
                "element {at} of {}, which has {length}, is accessed",
                v.name
            )));
        }
        let from = v.from + at as usize * size;
        Ok((v.region, from..from + size))
    }

    /// The element at a position of the storage.
    pub(super) fn load(&self, buf: BufId, at: i64) -> Result<Scalar> {
        let (region, bytes) = self.element(buf, at)?;
        let mut word = [0u8; 8];
        let bytes = &self.regions[region][bytes];
        let dtype = self.views[buf.index()].dtype;
        match word.get_mut(..bytes.len()) {
            Some(to) => to.copy_from_slice(bytes),
            None => return Err(Error::unsupported(format!("values of dtype {dtype}"))),
        }
        eval::from_bits(u64::from_le_bytes(word), dtype)
    }

    /// Writes an element of the storage, rounded or wrapped to the buffer's dtype.
    pub(super) fn store(&mut self, buf: BufId, at: i64, value: Scalar) -> Result<()> {
        let (region, bytes) = self.element(buf, at)?;
        let bits = eval::to_bits(value, self.views[buf.index()].dtype)?.to_le_bytes();
        let to = &mut self.regions[region][bytes];
        to.copy_from_slice(&bits[..to.len()]);
        Ok(())
    }

    /// Writes a row-major tensor through the buffer's layout.
    pub(super) fn write_all(&mut self, buf: BufId, t: &Tensor) -> Result<()> {
        for k in 0..t.numel() {
            let at = self.views[buf.index()].position(k);
            self.store(buf, at, t.get(k)?)?;
        }
        Ok(())
    }

    /// Returns the buffer's contents as a row-major tensor.
    pub(super) fn read_all(&self, buf: BufId) -> Result<Tensor> {
        let v = &self.views[buf.index()];
        let mut t = Tensor::zeros(v.dtype, &v.sizes)?;
        for k in 0..t.numel() {
            t.set(k, self.load(buf, v.position(k))?)?;
        }
        Ok(t)
    }
}

impl View {
    /// Where the element of a row-major number is in the storage.
    fn position(&self, k: usize) -> i64 {
        let (mut rest, mut at) = (k as i64, self.offset);
        for (n, s) in self.sizes.iter().zip(&self.strides).rev() {
            at = at.wrapping_add((rest % n).wrapping_mul(*s));
            rest /= n;
        }
        at
    }

    /// Elements of storage that the layout needs.
    fn extent(&self) -> Result<i64> {
        if numel(&self.sizes)? == 0 {
            return Ok(0);
        }
        let mut dims = self.sizes.iter().zip(&self.strides);
        let last = dims.try_fold(self.offset, |a, (n, s)| {
            (n - 1).checked_mul(*s)?.max(0).checked_add(a)
        });
        last.and_then(|l| l.checked_add(1))
            .ok_or_else(|| Error::input(format!("{} is too large", self.name)))
    }
}
