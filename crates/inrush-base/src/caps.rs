//! Device properties as plain data: what `compile` may know about the machine that will run its
//! kernels.
//!
//! Decisions read numbers (lanes, caches, registers), never a device's name. So a preset on one
//! machine compiles for another, and equal properties give equal code.

use std::collections::BTreeMap;
use std::fmt;

/// The name of the CPU among kinds of devices.
const CPU: &str = "cpu";

/// Instruction set level of a CPU target.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Hash)]
pub enum Isa {
    /// No vector instructions assumed.
    Scalar,
    /// AArch64 Advanced SIMD.
    Neon,
    /// x86-64-v3: AVX2, FMA, F16C.
    Avx2,
    /// x86-64-v4: AVX-512 F, BW, CD, DQ, VL.
    Avx512,
}

impl Isa {
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Neon => "neon",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
        }
    }
    pub fn parse(name: &str) -> Option<Isa> {
        [Isa::Scalar, Isa::Neon, Isa::Avx2, Isa::Avx512]
            .into_iter()
            .find(|i| i.name() == name)
    }
}

/// Capabilities of a target. Sizes are in bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Caps {
    /// The kind of device, `cpu` or the name of a GPU's: it names things and never decides.
    pub kind: &'static str,
    /// Level of a CPU; [`Isa::Scalar`] for a GPU.
    pub isa: Isa,
    /// Width of a vector register in bytes; the element size itself where there are none (4).
    pub vector_bytes: usize,
    /// Hardware threads that the executor will use.
    pub threads: usize,
    /// Data cache of one core; shared memory of a program on a GPU.
    pub l1_bytes: usize,
    /// Second cache: of one core, or of the whole GPU.
    pub l2_bytes: usize,
    /// The C library offers vector math functions (glibc's libmvec with its full set, 2.35 or later).
    pub vector_math: bool,
    /// Further capabilities of a GPU; `None` for a CPU.
    pub gpu: Option<Gpu>,
}

/// Properties of a GPU. The presets live in the crates of the devices.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Gpu {
    /// The instruction set as the kernel compiler names it: `90`, `gfx942`, `bmg`.
    pub arch: String,
    /// Multiprocessors (compute units, Xe cores).
    pub multiprocessors: u32,
    /// Threads that run in lockstep.
    pub warp: u32,
    /// Threads of one program at most.
    pub max_threads: u32,
    /// Threads that one multiprocessor holds at a time.
    pub resident_threads: u32,
    /// Shared memory that one program may ask for.
    pub shared_bytes: u32,
    /// 32-bit registers of a multiprocessor.
    pub registers: u32,
    /// float8 kinds that Triton has a type for on the device. Kernels compute with the codes of the others.
    pub float8: &'static [crate::DType],
    /// Atomic addition of bfloat16 values.
    pub bf16_atomics: bool,
    /// `tl.dot` takes float64 operands.
    pub dot_f64: bool,
    /// The copy engine takes tensor maps that the host made.
    pub tensor_maps: bool,
    /// Which products of halves are persistent kernels, where a library would do them otherwise.
    pub persistent_products: PersistentProducts,
    /// By rows, columns and terms of a product of halves: pointwise operators on its result are fused with it in one kernel, or a
    /// library multiplies. What was measured goes before all rules.
    pub measured_products: BTreeMap<[i64; 3], bool>,
    /// A kernel may start before the one before it has ended, and waits for it by an instruction (`griddepcontrol`).
    pub programmatic_launch: bool,
    /// Programs of the second and third grid dimension at most.
    pub max_grid_yz: u32,
}

/// Which products of halves are kernels that take tile after tile.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum PersistentProducts {
    /// None: nothing was measured on the device, or a library is to do all.
    Never,
    /// Large ones, and where a library does others those with pointwise work on their results.
    Large,
    /// All whose operands the copy engine takes.
    Always,
}

impl Gpu {
    /// Addresses and strides that the copy engine takes are multiples of so many bytes.
    pub const COPY_BYTES: i64 = 16;
    /// Rows for each multiprocessor below which several warps share each row that is sorted: it waits for less than for its turn. A
    /// warp alone takes the network of a row of 1,024 keys as code that Triton builds for up to 7 s.
    pub const FEW_SORTED_ROWS: i64 = 6;
    /// Rows and columns of what a program of a persistent product takes at once.
    pub const PAIR: (i64, i64) = (128, 256);

