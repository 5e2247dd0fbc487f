//! `inrush compile`: an archive into a package.
//!
//! A package is compiled ahead of time for one level of processor: program, shared object and
//! weights in a file. Loading it needs no C compiler.

use crate::args::CompileArgs;
use crate::out::say;
use crate::progress::Progress;
use crate::session;
use inrush_base::{Error, Result};
use inrush_package::{Package, Target, WeightData};
use inrush_runtime::cache::Cache;
use std::process::ExitCode;

/// Compiles an archive and writes the package.
pub fn compile(a: &CompileArgs) -> Result<ExitCode> {
    let caps = session::caps(&a.target)?;
    let progress = Progress::new(a.json);
    progress.watch();
    if !a.model.exists() {
        return Err(Error::input("no such file").in_file(a.model.display().to_string()));
    }
    if Package::is_package(&a.model) {
        return Err(
            Error::input("already a compiled package").in_file(a.model.display().to_string())
        );
    }
    let mut c = session::compile_archive(&a.model, &caps, &progress)?;
    let built = session::build(&mut c, &caps, &Cache::open_default(), &progress)?;
    progress.step("write".into());
    let object = std::fs::read(&built.path)
        .map_err(|e| Error::machine(format!("cannot read `{}`: {e}", built.path.display())))?;
    let target = Target {
        arch: std::env::consts::ARCH.to_string(),
        os: std::env::consts::OS.to_string(),
        isa: caps.isa.name().to_string(),
    };
    // Checksums are compared before the bytes are copied, so that a damaged archive makes no
    // package.
    let weights = &c.archive.weights;
    weights
        .check()
        .map_err(|e| e.in_file(a.model.display().to_string()))?;
    inrush_package::write(&a.output, target, &c.compiled.program, &object, &|name| {
        weights.view(name).map(|w| WeightData {
            dtype: w.dtype,
            sizes: w.sizes,
            strides: w.strides,
            bytes: w.bytes,
        })
    })?;
    progress.done();
    let bytes = std::fs::metadata(&a.output).map_or(0, |m| m.len());
    let ms = c.times.compile().as_secs_f64() * 1e3;
    if a.json {
        let line = serde_json::json!({
            "model": a.model.display().to_string(),
            "package": a.output.display().to_string(),
            "target": caps.to_string(),
            "compile_ms": ms,
            "bytes": bytes,
        });
        say!("{line}")?;
    } else {
        say!(
            "{} for {} in {ms:.0} ms: {} ({:.1} MB)",
            a.model.display(),
            caps,
            a.output.display(),
            bytes as f64 / 1e6
        )?;
    }
    Ok(ExitCode::SUCCESS)
}
