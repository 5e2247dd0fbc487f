//! The targets of a package: what each is, and which devices its code fits.

use crate::source::StoredSource;
use inrush_base::{Error, Result};
use inrush_program::host::Lowered;
use inrush_program::{BinaryInfo, GpuTarget as BuildTarget, Program};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;

/// A processor that machine code runs on.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Cpu {
    /// `x86_64`, `aarch64`.
    pub arch: String,
    /// `linux`.
    pub os: String,
    /// Instruction set level by name (`avx2`).
    pub isa: String,
}

/// A GPU that machine code was built for.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Gpu {
    /// Name of the kind of device.
    pub kind: String,
    /// Name of the model whose properties the program was compiled for (`h100`).
    pub model: String,
    /// The target of its kernels in the kernel compiler's words.
    pub build: BuildTarget,
}

/// Code in the package: where it is, and its digest.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Code {
    pub(crate) range: Range<usize>,
    /// BLAKE3 of the bytes, in hexadecimal digits.
    pub digest: String,
}

/// A target of a package.
#[derive(Debug)]
pub enum Target {
    Cpu(Box<CpuTarget>),
    Gpu(Box<GpuTarget>),
}

/// A program for a CPU, with its shared object.
#[derive(Debug)]
pub struct CpuTarget {
    pub cpu: Cpu,
    pub program: Program,
    pub object: Code,
}

/// A program for a GPU, with its kernels.
#[derive(Debug)]
pub struct GpuTarget {
    pub gpu: Gpu,
    pub lowered: Lowered,
    /// In the order of the program's kernels; none where their source is stored.
    pub kernels: Vec<StoredKernel>,
    /// The source of the kernels, which are built where the package is opened.
    pub sources: Option<Vec<StoredSource>>,
    /// The architecture of the kernels' PTX, if all of them have it.
    pub ptx: Option<PtxTarget>,
}

/// A kernel for a GPU.
#[derive(Clone, Debug)]
pub struct StoredKernel {
    pub info: BinaryInfo,
    pub code: Code,
    pub ptx: Option<Code>,
}

/// The architecture that a PTX names (`.target sm_80`).
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub struct PtxTarget {
    /// The compute capability, 80 for 8.0.
    pub capability: u32,
    /// It uses features of this one architecture (`sm_90a`), so that no other can run it.
    pub specific: bool,
}

impl PtxTarget {
    /// Reads the directive of a PTX; `None` for a text that has none.
    pub fn of(ptx: &str) -> Option<PtxTarget> {
        let mut lines = ptx.lines().map(str::trim_start);
        let line = lines.find_map(|l| l.strip_prefix(".target"))?;
        let name = line.split(',').next()?.trim().strip_prefix("sm_")?;
        let digits = name.trim_end_matches(|c: char| c.is_ascii_lowercase());
        Some(PtxTarget {
            capability: digits.parse().ok()?,
            specific: digits.len() < name.len(),
        })
    }

    /// Returns true if a driver can finish the PTX for a device of this compute capability.
    pub fn fits(self, capability: u32) -> bool {
        if self.specific {
            capability == self.capability
        } else {
            capability >= self.capability
        }
    }
}

/// The compute capability from which on Triton builds for one architecture alone.
const SPECIFIC_FROM: u32 = 90;

impl GpuTarget {
    /// Returns the compute capability that the machine code was built for, 90 for 9.0; `None` for
    /// kinds of devices that count otherwise.
    pub fn capability(&self) -> Option<u32> {
        self.gpu.build.arch.parse().ok()
    }

    /// Returns true if a device of this architecture runs the machine code. Where architectures are compute capabilities: the
    /// same major version, and no earlier minor version. Code for features of one architecture fits that alone.
    pub fn fits(&self, arch: &str) -> bool {
        let Ok(capability) = arch.parse::<u32>() else {
            return self.gpu.build.arch == arch;
        };
        // Source for an architecture with features of its own is built for that alone too.
        let built_alone = self.sources.is_some() && self.capability() >= Some(SPECIFIC_FROM);
        let specific = built_alone || self.ptx.is_some_and(|p| p.specific);
        let same = |built: u32| built == capability;
        let earlier = |built: u32| built / 10 == capability / 10 && built <= capability;
        (self.capability()).is_some_and(|built| same(built) || (!specific && earlier(built)))
    }

    /// Returns true if a driver can finish the kernels for a device of this architecture.
    pub fn fits_by_ptx(&self, arch: &str) -> bool {
        (arch.parse().ok()).is_some_and(|c: u32| self.ptx.is_some_and(|p| p.fits(c)))
    }

