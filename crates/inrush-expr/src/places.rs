//! Finds tensors two of whose elements share a memory location, as `expand` and `unfold` make them.

use crate::{Expr, Exprs};
use inrush_base::strides_nest;
use rustc_hash::FxHashSet;

/// Tensors of up to this many elements are decided by listing all offsets, if no simpler test
/// decides.
const LISTED: i64 = 1 << 16;

impl Exprs {
    /// Returns true if a tensor of these sizes and strides is proved to have two elements at one
    /// offset, so that it cannot be written. Symbolic sizes and strides get the benefit of the
    /// doubt.
    pub fn overlaps(&self, sizes: &[Expr], strides: &[Expr]) -> bool {
        if sizes.iter().any(|n| self.range(*n).lo == 0) {
            return false;
        }
        let several = (sizes.iter().zip(strides)).filter(|(n, _)| self.range(**n).lo > 1);
        let mut known = Vec::new();
        for (n, s) in several {
            match (self.as_int(*n), self.as_int(*s)) {
                (_, Some(0)) => return true,
                (Some(n), Some(s)) => known.push((s.saturating_abs(), n)),
                _ => {}
            }
        }
        overlap(known)
    }
}

/// Returns true if two points of a box of known `(stride, size)` pairs have the same offset.
///
/// Tries the cheap tests first: strides that nest never collide, and more elements than offsets
/// always do.
fn overlap(mut dims: Vec<(i64, i64)>) -> bool {
    if strides_nest(&mut dims) {
        return false;
    }
    let (mut span, mut count) = (0i64, 1i64);
    for (stride, size) in &dims {
        span = span.saturating_add(stride.saturating_mul(size - 1));
        count = count.saturating_mul(*size);
    }
    // Pigeonhole: more elements than offsets.
    if count > span.saturating_add(1) {
        return true;
    }
    if count > LISTED {
        return false;
    }
    let mut places = vec![0i64];
    for (stride, size) in dims {
        let steps = (0..size).map(|k| k * stride);
        places = steps
            .flat_map(|k| places.iter().map(move |p| p + k).collect::<Vec<_>>())
            .collect();
    }
    let distinct: FxHashSet<i64> = places.iter().copied().collect();
    distinct.len() < places.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn overlaps(sizes: &[i64], strides: &[i64]) -> bool {
        let ex = Exprs::new();
        let all = |of: &[i64]| of.iter().map(|v| ex.int(*v)).collect::<Vec<_>>();
        ex.overlaps(&all(sizes), &all(strides))
    }

    #[test]
    fn elements_that_share_a_place_are_found() {
        assert!(overlaps(&[3, 4], &[1, 0]));
        assert!(overlaps(&[4, 3], &[1, 1]));
        // Windows of three, two apart.
        assert!(overlaps(&[4, 3], &[2, 1]));
        assert!(overlaps(&[4, 4], &[3, 2]));
        assert!(overlaps(&[1 << 20, 1 << 20], &[1, 1]));
    }

    #[test]
    fn gaps_permutations_and_sizes_of_one_are_no_overlap() {
        assert!(!overlaps(&[3, 4], &[1, 3]));
        assert!(!overlaps(&[3, 4], &[10, 2]));
        assert!(!overlaps(&[3, 1], &[1, 0]));
        assert!(!overlaps(&[0, 4], &[0, 0]));
        // Interleaved without meeting: 0, 2 and 3, 5.
        assert!(!overlaps(&[2, 2], &[2, 3]));
        assert!(!overlaps(&[], &[]));
    }

    #[test]
    fn symbols_are_given_the_benefit_of_the_doubt() {
        let ex = Exprs::new();
        let s = ex.sym_expr(ex.size_sym("s0", 2, 100));
        assert!(ex.overlaps(&[s, ex.int(3)], &[ex.int(0), ex.int(1)]));
        assert!(!ex.overlaps(&[s, ex.int(3)], &[ex.int(3), ex.int(1)]));
        assert!(!ex.overlaps(&[ex.int(3), s], &[s, ex.int(1)]));
        let perhaps_one = ex.sym_expr(ex.size_sym("s1", 1, 100));
        assert!(!ex.overlaps(&[perhaps_one], &[ex.int(0)]));
    }
}
