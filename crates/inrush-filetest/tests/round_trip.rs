//! Printed texts parse back to the same value: every stage of every file test and of the digits example.

use inrush_base::{Caps, Isa};
use inrush_filetest::{Document, Program, round_trips};
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

const LEVELS: [Isa; 3] = [Isa::Avx2, Isa::Avx512, Isa::Scalar];

#[test]
fn every_stage_of_every_file_test_reads_back() {
    let (mut count, mut failures) = (0, Vec::new());
    for path in inrush_filetest::files(&root().join("tests")).expect("the folder is there") {
        let text = std::fs::read_to_string(&path).expect("a file that was listed");
        let doc = Document::parse(&text).expect("a file test");
        for section in doc.sections() {
            let block = &doc.blocks[section.start];
            let Ok(program) = Program::read(block) else {
                continue;
            };
            for isa in LEVELS {
                match round_trips(&program, &Caps::cpu(isa, 2)) {
                    Ok(n) => count += n,
                    Err(e) => {
                        failures.push(format!("{}:{}: {e}", path.display(), block.line));
                        break;
                    }
                }
            }
        }
    }
    println!("{count} texts");
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
    assert!(count > 500, "only {count} texts were read");
}

#[test]
fn every_stage_of_the_digits_example_reads_back() {
    let path = root().join("examples/digits/digits.pt2");
    let model = inrush_torch::open(&path).expect("the example is there");
    for isa in LEVELS {
        let program = Program::Graph(model.graph.clone());
        let count = round_trips(&program, &Caps::cpu(isa, 2)).unwrap();
        assert_eq!(count, 10, "every stage gives a text");
    }
}

/// More models, where a folder of them is named: `INRUSH_MODELS=DIR`.
#[test]
fn every_stage_of_more_models_reads_back() {
    let Some(dir) = std::env::var_os("INRUSH_MODELS") else {
        return;
    };
    for entry in std::fs::read_dir(dir).expect("a folder of models") {
        let path = entry.expect("an entry").path();
        if path.extension().is_some_and(|e| e == "pt2") {
            let model = inrush_torch::open(&path).expect("a model");
            let program = Program::Graph(model.graph);
            let count = round_trips(&program, &Caps::cpu(Isa::Avx2, 2));
            assert_eq!(count, Ok(8), "{}", path.display());
        }
    }
}
