//! `cargo xtask bench`: the measurements, always of the optimised build.

use crate::root;
use std::process::Command;

/// Runs them in the current folder, so that relative paths mean what the user sees.
pub fn bench(args: &[String]) -> Result<(), String> {
    let status = Command::new(env!("CARGO"))
        .args(["run", "--quiet", "--release", "--package", "inrush-bench"])
        .arg("--manifest-path")
        .arg(root().join("Cargo.toml"))
        .arg("--")
        .args(args)
        .status()
        .map_err(|e| format!("cargo: {e}"))?;
    match status.success() {
        true => Ok(()),
        false => Err("the measurements failed, see above".into()),
    }
}
