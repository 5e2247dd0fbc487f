//! Radix sort of packed keys, least significant digit first.

use super::keys::Packed;

/// Values of a digit.
const VALUES: usize = 256;

/// Shortest line that is sorted by digits: shorter ones cost less by comparisons than the counts of digits do.
const SHORT: usize = 512;

/// Sorts packed keys of `bits` bits that stand in the order of their indices. `other` is as long.
pub(super) fn sort<P: Packed>(packed: &mut [P], other: &mut [P], bits: u32) {
    if packed.len() < SHORT {
        packed.sort_unstable();
        return;
    }
    let passes = (bits / 8) as usize;
    // One pass counts all digits.
    let mut counts = [[0u32; VALUES]; 8];
    for p in packed.iter() {
        for (pass, counts) in counts[..passes].iter_mut().enumerate() {
            counts[p.digit(8 * pass as u32)] += 1;
        }
    }
    let (mut from, mut to) = (packed, other);
    let mut swapped = false;
    for (pass, counts) in counts[..passes].iter_mut().enumerate() {
        let shift = 8 * pass as u32;
        // A digit that all keys share orders nothing.
        if counts[from[0].digit(shift)] as usize == from.len() {
            continue;
        }
        let mut start = 0;
        for c in counts.iter_mut() {
            (start, *c) = (start + *c, start);
        }
        for &p in from.iter() {
            let at = &mut counts[p.digit(shift)];
            to[*at as usize] = p;
            *at += 1;
        }
        (from, to) = (to, from);
        swapped = !swapped;
    }
    if swapped {
        // `from` is the scratch now.
        to.copy_from_slice(from);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_sort_as_comparisons_do() {
        let mut seed = 1u64;
        for bits in [8, 16, 32] {
            let mut keys: Vec<u64> = (0..2000)
                .map(|i| {
                    seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1);
                    u64::new(seed >> 32 & (u64::MAX >> (64 - bits)) & !0xf0, i)
                })
                .collect();
            let mut want = keys.clone();
            want.sort();
            sort(&mut keys, &mut [0; 2000], bits);
            assert_eq!(keys, want, "{bits} bits");
        }
    }
}
