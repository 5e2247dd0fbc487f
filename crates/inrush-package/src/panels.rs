//! Weights in panels: the order in which a CPU's matrix engine reads a right operand. A weight that is stored so is used where
//! it is mapped, and not packed at load.
//!
//! ```text
//! for matrix in matrices
//!   for panel in columns / width        // the last one may be narrower, and ends in zeros
//!     for row in rows
//!       for column in panel             // neighbours in the file
//! ```
//!
//! Panels are a permutation of the weight's storage with padding, so a reader restores the storage without knowledge of the
//! engine.

use serde::{Deserialize, Serialize};

/// Rows of a panel that are moved at a time, so that both sides stay in the first cache.
const ROW_BLOCK: usize = 64;

/// An index of the product: its size, and the distance of neighbours in the weight's storage, in elements.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Axis {
    pub size: usize,
    pub step: usize,
}

/// The order of a weight's elements. All numbers count elements.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Panels {
    pub matrices: Axis,
    /// The axis that is summed over.
    pub rows: Axis,
    pub columns: Axis,
    /// Columns of a panel.
    pub width: usize,
    /// Columns of a narrower last panel, padding included; 0 if there is none.
    pub last: usize,
}

impl Panels {
    /// Returns the elements of the storage if the axes reach each of them once; `None` for other axes or panels, and for an
    /// empty storage.
    pub fn storage(&self) -> Option<usize> {
        let mut axes = [self.matrices, self.rows, self.columns];
        axes.sort_by_key(|a| (a.step, a.size));
        let mut len = 1usize;
        for a in axes {
            if a.size == 0 || (a.size > 1 && a.step != len) {
                return None;
            }
            len = len.checked_mul(a.size)?;
        }
        let rest = self.columns.size.checked_rem(self.width)?;
        let sound = match rest {
            0 => self.last == 0,
            _ => (rest..=self.width).contains(&self.last),
        };
        sound.then_some(len)
    }

    /// Returns the elements of all panels, padding included; `None` where they cannot be counted.
    pub fn stored(&self) -> Option<usize> {
        let full = self.columns.size.checked_div(self.width)?;
        (full.checked_mul(self.width)?)
            .checked_add(self.last)?
            .checked_mul(self.rows.size)?
            .checked_mul(self.matrices.size)
    }

    /// Puts a storage of elements of `size` bytes into panels.
    ///
    /// Returns `None` unless the axes fit the storage.
    pub fn pack(&self, plain: &[u8], size: usize) -> Option<Vec<u8>> {
        let bytes = self.stored()?.checked_mul(size)?;
        (self.storage()?.checked_mul(size)? == plain.len()).then_some(())?;
        let mut out = vec![0; bytes];
        let moved = match size {
            4 => self.pack_as::<4>(plain, &mut out),
            8 => self.pack_as::<8>(plain, &mut out),
            _ => None,
        };
        moved.map(|()| out)
    }

    /// Puts panels of elements of `size` bytes back into the order of the storage.
    ///
    /// Returns `None` unless the axes fit the panels.
    pub fn unpack(&self, panels: &[u8], size: usize) -> Option<Vec<u8>> {
        let bytes = self.storage()?.checked_mul(size)?;
        (self.stored()?.checked_mul(size)? == panels.len()).then_some(())?;
        let mut out = vec![0; bytes];
        let moved = match size {
            4 => self.unpack_as::<4>(panels, &mut out),
            8 => self.unpack_as::<8>(panels, &mut out),
            _ => None,
        };
        moved.map(|()| out)
    }

    fn pack_as<const N: usize>(&self, plain: &[u8], out: &mut [u8]) -> Option<()> {
        let (plain, _) = plain.as_chunks::<N>();
        let (out, _) = out.as_chunks_mut::<N>();
        self.each(|panel, storage| {
            *out.get_mut(panel)? = *plain.get(storage)?;
            Some(())
        })
    }

    fn unpack_as<const N: usize>(&self, panels: &[u8], out: &mut [u8]) -> Option<()> {
        let (panels, _) = panels.as_chunks::<N>();
        let (out, _) = out.as_chunks_mut::<N>();
        self.each(|panel, storage| {
            *out.get_mut(storage)? = *panels.get(panel)?;
            Some(())
        })
    }

