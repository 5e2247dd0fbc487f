//! Writes the corpus: one text file for each program, its extension naming the level (`graph`, `loops`, `plan`, `kernels`).

use crate::io;
use inrush_base::Result;
use inrush_filetest::{Document, Program};
use std::collections::BTreeMap;
use std::ops::Range;
use std::path::Path;

/// Replaces the folder `dir` by the corpus: `tests`, `rows` and `drawn`.
pub(crate) fn write(dir: &Path, tests: &Path, seeds: Range<u64>) -> Result<()> {
    match std::fs::remove_dir_all(dir) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(io(dir, e)),
        _ => {}
    }
    let folder = |name: &str, files: BTreeMap<String, String>| -> Result<()> {
        let folder = dir.join(name);
        std::fs::create_dir_all(&folder).map_err(|e| io(&folder, e))?;
        for (name, text) in files {
            let path = folder.join(name);
            std::fs::write(&path, text).map_err(|e| io(&path, e))?;
        }
        Ok(())
    };
    folder("tests", file_tests(tests)?)?;
    folder("rows", rows())?;
    folder("drawn", drawn(seeds))
}

/// The first block of every section of the file tests, under the file's name and the section's number. Texts that are there to
/// be refused by a parser are left out.
fn file_tests(tests: &Path) -> Result<BTreeMap<String, String>> {
    let mut out = BTreeMap::new();
    for path in inrush_filetest::files(tests).map_err(|e| io(tests, e))? {
        let text = std::fs::read_to_string(&path).map_err(|e| io(&path, e))?;
        let doc = Document::parse(&text).map_err(inrush_base::Error::input)?;
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        for (k, section) in doc.sections().into_iter().enumerate() {
            let block = &doc.blocks[section.start];
            let level = block.language.as_str();
            if level != "program" && Program::read(block).is_ok() {
                out.insert(format!("{stem}-{k}.{level}"), block.text.clone());
            }
        }
    }
    Ok(out)
}

/// The examples of the operator rows, one graph each.
fn rows() -> BTreeMap<String, String> {
    let named = inrush_aten::rows().filter(|r| !r.example.is_empty());
    let example = |r: &inrush_aten::Row| {
        let e = inrush_aten::example::example(r.name).ok()?;
        Some((format!("{}.graph", r.name), e.graph.print()))
    };
    named.filter_map(example).collect()
}

/// Drawn graphs, by their seeds.
fn drawn(seeds: Range<u64>) -> BTreeMap<String, String> {
    seeds
        .map(|seed| {
            let drawn = inrush_filetest::drawn::draw(seed, "");
            (format!("{seed}.graph"), drawn.graph.print())
        })
        .collect()
}
