//! Records what the compiler writes for a corpus of programs: `cargo xtask replay` runs this program at two commits and
//! compares what they recorded.
//!
//! `inrush-replay corpus DIR` writes the programs as text files. `inrush-replay record OUT NAME=DIR..` compiles every program
//! and archive below the folders for every target and writes one file for each. Both commits read the corpus that one of
//! them wrote: a change of the tests or of the generator of drawn graphs is then no difference.

#![forbid(unsafe_code)]

mod corpus;
mod record;
mod targets;

use clap::{Parser, Subcommand};
use inrush_base::{Error, Result};
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Parser)]
#[command(about = "Records what the compiler writes for a corpus of programs")]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Write the programs of the file tests, the examples of all operator rows and drawn graphs as text files.
    Corpus {
        /// The folder to write; whatever it holds is removed.
        dir: PathBuf,
        /// The folder of the file tests.
        #[arg(long)]
        tests: PathBuf,
        /// Number of drawn graphs.
        #[arg(long, default_value_t = 0)]
        drawn: u64,
        /// Seed of the first drawn graph.
        #[arg(long, default_value_t = 1)]
        seed: u64,
    },
    /// Compile every program and archive for every target.
    Record {
        /// The folder that receives one file for each program, and `index`, which lists them.
        out: PathBuf,
        /// Folders of programs, each with the name that its programs get: `tests=target/corpus/tests`.
        #[arg(required = true, value_parser = named)]
        folders: Vec<(String, PathBuf)>,
        /// Only programs whose name contains this.
        #[arg(long, default_value = "")]
        only: String,
    },
}

/// Splits `NAME=DIR`.
fn named(text: &str) -> std::result::Result<(String, PathBuf), String> {
    let (name, dir) = text.split_once('=').ok_or("expected NAME=DIR")?;
    Ok((name.to_string(), PathBuf::from(dir)))
}

fn main() -> ExitCode {
    match run(Args::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}

fn run(command: Command) -> Result<()> {
    match command {
        Command::Corpus {
            dir,
            tests,
            drawn,
            seed,
        } => corpus::write(&dir, &tests, seed..seed + drawn),
        Command::Record { out, folders, only } => record::record(&out, &folders, &only),
    }
}

/// An error about a file or folder.
fn io(path: &std::path::Path, e: std::io::Error) -> Error {
    Error::machine(format!("{}: {e}", path.display()))
}
