//! `inrush inspect`: a model at any stage.
//!
//! The model is compiled with an observer that keeps the text of one stage. The pipeline runs to
//! its end even for an early stage; an error in a later one is not shown then.

use crate::args::{InspectArgs, TargetArgs};
use crate::out::say;
use crate::session;
use inrush_base::{Caps, Error, Result};
use inrush_compile::{Observer, Options, STAGES};
use inrush_package::Package;
use std::process::ExitCode;

/// Keeps the texts of one stage.
struct Keep<'a> {
    /// The stage that the user asked for.
    stage: &'a str,
    /// Its texts: one for each program of a program in parts.
    texts: Vec<String>,
}

impl Observer for Keep<'_> {
    fn end(&mut self, stage: &'static str, text: &dyn Fn() -> String) {
        if stage == self.stage {
            self.texts.push(text());
        }
    }
}

/// Returns the capabilities of the GPU or CPU level of this name.
fn caps(a: &InspectArgs) -> Result<Caps> {
    if let Some(caps) = inrush_devices::model(&a.target) {
        return Ok(caps);
    }
    let target = TargetArgs {
        target: a.target.clone(),
        threads: a.threads,
    };
    session::caps(&target).map_err(|e| {
        Error::input(format!(
            "{}, or a GPU: {}",
            e.message(),
            inrush_devices::models().collect::<Vec<_>>().join(", ")
        ))
    })
}

/// Prints a stage of a model.
pub fn inspect(a: &InspectArgs) -> Result<ExitCode> {
    let name = a.model.display().to_string();
    let stage = a.stage.as_str();
    if !STAGES.contains(&stage) && stage != "summary" && stage != "refusals" {
        return Err(Error::input(format!(
            "unknown stage `{stage}`: {}, refusals or summary",
            STAGES.join(", ")
        )));
    }
    let caps = caps(a)?;
    if Package::is_package(&a.model) {
        let p = Package::open(&a.model)?;
        if stage != "wrap" && stage != "summary" {
            return Err(Error::input(format!(
                "a compiled package holds no stage `{stage}`, only `wrap`"
            ))
            .in_file(name));
        }
        return show(a, &crate::targets::text(&p, stage));
    }
    let archive = session::open_archive(&a.model)?;
    if stage == "summary" {
        return show(a, &archive.summary());
    }
    if stage == "import" {
        return show(a, &archive.graph.print());
    }
    let mut keep = Keep {
        stage,
        texts: Vec::new(),
    };
    let compiled = inrush_compile::compile(
        archive.graph,
        &caps,
        &Options {
            // One translation unit, so that the printed source is whole.
            pieces: 1,
            verify: session::verify(),
            ..Options::default()
        },
        &mut keep,
    )
    .map_err(|e| e.in_file(name));
    // A stage that was reached is shown even when a later one failed.
    match compiled {
        // The whole program: what was seen is each of its parts.
        Ok(c) if stage == "wrap" => show(a, &c.program.print()),
        Ok(c) if stage == "refusals" => show(a, &c.refusals.lines().join("\n")),
        Err(e) if keep.texts.is_empty() => Err(e),
        _ => show(a, &keep.texts.join("\n")),
    }
}

/// Prints a text of the model, as it is or inside a line of JSON.
fn show(a: &InspectArgs, text: &str) -> Result<ExitCode> {
    if a.json {
        say!(
            "{}",
            serde_json::json!({
                "model": a.model.display().to_string(),
                "stage": a.stage,
                "text": text,
            })
        )?;
    } else {
        say!("{text}")?;
    }
    Ok(ExitCode::SUCCESS)
}
