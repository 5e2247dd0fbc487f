//! Operators that users define: declarations for compiling, functions for running.

use crate::args::OperatorArgs;
use inrush_base::schema::Operator;
use inrush_base::{Error, Result};
use inrush_runtime::operators;
use std::sync::OnceLock;

/// Operators of this command's `--operator`.
static DECLARED: OnceLock<Vec<Operator>> = OnceLock::new();

/// Takes the operators that the command line names.
///
/// # Errors
/// An input error for a malformed declaration, one that is given twice, or a library that cannot be loaded.
pub fn take(args: &OperatorArgs) -> Result<()> {
    let mut all: Vec<Operator> = Vec::with_capacity(args.declared.len());
    for text in &args.declared {
        let o = Operator::parse(text)?;
        if all.iter().any(|p| p.name == o.name) {
            return Err(Error::input(format!("`{o}` is declared twice")));
        }
        all.push(o);
    }
    for path in &args.libraries {
        operators::load_operators(path)?;
    }
    _ = DECLARED.set(all);
    Ok(())
}

/// Returns the operators that models may call: those that are declared, and those with functions.
pub fn declared() -> Vec<Operator> {
    let mut all = DECLARED.get().cloned().unwrap_or_default();
    for o in operators::registered() {
        if all.iter().all(|p| p.name != o.name) {
            all.push(o);
        }
    }
    all
}
