//! Places for values in one block of memory.

/// Addresses inside the arena are multiples of this: what libraries like best. Packages count on it for scratch memory.
pub const ALIGNMENT: u64 = inrush_package::SCRATCH_ALIGNMENT;

/// A value that lives from one step to another, both included.
pub struct Item {
    pub from: usize,
    pub to: usize,
    pub bytes: u64,
    pub offset: u64,
}

/// Returns where an item ends. Bytes beyond 64 bits saturate: no memory has them, and its allocation fails.
fn end(offset: u64, bytes: u64) -> u64 {
    offset.saturating_add(
        bytes
            .checked_next_multiple_of(ALIGNMENT)
            .unwrap_or(u64::MAX),
    )
}

/// Gives every item a place such that no two that live at the same time overlap; the size of the whole block.
///
/// Largest first, each at the lowest place that is free.
pub fn place(items: &mut [Item]) -> u64 {
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.sort_by_key(|i| (std::cmp::Reverse(items[*i].bytes), items[*i].from, *i));
    let mut placed: Vec<usize> = Vec::with_capacity(items.len());
    let mut total = 0u64;
    for i in order {
        let bytes = end(0, items[i].bytes);
        // The neighbours in time are few; they are kept sorted by their places.
        let mut taken: Vec<(u64, u64)> = (placed.iter())
            .map(|p| &items[*p])
            .filter(|p| p.from <= items[i].to && items[i].from <= p.to)
            .map(|p| (p.offset, end(p.offset, p.bytes)))
            .collect();
        taken.sort_unstable();
        let mut at = 0u64;
        for (start, end) in taken {
            if at.saturating_add(bytes) <= start {
                break;
            }
            at = at.max(end);
        }
        items[i].offset = at;
        items[i].bytes = items[i].bytes.max(1);
        total = total.max(at.saturating_add(bytes.max(ALIGNMENT)));
        placed.push(i);
    }
    total
}