    /// Returns true if a product of halves, `m` by `n` with sums of `k` terms, keeps the device busy as a persistent kernel: the
    /// pipeline fills, and in the last round few multiprocessors have nothing to do. It takes up to 5 % longer than a library's
    /// product then, and what follows it is nearly free. To change a number, measure with `python/bench/gpu_products.py`.
    pub fn prefers_persistent(&self, m: i64, n: i64, k: i64) -> bool {
        const ROUNDS: i64 = 3;
        const TERMS: i64 = 512;
        const PERCENT: i64 = 90;
        let units = (self.multiprocessors as i64).max(1);
        let (rows, columns) = Gpu::PAIR;
        let along = |n: i64, block: i64| n / block + (n % block > 0) as i64;
        let pairs = along(m, rows).saturating_mul(along(n, columns));
        let rounds = along(pairs, units);
        let fast = match self.persistent_products {
            PersistentProducts::Never => false,
            PersistentProducts::Always => true,
            PersistentProducts::Large => {
                k >= TERMS
                    && rounds >= ROUNDS
                    && pairs.saturating_mul(100) >= (rounds * units).saturating_mul(PERCENT)
            }
        };
        self.tensor_maps && fast
    }

    /// Returns true if such a product and the pointwise work on its result take less time as one kernel than as a library's product
    /// and a kernel: what memory takes for the result outweighs what the product loses.
    pub fn prefers_epilogue(&self, m: i64, n: i64, k: i64) -> bool {
        const TERMS: i64 = 8192;
        let few = self.persistent_products == PersistentProducts::Always || k <= TERMS;
        few && self.prefers_persistent(m, n, k)
    }

    /// Returns true if a product of halves too small to be persistent and the pointwise work on its result take less time as one kernel:
    /// the library's product is short compared with a launch. Such a kernel took 0.72 to 1.03 of both on an H200, for 768 to 3072 columns and
    /// up to 2048 rows; of more terms more than both. To change a number, measure with `python/bench/gpu_products.py --tune`.
    pub fn prefers_small_epilogue(&self, m: i64, n: i64, k: i64) -> bool {
        const ROWS: i64 = 2048;
        const COLUMNS: i64 = 256;
        const FEW: i64 = 128;
        let terms = 512..=if m <= FEW && n <= ROWS { 2048 } else { 1024 };
        self.persistent_products == PersistentProducts::Large
            && (17..=ROWS).contains(&m)
            && n >= COLUMNS
            && terms.contains(&k)
    }
}

impl Caps {
    /// A CPU of the given level with common cache sizes.
    pub fn cpu(isa: Isa, threads: usize) -> Caps {
        let vector_bytes = match isa {
            Isa::Scalar => 4,
            Isa::Neon => 16,
            Isa::Avx2 => 32,
            Isa::Avx512 => 64,
        };
        Caps {
            kind: CPU,
            isa,
            vector_bytes,
            threads: threads.max(1),
            l1_bytes: 32 << 10,
            l2_bytes: 512 << 10,
            vector_math: matches!(isa, Isa::Avx2 | Isa::Avx512) && cfg!(target_os = "linux"),
            gpu: None,
        }
    }

    /// A GPU. `threads` are its multiprocessors: what has that many independent parts keeps all of it busy.
    pub fn gpu(kind: &'static str, gpu: Gpu, l2_bytes: usize) -> Caps {
        Caps {
            kind,
            isa: Isa::Scalar,
            vector_bytes: 16,
            threads: gpu.multiprocessors as usize,
            l1_bytes: gpu.shared_bytes as usize,
            l2_bytes,
            vector_math: false,
            gpu: Some(gpu),
        }
    }

    /// Lanes of a vector of elements of `bytes` bytes.
    pub fn lanes(&self, bytes: usize) -> usize {
        (self.vector_bytes / bytes).max(1)
    }
}

impl fmt::Display for Caps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.gpu {
            None => write!(f, "cpu-{}", self.isa.name()),
            Some(gpu) => write!(f, "{}-{}", self.kind, gpu.arch),
        }
    }
}
