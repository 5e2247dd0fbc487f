//! `cargo xtask fuzz`: every fuzz target for a bounded time.
//!
//! libFuzzer is built with the machine's C++ compiler; what is fuzzed is instrumented through LLVM's coverage pass, which a
//! stable compiler runs as well. Seeds are made from the files of the tests; inputs that are hard or once failed stand in
//! `fuzz/regressions` and are tried first.

use crate::{cargo, root, run};
use std::path::Path;
use std::process::Command;

/// Name and the longest input.
const TARGETS: [(&str, u32); 3] = [("text", 6_000), ("archive", 60_000), ("package", 80_000)];

/// Counters on every edge, and comparisons reported, as libFuzzer wants them.
const FLAGS: &str = "-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares -Cllvm-args=-simplifycfg-branch-fold-threshold=0 \
    -Ccodegen-units=4 --cfg fuzzing";

/// Builds and runs the targets (or one of them), each for `seconds`; `args` are the drawn graphs' own.
pub(crate) fn fuzz(seconds: u32, only: Option<&str>, args: &[String]) -> Result<(), String> {
    if only == Some("graphs") {
        return graphs(seconds, args, &[]);
    }
    if let Some(name) = only
        && !TARGETS.iter().any(|t| t.0 == name)
    {
        let names: Vec<&str> = TARGETS.iter().map(|t| t.0).collect();
        return Err(format!(
            "no fuzz target `{name}`: {}, graphs",
            names.join(", ")
        ));
    }
    let dir = root().join("target").join("fuzz");
    let host = host()?;
    let seeds = dir.join("seeds");
    let shown = seeds.display().to_string();
    cargo(
        &[
            "run",
            "--quiet",
            "--release",
            "--package",
            "inrush-filetest",
            "--bin",
            "fuzz-seeds",
            "--",
            &shown,
        ],
        &[],
    )?;
    // Naming the target keeps the flags away from build scripts.
    run(Command::new(env!("CARGO"))
        .args(["build", "--release", "--target", &host])
        .arg("--manifest-path")
        .arg(root().join("fuzz").join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&dir)
        .env_remove("CARGO_ENCODED_RUSTFLAGS")
        .env("RUSTFLAGS", FLAGS))
    .map_err(|e| format!("{e}; fuzz targets need a C++ compiler"))?;
    for (name, max_len) in TARGETS {
        if only.is_none_or(|o| o == name) {
            let program = dir.join(&host).join("release").join(name);
            one(&program, name, max_len, seconds, &dir)?;
        }
    }
    Ok(())
}

/// Draws graphs for a while and compares compiled code with the interpreter. `env` names the tools that run NEON's.
pub(crate) fn graphs(seconds: u32, args: &[String], env: &[(&str, &str)]) -> Result<(), String> {
    eprintln!("==> drawn graphs, {seconds} s at most");
    let (seconds, out) = (seconds.to_string(), root().join("target").join("drawn"));
    let out = out.display().to_string();
    let mut all = vec![
        "run",
        "--quiet",
        "--release",
        "--package",
        "inrush-filetest",
    ];
    all.extend([
        "--bin",
        "drawn-graphs",
        "--",
        "--seconds",
        &seconds,
        "--out",
        &out,
    ]);
    all.extend(args.iter().map(String::as_str));
    cargo(&all, env)
}

/// Runs a target. New inputs of interest go to its corpus, and inputs that fail to a folder that
/// the error names.
fn one(program: &Path, name: &str, max_len: u32, seconds: u32, dir: &Path) -> Result<(), String> {
    let corpus = dir.join("corpus").join(name);
    let failures = dir.join("failures").join(name);
    let known = root().join("fuzz").join("regressions").join(name);
    for d in [&corpus, &failures] {
        std::fs::create_dir_all(d).map_err(|e| format!("{}: {e}", d.display()))?;
    }
    eprintln!("==> fuzz {name}, {seconds} s");
    let mut command = Command::new(program);
    command
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-max_len={max_len}"))
        .arg(format!("-artifact_prefix={}/", failures.display()))
        // An input may not take long, nor much memory.
        .args(["-timeout=20", "-rss_limit_mb=3000", "-malloc_limit_mb=2000"])
        .args([
            "-verbosity=0",
            "-print_final_stats=1",
            "-report_slow_units=10",
        ])
        .arg(&corpus)
        .arg(dir.join("seeds").join(name));
    if known.is_dir() {
        command.arg(known);
    }
    let status = command.status().map_err(|e| format!("{name}: {e}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!(
            "the fuzz target `{name}` failed: the input lies in {}; run it with `{} FILE`",
            failures.display(),
            program.display()
        ))
    }
}

/// The machine's target triple.
fn host() -> Result<String, String> {
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".into());
    let out = Command::new(rustc)
        .arg("-vV")
        .output()
        .map_err(|e| format!("rustc: {e}"))?;
    String::from_utf8_lossy(&out.stdout)
        .lines()
        .find_map(|l| l.strip_prefix("host: ").map(str::to_string))
        .ok_or_else(|| "rustc names no host".into())
}
