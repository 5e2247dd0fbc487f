//! Which launches on a CPU run side by side.
//!
//! Starting threads costs more than a short launch does. Steps that do not depend on each other are
//! shared out among threads together where all of them are short, or where all run the same code,
//! as the steps of an optimiser over a list of tensors do.
//!
//! ```text
//! steps    s0  s1  s2  s3  s4        s2 reads what s0 writes; all are short
//! groups   [s0, s1, s3] [s2, s4]     s4 reads what s1 writes
//! ```
//!
//! Steps are taken in order. Each joins the first group that takes it after the last group that
//! holds a step whose order with it matters, else it begins a new one. Groups run in order, so
//! dependencies are kept. Contractions stay alone.

use crate::functions::{Instance, Kernels};
use inrush_base::tally::{Way, reached};
use inrush_kernel::group::group_of;
use inrush_loops::{BufId, Bufs};
use inrush_sched::{Plan, Regions, Step};
use smallvec::SmallVec;

/// Work up to which a launch is short, in bytes moved or their equivalent.
const SHORT: i64 = 256 << 10;
/// Launches that run side by side.
const MOST: usize = 1024;

struct Group {
    /// Positions among the plan's steps, ascending.
    steps: Vec<usize>,
    /// The kernel that all of them run.
    kernel: Option<u32>,
    /// All are short.
    short: bool,
    /// More may join.
    open: bool,
}

/// The order in which to issue a plan's steps, those of an inner list side by side.
pub fn together(plan: &Plan, kernels: &Kernels) -> Vec<Vec<usize>> {
    let regions = plan.regions();
    let exprs = &plan.loops.exprs;
    let touches: Vec<Touches> = (plan.steps.iter().zip(&kernels.steps))
        .map(|(s, e)| Touches::of(s, e))
        .collect();
    let mut groups: Vec<Group> = Vec::new();
    for (at, (step, e)) in plan.steps.iter().zip(&kernels.steps).enumerate() {
        let open = matches!(step, Step::Kernel(_));
        let (work, known) = match kernels.numbers.get(e.kernel as usize) {
            Some(k) => {
                let unit = exprs.hint(k.cost_per_unit);
                // A hint is no bound: a launch that is short at the hint may be long at a call.
                let known = exprs.as_int(k.units).is_some();
                (exprs.hint(k.units).saturating_mul(unit), known)
            }
            None => (i64::MAX, false),
        };
        let one = Group {
            steps: vec![at],
            kernel: Some(e.kernel),
            short: known && work <= SHORT,
            open,
        };
        let depends = |g: &Group| {
            let mut earlier = g.steps.iter().map(|s| &touches[*s]);
            earlier.any(|t| t.clash(&touches[at], &regions))
        };
        match group_of(&groups, depends, |g| g.takes(&one)) {
            Some(g) => {
                reached(Way::Together);
                groups[g].join(one);
            }
            None => groups.push(one),
        }
    }
    groups.into_iter().map(|g| g.steps).collect()
}

impl Group {
    fn takes(&self, one: &Group) -> bool {
        let same = self.kernel.is_some() && self.kernel == one.kernel;
        let short = self.short && one.short;
        self.open && one.open && (same || short) && self.steps.len() < MOST
    }

    fn join(&mut self, one: Group) {
        self.steps.extend(one.steps);
        self.short &= one.short;
        self.kernel = self.kernel.filter(|k| Some(*k) == one.kernel);
    }
}

/// The buffers of a step.
struct Touches {
    /// Buffers that the step writes.
    written: Bufs,
    /// Buffers that the step reads or writes, sorted.
    all: SmallVec<[BufId; 12]>,
}

impl Touches {
    fn of(step: &Step, e: &Instance) -> Touches {
        let written = step.writes();
        let mut all: SmallVec<[BufId; 12]> = SmallVec::from_slice(&step.reads());
        all.extend(written.iter().chain(&e.buffers).copied());
        all.sort_unstable();
        all.dedup();
        Touches { written, all }
    }

    /// Returns true if the order of two steps matters: one writes what the other touches.
    fn clash(&self, other: &Touches, regions: &Regions) -> bool {
        let meets = |written: &[BufId], all: &[BufId]| {
            (written.iter()).any(|w| all.iter().any(|b| regions.overlap(*w, *b)))
        };
        meets(&self.written, &other.all) || meets(&other.written, &self.all)
    }
}
