//! Comparing entries with their checksums, on all processors and in one pass over the bytes.

use crate::read::Entry;
use crc32fast::Hasher;
use inrush_base::{Error, Result};
use memmap2::Mmap;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Bytes of a piece of work: a large weight is shared by threads, and what a thread has mapped is what it reads next.
const PIECE: usize = 2 << 20;

/// A piece of an entry.
struct Piece {
    /// Position of the entry.
    entry: usize,
    range: Range<usize>,
}

/// Compares entries of a file with their checksums. `map` is the mapping of the file, whose pages are entered into the page table
/// piece by piece: a page fault costs several times as much.
///
/// # Errors
/// An input error that names the first damaged entry.
pub(crate) fn entries(
    entries: &BTreeMap<String, Entry>,
    file: &[u8],
    map: Option<&Mmap>,
) -> Result<()> {
    let pieces = pieces(entries.values());
    let next = AtomicUsize::new(0);
    let work = || {
        let mut sums = Vec::new();
        loop {
            let k = next.fetch_add(1, Ordering::Relaxed);
            let Some(piece) = pieces.get(k) else {
                return sums;
            };
            if let Some(map) = map {
                populate(map, &piece.range);
            }
            let mut sum = Hasher::new();
            sum.update(&file[piece.range.clone()]);
            sums.push((k, sum));
        }
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let mut sums = std::thread::scope(|s| {
        // If the machine refuses a thread, the others do its work.
        let helpers: Vec<_> = (1..threads.min(pieces.len()))
            .filter_map(|_| std::thread::Builder::new().spawn_scoped(s, work).ok())
            .collect();
        let mut sums = work();
        for h in helpers {
            let other = h.join();
            sums.extend(other.map_err(|_| Error::internal("a check panicked"))?);
        }
        Ok::<_, Error>(sums)
    })?;
    sums.sort_by_key(|s| s.0);
    let mut of_entries = vec![Hasher::new(); entries.len()];
    for (k, sum) in &sums {
        of_entries[pieces[*k].entry].combine(sum);
    }
    for ((name, entry), sum) in entries.iter().zip(of_entries) {
        entry.compare(name, sum.finalize())?;
    }
    Ok(())
}

/// Divides entries into pieces, in order.
fn pieces<'a>(entries: impl Iterator<Item = &'a Entry>) -> Vec<Piece> {
    let mut out = Vec::new();
    for (k, e) in entries.enumerate() {
        for start in e.range.clone().step_by(PIECE) {
            let end = e.range.end.min(start.saturating_add(PIECE));
            out.push(Piece {
                entry: k,
                range: start..end,
            });
        }
    }
    out
}

/// Enters the pages of a range into the page table. A hint: a system that has no such call maps them as they are read.
pub(crate) fn populate(map: &Mmap, range: &Range<usize>) {
    #[cfg(target_os = "linux")]
    let _ = map.advise_range(memmap2::Advice::PopulateRead, range.start, range.len());
    #[cfg(not(target_os = "linux"))]
    let _ = (map, range);
}
