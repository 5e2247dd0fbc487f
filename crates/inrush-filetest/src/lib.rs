//! File tests: Markdown files, one topic each.
//!
//! A file starts with a header that is a sentence and prose that says why. Each `##` section (or the file, if it has none)
//! is one test: its first fenced block is a program in some IR (`graph`, `loops`, `plan`, `kernels`, `blocks`, `program`), the later ones say what later stages must
//! give, by the stage's name. `error` is the error that the program meets; `run` asks that all ways to evaluate the program
//! agree on random inputs. With blessing, expectations are rewritten instead of compared.
//!
//! An example:
//!
//! ````text
//! # Reductions run over their axes in one loop.
//!
//! ```graph
//! graph t
//! %0 x: f32[4, 7] = input 0
//! %1 y: f32[4] = aten.sum.dim_IntList(%0, [1], false, none)
//! output 0: %1
//! ```
//!
//! ```fuse
//! (text of the plan)
//! ```
//!
//! ```run ordinary
//! graph, loops, fused, compiled, scalar agree
//! ```
//! ````
//!
//! Texts are compared as a whole, so an expectation shows everything that a stage does to a small
//! program. The first block is compared as well, with its own printed form: programs in tests
//! stay canonical.
//!
//! Drawn graphs (`drawn`) use the same `run` block with programs made from a seed; a failure
//! prints as a file test.

mod blocks;
mod cases;
mod compiled;
pub mod drawn;
mod emulated;
mod markdown;
pub mod packages;
mod random;
mod roundtrip;
mod run;
mod stages;
mod survive;
mod tiles;
pub mod zip;

pub use cases::{Case, cases};
pub use markdown::{Block, Document};
pub use roundtrip::round_trips;
pub use stages::{Program, STAGES, Setup, Stage};
pub use survive::{survive, survive_archive, survive_package};

use std::path::{Path, PathBuf};

/// The outcome of one file.
#[derive(Debug, Default)]
pub struct Outcome {
    /// Number of expectations that were compared.
    pub checked: usize,
    /// Expectations that were rewritten.
    pub blessed: usize,
    /// One text for each, with file, line and language of the block.
    pub failures: Vec<String>,
}

/// Returns the text of a `run` block with these settings for a graph.
pub fn agree(graph: &inrush_graph::Graph, settings: &[&str]) -> inrush_base::Result<String> {
    let block = Block {
        language: "run".into(),
        settings: settings.iter().map(|s| s.to_string()).collect(),
        ..Block::default()
    };
    let setup = stages::Setup::of(stages::caps(&block));
    run::agree(&stages::Program::Graph(graph.clone()), &block, &setup)
}

/// Every `.md` file under `dir`, in order.
/// Sorted by path, so that reports have the same order everywhere.
pub fn files(dir: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut out = Vec::new();
    for entry in std::fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            out.extend(files(&path)?);
        } else if path.extension().is_some_and(|e| e == "md") {
            out.push(path);
        }
    }
    out.sort();
    Ok(out)
}

/// Checks one file; with `bless`, rewrites what differs.
/// A file that cannot be read or written is a failure as well. Blessing touches the file only if
/// something differs.
pub fn check_file(path: &Path, bless: bool) -> Outcome {
    let mut out = Outcome::default();
    let name = path.file_name().map(|n| n.to_string_lossy().into_owned());
    let name = name.unwrap_or_default();
    let text = match std::fs::read_to_string(path) {
        Ok(t) => t,
        Err(e) => {
            out.failures.push(format!("{name}: {e}"));
            return out;
        }
    };
    let mut doc = match Document::parse(&text) {
        Ok(d) => d,
        Err(e) => {
            out.failures.push(format!("{name}: {e}"));
            return out;
        }
    };
    if !doc.title.ends_with('.') {
        out.failures
            .push(format!("{name}: the header is not a sentence"));
    }
    for section in doc.sections() {
        check_section(&mut doc, section, &name, bless, &mut out);
    }
    if out.blessed > 0
        && let Err(e) = std::fs::write(path, doc.print())
    {
        out.failures.push(format!("{name}: {e}"));
    }
    out
}

/// Checks the blocks of one section against its first block.
fn check_section(
    doc: &mut Document,
    section: std::ops::Range<usize>,
    name: &str,
    bless: bool,
    out: &mut Outcome,
) {
    // Blessing changes the text of blocks. The program that the others start from stays as it was
    // written.
    let program = doc.blocks[section.start].clone();
    for k in section {
        let block = doc.blocks[k].clone();
        let got = stages::give(&program, &block);
        let place = format!("{name}:{}: `{}`", block.line, block.language);
        let got = match got {
            // A program that is there to be refused has no canonical form.
            Ok(None) => continue,
            Ok(Some(text)) => text,
            Err(e) => {
                out.failures.push(format!("{place}: {e}"));
                continue;
            }
        };
        out.checked += 1;
        if got.trim_end() == block.text.trim_end() {
            continue;
        }
        if bless {
            doc.blocks[k].text = got.trim_end().to_string();
            out.blessed += 1;
        } else {
            out.failures.push(format!(
                "{place} differs\n{}",
                difference(&block.text, &got)
            ));
        }
    }
}

/// Lines of `want` and `got` around what differs: those dropped with `-`, those new with `+`.
fn difference(want: &str, got: &str) -> String {
    let (a, b): (Vec<&str>, Vec<&str>) = (
        want.trim_end().lines().collect(),
        got.trim_end().lines().collect(),
    );
    // A common front and a common back are left out. One region of difference is enough for texts
    // of this size.
    let front = a.iter().zip(&b).take_while(|(x, y)| x == y).count();
    let back = (a[front..].iter().rev().zip(b[front..].iter().rev()))
        .take_while(|(x, y)| x == y)
        .count();
    let mut out = String::new();
    for l in &a[front..a.len() - back] {
        out.push_str(&format!("  - {l}\n"));
    }
    for l in &b[front..b.len() - back] {
        out.push_str(&format!("  + {l}\n"));
    }
    out
}
