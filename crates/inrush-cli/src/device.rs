//! `inrush run --device`: a model on a GPU, without Python during calls.
//!
//! ```text
//! archive -> compile -> Triton in worker processes -> Model -> calls
//! package ------------------------------------------> Model -> calls
//! ```
//!
//! `inrush-host` runs the program in this process, with the driver and, for matrix products, with
//! cuBLAS. For an archive that is looked for in the folders of Python packages too; without it
//! products are compiled. Packages need neither Python nor Triton.

use crate::args::RunArgs;
use crate::io;
use crate::out::say;
use crate::progress::Progress;
use crate::run::{Check, measure_calls, random_tensor, write_outputs, xorshift};
use crate::session::{self, ArchiveWeights, Times};
use crate::triton::{self, Gpu};
use inrush_base::{Error, Result};
use inrush_compile::Libraries;
use inrush_host::devices;
use inrush_host::gpu::cublas;
use inrush_host::native::{self, Model, Options};
use inrush_host::program::{Device, HostProgram, Read, StepKind};
use inrush_package::Package;
use inrush_program::GpuTarget;
use inrush_runtime::triton::Python;
use inrush_runtime::{OutputSpec, Tensor, Value};
use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// A model that is ready to run, and what it took.
pub(crate) struct Session {
    pub(crate) model: Model,
    /// Inputs that came with the archive.
    pub(crate) samples: Option<Vec<Value>>,
    pub(crate) times: Times,
    /// The kernels were in the cache; `None` for a package.
    pub(crate) cached: Option<bool>,
    pub(crate) target: GpuTarget,
}

/// Runs a model on the device that `--device` names.
pub fn run(a: &RunArgs) -> Result<ExitCode> {
    let start = Instant::now();
    let given = a.inputs.as_deref().map(io::read).transpose()?;
    let expect = a.expect.as_deref().map(io::read).transpose()?;
    let device = native::device::parse(&a.device)?;
    let options = Options {
        capture: a.capture,
        seed: a.seed,
        build_kernels: a.build_kernels,
        records: a.records.clone(),
        ..Options::default()
    };
    let s = open(&a.model, device, options, a.no_libraries, a.json)?;
    let (inputs, source) = inputs(&s, given).map_err(|e| match &a.inputs {
        Some(path) => e.in_file(path.display().to_string()),
        None => e,
    })?;
    let outputs = user_outputs(&s.model, s.model.run(&inputs)?);
    let first = start.elapsed();
    for note in s.model.notes() {
        eprintln!("inrush: {note}");
    }
    let report = Check::new(&outputs, expect.as_ref())?;
    write_outputs(a, &outputs)?;
    let limit = Duration::from_secs_f64(a.seconds);
    let latency = measure_calls(&mut || s.model.run(&inputs), limit)?;
    let ms = |d: Duration| d.as_secs_f64() * 1e3;
    let (launches, products) = count(&s.model);
    let device = format!("{}, {}", a.device, s.target.arch);
    if a.json {
        let line = serde_json::json!({
            "model": a.model.display().to_string(),
            "device": device,
            "libraries": if products > 0 { "Products" } else { "None" },
            "compile_ms": ms(s.times.compile()),
            "cached": s.cached,
            "load_ms": ms(s.times.load),
            "first_ms": ms(first),
            "run_ms": ms(latency.median),
            "launches": launches,
            "products": products,
            "max_rel_err": report.max_rel_err,
            "accuracy": report.accuracy.map(|(r, n)| r as f64 / n as f64),
        });
        say!("{line}")?;
    } else {
        say!("{}  on {device}", a.model.display())?;
        match s.cached {
            Some(cached) => {
                let cached = if cached { ", from the cache" } else { "" };
                say!("  compile  {:.1} ms{cached}", ms(s.times.compile()))?;
            }
            None => say!("  compile  none: a compiled package")?,
        }
        say!(
            "  load     {:.1} ms, first outputs {:.1} ms after the start",
            ms(s.times.load),
            ms(first)
        )?;
        say!(
            "  run      {:.3} ms (median of {}, best {:.3}) on {source}, copies of inputs and outputs included",
            ms(latency.median),
            latency.count,
            ms(latency.best)
        )?;
        let products = match products {
            0 => String::new(),
            n => format!(", {n} products of cuBLAS"),
        };
        say!("  kernels  {launches} launches{products}")?;
        report.print(a.tolerance)?;
    }
    Ok(report.exit_code(a))
}

/// Returns the outputs that belong to the user: mutations have none.
fn user_outputs(model: &Model, outputs: Vec<Value>) -> Vec<Value> {
    let specs = &model.signature().outputs;
    (specs.iter().zip(outputs))
        .filter(|(o, _)| **o != OutputSpec::Mutation)
        .map(|(_, v)| v)
        .collect()
}

/// Opens a model of either kind on a device: compiles an archive, or takes what a package holds.
pub(crate) fn open(
    path: &Path,
    device: Device,
    options: Options,
    no_libraries: bool,
    quiet: bool,
) -> Result<Session> {
    let in_file = |e: Error| e.in_file(path.display().to_string());
    if !path.exists() {
        return Err(in_file(Error::input("no such file")));
    }
    let progress = Progress::new(quiet);
    progress.watch();
    if Package::is_package(path) {
        open_package(path, device, options, &progress)
    } else {
        open_archive(path, device, options, no_libraries, &progress)
    }
}

