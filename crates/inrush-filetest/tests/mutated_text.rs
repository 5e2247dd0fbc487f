//! Damaged text never panics: every program of the file tests, changed at random, is read, verified and printed again.
//!
//! `INRUSH_FUZZ_SECONDS` sets how long to go on, `INRUSH_FUZZ_SEED` where from; without it the same few thousand programs are tried everywhere.

mod common;

use common::Random;
use inrush_base::{Caps, Isa};
use inrush_filetest::{Document, Program, survive};
use std::path::Path;
use std::time::{Duration, Instant};

/// Every program of the file tests at every level at which it has a text.
fn programs() -> Vec<String> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests");
    let caps = Caps::cpu(Isa::Avx2, 2);
    let mut out = Vec::new();
    for path in inrush_filetest::files(&dir).expect("the folder `tests` is there") {
        let text = std::fs::read_to_string(&path).expect("a file that was listed");
        let doc = Document::parse(&text).expect("a file test");
        for section in doc.sections() {
            let block = &doc.blocks[section.start];
            out.push(block.text.clone());
            let Ok(program) = Program::read(block) else {
                continue;
            };
            out.extend(program.loops().map(|l| l.print()));
            out.extend(program.plan(&caps).map(|p| p.print()));
            let kernels = program.kernels(&caps);
            out.extend(kernels.map(|(e, k)| inrush_kernel::text::print_all(&e, &k)));
            out.extend(program.block_text("h100"));
            out.extend(program.program(&caps).map(|p| p.print()));
        }
    }
    out
}

/// One change: a token swapped for another of the text, dropped or doubled, a number made extreme, a line moved.
fn damage(text: &str, r: &mut Random) -> String {
    let mut tokens: Vec<&str> = split(text);
    let n = tokens.len();
    let (a, b) = (r.below(n), r.below(n));
    match r.below(6) {
        0 => tokens[a] = tokens[b],
        1 => tokens.swap(a, b),
        2 => _ = tokens.remove(a),
        3 => tokens.insert(a, tokens[b]),
        4 => {
            const ODD: [&str; 14] = [
                "-1",
                "0",
                "9223372036854775807",
                "-9223372036854775808",
                "99999999999999999999",
                "nan",
                "inf",
                "[",
                "]",
                "(",
                "i1000000",
                "bool",
                "\u{e9}",
                "1e400",
            ];
            tokens[a] = ODD[r.below(ODD.len())];
        }
        _ => {
            let mut lines: Vec<&str> = text.lines().collect();
            let (i, j) = (r.below(lines.len()), r.below(lines.len()));
            lines.swap(i, j);
            return lines.join("\n");
        }
    }
    tokens.concat()
}

/// Words, runs of blanks, single other characters.
fn split(text: &str) -> Vec<&str> {
    let mut out = Vec::new();
    let mut start = 0;
    let word = |c: char| c.is_alphanumeric() || c == '_' || c == '.';
    let chars: Vec<(usize, char)> = text.char_indices().collect();
    for k in 1..=chars.len() {
        let at = chars.get(k).map_or(text.len(), |c| c.0);
        let joined = k < chars.len() && word(chars[k].1) && word(chars[k - 1].1);
        if !joined {
            out.push(&text[start..at]);
            start = at;
        }
    }
    out
}

/// How many are tried by default.
const PROGRAMS: usize = 4000;

#[test]
fn damaged_programs_do_not_panic() {
    let seconds = std::env::var("INRUSH_FUZZ_SECONDS")
        .ok()
        .and_then(|s| s.parse().ok());
    let end = seconds.map(|s| Instant::now() + Duration::from_secs(s));
    let programs = programs();
    let seed = std::env::var("INRUSH_FUZZ_SEED")
        .ok()
        .and_then(|s| s.parse().ok());
    let mut r = Random(seed.unwrap_or(0x1234_5678_9ABC_DEF1));
    let mut count = 0;
    while end.map_or(count < PROGRAMS, |end| Instant::now() < end) {
        let mut text = programs[r.below(programs.len())].clone();
        for _ in 0..1 + r.below(3) {
            text = damage(&text, &mut r);
            if text.is_empty() {
                break;
            }
        }
        let result = std::panic::catch_unwind(|| survive(&text));
        assert!(result.is_ok(), "a panic on\n{text}");
        count += 1;
    }
    println!("{count} programs");
}

/// The inputs that the fuzz target for texts tries first.
#[test]
fn regressions() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/regressions/text");
    let mut tried = 0;
    for entry in std::fs::read_dir(dir).expect("the folder is there") {
        let path = entry.expect("a listed file").path();
        survive(&String::from_utf8_lossy(
            &std::fs::read(&path).expect("a file"),
        ));
        tried += 1;
    }
    assert!(tried > 0);
}

/// Nothing reads the norms, so that no stage looks at them before they are interpreted.
#[test]
fn a_norm_that_is_declared_with_other_sizes_than_its_input() {
    let norms = [
        "aten.batch_norm.default(%0, %1, %1, %1, %1, false, 0.1, 1e-5, true)",
        "aten.group_norm.default(%0, 0, %1, %1, 1e-5, false)",
        "aten.layer_norm.default(%0, [2, 3, 8], %1, %1, 1e-5, false)",
        "aten.rms_norm.default(%0, [3, 8], %1, 1e-5)",
    ];
    for norm in norms {
        let head = "graph t\n%0 x: f32[8] = input 0\n%1 w: f32[8] = input 1\n";
        survive(&format!(
            "{head}%2 y: f32[2, 8, 6, 6] = {norm}\n%3 z: f32[8] = aten.relu.default(%0)\noutput 0: %3\n"
        ));
    }
}
