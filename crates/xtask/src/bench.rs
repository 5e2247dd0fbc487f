//! `cargo xtask bench`: the measurements, always of the optimised build.

use crate::root;
use std::process::Command;

/// Runs them in the current folder, so that relative paths mean what the user sees.
pub(crate) fn bench(args: &[String]) -> Result<(), String> {
    // Eager operators are called by PyTorch, so that measurement is a script.
    if args.first().is_some_and(|a| a == "--operators") {
        return operators(&args[1..]);
    }
    let status = Command::new(env!("CARGO"))
        .args(["run", "--quiet", "--release", "--package", "inrush-bench"])
        .arg("--manifest-path")
        .arg(root().join("Cargo.toml"))
        .arg("--")
        .args(args)
        .status()
        .map_err(|e| format!("cargo: {e}"))?;
    if status.success() {
        Ok(())
    } else {
        Err("the measurements failed, see above".into())
    }
}

/// Measures lowered operators and eager by a script, in which PyTorch calls both. `INRUSH_PYTHON`
/// names a Python that has inrush installed.
fn operators(args: &[String]) -> Result<(), String> {
    let python = std::env::var_os("INRUSH_PYTHON").unwrap_or_else(|| "python3".into());
    let status = Command::new(python)
        .arg(root().join("python/bench/operators.py"))
        .args(args)
        .status()
        .map_err(|e| format!("Python: {e}"))?;
    if status.success() {
        Ok(())
    } else {
        Err("the measurements failed, see above".into())
    }
}
