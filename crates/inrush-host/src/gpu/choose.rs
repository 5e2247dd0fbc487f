//! Chooses among kernels that take the same launch, by measuring them on the memory of that launch.
//!
//! Every measured launch sees what the first one sees: whatever the kernels may write is saved before, put back before each launch,
//! and put back at the end. So kernels that read what they write, and integers that are positions, are safe. Candidates that
//! were not built, spill registers or are refused by the driver are dropped; without memory for the copies the rules' choice stays.

use super::driver::{Driver, Kernel, Memory, Stream};
use inrush_base::Result;
use inrush_program::BinaryInfo;
use std::sync::Arc;

/// Rounds in which all candidates take turns after one that warms up; the best time of each counts.
const ROUNDS: usize = 5;
/// The part of the time of the rules' choice that a candidate must stay below: less of a gain is noise.
const GAIN: f32 = 0.98;

/// A launch that is measured.
pub struct Trial<'a> {
    /// The driver of the device.
    pub driver: Driver,
    /// Where work is issued.
    pub stream: Stream,
    /// Programs along each dimension.
    pub grid: [u32; 3],
    /// The arguments with their addresses.
    pub arguments: &'a [u8],
    /// Memory that kernels may write: address, bytes.
    pub writes: Vec<(u64, u64)>,
}

/// Returns true if a build takes the launches that are planned for another one.
pub fn takes_launch(candidate: &BinaryInfo, planned: &BinaryInfo) -> bool {
    candidate.maps == planned.maps && candidate.scratch <= planned.scratch
}

/// The memory of a launch, saved.
struct Saved<'a> {
    trial: &'a Trial<'a>,
    copies: Vec<(u64, Memory)>,
}

impl<'a> Saved<'a> {
    fn new(trial: &'a Trial<'a>) -> Result<Saved<'a>> {
        let mut copies = Vec::new();
        for (at, bytes) in trial.writes.iter().filter(|w| w.1 > 0) {
            let memory = trial.driver.allocate(*bytes as usize)?;
            // SAFETY: the launch's buffer has these bytes, by the sizes that it was planned for.
            unsafe { (trial.driver).copy(memory.address(), *at, memory.bytes(), trial.stream)? };
            copies.push((*at, memory));
        }
        Ok(Saved { trial, copies })
    }

    /// Puts the contents back, in the order of the stream's work.
    fn restore(&self) -> Result<()> {
        let t = self.trial;
        for (at, memory) in &self.copies {
            // SAFETY: the memory is the launch's, and was saved from there.
            unsafe { (t.driver).copy(*at, memory.address(), memory.bytes(), t.stream)? };
        }
        Ok(())
    }
}

/// Returns the fastest kernel by position among `others` where one beats `rule`, and says how all did.
///
/// # Errors
/// Those of the driver where the memory cannot be put back.
pub fn fastest(
    rule: &Arc<Kernel>,
    others: Vec<(String, Result<Arc<Kernel>>)>,
    trial: &Trial<'_>,
) -> Result<(Option<(usize, Arc<Kernel>)>, String)> {
    let mut notes = Vec::new();
    let mut runs: Vec<(usize, String, Arc<Kernel>)> = Vec::new();
    for (k, (name, kernel)) in others.into_iter().enumerate() {
        let usable = kernel.and_then(|kernel| Ok((kernel.resources()?.1, kernel)));
        match usable {
            Ok((0, kernel)) => runs.push((k, name, kernel)),
            Ok((bytes, _)) => notes.push(format!("{name} dropped: it spills {bytes} bytes")),
            Err(e) => notes.push(format!("{name} dropped: {}", first_line(e.message()))),
        }
    }
    let saved = match Saved::new(trial) {
        Ok(saved) => saved,
        Err(e) => {
            // Copies that were begun read memory that goes now.
            trial.driver.synchronize(trial.stream)?;
            return Ok((None, format!("not measured: {}", e.message())));
        }
    };
    let mut best: Vec<Option<f32>> = vec![None; runs.len() + 1];
    let mut lost = vec![false; runs.len() + 1];
    for round in 0..=ROUNDS {
        for at in 0..best.len() {
            let kernel = at.checked_sub(1).map_or(rule, |k| &runs[k].2);
            if lost[at] {
                continue;
            }
            saved.restore()?;
            match time(kernel, trial) {
                Ok(ms) if round > 0 => best[at] = Some(best[at].map_or(ms, |b| b.min(ms))),
                Ok(_) => {}
                Err(e) => {
                    lost[at] = true;
                    best[at] = None;
                    let name = at
                        .checked_sub(1)
                        .map_or("the rules' choice", |k| &runs[k].1);
                    notes.push(format!("{name} dropped: {}", first_line(e.message())));
                }
            }
        }
    }
    saved.restore()?;
    // The copies go now.
    trial.driver.synchronize(trial.stream)?;
    let us = |ms: f32| format!("{:.2} us", ms * 1e3);
    let mut report = Vec::new();
    let mut chosen = None;
    if let Some(before) = best[0] {
        report.push(format!("the rules' choice {}", us(before)));
        let mut limit = GAIN * before;
        for ((k, name, kernel), ms) in runs.into_iter().zip(&best[1..]) {
            let Some(ms) = ms else { continue };
            report.push(format!("{name} {}", us(*ms)));
            if *ms < limit {
                limit = *ms;
                chosen = Some((k, name, kernel));
            }
        }
    }
    let name = chosen
        .as_ref()
        .map_or("the rules' choice", |c| c.1.as_str());
    let choice = format!("{name}; {}", [report, notes].concat().join("; "));
    Ok((chosen.map(|(k, _, kernel)| (k, kernel)), choice))
}

/// Milliseconds of one launch.
fn time(kernel: &Kernel, t: &Trial<'_>) -> Result<f32> {
    let (start, end) = (t.driver.event()?, t.driver.event()?);
    let mut arguments = t.arguments.to_vec();
    start.record(t.stream)?;
    // SAFETY: the arguments are those of a launch that the kernel takes, over memory that is kept until the stream is done.
    unsafe { kernel.launch(t.grid, &mut arguments, t.stream)? };
    end.record(t.stream)?;
    end.since(&start)
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or_default()
}
