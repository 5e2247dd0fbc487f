//! Measures memory-bound kernels on tensors larger than the caches, relative to a copy of as many
//! bytes by as many threads.
//!
//! A perfect kernel of this kind takes as long as a copy of the same bytes: it reads each input
//! once, writes each output once, and hides all arithmetic. The share of the copy's speed is
//! therefore the figure, and it carries over between machines better than GB/s. The copy and the
//! kernel take turns, so that both see the same disturbances.

use crate::Args;
use crate::clock::median;
use crate::table::Table;
use inrush_base::{Caps, Error, Result};
use inrush_cli::args::TargetArgs;
use inrush_cli::{run, session};
use inrush_compile::Options;
use inrush_runtime::cache::Cache;
use inrush_runtime::cc::{Compiler, Target};
use inrush_runtime::{MemoryWeights, Model, Parts, Pool, Storage};
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Rows and columns: a tensor of `f32` has 64 MiB, more than caches hold.
const N: usize = 4096;
/// Turns that a kernel and the copy take.
const ROUNDS: usize = 5;

struct Case {
    name: &'static str,
    /// Lines after the inputs; the last one's value is the output.
    inputs: &'static [&'static str],
    body: &'static str,
    /// Elements that must be read or written.
    elements: usize,
}

const SQUARE: &str = "f32[4096, 4096]";

