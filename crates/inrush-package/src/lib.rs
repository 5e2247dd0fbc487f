//! The compiled package: one zip file that holds the program, the shared object and the weights.
//!
//! ```text
//! inrush.json      manifest: format, target, tree specs, weights, program
//! kernels.so       machine code
//! weights/<n>      raw bytes of a weight, aligned to 64 bytes so that they are mapped, not read
//! ```
//! All entries are stored uncompressed. This is the only crate that serialises.
//!
//! Does not know: any IR of the compiler.

mod output;
mod read;
mod write;

use inrush_program::{Dt, Program};
use serde::{Deserialize, Serialize};

pub use output::{cannot_write, write_whole};
pub use read::Package;
pub use write::{WeightData, write};

/// Format number; readers refuse others. Since 2, inputs carry the assumptions about their memory.
pub const FORMAT: u32 = 3;

const MANIFEST: &str = "inrush.json";
const OBJECT: &str = "kernels.so";
/// Weights start at cache lines, so that they can be used where they are mapped.
const ALIGN: u16 = 64;

/// The machine that a package runs on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Target {
    /// `x86_64`, `aarch64`.
    pub arch: String,
    /// `linux`.
    pub os: String,
    /// Instruction set level by name (`avx2`).
    pub isa: String,
}

#[derive(Serialize, Deserialize)]
struct Manifest {
    format: u32,
    target: Target,
    /// Version of inrush that wrote the package.
    version: String,
    weights: Vec<WeightEntry>,
    program: Program,
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
}
