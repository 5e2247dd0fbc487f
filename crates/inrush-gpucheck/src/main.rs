//! `inrush-gpucheck OUT TARGET [tests DIR [FILTER]] [cases DIR [FILTER]] [variants] [together] [bench FILE [FILTER]]
//! [archive FILE]...`
//!
//! `pointers KIND` (`plain`, `block`, `descriptor`, `map`): how what follows addresses strided tiles.
//! `variants`: what follows is written for other tiles, too, a step further each time. `together`: and with joined
//! launches where that may be.

use inrush_base::{Error, Result};
use inrush_gpucheck::{Writer, archive, benchmarks, file_tests, operator_cases, target};
use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<()> {
    let mut words = std::env::args().skip(1).peekable();
    let usage = || {
        Error::input("usage: OUT TARGET [tests DIR FILTER] [cases DIR FILTER] [archive FILE]...")
    };
    let out = words.next().ok_or_else(usage)?;
    let (_, caps) = target(&words.next().ok_or_else(usage)?)?;
    let mut writer = Writer::new(Path::new(&out), &caps)?;
    while let Some(word) = words.next() {
        match word.as_str() {
            "variants" => writer.variants += 1,
            "together" => writer.together = true,
            _ => {}
        }
        if matches!(word.as_str(), "variants" | "together") {
            continue;
        }
        let path = words.next().ok_or_else(usage)?;
        if word == "pointers" {
            writer.pointers = path.parse()?;
            continue;
        }
        let path = Path::new(&path);
        // A filter is optional: a keyword in its place begins the next source.
        let mut filter = || match words.peek().map(String::as_str) {
            None
            | Some(
                "tests" | "cases" | "archive" | "bench" | "variants" | "together" | "pointers",
            ) => String::new(),
            Some(_) => words.next().unwrap_or_default(),
        };
        match word.as_str() {
            "tests" => file_tests(path, &filter(), &mut writer)?,
            "bench" => benchmarks(path, &filter(), &mut writer)?,
            "cases" => operator_cases(path, &filter(), &mut writer)?,
            "archive" => archive(path, &mut writer).map_err(|e| e.context(path.display()))?,
            _ => return Err(usage()),
        }
    }
    let (programs, kernels) = writer.finish()?;
    println!("{programs} programs, {kernels} kernels");
    Ok(())
}
