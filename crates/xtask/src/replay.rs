//! `cargo xtask replay BASE`: proves that a refactoring changes nothing that the compiler writes.
//!
//! The program `inrush-replay` of both commits compiles one corpus, which the working tree's writes, and records every plan,
//! kernel and program; the records must be equal byte for byte. Everything is below `target/replay`: `bin/COMMIT` is kept for
//! each commit, so that a base is built once; `out/COMMIT` holds its records, which are kept as long as the program is the same.

mod compare;

use crate::{cargo, root, run};
use clap::Args;
use compare::Comparison;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The recording program, and its crate.
const PROGRAM: &str = "inrush-replay";

#[derive(Args)]
pub(crate) struct Replay {
    /// The commit to compare the working tree with.
    base: String,
    /// A folder of `.pt2` archives to compile, too.
    #[arg(long, value_name = "DIR")]
    models: Vec<PathBuf>,
    /// Number of drawn graphs.
    #[arg(long, value_name = "N", default_value_t = 400)]
    drawn: u64,
    /// Seed of the first drawn graph.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only programs whose name contains this.
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Number of differing programs that are shown.
    #[arg(long, value_name = "N", default_value_t = 10)]
    show: usize,
    /// Number of differing lines that are shown of each.
    #[arg(long, value_name = "N", default_value_t = 6)]
    lines: usize,
}

/// Records the corpus at both commits and compares.
///
/// # Errors
/// Says how many programs differ, or why the base cannot be recorded.
pub(crate) fn replay(args: &Replay) -> Result<(), String> {
    let dir = root().join("target").join("replay");
    let commit = base_commit(&args.base)?;
    // The working tree comes first: where it is the base, unchanged, its program serves as both.
    let now = own_program(&dir)?;
    let base = base_program(&args.base, &commit, &dir)?;
    eprintln!("==> corpus");
    let corpus = dir.join("corpus");
    run(Command::new(&now)
        .arg("corpus")
        .arg(&corpus)
        .arg("--tests")
        .arg(root().join("tests"))
        .args(["--drawn", &args.drawn.to_string()])
        .args(["--seed", &args.seed.to_string()]))?;
    let folders = folders(&corpus, &args.models)?;
    let mut outs = Vec::new();
    for (name, program) in [(commit.as_str(), &base), ("tree", &now)] {
        eprintln!("==> record {name}");
        let out = dir.join("out").join(name);
        run(Command::new(program)
            .arg("record")
            .arg(&out)
            .args(["--only", &args.only])
            .args(&folders))?;
        outs.push(out);
    }
    let comparison = compare(&outs[0], &outs[1], args.lines)?;
    report(&comparison, args)
}

/// Folders of programs as `NAME=DIR`: the corpus, the repository's archives, operator cases where they are, and models.
fn folders(corpus: &Path, models: &[PathBuf]) -> Result<Vec<String>, String> {
    let mut out = Vec::new();
    for name in ["tests", "rows", "drawn"] {
        out.push(format!("{name}={}", corpus.join(name).display()));
    }
    for (name, dir) in [
        ("examples", "examples"),
        ("fixtures", "python/fixtures"),
        ("archives", "crates/inrush-torch/tests/data"),
    ] {
        out.push(format!("{name}={}", root().join(dir).display()));
    }
    let cases = std::env::var_os("INRUSH_OP_CASES").map(PathBuf::from);
    let cases = cases.unwrap_or_else(|| root().join("target").join("op_cases"));
    if cases.is_dir() {
        out.push(format!("cases={}", cases.display()))
    } else {
        eprintln!("no operator cases in {}", cases.display())
    }
    for (k, dir) in models.iter().enumerate() {
        // The recording programs run in the root.
        let dir = std::path::absolute(dir).map_err(|e| format!("{}: {e}", dir.display()))?;
        out.push(format!("models{k}={}", dir.display()));
    }
    Ok(out)
}

/// Returns the full name of the base, which must have the recording program.
fn base_commit(name: &str) -> Result<String, String> {
    let commit = git(&[
        "rev-parse",
        "--verify",
        "--quiet",
        &format!("{name}^{{commit}}"),
    ])
    .map_err(|_| format!("`{name}` is no commit"))?;
    let manifest = format!("{commit}:crates/{PROGRAM}/Cargo.toml");
    match git(&["cat-file", "-e", &manifest]) {
        Ok(_) => Ok(commit),
        Err(_) => Err(format!(
            "{name} has no {PROGRAM}: it is older than `cargo xtask replay`, so there is nothing to compare with"
        )),
    }
}

