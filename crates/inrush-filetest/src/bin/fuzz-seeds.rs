//! Writes the seeds of the fuzz targets, made from what the tests have: `fuzz-seeds DIR` fills `DIR/text`, `DIR/archive`
//! and `DIR/package`.

use inrush_base::{Caps, Isa};
use inrush_filetest::{Document, Program};
use inrush_package::{Cpu, TargetParts, WeightData};
use inrush_program::Place;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Longer texts are slow to change.
const MAX_TEXT: usize = 4000;

fn main() -> std::io::Result<()> {
    let Some(dir) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: fuzz-seeds DIR");
        std::process::exit(2);
    };
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for target in ["text", "archive", "package"] {
        std::fs::create_dir_all(dir.join(target))?;
    }
    let archives = root.join("crates/inrush-torch/tests/data");
    for entry in std::fs::read_dir(archives)? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "pt2") {
            let name = path.file_name().expect("a listed file");
            std::fs::copy(&path, dir.join("archive").join(name))?;
        }
    }
    let caps = Caps::cpu(Isa::Avx2, 2);
    let mut packages = 0;
    for path in inrush_filetest::files(&root.join("tests"))? {
        let stem = path.file_stem().map(|s| s.to_string_lossy().into_owned());
        let stem = stem.unwrap_or_default();
        let doc = Document::parse(&std::fs::read_to_string(&path)?).expect("a file test");
        for (k, section) in doc.sections().into_iter().enumerate() {
            let block = &doc.blocks[section.start];
            let mut texts = vec![("given", block.text.clone())];
            if let Ok(p) = Program::read(block) {
                texts.extend(p.loops().map(|l| ("loops", l.print())));
                texts.extend(p.plan(&caps).map(|p| ("plan", p.print())));
                let kernels = p.kernels(&caps);
                texts.extend(
                    kernels.map(|(e, k)| ("kernels", inrush_kernel::text::print_all(&e, &k))),
                );
                texts.extend(p.block_text("h100").map(|b| ("blocks", b)));
                if let Ok(program) = p.program(&caps) {
                    texts.push(("program", program.print()));
                    if packages < 20 {
                        packages += 1;
                        let to = dir.join("package").join(format!("{stem}-{k}.inrush"));
                        package(&to, &program).map_err(std::io::Error::other)?;
                    }
                }
            }
            for (level, text) in texts.iter().filter(|t| t.1.len() <= MAX_TEXT) {
                std::fs::write(dir.join("text").join(format!("{stem}-{k}-{level}")), text)?;
            }
        }
    }
    Ok(())
}

/// A package of the program with made-up machine code and weights of zeros.
fn package(path: &Path, program: &inrush_program::Program) -> inrush_base::Result<()> {
    let cpu = Cpu {
        arch: "x86_64".into(),
        os: "linux".into(),
        isa: "avx2".into(),
    };
    let weights: BTreeMap<&str, &inrush_program::Buffer> = (program.buffers.iter())
        .filter_map(|b| match &b.place {
            Place::Weight(w) => Some((w.name.as_str(), b)),
            _ => None,
        })
        .collect();
    let zeros = [0; 4096];
    let parts = TargetParts::Cpu {
        cpu,
        program,
        object: b"no machine code",
    };
    inrush_package::write(path, &[parts], &|name| {
        let b = weights.get(name)?;
        let Place::Weight(w) = &b.place else {
            return None;
        };
        Some(WeightData {
            dtype: b.dtype.0,
            sizes: &w.sizes,
            strides: &w.strides,
            bytes: &zeros,
        })
    })
}
