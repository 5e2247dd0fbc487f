//! Archives of `torch.export`: read, and compiled up to C source.
#![no_main]

use inrush_filetest::{survive_archive, zip::mutate_zip};
use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};

fuzz_target!(|data: &[u8]| survive_archive(data));

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    mutate_zip(data, size, max_size, seed, fuzzer_mutate)
});
