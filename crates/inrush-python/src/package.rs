//! Packages: an exported program compiled ahead of time, and loaded as a callable of this process.
//!
//! A package holds one program, its shared object and its weights. A host program is therefore a
//! single segment without calls, and PyTorch is needed for its tensors only.

use crate::callable::Compiled;
use crate::compile::{self, Report};
use crate::errors::raise;
use crate::host::run::{Loaded, MachineCode, Runner, scalar};
use inrush_base::{Caps, Error, Isa, Result};
use inrush_compile::Options;
use inrush_host::program::{HostProgram, Out, Read, Segment, Step, StepKind, Symbol};
use inrush_package::{Target as Machine, WeightData};
use inrush_program::{InputType, Output, Program, Reads, SymbolSource};
use inrush_runtime::Model;
use inrush_runtime::cache::Cache;
use inrush_runtime::cc::{Compiler, Target};
use pyo3::prelude::*;
use std::path::{Path, PathBuf};

/// Compiles the archive that `torch.export.save` wrote at `archive` into a package at `output`.
#[pyfunction]
pub fn compile_package(
    py: Python<'_>,
    archive: PathBuf,
    output: PathBuf,
    target: &str,
) -> PyResult<()> {
    py.detach(|| write(&archive, &output, target))
        .map_err(raise)
}

/// Compiles and writes a package. Runs without the interpreter's lock.
fn write(archive: &Path, output: &Path, target: &str) -> Result<()> {
    let isa = match target {
        "native" => inrush_cpu::detect(),
        name => Isa::parse(name).ok_or_else(|| {
            Error::input(format!(
                "unknown target `{name}`: native, scalar, avx2, avx512 or neon"
            ))
        })?,
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let caps = Caps {
        // The instruction set is the target's, vector functions are those of this machine's C
        // library.
        vector_math: compile::caps(threads).vector_math,
        ..Caps::cpu(isa, threads)
    };
    let mut model = inrush_torch::open(archive)?;
    // Weights are views of the mapped archive. Ranges are checked once, before anything reads them.
    model.weights.check()?;
    let options = Options {
        pieces: threads.min(8),
        threads: threads.min(8),
        verify: inrush_runtime::verify_is_asked_for(),
        ..Options::default()
    };
    // The graph is consumed; the weights of the model are still needed for the package.
    let graph = std::mem::take(&mut model.graph);
    let compiled = inrush_compile::compile(graph, &caps, &options, &mut ())?;
    let host = Target {
        isa: caps.isa,
        vector_math: caps.vector_math,
    };
    let built = Compiler::find()?.build(&compiled.pieces, &host, &Cache::open_default())?;
    let object = std::fs::read(&built.path)
        .map_err(|e| Error::machine(format!("cannot read `{}`: {e}", built.path.display())))?;
    let machine = Machine {
        arch: std::env::consts::ARCH.to_string(),
        os: std::env::consts::OS.to_string(),
        isa: caps.isa.name().to_string(),
    };
    inrush_package::write(output, machine, &compiled.program, &object, &|name| {
        model.weights.view(name).map(|w| WeightData {
            dtype: w.dtype,
            sizes: w.sizes,
            strides: w.strides,
            bytes: w.bytes,
        })
    })
}

/// What a package takes: for each input its name, dtype and rank where it is a tensor, the value where only one is taken, and
/// whether it has to begin its storage.
type Inputs = Vec<(
    String,
    Option<(&'static str, usize)>,
    Option<Py<PyAny>>,
    bool,
)>;

/// Loads a package: a callable of flat arguments, and what these are.
#[pyfunction]
pub fn load_package(
    py: Python<'_>,
    path: PathBuf,
    threads: Option<usize>,
    seed: i64,
) -> PyResult<(Compiled, Inputs)> {
    let pool = compile::pool(py, threads)?;
    let model = py
        .detach(|| Model::open(&path, pool.clone()))
        .map_err(raise)?;
    model.set_seed(seed);
    let program = model.program().clone();
    let inputs = (program.inputs.iter())
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
    let runner = Runner::new(
        host_program(program),
        Vec::new(),
        MachineCode::Cpu(vec![Some(Loaded::new(model))]),
    );
    Ok((Compiled::new(runner, Report::default(), threads), inputs))
}

/// A call that is the program and nothing else. Inputs take the first slots, outputs those after.
fn host_program(program: Program) -> HostProgram {
    let inputs = program.inputs.len();
    let slots = inputs + program.outputs.len();
    let symbols = (program.symbols.iter())
        .map(|s| {
            let (slot, read) = match s.source {
                SymbolSource::Int { input } => (input, Read::Int),
                SymbolSource::Dim {
                    input,
                    dim,
                    factor,
                    offset,
                } => {
                    let dim = dim as usize;
                    (
                        input,
                        Read::Dim {
                            dim,
                            factor,
                            offset,
                        },
                    )
                }
            };
            Symbol {
                slot: slot as usize,
                read,
                after: None,
            }
        })
        .collect();
    // What a step has written into an input or weight is nothing that the caller gets.
    let outputs = (program.outputs.iter().enumerate())
        .filter(|(_, o)| !matches!(o, Output::Mutation))
        .map(|(k, _)| Out::Slot(inputs + k))
        .collect();
    HostProgram {
        symbols,
        sizes: Vec::new(),
        slots,
        inputs: (0..inputs).collect(),
        constants: Vec::new(),
        outputs,
        pieces: Vec::new(),
        isa: String::new(),
        vector_math: false,
        gpu: None,
        steps: vec![Step {
            frees: Vec::new(),
            binds_symbols: false,
            kind: StepKind::Segment(Segment {
                symbols: (0..program.symbols.len() as u32).collect(),
                inputs: (0..inputs).collect(),
                outputs: (inputs..slots).collect(),
                program,
            }),
        }],
    }
}
