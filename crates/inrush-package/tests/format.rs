//! Formats: packages of other versions are refused by their number, before anything else of them is read.

mod common;

use common::changed;
use inrush_base::{ErrorKind, Result};
use inrush_package::{Cpu, FORMAT, FORMAT_OF_CODE, OLDEST, Package, TargetParts};
use inrush_program::parts::{MOST_NESTED, Operand, StepKind};
use inrush_program::{Program, text};
use serde_json::Value;

/// A choice between the programs on two lines, and a loop.
const CONTROL: &str = include_str!("control.txt");

/// Returns the bytes of a package of the program.
fn package(program: &Program) -> Vec<u8> {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("m.inrush");
    let parts = TargetParts::Cpu {
        cpu: Cpu {
            arch: "x86_64".into(),
            os: "linux".into(),
            isa: "avx2".into(),
        },
        program,
        object: b"no machine code",
    };
    inrush_package::write(&path, &[parts], &|_| None).expect("a package");
    std::fs::read(path).expect("a package")
}

fn refusal(bytes: Vec<u8>) -> String {
    let read: Result<Package> = Package::read(bytes);
    let error = read.map(drop).expect_err("a package of another format");
    assert_eq!(error.kind(), ErrorKind::Input);
    error.to_string()
}

/// Renames the first step of a manifest.
fn rename_step(m: &mut Value) {
    let step = &mut m["targets"][0]["Cpu"]["program"]["parts"]["steps"][0]["kind"];
    let known = step.as_object_mut().expect("a step");
    let (_, body) = std::mem::take(known).into_iter().next().expect("a kind");
    known.insert("Jump".into(), body);
}

#[test]
fn newer_packages_are_refused_as_such() {
    let program = text::parse(CONTROL).expect("a program");
    let whole = package(&program);
    let back = Package::read(changed(&whole, |_| {})).expect("the same package");
    assert!(back.cpus().all(|t| t.program == program));
    let newer = refusal(changed(&whole, |m| {
        m["format"] = (FORMAT + 1).into();
        m["version"] = "9.9.9".into();
        rename_step(m);
    }));
    for word in ["made by a newer inrush, 9.9.9", "install it"] {
        assert!(newer.contains(word), "{newer}");
    }
    let older = refusal(changed(&whole, |m| m["format"] = (OLDEST - 1).into()));
    assert!(older.contains("compile the model again"), "{older}");
    assert!(!older.contains("newer"), "{older}");
    let previous = Package::read(changed(&whole, |m| m["format"] = OLDEST.into()));
    let previous = previous.expect("a package of the oldest format");
    assert!(previous.cpus().all(|t| t.program == program));
    // A step that no inrush of this format writes.
    let unknown = refusal(changed(&whole, rename_step));
    assert!(unknown.contains("`Jump`"), "{unknown}");
}

/// Returns the format since which packages hold a kind of steps. A kind that is missing here is new: raise both numbers and give it
/// that number.
fn since(kind: &StepKind) -> u32 {
    match kind {
        StepKind::Segment(_) | StepKind::View(_) | StepKind::Dynamic(_) | StepKind::Write(_) => 4,
        StepKind::Cond(_) | StepKind::While(_) | StepKind::Scan(_) => 5,
        StepKind::Custom(_) => 8,
    }
}

#[test]
fn every_kind_of_steps_is_known_to_the_format() {
    let program = text::parse(CONTROL).expect("a program");
    let parts = program.parts.expect("parts");
    let newest = parts.steps.iter().map(|s| since(&s.kind)).max();
    assert_eq!(newest, Some(FORMAT_OF_CODE));
}

#[test]
fn programs_nested_to_the_bound_are_read_back() {
    let choice = text::parse(CONTROL).expect("a program");
    let mut p = choice.clone();
    for _ in 1..MOST_NESTED {
        let mut outer = choice.clone();
        let parts = outer.parts.as_mut().expect("parts");
        let StepKind::Cond(c) = &mut parts.steps[0].kind else {
            panic!("a choice");
        };
        c.then.program = p;
        c.then.inputs = vec![Operand::Slot(0)];
        p = outer;
    }
    p.verify().expect("a program as deep as it may be");
    let read = Package::read(package(&p)).expect("a package");
    assert!(read.cpus().all(|t| t.program == p));
    let again = text::parse(&p.print()).expect("its text");
    assert!(again == p, "its text reads back");
}
