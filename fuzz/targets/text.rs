//! Text forms of every level: read, verified, printed, read again, lowered, emitted, interpreted.
#![no_main]

libfuzzer_sys::fuzz_target!(|text: &str| inrush_filetest::survive(text));
