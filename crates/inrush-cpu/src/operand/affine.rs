//! Maps from a linear index to an element offset: a mixed-radix number whose digits have strides.

use inrush_base::{Error, Result};

const MAX_LEVELS: usize = 8;

/// Offset of element `i` of an index space of up to eight nested levels, each with its own size and stride (in elements).
///
/// Rows of a matrix are one level, `(rows, row stride)`; output pixels of a convolution are three, `(n, oh, ow)`; heads that
/// share keys are a level of stride 0. Levels that can be walked as one are merged at construction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Affine {
    levels: usize,
    size: [usize; MAX_LEVELS],
    stride: [isize; MAX_LEVELS],
    len: usize,
}

impl Affine {
    /// The space with a single index and offset 0.
    pub const ONE: Affine = Affine {
        levels: 0,
        size: [1; MAX_LEVELS],
        stride: [0; MAX_LEVELS],
        len: 1,
    };

    /// Returns a map of one level.
    pub fn linear(size: usize, stride: isize) -> Affine {
        Affine {
            levels: 1,
            size: [size, 1, 1, 1, 1, 1, 1, 1],
            stride: [stride, 0, 0, 0, 0, 0, 0, 0],
            len: size,
        }
    }

    /// Makes a map of levels `(size, stride)`, the slowest first. More than eight that cannot be merged, or a product of sizes that
    /// overflows, is an error.
    pub fn new(levels: &[(usize, isize)]) -> Result<Affine> {
        let mut out = Affine::ONE;
        if levels.iter().any(|l| l.0 == 0) {
            return Ok(Affine::linear(0, 0));
        }
        for &(size, stride) in levels.iter().filter(|l| l.0 != 1) {
            out.len = out
                .len
                .checked_mul(size)
                .ok_or_else(|| Error::input("an index space has more than 2^64 elements"))?;
            if out.levels > 0 {
                let last = out.levels - 1;
                let span = isize::try_from(size)
                    .ok()
                    .and_then(|s| stride.checked_mul(s));
                if span == Some(out.stride[last]) {
                    out.size[last] *= size;
                    out.stride[last] = stride;
                    continue;
                }
            }
            if out.levels == MAX_LEVELS {
                return Err(Error::unsupported(format!(
                    "an index map of more than {MAX_LEVELS} levels"
                )));
            }
            out.size[out.levels] = size;
            out.stride[out.levels] = stride;
            out.levels += 1;
        }
        Ok(out)
    }

    /// Returns the number of indices.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if there is no index at all.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the offset of index `i`, which must be below [`Affine::len`] for the result to mean anything.
    pub fn offset(&self, mut i: usize) -> isize {
        if self.levels == 1 {
            return i as isize * self.stride[0];
        }
        let mut offset = 0;
        for l in (0..self.levels).rev() {
            let size = self.size[l].max(1);
            offset += (i % size) as isize * self.stride[l];
            i /= size;
        }
        offset
    }

    /// Returns the single stride, where one level says it all.
    pub fn stride(&self) -> Option<isize> {
        match self.levels {
            0 => Some(0),
            1 => Some(self.stride[0]),
            _ => None,
        }
    }

    /// Returns levels as size, stride and how much each step adds to the index; the slowest first.
    pub(crate) fn levels(&self) -> impl Iterator<Item = (usize, isize, usize)> {
        (0..self.levels).map(|l| {
            let index = self.size[l + 1..self.levels].iter().product();
            (self.size[l], self.stride[l], index)
        })
    }

    /// Returns size and stride of the fastest level.
    pub(crate) fn inner(&self) -> (usize, isize) {
        match self.levels {
            0 => (1, 0),
            l => (self.size[l - 1], self.stride[l - 1]),
        }
    }

    /// Returns size and stride of the level around the fastest one.
    pub(crate) fn outer(&self) -> Option<(usize, isize)> {
        let l = self.levels.checked_sub(2)?;
        Some((self.size[l], self.stride[l]))
    }

    /// Returns the elements between the lowest and the highest offset.
    pub(crate) fn span(&self) -> usize {
        (0..self.levels).fold(0usize, |sum, l| {
            let steps = self.size[l].saturating_sub(1);
            sum.saturating_add(steps.saturating_mul(self.stride[l].unsigned_abs()))
        })
    }

    /// Walks offsets of `start`, `start + 1`, ... without a division for each.
    pub(crate) fn walk(&self, start: usize) -> Walk<'_> {
        let mut digit = [0; MAX_LEVELS];
        let mut i = start;
        for l in (0..self.levels).rev() {
            let size = self.size[l].max(1);
            digit[l] = i % size;
            i /= size;
        }
        Walk {
            map: self,
            digit,
            offset: self.offset(start),
        }
    }
}

/// See [`Affine::walk`]; never ends by itself.
pub(crate) struct Walk<'a> {
    map: &'a Affine,
    digit: [usize; MAX_LEVELS],
    offset: isize,
}

impl Walk<'_> {
    #[inline]
    pub(crate) fn next(&mut self) -> isize {
        let now = self.offset;
        for l in (0..self.map.levels).rev() {
            self.digit[l] += 1;
            self.offset += self.map.stride[l];
            if self.digit[l] < self.map.size[l] {
                break;
            }
            self.offset -= self.map.size[l] as isize * self.map.stride[l];
            self.digit[l] = 0;
        }
        now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_agree_with_walks() {
        let map = Affine::new(&[(2, 100), (3, 7), (1, 999), (4, -2)]).unwrap();
        assert_eq!(map.len(), 24);
        for start in [0, 5, 23] {
            let mut walk = map.walk(start);
            for i in start..24 {
                let want =
                    (i / 12) as isize * 100 + (i / 4 % 3) as isize * 7 - 2 * (i % 4) as isize;
                assert_eq!(map.offset(i), want);
                assert_eq!(walk.next(), want);
            }
        }
    }

    #[test]
    fn levels_that_continue_each_other_merge() {
        assert_eq!(
            Affine::new(&[(2, 12), (3, 4), (4, 1)]).unwrap(),
            Affine::linear(24, 1)
        );
        assert_eq!(Affine::new(&[(1, 5)]).unwrap(), Affine::ONE);
        assert!(Affine::new(&[(3, 2), (0, 1)]).unwrap().is_empty());
        assert!(Affine::new(&[(usize::MAX, 1), (3, 9)]).is_err());
    }
}
