//! The programs of the file tests with inputs, for those who evaluate them elsewhere.
//!
//! Crates that run kernels elsewhere, such as on a GPU, take programs and inputs from here.
//! Inputs are those of the first round of the `run` block: plain numbers, without special values.

use crate::markdown::Document;
use crate::random::Random;
use crate::run;
use crate::stages::{Program, Setup};
use inrush_base::{Caps, Error, Result};
use inrush_interp::{Tensor, Value};
use inrush_loops::Loops;
use std::collections::BTreeMap;
use std::path::Path;

/// A program that its test runs, and random inputs for it.
pub struct Case {
    /// File and line.
    pub name: String,
    pub loops: Loops,
    pub inputs: Vec<Value>,
    /// By fully qualified name.
    pub weights: BTreeMap<String, Tensor>,
    pub symbols: BTreeMap<String, i64>,
}

/// Every program of a file that has a `run` block, but for those that are there to be refused, lowered for a device.
pub fn cases(path: &Path, caps: &Caps) -> Result<Vec<Case>> {
    let read = std::fs::read_to_string(path);
    let text = read.map_err(|e| Error::machine(format!("{}: {e}", path.display())))?;
    let doc = Document::parse(&text).map_err(Error::input)?;
    let stem = path.file_stem().unwrap_or_default().to_string_lossy();
    let mut out = Vec::new();
    for block in doc.blocks.iter().filter(|b| b.language == "run") {
        // Its expectation says that the participants refuse.
        if block.text.contains("refuse") {
            continue;
        }
        let first = doc.blocks.iter().find(|b| b.section == block.section);
        let Some(first) = first else { continue };
        let program = Program::read(first)?;
        // Complex numbers are compiled as parts.
        let program = program.parts()?.unwrap_or(program);
        let settings = run::settings(block)?;
        let mut random = Random::new(settings.seed);
        let inputs = run::inputs(&program, &settings, &mut random, false)?;
        out.push(Case {
            name: format!("{stem}_{}", block.line),
            loops: program.loops_within(&Setup::of(caps.clone()))?,
            inputs: inputs.user,
            weights: inputs.weights,
            symbols: settings.symbols,
        });
    }
    Ok(out)
}
