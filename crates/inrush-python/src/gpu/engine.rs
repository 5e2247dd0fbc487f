//! A call of a graph on a GPU.

use super::blas::{self, Blas};
use super::build;
use super::device::{CUDA, On};
use super::graphs::{Graphs, Todo};
use super::homes::Homes;
use super::library::{self, Functions};
use super::plan::{self, Launch, LibraryCall, Op, Operand, Plain, Plan, Take};
use super::runs::Place;
use super::tune::AtCall;
use crate::errors::raise;
use crate::recipe::{Device, Gpu, LibraryOp, Recipe, What};
use crate::run::{Call, scalar, share};
use crate::shim::{Handle, Shims};
use inrush_base::Error;
use inrush_cuda::driver::{Kernel, List, Stream};
use inrush_runtime::triton::Binary;
use pyo3::exceptions::PyRuntimeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Plans kept for a graph.
const MAX_PLANS: usize = 64;
/// Launches, library calls twice and calls from Python four times, from which on a call is captured: a replay with its copies
/// takes the host's time of some launches itself.
const MIN_GRAPH: usize = 5;
/// Addresses that kernels are promised to be multiples of.
const ALIGNMENT: u64 = 16;

/// What runs a recipe on a GPU, or its kernels in Triton's interpreter where the device is the CPU.
pub struct Engine {
    homes: Homes,
    /// Positions of the recipe's kernels by their names in programs.
    kernels: FxHashMap<String, usize>,
    device: Device,
    library: &'static Functions,
    binaries: Vec<Binary>,
    /// Loaded at the first call: a machine without a GPU may compile.
    code: OnceLock<Code>,
    plans: Mutex<Vec<Planned>>,
    lists: Mutex<Lists>,
    /// Blocks that load steps filled, by step.
    loaded: Mutex<FxHashMap<usize, (Owned, u64)>>,
    /// Where calls are captured.
    pub graphs: Option<Graphs>,
    /// What the first call tunes, until it comes; then what that did.
    tuning: Mutex<Option<AtCall>>,
    tuned: Mutex<Option<Vec<String>>>,
}

enum Code {
    Device(Vec<Arc<Kernel>>),
    /// The function that interprets, and what it must know of each kernel.
    Interpreter(Py<PyAny>, Vec<Py<PyAny>>),
}

/// Arguments that are written and did not lie as they should, and what was written in their stead.
type Copies = Vec<(Py<PyAny>, Py<PyAny>)>;

/// A plan and what it was made for: the stretch, and the symbols.
type Planned = (usize, SmallVec<[Option<i64>; 8]>, Arc<Ready>);

/// A plan with the tensors that library calls take.
pub(super) struct Ready {
    plan: Plan,
    /// Unlike any other plan's of the engine.
    number: usize,
    stretch: usize,
    /// Sets of tensors that no call uses at present.
    kept: Mutex<Vec<Kept>>,
    /// By run.
    pub(super) runs: Vec<Mutex<Place>>,
}

/// What one call at a time uses, and the next one again.
pub(super) struct Kept {
    /// For each operand the address that it was made for, and the tensor.
    tensors: Vec<(u64, Owned)>,
    lists: Vec<Tries>,
    /// The plan's number, and its stretch.
    plan: usize,
    stretch: usize,
}

/// What a plan knows of one of its lists of launches.
#[derive(Clone, Default)]
struct Tries {
    calls: usize,
    /// The driver does not make it.
    refused: bool,
}

/// A list of launches as the driver has it. Plans for other sizes that launch the same kernels use it too: its nodes are
/// then set anew, which still takes the host a small part of a launch each.
struct Listed {
    /// The plan that used it last.
    plan: usize,
    kernels: Vec<usize>,
    list: List,
    /// Base addresses that it was made with, in the order of the plan's list.
    bases: Vec<u64>,
}

/// What there is at one position of a stretch.
#[derive(Default)]
struct Here {
    /// Calls so far, of all plans.
    calls: usize,
    /// Lists that no call uses at present, the one used last at the end.
    lists: Vec<Listed>,
}

/// By stretch and position.
type Lists = FxHashMap<(usize, usize), Here>;

