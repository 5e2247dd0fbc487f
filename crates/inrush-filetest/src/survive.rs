//! Hostile text: whatever it is, reading, verifying, printing, lowering and interpreting it give a value or an error.
//!
//! A test that damages the programs of file tests, and the fuzz targets, call `survive` with any
//! text. It reads it at the level that its first word names, verifies it, prints it and reads
//! that again, and takes verified programs down to source and through the interpreters.
//!
//! Only panics and texts that do not read back are failures. Errors are the right answer to most
//! hostile text.

use crate::run;
use crate::stages::Program;
use inrush_base::{Caps, Isa, Result};

/// Reads a text of any level and takes it as far as it goes.
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
        return (blocks.iter()).try_for_each(|b| crate::blocks::emit_one(exprs, b).map(|_| ()));
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
