//! Aliasing of the tensors of a call, for guards.
//!
//! A captured frame was traced for inputs that do not alias. Its guard must find aliasing that is
//! new, at each call, so the test is on address intervals: conservative (two interleaved views of
//! one storage count as overlapping), O(n log n), and without a call into Python for each pair.

use crate::host::shim::{Shims, shims};
use pyo3::prelude::*;
use pyo3::types::PyTuple;

/// Returns true if the bytes that some two of the tensors span overlap. Gaps inside a span count as
/// part of it.
///
/// Guards of captured frames ask this in each call, so it looks at addresses and shapes alone.
/// Every element is a tensor that has memory of its own kind: strided, and neither fake nor a
/// wrapper.
pub fn overlaps(tensors: &Bound<'_, PyTuple>) -> PyResult<bool> {
    let shims = shims(tensors.py())?;
    let mut spans = Vec::with_capacity(tensors.len());
    for tensor in tensors.iter_borrowed() {
        if let Some(span) = span(shims, &tensor)? {
            spans.push(span);
        }
    }
    Ok(any_overlap(&mut spans))
}

/// Addresses of a tensor's first byte and of the byte after its last; `None` where it has no elements.
fn span(shims: &Shims, tensor: &Bound<'_, PyAny>) -> PyResult<Option<(u64, u64)>> {
    let handle = shims.tensor(tensor)?;
    // SAFETY: the handle is of an object that the tuple keeps alive.
    let (address, width, sizes, strides) = unsafe {
        let (sizes, strides) = shims.shape(handle)?;
        let address = shims.address(handle).unwrap_or(0);
        (address, shims.width(handle)?, sizes, strides)
    };
    if address == 0 || sizes.contains(&0) {
        return Ok(None);
    }
    // Strides of PyTorch's tensors are not negative, so the last element has the highest address.
    let last: i64 = sizes.iter().zip(strides).map(|(n, s)| (n - 1) * s).sum();
    Ok(Some((address, address + (last as u64 + 1) * width)))
}

/// Returns true if two half-open intervals intersect. Reorders `spans`.
fn any_overlap(spans: &mut [(u64, u64)]) -> bool {
    spans.sort_unstable();
    // Sorted by their starts, the first two that overlap are neighbours: an interval between them
    // would start before the end of the first.
    spans.windows(2).any(|pair| pair[1].0 < pair[0].1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_that_touch_do_not_overlap() {
        assert!(!any_overlap(&mut []));
        assert!(!any_overlap(&mut [(8, 16), (0, 8), (16, 20)]));
        assert!(any_overlap(&mut [(8, 16), (0, 9)]));
        assert!(any_overlap(&mut [(0, 100), (200, 300), (50, 60)]));
        assert!(any_overlap(&mut [(8, 16), (8, 16)]));
    }
}