/// Calls before the one that makes a list: what is met once is not worth it.
const WARM: usize = 2;
/// Calls after which a plan gets a list of its own, and lists of one place at most.
const FAMILIAR: usize = 8;
const MAX_LISTS: usize = 8;

/// A tensor of ours, or none.
pub(super) struct Owned {
    pub handle: Handle,
    pub shims: &'static Shims,
}

// SAFETY: PyTorch's tensors may be used and released by any thread.
unsafe impl Send for Owned {}
// SAFETY: a shared reference reads the handle only.
unsafe impl Sync for Owned {}

impl Owned {
    fn none(shims: &'static Shims) -> Owned {
        Owned {
            handle: std::ptr::null_mut(),
            shims,
        }
    }
    fn is_none(&self) -> bool {
        self.handle.is_null()
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: the handle is ours and is forgotten.
            unsafe { self.shims.release(self.handle) };
        }
    }
}

/// Why native steps stopped.
pub(super) enum Stop {
    Failed(Error),
    /// The device has too little memory left for so many bytes.
    Memory(u64),
    /// A library call raised: Python says what.
    Library(usize),
    Python(PyErr),
}

/// The state of a call that needs no interpreter.
pub(super) struct Frame<'a> {
    engine: &'a Engine,
    recipe: &'a Recipe,
    shims: &'static Shims,
    code: &'a Code,
    pub(super) stream: Stream,
    /// cuBLAS and PyTorch's handle, where the recipe has products.
    pub(super) blas: Option<(&'static Blas, usize)>,
    /// What is issued is being recorded.
    pub(super) recording: bool,
    /// Base addresses: of slots, of the arena, of load steps' blocks.
    pub(super) bases: Vec<u64>,
    own: Vec<Owned>,
    /// Objects that are to be dropped when the interpreter is at hand.
    dropped: Vec<usize>,
    /// Set in a call that tunes.
    tuning: RefCell<Option<AtCall>>,
}

// SAFETY: see `Owned`; the device's stream is used by one thread at a time.
unsafe impl Send for Frame<'_> {}

/// How much a call gives the host to do, in launches.
fn host_work(recipe: &Recipe) -> usize {
    (recipe.steps.iter())
        .map(|s| match &s.what {
            What::Segment(s) => s.program.steps.len(),
            What::Library(_) => 2,
            What::Call(_) => 4,
            What::Kernel(_) => 1,
            What::View(_) => 0,
        })
        .sum()
}

impl Engine {
    /// Library calls that this PyTorch does not have become calls from Python.
    pub fn adapt(py: Python<'_>, recipe: &mut Recipe) -> PyResult<()> {
        let Some(gpu) = &recipe.gpu else {
            return Ok(());
        };
        // A machine without the library may compile all the same.
        let Ok(library) = library::functions(py, gpu.device.kind == CUDA) else {
            return Ok(());
        };
        for step in &mut recipe.steps {
            if let What::Library(l) = &step.what
                && !library.has(&l.op)
            {
                step.what = What::Call(l.call.clone());
            }
        }
        Ok(())
    }

    /// The recipe has been checked and adapted; `binaries` are those of its kernels, none where they are interpreted.
    pub fn new(
        py: Python<'_>,
        recipe: &Recipe,
        binaries: Vec<Binary>,
        graphs: bool,
    ) -> PyResult<Engine> {
        let device = (recipe.gpu.as_ref().map(|g| g.device))
            .ok_or_else(|| raise(Error::internal("no graph for a GPU")))?;
        let gpu = device.kind == CUDA;
        let library = library::functions(py, gpu).or_else(|_| library::functions(py, false))?;
        let homes = Homes::of(recipe);
        let worth = gpu && homes.stretches.len() == 1 && host_work(recipe) >= MIN_GRAPH;
        let graphs = (graphs && worth).then(Graphs::default);
        let kernels = (recipe.gpu.iter())
            .flat_map(|g| g.kernels.iter().enumerate())
            .map(|(k, kernel)| (kernel.symbol.clone(), k))
            .collect();
        Ok(Engine {
            graphs,
            homes,
            kernels,
            device,
            library,
            binaries,
            code: OnceLock::new(),
            plans: Mutex::default(),
            lists: Mutex::default(),
            loaded: Mutex::default(),
            tuning: Mutex::default(),
            tuned: Mutex::default(),
        })
    }

