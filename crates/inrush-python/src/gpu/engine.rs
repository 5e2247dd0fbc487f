//! A call of a graph on a GPU.

mod calls;
mod lists;
mod python;
mod steps;

use self::lists::{Lists, Tries};
use super::blas::{self, Blas};
use super::build;
use super::device::{CUDA, On};
use super::graphs::{Graphs, Todo};
use super::homes::Homes;
use super::library::{self, Functions};
use super::owned::Owned;
use super::plan::{self, Plan};
use super::runs::Place;
use super::tune::AtCall;
use crate::errors::raise;
use crate::recipe::{Device, Gpu, LibraryOp, Recipe, What};
use crate::run::Call;
use crate::shim::Shims;
use inrush_base::Error;
use inrush_cuda::driver::{Kernel, Stream};
use inrush_runtime::triton::Binary;
use pyo3::exceptions::PyRuntimeError;
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
            &self.binaries,
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
