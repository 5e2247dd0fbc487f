//! Packages: an exported program compiled ahead of time, and loaded as a callable of this process.
//!
//! On a CPU a package's program is a single segment without calls, and PyTorch is needed for its
//! tensors only. On a GPU the executor of packages runs it on PyTorch's tensors, streams and memory.

mod device;
mod parts;

pub use device::load_device_package;

use crate::compile;
use crate::errors::raise;
use crate::fx;
use crate::host::run::{Loaded, MachineCode, Runner, scalar};
use crate::host::shim::{Shims, shims};
use crate::host::triton;
use crate::operators;
use inrush_base::schema::Operator;
use inrush_base::{Caps, DType, Error, Isa, Result};
use inrush_compile::{Libraries, Options};
use inrush_graph::Graph;
use inrush_host::gpu::build;
use inrush_host::native::user_kernels::{self, Configuration, Measured, UserSource};
use inrush_host::native::{self, Lowered, Wanted, WantedGpu};
use inrush_host::program::HostProgram;
use inrush_host::{dtype_code, dtype_of};
use inrush_package::{Cpu, Package, TargetParts, WeightData, aoti};
use inrush_program::parts::operator_calls;
use inrush_program::{GpuKernel, InputType, Program, Reads};
use inrush_runtime::cache::Cache;
use inrush_runtime::cc::{Compiler, Target};
use inrush_runtime::tensor::{contiguous_strides, extent};
use inrush_runtime::triton::{Binary, Pool};
use inrush_runtime::{
    Dim, InputKind, InputSpec, Model, Names, OutputSpec, Session, Signature, Tensor, WeightSpec,
    WeightView,
};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

/// Compiles the archive that `torch.export.save` wrote at `archive` into a package at `output`, for all `targets`. Matrix
/// products on GPUs are calls of cuBLAS if `libraries` is true. Weights of a package for one CPU are stored in panels if `panels` is
/// true. Without `build` targets that are GPUs hold the source of their kernels, with `tune` that of neighbouring tiles too. `operators` are the schemas of operators that are not PyTorch's; `kernels` are the user's Triton kernels that the archive launches: `inrush.triton.exported.Exported`.
#[pyfunction]
pub fn compile_package(
    py: Python<'_>,
    archive: PathBuf,
    output: PathBuf,
    targets: Vec<String>,
    libraries: bool,
    panels: bool,
    build: bool,
    tune: bool,
    operators: Vec<String>,
    kernels: Vec<Bound<'_, PyAny>>,
) -> PyResult<()> {
    let kernels = user_sources(&kernels)?;
    let wanted: Vec<Wanted> = (targets.iter())
        .map(|t| Wanted::parse(t))
        .collect::<Result<_>>()
        .map_err(raise)?;
    check_distinct(&wanted).map_err(raise)?;
    // Workers belong to the interpreter; without a GPU among the targets none are needed.
    let gpus = wanted.iter().any(|w| matches!(w, Wanted::Gpu(_)));
    // A configuration of a user's kernel is chosen by trying to build it.
    let builds = gpus && (build || !kernels.is_empty());
    let pool = builds.then(|| triton::package_pool(py)).transpose()?;
    let operators = operators::declarations(&operators).map_err(raise)?;
    let how = How {
        libraries,
        panels,
        build,
        tune,
        operators: &operators,
        kernels: &kernels,
    };
    py.detach(|| write(&archive, &output, &wanted, how, pool.as_ref()))
        .map_err(raise)
}

