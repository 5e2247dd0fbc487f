//! A loaded model: program, machine code, weights, and results of load steps.

use crate::parts::{BoundParts, LoadedParts};
use crate::poison;
use crate::tensor::{Recycler, Storage, Tensor, copy_strided, extent};
use crate::weights::{Pairs, WeightSource, WeightView};
use inrush_base::{DType, Error, Result};
use inrush_cpu::{Bytes, Packed, Pool};
use inrush_program::{BufferId, Place, Program, Step};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex};

/// `int32_t kernel(char *const *bufs, const int64_t *sizes, int64_t begin, int64_t end)`.
pub(crate) type KernelFn = unsafe extern "C" fn(*const *mut u8, *const i64, i64, i64) -> i32;
/// The entry of any function of the shared object; cast to its type where it is called.
pub(crate) type Symbol = unsafe extern "C" fn();

/// The parts of a model.
pub struct Parts<'a> {
    pub program: Program,
    /// The shared object with the program's kernels.
    pub object: &'a Path,
    pub weights: Box<dyn WeightSource>,
    /// The threads that run kernels; models may share them.
    pub pool: Arc<Pool>,
}

/// A program with its weights bound and packed. Binding needs no machine code, so a host does it while the C compiler runs.
#[derive(Clone)]
pub struct Bound {
    pub(crate) program: Arc<Program>,
    pub(crate) pool: Arc<Pool>,
    /// Changes until the model is loaded.
    pub(crate) state: Arc<State>,
    weights: Arc<dyn WeightSource>,
    /// By input: true if calls write it.
    pub(crate) writes_input: Vec<bool>,
    /// Segments of a program in parts.
    parts: Option<BoundParts>,
}

/// A model that is ready to run. Calls may come from several threads at once.
pub struct Model {
    pub(crate) bound: Bound,
    pub(crate) prepared: Mutex<Vec<Arc<crate::exec::Prepared>>>,
    pub(crate) frames: Mutex<Vec<crate::exec::Frame>>,
    pub(crate) recycler: Arc<Recycler>,
    /// Steps of a program in parts, which has none of its own.
    pub(crate) parts: Option<Arc<LoadedParts>>,
    /// Held during a call when calls change the model's own buffers.
    pub(crate) exclusive: Option<Arc<Mutex<()>>>,
    /// Last, so that code outlives what refers to it.
    pub(crate) code: Arc<Code>,
}

/// The machine code of a program. Models of one program on different weights share it.
pub(crate) struct Code {
    /// By kernel.
    pub symbols: Vec<Symbol>,
    /// `None` for a program without kernels.
    _library: Option<libloading::Library>,
}

/// Base addresses of buffers that outlive calls, and the memory that they are in.
pub(crate) struct State {
    /// By buffer; null where the buffer belongs to a call.
    pub base: Vec<*mut u8>,
    /// Packed right-hand sides by position of the contraction in [`Program::steps`].
    pub packed: Vec<Option<Packed>>,
    /// By buffer of a weight that the source holds in panels, which only contractions read: their bytes, at its base address.
    lent: BTreeMap<BufferId, usize>,
    /// The last one is the block of load-time results.
    owned: Vec<Storage>,
}

impl State {
    pub fn load_block(&self) -> Option<&Bytes> {
        self.owned.last().map(Storage::block)
    }
}

// SAFETY: base addresses point into the weight source's mapping (read only) or into `owned`; writes to owned memory happen
// during load and under `Model::exclusive` only.
unsafe impl Send for State {}
// SAFETY: as above; what threads share is read only between these writes.
unsafe impl Sync for State {}

impl Model {
    /// Loads code, binds weights, runs the load steps, packs weights.
    ///
    /// # Errors
    /// A damaged program or object, a weight that is missing or has another type than the program says.
    pub fn from_parts(parts: Parts<'_>) -> Result<Model> {
        let Parts {
            program,
            object,
            weights,
            pool,
        } = parts;
        Bound::new(program, weights, pool)?.load(object)
    }

