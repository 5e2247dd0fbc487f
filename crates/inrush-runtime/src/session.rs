//! A model that serves calls while its weights are replaced.
//!
//! Each set of weights is a [`Model`] of its own; all share the program and the machine code. An update builds the next
//! model, with its packed weights and load-time results, while calls run on the active one. A swap replaces the active
//! model. A call takes the active model once, at its start, so that its answer comes from one set of weights.

use crate::hosted::{HostedOutput, Memory};
use crate::model::Model;
use crate::tensor::{Tensor, Value, copy_row_major, extent};
use crate::weights::{MemoryWeights, Pairs, WeightSource, WeightView};
use inrush_base::{DType, Error, Result};
use inrush_package::PanelData;
use inrush_program::{Place, Program};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, RwLock, RwLockReadGuard};

/// A model whose weights can be replaced. Calls may come from several threads at once.
pub struct Session {
    active: RwLock<Arc<Model>>,
    /// Calls write buffers of the model, and run one at a time.
    writes_state: bool,
    /// The source of weights that no update has named.
    original: Arc<dyn WeightSource>,
    /// Held during an update and a swap.
    sets: Mutex<Sets>,
}

#[derive(Default)]
struct Sets {
    /// Weights of the active set that came from updates.
    active: MemoryWeights,
    next: Option<Next>,
}

/// The inactive set.
struct Next {
    weights: MemoryWeights,
    /// Names that an update has given since the last swap.
    given: BTreeSet<String>,
    model: Model,
}

/// A weight that a model takes.
#[derive(Clone, PartialEq, Debug)]
pub struct WeightSpec {
    pub name: String,
    pub dtype: DType,
    pub sizes: Vec<i64>,
    /// Calls write it: a cache, a running mean.
    pub written: bool,
}

/// The names that an update has to give.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Names {
    /// Any; weights without a new value keep theirs.
    Some,
    /// All that [`Session::weights`] lists.
    All,
}

/// A set of weights.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Set {
    /// The set that calls use.
    Active,
    /// The set that the next swap makes active.
    Inactive,
}

/// A new weight of an update.
pub enum NewWeight<'a> {
    /// Its elements are copied.
    Copied(WeightView<'a>),
    /// The set reads the tensor's memory, whose owner may write it while no call runs; see [`Session::recompute`].
    Shared(Tensor),
}

impl NewWeight<'_> {
    fn view(&self) -> WeightView<'_> {
        match self {
            NewWeight::Copied(view) => *view,
            NewWeight::Shared(t) => t.view(),
        }
    }
}

impl Session {
    /// Starts to serve a model.
    pub fn new(model: Model) -> Session {
        Session {
            writes_state: model.writes_state(),
            original: model.weights().clone(),
            active: RwLock::new(Arc::new(model)),
            sets: Mutex::default(),
        }
    }

    /// Returns the active model. A swap does not change it while it is held.
    pub fn model(&self) -> Arc<Model> {
        self.lock_active().clone()
    }

    /// Runs the active model: see [`Model::run`].
    pub fn run(&self, inputs: &[Value]) -> Result<Vec<Value>> {
        self.with_active(|model| model.run(inputs))
    }

    /// Runs the active model into memory of the caller.
    ///
    /// # Errors
    /// See [`Model::run_into`].
    ///
    /// # Safety
    /// As for [`Model::run_into`].
    pub unsafe fn run_into(&self, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        // SAFETY: the caller's promise.
        self.with_active(|model| unsafe { model.run_into(inputs, outputs) })
    }

    /// Runs the active model into memory that a host allocates during the call.
    ///
    /// # Errors
    /// See [`Model::run_hosted`].
    ///
    /// # Safety
    /// As for [`Model::run_hosted`].
    pub unsafe fn run_hosted(
        &self,
        inputs: &[Value],
        memory: &mut Memory<'_>,
    ) -> Result<Vec<HostedOutput>> {
        // SAFETY: the caller's promise.
        self.with_active(|model| unsafe { model.run_hosted(inputs, memory) })
    }