/// Reads the Triton kernels of users that Python prepared.
fn user_sources(kernels: &[Bound<'_, PyAny>]) -> PyResult<Vec<UserSource>> {
    let mut sources = Vec::with_capacity(kernels.len());
    for k in kernels {
        let mut configurations = Vec::new();
        for pair in k.getattr("configurations")?.try_iter()? {
            let (native, title): (Bound<'_, PyAny>, String) = pair?.extract()?;
            configurations.push(Configuration {
                kernel: fx::kernels::source(&native)?,
                arguments: fx::kernels::given(&native)?,
                aligned: native.getattr("aligned")?.extract()?,
                title,
            });
        }
        let measured: Option<(String, String, usize)> = k.getattr("measured")?.extract()?;
        sources.push(UserSource {
            name: k.getattr("name")?.extract()?,
            written: k.getattr("written")?.extract()?,
            measured: measured.map(|(backend, arch, fastest)| Measured {
                backend,
                arch,
                fastest,
            }),
            configurations,
        });
    }
    Ok(sources)
}

/// Refuses a target that is named twice.
fn check_distinct(wanted: &[Wanted]) -> Result<()> {
    let name = |w: &Wanted| match w {
        Wanted::Cpu(isa) => format!("cpu:{}", isa.unwrap_or_else(inrush_cpu::detect).name()),
        Wanted::Gpu(w) => w.gpu.to_string(),
    };
    for (k, w) in wanted.iter().enumerate() {
        if wanted[..k].iter().any(|other| name(other) == name(w)) {
            return Err(Error::input(format!(
                "the target `{}` is named twice",
                name(w)
            )));
        }
    }
    Ok(())
}

/// Refuses a package for PyTorch's AOTInductor loader that could not be written: its container library is in none of `folders`, or
/// the loader has a runner for none of `targets`.
#[pyfunction]
pub fn check_aoti(py: Python<'_>, targets: Vec<String>, folders: Vec<PathBuf>) -> PyResult<()> {
    let check = || -> Result<()> {
        aoti::find_library(&folders)?;
        for t in &targets {
            match Wanted::parse(t)? {
                Wanted::Gpu(w) if !aoti::has_runner(&w.gpu.kind) => {}
                _ => return Ok(()),
            }
        }
        Err(aoti::no_runner(&targets.join(", ")))
    };
    py.detach(check).map_err(raise)
}

/// Writes an archive for PyTorch's AOTInductor loader around a package. The container library is in one of `folders`.
#[pyfunction]
pub fn pack_aoti(
    py: Python<'_>,
    package: PathBuf,
    output: PathBuf,
    folders: Vec<PathBuf>,
) -> PyResult<()> {
    let write = || aoti::write(&output, &package, &aoti::find_library(&folders)?);
    py.detach(write).map_err(raise)
}

/// A compiled target.
enum Compiled {
    Cpu(Cpu, Program, Vec<u8>),
    Gpu(inrush_package::Gpu, Lowered, Vec<Binary>),
    /// The kernels' source is stored, with others that take the launches of each.
    Source(inrush_package::Gpu, Lowered, Vec<Vec<GpuKernel>>),
}

/// How a package is made.
#[derive(Copy, Clone)]
struct How<'a> {
    libraries: bool,
    panels: bool,
    /// Kernels for GPUs are built, not stored as source.
    build: bool,
    /// Neighbouring tiles of kernels that are stored as source are stored too.
    tune: bool,
    operators: &'a [Operator],
    kernels: &'a [UserSource],
}

/// Compiles and writes a package. Runs without the interpreter's lock.
fn write(
    archive: &Path,
    output: &Path,
    wanted: &[Wanted],
    how: How<'_>,
    pool: Option<&Pool>,
) -> Result<()> {
    let options = inrush_torch::Options {
        operators: how.operators,
        ..inrush_torch::Options::default()
    };
    let mut model = inrush_torch::open_with(archive, &options)?;
    // Weights are views of the mapped archive. Ranges are checked once, before anything reads them.
    model.weights.check()?;
    // The graph is consumed; the weights of the model are still needed for the package.
    let graph = std::mem::take(&mut model.graph);
    let mut compiled = Vec::with_capacity(wanted.len());
    for w in wanted {
        compiled.push(match w {
            Wanted::Cpu(isa) => for_cpu(graph.clone(), *isa)?,
            Wanted::Gpu(w) => for_gpu(graph.clone(), w, how, pool)
                .map_err(|e| e.context(format!("target `{}`", w.gpu)))?,
        });
    }
    let parts = (compiled.iter())
        .map(|c| match c {
            Compiled::Cpu(cpu, program, object) => Ok(TargetParts::Cpu {
                cpu: cpu.clone(),
                program,
                object,
            }),
            Compiled::Gpu(gpu, lowered, binaries) => native::parts(gpu, lowered, binaries),
            Compiled::Source(gpu, lowered, others) => {
                Ok(native::source_parts(gpu, lowered, others.clone()))
            }
        })
        .collect::<Result<Vec<_>>>()?;
    let panels = match compiled.as_slice() {
        [Compiled::Cpu(cpu, program, _)] if how.panels => inrush_runtime::panels_for(program, cpu)?,
        _ => BTreeMap::new(),
    };
    let weight = |name: &str| {
        model.weights.view(name).map(|w| WeightData {
            dtype: w.dtype,
            sizes: w.sizes,
            strides: w.strides,
            bytes: w.bytes,
        })
    };
    let options = inrush_package::Options {
        panels,
        ..inrush_package::Options::default()
    };
    inrush_package::write_with(output, &parts, &weight, &options)
}

/// Returns the options of a compile ahead of time.
fn options(threads: usize) -> Options {
    Options {
        pieces: threads.min(8),
        threads: threads.min(8),
        verify: inrush_runtime::verify_is_asked_for(),
        ..Options::default()
    }
}

/// Compiles a graph for a level of this machine's processor, its own without one.
fn for_cpu(graph: Graph, isa: Option<Isa>) -> Result<Compiled> {
    let isa = isa.unwrap_or_else(inrush_cpu::detect);
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let caps = Caps {
        // The instruction set is the target's, vector functions are those of this machine's C
        // library.
        vector_math: compile::caps(threads).vector_math,
        ..Caps::cpu(isa, threads)
    };
    let compiled = inrush_compile::compile(graph, &caps, &options(threads), &mut ())?;
    let host = Target {
        isa: caps.isa,
        vector_math: caps.vector_math,
    };
    let built = Compiler::find()?.build(&compiled.pieces, &host, &Cache::open_default())?;
    let object = std::fs::read(&built.path)
        .map_err(|e| Error::machine(format!("cannot read `{}`: {e}", built.path.display())))?;
    let cpu = Cpu {
        arch: std::env::consts::ARCH.to_string(),
        os: std::env::consts::OS.to_string(),
        isa: caps.isa.name().to_string(),
    };
    Ok(Compiled::Cpu(cpu, compiled.program, object))
}

/// Compiles a graph for a GPU.
fn for_gpu(graph: Graph, w: &WantedGpu, how: How<'_>, pool: Option<&Pool>) -> Result<Compiled> {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let options = Options {
        libraries: match how.libraries && w.has_library {
            true => Libraries::Products,
            false => Libraries::None,
        },
        retile: how.tune,
        ..options(threads)
    };
    let shared = w.caps.gpu.as_ref().map_or(0, |g| g.shared_bytes);
    let workers = || pool.ok_or_else(|| Error::internal("no workers"));
    let kernels = match how.kernels {
        [] => Vec::new(),
        all => user_kernels::choose(all, &w.gpu.build, shared, workers()?)?,
    };
    let target = (&w.caps, &w.gpu.build);
    let made = native::compile_tunable(graph, target, w.device, &options, &kernels, &mut ())?;
    let (lowered, others) = made;
    if !how.build {
        return Ok(Compiled::Source(w.gpu.clone(), lowered, others));
    }
    let (binaries, _) = build::build_all(workers()?, &lowered)?;
    Ok(Compiled::Gpu(w.gpu.clone(), lowered, binaries))
}

