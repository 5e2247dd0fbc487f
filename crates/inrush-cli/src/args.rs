//! The command line.
//!
//! clap prints the comments of fields and variants as the text of `--help`, so they are written for
//! users of the command. They end without a full stop, and a default that code computes is in
//! brackets.

use clap::{Args, Parser, Subcommand};
use std::path::PathBuf;

/// Compiles exported PyTorch models to native code and runs them, without Python or libtorch.
#[derive(Parser, Debug)]
#[command(name = "inrush", version, about, arg_required_else_help = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

/// Operators that users define: their functions are called where a package runs.
#[derive(Args, Debug, Clone, Default)]
pub struct OperatorArgs {
    /// Declare an operator of your own that the model calls: "mylib::scale(Tensor x, float by=2.0) -> Tensor"; repeat for several
    #[arg(long = "operator", value_name = "SCHEMA")]
    pub declared: Vec<String>,
    /// Load a shared library with functions of operators, which exports inrush_operators (see inrush.h); repeat for several
    #[arg(long = "operators", value_name = "LIBRARY")]
    pub libraries: Vec<PathBuf>,
}

#[derive(Subcommand, Debug)]
pub enum Command {
    /// Compile (or load) a model and run it once, with checks and timings
    Run(RunArgs),
    /// Compile a `.pt2` archive into a package that runs without a compiler, on CPUs and GPUs, or into source
    Compile(CompileArgs),
    /// Measure compile time and latency
    Bench(BenchArgs),
    /// Write a report of what became of a model: times, kernels, refused fusions, memory
    Explain(ExplainArgs),
    /// Print a model at any stage of the pipeline
    Inspect(InspectArgs),
    /// Check that this machine has what inrush needs
    Doctor(DoctorArgs),
    /// Show, bound or clear what is kept: objects, kernels, graphs, tuned tiles, graphs that failed
    ///
    /// INRUSH_CACHE_DIR names the folder and INRUSH_CACHE_LIMIT its bound (500MB, 2GB, none; by default 10 GB or a tenth of the disk).
    /// INRUSH_REMOTE_CACHE names a second tier that machines share: file:///folder, redis://host:port/db or s3://bucket/prefix. With
    /// INRUSH_REMOTE_CACHE_KEY only entries that were written with the same secret are used.
    Cache(CacheArgs),
    /// Print a completion script for a shell
    Completion {
        /// The shell to complete for
        shell: clap_complete::Shell,
    },
}

impl Command {
    /// Returns the operators that users define, for commands that take models.
    pub fn operators(&self) -> Option<&OperatorArgs> {
        match self {
            Command::Run(a) => Some(&a.operators),
            Command::Compile(a) => Some(&a.operators),
            Command::Bench(a) => Some(&a.operators),
            Command::Explain(a) => Some(&a.operators),
            Command::Inspect(a) => Some(&a.operators),
            Command::Doctor(_) | Command::Cache(_) | Command::Completion { .. } => None,
        }
    }
}

/// Which machine to compile for and with how many threads.
#[derive(Args, Debug, Clone, Default)]
pub struct TargetArgs {
    /// CPU level to compile for: native, scalar, avx2, avx512 or neon
    #[arg(long, value_name = "LEVEL", default_value = "native")]
    pub target: String,
    /// Threads to run on [default: all that this process may use]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
}