    /// Makes a model of a program that calls functions of the library and nothing else.
    ///
    /// # Errors
    /// An input error for a program with kernels, weights or parts.
    pub fn of_library(program: Program, pool: Arc<Pool>) -> Result<Model> {
        if !program.kernels.is_empty() || program.parts.is_some() {
            return Err(Error::input("the program has kernels, and no machine code"));
        }
        let code = Code {
            symbols: Vec::new(),
            _library: None,
        };
        let weights = Box::new(crate::MemoryWeights::default());
        Bound::new(program, weights, pool)?.with_code(Arc::new(code))
    }

    /// Makes a model of the same program and code on other weights: binds and packs them and runs the load steps again.
    /// Buffers that calls write start as the weights say; see [`Model::copy_state`].
    ///
    /// # Errors
    /// A weight that is missing or has another type than the program says.
    pub fn with_weights(&self, weights: Arc<dyn WeightSource>) -> Result<Model> {
        self.bound.pool.check_fork()?;
        let bound = Bound::on(self.bound.program.clone(), weights, self.bound.pool.clone())?;
        bound.with_code_of(self)
    }

    /// Returns another handle of the model, for an executor that keeps one: memory, code and locks are the same.
    #[must_use]
    pub fn share(&self) -> Model {
        Model {
            bound: self.bound.clone(),
            prepared: Mutex::default(),
            frames: Mutex::default(),
            recycler: self.recycler.clone(),
            parts: self.parts.clone(),
            exclusive: self.exclusive.clone(),
            code: self.code.clone(),
        }
    }

    /// Returns true if calls write buffers of the model, and run one at a time.
    pub fn writes_state(&self) -> bool {
        self.exclusive.is_some()
    }

    /// Copies the buffers that calls write, such as caches and running means, to a model of the same program, but for those
    /// that `except` names. Waits for calls of this model that write them.
    pub fn copy_state(&self, to: &Model, except: &dyn Fn(&str) -> bool) {
        if std::ptr::eq(self, to) || !Arc::ptr_eq(&self.bound.program, &to.bound.program) {
            return;
        }
        let _here = self.lock_state();
        let _there = to.lock_state();
        for (id, b) in self.program().buffers.iter().enumerate() {
            let Place::Weight(w) = &b.place else { continue };
            if !b.written || except(&w.name) {
                continue;
            }
            let elements = extent(&w.sizes, &w.strides).unwrap_or(0);
            // SAFETY: both are own copies of this extent, made by `bind_weights`; no call of either model runs now.
            unsafe {
                std::ptr::copy_nonoverlapping(
                    self.bound.state.base[id],
                    to.bound.state.base[id],
                    elements * b.dtype.0.size(),
                );
            }
        }
    }

    /// Waits until no call changes the model's own buffers.
    pub(crate) fn lock_state(&self) -> Option<std::sync::MutexGuard<'_, ()>> {
        let lock = self.exclusive.as_ref()?;
        Some(lock.lock().unwrap_or_else(|e| e.into_inner()))
    }

    pub fn program(&self) -> &Program {
        &self.bound.program
    }

    /// Has calls run on another pool, such as one whose threads have not started when the process forks.
    #[must_use]
    pub fn on_pool(mut self, pool: Arc<Pool>) -> Model {
        self.parts = (self.parts).map(|p| Arc::new(p.on_pool(&pool)));
        self.bound.pool = pool;
        self
    }

    /// Returns the number of threads that a call uses now.
    pub fn threads(&self) -> usize {
        self.bound.pool.threads()
    }

    /// Returns a copy of a weight or buffer with its present contents, which calls may have changed.
    pub fn weight(&self, name: &str) -> Option<Tensor> {
        let _guard = self.lock_state();
        let (id, b, w) =
            self.bound
                .program
                .buffers
                .iter()
                .enumerate()
                .find_map(|(id, b)| match &b.place {
                    Place::Weight(w) if w.name == name => Some((id, b, w)),
                    _ => None,
                })?;
        let strides = crate::tensor::contiguous_strides(&w.sizes);
        let out = Tensor::zeros(b.dtype.0, w.sizes.clone(), strides.clone()).ok()?;
        let size = b.dtype.0.size();
        let plain = if self.bound.state.lent.contains_key(&(id as BufferId)) {
            let stored = self.bound.weights.panels(name)?;
            Some(stored.panels.unpack(stored.bytes, size)?)
        } else {
            None
        };
        let from = (plain.as_ref()).map_or(self.bound.state.base[id].cast_const(), |p| p.as_ptr());
        if out.numel() > 0 {
            // SAFETY: the weight's extent was checked when it was bound; panels hold as many elements.
            unsafe {
                copy_strided(from, &w.strides, out.data(), &strides, &w.sizes, size);
            }
        }
        Some(out)
    }

    /// Sets the seed of the next call's random numbers. False when the model draws none.
    pub fn set_seed(&self, seed: i64) -> bool {
        let _guard = self.lock_state();
        let found = self.program().buffers.iter().position(|b| {
            matches!(&b.place, Place::Weight(w) if w.name == inrush_program::SEED) && b.written
        });
        if let Some(id) = found {
            // SAFETY: a weight that calls write is an own copy of eight bytes, and no call runs now.
            unsafe {
                self.bound.state.base[id]
                    .cast::<i64>()
                    .write_unaligned(seed)
            };
        }
        found.is_some()
    }

    /// Returns the source of the model's weights.
    pub fn weights(&self) -> &Arc<dyn WeightSource> {
        &self.bound.weights
    }
}

