//! The C that the file tests give, built by clang for every kind of vector: what gcc takes and one machine runs is not all that
//! is emitted. `INRUSH_CLANG` names a clang that has all targets, with its first arguments (`zig cc`); without it nothing is
//! built, and the test says so.

use inrush_base::{Caps, Isa};
use inrush_c::Function;
use inrush_filetest::{Document, Program};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Functions in one unit.
const UNIT: usize = 100;

fn arguments(isa: Isa) -> (&'static str, Vec<&'static str>) {
    let target = match isa {
        Isa::Neon => "aarch64-linux-gnu",
        _ => "x86_64-linux-gnu",
    };
    (target, inrush_runtime::cc::compile_flags(isa))
}

#[test]
fn clang_takes_the_c_of_every_target() {
    let Some(clang) = std::env::var("INRUSH_CLANG").ok().filter(|c| !c.is_empty()) else {
        println!("skipped: INRUSH_CLANG names no clang");
        return;
    };
    let words: Vec<&str> = clang.split_whitespace().collect();
    let build = &|isa: Isa| {
        let functions = functions(isa);
        assert!(functions.len() > 100, "{}: few functions", isa.name());
        for unit in functions.chunks(UNIT) {
            compile(&words, isa, &inrush_c::unit(unit));
        }
        println!("{}: {} functions", isa.name(), functions.len());
    };
    std::thread::scope(|s| {
        for isa in [Isa::Avx2, Isa::Avx512, Isa::Neon, Isa::Scalar] {
            s.spawn(move || build(isa));
        }
    });
}

/// A kernel's instructions do not depend on the kernels before it.
#[test]
fn a_writer_gives_what_each_kernel_gives_alone() {
    for isa in [Isa::Avx2, Isa::Avx512, Isa::Neon, Isa::Scalar] {
        let functions = functions(isa);
        assert!(functions.len() > 100, "{}: few functions", isa.name());
    }
}

/// Every kernel of the file tests, once.
fn functions(isa: Isa) -> Vec<Function> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests");
    let caps = Caps {
        vector_math: false,
        ..Caps::cpu(isa, 2)
    };
    let mut out = BTreeMap::new();
    let mut writer = inrush_c::Writer::new(&caps);
    for path in inrush_filetest::files(&dir).expect("the folder `tests` is there") {
        let text = std::fs::read_to_string(path).expect("a file that was listed");
        let doc = Document::parse(&text).expect("a file test");
        for section in doc.sections() {
            // The first block of a section is its program; some are there to be refused.
            let block = &doc.blocks[section.start];
            let Ok((exprs, kernels)) = Program::read(block).and_then(|p| p.kernels(&caps)) else {
                continue;
            };
            for k in &kernels {
                if let Ok(f) = writer.function(&exprs, k) {
                    let alone = inrush_c::emit(&exprs, k, &caps).expect("it was emitted before");
                    let (one, other) = ([&f], [&alone]);
                    assert_eq!(inrush_c::unit(one), inrush_c::unit(other));
                    out.insert(f.name.clone(), f);
                }
            }
        }
    }
    out.into_values().collect()
}

fn compile(clang: &[&str], isa: Isa, unit: &str) {
    let (target, flags) = arguments(isa);
    let object = tempfile(isa);
    let mut child = Command::new(clang[0])
        .args(&clang[1..])
        .args(["-target", target])
        .args(&flags)
        .args(["-O1", "-c", "-x", "c", "-", "-o"])
        .arg(&object)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the compiler that INRUSH_CLANG names starts");
    let mut input = child.stdin.take().expect("piped");
    input
        .write_all(unit.as_bytes())
        .expect("the compiler reads");
    drop(input);
    let done = child.wait_with_output().expect("the compiler ends");
    let errors = String::from_utf8_lossy(&done.stderr);
    let made = std::fs::metadata(&object).is_ok_and(|m| m.len() > 0);
    _ = std::fs::remove_file(&object);
    let shown: Vec<&str> = errors.lines().take(20).collect();
    assert!(
        done.status.success() && made,
        "{}: {}",
        isa.name(),
        shown.join("\n")
    );
}

fn tempfile(isa: Isa) -> std::path::PathBuf {
    let name = format!("inrush-clang-{}-{}.o", std::process::id(), isa.name());
    std::env::temp_dir().join(name)
}
