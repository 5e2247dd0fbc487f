//! Tensor maps: what the copy engine of Hopper and later is told of a tensor.

use inrush_base::{Error, Result};

/// Dimensions at most.
pub const MAX_RANK: usize = 5;
/// A map as kernels take it, by value.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
#[repr(C, align(64))]
pub struct TensorMap(pub [u8; TensorMap::BYTES]);

impl TensorMap {
    /// Bytes of a map.
    pub const BYTES: usize = 128;

    /// Returns the map as kernels read it.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }
}

/// All of a tensor that its map says, but for the address.
#[derive(Clone, PartialEq, Debug)]
pub struct Tensor {
    /// The driver's number of the element type.
    pub element: u32,
    /// The driver's number of the order of bytes in shared memory.
    pub swizzle: u32,
    /// Number of dimensions.
    pub rank: usize,
    /// Sizes from the fastest dimension to the slowest.
    pub sizes: [u64; MAX_RANK],
    /// Strides in bytes, in the same order, without the fastest dimension's.
    pub strides: [u64; MAX_RANK],
    /// Sizes of a tile, in the same order.
    pub block: [u32; MAX_RANK],
}

impl Tensor {
    /// Describes a tensor. `sizes`, `strides` (in elements) and `block` go from the slowest dimension to the fastest.
    ///
    /// # Errors
    /// Where the lists do not fit each other, or the copy engine takes no such tensor.
    pub fn new(
        element: u32,
        element_bytes: u32,
        swizzle: u32,
        sizes: &[i64],
        strides: &[i64],
        block: &[u32],
    ) -> Result<Tensor> {
        let rank = sizes.len();
        let fits = (1..=MAX_RANK).contains(&rank) && strides.len() == rank && block.len() == rank;
        if !fits {
            return Err(Error::internal("a tensor map of lists that do not fit"));
        }
        let refused = || {
            Error::unsupported(format!(
                "a tensor of sizes {sizes:?} and strides {strides:?} in a tensor map"
            ))
        };
        let mut out = Tensor {
            element,
            swizzle,
            rank,
            sizes: [1; MAX_RANK],
            strides: [0; MAX_RANK],
            block: [1; MAX_RANK],
        };
        for (k, at) in (0..rank).rev().enumerate() {
            out.sizes[k] = (u64::try_from(sizes[at]).ok())
                .filter(|n| (1..=1 << 32).contains(n))
                .ok_or_else(refused)?;
            out.block[k] = block[at];
            if k > 0 {
                out.strides[k - 1] = (u64::try_from(strides[at]).ok())
                    .and_then(|s| s.checked_mul(element_bytes as u64))
                    .filter(|s| s % 16 == 0 && *s < 1 << 40)
                    .ok_or_else(refused)?;
            }
        }
        match strides[rank - 1] {
            1 => Ok(out),
            _ => Err(refused()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_go_from_the_fastest_dimension_in_bytes() {
        let t = Tensor::new(10, 2, 3, &[3, 5, 40], &[320, 64, 1], &[1, 4, 32]).unwrap();
        assert_eq!(t.sizes, [40, 5, 3, 1, 1]);
        assert_eq!(t.strides, [128, 640, 0, 0, 0]);
        assert_eq!(t.block, [32, 4, 1, 1, 1]);
    }

    #[test]
    fn what_the_copy_engine_does_not_take_is_refused() {
        let of = |sizes: &[i64], strides: &[i64], block: &[u32]| {
            Tensor::new(10, 2, 0, sizes, strides, block).is_err()
        };
        assert!(of(&[0, 8], &[8, 1], &[1, 8]));
        assert!(of(&[4, 8], &[8, 2], &[1, 8]));
        assert!(of(&[4, 8], &[9, 1], &[1, 8]));
        assert!(of(&[4, 8], &[-8, 1], &[1, 8]));
        assert!(of(&[4, 1 << 33], &[8, 1], &[1, 8]));
        assert!(of(&[4, 8], &[8, 1], &[8]));
        assert!(of(&[], &[], &[]));
        assert!(!of(&[4, 8], &[8, 1], &[1, 8]));
    }
}