const CASES: &[Case] = &[
    Case {
        name: "relu(x * y + x)",
        inputs: &[SQUARE, SQUARE],
        body: "%2 a: f32[4096, 4096] = aten.mul.Tensor(%0, %1)
%3 b: f32[4096, 4096] = aten.add.Tensor(%2, %0, 1)
%4 c: f32[4096, 4096] = aten.relu.default(%3)",
        elements: 3 * N * N,
    },
    Case {
        name: "gelu",
        inputs: &[SQUARE],
        body: "%1 a: f32[4096, 4096] = aten.gelu.default(%0, \"none\")",
        elements: 2 * N * N,
    },
    Case {
        name: "softmax",
        inputs: &[SQUARE],
        body: "%1 a: f32[4096, 4096] = aten.softmax.int(%0, -1, none)",
        elements: 2 * N * N,
    },
    Case {
        name: "layer_norm, gelu",
        inputs: &[SQUARE, "f32[4096]", "f32[4096]"],
        body: "%3 a: f32[4096, 4096] = aten.layer_norm.default(%0, [4096], %1, %2, 1e-5, false)
%4 b: f32[4096, 4096] = aten.gelu.default(%3, \"none\")",
        elements: 2 * N * N + 2 * N,
    },
    Case {
        name: "transpose",
        inputs: &[SQUARE],
        body: "%1 a: f32[4096, 4096] strides [1, 4096] = aten.permute.default(%0, [1, 0])
%2 b: f32[4096, 4096] = aten.clone.default(%1, format.contiguous)",
        elements: 2 * N * N,
    },
    Case {
        name: "row sum",
        inputs: &[SQUARE],
        body: "%1 a: f32[4096] = aten.sum.dim_IntList(%0, [1], false, none)",
        elements: N * N + N,
    },
    Case {
        name: "column sum",
        inputs: &[SQUARE],
        body: "%1 a: f32[4096] = aten.sum.dim_IntList(%0, [0], false, none)",
        elements: N * N + N,
    },
];

impl Case {
    /// Returns the case as a graph in text form.
    fn text(&self) -> String {
        let mut text = String::from("graph case\n");
        for (i, ty) in self.inputs.iter().enumerate() {
            text += &format!("%{i} x{i}: {ty} = input {i}\n");
        }
        let last = self.inputs.len() + self.body.lines().count() - 1;
        text + self.body + &format!("\noutput 0: %{last}\n")
    }
}

/// Measures all cases that `--only` selects. Prints a table and returns the figures.
pub fn bandwidth(a: &Args) -> Result<Value> {
    let target = TargetArgs {
        target: "native".into(),
        threads: Some(a.threads()),
    };
    let caps = session::caps(&target)?;
    let pool = Arc::new(Pool::new(Some(caps.threads))?);
    let dir =
        tempfile::tempdir().map_err(|e| Error::machine(format!("no temporary folder: {e}")))?;
    let cache = Cache::at(dir.path().into());
    let mut table = Table::new(&[
        "4096 x 4096 float32",
        "ms",
        "GB/s",
        "copy GB/s",
        "share %",
        "best share %",
    ]);
    let mut report = Vec::new();
    for case in CASES.iter().filter(|c| a.wants(c.name)) {
        eprintln!("measuring {}", case.name);
        let options = Options {
            pieces: 1,
            ..Options::default()
        };
        let model = build(&case.text(), &caps, &cache, &pool, &options)
            .map_err(|e| e.context(case.name))?;
        let inputs = run::random_inputs(&model, &[])?;
        // A copy of n elements moves 2 n: it reads and writes each.
        let mut copy = Copy::new(case.elements / 2, pool.clone())?;
        let turn = Duration::from_secs_f64(a.seconds / ROUNDS as f64);
        let [mut own, mut other, mut share] = [const { Vec::new() }; 3];
        let [mut best_own, mut best_copy] = [f64::INFINITY; 2];
        for _ in 0..ROUNDS {
            let l = run::measure(&model, &inputs, turn)?;
            let c = copy.measure(turn)?;
            let seconds = l.median.as_secs_f64();
            best_own = best_own.min(l.best.as_secs_f64());
            best_copy = best_copy.min(c.1);
            own.push(seconds);
            other.push(c.0);
            share.push(c.0 / seconds);
        }
        let bytes = (4 * case.elements) as f64;
        let (own, other) = (median(&mut own), median(&mut other));
        // Medians of the turns, and the best against the best: noise only ever adds time.
        let (share, best) = (median(&mut share), best_copy / best_own);
        table.row(vec![
            case.name.into(),
            format!("{:.2}", own * 1e3),
            format!("{:.1}", bytes / own / 1e9),
            format!("{:.1}", bytes / other / 1e9),
            format!("{:.0}", 100.0 * share),
            format!("{:.0}", 100.0 * best),
        ]);
        report.push(json!({
            "kernel": case.name, "ms": own * 1e3, "bytes": bytes,
            "copy_ms": other * 1e3, "share": share, "best_share": best,
        }));
    }
    println!();
    table.print();
    Ok(report.into())
}

/// Compiles a graph in text form to a model that can run.
pub(crate) fn build(
    text: &str,
    caps: &Caps,
    cache: &Cache,
    pool: &Arc<Pool>,
    options: &Options,
) -> Result<Model> {
    let graph = inrush_graph::text::parse(text)?;
    let compiled = inrush_compile::compile(graph, caps, options, &mut ())?;
    let target = Target {
        isa: caps.isa,
        vector_math: caps.vector_math,
    };
    let built = Compiler::find()?.build(&compiled.pieces, &target, cache)?;
    Model::from_parts(Parts {
        program: compiled.program,
        object: &built.path,
        weights: Box::new(MemoryWeights::default()),
        pool: pool.clone(),
    })
}

/// A copy of so many elements, spread over the threads that run the kernels. Both blocks are of the
/// kind of memory that models get.
struct Copy {
    from: Storage,
    to: Storage,
    pool: Arc<Pool>,
}

impl Copy {
    fn new(elements: usize, pool: Arc<Pool>) -> Result<Copy> {
        Ok(Copy {
            from: Storage::zeroed(4 * elements)?,
            to: Storage::zeroed(4 * elements)?,
            pool,
        })
    }

    fn run(&mut self) -> Result<()> {
        let to = To(self.to.as_ptr());
        let grain = self.from.len().div_ceil(self.pool.threads()).max(1);
        self.pool.parallel_for(self.from.len(), grain, &|range| {
            let part = &self.from.bytes()[range.clone()];
            // SAFETY: `to` has as many bytes as `from`, and the ranges of a loop are disjoint.
            unsafe {
                std::slice::from_raw_parts_mut(to.at(range.start), part.len()).copy_from_slice(part)
            }
        })?;
        std::hint::black_box(&mut self.to);
        Ok(())
    }

    /// Median and best seconds of a copy over so long, after a first one.
    fn measure(&mut self, limit: Duration) -> Result<(f64, f64)> {
        self.run()?;
        let mut times = Vec::new();
        let end = Instant::now() + limit;
        while times.len() < 3 || Instant::now() < end {
            let start = Instant::now();
            self.run()?;
            times.push(start.elapsed().as_secs_f64());
        }
        Ok((median(&mut times), times[0]))
    }
}

/// Where a copy goes.
struct To(*mut u8);
// SAFETY: each thread writes a range of its own.
unsafe impl Sync for To {}

impl To {
    fn at(&self, k: usize) -> *mut u8 {
        self.0.wrapping_add(k)
    }
}
