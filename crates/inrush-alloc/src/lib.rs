//! The global allocator of programs and libraries that compile: mimalloc.
//!
//! What the crate `mimalloc` has asks for aligned memory always. For sizes that are no powers of two mimalloc then often takes
//! a larger block and moves its beginning, and frees of such blocks take the long way, although its plain blocks are aligned
//! as nearly every type needs.
//!
//! Does not know: anything of inrush.

use libmimalloc_sys as mi;
use std::alloc::{GlobalAlloc, Layout};

/// mimalloc as the global allocator.
pub struct Allocator;

/// Alignment of plain blocks that are at least this large (`MI_MAX_ALIGN_SIZE`); smaller ones are aligned to 8 bytes.
const PLAIN: usize = 16;

/// Returns true if a plain block is aligned as `layout` asks.
fn plain(layout: Layout) -> bool {
    layout.align() <= PLAIN && layout.align() <= layout.size()
}

// SAFETY: every pointer comes from mimalloc, whose functions take each other's blocks, and is aligned as `layout` says: where
// `plain` holds because mimalloc aligns blocks of 8 bytes to 8 and blocks of at least 16 bytes to 16, else because it is asked to.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: any size and any power of two are valid arguments.
        unsafe {
            if plain(layout) {
                mi::mi_malloc(layout.size()).cast()
            } else {
                mi::mi_malloc_aligned(layout.size(), layout.align()).cast()
            }
        }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as for `alloc`.
        unsafe {
            if plain(layout) {
                mi::mi_zalloc(layout.size()).cast()
            } else {
                mi::mi_zalloc_aligned(layout.size(), layout.align()).cast()
            }
        }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, _: Layout) {
        // SAFETY: the caller hands back what mimalloc gave.
        unsafe { mi::mi_free(block.cast()) }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: the caller hands back what mimalloc gave. What stays in its place is aligned as it was, and a plain block of
        // the new size is aligned as the type needs.
        unsafe {
            if plain(layout) && layout.align() <= size {
                mi::mi_realloc(block.cast(), size).cast()
            } else {
                mi::mi_realloc_aligned(block.cast(), size, layout.align()).cast()
            }
        }
    }
}

/// Bytes that [`warm`] asks the system for: what compiling a model of usual size takes.
#[cfg(target_os = "linux")]
const WARM: usize = 4 << 20;

/// Lets the system hand over the memory at once that the allocator will give out next. A page costs a sixth of what a first
/// touch of it takes, and nothing where another thread does this while the process still reads its input.
pub fn warm() {
    #[cfg(target_os = "linux")]
    {
        const MADV_POPULATE_WRITE: std::ffi::c_int = 23;
        const PAGE: usize = 4096;
        unsafe extern "C" {
            fn madvise(
                start: *mut std::ffi::c_void,
                len: usize,
                advice: std::ffi::c_int,
            ) -> std::ffi::c_int;
        }
        // SAFETY: the block is freed as it was taken. Blocks come from arenas of many megabytes, which are filled from their
        // beginning on; the advice changes nothing that memory holds, and is refused where some of it is not the process's.
        unsafe {
            let block = mi::mi_malloc(PAGE);
            let start = block.cast::<u8>().map_addr(|a| a & !(PAGE - 1));
            let _ = madvise(start.cast(), WARM, MADV_POPULATE_WRITE);
            mi::mi_free(block);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every size and alignment in many live blocks, so that no block is aligned by chance; they grow and shrink too.
    #[test]
    fn blocks_are_aligned_and_keep_what_they_hold() {
        let a = Allocator;
        for shift in 0..8 {
            let align = 1usize << shift;
            for size in (1..200).chain([1000, 1024, 1025, 5000, 70_000]) {
                let layout = Layout::from_size_align(size, align).unwrap();
                let blocks: Vec<*mut u8> = (0..20)
                    .map(|k| {
                        // SAFETY: the size is not zero, and all bytes written lie within the block.
                        unsafe {
                            let b = match k % 2 {
                                0 => a.alloc(layout),
                                _ => a.alloc_zeroed(layout),
                            };
                            assert!(!b.is_null() && (b as usize).is_multiple_of(align));
                            if k % 2 == 1 {
                                assert!((0..size).all(|i| *b.add(i) == 0));
                            }
                            b.write_bytes(k as u8 + 1, size);
                            b
                        }
                    })
                    .collect();
                for (k, block) in blocks.into_iter().enumerate() {
                    let new = [1, size.div_ceil(2), size + 1, 3 * size][k % 4];
                    // SAFETY: the block is of `layout`, then of `new` bytes; it is freed once.
                    unsafe {
                        let b = a.realloc(block, layout, new);
                        assert!(!b.is_null() && (b as usize).is_multiple_of(align));
                        assert!((0..new.min(size)).all(|i| *b.add(i) == k as u8 + 1));
                        a.dealloc(b, Layout::from_size_align(new, align).unwrap());
                    }
                }
            }
        }
    }
}