/// Builds the program of the base in a worktree of its own, unless an earlier run did.
fn base_program(name: &str, commit: &str, dir: &Path) -> Result<PathBuf, String> {
    let program = dir.join("bin").join(commit);
    if program.is_file() {
        return Ok(program);
    }
    eprintln!("==> build {name} (minutes the first time)");
    let tree = dir.join("base");
    let shown = tree.display().to_string();
    // A worktree that is reused keeps the times of unchanged files, and so what cargo built of them.
    if tree.join(".git").exists() {
        git(&[
            "-C", &shown, "checkout", "--quiet", "--force", "--detach", commit,
        ])?
    } else {
        git(&[
            "worktree", "add", "--quiet", "--force", "--detach", &shown, commit,
        ])?
    };
    let build = dir.join("build");
    run(Command::new(env!("CARGO"))
        .args(["build", "--release", "--quiet", "--package", PROGRAM])
        .arg("--manifest-path")
        .arg(tree.join("Cargo.toml"))
        .arg("--target-dir")
        .arg(&build))?;
    keep(&build.join("release").join(PROGRAM), &program)?;
    Ok(program)
}

/// Builds the program of the working tree. Where that is a commit without changes, the program is kept as this commit's.
fn own_program(dir: &Path) -> Result<PathBuf, String> {
    eprintln!("==> build the working tree");
    cargo(
        &["build", "--release", "--quiet", "--package", PROGRAM],
        &[],
    )?;
    let built = root().join("target").join("release").join(PROGRAM);
    if git(&["status", "--porcelain"])?.is_empty() {
        keep(&built, &dir.join("bin").join(git(&["rev-parse", "HEAD"])?))?;
    }
    // A copy: a build that runs at the same time may replace the original.
    let program = dir.join("bin").join("tree");
    keep(&built, &program)?;
    Ok(program)
}

/// Copies a program to where it is kept.
fn keep(from: &Path, to: &Path) -> Result<(), String> {
    let say = |e: std::io::Error| format!("{}: {e}", to.display());
    std::fs::create_dir_all(to.parent().unwrap_or(to)).map_err(say)?;
    // Copied first and then renamed: a copy that was interrupted is no program.
    let part = to.with_extension("part");
    std::fs::copy(from, &part).map_err(say)?;
    std::fs::rename(&part, to).map_err(say)
}

/// Runs git in the root and returns what it prints.
fn git(args: &[&str]) -> Result<String, String> {
    let out = Command::new("git")
        .args(args)
        .current_dir(root())
        .output()
        .map_err(|e| format!("git: {e}"))?;
    if out.status.success() {
        Ok(String::from_utf8_lossy(&out.stdout).trim().to_string())
    } else {
        Err(format!(
            "`git {}` failed: {}",
            args.join(" "),
            String::from_utf8_lossy(&out.stderr).trim()
        ))
    }
}

/// Compares the records that the last run wrote to two folders.
fn compare(base: &Path, now: &Path, lines: usize) -> Result<Comparison, String> {
    let read = |path: PathBuf| {
        std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))
    };
    let (old, new) = (read(base.join("index"))?, read(now.join("index"))?);
    let (old, new): (BTreeSet<&str>, BTreeSet<&str>) =
        (old.lines().collect(), new.lines().collect());
    let mut out = Comparison::default();
    // In order of names. A program that only one commit has counts as a difference.
    for name in old.union(&new) {
        let text = |dir: &Path, index: &BTreeSet<&str>| -> Result<Option<String>, String> {
            let listed = index.contains(name);
            listed.then(|| read(dir.join(name))).transpose()
        };
        let (a, b) = (text(base, &old)?, text(now, &new)?);
        out.add(name, a.as_deref(), b.as_deref(), lines);
    }
    Ok(out)
}

/// Prints the differences. Fails if there are any, or if nothing was compared.
fn report(c: &Comparison, args: &Replay) -> Result<(), String> {
    if c.programs == 0 {
        return Err(format!("no program has `{}` in its name", args.only));
    }
    for (name, text) in c.differing.iter().take(args.show) {
        println!("{name}\n{text}");
    }
    for (section, n) in &c.stages {
        println!("{n:>7} differ in {section}");
    }
    println!("{} programs, {} texts compared", c.programs, c.sections);
    match c.differing.len() {
        0 => Ok(()),
        n => Err(format!("{n} programs differ from {}", args.base)),
    }
}
