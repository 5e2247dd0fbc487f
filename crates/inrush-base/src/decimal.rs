//! Prints numbers in decimal without `std::fmt`, which takes several times as long for names and constants.

use std::ops::Deref;

/// Digits of the largest number.
const MOST: usize = u64::MAX.ilog10() as usize + 1;

/// The text of a number, see [`digits`].
pub struct Digits {
    bytes: [u8; MOST],
    start: usize,
}

/// A number in decimal.
pub fn digits(n: impl Into<u64>) -> Digits {
    let (mut n, mut start, mut bytes) = (n.into(), MOST, [b'0'; MOST]);
    loop {
        start -= 1;
        bytes[start] = b'0' + (n % 10) as u8;
        n /= 10;
        if n == 0 {
            return Digits { bytes, start };
        }
    }
}

impl Deref for Digits {
    type Target = str;
    #[inline]
    fn deref(&self) -> &str {
        std::str::from_utf8(&self.bytes[self.start..]).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_those_of_formatting() {
        let mut numbers = vec![0, i64::MAX as u64, i64::MIN.unsigned_abs(), u64::MAX];
        for power in (0..MOST as u32).map(|k| 10u64.pow(k)) {
            numbers.extend([power - 1, power, power + 1, power.saturating_mul(7)]);
        }
        for n in numbers {
            assert_eq!(&*digits(n), n.to_string());
        }
        assert_eq!(&*digits(u32::MAX), "4294967295");
        assert_eq!(&*digits(7u8), "7");
    }
}
