//! Measures kernels on the device, over memory of their own, and remembers what won.
//!
//! Integers in that memory are zeros, which are positions of everything; numbers are zeros too, so what takes longer for some
//! values than for others is not told apart.

use super::build;
use super::device::On;
use crate::recipe::Device;
use inrush_base::Result;
use inrush_compile::{Candidate, Tile, TunedArgument, Tuner};
use inrush_cuda::driver::{Arguments, Driver, Kernel, Memory, Stream};
use inrush_program::{GpuKernel, GpuTarget};
use inrush_runtime::cache::Cache;
use inrush_runtime::triton::Pool;
use pyo3::prelude::*;
use serde::{Deserialize, Serialize};
use std::io::Write;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Rounds in which all candidates take turns; the best time of each counts.
const ROUNDS: usize = 5;
/// Length of one measurement.
const SPAN: f64 = 300e-6;
const LAUNCHES: usize = 50;
/// Longest search for one kernel, and for one compile. What is not reached keeps the rules' choice.
const PATIENCE: Duration = Duration::from_secs(60);
const TOTAL: Duration = Duration::from_secs(600);

/// A winner in a file.
#[derive(Serialize, Deserialize)]
struct Kept {
    x: i64,
    y: i64,
    r: i64,
    streamed: bool,
    stages: u32,
    early: bool,
    warps: u32,
}

pub struct Bench {
    device: Device,
    target: GpuTarget,
    pool: &'static Pool,
    /// Name of the device: winners are its own.
    name: String,
    folder: PathBuf,
    memory: Vec<Memory>,
    /// For reports.
    pub done: Vec<String>,
    began: Instant,
    /// The kernel that is being tuned, and since when.
    current: Option<(String, Instant)>,
}

impl Bench {
    pub fn new(py: Python<'_>, device: Device, target: GpuTarget) -> PyResult<Bench> {
        let cuda = py.import("torch")?.getattr("cuda")?;
        let name = cuda
            .call_method1("get_device_name", (device.index,))?
            .extract()?;
        Ok(Bench {
            device,
            target,
            pool: build::pool(py)?,
            name,
            folder: Cache::default_dir().join("tuned"),
            memory: Vec::new(),
            done: Vec::new(),
            began: Instant::now(),
            current: None,
        })
    }

    /// The content address of a search: code, sizes, device, release of Triton.
    fn path(&self, rule: &Candidate) -> PathBuf {
        let kernel = GpuKernel {
            symbol: String::new(),
            ..rule.kernel.clone()
        };
        let sizes: Vec<i64> = (rule.arguments.iter())
            .map(|a| match a {
                TunedArgument::Size(v) => *v,
                TunedArgument::Buffer { bytes, .. } => *bytes,
            })
            .collect();
        let all = (&kernel, sizes, rule.programs, &self.name, &self.target);
        let text = serde_json::to_string(&all).unwrap_or_default();
        let name = format!("{}.json", self.pool.address(&text));
        self.folder.join(name)
    }

    fn measure(&mut self, candidates: &[Candidate]) -> Result<Vec<Option<f64>>> {
        let kernels: Vec<&GpuKernel> = candidates.iter().map(|c| &c.kernel).collect();
        let (built, _) = self.pool.build_all(&kernels, &self.target);
        let on = Python::attach(|py| On::device(py, self.device)).map_err(|e| {
            inrush_base::Error::machine(format!("the device cannot be used for tuning: {e}"))
        })?;
        let driver = Driver::get()?;
        let mut runs: Vec<Option<(Kernel, Arguments, u32)>> = Vec::new();
        for (c, b) in candidates.iter().zip(built) {
            // What Triton refuses at this size is no candidate.
            let loaded = b.and_then(|b| {
                let code = std::fs::read(&b.path)
                    .map_err(|e| inrush_base::Error::machine(e.to_string()))?;
                let threads = b.warps * self.target.warp;
                driver.load(&code, &b.symbol, threads, b.shared)
            });
            let usable = loaded.ok().filter(|k| {
                let spilled = k.resources().map_or(1, |r| r.1);
                spilled == 0
            });
            let programs = u32::try_from(c.programs).ok().filter(|n| *n > 0);
            runs.push(match (usable, programs) {
                (Some(k), Some(n)) => Some((k, self.arguments(&driver, c)?, n)),
                _ => None,
            });
        }
        let mut best: Vec<Option<f64>> = vec![None; runs.len()];
        let mut counts = vec![1usize; runs.len()];
        for round in 0..=ROUNDS {
            for (k, run) in runs.iter().enumerate() {
                let Some((kernel, arguments, programs)) = run else {
                    continue;
                };
                let took = time(&driver, on.stream, kernel, arguments, *programs, counts[k])?;
                // The first round warms up, and tells how many launches take long enough.
                if round == 0 {
                    counts[k] = ((SPAN / took.max(1e-7)) as usize).clamp(1, LAUNCHES);
                } else {
                    best[k] = Some(best[k].map_or(took, |b: f64| b.min(took)));
                }
            }
        }
        Ok(best)
    }

