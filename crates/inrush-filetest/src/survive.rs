//! Hostile input: whatever a text, an archive or a package holds, reading it and what follows give a value or an error.
//!
//! Tests with random damage and the fuzz targets call these functions with any input. Only panics and texts that do not
//! read back are failures. Errors are the right answer to most hostile input.

use crate::run;
use crate::stages::Program;
use inrush_base::{Caps, Isa, Result};
use inrush_package::Package;
use inrush_program::{Place, host::StepKind};

/// Reads an archive of `torch.export` and compiles it up to C source.
///
/// # Panics
/// If the reader or the compiler has a bug. For tests and fuzzing.
pub fn survive_archive(bytes: &[u8]) {
    let options = inrush_torch::Options::default();
    let Ok(model) = inrush_torch::open_bytes(bytes.to_vec().into(), &options) else {
        return;
    };
    _ = (model.summary(), model.graph.print(), model.weights.check());
    for (name, _) in model.weights.iter() {
        _ = model.weights.view(name);
    }
    let options = inrush_compile::Options::default();
    let caps = Caps::cpu(Isa::Avx2, 2);
    _ = inrush_compile::compile(model.graph, &caps, &options, &mut ());
}

/// Opens a package, verifies it, prints its programs and reads them again, and evaluates their sizes. Its machine code is
/// never loaded.
///
/// # Panics
/// If the reader or the verifier has a bug, or a printed program does not parse back to itself. For tests and fuzzing.
pub fn survive_package(bytes: &[u8]) {
    let Ok(package) = Package::read(bytes.to_vec()) else {
        return;
    };
    _ = package.check_weights();
    for gpu in package.gpus() {
        for arch in ["70", "80", "89", "90", "100", "gfx942", ""] {
            _ = (gpu.fits(arch), gpu.fits_by_ptx(arch));
        }
        for k in &gpu.kernels {
            _ = package.code(&k.code);
        }
        for step in &gpu.lowered.program.steps {
            if let StepKind::Segment(s) = &step.kind {
                survive_program(&package, &s.program);
            }
        }
    }
    for cpu in package.cpus() {
        survive_program(&package, &cpu.program);
    }
}

fn survive_program(package: &Package, program: &inrush_program::Program) {
    for b in &program.buffers {
        if let Place::Weight(w) = &b.place {
            _ = package.weight(&w.name);
        }
    }
    let text = program.print();
    let again = inrush_program::text::parse(&text).map(|p| p.print());
    assert_eq!(again.as_deref(), Ok(text.as_str()));
    for value in [0, 1, 3, i64::MAX] {
        let symbols: Vec<i64> = (program.symbols.iter())
            .map(|s| value.min(s.upper).max(s.lower))
            .collect();
        _ = inrush_program::evaluate(&program.sizes, &symbols, &mut Vec::new());
    }
}

/// Reads a text at the level that its first word names, verifies it, prints it and reads that again. Verified programs go
/// down to source and through the interpreters.
///
/// # Panics
/// On a fault of ours: a panic somewhere below, or a text that is printed and does not read back to itself. For tests and
/// fuzzing.
pub fn survive(text: &str) {
    let Some(language) = language(text) else {
        return;
    };
    let Ok(program) = Program::parse(language, text) else {
        return;
    };
    let verified = program.verify().is_ok();
    let once = program.print();
    // Sizes beyond 64 bits stand as products of huge constants; such text does not read back to itself.
    if !overflows(&once) {
        let again = Program::parse(language, &once).map(|p| p.print());
        assert_eq!(again.as_deref(), Ok(once.as_str()), "from\n{text}");
    }
    // Loops that the verifier refuses may still be asked for their accesses.
    if let Program::Loops(l) = &program {
        _ = inrush_loops::verify::unproven(l);
    }
    // Later stages rely on the verifiers: unverified programs may panic there.
    if verified {
        _ = down(&program);
        _ = run::survive(&program);
    }
}

/// The level of a text, by the word that its first line of substance starts with.
fn language(text: &str) -> Option<&'static str> {
    let words = text.lines().filter_map(|l| l.split_whitespace().next());
    for word in words {
        match word {
            "graph" => return Some("graph"),
            "loops" => return Some("loops"),
            "plan" => return Some("plan"),
            "kernel" => return Some("kernels"),
            "block" => return Some("blocks"),
            "program" => return Some("program"),
            _ => {}
        }
    }
    None
}

/// Returns true if a printed integer is near the ends of 64 bits.
fn overflows(text: &str) -> bool {
    text.contains("*92233720368547758") || text.contains("9223372036854775807*")
}

/// A program that the verifier passes goes as far down as it gets.
/// Compiles without building: no C compiler runs on hostile text.
fn down(program: &Program) -> Result<()> {
    let caps = Caps::cpu(Isa::Avx2, 2);
    if let Program::Program(_) = program {
        return Ok(());
    }
    if let Program::Blocks(exprs, blocks) = program {
        return (blocks.iter())
            .try_for_each(|b| crate::blocks::emit_one(exprs, b, &caps).map(|_| ()));
    }
    let (exprs, kernels) = program.kernels(&caps)?;
    for k in &kernels {
        inrush_c::emit(&exprs, k, &caps)?;
    }
    if let Program::Graph(_) = program {
        program.program(&caps)?;
    }
    Ok(())
}
