//! Buffers in memory, each with its layout (row-major if none is chosen). Aliases share their
//! buffer's storage.
//!
//! Before layouts are chosen a buffer is row-major. Afterwards accesses still name coordinates,
//! and only this file applies strides and offset. A storage begins with zeros, so a read of an
//! element that was never written is not noticed here; the interpreter of block programs poisons
//! its memory for that.

use crate::index::{Symbols, size, sizes};
use crate::tensor::{Tensor, numel};
use inrush_base::{DType, Error, Result, Scalar};
use inrush_loops::{BufId, BufferKind, Loops};

/// One buffer's view of a storage.
/// Strides and offset count elements of the view's dtype.
pub(super) struct View {
    /// The buffer that owns the bytes; the buffer itself unless it is an alias.
    pub storage: usize,
    pub dtype: DType,
    pub sizes: Vec<i64>,
    pub strides: Vec<i64>,
    pub offset: i64,
    /// For messages: number and name of the buffer.
    name: String,
}

pub(super) struct Memory {
    pub views: Vec<View>,
    /// Flat storages, indexed by the buffer that owns them (empty for aliases).
    storages: Vec<Tensor>,
}

impl Memory {
    pub(super) fn new(p: &Loops, symbols: &Symbols) -> Result<Memory> {
        let mut views = Vec::new();
        let mut storages = Vec::new();
        for (k, b) in p.buffers.iter().enumerate() {
            let dims = sizes(&p.exprs, &b.sizes, symbols)?;
            let (strides, offset) = match &b.layout {
                Some(l) => (
                    sizes(&p.exprs, &l.strides, symbols)?,
                    size(&p.exprs, l.offset, symbols)?,
                ),
                None => (row_major(&dims), 0),
            };
            let view = View {
                storage: p.storage(BufId::from_index(k)).index(),
                dtype: b.dtype,
                sizes: dims,
                strides,
                offset,
                name: format!("b{k} ({})", b.name),
            };
            let length = match b.kind {
                // Lists stay parallel to the buffers.
                BufferKind::Alias { .. } => 0,
                _ => view.extent()?,
            };
            storages.push(Tensor::zeros(b.dtype, &[length])?);
            views.push(view);
        }
        Ok(Memory { views, storages })
    }

    /// Returns the element at `coords`.
    pub(super) fn load(&self, buf: usize, coords: &[i64]) -> Result<Scalar> {
        let v = &self.views[buf];
        self.read_at(buf, v.position(coords)?)
    }

    /// Writes an element, rounded or wrapped to the buffer's dtype.
    pub(super) fn store(&mut self, buf: usize, coords: &[i64], value: Scalar) -> Result<()> {
        let at = self.views[buf].position(coords)?;
        self.write_at(buf, at, value)
    }

    /// Returns the element at a position of the storage.
    pub(super) fn read_at(&self, buf: usize, at: usize) -> Result<Scalar> {
        let v = &self.views[buf];
        let storage = &self.storages[v.storage];
        let value = storage.get(at).map_err(|e| e.context(&v.name))?;
        // An alias of another dtype is a bitcast (`view.dtype`): both have elements of one size.
        if storage.dtype == v.dtype {
            Ok(value)
        } else {
            inrush_loops::eval::bitcast(value, storage.dtype, v.dtype)
        }
    }

    fn write_at(&mut self, buf: usize, at: usize, value: Scalar) -> Result<()> {
        let v = &self.views[buf];
        let storage = &mut self.storages[v.storage];
        let value = if storage.dtype == v.dtype {
            value
        } else {
            inrush_loops::eval::bitcast(value, v.dtype, storage.dtype)?
        };
        storage.set(at, value).map_err(|e| e.context(&v.name))
    }

    /// Writes a row-major tensor through the buffer's layout. Sizes have been checked.
    pub(super) fn write_all(&mut self, buf: usize, t: &Tensor) -> Result<()> {
        let mut k = 0;
        super::for_each_point(&t.sizes, |at| {
            self.store(buf, at, t.get(k)?)?;
            k += 1;
            Ok(())
        })
    }

    /// Returns the buffer's contents as a row-major tensor.
    pub(super) fn read_all(&self, buf: usize) -> Result<Tensor> {
        let v = &self.views[buf];
        let mut t = Tensor::zeros(v.dtype, &v.sizes)?;
        let mut k = 0;
        super::for_each_point(&v.sizes, |at| {
            t.set(k, self.load(buf, at)?)?;
            k += 1;
            Ok(())
        })?;
        Ok(t)
    }
}

impl View {
    /// Returns the element of the storage at `coords`. Coordinates are checked against sizes, not
    /// only the position against the storage: an access that leaves its row and ends in the next
    /// one is an error.
    fn position(&self, coords: &[i64]) -> Result<usize> {
        let inside = coords.len() == self.sizes.len()
            && (coords.iter().zip(&self.sizes)).all(|(c, n)| (0..*n).contains(c));
        if !inside {
            return Err(Error::input(format!(
                "index {coords:?} is out of range for {} of sizes {:?}",
                self.name, self.sizes
            )));
        }
        let steps = coords.iter().zip(&self.strides);
        let at = steps.fold(self.offset, |at, (c, s)| {
            at.wrapping_add(c.wrapping_mul(*s))
        });
        usize::try_from(at)
            .map_err(|_| Error::internal(format!("{} lies at a negative position", self.name)))
    }

    /// Returns the number of storage elements that the layout spans.
    fn extent(&self) -> Result<i64> {
        if numel(&self.sizes)? == 0 {
            return Ok(0);
        }
        let last = self
            .sizes
            .iter()
            .zip(&self.strides)
            .try_fold(self.offset, |a, (n, s)| {
                // A negative stride reaches down from the offset and needs no room above it.
                (n - 1).checked_mul(*s)?.max(0).checked_add(a)
            });
        last.and_then(|l| l.checked_add(1))
            .ok_or_else(|| Error::input(format!("{} is too large", self.name)))
    }
}

/// Returns contiguous strides; a size of zero counts as one, as in PyTorch.
fn row_major(sizes: &[i64]) -> Vec<i64> {
    let mut strides = vec![1i64; sizes.len()];
    for d in (1..sizes.len()).rev() {
        strides[d - 1] = strides[d].saturating_mul(sizes[d].max(1));
    }
    strides
}
