//! A call of a program on a GPU.

mod batches;
mod library;
mod steps;

use self::batches::{Batches, Tries};
use super::cublas::Blas;
use super::driver::{DevicePtr, Stream};
use super::kernels::{Kernels, Provided};
use super::placement::Placement;
use super::plan::{self, Plan};
use super::replay::Recordings;
use crate::host::Host;
use crate::program::{Device, Gpu, HostProgram, LibraryOp, Step, StepKind};
use crate::shape::Shape;
use inrush_base::Error;
use inrush_runtime::triton::Binary;
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Plans kept for a program.
const MAX_PLANS: usize = 64;

/// Executes a program on a GPU, or through its host's interpreter where the device is the CPU.
pub struct Engine<H: Host> {
    placement: Placement,
    /// Positions of the program's kernels by their names in segments.
    kernels: FxHashMap<String, usize>,
    device: Device,
    /// In the order of the program.
    provided: Kernels,
    /// Loaded at the first call: a machine without a GPU may compile.
    code: OnceLock<Code<H>>,
    plans: Mutex<Vec<Planned<H>>>,
    batches: Mutex<Batches>,
    /// Blocks that load steps filled, by step.
    loaded: Mutex<FxHashMap<usize, (H::Tensor, u64)>>,
    /// Kernels that the first call tunes, until it comes; then a report of that.
    tuning: Mutex<Option<Box<dyn TuneAtCall>>>,
    tuned: Mutex<Option<Vec<String>>>,
}

/// Tunes the kernels of a call while it runs.
pub trait TuneAtCall: Send {
    /// The call is about to make a launch of the kernel `symbol`; the addresses are those of its buffers, in order, and what
    /// scratch space it has follows them.
    fn before(&mut self, symbol: &str, addresses: Vec<u64>, stream: Stream);

    /// Returns a report of what was measured.
    fn done(self: Box<Self>) -> Vec<String>;
}

/// Kernels of the device, or a host that interprets them.
enum Code<H: Host> {
    Device,
    Interpreter(H::Interpreter),
}

/// A plan and what it was made for: the region, and the symbols.
type Planned<H> = (usize, SmallVec<[Option<i64>; 8]>, Arc<BoundPlan<H>>);

/// A plan with the tensors that library calls take.
pub(super) struct BoundPlan<H: Host> {
    plan: Plan,
    /// Unlike any other plan's of the engine.
    number: usize,
    region: usize,
    /// Sets of tensors that no call uses at present.
    cached: Mutex<Vec<CachedTensors<H>>>,
    /// By recordable run of steps.
    pub(super) recordings: Vec<Mutex<Recordings>>,
}

/// State of a plan that one call at a time uses, and the next one again.
pub(super) struct CachedTensors<H: Host> {
    /// For each operand the address that it was made for, and the tensor.
    tensors: Vec<(u64, Option<H::Tensor>)>,
    batches: Vec<Tries>,
    /// The plan's number, and its region.
    plan: usize,
    region: usize,
}

/// Why native steps stopped.
#[derive(Debug)]
pub enum Stop<E> {
    Failed(Error),
    /// The device has too little memory left for so many bytes.
    Memory(u64),
    /// The library call of this step was refused; the host may know why.
    Library(usize),
    /// A step of the host failed.
    Host(E),
}

/// The state of a call that needs no interpreter.
pub struct Frame<'a, H: Host> {
    engine: &'a Engine<H>,
    host: &'a H,
    pub program: &'a HostProgram,
    code: &'a Code<H>,
    /// Where work is issued: the host's stream, or one that records.
    pub(super) stream: Stream,
    /// cuBLAS and its handle, where the program has products.
    pub(super) blas: Option<(&'static Blas, usize)>,
    /// Work is being recorded, not run.
    pub(super) recording: bool,
    /// Base addresses: of slots, of the arena, of load steps' blocks.
    pub bases: Vec<u64>,
    /// Tensors that the call owns, by slot.
    pub own: Vec<Option<H::Tensor>>,
    /// Memory of the caller's for outputs, by slot: used where it has the layout of the output.
    pub(super) into: Vec<(usize, DevicePtr, Shape)>,
    /// Slots whose values the host is to drop.
    released: Vec<usize>,
    /// Set in a call that tunes.
    tuning: RefCell<Option<Box<dyn TuneAtCall>>>,
}

/// Returns true for a matrix product, which cuBLAS may do without the host.
fn is_product(s: &Step) -> bool {
    let StepKind::Library(l) = &s.kind else {
        return false;
    };
    matches!(l.op, LibraryOp::Mm | LibraryOp::Bmm)
}

impl<H: Host> Engine<H> {
    /// The program has been checked; `binaries` are those of its kernels, none where they are interpreted.
    ///
    /// # Errors
    /// An internal error for a program of the CPU.
    pub fn new(program: &HostProgram, binaries: Vec<Binary>) -> Result<Self, Error> {
        Engine::with(program, binaries.into_iter().map(Provided::Built).collect())
    }

    /// As [`Engine::new`], with kernels that may still be built.
    ///
    /// # Errors
    /// Those of [`Engine::new`].
    pub fn with(program: &HostProgram, provided: Vec<Provided>) -> Result<Self, Error> {
        let gpu = (program.gpu.as_ref()).ok_or_else(|| Error::internal("no graph for a GPU"))?;
        let kernels = (gpu.kernels.iter().enumerate())
            .map(|(k, kernel)| (kernel.symbol.clone(), k))
            .collect();
        Ok(Engine {
            placement: Placement::of(program),
            kernels,
            device: gpu.device,
            provided: Kernels::new(provided),
            code: OnceLock::new(),
            plans: Mutex::default(),
            batches: Mutex::default(),
            loaded: Mutex::default(),
            tuning: Mutex::default(),
            tuned: Mutex::default(),
        })
    }