    /// What the call that tuned measured.
    pub fn tuned(&self) -> Vec<String> {
        let tuned = self.tuned.lock().unwrap_or_else(PoisonError::into_inner);
        tuned.clone().unwrap_or_default()
    }

    /// Has the next call tune its kernels on its own memory.
    pub fn tune_at_call(&self, tuning: AtCall) {
        *self.tuning.lock().unwrap_or_else(PoisonError::into_inner) = Some(tuning);
    }

    /// Replays a call that was captured; else says what to do.
    pub fn replay(
        &self,
        py: Python<'_>,
        shims: &'static Shims,
        call: &mut Call<'_>,
    ) -> PyResult<Todo> {
        let Some(graphs) = &self.graphs else {
            return Ok(Todo::Run);
        };
        let on = On::device(py, self.device)?;
        let run = |py: Python<'_>, call: &mut Call<'_>| self.run(py, shims, call);
        graphs.call(py, shims, self.device, on.stream.0, call, &run)
    }

    /// Runs all steps of a recipe; arguments are in the call's slots.
    pub fn run(&self, py: Python<'_>, shims: &'static Shims, call: &mut Call<'_>) -> PyResult<()> {
        let recipe = &call.runner.recipe;
        let gpu = (recipe.gpu.as_ref()).ok_or_else(|| PyRuntimeError::new_err("no kernels"))?;
        let on = match self.device.kind {
            CUDA => Some(On::device(py, self.device)?),
            _ => None,
        };
        let code = match self.code.get() {
            Some(c) => c,
            None => {
                let code = self.load(py, gpu)?;
                self.code.get_or_init(|| code)
            }
        };
        let products = |s: &crate::recipe::Step| {
            let What::Library(l) = &s.what else {
                return false;
            };
            matches!(l.op, LibraryOp::Mm | LibraryOp::Bmm)
        };
        let blas = match on.is_some() && recipe.steps.iter().any(products) {
            true => match blas::find(py) {
                Some(b) => Some((b, blas::handle(py)?)),
                None => None,
            },
            false => None,
        };
        let mut frame = Frame {
            engine: self,
            blas,
            recording: false,
            recipe,
            shims,
            code,
            stream: on.as_ref().map_or(Stream(0), |o| o.stream),
            bases: vec![0; recipe.slots + 1 + recipe.steps.len()],
            own: (0..recipe.slots).map(|_| Owned::none(shims)).collect(),
            dropped: Vec::new(),
            tuning: RefCell::new(
                (self.tuning.lock().unwrap_or_else(PoisonError::into_inner)).take(),
            ),
        };
        let mut copies = Copies::new();
        for (k, stretch) in self.homes.stretches.iter().enumerate() {
            let ready = self.ready(k, call).map_err(raise)?;
            frame.stretch(py, call, &ready, &mut copies)?;
            let last = stretch.end - 1;
            if recipe.steps[last].learns {
                call.learn(py, shims, Some(last))?;
            }
        }
        if let Some(t) = frame.tuning.take() {
            *self.tuned.lock().unwrap_or_else(PoisonError::into_inner) = Some(t.done());
        }
        for o in &recipe.outputs {
            if let crate::recipe::Out::Slot(s) = o {
                frame.show(py, call, *s)?;
            }
        }
        frame.copy_back(py, &copies)
    }

    fn load(&self, py: Python<'_>, gpu: &Gpu) -> PyResult<Code> {
        if self.device.kind == CUDA {
            let kernels = build::load(&self.binaries, gpu).map_err(raise)?;
            return Ok(Code::Device(kernels));
        }
        let module = py.import("inrush._interpret")?;
        let make = module.getattr("kernel")?;
        let kernels = (gpu.kernels.iter())
            .map(|k| {
                let signature: Vec<(&str, &str)> = (k.signature.iter())
                    .map(|(n, t)| (n.as_str(), t.as_str()))
                    .collect();
                let constants = k.constants.clone();
                let made = make.call1((&k.text, &k.function, signature, constants))?;
                Ok(made.unbind())
            })
            .collect::<PyResult<_>>()?;
        let launch = module.getattr("launch")?.unbind();
        Ok(Code::Interpreter(launch, kernels))
    }

