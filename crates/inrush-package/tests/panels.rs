//! Weights in panels: what is written comes back, damage is refused.

mod common;

use inrush_base::{DType, ErrorKind};
use inrush_package::{
    Axis, Cpu, FORMAT_OF_CODE, Options, Package, Panels, TargetParts, WeightData,
};
use inrush_program::{Program, text};
use std::path::Path;

/// A product of the input with a weight of 6 x 5, whose rows are columns of the product.
const PRODUCT: &str = include_str!("product.txt");
const SIZES: [i64; 2] = [6, 5];

fn program() -> Program {
    text::parse(PRODUCT).expect("a program")
}

fn target<'a>(program: &'a Program, isa: &str) -> TargetParts<'a> {
    TargetParts::Cpu {
        cpu: Cpu {
            arch: "x86_64".into(),
            os: "linux".into(),
            isa: isa.into(),
        },
        program,
        object: b"no machine code",
    }
}

/// Panels of four columns and of two, padded to three.
fn panels() -> Panels {
    Panels {
        matrices: Axis { size: 1, step: 0 },
        rows: Axis { size: 5, step: 1 },
        columns: Axis { size: 6, step: 5 },
        width: 4,
        last: 3,
    }
}

fn values() -> Vec<u8> {
    (0..30).flat_map(|k| (k as f32).to_le_bytes()).collect()
}

/// Writes a package of the targets, with the weight in `panels` if that may be.
fn write(path: &Path, targets: &[TargetParts<'_>], panels: Panels) {
    let values = values();
    let weight = |_: &str| {
        Some(WeightData {
            dtype: DType::F32,
            sizes: &SIZES,
            strides: &[5, 1],
            bytes: &values,
        })
    };
    let options = Options {
        panels: [("w".to_string(), panels)].into(),
        ..Options::default()
    };
    inrush_package::write_with(path, targets, &weight, &options).expect("a package");
}

#[test]
fn a_weight_in_panels_is_read_in_its_own_order() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("m.inrush");
    let program = program();
    write(&path, &[target(&program, "avx2")], panels());
    let package = Package::open(&path).expect("a package");
    package.check_weights().expect("no damage");
    let stored = package.panels("w").expect("panels");
    assert_eq!((*stored.panels, stored.sizes), (panels(), &SIZES[..]));
    assert_eq!(stored.bytes.len(), 4 * 5 * 7);
    assert_ne!(stored.bytes[..120], values());
    assert_eq!(package.weight("w").expect("a weight").bytes, values());
    assert!(package.panels("v").is_none());
}

#[test]
fn several_targets_share_the_plain_order() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("m.inrush");
    let program = program();
    write(
        &path,
        &["avx2", "avx512"].map(|isa| target(&program, isa)),
        panels(),
    );
    let package = Package::open(&path).expect("a package");
    assert!(package.panels("w").is_none());
    assert_eq!(package.weight("w").expect("a weight").bytes, values());
}

#[test]
fn panels_that_do_not_fit_are_not_written() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("m.inrush");
    let program = program();
    let mut part = panels();
    part.rows.size = 4;
    let mut padded = panels();
    (padded.width, padded.last) = (1 << 20, 1 << 20);
    for p in [part, padded] {
        write(&path, &[target(&program, "avx2")], p);
        let package = Package::open(&path).expect("a package");
        assert!(package.panels("w").is_none(), "{p:?}");
        assert_eq!(package.weight("w").expect("a weight").bytes, values());
    }
}

#[test]
fn every_flipped_byte_of_panels_is_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("m.inrush");
    let program = program();
    write(&path, &[target(&program, "avx2")], panels());
    let whole = std::fs::read(&path).expect("a package");
    let package = Package::read(whole.clone()).expect("a package");
    let bytes = package.panels("w").expect("panels").bytes.to_vec();
    let at = whole
        .windows(bytes.len())
        .position(|w| w == bytes)
        .expect("the panels");
    for k in 0..bytes.len() {
        let mut damaged = whole.clone();
        damaged[at + k] ^= 1 << (k % 8);
        let package = Package::read(damaged).expect("weights are not read yet");
        let error = package.check_weights().expect_err("a flipped byte");
        assert_eq!(error.kind(), ErrorKind::Input);
        assert!(
            error.to_string().contains("`weights/0` is damaged"),
            "{error}"
        );
    }
}

#[test]
fn damaged_panels_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("m.inrush");
    let program = program();
    write(&path, &[target(&program, "avx2")], panels());
    let whole = std::fs::read(&path).expect("a package");
    type Edit = fn(&mut serde_json::Value);
    let edits: [(Edit, &str); 5] = [
        (|p| p["width"] = 0.into(), "damaged panels"),
        (|p| p["last"] = 2.into(), "damaged panels"),
        (|p| p["rows"]["step"] = 0.into(), "damaged panels"),
        (|p| p["rows"]["size"] = u64::MAX.into(), "damaged panels"),
        (
            |p| p["columns"]["size"] = (-1).into(),
            "damaged `inrush.json`",
        ),
    ];
    for (edit, wanted) in edits {
        let bytes = common::changed(&whole, |m| edit(&mut m["weights"][0]["panels"]));
        let error = Package::read(bytes).map(drop).expect_err("damaged panels");
        assert!(error.to_string().contains(wanted), "{error}");
    }
    let same = Package::read(common::changed(&whole, |m| {
        assert_eq!(m["format"], FORMAT_OF_CODE)
    }));
    same.expect("the package")
        .check_weights()
        .expect("no damage");
}
