//! Compiled packages: opened, verified, printed and read as text, sizes evaluated. Their machine code is never loaded.
#![no_main]

use inrush_filetest::{survive_package, zip::mutate_zip};
use libfuzzer_sys::{fuzz_mutator, fuzz_target, fuzzer_mutate};

fuzz_target!(|data: &[u8]| survive_package(data));

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    mutate_zip(data, size, max_size, seed, fuzzer_mutate)
});
