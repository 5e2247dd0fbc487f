//! Dtype, sizes and strides of a tensor, in the numbers that library calls take.

use inrush_base::{DType, Error, Result, strides_nest};
use smallvec::SmallVec;

/// A tensor's dtype, sizes and strides.
#[derive(Clone, PartialEq, Debug)]
pub struct Shape {
    /// The number that [`dtype_code`] gives.
    pub dtype: i32,
    /// Bytes of an element.
    pub element: u64,
    pub sizes: SmallVec<[i64; 6]>,
    /// In elements.
    pub strides: SmallVec<[i64; 6]>,
}

impl Shape {
    /// Returns the shape of `bytes` bytes in a row.
    pub fn of_bytes(bytes: u64) -> Shape {
        Shape {
            dtype: dtype_code(DType::U8),
            element: 1,
            sizes: SmallVec::from_slice(&[bytes as i64]),
            strides: SmallVec::from_slice(&[1]),
        }
    }

    /// Returns the bytes from the first to the last element, both included.
    ///
    /// # Errors
    /// An input error for negative sizes or strides, and where the bytes are more than memory can have.
    pub fn bytes(&self) -> Result<u64> {
        let beyond = || {
            Error::input(format!(
                "a tensor of sizes {:?} and strides {:?} is beyond any memory",
                self.sizes, self.strides
            ))
        };
        if self.sizes.iter().chain(&self.strides).any(|n| *n < 0) {
            return Err(beyond());
        }
        if self.sizes.contains(&0) {
            return Ok(0);
        }
        let mut last: i64 = 0;
        for (n, s) in self.sizes.iter().zip(&self.strides) {
            last = (n - 1)
                .checked_mul(*s)
                .and_then(|x| last.checked_add(x))
                .ok_or_else(beyond)?;
        }
        (last as u64)
            .checked_add(1)
            .and_then(|n| n.checked_mul(self.element))
            .filter(|n| *n <= isize::MAX as u64)
            .ok_or_else(beyond)
    }

    /// Returns false if strides prove that every element has memory of its own.
    ///
    /// The exact answer may list 65,536 elements, at a call, while all that callers do for `true` is
    /// to copy memory without regard to elements, which is right for both.
    pub fn may_share_elements(&self) -> bool {
        let mut dims: SmallVec<[(i64, i64); 6]> = (self.strides.iter().copied())
            .zip(self.sizes.iter().copied())
            .filter(|(_, n)| *n > 1)
            .collect();
        !strides_nest(&mut dims)
    }
}

/// Returns PyTorch's number of a dtype: [`DType::torch_code`].
pub fn dtype_code(d: DType) -> i32 {
    d.torch_code()
}

/// Returns the dtype with a number of PyTorch's.
pub fn dtype_of(code: i32) -> Option<DType> {
    DType::of_torch_code(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_reach_from_the_first_to_the_last_element() {
        let shape = |sizes: &[i64], strides: &[i64]| Shape {
            dtype: dtype_code(DType::F32),
            element: 4,
            sizes: sizes.into(),
            strides: strides.into(),
        };
        assert_eq!(shape(&[2, 3], &[4, 1]).bytes().unwrap(), 28);
        assert_eq!(shape(&[2, 0], &[4, 1]).bytes().unwrap(), 0);
        assert_eq!(shape(&[], &[]).bytes().unwrap(), 4);
        assert!(shape(&[i64::MAX, 3], &[4, 1]).bytes().is_err());
        assert_eq!(Shape::of_bytes(7).bytes().unwrap(), 7);
    }

    #[test]
    fn elements_may_meet_unless_strides_nest() {
        let meets = |sizes: &[i64], strides: &[i64]| {
            let shape = Shape {
                sizes: sizes.into(),
                strides: strides.into(),
                ..Shape::of_bytes(0)
            };
            shape.may_share_elements()
        };
        assert!(!meets(&[3, 4], &[4, 1]));
        assert!(!meets(&[3, 4], &[1, 3]));
        assert!(!meets(&[3, 1], &[1, 0]));
        assert!(meets(&[3, 4], &[1, 0]));
        // Elements 0, 2, 4 and 3, 5, 7 do not meet: nothing proves it here.
        assert!(meets(&[3, 2], &[2, 3]));
    }

    #[test]
    fn no_two_dtypes_share_a_number() {
        let mut codes: Vec<i32> = DType::all().map(dtype_code).collect();
        codes.sort_unstable();
        codes.dedup();
        assert_eq!(codes.len(), DType::all().count());
    }
}
