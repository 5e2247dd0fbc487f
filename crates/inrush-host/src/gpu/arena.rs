//! Places for values in one block of memory.

/// Addresses inside the arena are multiples of this: what libraries like best.
pub const ALIGNMENT: u64 = 512;

/// A value that lives from one step to another, both included.
pub struct Item {
    pub from: usize,
    pub to: usize,
    pub bytes: u64,
    pub offset: u64,
}

/// Gives every item a place such that no two that live at the same time overlap; the size of the whole block.
///
/// Largest first, each at the lowest place that is free.
pub fn place(items: &mut [Item]) -> u64 {
    let mut order: Vec<usize> = (0..items.len()).collect();
    order.sort_by_key(|i| (std::cmp::Reverse(items[*i].bytes), items[*i].from, *i));
    let mut placed: Vec<usize> = Vec::with_capacity(items.len());
    let mut total = 0;
    for i in order {
        let bytes = items[i].bytes.next_multiple_of(ALIGNMENT);
        // The neighbours in time are few; they are kept sorted by their places.
        let mut taken: Vec<(u64, u64)> = (placed.iter())
            .map(|p| &items[*p])
            .filter(|p| p.from <= items[i].to && items[i].from <= p.to)
            .map(|p| (p.offset, p.offset + p.bytes.next_multiple_of(ALIGNMENT)))
            .collect();
        taken.sort_unstable();
        let mut at = 0;
        for (start, end) in taken {
            if at + bytes <= start {
                break;
            }
            at = at.max(end);
        }
        items[i].offset = at;
        items[i].bytes = items[i].bytes.max(1);
        total = total.max(at + bytes.max(ALIGNMENT));
        placed.push(i);
    }
    total
}
