//! Shares of work.

/// Returns part `i` of `n` things in `parts` parts of nearly equal size.
pub(crate) fn part(n: usize, parts: usize, i: usize) -> (usize, usize) {
    (n * i / parts, n * (i + 1) / parts)
}
