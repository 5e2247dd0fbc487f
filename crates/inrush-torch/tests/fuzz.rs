//! Random damage, for a bounded time: whatever an archive holds, reading it ends in a model or an error.
//!
//! Bytes are changed in the container, in the program's JSON, in the configurations of weights, in the sample inputs. The
//! archive is packed again with right checksums, so that damage reaches the readers of its entries. `INRUSH_FUZZ_SECONDS` sets
//! the time (5 otherwise), `INRUSH_FUZZ_SEED` the seed.

mod common;
use common::*;
use std::path::Path;
use std::time::{Duration, Instant};

/// A small generator of random numbers (xorshift), the same on every machine.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

/// Pieces that mean something to one of the readers.
const PIECES: &[&[u8]] = &[
    b"null",
    b"-1",
    b"0",
    b"9223372036854775807",
    b"-9223372036854775808",
    b"1e999",
    b"\"\"",
    b"{}",
    b"[]",
    b"\"NaN\"",
    b"true",
    b"Integer(0)",
    b"Integer(-9223372036854775808)",
    b"Mul(",
    b"Pow(",
    b"Mod(",
    b"FloorDiv(",
    b"Rational(1, 0)",
    b"Max(",
    b"IntTrueDiv(",
    b"Symbol('s77')",
    b"as_none",
    b"as_sym_int",
    b"as_graph",
    b"as_name",
    b" % ",
    b" // ",
    b"\xff\xff\xff\xff",
    b"\x80\x02",
    b"R",
    b"Q",
    b"(",
    b"t",
    b"h\x00",
    b"\x00",
];

fn damage(r: &mut Random, data: &mut Vec<u8>) {
    for _ in 0..1 + r.below(3) {
        let (at, len) = (r.below(data.len() + 1), r.below(16));
        let end = (at + len).min(data.len());
        match r.below(7) {
            0 if at < data.len() => data[at] ^= 1 << r.below(8),
            1 if at < data.len() => data[at] = r.next() as u8,
            2 => _ = data.drain(at..end),
            3 => {
                let piece = data[at..end].to_vec();
                let to = r.below(data.len() + 1);
                data.splice(to..to, piece);
            }
            4 => _ = data.splice(at..at, PIECES[r.below(PIECES.len())].iter().copied()),
            // A number or a word is replaced by a piece.
            5 => {
                let word = |b: &u8| b.is_ascii_alphanumeric() || *b == b'_';
                let end = at + data[at..].iter().take_while(|b| word(b)).count();
                data.splice(at..end, PIECES[r.below(PIECES.len())].iter().copied());
            }
            _ if r.below(8) == 0 => data.truncate(at),
            _ => {}
        }
    }
}

fn setting(name: &str, default: u64) -> u64 {
    let value = std::env::var(name).ok().and_then(|v| v.parse().ok());
    value.unwrap_or(default)
}

/// The text form of a graph is untrusted too: tests and people write it.
#[test]
fn damaged_graph_texts_are_errors_and_never_panics() {
    let mut r = Random(setting("INRUSH_FUZZ_SEED", 0x2545_f491_4f6c_dd1d).max(1));
    let end = Instant::now() + Duration::from_secs(setting("INRUSH_FUZZ_SECONDS", 5));
    let graph = |n: &&str| {
        import(bytes(n))
            .expect("an archive of the repository")
            .graph
    };
    let texts: Vec<String> = ARCHIVES.iter().map(|n| graph(n).print()).collect();
    let (mut runs, mut parsed) = (0u64, 0u64);
    while Instant::now() < end {
        let mut text = texts[r.below(texts.len())].clone().into_bytes();
        damage(&mut r, &mut text);
        let text = String::from_utf8_lossy(&text).into_owned();
        let result = std::panic::catch_unwind(|| {
            inrush_graph::text::parse(&text).map(|g| {
                // What was read must print, and be checked, without a panic as well.
                _ = (g.print(), inrush_graph::verify::problems(&g));
            })
        });
        match result {
            Ok(outcome) => parsed += outcome.is_ok() as u64,
            Err(_) => panic!("run {runs} panicked on this text:\n{text}"),
        }
        runs += 1;
    }
    eprintln!("{runs} texts, {parsed} of them parsed");
    assert!(
        parsed > 0 && parsed < runs,
        "the damage must reach the parser, and not always"
    );
}

#[test]
fn damaged_archives_are_errors_and_never_panics() {
    let mut r = Random(setting("INRUSH_FUZZ_SEED", 0x9e37_79b9_7f4a_7c15).max(1));
    let end = Instant::now() + Duration::from_secs(setting("INRUSH_FUZZ_SECONDS", 5));
    let archives: Vec<_> = ARCHIVES
        .iter()
        .map(|n| (bytes(n), unpack(&bytes(n))))
        .collect();
    let (mut runs, mut imported) = (0u64, 0u64);
    let mut slowest = Duration::ZERO;
    while Instant::now() < end {
        let (whole, files) = &archives[r.below(archives.len())];
        let bytes = if r.below(4) == 0 {
            let mut bytes = whole.clone();
            // The directory stands at the end; damage it as often as the rest.
            let split = if r.below(2) == 0 {
                bytes.len() - 900
            } else {
                0
            };
            let mut tail = bytes.split_off(split);
            damage(&mut r, &mut tail);
            bytes.extend(tail);
            bytes
        } else {
            let mut files = files.clone();
            let parts = [
                "models/model.json",
                "models/model.json",
                "config.json",
                "sample_inputs",
                "weight_",
            ];
            let part = parts[r.below(parts.len())];
            for f in files.iter_mut().filter(|f| f.0.contains(part)) {
                damage(&mut r, &mut f.1);
            }
            pack(&files)
        };
        let start = Instant::now();
        let result = std::panic::catch_unwind(|| import(bytes.clone()).map(|m| m.summary()));
        slowest = slowest.max(start.elapsed());
        match result {
            Ok(outcome) => imported += outcome.is_ok() as u64,
            Err(_) => {
                let file = std::env::temp_dir().join("inrush-fuzz-failure.pt2");
                std::fs::write(&file, &bytes).expect("a place for the failing archive");
                panic!("run {runs} panicked; the archive is {}", file.display());
            }
        }
        runs += 1;
    }
    eprintln!("{runs} archives, {imported} of them imported, the slowest took {slowest:?}");
    assert!(
        imported > 0 && imported < runs,
        "the damage must reach the reader, and not always"
    );
    assert!(
        slowest < Duration::from_secs(10),
        "{slowest:?} for a small archive"
    );
}

/// The inputs that the fuzz target for archives tries first: none is an archive.
#[test]
fn regressions() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/regressions/archive");
    let mut tried = 0;
    for entry in std::fs::read_dir(dir).expect("the folder is there") {
        let path = entry.expect("a listed file").path();
        let result = import(std::fs::read(&path).expect("a file"));
        assert!(result.is_err(), "{}", path.display());
        tried += 1;
    }
    assert!(tried > 0);
}