impl Bound {
    /// Binds weights and packs the right-hand sides that are weights.
    ///
    /// # Errors
    /// A damaged program, a weight that is missing or has another type than the program says.
    pub fn new(program: Program, weights: Box<dyn WeightSource>, pool: Arc<Pool>) -> Result<Bound> {
        program.verify()?;
        Self::on(Arc::new(program), weights.into(), pool)
    }

    /// Binds weights to a program that was verified.
    pub(crate) fn on(
        program: Arc<Program>,
        weights: Arc<dyn WeightSource>,
        pool: Arc<Pool>,
    ) -> Result<Bound> {
        let Bindings { base, owned, lent } = bind_weights(&program, weights.as_ref())?;
        let packed = program.steps.iter().map(|_| None).collect();
        let mut bound = Bound {
            writes_input: program.written_inputs(),
            parts: BoundParts::of(&program, &weights, &pool)?,
            state: Arc::new(State {
                base,
                packed,
                lent,
                owned,
            }),
            program,
            pool,
            weights,
        };
        bound.pack(|place| matches!(place, Place::Weight(_)))?;
        Ok(bound)
    }

    /// Packs constant operands whose storage is `wanted`: of each contraction the right-hand side, or the left one if the right
    /// one belongs to a call.
    fn pack(&mut self, wanted: impl Fn(&Place) -> bool) -> Result<()> {
        let sizes = crate::bind::constant_sizes(&self.program);
        let State {
            base, packed, lent, ..
        } = Arc::get_mut(&mut self.state)
            .ok_or_else(|| Error::internal("a model is packed while it is shared"))?;
        for (step, packed) in self.program.steps.iter().zip(packed) {
            let Step::Contract(c) = step else {
                continue;
            };
            let operand = match root(&self.program, c.b).1 {
                Place::Weight(_) | Place::Persistent { .. } => c.b,
                _ => c.a,
            };
            let (owner, place) = root(&self.program, operand);
            if wanted(place) {
                let lent = lent.get(&owner).copied();
                *packed = crate::contract::pack(&self.program, c, &sizes, base, lent, &self.pool)?;
            }
            if let Some(what) = poison::noted() {
                let name = &self.program.buffers[operand as usize].name;
                return Err(Error::internal(format!("packing `{name}`: {what}")));
            }
        }
        Ok(())
    }

    /// Loads code, runs the load steps, packs what they computed.
    ///
    /// # Errors
    /// A damaged object.
    pub fn load(mut self, object: &Path) -> Result<Model> {
        let code = Arc::new(load_code(&self.program, object)?);
        let parts = match (self.parts.take(), &self.program.parts) {
            (Some(bound), Some(parts)) => Some(Arc::new(bound.load(parts, object)?)),
            _ => None,
        };
        let mut model = self.with_code(code)?;
        model.parts = parts;
        Ok(model)
    }