    /// Passes the active model to a call. A swap waits for calls that write the model's buffers, or it would lose their writes.
    fn with_active<T>(&self, call: impl FnOnce(&Model) -> T) -> T {
        let active = self.lock_active();
        if self.writes_state {
            return call(&active);
        }
        let model = active.clone();
        drop(active);
        call(&model)
    }

    fn lock_active(&self) -> RwLockReadGuard<'_, Arc<Model>> {
        self.active.read().unwrap_or_else(|e| e.into_inner())
    }

    fn lock_sets(&self) -> MutexGuard<'_, Sets> {
        self.sets.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Lists the weights of the model, in the program's order.
    pub fn weights(&self) -> Vec<WeightSpec> {
        weight_specs(self.model().program())
    }

    /// Replaces weights of the inactive set, by copies. The set starts as the active one, and further updates add to it until
    /// [`Session::swap_weights`] makes it active. Calls go on meanwhile.
    ///
    /// # Errors
    /// An input error that names the weight, for a name that the model does not have, another dtype or other sizes, and with
    /// [`Names::All`] for a name that is missing. The sets are unchanged then.
    pub fn update_weights(&self, new: &[(&str, WeightView)], names: Names) -> Result<()> {
        let new: Vec<(&str, NewWeight)> = (new.iter())
            .map(|(name, view)| (*name, NewWeight::Copied(*view)))
            .collect();
        self.update(Set::Inactive, &new, names)
    }

    /// Replaces weights of a set. New calls see a change of the active set at once, calls in flight finish on the old weights. The other
    /// set is unchanged.
    ///
    /// # Errors
    /// Those of [`Session::update_weights`].
    pub fn update(&self, set: Set, new: &[(&str, NewWeight)], names: Names) -> Result<()> {
        let model = self.model();
        let specs = weight_specs(model.program());
        let views: Vec<(&str, WeightView)> = new.iter().map(|(n, w)| (*n, w.view())).collect();
        check(&specs, &views, names)?;
        let mut sets = self.lock_sets();
        let next = sets.next.as_ref().filter(|_| set == Set::Inactive);
        let mut weights = next.map_or(&sets.active, |n| &n.weights).clone();
        let mut given = next.map(|n| n.given.clone()).unwrap_or_default();
        for (name, weight) in new {
            match weight {
                NewWeight::Shared(t) => weights.insert_shared(name, t.clone()),
                NewWeight::Copied(view) => {
                    weights.insert(name, view.dtype, view.sizes.to_vec(), row_major(view)?);
                }
            }
            given.insert((*name).to_string());
        }
        let next = Next {
            model: self.model_of(&model, &weights)?,
            weights,
            given,
        };
        match set {
            Set::Inactive => sets.next = Some(next),
            Set::Active => self.activate(&mut sets, next),
        }
        Ok(())
    }

    /// Packs the weights of a set again and computes again what depends on weights only, for weights in memory that its owner has
    /// written since.
    ///
    /// # Errors
    /// An input error where there is no inactive set.
    pub fn recompute(&self, set: Set) -> Result<()> {
        let model = self.model();
        let mut sets = self.lock_sets();
        if set == Set::Active {
            let weights = sets.active.clone();
            let next = Next {
                model: self.model_of(&model, &weights)?,
                weights,
                given: BTreeSet::new(),
            };
            self.activate(&mut sets, next);
            return Ok(());
        }
        let next = (sets.next.as_mut())
            .ok_or_else(|| Error::input("there is no inactive set of weights: update it first"))?;
        next.model = self.model_of(&model, &next.weights)?;
        Ok(())
    }

    /// Makes a model on weights that replace some of the original ones.
    fn model_of(&self, model: &Model, weights: &MemoryWeights) -> Result<Model> {
        let source = Overlay {
            new: weights.clone(),
            base: self.original.clone(),
        };
        model.with_weights(Arc::new(source))
    }

    /// Makes a set the active one. Buffers that calls write keep their contents unless the set was given others.
    fn activate(&self, sets: &mut Sets, next: Next) {
        let mut active = self.active.write().unwrap_or_else(|e| e.into_inner());
        active.copy_state(&next.model, &|name| next.given.contains(name));
        let old = std::mem::replace(&mut *active, Arc::new(next.model));
        drop(active);
        sets.active = next.weights;
        // The old model is freed here, or by the last call that runs on it.
        drop(old);
    }

    /// Makes the inactive set the active one. Calls that have begun finish on the old set; later ones run on the new one.
    /// Buffers that calls write keep their contents unless an update named them.
    ///
    /// # Errors
    /// An input error where no update came since the last swap.
    pub fn swap_weights(&self) -> Result<()> {
        let mut sets = self.lock_sets();
        let next = sets.next.take().ok_or_else(|| {
            Error::input("there are no new weights to swap in: update them first")
        })?;
        self.activate(&mut sets, next);
        Ok(())
    }

    /// Forgets the inactive set.
    pub fn discard_update(&self) {
        self.lock_sets().next = None;
    }
}

