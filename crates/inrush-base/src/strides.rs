//! Strides of tensors.

/// Returns true if two lists of strides place a tensor's elements alike. Strides of dimensions of one element address nothing,
/// so they may differ; so may all strides of a tensor without elements.
pub fn same_strides(sizes: &[i64], a: &[i64], b: &[i64]) -> bool {
    sizes.contains(&0) || (sizes.iter().zip(a.iter().zip(b))).all(|(n, (a, b))| *n == 1 || a == b)
}

/// Returns true if each stride exceeds the span of the dimensions of smaller strides, so that no two
/// elements have one offset. Sorts the `(stride, size)` pairs, of sizes above 1. Takes no time: false
/// leaves open whether elements meet.
pub fn strides_nest(dims: &mut [(i64, i64)]) -> bool {
    dims.sort_unstable();
    let mut span = 0i64;
    dims.iter().all(|(stride, size)| {
        let nests = *stride > span;
        span = span.saturating_add(stride.saturating_mul(size - 1));
        nests
    })
}
