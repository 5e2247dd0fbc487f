//! Measures kernels on the device and remembers what won.
//!
//! While a graph is compiled that is done over memory of the kernels' own; at a first call over the call's memory, with what is
//! in it when the kernel's turn comes ([`AtCall`]).
//!
//! Integers in memory of their own are zeros, which are positions of everything; numbers are zeros too, so what takes longer for some
//! values than for others is not told apart. Kernels whose loops depend on values are measured at a first call only.
//!
//! Caches are cold: between two launches other memory is written, as other kernels of a model do.

mod products;

pub use products::Call;

use super::TuneAtCall;
use super::arguments::{pack, places};
use super::driver::{Driver, Kernel, Memory, Stream};
use crate::devices;
use crate::program::Device;
use inrush_base::{Error, Result};
use inrush_compile::{Candidate, Retile, Tile, TunedBuffer, Tuner};
use inrush_program::{BinaryInfo, GpuKernel, GpuTarget};
use inrush_runtime::cache::Cache;
use inrush_runtime::triton::Pool;
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Rounds in which all candidates take turns; the best time of each counts.
const ROUNDS: usize = 5;
/// Rounds where other work of the process may come in between.
const ROUNDS_IN_BACKGROUND: usize = 15;
/// The share of a device's free memory that measuring in the background may take.
const SHARE: u64 = 4;
/// Length of one measurement, without what is done in between.
const SPAN: f64 = 300e-6;
const LAUNCHES: usize = 10;
/// Longest search for one kernel, and for one compile. What is not reached keeps the rules' choice.
const PATIENCE: Duration = Duration::from_secs(60);
const TOTAL: Duration = Duration::from_secs(600);

/// A winner in a file.
#[derive(Serialize, Deserialize)]
struct Winner {
    x: i64,
    y: i64,
    r: i64,
    streamed: bool,
    stages: u32,
    early: bool,
    warps: u32,
    pointers: String,
}

/// A device made current: its stream, and what makes it so while it lives.
pub struct Current {
    pub stream: Stream,
    /// Bytes of memory that are free; `None` where that is not asked.
    pub free: Option<u64>,
    pub guard: Box<dyn Any>,
}

/// Set when the process ends: measuring in the background stops.
static STOPS: AtomicBool = AtomicBool::new(false);

/// Ends all measuring in the background, after the build or the kernel that is under way.
pub fn stop_background() {
    STOPS.store(true, Ordering::Relaxed);
}

/// When a [`Bench`] measures.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Measures {
    /// While the caller waits.
    Now,
    /// In a thread, on a stream of its own, while the process works on.
    InBackground,
    /// Nothing; winners of earlier searches are taken.
    Nothing,
}

/// Makes the device current that kernels are measured on.
pub type MakeCurrent = Box<dyn Fn() -> Result<Current> + Send + Sync>;

/// Measures kernels over memory of their own.
pub struct Bench {
    device: Device,
    current_device: MakeCurrent,
    target: GpuTarget,
    pool: &'static Pool,
    /// Name of the device: winners are its own.
    name: String,
    folder: PathBuf,
    measures: Measures,
    /// How many kernels that were.
    pub unknown: usize,
    memory: Vec<(TunedBuffer, Memory)>,
    scratch: Vec<Memory>,
    /// Bytes that fill the caches of the device twice, and memory of that length.
    caches: usize,
    other: Option<Memory>,
    /// For reports.
    pub done: Vec<String>,
    began: Instant,
    /// The kernel that is being tuned, and since when.
    current: Option<(String, Instant)>,
}

impl Bench {
    /// `name` is the device's, whose winners are its own; `cache_bytes` are those of its last cache.
    pub fn new(
        (device, current_device): (Device, MakeCurrent),
        name: String,
        (target, cache_bytes): (GpuTarget, usize),
        pool: &'static Pool,
        measures: Measures,
    ) -> Bench {
        Bench {
            device,
            current_device,
            target,
            pool,
            name,
            folder: Cache::default_dir().join("tuned"),
            measures,
            unknown: 0,
            memory: Vec::new(),
            scratch: Vec::new(),
            caches: 2 * cache_bytes.max(1 << 20),
            other: None,
            done: Vec::new(),
            began: Instant::now(),
            current: None,
        }
    }