/// Lists the weights of a program.
fn weight_specs(program: &Program) -> Vec<WeightSpec> {
    let spec = |b: &inrush_program::Buffer| match &b.place {
        Place::Weight(w) if w.name != inrush_program::SEED => Some(WeightSpec {
            name: w.name.clone(),
            dtype: b.dtype.0,
            sizes: w.sizes.clone(),
            written: b.written,
        }),
        _ => None,
    };
    program.buffers.iter().filter_map(spec).collect()
}

/// Compares new weights with what the model takes, before anything changes.
fn check(specs: &[WeightSpec], new: &[(&str, WeightView)], names: Names) -> Result<()> {
    let pairs: Vec<Option<Pairs>> = new.iter().map(|(_, view)| Pairs::of(view)).collect();
    let views: Vec<(&str, WeightView)> = (new.iter().zip(&pairs))
        .map(|((name, view), p)| (*name, p.as_ref().map_or(*view, |p| p.view(view.bytes))))
        .collect();
    let given: Vec<_> = views.iter().map(|(n, v)| (*n, v.dtype, v.sizes)).collect();
    check_update(specs, &given, names)?;
    for (name, view) in &views {
        let bytes = extent(view.sizes, view.strides)
            .filter(|_| view.strides.len() == view.sizes.len())
            .and_then(|n| n.checked_mul(view.dtype.size()));
        if bytes.is_none_or(|n| n > view.bytes.len()) {
            return Err(Error::input(format!(
                "the weight `{name}` has too few bytes"
            )));
        }
    }
    Ok(())
}

/// Compares names, dtypes and sizes of new weights with those that a model takes.
///
/// # Errors
/// An input error that names the weight: see [`Session::update_weights`].
pub fn check_update(
    specs: &[WeightSpec],
    new: &[(&str, DType, &[i64])],
    names: Names,
) -> Result<()> {
    let by_name: BTreeMap<&str, &WeightSpec> = specs.iter().map(|s| (s.name.as_str(), s)).collect();
    let mut given = BTreeSet::new();
    for (name, dtype, sizes) in new {
        let Some(spec) = by_name.get(name) else {
            return Err(Error::input(format!(
                "the model has no weight `{name}`{}",
                similar(specs, name)
            )));
        };
        if !given.insert(*name) {
            return Err(Error::input(format!("the weight `{name}` is given twice")));
        }
        if *dtype != spec.dtype || **sizes != spec.sizes {
            return Err(Error::input(format!(
                "the weight `{name}` is {} of sizes {:?}, got {} of sizes {:?}",
                spec.dtype.torch_name(),
                spec.sizes,
                dtype.torch_name(),
                sizes
            )));
        }
    }
    let missing: Vec<&str> = match names {
        Names::Some => Vec::new(),
        Names::All => (specs.iter().map(|s| s.name.as_str()))
            .filter(|n| !given.contains(n))
            .collect(),
    };
    match missing.as_slice() {
        [] => Ok(()),
        [one] => Err(Error::input(format!("the weight `{one}` is missing"))),
        [first, ..] => Err(Error::input(format!(
            "{} weights are missing, the first is `{first}`",
            missing.len()
        ))),
    }
}

