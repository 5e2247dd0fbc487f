//! Damaged packages never panic: manifests of programs in parts, changed at random, are read, verified, printed and read as text.
//!
//! Control flow, programs within programs and sizes that data decide are among them. The file is packed again with right checksums,
//! so that damage reaches the verifier. `INRUSH_FUZZ_SECONDS` sets how long to go on, `INRUSH_FUZZ_SEED` where from; without it
//! the same few hundred packages are tried everywhere.

mod common;

use common::Random;
use inrush_base::{Caps, ErrorKind, Isa};
use inrush_filetest::packages;
use inrush_package::Package;
use inrush_program::parts::outline::outline;
use serde_json::Value;
use std::io::{Cursor, Read, Write};
use std::time::{Duration, Instant};

/// A package taken apart.
struct Whole {
    name: String,
    manifest: Value,
    others: Vec<(String, Vec<u8>)>,
}

impl Whole {
    fn of(name: &str, bytes: &[u8]) -> Whole {
        let mut zip = zip::ZipArchive::new(Cursor::new(bytes)).expect("a zip");
        let (mut manifest, mut others) = (Value::Null, Vec::new());
        for k in 0..zip.len() {
            let mut file = zip.by_index(k).expect("an entry");
            let (name, mut bytes) = (file.name().to_string(), Vec::new());
            file.read_to_end(&mut bytes).expect("an entry");
            if name == "inrush.json" {
                manifest = serde_json::from_slice(&bytes).expect("a manifest");
            } else {
                others.push((name, bytes));
            }
        }
        Whole {
            name: name.to_string(),
            manifest,
            others,
        }
    }

    /// Packs the files with another manifest.
    fn pack(&self, manifest: &Value) -> Vec<u8> {
        let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
        let options = zip::write::SimpleFileOptions::default()
            .compression_method(zip::CompressionMethod::Stored);
        let text = serde_json::to_vec(manifest).expect("a manifest");
        let all = self.others.iter().map(|(n, b)| (n.as_str(), b));
        for (name, bytes) in all.chain([("inrush.json", &text)]) {
            zip.start_file(name, options).expect("an entry");
            zip.write_all(bytes).expect("an entry");
        }
        zip.finish().expect("a zip").into_inner()
    }
}

/// Returns packages of all archives that compile.
fn wholes() -> Vec<Whole> {
    let caps = Caps::cpu(Isa::Avx2, 2);
    let folder = tempfile::tempdir().expect("a folder");
    let mut out = Vec::new();
    for archive in packages::archives().expect("archives") {
        let Ok(program) = packages::compile(&archive, &caps) else {
            continue;
        };
        let name = archive.file_stem().expect("a name").to_string_lossy();
        let path = folder.path().join(&*name);
        packages::write(&path, &program).expect("a package");
        let bytes = std::fs::read(path).expect("a package");
        out.push(Whole::of(&name, &bytes));
    }
    let names: Vec<&str> = out.iter().map(|w| w.name.as_str()).collect();
    for wanted in ["branch", "data", "loops", "scans"] {
        assert!(names.contains(&wanted), "{wanted} is not in {names:?}");
    }
    out
}

/// Returns the number of values in a manifest.
fn count(v: &Value) -> usize {
    1 + match v {
        Value::Array(all) => all.iter().map(count).sum(),
        Value::Object(all) => all.values().map(count).sum(),
        _ => 0,
    }
}

/// Returns the value at a position in the order of a walk.
fn at<'a>(v: &'a mut Value, position: &mut usize) -> Option<&'a mut Value> {
    if *position == 0 {
        return Some(v);
    }
    *position -= 1;
    match v {
        Value::Array(all) => all.iter_mut().find_map(|v| at(v, position)),
        Value::Object(all) => all.values_mut().find_map(|v| at(v, position)),
        _ => None,
    }
}

/// Changes one value of a manifest: a number, the length of a list, a name, or one for another of the manifest.
fn damage(manifest: &mut Value, r: &mut Random) {
    let n = count(manifest);
    let other = at(manifest, &mut r.below(n)).cloned().unwrap_or_default();
    let Some(v) = at(manifest, &mut (1 + r.below(n - 1))) else {
        return;
    };
    match v {
        Value::Number(x) if r.below(4) > 0 => {
            let x = x.as_i64().unwrap_or_default();
            let all = [
                x.wrapping_add(1),
                x.wrapping_sub(1),
                0,
                -1,
                1 << 24,
                1 << 31,
                i64::MAX,
                i64::MIN,
            ];
            *v = all[r.below(all.len())].into();
        }
        Value::Array(all) if r.below(3) > 0 && !all.is_empty() => {
            let k = r.below(all.len());
            match r.below(3) {
                0 => _ = all.remove(k),
                1 => all.insert(k, all[k].clone()),
                _ => {
                    let to = r.below(all.len());
                    all.swap(k, to);
                }
            }
        }
        Value::Object(all) if r.below(4) == 0 => {
            // The kind of a step, of a place, of an output.
            let kinds = ["Cond", "While", "Scan", "Segment", "View", "Size", "Slot"];
            if let Some((_, body)) = std::mem::take(all).into_iter().next() {
                all.insert(kinds[r.below(kinds.len())].into(), body);
            }
        }
        _ if r.below(6) == 0 => *v = Value::Null,
        _ => *v = other,
    }
}

/// Reads a package and all that a tool shows of it. Returns true if it was accepted.
fn survive(bytes: Vec<u8>) -> bool {
    let package = match Package::read(bytes) {
        Ok(p) => p,
        Err(e) => {
            assert_eq!(e.kind(), ErrorKind::Input, "{e}");
            return false;
        }
    };
    for cpu in package.cpus() {
        let text = cpu.program.print();
        let again = inrush_program::text::parse(&text);
        let again = again.unwrap_or_else(|e| panic!("{e}\nof\n{text}"));
        assert_eq!(again.print(), text);
        for line in outline(&cpu.program) {
            _ = line.to_string();
        }
    }
    true
}

#[test]
fn damaged_packages_in_parts_are_errors() {
    let number = |name: &str| std::env::var(name).ok().and_then(|s| s.parse::<u64>().ok());
    let mut r = Random(number("INRUSH_FUZZ_SEED").unwrap_or(1) | 1);
    let end = number("INRUSH_FUZZ_SECONDS").map(|s| Instant::now() + Duration::from_secs(s));
    let all = wholes();
    for w in &all {
        assert!(survive(w.pack(&w.manifest)), "{} as it is", w.name);
    }
    let (mut tried, mut accepted) = (0, 0);
    while end.map_or(tried < 600, |end| Instant::now() < end) {
        let w = &all[r.below(all.len())];
        let mut manifest = w.manifest.clone();
        for _ in 0..1 + r.below(3) {
            damage(&mut manifest, &mut r);
        }
        accepted += usize::from(survive(w.pack(&manifest)));
        tried += 1;
    }
    println!("{tried} damaged packages, {accepted} of them accepted");
    assert!(accepted < tried * 9 / 10, "damage is not found");
}