    /// Returns the device that the program was compiled for.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Returns true if all sizes are known before the first step runs.
    pub fn has_known_sizes(&self) -> bool {
        self.placement.regions.len() == 1
    }

    /// Returns what the call that tuned measured.
    pub fn tuned(&self) -> Vec<String> {
        let tuned = self.tuned.lock().unwrap_or_else(PoisonError::into_inner);
        tuned.clone().unwrap_or_default()
    }

    /// Has the next call tune its kernels on its own memory.
    pub fn tune_at_call(&self, tuning: Box<dyn TuneAtCall>) {
        *self.tuning.lock().unwrap_or_else(PoisonError::into_inner) = Some(tuning);
    }

    /// Runs all steps of a program; arguments are in the call.
    ///
    /// # Errors
    /// The host's for its own steps and for its arguments; those of the driver and of planning through [`Host::error`].
    pub fn run(
        &self,
        host: &H,
        program: &HostProgram,
        call: &mut H::Call<'_>,
    ) -> Result<(), H::Error> {
        let gpu = (program.gpu.as_ref()).ok_or_else(|| H::error(Error::internal("no kernels")))?;
        let code = match self.code.get() {
            Some(c) => c,
            None => {
                let code = self.load(host, call, gpu)?;
                self.code.get_or_init(|| code)
            }
        };
        let blas = match self.device.is_gpu() && program.steps.iter().any(is_product) {
            true => host.blas(call)?,
            false => None,
        };
        let mut frame = Frame {
            engine: self,
            host,
            blas,
            recording: false,
            program,
            code,
            stream: host.stream(),
            bases: vec![0; program.slots + 1 + program.steps.len()],
            own: (0..program.slots).map(|_| None).collect(),
            into: H::outputs_into(call),
            released: Vec::new(),
            tuning: RefCell::new(
                (self.tuning.lock().unwrap_or_else(PoisonError::into_inner)).take(),
            ),
        };
        for (k, region) in self.placement.regions.iter().enumerate() {
            let bound = self.bound(program, k, call).map_err(H::error)?;
            frame.region(call, &bound)?;
            let last = region.end - 1;
            if program.steps[last].binds_symbols {
                host.bind_symbols(call, last)?;
            }
        }
        if let Some(t) = frame.tuning.take() {
            *self.tuned.lock().unwrap_or_else(PoisonError::into_inner) = Some(t.done());
        }
        host.finish(call, &mut frame)
    }

    /// Loads the kernels that are built into a device now, which the first call would do.
    ///
    /// # Errors
    /// Those of the driver, for machine code that it refuses.
    pub fn preload(&self, program: &HostProgram) -> Result<(), Error> {
        if let Some(gpu) = program.gpu.as_ref().filter(|_| self.device.is_gpu()) {
            self.provided.load_built(gpu)?;
            _ = self.code.set(Code::Device);
        }
        Ok(())
    }

    fn load(&self, host: &H, call: &mut H::Call<'_>, gpu: &Gpu) -> Result<Code<H>, H::Error> {
        if self.device.is_gpu() {
            self.provided.load_built(gpu).map_err(H::error)?;
            return Ok(Code::Device);
        }
        host.interpreter(call, gpu).map(Code::Interpreter)
    }

    /// Returns the plan for a region at the present values of the symbols.
    fn bound(
        &self,
        program: &HostProgram,
        region: usize,
        call: &H::Call<'_>,
    ) -> Result<Arc<BoundPlan<H>>, Error> {
        let (symbols, sizes) = H::known(call);
        let mut plans = self.plans.lock().unwrap_or_else(PoisonError::into_inner);
        let found = (plans.iter()).rposition(|(k, s, _)| *k == region && s.as_slice() == symbols);
        if let Some(at) = found {
            return Ok(plans[at].2.clone());
        }
        let plan = plan::plan(
            program,
            &self.placement,
            self.placement.regions[region].clone(),
            symbols,
            sizes,
            &self.kernels,
            &self.provided,
        )?;
        static NUMBERS: AtomicUsize = AtomicUsize::new(0);
        let bound = Arc::new(BoundPlan {
            recordings: (0..plan.recordables).map(|_| Mutex::default()).collect(),
            plan,
            number: NUMBERS.fetch_add(1, Ordering::Relaxed),
            region,
            cached: Mutex::default(),
        });
        if plans.len() == MAX_PLANS {
            plans.remove(0);
        }
        plans.push((region, symbols.into(), bound.clone()));
        Ok(bound)
    }
}

impl<H: Host> BoundPlan<H> {
    fn take(&self) -> CachedTensors<H> {
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        cached.pop().unwrap_or_else(|| CachedTensors {
            tensors: (0..self.plan.operands).map(|_| (0, None)).collect(),
            batches: vec![Tries::default(); self.plan.batches],
            plan: self.number,
            region: self.region,
        })
    }

    fn give(&self, set: CachedTensors<H>) {
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        cached.push(set);
    }
}

impl<E> Stop<E> {
    /// Stops for lack of memory for a tensor.
    pub fn memory(shape: &Shape) -> Self {
        Stop::Memory(shape.bytes().unwrap_or(u64::MAX))
    }
}
