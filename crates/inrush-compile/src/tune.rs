//! Tuning by measurement: from the tile that the rules choose to the fastest one near it, a step at
//! a time.
//!
//! A descent over tiles (block sizes, warps, stages, kinds of pointers). Each step measures the
//! best tile so far and its neighbours, which differ in one or two fields, and moves to the fastest
//! if it gains at least 2 %. The rules' choice is a good start, so few steps suffice; an exhaustive
//! search would build a kernel for each combination.
//!
//! Clocks drift, so only times of one batch are compared: the best so far is measured again in each
//! step, and at the end the winner against the rules' choice.
//!
//! This module knows what to try; measuring, and remembering what won, is a [`Tuner`]'s affair, so
//! that compiling stays a function of what it is given.

use inrush_base::DType;
use inrush_kernel::block::{Tile, TileOf};
use inrush_loops::BufId;
use inrush_program::GpuKernel;

/// Measures kernels and remembers what won.
pub trait Tuner {
    /// The tile that won before for what `rule` is the rules' choice for, as [`Tuner::keep`] was told.
    fn known(&mut self, rule: &Candidate) -> Option<Tile>;
    /// Seconds of each; `None` for what cannot be built or run, or spills registers.
    fn time(&mut self, candidates: &[Candidate]) -> Vec<Option<f64>>;
    /// Tuning is done. `before` and `after` are the seconds of the rules' choice and of the winner.
    fn keep(&mut self, rule: &Candidate, winner: Tile, before: f64, after: f64);
}

/// A kernel that can be launched.
#[derive(Clone, Debug)]
pub struct Candidate {
    pub tile: Tile,
    pub of: TileOf,
    /// Values in memory decide how far the kernel's loops go: lists of a block mask.
    pub by_values: bool,
    pub kernel: GpuKernel,
    /// Number of programs; sizes that vary are at their hints.
    pub programs: i64,
    /// The arguments of a launch, as launches of programs have them: memory in the order of the signature, then numbers.
    pub buffers: Vec<TunedBuffer>,
    pub sizes: Vec<i64>,
}

/// Memory, by the plan's number of it. Integers index other memory, perhaps.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct TunedBuffer {
    pub buf: BufId,
    /// From the start of the storage to the last element, at the hints.
    pub bytes: i64,
    pub dtype: DType,
    pub written: bool,
}

/// Steps of the descent at most. Bounds the kernels that are built.
const STEPS: usize = 6;
/// The gain of a step from which on it counts: less is noise.
const GAIN: f64 = 0.98;

