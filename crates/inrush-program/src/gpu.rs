//! Kernels for GPUs: source, with what a build and a launch must know.

use serde::{Deserialize, Serialize};

/// A kernel as the kernel compiler takes it. A program's [`Kernel`](crate::Kernel) names it by its symbol; a launch passes the
/// addresses of its buffers, then its sizes, in the order of the signature.
#[derive(Clone, Default, PartialEq, Debug, Serialize, Deserialize)]
pub struct GpuKernel {
    /// Unlike any other kernel's that differs in anything at all.
    pub symbol: String,
    /// A Python module.
    pub text: String,
    /// The function in it.
    pub function: String,
    /// Parameters and their types, without the constants.
    pub signature: Vec<(String, String)>,
    pub constants: Vec<(String, i64)>,
    /// Positions of parameters that are multiples of 16.
    pub divisible: Vec<usize>,
    pub warps: u32,
    pub stages: u32,
    /// Keep assertions.
    pub debug: bool,
    /// It waits for the kernel before it in the stream, and may be launched before that one has ended.
    #[serde(default)]
    pub programmatic: bool,
}

/// The target of kernels in the kernel compiler's words: its back end, `90`, 32.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
pub struct GpuTarget {
    pub backend: String,
    pub arch: String,
    pub warp: u32,
}

/// The numbers of a built kernel that a launch must know.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct BinaryInfo {
    /// The entry point.
    pub symbol: String,
    /// Warps of a program, which may be more than were asked for.
    pub warps: u32,
    pub ctas: u32,
    /// Bytes of shared memory, all of it given at launch.
    pub shared: u32,
    /// Bytes of scratch for each program.
    pub scratch: u64,
    pub scratch_align: u64,
    pub cooperative: bool,
    /// Layouts of the tensor maps among its parameters, in order.
    pub maps: Vec<MapLayout>,
}

/// Constants of a tensor map. A launcher adds the address, sizes and strides.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct MapLayout {
    /// The driver's numbers of the layout of tiles in shared memory and of the element's type.
    pub swizzle: u32,
    pub element: u32,
    pub element_bytes: u32,
    /// Sizes of the tile of one copy, from the slowest dimension to the fastest.
    pub block: Vec<u32>,
}
