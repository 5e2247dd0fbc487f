//! `inrush bench`: compile time and latency of models.
//!
//! Models are measured one after the other, and each is dropped before the next is opened, so that
//! one set of weights is in memory at a time. A model that fails is reported and the others go on.

use crate::args::BenchArgs;
use crate::out::say;
use crate::run::{Counts, Latency, bind_inputs, measure, measure_calls, random_inputs};
use crate::session::Times;
use crate::{device, io, session};
use inrush_base::{Error, Result};
use inrush_host::native;
use inrush_runtime::cache::Cache;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Measures all models.
///
/// # Errors
/// Of the kind of the first failure, after all models were tried.
pub fn bench(a: &BenchArgs) -> Result<ExitCode> {
    if !a.json {
        say!(
            "{:<36} {:>10} {:>10} {:>9} {:>10} {:>10} {:>8}",
            "model",
            "graph ms",
            "build ms",
            "load ms",
            "run ms",
            "best ms",
            "launches"
        )?;
    }
    let mut first_error = None;
    for path in &a.models {
        if let Err(e) = one(path, a) {
            eprintln!("inrush: {e}");
            first_error.get_or_insert(e);
        }
    }
    match first_error {
        Some(e) => Err(Error::new(e.kind(), "some models failed, see above")),
        None => Ok(ExitCode::SUCCESS),
    }
}

/// Measures a model. Inputs are those of the file next to it, else the archive's samples, else
/// random.
fn one(path: &Path, a: &BenchArgs) -> Result<()> {
    if a.device != "cpu" {
        return on_device(path, a);
    }
    if a.capture {
        return Err(crate::args::captured_on_cpu());
    }
    // `--cold`: an empty cache that lives as long as this function.
    let fresh = a
        .cold
        .then(tempfile::tempdir)
        .transpose()
        .map_err(|e| Error::machine(format!("cannot make a temporary folder: {e}")))?;
    let cache = fresh
        .as_ref()
        .map_or_else(Cache::open_default, |d| Cache::at(d.path().to_path_buf()));
    let s = session::open(path, &a.target, &cache, true)?;
    let beside = sibling(path);
    let inputs = if beside.exists() {
        bind_inputs(&s.model, io::read(&beside)?, &beside)?
    } else if let Some(v) = &s.samples {
        v.clone()
    } else {
        let symbols: Vec<i64> = s
            .model
            .program()
            .symbols
            .iter()
            .map(|sym| 2.clamp(sym.lower, sym.upper))
            .collect();
        random_inputs(&s.model, &symbols)?
    };
    let latency = measure(&s.model, &inputs, Duration::from_secs_f64(a.seconds))?;
    let counts = Counts::of(&s.model);
    let measured = Measured {
        path,
        target: s.caps.to_string(),
        times: &s.times,
        cached: s.cached,
        latency,
        kernels: counts.kernels,
        contractions: counts.contractions,
    };
    if !a.json {
        return measured.row();
    }
    let mut line = measured.json();
    line["threads"] = s.caps.threads.into();
    line["peak_bytes"] = s.model.stats(&inputs)?.bytes.into();
    say!("{line}")
}

/// Measures a model on the device that `--device` names.
fn on_device(path: &Path, a: &BenchArgs) -> Result<()> {
    let options = native::Options {
        capture: a.capture,
        ..native::Options::default()
    };
    let on = native::device::parse(&a.device)?;
    let s = device::open(path, on, options, false, true)?;
    let beside = sibling(path);
    let given = beside.exists().then(|| io::read(&beside)).transpose()?;
    let (inputs, _) =
        device::inputs(&s, given).map_err(|e| e.in_file(path.display().to_string()))?;
    let limit = Duration::from_secs_f64(a.seconds);
    let latency = measure_calls(&mut || s.model.run(&inputs), limit)?;
    let (kernels, contractions) = device::count(&s.model);
    let measured = Measured {
        path,
        target: format!("{}-{}", s.target.backend, s.target.arch),
        times: &s.times,
        cached: s.cached,
        latency,
        kernels,
        contractions,
    };
    if !a.json {
        return measured.row();
    }
    let mut line = measured.json();
    line["device"] = a.device.as_str().into();
    say!("{line}")
}

/// The measurements of a model.
struct Measured<'a> {
    path: &'a Path,
    target: String,
    times: &'a Times,
    /// True if the machine code was in the cache; `None` for packages.
    cached: Option<bool>,
    latency: Latency,
    kernels: usize,
    /// Matrix products and convolutions.
    contractions: usize,
}

impl Measured<'_> {
    /// Returns milliseconds of the graph, of its build and of loading.
    fn compile_ms(&self) -> [f64; 3] {
        let t = self.times;
        [t.compile() - t.build(), t.build(), t.load].map(ms)
    }

    /// Returns what `--json` prints of any model.
    fn json(&self) -> serde_json::Value {
        let [graph, build, load] = self.compile_ms();
        serde_json::json!({
            "model": self.path.display().to_string(),
            "target": self.target,
            "graph_ms": graph,
            "build_ms": build,
            "cached": self.cached,
            "load_ms": load,
            "run_ms": ms(self.latency.median),
            "best_ms": ms(self.latency.best),
            "kernels": self.kernels,
            "contractions": self.contractions,
        })
    }

    /// Prints a line of the table.
    fn row(&self) -> Result<()> {
        let [graph, build, load] = self.compile_ms();
        say!(
            "{:<36} {:>10.1} {:>10.1} {:>9.1} {:>10.3} {:>10.3} {:>8}",
            (self.path.file_name()).map_or_else(String::new, |n| n.to_string_lossy().into_owned()),
            graph,
            build,
            load,
            ms(self.latency.median),
            ms(self.latency.best),
            self.kernels + self.contractions
        )
    }
}

fn ms(d: Duration) -> f64 {
    d.as_secs_f64() * 1e3
}

/// Returns `NAME.inputs.safetensors`, next to `NAME.pt2`.
fn sibling(path: &Path) -> PathBuf {
    path.with_extension("inputs.safetensors")
}