/// Returns the best tile that steps to faster neighbours lead to. `make` gives a tile's kernel, or
/// `None` where it does not fit. Without a winner the rules' choice is kept as well, so that the
/// next compilation does not measure again.
pub(crate) fn descend(
    tuner: &mut dyn Tuner,
    rule: Tile,
    make: &mut dyn FnMut(Tile) -> Option<Candidate>,
) -> Tile {
    let Some(first) = make(rule) else { return rule };
    if let Some(known) = tuner.known(&first) {
        // What another version kept may not fit any more.
        return if make(known).is_some() { known } else { rule };
    }
    let mut best = rule;
    let mut tried = vec![rule];
    let mut times: Option<(f64, f64)> = None;
    for _ in 0..STEPS {
        // The best so far is measured again, beside those that compete with it.
        let mut candidates: Vec<Candidate> = make(best).into_iter().collect();
        for t in best.neighbours(first.of) {
            if !tried.contains(&t) {
                tried.push(t);
                // Pointers of another kind change nothing where no tile can be named so.
                let new = |c: &Candidate| candidates.iter().all(|o| o.kernel != c.kernel);
                let made = make(t).filter(new);
                candidates.extend(made);
            }
        }
        if candidates.len() < 2 {
            break;
        }
        let measured = tuner.time(&candidates);
        let Some(now) = measured.first().copied().flatten() else {
            // Without a measure of what is there nothing can be told from the others.
            break;
        };
        let before = times.map_or(now, |t| t.0);
        let fastest = (candidates.iter().zip(&measured).skip(1))
            .filter_map(|(c, t)| t.map(|t| (c.tile, t)))
            .min_by(|a, b| a.1.total_cmp(&b.1))
            .filter(|(_, t)| *t < GAIN * now);
        let Some((tile, time)) = fastest else {
            times = Some((before, now));
            break;
        };
        best = tile;
        times = Some((before, time));
    }
    // Steps were measured at different times: the winner has to beat the rules' choice beside it.
    if best != rule {
        let pair: Vec<Candidate> = [rule, best].into_iter().filter_map(&mut *make).collect();
        let again = match pair.len() {
            2 => tuner.time(&pair),
            _ => Vec::new(),
        };
        if let [Some(before), Some(after)] = again[..] {
            times = Some((before, after));
            if after >= GAIN * before {
                best = rule;
                times = Some((before, before));
            }
        }
    }
    if let Some((before, after)) = times {
        tuner.keep(&first, best, before, after);
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use inrush_kernel::block::Pointers;

    /// Seconds from a formula; remembers in memory.
    struct Fake {
        cost: fn(&Tile) -> Option<f64>,
        kept: Vec<(String, Tile)>,
        timed: usize,
    }

    impl Fake {
        fn new(cost: fn(&Tile) -> Option<f64>) -> Fake {
            Fake {
                cost,
                kept: Vec::new(),
                timed: 0,
            }
        }
    }

    impl Tuner for Fake {
        fn known(&mut self, rule: &Candidate) -> Option<Tile> {
            let found = self.kept.iter().find(|k| k.0 == rule.kernel.symbol);
            found.map(|k| k.1)
        }
        fn time(&mut self, candidates: &[Candidate]) -> Vec<Option<f64>> {
            self.timed += candidates.len();
            candidates.iter().map(|c| (self.cost)(&c.tile)).collect()
        }
        fn keep(&mut self, rule: &Candidate, winner: Tile, _before: f64, _after: f64) {
            self.kept.push((rule.kernel.symbol.clone(), winner));
        }
    }

    const RULE: Tile = Tile {
        x: 1,
        y: 1,
        r: 2048,
        looped: true,
        stages: 1,
        preload: false,
        pointers: Pointers::Plain,
        warps: 8,
    };

    fn made(tile: Tile) -> Option<Candidate> {
        (tile.r <= 8192).then(|| Candidate {
            tile,
            of: TileOf::Loops,
            by_values: false,
            kernel: GpuKernel {
                symbol: tile.to_string(),
                ..GpuKernel::default()
            },
            programs: 1,
            buffers: Vec::new(),
            sizes: Vec::new(),
        })
    }

    #[test]
    fn steps_lead_to_the_fastest_that_fits() {
        // Long steps are fast; spilling ones have no time.
        let mut t = Fake::new(|t| (t.warps <= 16).then(|| 1.0 / (t.r * t.stages as i64) as f64));
        let won = descend(&mut t, RULE, &mut made);
        assert_eq!((won.r, won.stages), (8192, 4));
        // What is known is not measured again.
        let before = t.timed;
        assert_eq!(descend(&mut t, RULE, &mut made), won);
        assert_eq!(t.timed, before);
    }

    #[test]
    fn noise_changes_nothing() {
        let mut t = Fake::new(|t| Some(1.0 + 0.001 * t.warps as f64));
        assert_eq!(descend(&mut t, RULE, &mut made), RULE);
        // Even that is worth remembering.
        assert_eq!(t.kept.len(), 1);
    }

    #[test]
    fn what_cannot_be_measured_stays() {
        let mut t = Fake::new(|_| None);
        assert_eq!(descend(&mut t, RULE, &mut made), RULE);
        assert!(t.kept.is_empty());
    }
}