    /// The content address of a search: code, sizes, device, release of Triton.
    fn path(&self, rule: &Candidate) -> PathBuf {
        let kernel = GpuKernel {
            symbol: String::new(),
            ..rule.kernel.clone()
        };
        let sizes: Vec<i64> = (rule.buffers.iter().map(|b| b.bytes))
            .chain(rule.sizes.iter().copied())
            .collect();
        let all = (&kernel, sizes, rule.programs, &self.name, &self.target);
        let text = serde_json::to_string(&all).unwrap_or_default();
        let name = format!("{}.json", self.pool.address(&text));
        self.folder.join(name)
    }

    /// Measures candidates, on the memory of a call if `real` says where that is.
    fn measure(
        &mut self,
        candidates: &[Candidate],
        real: Option<&Real>,
    ) -> Result<Vec<Option<f64>>> {
        let kernels: Vec<&GpuKernel> = candidates.iter().map(|c| &c.kernel).collect();
        let (built, _) = self.pool.build_all(&kernels, &self.target);
        let on = match real {
            Some(_) => None,
            None => Some((self.current_device)()?),
        };
        let stream = match (real, &on) {
            (Some(r), _) => r.stream,
            (None, on) => on.as_ref().map_or(Stream(0), |o| o.stream),
        };
        let driver = devices::driver(self.device)?;
        if let Some(free) = on.as_ref().and_then(|o| o.free) {
            fits(candidates, free)?;
        }
        let mut runs: Vec<Option<(Kernel, Vec<u8>, u32)>> = Vec::new();
        for (c, b) in candidates.iter().zip(built) {
            // What Triton refuses at this size is no candidate.
            let loaded = b.and_then(|b| {
                let code = b.code.bytes()?;
                let b = b.info;
                let threads = b.warps * self.target.warp;
                let kernel = driver.load(&code, &b.symbol, threads, b.shared)?;
                let kernel = kernel.with_warps(b.warps)?;
                let kernel = match b.maps.is_empty() && !driver.takes_each() {
                    true => kernel,
                    false => kernel.with_places(places(&c.kernel.signature, !b.maps.is_empty())?),
                };
                Ok((kernel, b))
            });
            let usable = loaded.ok().filter(|(k, _)| {
                let spilled = k.resources().map_or(1, |r| r.1);
                spilled == 0
            });
            let programs = u32::try_from(c.programs).ok().filter(|n| *n > 0);
            runs.push(match (usable, programs) {
                (Some((k, b)), Some(n)) => {
                    let scratch = self.scratch(&driver, b.scratch * n as u64)?;
                    let addresses = match real {
                        Some(r) => c.buffers.iter().map(|b| r.address(b)).collect(),
                        None => Some(self.addresses(&driver, c)?),
                    };
                    let packed =
                        addresses.and_then(|a| packed(self.device, c, &b, &a, scratch).ok());
                    packed.map(|p| (k, p, n))
                }
                _ => None,
            });
        }
        self.fill_caches(&driver)?;
        let clock = Clock {
            driver: &driver,
            stream,
            other: self.other.as_ref(),
        };
        let mut best: Vec<Option<f64>> = vec![None; runs.len()];
        let mut counts = vec![1usize; runs.len()];
        let rounds = match self.measures {
            Measures::InBackground => ROUNDS_IN_BACKGROUND,
            _ => ROUNDS,
        };
        for round in 0..=rounds {
            if self.stops() {
                return Ok(vec![None; runs.len()]);
            }
            for (k, run) in runs.iter().enumerate() {
                let Some((kernel, arguments, programs)) = run else {
                    continue;
                };
                let mut bytes = arguments.to_vec();
                let mut launch = || {
                    // SAFETY: the arguments are packed by the kernel's signature, over memory that is kept and as long as its sizes
                    // say.
                    unsafe { kernel.launch([*programs, 1, 1], &mut bytes, stream) }
                };
                let took = clock.time(counts[k], &mut launch)?;
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

    fn times(&mut self, candidates: &[Candidate], real: Option<&Real>) -> Vec<Option<f64>> {
        let none = vec![None; candidates.len()];
        let late = (self.current.as_ref()).is_some_and(|c| c.1.elapsed() > PATIENCE);
        if late || self.stops() || self.began.elapsed() > TOTAL {
            return none;
        }
        self.measure(candidates, real).unwrap_or_else(|e| {
            let name = candidates
                .first()
                .map_or("", |c| c.kernel.function.as_str());
            self.done.push(format!("{name}: not measured: {e}"));
            none
        })
    }

    /// Makes the memory that is written between launches.
    fn fill_caches(&mut self, driver: &Driver) -> Result<()> {
        if self.other.is_none() {
            self.other = Some(driver.allocate(self.caches)?);
        }
        Ok(())
    }

    /// Writes what won. A file that cannot be written is measured again next time.
    fn write(&self, path: &std::path::Path, kept: &impl Serialize) {
        let write = || -> std::io::Result<()> {
            std::fs::create_dir_all(&self.folder)?;
            let mut file = tempfile::NamedTempFile::new_in(&self.folder)?;
            file.write_all(&serde_json::to_vec(kept)?)?;
            file.persist(path).map_err(|e| e.error)?;
            Ok(())
        };
        _ = write();
    }

    /// Returns true if the process ends, for which nothing in the background is waited for.
    fn stops(&self) -> bool {
        self.measures == Measures::InBackground && STOPS.load(Ordering::Relaxed)
    }

    /// Memory that all candidates share. They may take their buffers in different orders.
    fn addresses(&mut self, driver: &Driver, c: &Candidate) -> Result<Vec<u64>> {
        let mut out = Vec::new();
        for b in &c.buffers {
            let bytes = b.bytes.max(16) as usize;
            let fits = |m: &&(TunedBuffer, Memory)| m.0.buf == b.buf && m.1.bytes() >= bytes;
            if let Some((_, memory)) = self.memory.iter().find(fits) {
                out.push(memory.address());
                continue;
            }
            let mut made = driver.allocate(bytes)?;
            made.clear()?;
            out.push(made.address());
            // Shorter memory of the buffer stays: candidates that were packed already use it.
            self.memory.push((*b, made));
        }
        Ok(out)
    }

    /// Scratch space of so many bytes; candidates share it, since they run one after the other.
    fn scratch(&mut self, driver: &Driver, bytes: u64) -> Result<u64> {
        if bytes == 0 {
            return Ok(0);
        }
        if (self.scratch.last()).is_none_or(|m| (m.bytes() as u64) < bytes) {
            // The smaller ones stay: candidates that were packed already use them.
            self.scratch.push(driver.allocate(bytes as usize)?);
        }
        Ok(self.scratch.last().map_or(0, Memory::address))
    }
}

/// Refuses candidates whose memory is more than the share of what is free: the process may want it.
fn fits(candidates: &[Candidate], free: u64) -> Result<()> {
    let bytes = |c: &Candidate| c.buffers.iter().map(|b| b.bytes.max(0) as u64).sum::<u64>();
    within_share(candidates.iter().map(bytes).max().unwrap_or(0), free)
}

/// Refuses more bytes than the share of what is free.
fn within_share(bytes: u64, free: u64) -> Result<()> {
    match bytes <= free / SHARE {
        true => Ok(()),
        false => Err(Error::machine(
            "it takes more than a quarter of the device's free memory",
        )),
    }
}

/// Returns the arguments of a launch on a device, over the memory at `addresses`.
fn packed(
    device: Device,
    c: &Candidate,
    binary: &BinaryInfo,
    addresses: &[u64],
    scratch: u64,
) -> Result<Vec<u8>> {
    let signature = &c.kernel.signature;
    let packed = pack(signature, Some(binary), addresses.len(), &c.sizes)?;
    let mut bytes = packed.arguments.bytes().to_vec();
    let all = addresses.iter().zip(&packed.places).map(|(a, p)| (*a, p.0));
    for (address, place) in all.chain([(scratch, packed.scratch)]) {
        let at = place as usize;
        bytes[at..at + 8].copy_from_slice(&address.to_le_bytes());
    }
    (packed.maps.iter()).try_for_each(|m| m.write(&mut bytes, device))?;
    Ok(bytes)
}

/// Memory of a call: by the plan's number of a buffer its address, and the bytes that kernels see of it.
struct Real {
    stream: Stream,
    buffers: Vec<(TunedBuffer, u64)>,
}

impl Real {
    /// Nothing for memory that the call did not bring.
    fn address(&self, b: &TunedBuffer) -> Option<u64> {
        self.buffers.iter().find(|x| x.0.buf == b.buf).map(|x| x.1)
    }

    /// Returns true if a kernel that runs again and again stays within its memory: integers that it reads it must not change.
    fn is_steady(&self) -> bool {
        let span = |(b, at): &(TunedBuffer, u64)| *at..*at + b.bytes as u64;
        let overlap =
            |a: std::ops::Range<u64>, b: std::ops::Range<u64>| a.start < b.end && b.start < a.end;
        let ints = |(b, _): &&(TunedBuffer, u64)| !b.dtype.is_float() && !b.written;
        (self.buffers.iter().filter(|b| b.0.written)).all(|w| {
            // Its own integers may be read as well as written.
            let mut ints = self.buffers.iter().filter(ints);
            w.0.dtype.is_float() && !ints.any(|i| overlap(span(w), span(i)))
        })
    }
}

/// Tuning during a call.
pub struct AtCall {
    bench: Bench,
    plans: Vec<Retile>,
    /// Kernels whose turn came.
    seen: Vec<String>,
}

impl AtCall {
    pub fn new(bench: Bench, plans: Vec<Retile>) -> AtCall {
        AtCall {
            bench,
            plans,
            seen: Vec::new(),
        }
    }
}

impl TuneAtCall for AtCall {
    fn done(self: Box<Self>) -> Vec<String> {
        self.bench.done
    }

    fn before(&mut self, symbol: &str, addresses: Vec<u64>, stream: Stream) {
        if self.seen.iter().any(|s| s == symbol) {
            return;
        }
        self.seen.push(symbol.to_string());
        let mut one = OneLaunch {
            bench: &mut self.bench,
            addresses,
            real: None,
            saved: Vec::new(),
            stream,
        };
        _ = self.plans.iter().any(|p| p.tune(symbol, &mut one));
        let saved = std::mem::take(&mut one.saved);
        let restored = restore(&saved, self.bench.device, stream);
        if let Err(e) = restored {
            self.bench.done.push(format!("{symbol}: {e}"));
        }
    }
}

/// Restores what kernels wrote.
fn restore(saved: &[(u64, Memory)], device: Device, stream: Stream) -> Result<()> {
    let driver = devices::driver(device)?;
    for (at, memory) in saved {
        // SAFETY: the memory is the call's, and was saved from there.
        unsafe { driver.copy(*at, memory.address(), memory.bytes(), stream)? };
    }
    match saved.is_empty() {
        true => Ok(()),
        // The copies go away now.
        false => driver.synchronize(stream),
    }
}

/// Tuning of one launch.
struct OneLaunch<'a> {
    bench: &'a mut Bench,
    /// Of the launch's buffers, in the order of its arguments.
    addresses: Vec<u64>,
    real: Option<Real>,
    saved: Vec<(u64, Memory)>,
    stream: Stream,
}

impl OneLaunch<'_> {
    fn prepare(&mut self, rule: &Candidate) -> Result<Option<Real>> {
        // Behind the buffers may come scratch space.
        if self.addresses.len() < rule.buffers.len() {
            return Ok(None);
        }
        let buffers = rule.buffers.iter().copied();
        let real = Real {
            stream: self.stream,
            buffers: buffers.zip(self.addresses.iter().copied()).collect(),
        };
        if !real.is_steady() {
            return Ok(None);
        }
        let driver = devices::driver(self.bench.device)?;
        for (b, at) in real.buffers.iter().filter(|b| b.0.written) {
            let saved = self.saved.iter().any(|s| s.0 == *at);
            if b.bytes > 0 && !saved {
                let memory = driver.allocate(b.bytes as usize)?;
                // SAFETY: the call's buffer has these bytes, by the sizes that it was planned for.
                unsafe { driver.copy(memory.address(), *at, memory.bytes(), self.stream)? };
                self.saved.push((*at, memory));
            }
        }
        Ok(Some(real))
    }
}

impl Tuner for OneLaunch<'_> {
    fn known(&mut self, rule: &Candidate) -> Option<Tile> {
        let known = self.bench.known(rule);
        if known.is_none() {
            self.real = self.prepare(rule).unwrap_or_default();
        }
        known
    }