/// Loads the target of a package that fits the device.
fn open_package(
    path: &Path,
    device: Device,
    options: Options,
    progress: &Progress,
) -> Result<Session> {
    let start = Instant::now();
    progress.step("load".into());
    let model = Model::open(path, device, options)?;
    let gpu = (model.program().gpu.as_ref()).ok_or_else(|| Error::internal("no kernels"))?;
    Ok(Session {
        target: gpu.target.clone(),
        times: Times {
            load: start.elapsed(),
            ..Times::default()
        },
        model,
        samples: None,
        cached: None,
    })
}

/// Compiles an archive for the device and loads it.
fn open_archive(
    path: &Path,
    device: Device,
    options: Options,
    no_libraries: bool,
    progress: &Progress,
) -> Result<Session> {
    let in_file = |e: Error| e.in_file(path.display().to_string());
    let (caps, target) = native::device::caps(device)?;
    let python = Python::find()?;
    // Some kinds of devices have no library for products.
    let kind = devices::by_torch_number(device.kind);
    let wanted = !no_libraries && kind.is_some_and(|k| k.products().is_some());
    let blas = if wanted {
        cublas::find(python.folders())
    } else {
        None
    };
    if blas.is_none() && wanted {
        eprintln!("inrush: cuBLAS is not found: matrix products are compiled");
    }
    let mut times = Times::default();
    let start = Instant::now();
    progress.step("import".into());
    let mut archive = session::open_archive(path)?;
    let samples = session::sample_values(&archive);
    let graph = std::mem::take(&mut archive.graph);
    times.stages.push(("import", start.elapsed()));
    let gpu = Gpu {
        caps: &caps,
        target: &target,
        device,
        libraries: match blas {
            Some(_) => Libraries::Products,
            None => Libraries::None,
        },
    };
    let (lowered, binaries, cached) =
        triton::compile(graph, &gpu, &python.pool(false)?, progress, &mut times)
            .map_err(in_file)?;
    let start = Instant::now();
    progress.step("load".into());
    archive.weights.check().map_err(in_file)?;
    let weights = ArchiveWeights(archive.weights);
    let model = Model::new(lowered, binaries, &weights, device, blas, options).map_err(in_file)?;
    times.load = start.elapsed();
    Ok(Session {
        model,
        samples,
        times,
        cached: Some(cached),
        target,
    })
}

/// Returns the inputs of a call and what they are: those that were given, else the archive's samples, else random ones.
pub(crate) fn inputs(
    s: &Session,
    given: Option<BTreeMap<String, Tensor>>,
) -> Result<(Vec<Value>, &'static str)> {
    Ok(match (given, &s.samples) {
        (Some(tensors), _) => (bind(s.model.inputs(), tensors)?, "given inputs"),
        (None, Some(samples)) => (samples.clone(), "the archive's sample inputs"),
        (None, None) => (random_inputs(&s.model)?, "seeded random inputs"),
    })
}

/// Returns seeded inputs. Sizes that are symbols are 2, or the nearest in range.
fn random_inputs(model: &Model) -> Result<Vec<Value>> {
    let program = model.program();
    let symbols: Vec<Option<i64>> = (0..program.symbols.len())
        .map(|k| Some(symbol_value(program, k)))
        .collect();
    let sizes = inrush_program::evaluate_known(&program.sizes, &symbols);
    let mut next = xorshift();
    (program.inputs.iter().zip(model.inputs()))
        .map(|(slot, name)| {
            let layouts = program.gpu.as_ref().map(|g| &g.layouts);
            let Some(layout) = layouts.and_then(|l| l[*slot].as_ref()) else {
                let read = |s: &inrush_host::program::Symbol| {
                    s.slot == *slot && matches!(s.read, Read::Int)
                };
                let symbol = program.symbols.iter().position(read);
                return Ok(match symbol {
                    Some(k) => Value::Int(symbol_value(program, k)),
                    None => Value::None,
                });
            };
            let dims: Option<Vec<i64>> = (layout.sizes.iter())
                .map(|id| sizes[id.0 as usize])
                .collect();
            let dims = dims.ok_or_else(|| Error::input("these sizes overflow"))?;
            random_tensor(name, layout.dtype.0, dims, &mut next).map(Value::Tensor)
        })
        .collect()
}

/// Returns 2 moved into the range of a symbol, which segments know.
fn symbol_value(program: &HostProgram, symbol: usize) -> i64 {
    let mut value = 2;
    for step in &program.steps {
        if let StepKind::Segment(s) = &step.kind {
            for (k, sym) in s.symbols.iter().zip(&s.program.symbols) {
                if *k as usize == symbol && sym.lower <= sym.upper {
                    value = value.max(sym.lower).min(sym.upper);
                }
            }
        }
    }
    value
}

/// Returns the number of launches and of products in a call that runs every part once.
pub(crate) fn count(model: &Model) -> (usize, usize) {
    (model.lowered().launches(), model.lowered().products())
}

/// Returns tensors of a file as inputs: by name, else by position.
fn bind(names: &[String], mut tensors: BTreeMap<String, Tensor>) -> Result<Vec<Value>> {
    let mut out = Vec::with_capacity(names.len());
    for (i, name) in names.iter().enumerate() {
        let found = (tensors.remove(name)).or_else(|| tensors.remove(&i.to_string()));
        let t = found.ok_or_else(|| {
            Error::input(format!(
                "no tensor for input `{name}`, under that key or `{i}`"
            ))
        })?;
        out.push(Value::Tensor(t));
    }
    if let Some(extra) = tensors.keys().next() {
        return Err(Error::input(format!(
            "the tensor `{extra}` belongs to no input"
        )));
    }
    Ok(out)
}
