//! Device properties as plain data: what `compile` may know about the machine that will run its kernels.

use std::fmt;

/// Which family of device; used to name things, never to decide (decisions read the numbers of [`Caps`]).
#[derive(Copy, Clone, PartialEq, Eq, Debug, Hash)]
pub enum DeviceKind {
    Cpu,
    Cuda,
    Rocm,
    Xpu,
}

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

/// What a target can do. Sizes in bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Caps {
    pub kind: DeviceKind,
    pub isa: Isa,
    /// Width of a vector register in bytes; the element size itself where there are none (4).
    pub vector_bytes: usize,
    /// Hardware threads that the executor will use.
    pub threads: usize,
    pub l1_bytes: usize,
    pub l2_bytes: usize,
    /// The C library offers vector math functions (glibc's libmvec with its full set, 2.35 or later).
    pub vector_math: bool,
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
            kind: DeviceKind::Cpu,
            isa,
            vector_bytes,
            threads: threads.max(1),
            l1_bytes: 32 << 10,
            l2_bytes: 512 << 10,
            vector_math: matches!(isa, Isa::Avx2 | Isa::Avx512) && cfg!(target_os = "linux"),
        }
    }

    /// Lanes of a vector of elements of `bytes` bytes.
    pub fn lanes(&self, bytes: usize) -> usize {
        (self.vector_bytes / bytes).max(1)
    }
}

impl fmt::Display for Caps {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cpu-{}", self.isa.name())
    }
}
