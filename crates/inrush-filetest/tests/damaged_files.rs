//! Damaged packages never panic, nor does any input that once failed.
//!
//! Packages are those of the fuzz targets' seeds. One entry of a package is damaged and the file gets right checksums again.
//! `INRUSH_FUZZ_SECONDS` sets how long to go on (3 otherwise), `INRUSH_FUZZ_SEED` the seed.

mod common;

use common::Random;
use inrush_filetest::{survive, survive_archive, survive_package, zip::mutate_zip};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Values and words that mean something to a reader of manifests or programs.
const PIECES: [&[u8]; 14] = [
    b"-1",
    b"0",
    b"null",
    b"[]",
    b"{}",
    b"\"\"",
    b"true",
    b"4294967296",
    b"9223372036854775807",
    b"-9223372036854775808",
    b"1e999",
    b"%0",
    b"\xff\xff\xff\xff",
    b"\x00",
];

/// Files of a folder, in order of their names.
fn files(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).unwrap_or_else(|e| panic!("{}: {e}", dir.display()));
    let mut out: Vec<_> = entries.map(|e| e.expect("an entry").path()).collect();
    out.sort();
    out
}

/// Changes up to three places of `data[..len]`, of which the buffer holds more; gives the new length.
fn damage(data: &mut [u8], len: usize, r: &mut Random) -> usize {
    let mut bytes = data[..len].to_vec();
    for _ in 0..1 + r.below(3) {
        let at = r.below(bytes.len() + 1);
        let end = (at + r.below(12)).min(bytes.len());
        match r.below(6) {
            0 => _ = bytes.splice(at..end, PIECES[r.below(PIECES.len())].iter().copied()),
            1 => _ = bytes.drain(at..end),
            2 => {
                let from = r.below(bytes.len() + 1);
                let to = (from + r.below(40)).min(bytes.len());
                let copied = bytes[from..to].to_vec();
                bytes.splice(at..at, copied);
            }
            3 => bytes.truncate(at),
            // A number that is replaced as a whole.
            4 => {
                let digit = |b: &u8| b.is_ascii_digit();
                if let Some(first) = bytes[at..].iter().position(digit) {
                    let first = at + first;
                    let count = bytes[first..].iter().take_while(|&b| digit(b)).count();
                    let piece = PIECES[r.below(PIECES.len())];
                    bytes.splice(first..first + count, piece.iter().copied());
                }
            }
            _ => {
                if at < bytes.len() {
                    bytes[at] ^= 1 << r.below(8);
                }
            }
        }
    }
    bytes.truncate(data.len());
    data[..bytes.len()].copy_from_slice(&bytes);
    bytes.len()
}

#[test]
fn damaged_packages_do_not_panic() {
    let dir = tempfile::tempdir().expect("a folder");
    let made = Command::new(env!("CARGO_BIN_EXE_fuzz-seeds"))
        .arg(dir.path())
        .status();
    assert!(made.expect("the program is there").success());
    let packages: Vec<Vec<u8>> = files(&dir.path().join("package"))
        .iter()
        .map(|f| std::fs::read(f).expect("a seed"))
        .collect();
    assert!(packages.len() >= 10, "{} packages", packages.len());
    for whole in &packages {
        inrush_package::Package::read(whole.clone()).expect("a seed opens");
    }
    let number = |name| std::env::var(name).ok().and_then(|v| v.parse::<u64>().ok());
    let seed = number("INRUSH_FUZZ_SEED").unwrap_or(1).max(1);
    let time = Duration::from_secs(number("INRUSH_FUZZ_SECONDS").unwrap_or(3));
    let (start, mut tried) = (Instant::now(), 0);
    while start.elapsed() < time || tried < packages.len() {
        let mut r = Random(
            seed.wrapping_add(tried as u64)
                .wrapping_mul(0x9e37_79b9_7f4a_7c15)
                | 1,
        );
        let whole = &packages[tried % packages.len()];
        let mut buffer = whole.clone();
        buffer.resize(whole.len() + 4096, 0);
        let (size, room, choice) = (whole.len(), buffer.len(), r.below(1 << 32) as u32);
        let r = std::cell::RefCell::new(r);
        let size = mutate_zip(&mut buffer, size, room, choice, |data, len, _| {
            damage(data, len, &mut r.borrow_mut())
        });
        buffer.truncate(size);
        let outcome = std::panic::catch_unwind(|| survive_package(&buffer));
        if outcome.is_err() {
            let kept = std::env::temp_dir().join(format!("inrush-damaged-{seed}-{tried}"));
            std::fs::write(&kept, &buffer).expect("the input is kept");
            panic!("a damaged package, {}, was no error", kept.display());
        }
        tried += 1;
    }
    println!("{tried} damaged packages");
}

#[test]
fn inputs_that_once_failed_do_not_panic() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/regressions");
    for file in files(&root.join("text")) {
        survive(&String::from_utf8_lossy(
            &std::fs::read(file).expect("listed"),
        ));
    }
    for file in files(&root.join("archive")) {
        survive_archive(&std::fs::read(file).expect("listed"));
    }
    for file in files(&root.join("package")) {
        survive_package(&std::fs::read(file).expect("listed"));
    }
}
