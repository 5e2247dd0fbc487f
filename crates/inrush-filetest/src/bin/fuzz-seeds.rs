//! Writes the seeds of the fuzz targets, made from what the tests have: `fuzz-seeds DIR` fills `DIR/text`, `DIR/archive`
//! and `DIR/package`.

use inrush_base::{Caps, Isa};
use inrush_filetest::{Document, Program, packages};
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
    let caps = Caps::cpu(Isa::Avx2, 2);
    for path in packages::archives()? {
        let name = path.file_name().expect("a listed file");
        std::fs::copy(&path, dir.join("archive").join(name))?;
        // Programs in parts are here: control flow, and sizes that data decide. Some archives hold what is not supported.
        if let Ok(program) = packages::compile(&path, &caps) {
            let name = path.file_stem().expect("a listed file").to_string_lossy();
            let to = dir.join("package").join(format!("{name}.inrush"));
            packages::write(&to, &program).map_err(std::io::Error::other)?;
            std::fs::write(
                dir.join("text").join(format!("{name}-program")),
                program.print(),
            )?;
        }
    }
    let mut written = 0;
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
                    if written < 20 {
                        written += 1;
                        let to = dir.join("package").join(format!("{stem}-{k}.inrush"));
                        packages::write(&to, &program).map_err(std::io::Error::other)?;
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