    /// Gives the program, and those that it calls, the code of another model of it.
    pub(crate) fn with_code_of(mut self, other: &Model) -> Result<Model> {
        let parts = match (self.parts.take(), &self.program.parts, &other.parts) {
            (Some(new), Some(parts), Some(old)) => Some(Arc::new(new.with_code_of(parts, old)?)),
            _ => None,
        };
        let mut model = self.with_code(other.code.clone())?;
        model.parts = parts;
        Ok(model)
    }

    /// Runs the load steps with code that was loaded, and packs what they computed.
    pub(crate) fn with_code(self, code: Arc<Code>) -> Result<Model> {
        let writes_state =
            (self.program.buffers.iter()).any(|b| b.written && matches!(b.place, Place::Weight(_)));
        let mut model = Model {
            bound: self,
            prepared: Mutex::new(Vec::new()),
            frames: Mutex::new(Vec::new()),
            recycler: Arc::default(),
            parts: None,
            exclusive: writes_state.then(Arc::default),
            code,
        };
        model.run_load_steps()?;
        model
            .bound
            .pack(|place| matches!(place, Place::Persistent { .. }))?;
        Ok(model)
    }
}

/// The seed of a model that draws random numbers.
const FIRST_SEED: WeightView<'static> = WeightView {
    dtype: DType::I64,
    sizes: &[1],
    strides: &[1],
    bytes: &[0; 8],
};

/// Returns the buffer that owns the storage of `b`, and its place.
pub(crate) fn root(program: &Program, mut b: BufferId) -> (BufferId, &Place) {
    loop {
        match &program.buffers[b as usize].place {
            Place::Alias { of, .. } => b = *of,
            place => return (b, place),
        }
    }
}

fn load_code(program: &Program, object: &Path) -> Result<Code> {
    // SAFETY: the object was built by this crate from generated source (digest checked), or comes from a package that the
    // user chose to run; it has no initialisers.
    let library = unsafe { libloading::Library::new(object) }
        .map_err(|e| Error::machine(format!("cannot load `{}`: {e}", object.display())))?;
    let mut symbols = Vec::with_capacity(program.kernels.len());
    for k in &program.kernels {
        // SAFETY: only the address is taken here.
        let symbol = unsafe { library.get::<Symbol>(k.symbol.as_bytes()) }.map_err(|_| {
            Error::input(format!(
                "`{}` has no function `{}`",
                object.display(),
                k.symbol
            ))
        })?;
        symbols.push(*symbol);
    }
    Ok(Code {
        symbols,
        _library: Some(library),
    })
}

/// Returns a block of zeros, or of poison.
fn blank(len: usize) -> Result<Storage> {
    if poison::enabled() {
        Storage::uninit(len)
    } else {
        Storage::zeroed(len)
    }
}

/// Base addresses, and the memory that was made for them: see [`State`].
struct Bindings {
    base: Vec<*mut u8>,
    owned: Vec<Storage>,
    lent: BTreeMap<BufferId, usize>,
}

/// Returns the weights that the source holds in the very panels that this processor reads, by name, with their bytes. Those in
/// other panels, such as those of another level, are bound in plain order and packed.
fn lent_weights<'a>(
    program: &Program,
    weights: &'a dyn WeightSource,
) -> Result<BTreeMap<String, &'a [u8]>> {
    let mut out = BTreeMap::new();
    let mut wanted = None;
    for b in &program.buffers {
        let Place::Weight(w) = &b.place else { continue };
        let Some(stored) = weights.panels(&w.name) else {
            continue;
        };
        let wanted = match &mut wanted {
            Some(wanted) => wanted,
            None => wanted.insert(crate::panels::panels(program, inrush_cpu::detect())?),
        };
        let same = wanted.get(&w.name) == Some(stored.panels)
            && (stored.dtype, stored.sizes, stored.strides) == (b.dtype.0, &*w.sizes, &*w.strides);
        if same && (stored.bytes.as_ptr() as usize).is_multiple_of(stored.dtype.size()) {
            out.insert(w.name.clone(), stored.bytes);
        }
    }
    Ok(out)
}

/// Returns true if a weight is used in the panels that the source holds.
#[cfg(test)]
pub(crate) fn lends(program: &Program, weights: &dyn WeightSource, name: &str) -> bool {
    lent_weights(program, weights).is_ok_and(|lent| lent.contains_key(name))
}

