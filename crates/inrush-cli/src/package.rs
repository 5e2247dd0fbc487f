//! `inrush compile`: an archive into a package.
//!
//! ```text
//! archive -+-> CPU: stages -> C compiler -> shared object --+-> package, with the weights once
//!          '-> GPU: stages -> Triton -> machine code, PTX --'
//! ```
//!
//! A package is compiled ahead of time for a list of targets. Loading it needs no C compiler, no
//! Python and no Triton; compiling for a GPU needs no GPU. With `--kernels source` Triton builds where the
//! package is opened instead.

use crate::args::{CompileArgs, Format, Kernels, TargetArgs};
use crate::out::say;
use crate::progress::Progress;
use crate::session::{self, Times};
use crate::triton::{self, Gpu};
use inrush_base::{Caps, Error, Result};
use inrush_compile::Libraries;
use inrush_graph::Graph;
use inrush_host::native::{self, Lowered, Wanted, WantedGpu};
use inrush_package::{Cpu, Options, Package, Panels, TREES, TargetParts, WeightData, aoti};
use inrush_program::parts::operator_calls;
use inrush_program::{GpuKernel, Program};
use inrush_runtime::cache::Cache;
use inrush_runtime::triton::{Binary, Pool, Python};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

/// A compiled target.
#[allow(clippy::large_enum_variant)] // A few in a list, never moved.
enum Compiled {
    Cpu {
        cpu: Cpu,
        program: Program,
        object: Vec<u8>,
    },
    Gpu {
        gpu: inrush_package::Gpu,
        lowered: Lowered,
        kernels: Stored,
    },
}

/// The kernels of a program for a GPU as a package stores them.
enum Stored {
    Code(Vec<Binary>),
    /// Their source, with others that take the launches of each.
    Source(Vec<Vec<GpuKernel>>),
}

/// A target that was asked for, with the levels of CPUs found out.
pub(crate) enum Target {
    Cpu(Caps),
    Gpu(Box<WantedGpu>),
}

impl Target {
    pub(crate) fn name(&self) -> String {
        match self {
            Target::Cpu(caps) => caps.to_string(),
            Target::Gpu(w) => w.gpu.to_string(),
        }
    }
}