    /// The plan for a stretch at the present values of the symbols.
    fn ready(&self, stretch: usize, call: &Call<'_>) -> Result<Arc<Ready>, Error> {
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let found = (plans.iter()).rposition(|(k, s, _)| *k == stretch && *s == call.symbols);
        if let Some(at) = found {
            return Ok(plans[at].2.clone());
        }
        let recipe = &call.runner.recipe;
        let plan = plan::plan(
            recipe,
            &self.homes,
            self.homes.stretches[stretch].clone(),
            &call.symbols,
            call.sizes(),
            &self.kernels,
            &self.binaries.iter().map(|b| b.scratch).collect::<Vec<_>>(),
        )?;
        static NUMBERS: AtomicUsize = AtomicUsize::new(0);
        let ready = Arc::new(Ready {
            runs: (0..plan.runs).map(|_| Mutex::default()).collect(),
            plan,
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            stretch,
            kept: Mutex::default(),
        });
        if plans.len() == MAX_PLANS {
            plans.remove(0);
        }
        plans.push((stretch, call.symbols.clone(), ready.clone()));
        Ok(ready)
    }
}

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

impl Ready {
    fn take(&self, shims: &'static Shims) -> Kept {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.pop().unwrap_or_else(|| {
            let none = || (0, Owned::none(shims));
            Kept {
                tensors: (0..self.plan.operands).map(|_| none()).collect(),
                lists: vec![Tries::default(); self.plan.lists],
                plan: self.number,
                stretch: self.stretch,
            }
        })
    }

    fn give(&self, set: Kept) {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        kept.push(set);
    }
}