/// Suggests a weight whose name has the same end, such as one with another prefix.
fn similar(specs: &[WeightSpec], name: &str) -> String {
    let tail = |n: &str| n.rsplit('.').next().unwrap_or_default().to_string();
    let shared = |n: &str| {
        let (a, b) = (n.rsplit('.'), name.rsplit('.'));
        a.zip(b).take_while(|(a, b)| a == b).count()
    };
    let best = (specs.iter()).filter(|s| tail(&s.name) == tail(name));
    match best.max_by_key(|s| shared(&s.name)) {
        Some(s) => format!("; it has `{}`", s.name),
        None => String::new(),
    }
}

/// Copies the elements of a weight in row-major order.
fn row_major(view: &WeightView) -> Result<Vec<u8>> {
    let bytes = view.sizes.iter().product::<i64>() as usize * view.dtype.size();
    let mut out = Vec::new();
    out.try_reserve_exact(bytes)
        .map_err(|_| Error::machine(format!("out of memory: {bytes} bytes for a weight")))?;
    out.resize(bytes, 0);
    // SAFETY: the view's bytes hold every coordinate (checked).
    unsafe { copy_row_major(view.bytes.as_ptr(), view.strides, view.sizes, &mut out) };
    Ok(out)
}

/// New weights over those of another source.
struct Overlay {
    new: MemoryWeights,
    base: Arc<dyn WeightSource>,
}

impl WeightSource for Overlay {
    fn weight(&self, name: &str) -> Option<WeightView<'_>> {
        self.new.weight(name).or_else(|| self.base.weight(name))
    }

    fn panels(&self, name: &str) -> Option<PanelData<'_>> {
        match self.new.weight(name) {
            Some(_) => None,
            None => self.base.panels(name),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(name: &str) -> WeightSpec {
        WeightSpec {
            name: name.into(),
            dtype: DType::F32,
            sizes: vec![2],
            written: false,
        }
    }

    fn view(sizes: &[i64]) -> WeightView<'_> {
        WeightView {
            dtype: DType::F32,
            sizes,
            strides: &[1],
            bytes: &[0; 8],
        }
    }

    #[test]
    fn a_wrong_update_says_what_is_wrong() {
        let specs = [spec("fc.weight"), spec("fc.bias")];
        let message =
            |new: &[(&str, WeightView)], names| check(&specs, new, names).unwrap_err().to_string();
        let unknown = message(&[("module.fc.bias", view(&[2]))], Names::Some);
        assert!(
            unknown.contains("no weight `module.fc.bias`; it has `fc.bias`"),
            "{unknown}"
        );
        let sizes = message(&[("fc.bias", view(&[3]))], Names::Some);
        assert!(
            sizes.contains("sizes [2], got torch.float32 of sizes [3]")
                || sizes.contains("got float32 of sizes [3]"),
            "{sizes}"
        );
        let missing = message(&[("fc.bias", view(&[2]))], Names::All);
        assert!(missing.contains("`fc.weight` is missing"), "{missing}");
        let twice = message(
            &[("fc.bias", view(&[2])), ("fc.bias", view(&[2]))],
            Names::Some,
        );
        assert!(twice.contains("given twice"), "{twice}");
        assert!(check(&specs, &[("fc.bias", view(&[2]))], Names::Some).is_ok());
    }

    #[test]
    fn strided_weights_are_copied_row_by_row() -> Result<()> {
        let transposed = WeightView {
            dtype: DType::U8,
            sizes: &[2, 3],
            strides: &[1, 2],
            bytes: &[0, 1, 2, 3, 4, 5],
        };
        assert_eq!(row_major(&transposed)?, [0, 2, 4, 1, 3, 5]);
        Ok(())
    }
}
