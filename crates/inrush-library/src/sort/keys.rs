//! Order-preserving unsigned keys of elements, packed with indices.

use crate::check::Element;
use bytemuck::Pod;
use half::{bf16, f16};

/// A key with the index of its element in the low 32 bits.
pub(crate) trait Packed: Copy + Ord + Default + Send + Sync {
    fn new(key: u64, index: usize) -> Self;
    fn index(self) -> usize;
    /// Returns eight bits of the key.
    fn digit(self, shift: u32) -> usize;
}

macro_rules! packed {
    ($t:ty) => {
        impl Packed for $t {
            #[inline]
            fn new(key: u64, index: usize) -> Self {
                (key as $t) << 32 | index as $t
            }

            #[inline]
            fn index(self) -> usize {
                (self & 0xffff_ffff) as usize
            }

            #[inline]
            fn digit(self, shift: u32) -> usize {
                (self >> (32 + shift) & 0xff) as usize
            }
        }
    };
}
// Keys of up to 32 bits.
packed!(u64);
// Keys of 64 bits.
packed!(u128);

/// Elements that can be sorted.
pub(crate) trait Key: Pod + Send + Sync {
    type Packed: Packed;
    /// Bits of a key.
    const BITS: u32;
    /// The largest key.
    const MASK: u64 = u64::MAX >> (64 - Self::BITS);
    /// Returns a key in the order of elements. NaN has the largest, zeros of both signs have one.
    fn key(self) -> u64;
}

macro_rules! unsigned {
    ($($t:ty, $packed:ty);*) => { $(
        impl Key for $t {
            type Packed = $packed;
            const BITS: u32 = <$t>::BITS;
            #[inline]
            fn key(self) -> u64 {
                u64::from(self)
            }
        }
    )* };
}
unsigned!(u8, u64; u16, u64; u32, u64; u64, u128);

macro_rules! signed {
    ($($t:ty, $unsigned:ty, $packed:ty);*) => { $(
        impl Key for $t {
            type Packed = $packed;
            const BITS: u32 = <$t>::BITS;
            #[inline]
            fn key(self) -> u64 {
                // Flips the sign bit: negative numbers come first.
                u64::from(self as $unsigned ^ 1 << (<$t>::BITS - 1))
            }
        }
    )* };
}
signed!(i8, u8, u64; i16, u16, u64; i32, u32, u64; i64, u64, u128);

macro_rules! floats {
    ($($t:ty, $bits:ty, $packed:ty);*) => { $(
        impl Key for $t {
            type Packed = $packed;
            const BITS: u32 = <$bits>::BITS;
            #[inline]
            fn key(self) -> u64 {
                const SIGN: $bits = 1 << (<$bits>::BITS - 1);
                const INFINITY: $bits = <$t>::INFINITY.to_bits();
                let bits = self.to_bits();
                let magnitude = bits & !SIGN;
                if magnitude > INFINITY {
                    return Self::MASK;
                }
                // Of negative numbers the larger magnitude is less. Zero is taken as positive.
                let negative = bits != magnitude && magnitude != 0;
                u64::from(if negative { !bits } else { magnitude | SIGN })
            }
        }
    )* };
}
floats!(f16, u16, u64; bf16, u16, u64; f32, u32, u64; f64, u64, u128);

impl Element for f16 {
    const DTYPE: inrush_base::DType = inrush_base::DType::F16;
}
impl Element for bf16 {
    const DTYPE: inrush_base::DType = inrush_base::DType::BF16;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_follow_the_order_of_floats() {
        let ordered = [
            f32::NEG_INFINITY,
            f32::MIN,
            -1.0,
            -1e-45,
            0.0,
            1e-45,
            0.5,
            f32::MAX,
            f32::INFINITY,
            f32::NAN,
        ];
        assert!(ordered.windows(2).all(|w| w[0].key() < w[1].key()));
        assert_eq!((-0.0f32).key(), 0.0f32.key());
        assert_eq!((-f32::NAN).key(), f32::NAN.key());
        assert_eq!((-f64::NAN).key(), u64::MAX);
        assert_eq!(f16::NAN.key(), 0xffff);
        assert!(f16::INFINITY.key() < 0xffff);
        assert!(bf16::NEG_INFINITY.key() < bf16::MIN.key());
    }

    #[test]
    fn keys_follow_the_order_of_integers() {
        assert!(
            [i8::MIN, -1, 0, 1, i8::MAX]
                .windows(2)
                .all(|w| w[0].key() < w[1].key())
        );
        assert!(
            [i64::MIN, -1, 0, 1, i64::MAX]
                .windows(2)
                .all(|w| w[0].key() < w[1].key())
        );
    }
}