#[derive(Args, Debug)]
pub struct RunArgs {
    #[command(flatten)]
    pub operators: OperatorArgs,
    /// A `.pt2` archive written by torch.export.save, or a compiled package
    pub model: PathBuf,
    /// Input tensors, keys "0", "1", … or the inputs' names [default: the archive's sample inputs, else seeded random data]
    #[arg(long, value_name = "FILE.safetensors")]
    pub inputs: Option<PathBuf>,
    /// Expected outputs, keys "0", "1", …; a difference beyond the tolerance is an error. A key "labels" (int64) gives the
    /// accuracy of output 0
    #[arg(long, value_name = "FILE.safetensors")]
    pub expect: Option<PathBuf>,
    /// Where to write the outputs
    #[arg(long, value_name = "FILE.safetensors")]
    pub output: Option<PathBuf>,
    /// Largest accepted error: norm of the difference over norm of the expected output
    #[arg(long, value_name = "X", default_value_t = 1e-4, value_parser = tolerance)]
    pub tolerance: f64,
    /// Value of a symbolic size for random inputs, as NAME=N; may be repeated
    #[arg(long, value_name = "NAME=N")]
    pub size: Vec<String>,
    /// Seed of the first call's random numbers, for models that draw some; each call takes the next
    #[arg(
        long,
        value_name = "N",
        default_value_t = 0,
        allow_negative_numbers = true
    )]
    pub seed: i64,
    /// Seconds to measure the latency for
    #[arg(long, value_name = "S", default_value_t = 0.5, value_parser = seconds)]
    pub seconds: f64,
    /// Device to run on: cpu, cuda:0 for the first NVIDIA GPU, rocm:0 for AMD's or xpu:0 for Intel's. A package brings its kernels;
    /// those of an archive are built by the Python package `triton`, for which $INRUSH_PYTHON names the interpreter [default: python3]
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub device: String,
    /// On a GPU, compile matrix products too instead of calling cuBLAS
    #[arg(long)]
    pub no_libraries: bool,
    /// On a GPU, capture calls as CUDA graphs and replay them
    #[arg(long = "cuda-graphs")]
    pub capture: bool,
    /// Allow a package that holds the source of its kernels to have them built, which runs code of the package in Triton's Python
    /// ($INRUSH_PYTHON). Built kernels are kept; a package whose kernels are all kept needs neither this nor Triton. Also
    /// INRUSH_BUILD_KERNELS=1
    #[arg(long)]
    pub build_kernels: bool,
    /// Keep kernels that are built in this folder too, and look for them there first; the cache has them in any case
    #[arg(long, value_name = "FOLDER")]
    pub records: Option<PathBuf>,
    /// Print one line of JSON instead of text
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub target: TargetArgs,
}

#[derive(Args, Debug)]
pub struct CompileArgs {
    #[command(flatten)]
    pub operators: OperatorArgs,
    /// A `.pt2` archive written by torch.export.save; with `--emit python` also a package for a GPU with the source of its kernels
    pub model: PathBuf,
    /// The package, or with `--emit` the source file, to write
    #[arg(short, long, value_name = "OUT")]
    pub output: PathBuf,
    /// Targets to compile for, separated by commas: cpu (the level of this machine), cpu:LEVEL (scalar, avx2, avx512 or
    /// neon), or GPUs: h100, h200, a100, b200, mi300x, mi250, mi355x. Kernels for GPUs are built by the Python package `triton`, for
    /// which $INRUSH_PYTHON names the interpreter [default: python3]; that takes no GPU
    #[arg(
        long,
        value_name = "TARGETS",
        default_value = "cpu",
        value_delimiter = ','
    )]
    pub target: Vec<String>,
    /// Format of the package: inrush (for `inrush run`, `inrush.load` and the runtimes for Rust, C and Python), or aoti, an archive
    /// that PyTorch loads by itself (`torch._inductor.aoti_load_package`), on a CPU if a target is one, else on a GPU of kind cuda
    #[arg(long, value_enum, default_value_t = Format::Inrush)]
    pub format: Format,
    /// Write the program as source instead of a package: one readable file that runs without inrush. `python` needs PyTorch and, for
    /// a CPU, a C compiler, for a GPU Triton; weights are read from the archive. `cpp` needs a C++17 compiler alone (for functions of the library also libinrush), and for a GPU its
    /// driver where it runs: machine code of the kernels is in the file. Weights are written to a safetensors file next to it, OUT with
    /// the extension `weights.safetensors`
    #[arg(long, value_enum, value_name = "LANGUAGE", conflicts_with = "format")]
    pub emit: Option<Emit>,
    /// Hold kernels for GPUs as machine code, or as Triton source that is built where the package is opened (`inrush run
    /// --build-kernels`); compiling needs no Triton then
    #[arg(long, value_enum, value_name = "FORM", default_value_t = Kernels::Code, conflicts_with = "emit")]
    pub kernels: Kernels,
    /// With `--kernels source`, hold neighbouring tiles of each kernel too: the first launch on a device measures them, and keeps the
    /// fastest
    #[arg(long)]
    pub tune: bool,
    /// For GPUs, compile matrix products too instead of calling cuBLAS
    #[arg(long)]
    pub no_libraries: bool,
    /// Threads to compile for on a CPU [default: all that this process may use]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Print one line of JSON instead of text
    #[arg(long)]
    pub json: bool,
}

/// A language of source.
#[derive(clap::ValueEnum, Copy, Clone, PartialEq, Eq, Debug)]
pub enum Emit {
    Python,
    Cpp,
}

