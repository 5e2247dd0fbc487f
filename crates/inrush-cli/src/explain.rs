//! `inrush explain`: a report of what became of a model, as one HTML page.
//!
//! An archive is compiled for the report, so it has times of stages, origins of kernels and refused
//! fusions. A package keeps its program only. The page is written whole or not at all.

mod gpu;
mod html;
mod memory;
mod page;
mod parts;

use crate::args::ExplainArgs;
use crate::out::say;
use crate::session;
use inrush_base::{Error, Result};
use inrush_compile::{Observer, Options};
use inrush_package::{Package, cannot_write, write_whole};
use inrush_program::Program;
use inrush_runtime::cache::Cache;
use inrush_runtime::cc::{Compiler, Target};
use inrush_sched::Plan;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Everything that the page shows.
struct Report {
    /// File name of the model.
    model: String,
    target: String,
    program: Program,
    /// Values of the program's symbols that sizes are shown for.
    symbols: Vec<i64>,
    /// Values of symbols by name, from the archive's example.
    hints: Vec<(String, i64)>,
    /// Of an archive; a package has only its program.
    compilation: Option<Compilation>,
}

/// Data that only compiling gives.
struct Compilation {
    /// Read back from the text of stage fuse: observers see text, not the plan. One for each compiled program, in the order in
    /// which they are compiled.
    plans: Vec<Plan>,
    /// Names and times in order; the build is last if it ran.
    stages: Vec<(&'static str, Duration)>,
    /// The note on the build if it did not run.
    build: Option<String>,
}

/// Times the stages and keeps the texts of the plans.
struct Watch {
    start: Instant,
    stages: Vec<(&'static str, Duration)>,
    plans: Vec<String>,
}

impl Observer for Watch {
    fn begin(&mut self, _stage: &'static str) {
        self.start = Instant::now();
    }
    fn end(&mut self, stage: &'static str, text: &dyn Fn() -> String) {
        let time = self.start.elapsed();
        // The programs of a program in parts go through the stages one after the other.
        match self.stages.iter_mut().find(|s| s.0 == stage) {
            Some((_, sum)) => *sum += time,
            None => self.stages.push((stage, time)),
        }
        if stage == "fuse" {
            self.plans.push(text());
        }
    }
}

/// Writes the page.
pub fn explain(a: &ExplainArgs) -> Result<ExitCode> {
    let shown = a.model.display().to_string();
    if !a.model.exists() {
        return Err(Error::input("no such file").in_file(shown));
    }
    let page = if Package::is_package(&a.model) {
        page_of_package(&a.model)?
    } else {
        page::page(&of_archive(a).map_err(|e| e.in_file(shown.clone()))?)
    };
    write_whole(&a.output, |f| {
        f.write_all(page.as_bytes())
            .map_err(|e| cannot_write(&a.output, &e))
    })?;
    let written = a.output.display();
    if a.json {
        say!(
            "{}",
            serde_json::json!({"model": shown, "report": written.to_string()})
        )?;
    } else {
        say!("{written}")?;
    }
    Ok(ExitCode::SUCCESS)
}

fn file_name(path: &Path) -> String {
    path.file_name()
        .map_or_else(String::new, |n| n.to_string_lossy().into_owned())
}

/// Returns the page of a package: its first program for a CPU, or all of its programs where each is for a GPU.
fn page_of_package(path: &Path) -> Result<String> {
    let package = Package::open(path)?;
    let Some(cpu) = package.cpus().next() else {
        return Ok(gpu::page(&file_name(path), &package));
    };
    Ok(page::page(&Report {
        model: file_name(path),
        target: package.target_names(),
        symbols: symbols(&cpu.program, &[]),
        hints: Vec::new(),
        program: cpu.program.clone(),
        compilation: None,
    }))
}

/// Compiles an archive for its report.
fn of_archive(a: &ExplainArgs) -> Result<Report> {
    let caps = session::caps(&a.target)?;
    let start = Instant::now();
    let mut archive = session::open_archive(&a.model)?;
    let mut watch = Watch {
        start,
        stages: vec![("import", start.elapsed())],
        plans: Vec::new(),
    };
    let options = Options {
        pieces: caps.threads.min(8),
        threads: caps.threads.min(8),
        verify: session::verify(),
        ..Options::default()
    };
    let graph = std::mem::take(&mut archive.graph);
    let compiled = inrush_compile::compile(graph, &caps, &options, &mut watch)?;
    // A report of what was compiled is of use without a C compiler as well.
    let target = Target {
        isa: caps.isa,
        vector_math: caps.vector_math,
    };
    let start = Instant::now();
    let build =
        Compiler::find().and_then(|c| c.build(&compiled.pieces, &target, &Cache::open_default()));
    let build = match build {
        Ok(b) => {
            watch.stages.push(("build", start.elapsed()));
            b.cached.then(|| "the kernels were in the cache".into())
        }
        Err(e) => Some(e.to_string()),
    };
    Ok(Report {
        model: file_name(&a.model),
        target: caps.to_string(),
        symbols: symbols(&compiled.program, &archive.hints()),
        hints: archive.hints(),
        program: compiled.program,
        compilation: Some(Compilation {
            plans: (watch.plans.iter())
                .map(|text| inrush_sched::text::parse(text))
                .collect::<Result<_>>()?,
            stages: watch.stages,
            build,
        }),
    })
}

/// Returns the values of symbols that the page shows sizes for: the archive's example, else 2,
/// moved into the range.
fn symbols(program: &Program, hints: &[(String, i64)]) -> Vec<i64> {
    let value = |s: &inrush_program::Symbol| {
        let hint = hints.iter().find(|h| h.0 == s.name).map_or(2, |h| h.1);
        hint.max(s.lower).min(s.upper)
    };
    program.symbols.iter().map(value).collect()
}