/// Inputs of a package: for each its name, dtype and rank where it is a tensor, the value where only one is taken, and
/// whether it has to begin its storage.
type Inputs = Vec<(
    String,
    Option<(&'static str, usize)>,
    Option<Py<PyAny>>,
    bool,
)>;

/// A loaded package: a callable of flat arguments, whose weights are replaced while calls run.
///
/// Each set of weights has a runner of its own. A call takes the active one at its start.
#[pyclass(frozen, module = "inrush._native")]
pub struct LoadedPackage {
    session: Session,
    /// Locked for writing while sets are swapped. A thread that holds the interpreter's lock does not wait for it: a call that it
    /// waits for may want that lock.
    active: RwLock<Arc<Active>>,
    /// Calls write buffers of the model. A swap waits for them, or it would lose what they write.
    writes_state: bool,
}

/// Interval at which a call polls for the end of a swap, without the interpreter's lock.
const SWAP_POLL: Duration = Duration::from_micros(50);

/// A tensor of a signature: its dtype, and each size as an integer or a text.
type TensorSpec = (&'static str, Vec<(Option<i64>, String)>);
/// The name of an input, its tensor or another kind, bounds of its symbols, whether calls write it.
type InputLine = (
    String,
    Option<TensorSpec>,
    &'static str,
    Vec<(String, i64, i64)>,
    bool,
);

/// Inputs, outputs (a tensor or another kind), and weights with their dtype, sizes and whether calls write them.
type SignatureLines = (
    Vec<InputLine>,
    Vec<(Option<TensorSpec>, &'static str)>,
    Vec<(String, &'static str, Vec<i64>, bool)>,
);

impl LoadedPackage {
    fn new(model: Model) -> LoadedPackage {
        LoadedPackage {
            active: RwLock::new(Arc::new(runner(&model))),
            writes_state: model.writes_state(),
            session: Session::new(model),
        }
    }

    fn active(&self, py: Python<'_>) -> RwLockReadGuard<'_, Arc<Active>> {
        loop {
            match self.active.try_read() {
                Ok(guard) => return guard,
                Err(std::sync::TryLockError::Poisoned(e)) => return e.into_inner(),
                Err(std::sync::TryLockError::WouldBlock) => {
                    py.detach(|| std::thread::sleep(SWAP_POLL));
                }
            }
        }
    }
}

/// The executor of the calls on a set of weights.
enum Active {
    /// A program of one piece, whose results are written into tensors of PyTorch.
    Plain(Runner),
    /// A program in parts, whose results get their sizes during the call.
    Parts(Model),
}

/// Returns what runs a model on tensors of PyTorch.
fn runner(model: &Model) -> Active {
    if model.program().parts.is_some() {
        return Active::Parts(model.share());
    }
    Active::Plain(Runner::new(
        HostProgram::of(model.program().clone()),
        Vec::new(),
        MachineCode::Cpu(vec![Some(Loaded::new(model.share()))]),
    ))
}

#[pymethods]
impl LoadedPackage {
    #[pyo3(signature = (*args))]
    fn __call__<'py>(
        &self,
        py: Python<'py>,
        args: &Bound<'py, PyTuple>,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let active = self.active(py);
        let runner = active.clone();
        let _held = self.writes_state.then_some(active);
        match &*runner {
            Active::Plain(r) => PyTuple::new(py, r.run(py, args.iter())?),
            Active::Parts(model) => PyTuple::new(py, parts::run(py, model, args)?),
        }
    }

    /// Replaces weights of the inactive set by copies of dense tensors of the CPU.
    fn update_weights(
        &self,
        py: Python<'_>,
        weights: Vec<(String, Bound<'_, PyAny>)>,
        all: bool,
    ) -> PyResult<()> {
        let shims = shims(py)?;
        let new = (weights.iter())
            // SAFETY: the list holds the tensors.
            .map(|(name, t)| Ok((name.as_str(), unsafe { weight_view(shims, name, t) }?)))
            .collect::<PyResult<Vec<_>>>()?;
        let names = if all { Names::All } else { Names::Some };
        py.detach(|| self.session.update_weights(&new, names))
            .map_err(raise)
    }

    /// Makes the inactive set the active one. Calls that have begun finish on the old set.
    fn swap_weights(&self, py: Python<'_>) -> PyResult<()> {
        let swap = || {
            let mut active = self.active.write().unwrap_or_else(PoisonError::into_inner);
            self.session.swap_weights()?;
            *active = Arc::new(runner(&self.session.model()));
            Ok(())
        };
        py.detach(swap).map_err(raise)
    }

    /// Forgets the inactive set.
    fn discard_update(&self, py: Python<'_>) {
        py.detach(|| self.session.discard_update());
    }

    /// Returns copies of all weights and buffers of the active set, as they are now.
    fn weights<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let (model, all) = (self.session.model(), PyDict::new(py));
        let shims = shims(py)?;
        for spec in self.session.weights() {
            let weight: Option<Tensor> = py.detach(|| model.weight(&spec.name));
            all.set_item(spec.name, weight_copy(py, shims, weight)?)?;
        }
        Ok(all)
    }

    /// Returns the lines of the signature.
    fn signature(&self) -> SignatureLines {
        let signature = Signature::of(self.session.model().program());
        signature_lines(&signature, self.session.weights())
    }
}

/// Views a new weight where it is.
///
/// # Safety
/// The tensor is dense, and is held and not written while the result is used.
unsafe fn weight_view<'a>(
    shims: &Shims,
    name: &str,
    tensor: &Bound<'_, PyAny>,
) -> PyResult<WeightView<'a>> {
    let h = shims.tensor(tensor)?;
    // SAFETY: by the caller's promise.
    let ((address, code), (sizes, strides)) = unsafe { (shims.data(h)?, shims.shape(h)?) };
    let dtype = dtype_of(code).ok_or_else(|| {
        raise(Error::input(format!(
            "the weight `{name}` has no dtype of inrush"
        )))
    })?;
    let bytes = extent(sizes, strides).map_or(0, |n| n * dtype.size());
    let bytes = if bytes == 0 {
        &[]
    } else {
        // SAFETY: a dense tensor's elements span these bytes, which the caller holds.
        unsafe { std::slice::from_raw_parts(address.cast_const(), bytes) }
    };
    Ok(WeightView {
        dtype,
        sizes,
        strides,
        bytes,
    })
}

/// Returns a copy of a row-major weight as a tensor of PyTorch; `None` stands for too little memory.
fn weight_copy(py: Python<'_>, shims: &Shims, weight: Option<Tensor>) -> PyResult<Py<PyAny>> {
    let weight = weight.ok_or_else(|| {
        raise(Error::out_of_memory(
            "out of memory for the copy of a weight",
        ))
    })?;
    let strides = contiguous_strides(&weight.sizes);
    let code = dtype_code(weight.dtype);
    let (tensor, address) = shims.empty(py, &weight.sizes, &strides, code)?;
    let bytes = weight.numel() * weight.dtype.size();
    if bytes > 0 {
        // SAFETY: both are row-major and of these sizes and this dtype.
        unsafe { std::ptr::copy_nonoverlapping(weight.data(), address, bytes) };
    }
    Ok(tensor)
}

/// Returns the lines of a signature.
fn signature_lines(signature: &Signature, weights: Vec<WeightSpec>) -> SignatureLines {
    let inputs = signature.inputs.iter().map(input_line).collect();
    let outputs = (signature.outputs.iter())
        .filter(|o| **o != OutputSpec::Mutation)
        .map(|o| match o {
            OutputSpec::Tensor { dtype, sizes } => (Some(tensor_spec(*dtype, sizes)), "tensor"),
            OutputSpec::Int => (None, "int"),
            OutputSpec::Scalar(_) => (None, "constant"),
            OutputSpec::Mutation | OutputSpec::None => (None, "none"),
        })
        .collect();
    let weights = (weights.into_iter())
        .map(|w| (w.name, w.dtype.torch_name(), w.sizes, w.written))
        .collect();
    (inputs, outputs, weights)
}

fn tensor_spec(dtype: DType, sizes: &[Dim]) -> TensorSpec {
    let size = |d: &Dim| match d {
        Dim::Fixed(n) => (Some(*n), String::new()),
        other => (None, other.to_string()),
    };
    (dtype.torch_name(), sizes.iter().map(size).collect())
}

fn input_line(i: &InputSpec) -> InputLine {
    let (tensor, kind, sizes) = match &i.kind {
        InputKind::Tensor { dtype, sizes } => {
            (Some(tensor_spec(*dtype, sizes)), "tensor", sizes.as_slice())
        }
        InputKind::Int => (None, "int", &[][..]),
        InputKind::Constant(_) => (None, "constant", &[][..]),
        InputKind::Ignored => (None, "ignored", &[][..]),
    };
    let bounds = sizes.iter().filter_map(|d| match d {
        Dim::Symbol { name, lower, upper } => Some((name.clone(), *lower, *upper)),
        _ => None,
    });
    (i.name.clone(), tensor, kind, bounds.collect(), i.written)
}

/// Returns the targets of a package: for each its name and the declarations of the operators of the user's that it calls.
#[pyfunction]
pub fn package_targets(py: Python<'_>, path: PathBuf) -> PyResult<Vec<(String, Vec<String>)>> {
    let read = || -> Result<Vec<(String, Vec<String>)>> {
        let package = Package::open(&path)?;
        let cpus = package.cpus().map(|t| {
            let calls = operator_calls(&t.program);
            (t.cpu.to_string(), operators::declared_in(calls))
        });
        let gpus = package.gpus().map(|t| {
            let calls = t.lowered.operator_calls();
            (t.gpu.to_string(), operators::declared_in(calls))
        });
        Ok(cpus.chain(gpus).collect())
    };
    py.detach(read).map_err(raise)
}

/// Loads a package for the CPU: a callable of flat arguments, and what these are.
#[pyfunction]
pub fn load_package(
    py: Python<'_>,
    path: PathBuf,
    threads: Option<usize>,
    seed: i64,
) -> PyResult<(LoadedPackage, Inputs)> {
    let pool = compile::pool(py, threads)?;
    let model = py
        .detach(|| Model::open(&path, pool.clone()))
        .map_err(raise)?;
    // Loading has used the pool. The threads of another one have not started, so that the process can fork before the first call.
    let model = model.on_pool(compile::pool(py, threads)?);
    model.set_seed(seed);
    let inputs = (model.program().inputs.iter())
        .map(|i| {
            let tensor = match &i.ty {
                InputType::Tensor { dtype, sizes, .. } => Some((dtype.0.torch_name(), sizes.len())),
                _ => None,
            };
            let constant = match &i.ty {
                InputType::Constant { value } => Some(scalar(py, (*value).into())?),
                _ => None,
            };
            let begins = i.reads == Reads::Storage;
            Ok((i.name.clone(), tensor, constant, begins))
        })
        .collect::<PyResult<Inputs>>()?;
    Ok((LoadedPackage::new(model), inputs))
}
