//! Measures the overhead of a call and of a kernel, by chains of tiny kernels of growing length.
//!
//! A kernel over 32 elements does next to nothing, so a chain of one measures a call: checks of
//! inputs, allocation of the output, the loop over steps. The slope over longer chains is the cost
//! of a step.

use crate::Args;
use crate::clock::median;
use crate::table::Table;
use inrush_base::{Error, Result};
use inrush_cli::args::TargetArgs;
use inrush_cli::{run, session};
use inrush_compile::Options;
use inrush_runtime::Pool;
use inrush_runtime::cache::Cache;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// Kernels in a chain. The first has to be 1, the base of the slope.
const LENGTHS: &[usize] = &[1, 10, 50, 200];
/// Turns of each length; their median is reported.
const ROUNDS: usize = 5;

/// Returns a chain of calls. Each operator is a kernel of its own, since fusion is off.
fn chain(length: usize) -> String {
    let mut text = String::from("graph chain\n%0 x: f32[4, 8] = input 0\n");
    for k in 1..=length {
        let before = k - 1;
        text += &format!("%{k} v{k}: f32[4, 8] = aten.neg.default(%{before})\n");
    }
    text + &format!("output 0: %{length}\n")
}

/// Measures all lengths. Prints a table and returns the figures.
pub fn overhead(a: &Args) -> Result<Value> {
    let target = TargetArgs {
        target: "native".into(),
        threads: Some(a.threads()),
    };
    let caps = session::caps(&target)?;
    let pool = Arc::new(Pool::new(Some(caps.threads))?);
    let dir =
        tempfile::tempdir().map_err(|e| Error::machine(format!("no temporary folder: {e}")))?;
    let cache = Cache::at(dir.path().into());
    let mut options = Options {
        pieces: 1,
        ..Options::default()
    };
    options.sched.fuse = false;
    let mut table = Table::new(&["tiny kernels", "us a call", "us a kernel more"]);
    let mut report = Vec::new();
    let mut first = None;
    for length in LENGTHS {
        let model = crate::bandwidth::build(&chain(*length), &caps, &cache, &pool, &options)?;
        let inputs = run::random_inputs(&model, &[])?;
        let turn = Duration::from_secs_f64(a.seconds / ROUNDS as f64);
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            times.push(run::measure(&model, &inputs, turn)?.median.as_secs_f64() * 1e6);
        }
        let us = median(&mut times);
        let base = *first.get_or_insert(us);
        let each = (*length > 1).then(|| (us - base) / (*length - 1) as f64);
        table.row(vec![
            length.to_string(),
            format!("{us:.2}"),
            each.map_or(String::new(), |e| format!("{e:.3}")),
        ]);
        report.push(json!({ "kernels": length, "us": us, "us_a_kernel": each }));
    }
    println!();
    table.print();
    Ok(report.into())
}