    /// Returns the number of matrix products that a call has a library do.
    pub fn products(&self) -> usize {
        self.lowered.products()
    }

    /// Checks what an executor relies on: it may come from a file.
    ///
    /// # Errors
    /// An input error.
    pub(crate) fn check(&self) -> Result<()> {
        let damaged = |what: &str| {
            Err(Error::input(format!(
                "target `{}` is damaged: {what}",
                self.gpu
            )))
        };
        self.lowered.check()?;
        let gpu = match &self.lowered.program.gpu {
            Some(gpu) if gpu.target == self.gpu.build => gpu,
            _ => return damaged("its program is for another GPU"),
        };
        let inner = self.lowered.programs().into_iter();
        let mut others = inner.filter_map(|l| l.program.gpu.as_ref());
        if others.any(|g| g.target != self.gpu.build) {
            return damaged("a program that it calls is for another GPU");
        }
        let kernels = self.lowered.kernels();
        let stored = self.sources.as_ref().map_or(self.kernels.len(), Vec::len);
        if stored != kernels.len() {
            return damaged("its kernels are not those of its program");
        }
        if !(self.kernels.iter()).all(|k| is_launchable(&k.info, &gpu.target)) {
            return damaged("a kernel's numbers");
        }
        for (source, kernel) in self.sources.iter().flatten().zip(kernels) {
            source.check(kernel, &gpu.target).or_else(damaged)?;
        }
        Ok(())
    }
}

/// Bytes to which scratch memory of launches is aligned at least.
pub const SCRATCH_ALIGNMENT: u64 = 512;

/// Returns true if a launch can give a kernel what its numbers ask for. They may come from a file.
pub fn is_launchable(i: &BinaryInfo, target: &BuildTarget) -> bool {
    // A program of a kernel has 1024 threads at most; scratch space is counted in 31 bits.
    (1..=1024).contains(&i.warps)
        && (i.warps.checked_mul(target.warp)).is_some_and(|n| n <= 1024)
        && i.ctas == 1
        && !i.cooperative
        && i.scratch < 1 << 31
        && i.scratch_align <= SCRATCH_ALIGNMENT
        && (i.maps.iter()).all(|m| m.element_bytes > 0 && m.element_bytes <= 16)
        && !i.symbol.contains('\0')
}

impl fmt::Display for Cpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cpu:{} ({} {})", self.isa, self.os, self.arch)
    }
}

impl fmt::Display for Gpu {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.kind, self.model)
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Target::Cpu(t) => t.cpu.fmt(f),
            Target::Gpu(t) => write!(f, "{} ({})", t.gpu, t.gpu.build.arch),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ptx_names_its_architecture() {
        let of = |text: &str| PtxTarget::of(text).map(|p| (p.capability, p.specific));
        assert_eq!(of(".version 8.7\n.target sm_80\n"), Some((80, false)));
        assert_eq!(of("//\n .target sm_90a, debug\n"), Some((90, true)));
        assert_eq!(of(".target sm_100f"), Some((100, true)));
        for wrong in [
            "",
            ".version 8.7",
            ".target gfx942",
            ".target sm_",
            ".target sm_99999999999",
        ] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn ptx_of_one_architecture_fits_no_other() {
        let plain = PtxTarget {
            capability: 80,
            specific: false,
        };
        let specific = PtxTarget {
            capability: 90,
            specific: true,
        };
        let fitting = |p: PtxTarget| [75, 80, 86, 90, 100].map(|c| p.fits(c));
        assert_eq!(fitting(plain), [false, true, true, true, true]);
        assert_eq!(fitting(specific), [false, false, false, true, false]);
    }
    #[test]
    fn numbers_that_no_launch_can_give_are_refused() {
        let target = BuildTarget {
            backend: "cuda".into(),
            arch: "90".into(),
            warp: 32,
        };
        let good = BinaryInfo {
            symbol: "k".into(),
            warps: 4,
            ctas: 1,
            shared: 0,
            scratch: 64,
            scratch_align: 128,
            cooperative: false,
            maps: Vec::new(),
        };
        assert!(is_launchable(&good, &target));
        let changes: [fn(&mut BinaryInfo); 7] = [
            |b| b.warps = 0,
            |b| b.warps = 64,
            |b| b.warps = u32::MAX,
            |b| b.ctas = 2,
            |b| b.cooperative = true,
            |b| b.scratch = 1 << 31,
            |b| b.scratch_align = 1024,
        ];
        for change in changes {
            let mut bad = good.clone();
            change(&mut bad);
            assert!(!is_launchable(&bad, &target), "{bad:?}");
        }
    }
}