/// Compiles an archive for all targets and writes the package.
pub fn compile(a: &CompileArgs) -> Result<ExitCode> {
    let shown = a.model.display().to_string();
    let targets = targets(a)?;
    if !a.model.exists() {
        return Err(Error::input("no such file").in_file(shown));
    }
    if let Some(language) = a.emit {
        return crate::source::write(a, &targets, language);
    }
    if Package::is_package(&a.model) {
        return Err(Error::input("already a compiled package").in_file(shown));
    }
    // What is missing shows before anything is compiled.
    let library = (a.format == Format::Aoti)
        .then(|| container(&targets))
        .transpose()?;
    let builds = a.kernels == Kernels::Code;
    if builds && a.tune {
        return Err(Error::input(
            "`--tune` measures where a package is opened: it is for `--kernels source`",
        ));
    }
    let pool = if builds && targets.iter().any(|t| matches!(t, Target::Gpu(_))) {
        Some(Python::find()?.pool(true)?)
    } else {
        None
    };
    let progress = Progress::new(a.json);
    progress.watch();
    let mut times = Times::default();
    let start = Instant::now();
    progress.step("import".into());
    let mut archive = session::open_archive(&a.model)?;
    times.stages.push(("import", start.elapsed()));
    let graph = std::mem::take(&mut archive.graph);
    let mut compiled = Vec::with_capacity(targets.len());
    for t in &targets {
        let made = match t {
            Target::Cpu(caps) => for_cpu(graph.clone(), caps, &progress, &mut times),
            Target::Gpu(w) => for_gpu(
                graph.clone(),
                w,
                (pool.as_ref(), a.no_libraries, a.tune),
                &progress,
                &mut times,
            ),
        };
        let of_one = |e: Error| match targets.len() {
            1 if matches!(t, Target::Cpu(_)) => e,
            _ => e.context(format!("target `{}`", t.name())),
        };
        compiled.push(made.map_err(|e| of_one(e).in_file(shown.clone()))?);
    }
    let operators = operators(&compiled);
    if library.is_some() && !operators.is_empty() {
        let e = Error::unsupported(format!(
            "custom operators in a package that PyTorch loads by itself: {}",
            operators.join(", ")
        ));
        return Err(e.in_file(shown));
    }
    progress.step("write".into());
    // Checksums are compared before the bytes are copied, so that a damaged archive makes no
    // package.
    let weights = &archive.weights;
    weights.check().map_err(|e| e.in_file(shown.clone()))?;
    let parts = compiled.iter().map(parts).collect::<Result<Vec<_>>>()?;
    let weight = |name: &str| {
        weights.view(name).map(|w| WeightData {
            dtype: w.dtype,
            sizes: w.sizes,
            strides: w.strides,
            bytes: w.bytes,
        })
    };
    match &library {
        None => {
            let options = Options {
                panels: panels(&compiled)?,
                ..Options::default()
            };
            inrush_package::write_with(&a.output, &parts, &weight, &options)?;
        }
        Some(library) => {
            let trees = trees(&graph).map_err(|e| e.in_file(shown.clone()))?;
            aoti::pack(&a.output, library, |package| {
                let options = Options {
                    entries: &[(TREES, trees.as_bytes())],
                    ..Options::default()
                };
                inrush_package::write_with(package, &parts, &weight, &options)
            })?;
        }
    }
    progress.done();
    let bytes = std::fs::metadata(&a.output).map_or(0, |m| m.len());
    let ms = times.compile().as_secs_f64() * 1e3;
    let names: Vec<String> = targets.iter().map(Target::name).collect();
    if a.json {
        let line = serde_json::json!({
            "model": shown,
            "package": a.output.display().to_string(),
            "target": names.join(", "),
            "targets": names,
            "compile_ms": ms,
            "bytes": bytes,
            "operators": operators,
        });
        say!("{line}")?;
    } else {
        say!(
            "{shown} for {} in {ms:.0} ms: {} ({:.1} MB)",
            names.join(", "),
            a.output.display(),
            bytes as f64 / 1e6
        )?;
        for o in operators {
            say!("  the host registers {o}")?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the operators of the user's that compiled targets call, each once.
fn operators(compiled: &[Compiled]) -> Vec<String> {
    let mut all: Vec<String> = (compiled.iter())
        .flat_map(|c| match c {
            Compiled::Cpu { program, .. } => operator_calls(program),
            Compiled::Gpu { lowered, .. } => lowered.operator_calls(),
        })
        .map(|c| c.operator.clone())
        .collect();
    all.sort_unstable();
    all.dedup();
    all
}

/// Finds the library that a package of format `aoti` holds.
///
/// # Errors
/// An input error where PyTorch's loader has a runner for no target, a machine error where there is no library.
fn container(targets: &[Target]) -> Result<PathBuf> {
    let has_runner = |t: &Target| match t {
        Target::Cpu(_) => true,
        Target::Gpu(w) => aoti::has_runner(&w.gpu.kind),
    };
    if !targets.iter().any(has_runner) {
        let names: Vec<String> = targets.iter().map(Target::name).collect();
        return Err(aoti::no_runner(&names.join(", ")));
    }
    let own = std::env::current_exe().and_then(|p| p.canonicalize());
    let own = own.map_err(|e| Error::machine(format!("no path of this program: {e}")))?;
    let folder = own.parent().unwrap_or(&own).to_path_buf();
    // Test programs are in a folder of that of the programs.
    let above = folder.parent().unwrap_or(&folder).to_path_buf();
    aoti::find_library(&[folder, above])
}

/// Returns how the exported module nests its inputs and outputs.
fn trees(graph: &Graph) -> Result<String> {
    match (&graph.in_tree, &graph.out_tree) {
        (Some(inputs), Some(outputs)) => {
            Ok(serde_json::json!({"inputs": inputs, "outputs": outputs}).to_string())
        }
        _ => Err(Error::input(
            "the archive does not say how its inputs and outputs are nested",
        )),
    }
}

/// Reads the targets that the command asks for.
///
/// # Errors
/// An input error for unknown targets, and for one that is named twice.
fn targets(a: &CompileArgs) -> Result<Vec<Target>> {
    let mut targets: Vec<Target> = Vec::new();
    for name in &a.target {
        let target = match Wanted::parse(name.trim())? {
            Wanted::Cpu(isa) => Target::Cpu(session::caps(&TargetArgs {
                target: isa.map_or("native", |i| i.name()).into(),
                threads: a.threads,
            })?),
            Wanted::Gpu(w) => Target::Gpu(w),
        };
        if targets.iter().any(|t| t.name() == target.name()) {
            return Err(Error::input(format!(
                "the target `{}` is named twice",
                target.name()
            )));
        }
        targets.push(target);
    }
    Ok(targets)
}

/// Compiles a graph for a level of this machine's processor.
fn for_cpu(graph: Graph, caps: &Caps, progress: &Progress, times: &mut Times) -> Result<Compiled> {
    let compiled = session::compile_graph(graph, caps, progress, times)?;
    progress.step("build: C compiler".into());
    let (built, took, _) = session::build_pieces(&compiled.pieces, caps, &Cache::open_default())?;
    times.stages.push(("build", took));
    let object = std::fs::read(&built.path)
        .map_err(|e| Error::machine(format!("cannot read `{}`: {e}", built.path.display())))?;
    Ok(Compiled::Cpu {
        cpu: Cpu {
            arch: std::env::consts::ARCH.to_string(),
            os: std::env::consts::OS.to_string(),
            isa: caps.isa.name().to_string(),
        },
        program: compiled.program,
        object,
    })
}

/// Compiles a graph for a GPU. Without workers no kernel is built.
fn for_gpu(
    graph: Graph,
    w: &WantedGpu,
    (pool, no_libraries, tune): (Option<&Pool>, bool, bool),
    progress: &Progress,
    times: &mut Times,
) -> Result<Compiled> {
    let libraries = libraries(w, no_libraries);
    let gpu = Gpu {
        caps: &w.caps,
        target: &w.gpu.build,
        device: w.device,
        libraries,
    };
    let (lowered, kernels) = match pool {
        Some(pool) => {
            let (lowered, binaries, _) = triton::compile(graph, &gpu, pool, progress, times)?;
            (lowered, Stored::Code(binaries))
        }
        None => {
            let (lowered, others) = triton::lower_tunable(graph, &gpu, tune, progress, times)?;
            (lowered, Stored::Source(others))
        }
    };
    Ok(Compiled::Gpu {
        gpu: w.gpu.clone(),
        lowered,
        kernels,
    })
}

/// Returns the libraries that a program for a GPU calls.
pub(crate) fn libraries(w: &WantedGpu, no_libraries: bool) -> Libraries {
    if no_libraries || !w.has_library {
        Libraries::None
    } else {
        Libraries::Products
    }
}

/// Returns the weights that are stored in panels: those of the only target, if it is a CPU.
fn panels(compiled: &[Compiled]) -> Result<BTreeMap<String, Panels>> {
    match compiled {
        [Compiled::Cpu { cpu, program, .. }] => inrush_runtime::panels_for(program, cpu),
        _ => Ok(BTreeMap::new()),
    }
}

/// Returns what the package stores of a target.
fn parts(c: &Compiled) -> Result<TargetParts<'_>> {
    match c {
        Compiled::Cpu {
            cpu,
            program,
            object,
        } => Ok(TargetParts::Cpu {
            cpu: cpu.clone(),
            program,
            object,
        }),
        Compiled::Gpu {
            gpu,
            lowered,
            kernels,
        } => match kernels {
            Stored::Code(binaries) => native::parts(gpu, lowered, binaries),
            Stored::Source(others) => Ok(native::source_parts(gpu, lowered, others.clone())),
        },
    }
}
