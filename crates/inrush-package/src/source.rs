//! Kernels whose source a package holds: Triton builds them where it is opened.

use crate::read::Package;
use crate::target::{Code, GpuTarget};
use inrush_base::{Error, Result};
use inrush_program::{GpuKernel, GpuTarget as BuildTarget};

/// Candidates of a kernel at most: a bound for what a file may ask to be built.
pub(crate) const MOST_CANDIDATES: usize = 64;

/// Bytes of all texts of a target at most, each counted as often as a kernel names it. Those of a model are some megabytes.
pub(crate) const MOST_SOURCE: usize = 256 << 20;

/// The source of a kernel in the package.
#[derive(Clone, Debug)]
pub struct StoredSource {
    /// Text of the program's kernel.
    pub text: Code,
    /// Kernels that take the same launches, without their texts, and these.
    pub candidates: Vec<(GpuKernel, Code)>,
}

/// A kernel to be built.
#[derive(Clone, PartialEq, Debug)]
pub struct SourceKernel {
    /// The program's kernel, which the rules chose.
    pub kernel: GpuKernel,
    /// Others that take the same launches.
    pub candidates: Vec<GpuKernel>,
}

impl StoredSource {
    /// Checks what builds and launches rely on: candidates take the arguments of the program's kernel. Returns what is damaged.
    pub(crate) fn check(
        &self,
        kernel: &GpuKernel,
        target: &BuildTarget,
    ) -> Result<(), &'static str> {
        if self.candidates.len() > MOST_CANDIDATES {
            return Err("a kernel has too many candidates");
        }
        if !is_buildable(kernel, target) {
            return Err("a kernel's numbers");
        }
        let same = |c: &GpuKernel| {
            c.signature == kernel.signature
                && c.divisible == kernel.divisible
                && (c.debug, c.programmatic) == (kernel.debug, kernel.programmatic)
                && is_buildable(c, target)
        };
        if self.candidates.iter().all(|(c, _)| same(c)) {
            Ok(())
        } else {
            Err("a candidate that takes other launches than its kernel")
        }
    }
}

/// Returns true if a kernel names a function and asks for threads that a program may have.
fn is_buildable(k: &GpuKernel, target: &BuildTarget) -> bool {
    let begins = k
        .function
        .starts_with(|c: char| c.is_alphabetic() || c == '_');
    let named = begins && (k.function.chars()).all(|c| c.is_alphanumeric() || c == '_');
    let threads = k.warps.checked_mul(target.warp);
    named && k.warps.is_power_of_two() && threads.is_some_and(|n| n <= 1024)
}

impl Package {
    /// Returns the kernels of a target to be built, with their texts, in the order of the program's kernels; `None` where the
    /// target holds machine code.
    ///
    /// # Errors
    /// An input error for a text that is not UTF-8.
    pub fn source_kernels(&self, target: &GpuTarget) -> Result<Option<Vec<SourceKernel>>> {
        let Some(sources) = &target.sources else {
            return Ok(None);
        };
        let with = |kernel: &GpuKernel, text: &Code| {
            let text = std::str::from_utf8(self.code(text));
            let text = text.map_err(|_| {
                Error::input(format!(
                    "the source of the kernel `{}` is no text",
                    kernel.function
                ))
            })?;
            Ok(GpuKernel {
                text: text.to_string(),
                ..kernel.clone()
            })
        };
        (sources.iter().zip(target.lowered.kernels()))
            .map(|(s, kernel)| {
                let candidates = s.candidates.iter().map(|(c, text)| with(c, text));
                Ok(SourceKernel {
                    kernel: with(kernel, &s.text)?,
                    candidates: candidates.collect::<Result<_>>()?,
                })
            })
            .collect::<Result<Vec<_>>>()
            .map(Some)
    }
}