    fn time(&mut self, candidates: &[Candidate]) -> Vec<Option<f64>> {
        match &self.real {
            Some(real) => self.bench.times(candidates, Some(real)),
            None => vec![None; candidates.len()],
        }
    }

    fn keep(&mut self, rule: &Candidate, winner: Tile, before: f64, after: f64) {
        self.bench.keep(rule, winner, before, after);
    }
}

/// Measures calls on a stream.
struct Clock<'a> {
    driver: &'a Driver,
    stream: Stream,
    /// Memory that is written before each launch.
    other: Option<&'a Memory>,
}

impl Clock<'_> {
    /// Returns the seconds of one call: the mean of `count`.
    fn time(&self, count: usize, call: Call<'_>) -> Result<f64> {
        let mut between = Vec::new();
        for _ in 0..count {
            if let Some(m) = self.other {
                // SAFETY: the memory is this long, and nothing else uses it.
                unsafe { self.driver.clear(m.address(), m.bytes(), self.stream)? };
            }
            let (start, end) = (self.driver.event()?, self.driver.event()?);
            start.record(self.stream)?;
            call()?;
            end.record(self.stream)?;
            between.push((start, end));
        }
        let took = (between.iter()).map(|(start, end)| Ok(end.since(start)? as f64 * 1e-3));
        Ok(took.sum::<Result<f64>>()? / count as f64)
    }
}

