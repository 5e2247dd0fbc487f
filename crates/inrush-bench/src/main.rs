//! Measures inrush: models against PyTorch, growth of compile time with graph size, kernels against the memory's speed.
//!
//! Machines are noisy, so what is compared takes turns, and ratios are those of neighbouring turns.

mod bandwidth;
mod clock;
mod growth;
mod overhead;
mod peer;
mod table;
mod zoo;

use clap::Parser;
use inrush_base::{Error, Result};
use std::path::PathBuf;
use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: inrush_alloc::Allocator = inrush_alloc::Allocator;

/// Measures compile time, latency, memory and errors of exported models, and of PyTorch if --peer
/// is given.
#[derive(Parser, Debug)]
#[command(name = "cargo xtask bench", arg_required_else_help = true)]
pub struct Args {
    /// Folder of NAME.pt2 archives, each with NAME.inputs.safetensors and NAME.expect.safetensors; files
    /// NAME.bN.inputs.safetensors are further batch sizes to check
    pub archives: Option<PathBuf>,
    /// Only archives (generated graphs, kernels) whose name contains this
    #[arg(long, value_name = "TEXT")]
    pub only: Option<String>,
    /// A Python with torch: AOTInductor and eager are measured in the same run, in turns
    #[arg(long, value_name = "PYTHON")]
    pub peer: Option<PathBuf>,
    /// Folder that keeps the packages AOTInductor builds, and their compile times, between runs
    #[arg(long, value_name = "DIR")]
    pub keep: Option<PathBuf>,
    /// Seconds to measure each latency for
    #[arg(long, value_name = "S", default_value_t = 2.0, value_parser = inrush_cli::args::seconds)]
    pub seconds: f64,
    /// Cold compiles of each archive; the table shows the median
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub compiles: usize,
    /// Threads [default: all that this process may use]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Compile generated graphs of growing size and print the time per operator
    #[arg(long)]
    pub growth: bool,
    /// Sizes of the generated graphs, in operators
    #[arg(
        long,
        value_name = "N,…",
        value_delimiter = ',',
        default_value = "100,1000,5000,20000"
    )]
    pub sizes: Vec<usize>,
    /// Compare kernels on large tensors with a copy of as many bytes
    #[arg(long)]
    pub bandwidth: bool,
    /// Measure what a call of tiny kernels costs
    #[arg(long)]
    pub overhead: bool,
    /// Also write everything that was measured to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

impl Args {
    /// Returns true if `--only` selects this one.
    fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|o| name.contains(o.as_str()))
    }

    /// Returns the number of threads, at least 1.
    fn threads(&self) -> usize {
        let all = || std::thread::available_parallelism().map_or(1, |n| n.get());
        self.threads.unwrap_or_else(all).max(1)
    }
}

fn main() -> ExitCode {
    match bench(&Args::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(e) => {
            eprintln!("bench: {e}");
            ExitCode::FAILURE
        }
    }
}

/// Runs the parts that were asked for. Returns true if every model ran and was right.
fn bench(a: &Args) -> Result<bool> {
    let mut report = serde_json::Map::new();
    let mut good = true;
    println!("{}", clock::machine(a.threads()));
    if let Some(dir) = &a.archives {
        let zoo = zoo::zoo(dir, a)?;
        good &= zoo.good;
        report.insert("zoo".into(), zoo.report);
    }
    if a.growth {
        report.insert("growth".into(), growth::growth(a)?);
    }
    if a.bandwidth {
        report.insert("bandwidth".into(), bandwidth::bandwidth(a)?);
    }
    if a.overhead {
        report.insert("overhead".into(), overhead::overhead(a)?);
    }
    if let Some(path) = &a.json {
        let text = format!("{:#}\n", serde_json::Value::Object(report));
        std::fs::write(path, text)
            .map_err(|e| Error::machine(format!("cannot write `{}`: {e}", path.display())))?;
    }
    Ok(good)
}