/// Returns the base address of every weight and persistent buffer.
fn bind_weights(program: &Program, weights: &dyn WeightSource) -> Result<Bindings> {
    let stored = lent_weights(program, weights)?;
    let mut lent = BTreeMap::new();
    let sizes = crate::bind::constant_sizes(program);
    let mut base = vec![std::ptr::null_mut(); program.buffers.len()];
    let mut owned = Vec::new();
    let load_bytes = sizes[program.load_bytes.0 as usize]
        .and_then(|n| usize::try_from(n).ok())
        .ok_or_else(|| Error::internal("the block of load-time results has no constant size"))?;
    let load = blank(load_bytes)?;
    for (id, b) in program.buffers.iter().enumerate() {
        match &b.place {
            Place::Weight(w) if stored.contains_key(&w.name) => {
                let bytes = stored[&w.name];
                base[id] = bytes.as_ptr().cast_mut();
                lent.insert(id as BufferId, bytes.len());
            }
            Place::Weight(w) => {
                let found = match w.name.as_str() {
                    inrush_program::SEED => Some(FIRST_SEED),
                    name => weights.weight(name),
                };
                let view = found.ok_or_else(|| {
                    Error::input(format!("the model's weight `{}` is missing", w.name))
                })?;
                let pairs = Pairs::of(&view);
                let view = pairs.as_ref().map_or(view, |p| p.view(view.bytes));
                if view.dtype != b.dtype.0 || view.sizes != w.sizes {
                    return Err(Error::input(format!(
                        "the weight `{}` is {}{:?}, the program wants {}{:?}",
                        w.name, view.dtype, view.sizes, b.dtype.0, w.sizes
                    )));
                }
                let need =
                    extent(&w.sizes, view.strides).and_then(|n| n.checked_mul(view.dtype.size()));
                if need.is_none_or(|n| n > view.bytes.len()) {
                    return Err(Error::input(format!(
                        "the weight `{}` has too few bytes",
                        w.name
                    )));
                }
                let aligned =
                    (view.bytes.as_ptr() as usize).is_multiple_of(view.dtype.size().max(1));
                let same = view.sizes.contains(&0) || view.strides == w.strides;
                if same && aligned && !b.written {
                    base[id] = view.bytes.as_ptr() as *mut u8;
                } else {
                    // It has another layout than the program expects, or calls write it: a copy.
                    let want = extent(&w.sizes, &w.strides)
                        .and_then(|n| n.checked_mul(view.dtype.size()))
                        .ok_or_else(|| {
                            Error::input(format!("the weight `{}` is too large", w.name))
                        })?;
                    let storage = blank(want)?;
                    if want > 0 {
                        // SAFETY: both sides hold every coordinate (checked above).
                        unsafe {
                            copy_strided(
                                view.bytes.as_ptr(),
                                view.strides,
                                storage.as_ptr(),
                                &w.strides,
                                &w.sizes,
                                view.dtype.size(),
                            )
                        };
                    }
                    base[id] = storage.as_ptr();
                    owned.push(storage);
                }
            }
            Place::Persistent { offset } => {
                let constant = |s: inrush_program::SizeId| {
                    sizes[s.0 as usize].and_then(|n| usize::try_from(n).ok())
                };
                let place = constant(*offset)
                    .zip(constant(b.bytes))
                    .filter(|(o, n)| o.checked_add(*n).is_some_and(|e| e <= load_bytes));
                let (offset, _) = place.ok_or_else(|| {
                    Error::input(format!(
                        "the program is damaged: `{}` lies outside its block",
                        b.name
                    ))
                })?;
                base[id] = load.as_ptr().wrapping_add(offset);
            }
            Place::Alias { of, offset } if !base[*of as usize].is_null() => {
                let offset = sizes[offset.0 as usize].ok_or_else(|| {
                    Error::internal(format!(
                        "alias `{}` of a weight has no constant offset",
                        b.name
                    ))
                })?;
                base[id] = base[*of as usize].wrapping_offset(offset as isize);
            }
            _ => {}
        }
    }
    owned.push(load);
    Ok(Bindings { base, owned, lent })
}
