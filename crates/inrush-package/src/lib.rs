//! The compiled package: one zip file that holds programs, their machine code and the weights.
//!
//! ```text
//! inrush.json             manifest: format, weights, targets with their programs
//! targets/<n>/kernels.so  machine code of a target that is a CPU
//! targets/<n>/kernel/<k>  machine code of a kernel, for a target that is a GPU
//! targets/<n>/ptx/<k>     the same as PTX, which NVIDIA's driver finishes for a later GPU
//! targets/<n>/source/<k>  Triton source of a kernel in their place, for a target whose kernels are built where it is opened
//! weights/<n>             raw bytes of a weight, aligned to 64 bytes so that they are mapped, not read
//! ```
//! All entries are stored uncompressed. Targets share the weights. If the only target is a CPU, weights that only products read
//! are stored in [`Panels`]. This is the only crate that
//! serialises.
//!
//! The manifest holds the digest of every part that is code; the zip holds a checksum of each entry.
//!
//! Does not know: any IR of the compiler, drivers.

pub mod aoti;
mod check;
mod file;
mod output;
mod panels;
mod read;
mod source;
mod target;
mod write;

use inrush_program::host::Lowered;
use inrush_program::{BinaryInfo, Dt, GpuKernel, Program};
use serde::{Deserialize, Serialize};

pub use file::SourceFile;
pub use output::{cannot_write, write_whole};
pub use panels::{Axis, Panels};
pub use read::{Package, PanelData};
pub use source::{SourceKernel, StoredSource};
pub use target::{
    Code, Cpu, CpuTarget, Gpu, GpuTarget, PtxTarget, SCRATCH_ALIGNMENT, StoredKernel, Target,
    is_launchable,
};
pub use write::{KernelParts, Options, SourceParts, TargetParts, WeightData, write, write_with};

/// Format number. A new field or kind of anything in a manifest raises it: `tests/format.rs` lists the kinds of steps. Since 4, a
/// package holds a list of targets, and programs for CPUs may be in parts. Since 5, parts are control flow too. Since 6, weights
/// may be stored in [`Panels`]. Since 7, programs for GPUs have complex inputs, conditions on sizes and work of the host.
/// Since 8, programs call operators of the user's and launch users' Triton kernels. Since 9, targets may hold the source of their
/// kernels; packages without such a target are written as of format 8, which older readers take.
pub const FORMAT: u32 = 9;
/// The format of packages whose targets all hold machine code.
pub const FORMAT_OF_CODE: u32 = 8;
/// The oldest format that readers take; they refuse others.
pub const OLDEST: u32 = 5;

const MANIFEST: &str = "inrush.json";
/// The entry that says how the exported module nests its inputs and outputs, as PyTorch's tree specifications: `inputs` and
/// `outputs`. Programs do not need it.
pub const TREES: &str = "python.json";
/// Weights start at cache lines, so that they can be used where they are mapped.
const ALIGN: u16 = 64;

/// The part of a manifest that every format has.
#[derive(Deserialize)]
struct Header {
    format: u32,
    /// Version of inrush that wrote the package.
    version: String,
}

#[derive(Serialize, Deserialize)]
struct Manifest {
    format: u32,
    /// Version of inrush that wrote the package.
    version: String,
    weights: Vec<WeightEntry>,
    targets: Vec<TargetEntry>,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct WeightEntry {
    name: String,
    dtype: Dt,
    sizes: Vec<i64>,
    strides: Vec<i64>,
    /// Entry that holds the bytes; several weights may share one.
    entry: String,
    /// Bytes from the entry's start to the element at coordinates zero.
    offset: u64,
    /// Order of the elements in the entry; `None` for that of the strides.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    panels: Option<Panels>,
}

#[derive(Serialize, Deserialize)]
#[allow(clippy::large_enum_variant)] // A few in a list, never moved.
enum TargetEntry {
    Cpu {
        cpu: Cpu,
        program: Program,
        object: Part,
    },
    Gpu {
        gpu: Gpu,
        lowered: Lowered,
        /// In the order of the program's kernels.
        kernels: Vec<KernelEntry>,
    },
    Source {
        gpu: Gpu,
        lowered: Lowered,
        /// In the order of the program's kernels.
        kernels: Vec<SourceEntry>,
    },
}

#[derive(Serialize, Deserialize)]
struct KernelEntry {
    info: BinaryInfo,
    code: Part,
    ptx: Option<Part>,
}

#[derive(Serialize, Deserialize)]
struct SourceEntry {
    text: Part,
    /// Kernels that take the same launches: the fastest on the device is chosen there.
    candidates: Vec<CandidateEntry>,
}

#[derive(Serialize, Deserialize)]
struct CandidateEntry {
    /// Without its text.
    kernel: GpuKernel,
    text: Part,
}

/// An entry of the zip that holds code.
#[derive(Clone, Serialize, Deserialize)]
struct Part {
    entry: String,
    /// BLAKE3 of its bytes, in hexadecimal digits.
    digest: String,
}