impl Tuner for Bench {
    fn known(&mut self, rule: &Candidate) -> Option<Tile> {
        // Addresses into the memory of the last kernel are over.
        self.memory.clear();
        self.scratch.clear();
        self.current = Some((rule.kernel.function.clone(), Instant::now()));
        let kept = std::fs::read(self.path(rule)).ok();
        let kept = kept.and_then(|k| serde_json::from_slice::<Winner>(&k).ok());
        self.unknown += usize::from(kept.is_none());
        let kept = kept?;
        let tile = Tile {
            x: kept.x,
            y: kept.y,
            r: kept.r,
            looped: kept.streamed,
            stages: kept.stages,
            preload: kept.early,
            warps: kept.warps,
            pointers: kept.pointers.parse().ok()?,
        };
        self.done
            .push(format!("{}: {tile}, from the cache", rule.kernel.function));
        Some(tile)
    }

    fn time(&mut self, candidates: &[Candidate]) -> Vec<Option<f64>> {
        match self.measures {
            Measures::Nothing => vec![None; candidates.len()],
            _ if candidates.iter().any(|c| c.by_values) => vec![None; candidates.len()],
            _ => self.times(candidates, None),
        }
    }

    fn keep(&mut self, rule: &Candidate, winner: Tile, before: f64, after: f64) {
        self.done.push(format!(
            "{}: {} {:.2} us, {winner} {:.2} us",
            rule.kernel.function,
            rule.tile,
            before * 1e6,
            after * 1e6
        ));
        let kept = Winner {
            x: winner.x,
            y: winner.y,
            r: winner.r,
            streamed: winner.looped,
            stages: winner.stages,
            early: winner.preload,
            warps: winner.warps,
            pointers: winner.pointers.name().into(),
        };
        self.write(&self.path(rule), &kept);
    }
}
