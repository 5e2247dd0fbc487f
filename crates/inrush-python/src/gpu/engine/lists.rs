//! Lists of launches that the driver makes once and calls issue as one.

use super::{Code, Engine, Frame, Kept, Stop};
use crate::gpu::plan;
use inrush_cuda::driver::{Driver, List};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::sync::PoisonError;

/// What a plan knows of one of its lists of launches.
#[derive(Clone, Default)]
pub(super) struct Tries {
    calls: usize,
    /// The driver does not make it.
    refused: bool,
}

/// A list of launches as the driver has it. Plans for other sizes that launch the same kernels use it too: its nodes are
/// then set anew, which still takes the host a small part of a launch each.
pub(super) struct Listed {
    /// The plan that used it last.
    plan: usize,
    kernels: Vec<usize>,
    list: List,
    /// Base addresses that it was made with, in the order of the plan's list.
    bases: Vec<u64>,
}

/// What there is at one position of a stretch.
#[derive(Default)]
pub(super) struct Here {
    /// Calls so far, of all plans.
    calls: usize,
    /// Lists that no call uses at present, the one used last at the end.
    lists: Vec<Listed>,
}

/// By stretch and position.
pub(super) type Lists = FxHashMap<(usize, usize), Here>;

/// Calls before the one that makes a list: what is met once is not worth it.
const WARM: usize = 2;
/// Calls after which a plan gets a list of its own, and lists of one place at most.
const FAMILIAR: usize = 8;
const MAX_LISTS: usize = 8;

impl Engine {
    /// A list of the plan's, or one of another plan's with the same kernels that it may take over; without one, whether it is
    /// worth making: what is met once is not, though each call may have sizes of its own.
    fn take_list(
        &self,
        stretch: usize,
        plan: usize,
        calls: usize,
        l: &plan::List,
    ) -> Result<Listed, bool> {
        let mut lists = self.lists.lock().unwrap_or_else(PoisonError::into_inner);
        let here = lists.entry((stretch, l.id)).or_default();
        here.calls += 1;
        let worth = calls > WARM || (here.lists.is_empty() && here.calls > WARM);
        let here = &mut here.lists;
        if let Some(at) = here.iter().rposition(|x| x.plan == plan) {
            return Ok(here.remove(at));
        }
        if calls > FAMILIAR && here.len() < MAX_LISTS {
            return Err(worth);
        }
        let kernels = || l.launches.iter().map(|x| x.kernel);
        let fits = |x: &Listed| x.kernels.iter().copied().eq(kernels());
        let at = here.iter().position(fits).ok_or(worth)?;
        Ok(here.remove(at))
    }

    fn give_list(&self, stretch: usize, id: usize, list: Listed) {
        let mut lists = self.lists.lock().unwrap_or_else(PoisonError::into_inner);
        let here = &mut lists.entry((stretch, id)).or_default().lists;
        if here.len() >= MAX_LISTS {
            here.remove(0);
        }
        here.push(list);
    }
}

impl Frame<'_> {
    /// Launches that follow one another: as one where that was made ready before.
    pub(super) fn list(&self, l: &plan::List, kept: &mut Kept) -> Result<(), Stop> {
        let one_by_one = || l.launches.iter().try_for_each(|x| self.launch(x));
        let Code::Device(kernels) = self.code else {
            return one_by_one();
        };
        let tries = &mut kept.lists[l.id];
        tries.calls += 1;
        if tries.refused || self.tuning.borrow().is_some() {
            return one_by_one();
        }
        let (stretch, plan) = (kept.stretch, kept.plan);
        let found = match self.engine.take_list(stretch, plan, tries.calls, l) {
            Ok(list) => Some(list),
            Err(true) => None,
            Err(false) => return one_by_one(),
        };
        let driver = Driver::get().map_err(Stop::Failed)?;
        // What somebody captures is to be made of launches.
        if driver.is_capturing(self.stream).map_err(Stop::Failed)? {
            if let Some(list) = found {
                self.engine.give_list(stretch, l.id, list);
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
                    Ok((kernels[x.kernel].clone(), x.grid, packed))
                };
                let launches = l.launches.iter().map(one);
                let launches = launches.collect::<inrush_base::Result<Vec<_>>>();
                // SAFETY: arguments were packed by the kernels' signatures; plans hold no launch of an empty grid.
                let list = launches.and_then(|all| unsafe { driver.list(all.into_iter()) });
                list.map(|list| Listed {
                    plan,
                    kernels: l.launches.iter().map(|x| x.kernel).collect(),
                    list,
                    bases: (l.bases.iter()).map(|b| self.bases[*b as usize]).collect(),
                })
            }
        };
        let Ok(listed) = ready else {
            kept.lists[l.id].refused = true;
            return one_by_one();
        };
        // SAFETY: addresses are those of this call; memory lives as in a single launch.
        let done = unsafe { listed.list.launch(self.stream) };
        self.engine.give_list(stretch, l.id, listed);
        done.map_err(|e| Stop::Failed(e.context(self.title(&l.launches[0]))))
    }

    /// Has a list take this call's addresses; `all` sets every launch, whose sizes may be others too.
    fn adapt(&self, l: &plan::List, listed: &mut Listed, all: bool) -> inrush_base::Result<()> {
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
                // SAFETY: the kernels are those that the list was made of; arguments were packed by their signatures.
                unsafe { listed.list.set(at, x.grid, &mut bytes) }?;
            }
        }
        Ok(())
    }
}