    /// Packed arguments over memory that all candidates share.
    fn arguments(&mut self, driver: &Driver, c: &Candidate) -> Result<Arguments> {
        let mut out = Arguments::default();
        let mut next = 0;
        for (a, (_, ty)) in c.arguments.iter().zip(&c.kernel.signature) {
            match a {
                TunedArgument::Buffer { bytes, .. } => {
                    let bytes = (*bytes).max(16) as usize;
                    if self.memory.get(next).is_none_or(|m| m.bytes() < bytes) {
                        let mut made = driver.allocate(bytes)?;
                        made.clear()?;
                        match self.memory.get_mut(next) {
                            Some(m) => *m = made,
                            None => self.memory.push(made),
                        }
                    }
                    out.pointer(self.memory[next].address());
                    next += 1;
                }
                TunedArgument::Size(v) if ty == "i32" => {
                    out.i32(i32::try_from(*v).unwrap_or(i32::MAX));
                }
                TunedArgument::Size(v) => {
                    out.i64(*v);
                }
            }
        }
        out.finish(0);
        Ok(out)
    }
}

/// Seconds of one launch, of `count` in a row.
fn time(
    driver: &Driver,
    stream: Stream,
    kernel: &Kernel,
    arguments: &Arguments,
    programs: u32,
    count: usize,
) -> Result<f64> {
    let (start, end) = (driver.event()?, driver.event()?);
    let mut bytes = arguments.bytes().to_vec();
    start.record(stream)?;
    for _ in 0..count {
        // SAFETY: the arguments are packed by the kernel's signature, over memory that is kept and as long as its sizes say.
        unsafe { kernel.launch([programs, 1, 1], &mut bytes, stream)? };
    }
    end.record(stream)?;
    Ok(end.since(&start)? as f64 * 1e-3 / count as f64)
}

impl Tuner for Bench {
    fn known(&mut self, rule: &Candidate) -> Option<Tile> {
        // Addresses into the memory of the last kernel are over.
        self.memory.clear();
        self.current = Some((rule.kernel.function.clone(), Instant::now()));
        let kept: Kept = serde_json::from_slice(&std::fs::read(self.path(rule)).ok()?).ok()?;
        let tile = Tile {
            x: kept.x,
            y: kept.y,
            r: kept.r,
            streamed: kept.streamed,
            stages: kept.stages,
            early: kept.early,
            warps: kept.warps,
        };
        self.done
            .push(format!("{}: {tile}, from the cache", rule.kernel.function));
        Some(tile)
    }

    fn time(&mut self, candidates: &[Candidate]) -> Vec<Option<f64>> {
        let none = vec![None; candidates.len()];
        let late = (self.current.as_ref()).is_some_and(|c| c.1.elapsed() > PATIENCE);
        if late || self.began.elapsed() > TOTAL {
            return none;
        }
        self.measure(candidates).unwrap_or_else(|e| {
            let name = candidates
                .first()
                .map_or("", |c| c.kernel.function.as_str());
            self.done.push(format!("{name}: not measured: {e}"));
            none
        })
    }

    fn keep(&mut self, rule: &Candidate, winner: Tile, before: f64, after: f64) {
        self.done.push(format!(
            "{}: {} {:.2} us, {winner} {:.2} us",
            rule.kernel.function,
            rule.tile,
            before * 1e6,
            after * 1e6
        ));
        let kept = Kept {
            x: winner.x,
            y: winner.y,
            r: winner.r,
            streamed: winner.streamed,
            stages: winner.stages,
            early: winner.early,
            warps: winner.warps,
        };
        // A winner that cannot be written down is measured again next time.
        let write = || -> std::io::Result<()> {
            std::fs::create_dir_all(&self.folder)?;
            let mut file = tempfile::NamedTempFile::new_in(&self.folder)?;
            file.write_all(&serde_json::to_vec(&kept)?)?;
            file.persist(self.path(rule)).map_err(|e| e.error)?;
            Ok(())
        };
        _ = write();
    }
}