impl Frame<'_> {
    fn stretch(
        &mut self,
        py: Python<'_>,
        call: &mut Call<'_>,
        ready: &Ready,
        copies: &mut Copies,
    ) -> PyResult<()> {
        let plan = &ready.plan;
        let _arena = match plan.arena_bytes {
            0 => None,
            bytes => {
                let (arena, base) = (self.memory(bytes))
                    .ok_or_else(|| out_of_memory(py, self.engine.device, bytes))?;
                self.bases[self.recipe.slots] = base;
                Some(arena)
            }
        };
        if !plan.loads.is_empty() {
            self.loads(py, plan)?;
        }
        let mut kept = ready.take(self.shims);
        let mut at = 0;
        while at < plan.ops.len() {
            let op = &plan.ops[at];
            if op.is_python() {
                self.python(py, call, op, copies)?;
                at += 1;
                continue;
            }
            let run = plan.ops[at..].iter().take_while(|o| !o.is_python()).count();
            let ops = &plan.ops[at..at + run];
            let (me, tensors) = (&mut *self, &mut kept);
            let done = py.detach(move || me.native(ops, ready, tensors));
            if let Err(stop) = done {
                return Err(self.raise(py, call, stop));
            }
            for s in self.dropped.drain(..) {
                call.slots[s] = None;
            }
            at += run;
        }
        ready.give(kept);
        Ok(())
    }

    /// Whether steps may be recorded: the first call that tunes issues them all.
    pub(super) fn may_record(&self) -> bool {
        matches!(self.code, Code::Device(_)) && !self.recording && self.tuning.borrow().is_none()
    }

    /// The kernels, where a device runs them.
    pub(super) fn kernels(&self) -> Vec<Arc<Kernel>> {
        match self.code {
            Code::Device(kernels) => kernels.clone(),
            Code::Interpreter(..) => Vec::new(),
        }
    }

    pub(super) fn device_index(&self) -> i32 {
        self.engine.device.index
    }

    /// Memory of the device, from PyTorch's allocator.
    pub(super) fn memory(&self, bytes: u64) -> Option<(Owned, u64)> {
        const U8: i32 = 0;
        let (handle, base) =
            (self.shims).allocate(&[bytes as i64], &[1], U8, self.engine.device)?;
        let owned = Owned {
            handle,
            shims: self.shims,
        };
        Some((owned, base))
    }

    /// Runs the load steps that no call ran before.
    fn loads(&mut self, py: Python<'_>, plan: &Plan) -> PyResult<()> {
        let mut loaded = (self.engine.loaded)
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for (step, bytes, launches) in &plan.loads {
            let base = self.recipe.slots + 1 + *step;
            if let Some((_, address)) = loaded.get(step) {
                self.bases[base] = *address;
                continue;
            }
            let (owned, address) = (self.memory((*bytes).max(1)))
                .ok_or_else(|| out_of_memory(py, self.engine.device, *bytes))?;
            self.bases[base] = address;
            for l in launches {
                self.launch(l).map_err(|e| self.stop(py, e))?;
            }
            // Other streams may read it.
            if let Code::Device(_) = self.code {
                let driver = inrush_cuda::driver::Driver::get().map_err(raise)?;
                driver.synchronize(self.stream).map_err(raise)?;
            }
            loaded.insert(*step, (owned, address));
        }
        Ok(())
    }

    pub(super) fn native(
        &mut self,
        ops: &[Op],
        ready: &Ready,
        kept: &mut Kept,
    ) -> Result<(), Stop> {
        for op in ops {
            match op {
                Op::Launch(l) => self.launch(l)?,
                Op::List(l) => self.list(l, kept)?,
                Op::Run(r) => self.run(r, ready, kept)?,
                Op::Library(l) => self.library(l, kept)?,
                Op::Copy(c) => self.copy(c)?,
                Op::Allocate(a) => {
                    let s = &a.shape;
                    let made =
                        (self.shims).allocate(&s.sizes, &s.strides, s.dtype, self.engine.device);
                    let (handle, address) = made.ok_or_else(|| Stop::memory(s))?;
                    self.bases[a.slot] = address;
                    self.own[a.slot] = Owned {
                        handle,
                        shims: self.shims,
                    };
                }
                Op::Free { slot } => {
                    self.own[*slot] = Owned::none(self.shims);
                    self.dropped.push(*slot);
                }
                Op::Take(_) | Op::Python { .. } | Op::View(_) | Op::Set { .. } => {
                    return Err(Stop::Failed(Error::internal("a step of Python's")));
                }
            }
        }
        Ok(())
    }

    /// Arguments of a launch with the addresses of this call.
    fn packed(&self, l: &Launch) -> SmallVec<[u8; 512]> {
        let mut bytes: SmallVec<[u8; 512]> = SmallVec::from_slice(&l.arguments);
        for (place, base, offset) in &l.addresses {
            let address = self.bases[*base as usize] + offset;
            let at = *place as usize;
            bytes[at..at + 8].copy_from_slice(&address.to_le_bytes());
        }
        bytes
    }

    /// Launches that follow one another: as one where that was made ready before.
    fn list(&self, l: &plan::List, kept: &mut Kept) -> Result<(), Stop> {
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
        let driver = inrush_cuda::driver::Driver::get().map_err(Stop::Failed)?;
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
                let launches = (l.launches.iter())
                    .map(|x| (kernels[x.kernel].clone(), x.grid, self.packed(x).to_vec()));
                // SAFETY: arguments were packed by the kernels' signatures; plans hold no launch of an empty grid.
                unsafe { driver.list(launches) }.map(|list| Listed {
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
                let mut bytes = self.packed(x);
                // SAFETY: the kernels are those that the list was made of; arguments were packed by their signatures.
                unsafe { listed.list.set(at, x.grid, &mut bytes) }?;
            }
        }
        Ok(())
    }

    fn launch(&self, l: &Launch) -> Result<(), Stop> {
        let mut bytes = self.packed(l);
        match self.code {
            Code::Device(kernels) => {
                if let (Some(t), Some(gpu)) = (self.tuning.borrow_mut().as_mut(), &self.recipe.gpu)
                {
                    t.before(&gpu.kernels[l.kernel].symbol, l, &bytes, self.stream);
                }
                // SAFETY: arguments were packed by the kernel's signature; addresses are of memory that lives until the
                // work on this stream is done, since PyTorch's allocator reuses it on the same stream only.
                let done = unsafe { kernels[l.kernel].launch(l.grid, &mut bytes, self.stream) };
                done.map_err(|e| Stop::Failed(e.context(self.title(l))))
            }
            Code::Interpreter(launch, kernels) => Python::attach(|py| {
                let args = (&kernels[l.kernel], l.grid, bytes.as_slice());
                launch.call1(py, args).map(drop)
            })
            .map_err(Stop::Python),
        }
    }

    fn copy(&self, c: &plan::Copy) -> Result<(), Stop> {
        let address = |(base, offset): (plan::BaseId, u64)| self.bases[base as usize] + offset;
        let (to, from, bytes) = (address(c.to), address(c.from), c.bytes as usize);
        match self.code {
            Code::Device(_) => {
                let driver = inrush_cuda::driver::Driver::get().map_err(Stop::Failed)?;
                // SAFETY: both are tensors of these bytes, which live as the arguments of launches do.
                unsafe { driver.copy(to, from, bytes, self.stream) }.map_err(Stop::Failed)
            }
            // SAFETY: likewise, on the host; the values have memory of their own.
            Code::Interpreter(..) => unsafe {
                std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes);
                Ok(())
            },
        }
    }

    fn title(&self, l: &Launch) -> String {
        let kernel = self.recipe.gpu.as_ref().map(|g| &g.kernels[l.kernel]);
        kernel.map_or_else(String::new, |k| format!("kernel `{}`", k.function))
    }

    fn library(&mut self, l: &LibraryCall, kept: &mut Kept) -> Result<(), Stop> {
        let What::Library(step) = &self.recipe.steps[l.step].what else {
            return Err(Stop::Failed(Error::internal("no library call")));
        };
        if let (Some((blas, handle)), Some(gemm)) = (self.blas, &l.gemm)
            && let [Some(a), Some(b)] = l.inputs.as_slice()
            && let Some(out) = &l.out
        {
            let (a, b, out) = (self.at(a), self.at(b), self.at(out));
            // SAFETY: the handle is PyTorch's for this thread; memory lives as in a launch.
            if unsafe { blas.run(handle, gemm, a, b, out) } {
                return Ok(());
            }
        }
        if self.recording {
            return Err(Stop::Failed(Error::internal("a call that PyTorch makes")));
        }
        let mut inputs: SmallVec<[Handle; 4]> = SmallVec::new();
        for i in &l.inputs {
            inputs.push(match i {
                None => std::ptr::null_mut(),
                Some(o) => self.operand(o, kept)?,
            });
        }
        let out = match &l.out {
            Some(o) => self.operand(o, kept)?,
            None => std::ptr::null_mut(),
        };
        let mut results = [std::ptr::null_mut(); 9];
        // SAFETY: operands were just made; they and what they look at live through the call.
        let done = unsafe { (self.engine.library).call(&step.op, &inputs, out, &mut results) };
        let shims = self.shims;
        let mut made: SmallVec<[Owned; 9]> = (results.into_iter())
            .map(|handle| Owned { handle, shims })
            .collect();
        if !done {
            return Err(Stop::Library(l.step));
        }
        if l.out.is_some() {
            return Ok(());
        }
        for (k, slot) in step.outs.iter().enumerate() {
            // What nobody wants may be an undefined tensor.
            let Some(result) = made.get_mut(k).filter(|r| !r.is_none() && l.wanted[k]) else {
                continue;
            };
            let result = std::mem::replace(result, Owned::none(shims));
            let result = match &l.shapes[k] {
                Some(shape) => self.conform(result, shape)?,
                None => result,
            };
            // SAFETY: the tensor is owned here.
            self.bases[*slot] = unsafe { shims.address(result.handle) }.unwrap_or(0);
            self.own[*slot] = result;
        }
        Ok(())
    }

    /// The result itself if it lies as its metadata says, else a copy that does.
    fn conform(&self, result: Owned, shape: &plan::Shape) -> Result<Owned, Stop> {
        let failed = |_| Stop::Failed(Error::internal("a result tells no sizes"));
        // SAFETY: the tensor is owned by the caller.
        let (sizes, strides) = unsafe { self.shims.shape(result.handle) }.map_err(failed)?;
        let lies = sizes == shape.sizes.as_slice()
            && (sizes.iter().zip(strides.iter().zip(&shape.strides)))
                .all(|(n, (a, b))| *n <= 1 || a == b);
        if lies || sizes != shape.sizes.as_slice() {
            return Ok(result);
        }
        let copy = (self.shims).allocate(
            &shape.sizes,
            &shape.strides,
            shape.dtype,
            self.engine.device,
        );
        let (handle, _) = copy.ok_or_else(|| Stop::memory(shape))?;
        let copy = Owned {
            handle,
            shims: self.shims,
        };
        // SAFETY: both are owned.
        match unsafe { self.shims.copy(copy.handle, result.handle) } {
            true => Ok(copy),
            false => Err(Stop::Failed(Error::internal("a result cannot be copied"))),
        }
    }

    /// The address of an operand.
    fn at(&self, o: &Operand) -> u64 {
        match o {
            Operand::Memory { base, offset, .. } => self.bases[*base as usize] + offset,
            Operand::Slot(s) => self.bases[*s],
        }
    }

    /// The tensor of an operand.
    fn operand(&self, o: &Operand, kept: &mut Kept) -> Result<Handle, Stop> {
        match o {
            Operand::Slot(s) => match self.own[*s].handle {
                h if !h.is_null() => Ok(h),
                _ => Err(Stop::Failed(Error::internal("an operand is not there"))),
            },
            Operand::Memory {
                kept: k,
                base,
                offset,
                shape,
            } => {
                let address = self.bases[*base as usize] + offset;
                let (was, tensor) = &mut kept.tensors[*k];
                if *was != address || tensor.is_none() {
                    let made = (self.shims).blob(
                        address,
                        &shape.sizes,
                        &shape.strides,
                        shape.dtype,
                        self.engine.device,
                    );
                    let handle =
                        made.ok_or_else(|| Stop::Failed(Error::internal("no tensor over memory")))?;
                    *tensor = Owned {
                        handle,
                        shims: self.shims,
                    };
                    *was = address;
                }
                Ok(tensor.handle)
            }
        }
    }

    fn python(
        &mut self,
        py: Python<'_>,
        call: &mut Call<'_>,
        op: &Op,
        copies: &mut Copies,
    ) -> PyResult<()> {
        match op {
            Op::Take(t) => self.take(py, call, t, copies),
            Op::Python { step, reads } => {
                self.copy_back(py, copies)?;
                for s in reads {
                    self.show(py, call, *s)?;
                }
                let c = match &self.recipe.steps[*step].what {
                    What::Call(c) => c,
                    _ => return Err(PyRuntimeError::new_err("no called operator")),
                };
                c.run(py, call)
            }
            Op::View(v) => {
                self.show(py, call, v.base)?;
                let base = call.value(v.base)?;
                let view = share(py, self.shims, base, &v.sizes, &v.strides, v.offset)?;
                call.slots[v.slot] = Some(view);
                Ok(())
            }
            Op::Set { slot, value } => {
                let value = match value {
                    Plain::Int(i) => i.into_pyobject(py)?.into_any().unbind(),
                    Plain::Scalar(s) => scalar(py, *s)?,
                    Plain::None => py.None(),
                };
                call.slots[*slot] = Some(value);
                Ok(())
            }
            _ => Err(PyRuntimeError::new_err("a native step")),
        }
    }

    /// Has a tensor of its own be an object too.
    fn show(&self, py: Python<'_>, call: &mut Call<'_>, slot: usize) -> PyResult<()> {
        let own = &self.own[slot];
        if call.slots[slot].is_none() && !own.is_none() {
            // SAFETY: the tensor is owned by the frame.
            let object = unsafe { self.shims.object(py, own.handle)? };
            call.slots[slot] = Some(object);
        }
        Ok(())
    }

    fn take(
        &mut self,
        py: Python<'_>,
        call: &mut Call<'_>,
        t: &Take,
        copies: &mut Copies,
    ) -> PyResult<()> {
        let shims = self.shims;
        let object = call.value(t.slot)?.bind(py);
        let h = shims.tensor(object)?;
        let want = &t.shape;
        // SAFETY: the tensor is held by its slot.
        let ((address, dtype, here), (sizes, strides)) =
            unsafe { (shims.data_on(h, self.engine.device)?, shims.shape(h)?) };
        if sizes != want.sizes.as_slice() {
            return Err(PyRuntimeError::new_err(format!(
                "a tensor of sizes {sizes:?} where the graph was compiled for {:?}",
                want.sizes
            )));
        }
        let lies = (sizes.iter().zip(strides.iter().zip(&want.strides)))
            .all(|(n, (a, b))| *n <= 1 || a == b);
        let fits = here && dtype == want.dtype && lies && address % ALIGNMENT == 0;
        if fits || sizes.contains(&0) {
            self.bases[t.slot] = address;
            return Ok(());
        }
        let made = shims.allocate(&want.sizes, &want.strides, want.dtype, self.engine.device);
        let (handle, address) = made.ok_or_else(|| {
            let bytes = want.bytes().unwrap_or(u64::MAX);
            out_of_memory(py, self.engine.device, bytes)
        })?;
        let owned = Owned { handle, shims };
        // SAFETY: the tensor is owned.
        let copy = unsafe { shims.object(py, owned.handle)? };
        // A number of the host's goes along with a launch; a copy would wait for the device.
        let how = match !here && sizes.is_empty() {
            true => intern!(py, "fill_"),
            false => intern!(py, "copy_"),
        };
        copy.bind(py).call_method1(how, (object,))?;
        self.bases[t.slot] = address;
        if t.written {
            copies.push((object.clone().unbind(), copy));
        }
        // Kept to the end: native steps read it.
        self.own[t.slot] = owned;
        Ok(())
    }

    /// What steps wrote into copies of arguments goes to the arguments.
    fn copy_back(&self, py: Python<'_>, copies: &Copies) -> PyResult<()> {
        for (original, copy) in copies.iter() {
            original.bind(py).call_method1("copy_", (copy,))?;
        }
        Ok(())
    }

    fn stop(&self, py: Python<'_>, stop: Stop) -> PyErr {
        match stop {
            Stop::Failed(e) => crate::run::run_error(&e),
            Stop::Memory(bytes) => out_of_memory(py, self.engine.device, bytes),
            Stop::Python(e) => e,
            Stop::Library(_) => PyRuntimeError::new_err("a library call failed"),
        }
    }

    /// The exception for a stop. A library call that failed is made again from Python, which raises what PyTorch raises.
    fn raise(&self, py: Python<'_>, call: &mut Call<'_>, stop: Stop) -> PyErr {
        let Stop::Library(step) = stop else {
            return self.stop(py, stop);
        };
        let What::Library(l) = &self.recipe.steps[step].what else {
            return PyRuntimeError::new_err("no library call");
        };
        let name = format!("{:?}", l.op);
        let name = name
            .split([' ', '{'])
            .next()
            .unwrap_or_default()
            .to_string();
        for s in l.call.reads() {
            if self.show(py, call, s).is_err() || call.slots[s].is_none() {
                return PyRuntimeError::new_err(format!(
                    "PyTorch refused a library call ({name}); what it wrote to stderr says why"
                ));
            }
        }
        match l.call.run(py, call) {
            Err(e) => e,
            Ok(()) => PyRuntimeError::new_err(format!("PyTorch refused a library call ({name})")),
        }
    }
}

impl Stop {
    fn memory(shape: &plan::Shape) -> Stop {
        Stop::Memory(shape.bytes().unwrap_or(u64::MAX))
    }
}

/// PyTorch's own exception for memory that it does not have, by asking for it once more: it says what takes up the rest.
pub(super) fn out_of_memory(py: Python<'_>, device: Device, bytes: u64) -> PyErr {
    let name = match device.kind {
        CUDA => format!("{}:{}", inrush_cuda::CUDA.torch_name, device.index),
        _ => "cpu".into(),
    };
    let ask = || -> PyResult<PyErr> {
        let torch = py.import("torch")?;
        let options = PyDict::new(py);
        options.set_item("dtype", torch.getattr("uint8")?)?;
        options.set_item("device", &name)?;
        torch.call_method("empty", (bytes,), Some(&options))?;
        let text = format!("a compiled graph needs {bytes} bytes that `{name}` did not have");
        let error = torch.getattr("OutOfMemoryError")?.call1((text,))?;
        Ok(PyErr::from_value(error))
    };
    ask().unwrap_or_else(|e| e)
}
