//! Repository chores: `cargo xtask test`, `bench`, `bless`, `tidy`, `docs`, `coverage`, `survey`,
//! `fuzz`, `replay`.
//!
//! A program instead of scripts, so that chores run wherever Rust builds; the alias in
//! `.cargo/config.toml` builds and runs it. Errors are strings, since they are only printed.

#![forbid(unsafe_code)]

mod bench;
mod docs;
mod documents;
mod fuzz;
mod history;
mod replay;
mod sources;
mod test;
mod tidy;
mod wrapper;

use clap::{Parser, Subcommand};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

#[derive(Parser)]
#[command(about = "Repository chores")]
struct Args {
    #[command(subcommand)]
    chore: Chore,
}

#[derive(Subcommand)]
enum Chore {
    /// Measure models, growth of compile time and memory-bound kernels (`cargo xtask bench --help`).
    #[command(disable_help_flag = true)]
    Bench {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Rewrite the expectations of the file tests by what the stages give now.
    Bless {
        /// Only files whose path contains this.
        filter: Option<String>,
    },
    /// Check documents, words of comments, commit subjects, formatting, lints, and what each crate must not know.
    Tidy,
    /// Run every test, setting up the Python environment that makes the operator cases.
    Test {
        /// Leave out what needs Python.
        #[arg(long)]
        no_python: bool,
        /// Run all cases of the Python tests. Without it one in three of each test with many cases runs, others for each commit.
        #[arg(long)]
        every_case: bool,
        /// Run the fuzz targets as well. They need a C++ compiler and a second build of most crates.
        #[arg(long)]
        fuzz: bool,
    },
    /// Run the fuzz targets, each for a bounded time.
    Fuzz {
        /// Seconds for each target.
        #[arg(long, default_value_t = 60)]
        seconds: u32,
        /// Only this target: text, archive, package or graphs.
        target: Option<String>,
        /// Options of the target `graphs` (`cargo xtask fuzz graphs -- --help`).
        #[arg(last = true)]
        args: Vec<String>,
    },
    /// Compile PyTorch's operator samples, compare with eager and write docs/coverage.md (`cargo xtask coverage --help`).
    #[command(disable_help_flag = true)]
    Coverage {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Compile public models ahead of time and compare with eager (`cargo xtask survey --help`).
    #[command(disable_help_flag = true)]
    Survey {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// Compile a corpus at a commit and in the working tree, and compare what the compiler writes.
    ///
    /// Every plan, kernel and program must be equal byte for byte: the file tests, the examples of all operator rows, drawn graphs,
    /// the repository's archives and the operator cases (INRUSH_OP_CASES or target/op_cases, where they are), for scalar, AVX2 and
    /// AVX-512 CPUs, H100 (two ways to address memory) and MI300X. Programs that the compiler refuses are compared by the error.
    /// What it does not see: the Rust code of the CPU engine and the executors, and how PyTorch's graphs are divided into segments.
    ///
    /// The base is built once, in a worktree below target/replay, and its records are kept. The exit code is 1 where anything differs.
    Replay(replay::Replay),
    /// Write docs/operators.md, or check that it is true.
    Docs {
        #[arg(long)]
        check: bool,
    },
}

fn main() -> ExitCode {
    if let Some(code) = wrapper::run() {
        return code;
    }
    let done = match Args::parse().chore {
        Chore::Bench { args } => bench::bench(&args),
        Chore::Bless { filter } => bless(filter.as_deref()),
        Chore::Tidy => tidy::tidy(),
        Chore::Test {
            no_python,
            every_case,
            fuzz,
        } => test::test(no_python, every_case, fuzz),
        Chore::Fuzz {
            seconds,
            target,
            args,
        } => fuzz::fuzz(seconds, target.as_deref(), &args),
        Chore::Replay(args) => replay::replay(&args),
        Chore::Docs { check } => docs::docs(check),
        Chore::Coverage { args } => test::coverage(&args),
        Chore::Survey { args } => test::survey(&args),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

/// The repository's root.
fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap_or(here).to_path_buf()
}

/// Lets Python keep the byte code of what it imports, whatever the shell says: hundreds of processes of the tests import PyTorch,
/// whose files take ten seconds to compile.
fn with_byte_code(command: &mut Command) -> &mut Command {
    command.env_remove("PYTHONDONTWRITEBYTECODE")
}

/// Runs a command, in the root unless it names a folder.
fn run(command: &mut Command) -> Result<(), String> {
    with_byte_code(command).envs(test::seed());
    if command.get_current_dir().is_none() {
        command.current_dir(root());
    }
    let status = command.status().map_err(|e| e.to_string())?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("{command:?} failed ({status})"))
    }
}

/// Runs cargo in the root.
fn cargo(args: &[&str], env: &[(&str, &str)]) -> Result<(), String> {
    let status = with_byte_code(&mut Command::new(env!("CARGO")))
        .args(args)
        .envs(env.iter().copied())
        .envs(test::seed())
        .current_dir(root())
        .status()
        .map_err(|e| format!("cargo: {e}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("`cargo {}` failed", args.join(" ")))
    }
}

/// Runs the file tests in a mode in which they rewrite expectations instead of comparing.
fn bless(filter: Option<&str>) -> Result<(), String> {
    let env = [
        ("INRUSH_BLESS", "1"),
        ("INRUSH_FILTER", filter.unwrap_or("")),
    ];
    cargo(
        &[
            "test",
            "--package",
            "inrush-filetest",
            "--test",
            "files",
            "--",
            "--nocapture",
        ],
        &env,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn python_keeps_byte_code() {
        let mut command = Command::new("python3");
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        let mut envs = with_byte_code(&mut command).get_envs();
        assert!(envs.all(|(name, value)| name != "PYTHONDONTWRITEBYTECODE" || value.is_none()));
    }
}