    /// Calls `f` with the place of each element in the panels and in the storage, until it returns `None`.
    fn each(&self, mut f: impl FnMut(usize, usize) -> Option<()>) -> Option<()> {
        let full = self.columns.size.checked_div(self.width)?;
        let (rows, columns) = (self.rows, self.columns);
        let mut start = 0;
        for matrix in 0..self.matrices.size {
            for p in 0..full + usize::from(self.last > 0) {
                let first = p * self.width;
                let valid = self.width.min(columns.size - first);
                let width = if p < full { self.width } else { self.last };
                let from = matrix * self.matrices.step + first * columns.step;
                for block in (0..rows.size).step_by(ROW_BLOCK) {
                    let end = (block + ROW_BLOCK).min(rows.size);
                    if columns.step == 1 {
                        for i in block..end {
                            for j in 0..valid {
                                f(start + i * width + j, from + i * rows.step + j)?;
                            }
                        }
                        continue;
                    }
                    for j in 0..valid {
                        let column = from + j * columns.step;
                        for i in block..end {
                            f(start + i * width + j, column + i * rows.step)?;
                        }
                    }
                }
                start += rows.size * width;
            }
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(size: usize, step: usize) -> Axis {
        Axis { size, step }
    }

    fn panels(matrices: Axis, rows: Axis, columns: Axis, width: usize, last: usize) -> Panels {
        Panels {
            matrices,
            rows,
            columns,
            width,
            last,
        }
    }

    fn words(values: impl IntoIterator<Item = u32>) -> Vec<u8> {
        values.into_iter().flat_map(u32::to_le_bytes).collect()
    }

    #[test]
    fn columns_of_a_panel_are_neighbours() {
        // A weight of 5 x 2 whose rows are columns of the product: panels of 4 and of 1, padded to 2.
        let p = panels(axis(1, 0), axis(2, 1), axis(5, 2), 4, 2);
        let packed = p.pack(&words(1..=10), 4).expect("panels");
        assert_eq!(packed, words([1, 3, 5, 7, 2, 4, 6, 8, 9, 0, 10, 0]));
        assert_eq!(p.unpack(&packed, 4).expect("a storage"), words(1..=10));
    }

    #[test]
    fn every_order_comes_back() {
        let (m, k, n) = (3, 70, 11);
        for (matrix, row, column) in [
            (k * n, n, 1),
            (k * n, 1, k),
            (1, m * n, m),
            (n, m * n, 1),
            (k, 1, m * k),
        ] {
            for (width, last) in [(4, 3), (4, 4), (11, 0), (1, 0), (16, 12)] {
                let p = panels(axis(m, matrix), axis(k, row), axis(n, column), width, last);
                let elements = p.storage().expect("all elements");
                assert_eq!(elements, m * k * n);
                for size in [4, 8] {
                    let plain: Vec<u8> =
                        (0..elements * size).map(|b| (b * 7 % 251) as u8).collect();
                    let packed = p.pack(&plain, size).expect("panels");
                    assert_eq!(packed.len(), p.stored().expect("a count") * size);
                    assert_eq!(p.unpack(&packed, size).expect("a storage"), plain, "{p:?}");
                    assert!(p.unpack(&packed[size..], size).is_none());
                    assert!(p.pack(&plain[size..], size).is_none());
                }
            }
        }
    }

    #[test]
    fn other_orders_are_refused() {
        let one = axis(1, 0);
        let whole = |p: Panels| p.storage();
        assert_eq!(whole(panels(one, axis(2, 3), axis(3, 1), 2, 1)), Some(6));
        // Elements that are reached twice, left out, or of a size that cannot be counted.
        let most = usize::MAX / 2;
        for (rows, columns) in [
            (axis(2, 1), axis(3, 1)),
            (axis(2, 0), axis(3, 1)),
            (axis(2, 4), axis(3, 1)),
            (axis(2, 3), axis(3, 2)),
            (axis(0, 3), axis(3, 1)),
            (axis(most, 3), axis(3, 1)),
        ] {
            assert_eq!(
                whole(panels(one, rows, columns, 3, 0)),
                None,
                "{rows:?} {columns:?}"
            );
        }
        for (width, last) in [(0, 0), (2, 0), (2, 3), (3, 1), (4, 2), (most, 0)] {
            let p = panels(one, axis(2, 3), axis(3, 1), width, last);
            assert_eq!(whole(p), None, "{width} {last}");
        }
    }
}
