//! Batches of launches that the driver makes once and calls issue as one.

use super::{CachedTensors, Code, Engine, Frame, Stop};
use crate::gpu::driver::List;
use crate::gpu::plan;
use crate::host::Host;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::sync::PoisonError;

/// A plan's statistics of one of its batches.
#[derive(Clone, Default)]
pub(super) struct Tries {
    calls: usize,
    /// The driver does not make it.
    refused: bool,
}

/// A batch as the driver has it. Plans for other sizes that launch the same kernels use it too: its nodes are
/// then set anew, which still takes the host a small part of a launch each.
pub(super) struct DriverBatch {
    /// The plan that used it last.
    plan: usize,
    kernels: Vec<usize>,
    list: List,
    /// Base addresses that it was made with, in the order of the plan's batch.
    bases: Vec<u64>,
}

/// The batches at one position of a region, of all plans.
#[derive(Default)]
pub(super) struct Here {
    /// Calls so far, of all plans.
    calls: usize,
    /// Batches that no call uses at present, the one used last at the end.
    batches: Vec<DriverBatch>,
}

/// By region and position.
pub(super) type Batches = FxHashMap<(usize, usize), Here>;

/// Calls before the one that makes a batch: what is met once is not worth it.
const WARM: usize = 2;
/// Calls after which a plan gets a batch of its own, and batches of one position at most.
const FAMILIAR: usize = 8;
const MAX_BATCHES: usize = 8;

impl<H: Host> Engine<H> {
    /// Returns a batch of the plan's, or one of another plan's with the same kernels that it may take over; without one, whether
    /// it is worth making: what is met once is not, though each call may have sizes of its own.
    fn take_batch(
        &self,
        region: usize,
        plan: usize,
        calls: usize,
        l: &plan::Batch,
    ) -> Result<DriverBatch, bool> {
        let mut batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        let here = batches.entry((region, l.id)).or_default();
        here.calls += 1;
        let worth = calls > WARM || (here.batches.is_empty() && here.calls > WARM);
        let here = &mut here.batches;
        if let Some(at) = here.iter().rposition(|x| x.plan == plan) {
            return Ok(here.remove(at));
        }
        if calls > FAMILIAR && here.len() < MAX_BATCHES {
            return Err(worth);
        }
        let kernels = || l.launches.iter().map(|x| x.kernel);
        let fits = |x: &DriverBatch| x.kernels.iter().copied().eq(kernels());
        let at = here.iter().position(fits).ok_or(worth)?;
        Ok(here.remove(at))
    }

    fn give_batch(&self, region: usize, id: usize, batch: DriverBatch) {
        let mut batches = self.batches.lock().unwrap_or_else(PoisonError::into_inner);
        let here = &mut batches.entry((region, id)).or_default().batches;
        if here.len() >= MAX_BATCHES {
            here.remove(0);
        }
        here.push(batch);
    }
}

impl<H: Host> Frame<'_, H> {
    /// Issues launches that follow one another: as one where that was made ready before.
    pub(super) fn batch(
        &self,
        l: &plan::Batch,
        cached: &mut CachedTensors<H>,
    ) -> Result<(), Stop<H::Error>> {
        let one_by_one = || l.launches.iter().try_for_each(|x| self.launch(x));
        if !matches!(self.code, Code::Device) {
            return one_by_one();
        }
        let tries = &mut cached.batches[l.id];
        tries.calls += 1;
        if tries.refused || self.tuning.borrow().is_some() {
            return one_by_one();
        }
        let (region, plan) = (cached.region, cached.plan);
        let found = match self.engine.take_batch(region, plan, tries.calls, l) {
            Ok(list) => Some(list),
            Err(true) => None,
            Err(false) => return one_by_one(),
        };
        let driver = self.driver().map_err(Stop::Failed)?;
        // What others capture is to be made of launches.
        if driver.is_capturing(self.stream).map_err(Stop::Failed)? {
            if let Some(list) = found {
                self.engine.give_batch(region, l.id, list);
            }
            return one_by_one();
        }
        let ready = match found {
            Some(mut listed) => {
                let same = listed.plan == plan;
                listed.plan = plan;
                self.adapt(l, &mut listed, !same).map(|()| listed)
            }
            None => {
                let one = |x: &plan::Launch| {
                    let packed = self.packed(x)?.to_vec();
                    Ok((self.kernel(x)?.clone(), x.grid, packed))
                };
                let launches = l.launches.iter().map(one);
                let launches = launches.collect::<inrush_base::Result<Vec<_>>>();
                // SAFETY: arguments were packed by the kernels' signatures; plans hold no launch of an empty grid.
                let list = launches.and_then(|all| unsafe { driver.list(all.into_iter()) });
                list.map(|list| DriverBatch {
                    plan,
                    kernels: l.launches.iter().map(|x| x.kernel).collect(),
                    list,
                    bases: (l.bases.iter()).map(|b| self.bases[*b as usize]).collect(),
                })
            }
        };
        let Ok(listed) = ready else {
            cached.batches[l.id].refused = true;
            return one_by_one();
        };
        // SAFETY: addresses are those of this call; memory lives as in a single launch.
        let done = unsafe { listed.list.launch(self.stream) };
        self.engine.give_batch(region, l.id, listed);
        done.map_err(|e| Stop::Failed(e.context(self.title(&l.launches[0]))))
    }

    /// Has a batch take this call's addresses; `all` sets every launch, whose sizes may be others too.
    fn adapt(
        &self,
        l: &plan::Batch,
        listed: &mut DriverBatch,
        all: bool,
    ) -> inrush_base::Result<()> {
        let mut moved: SmallVec<[plan::BaseId; 16]> = SmallVec::new();
        if all {
            listed.bases = l.bases.iter().map(|b| self.bases[*b as usize]).collect();
        } else {
            for (id, was) in l.bases.iter().zip(&mut listed.bases) {
                let now = self.bases[*id as usize];
                if *was != now {
                    *was = now;
                    moved.push(*id);
                }
            }
            if moved.is_empty() {
                return Ok(());
            }
        }
        for (at, x) in l.launches.iter().enumerate() {
            if all || x.addresses.iter().any(|a| moved.contains(&a.1)) {
                let mut bytes = self.packed(x)?;
                // SAFETY: the kernels are those that the batch was made of; arguments were packed by their signatures.
                unsafe { listed.list.set(at, x.grid, &mut bytes) }?;
            }
        }
        Ok(())
    }
}