/// The form in which a package holds kernels for GPUs.
#[derive(clap::ValueEnum, Copy, Clone, PartialEq, Eq, Debug)]
pub enum Kernels {
    Code,
    Source,
}

/// A kind of package.
#[derive(clap::ValueEnum, Copy, Clone, PartialEq, Eq, Debug)]
pub enum Format {
    Inrush,
    Aoti,
}

#[derive(Args, Debug)]
pub struct BenchArgs {
    #[command(flatten)]
    pub operators: OperatorArgs,
    /// Archives or packages to measure; inputs next to them (NAME.inputs.safetensors) are used when present
    #[arg(required = true)]
    pub models: Vec<PathBuf>,
    /// Seconds to measure each model for
    #[arg(long, value_name = "S", default_value_t = 2.0, value_parser = seconds)]
    pub seconds: f64,
    /// Compile without the build cache, as on a first run (on CPUs)
    #[arg(long)]
    pub cold: bool,
    /// Device to run on: cpu, cuda:0 for the first NVIDIA GPU, rocm:0 for AMD's or xpu:0 for Intel's
    #[arg(long, value_name = "DEVICE", default_value = "cpu")]
    pub device: String,
    /// On a GPU, capture calls as CUDA graphs and replay them
    #[arg(long = "cuda-graphs")]
    pub capture: bool,
    /// Print one line of JSON per model instead of a table
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub target: TargetArgs,
}

#[derive(Args, Debug)]
pub struct ExplainArgs {
    #[command(flatten)]
    pub operators: OperatorArgs,
    /// A `.pt2` archive, or a compiled package (which keeps its program only)
    pub model: PathBuf,
    /// The page to write
    #[arg(short, long, value_name = "FILE.html", default_value = "report.html")]
    pub output: PathBuf,
    /// Print one line of JSON instead of text
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub target: TargetArgs,
}

#[derive(Args, Debug)]
pub struct InspectArgs {
    #[command(flatten)]
    pub operators: OperatorArgs,
    /// A `.pt2` archive, or a compiled package (stages: wrap)
    pub model: PathBuf,
    /// import, planar, normalize, rewrite, decompose, lower, fuse, tile, emit, wrap, refusals or summary
    #[arg(long, value_name = "STAGE", default_value = "summary")]
    pub stage: String,
    /// Print one line of JSON instead of text
    #[arg(long)]
    pub json: bool,
    /// CPU level to compile for (native, scalar, avx2, avx512 or neon), or a GPU by name: h100, h200, a100, b200, mi300x, mi250,
    /// mi355x, max1550, b580, a770
    #[arg(long, value_name = "LEVEL|GPU", default_value = "native")]
    pub target: String,
    /// Threads to compile for on a CPU [default: all that this process may use]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
}

#[derive(Args, Debug)]
pub struct DoctorArgs {
    /// Print one line of JSON instead of text
    #[arg(long)]
    pub json: bool,
}

#[derive(Args, Debug)]
pub struct CacheArgs {
    /// Remove entries: of the kinds that are named, else all of them
    #[arg(long, value_name = "KIND", num_args = 0.., value_delimiter = ',')]
    pub clear: Option<Vec<String>>,
    /// Remove what was used least recently, until no more than this is kept: 500MB, 2GB
    #[arg(long, value_name = "SIZE", value_parser = size, conflicts_with = "clear")]
    pub limit: Option<u64>,
    /// Print one line of JSON instead of text
    #[arg(long)]
    pub json: bool,
}

/// A number of bytes.
fn size(text: &str) -> Result<u64, String> {
    inrush_runtime::cache_limit::size(text).map_err(|e| e.message().to_string())
}

/// A time to measure for.
pub fn seconds(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "not a number".to_string())?;
    if (0.0..=600.0).contains(&value) {
        Ok(value)
    } else {
        Err("must be between 0 and 600".into())
    }
}

/// An error that is accepted.
fn tolerance(text: &str) -> Result<f64, String> {
    let value: f64 = text.parse().map_err(|_| "not a number".to_string())?;
    if value >= 0.0 {
        Ok(value)
    } else {
        Err("must not be negative".into())
    }
}

/// Returns the error for `--cuda-graphs` without a GPU.
pub(crate) fn captured_on_cpu() -> inrush_base::Error {
    inrush_base::Error::input("`--cuda-graphs` is for GPUs: name one with `--device cuda:0`")
}
