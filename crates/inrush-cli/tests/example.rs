//! The example in Rust: classes of the digits before and after a swap of weights under calls.

use inrush_cli::args::{CompileArgs, Format, Kernels, OperatorArgs};
use inrush_cli::io;
use std::path::Path;

#[path = "../../../examples/rust/digits.rs"]
mod digits;

#[test]
fn the_example_in_rust_classifies_and_swaps_weights() {
    let folder = tempfile::tempdir().expect("a folder");
    let example = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/digits");
    let package = folder.path().join("digits.inrush");
    inrush_cli::package::compile(&CompileArgs {
        operators: OperatorArgs::default(),
        model: example.join("digits.pt2"),
        output: package.clone(),
        target: vec!["cpu".into()],
        threads: Some(2),
        format: Format::Inrush,
        emit: None,
        kernels: Kernels::Code,
        tune: false,
        no_libraries: false,
        json: true,
    })
    .expect("a package");
    let given = io::read(&example.join("digits.inputs.safetensors")).expect("inputs");
    let expect = io::read(&example.join("digits.expect.safetensors")).expect("outputs");
    let images = folder.path().join("images");
    std::fs::write(&images, given["0"].to_bytes()).expect("the images");
    let mut out = Vec::new();
    digits::run(&package, &images, &mut out).expect("classes");
    let text = String::from_utf8(out).expect("text");
    let classes: Vec<&str> = text.lines().collect();
    let labels = expect["labels"].to_bytes();
    let labels: Vec<String> = labels.chunks(8).map(|b| b[0].to_string()).collect();
    assert_eq!(classes.len(), 2 * labels.len());
    let (before, after) = classes.split_at(labels.len());
    let right = before.iter().zip(&labels).filter(|(a, b)| a == b).count();
    assert!(
        right * 100 >= 99 * labels.len(),
        "{right} of {}",
        labels.len()
    );
    assert!(after.iter().all(|c| *c == "7"), "{after:?}");
    let missing = digits::run(&package, &folder.path().join("none"), &mut Vec::new());
    assert!(missing.is_err());
}
