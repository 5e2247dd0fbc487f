//! The `inrush` command.

use clap::{CommandFactory, Parser};
use inrush_base::Error;
use inrush_cli::args::{Cli, Command};
use inrush_runtime::cache::{self, CachePlace};
use inrush_runtime::remote::Remote;
use std::process::ExitCode;
use std::time::Duration;

/// Longest wait at the end for what goes on in the background: storing in the second tier of the cache, bounding its folder.
const FINISH: Duration = Duration::from_secs(5);

#[global_allocator]
static ALLOCATOR: inrush_alloc::Allocator = inrush_alloc::Allocator;

fn main() -> ExitCode {
    // clap prints its own message and leaves with 2 on wrong usage.
    let cli = Cli::parse();
    // Where no thread is to be had, memory comes when it is touched.
    // Pages are touched in parallel with the import.
    let _ = std::thread::Builder::new().spawn(inrush_alloc::warm);
    inrush_remote::install();
    let done = dispatch(cli);
    cache::finish(FINISH);
    let notices = [CachePlace::last_notice(), Remote::last_notice()];
    for notice in notices.into_iter().flatten() {
        eprintln!("inrush: {notice}");
    }
    match done {
        Ok(code) => code,
        Err(e) => {
            eprintln!("inrush: {e}");
            ExitCode::from(e.kind().exit_code())
        }
    }
}

/// Runs the command.
fn dispatch(cli: Cli) -> Result<ExitCode, Error> {
    if let Some(operators) = cli.command.operators() {
        inrush_cli::operators::take(operators)?;
    }
    match cli.command {
        Command::Run(a) => inrush_cli::run::run(&a),
        Command::Compile(a) => inrush_cli::package::compile(&a),
        Command::Bench(a) => inrush_cli::bench::bench(&a),
        Command::Explain(a) => inrush_cli::explain::explain(&a),
        Command::Inspect(a) => inrush_cli::inspect::inspect(&a),
        Command::Doctor(a) => inrush_cli::doctor::doctor(&a),
        Command::Cache(a) => inrush_cli::doctor::cache(&a),
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "inrush", &mut script);
            inrush_cli::out::bytes(&script)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}
