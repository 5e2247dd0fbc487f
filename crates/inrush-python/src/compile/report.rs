//! The report of a compilation: times and texts of stages, kernels, called operators.

use crate::fx;
use inrush_base::Error;
use inrush_compile::{Observer, Sequence, Tuner, What};
use inrush_host::gpu::tune::Bench;
use rustc_hash::FxHashMap;
use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// The report of a compilation.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Time by stage, in the order of their first run; several segments of one stage are added up.
    pub stages: Vec<(String, Duration)>,
    /// Kernels by what is fused in them.
    pub kernels: Vec<String>,
    /// Matrix products and convolutions.
    pub contractions: usize,
    /// Compiled parts of the graph.
    pub segments: usize,
    /// Operators that a vendor's library does.
    #[serde(default)]
    pub libraries: Vec<String>,
    /// Kernels whose tiles were measured: what the rules chose, what won, with microseconds.
    #[serde(default)]
    pub tuned: Vec<String>,
    /// True if the first call measures tiles. Later compilations use the fastest.
    #[serde(default)]
    pub untuned: bool,
    /// Called operators with the reason and the Python line.
    pub calls: Vec<(String, String, Option<String>)>,
    /// True if the machine code came from the cache; `None` when there is none.
    pub cached: Option<bool>,
    /// Fusions that were refused.
    pub refusals: Vec<String>,
}

/// Times the stages, and keeps their text where it is wanted.
pub struct Watch {
    /// Begin of the stage that runs.
    start: Instant,
    pub report: Report,
    /// Text by stage; `None` unless a trace was asked for, since printing takes time.
    pub trace: Option<FxHashMap<&'static str, String>>,
    /// Measures tiles; moved out when the stages are done.
    pub tuner: Option<Bench>,
}

impl Watch {
    /// Starts the clock; `trace` keeps the text of the stages.
    pub fn new(trace: bool) -> Watch {
        Watch {
            start: Instant::now(),
            report: Report::default(),
            trace: trace.then(FxHashMap::default),
            tuner: None,
        }
    }

    /// Adds to the time of a stage.
    pub fn add(&mut self, stage: &'static str, took: Duration) {
        let stages = &mut self.report.stages;
        match stages.iter_mut().find(|s| s.0 == stage) {
            Some(s) => s.1 += took,
            None => stages.push((stage.to_string(), took)),
        }
    }
}

impl Observer for Watch {
    fn begin(&mut self, _stage: &'static str) {
        self.start = Instant::now();
    }
    fn end(&mut self, stage: &'static str, text: &dyn Fn() -> String) {
        self.add(stage, self.start.elapsed());
        if let Some(t) = &mut self.trace {
            let all = t.entry(stage).or_default();
            all.push_str(&text());
            all.push('\n');
        }
    }
    fn tuner(&mut self) -> Option<&mut dyn Tuner> {
        self.tuner.as_mut().map(|t| t as &mut dyn Tuner)
    }
}

/// Appends a kernel's title to a joined launch's line in the report, counting repetitions:
/// `mul_add, sum` and `sum` give `mul_add, sum * 2`.
fn append_title(kernels: &mut String, title: &str) {
    let from = kernels.rfind(", ").map_or(0, |at| at + 2);
    let (last, times) = match kernels[from..].split_once(" * ") {
        Some((last, n)) => (last, n.parse().unwrap_or(1)),
        None => (&kernels[from..], 1u32),
    };
    if last == title {
        let more = format!("{title} * {}", times + 1);
        kernels.truncate(from);
        *kernels += &more;
    } else {
        *kernels += ", ";
        *kernels += title;
    }
}

/// Fills in what the report says of the program.
pub fn describe(report: &mut Report, sequence: &Sequence) {
    let graph = &sequence.graph;
    for part in &sequence.parts {
        match &part.what {
            What::Segment(s) => {
                report.segments += 1;
                for step in &s.program.steps {
                    match step {
                        inrush_program::Step::Launch(l) => {
                            let title = &s.program.kernels[l.kernel as usize].title;
                            match report.kernels.last_mut() {
                                Some(k) if l.beside => append_title(k, title),
                                _ => report.kernels.push(title.clone()),
                            }
                        }
                        inrush_program::Step::Contract(_) => report.contractions += 1,
                        // Inside PyTorch its operators are called instead; see inrush-compile.
                        inrush_program::Step::Library(_) => {}
                    }
                }
            }
            What::Call(c) if c.library => report.libraries.push(c.op.clone()),
            What::Call(c) if c.reason == fx::kernels::NATIVE => report.kernels.push(c.op.clone()),
            What::Call(c) => {
                let node = &graph.nodes[c.node.index()];
                let line = graph.line_of(node).map(str::to_string);
                report.calls.push((c.op.clone(), c.reason.clone(), line));
            }
            What::View(_) => {}
        }
    }
}

/// Writes one file for each stage, `00-import.txt` and so on. Numbers are those of the list of
/// stages, so that files sort in the order of the pipeline; stages that did not run leave gaps.
pub fn write_trace(
    dir: &std::path::Path,
    texts: &FxHashMap<&'static str, String>,
    gpu: bool,
) -> Result<(), Error> {
    let fail = |e: std::io::Error| {
        Error::machine(format!(
            "cannot write the trace to `{}`: {e}",
            dir.display()
        ))
    };
    std::fs::create_dir_all(dir).map_err(fail)?;
    for (k, stage) in inrush_compile::STAGES.iter().enumerate() {
        if let Some(text) = texts.get(stage) {
            let ending = match *stage {
                "emit" if gpu => "py",
                "emit" => "c",
                _ => "txt",
            };
            std::fs::write(dir.join(format!("{k:02}-{stage}.{ending}")), text).map_err(fail)?;
        }
    }
    Ok(())
}
