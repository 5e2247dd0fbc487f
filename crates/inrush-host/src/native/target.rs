//! Targets that packages are asked for, by name, and the parts of those that are GPUs.

use crate::program::{Device, Lowered};
use inrush_base::{Caps, Error, Isa, Result};
use inrush_package::{Gpu, KernelParts, SourceParts, TargetParts};
use inrush_program::{GpuKernel, GpuTarget};
use inrush_runtime::triton::Binary;

/// A target that a package is to have.
pub enum Wanted {
    /// A level of this machine's architecture; `None` for the level of this machine.
    Cpu(Option<Isa>),
    Gpu(Box<WantedGpu>),
}

/// A GPU that a package is to have a program for.
pub struct WantedGpu {
    pub gpu: Gpu,
    pub caps: Caps,
    /// The device that programs name; packages replace its index when they are opened.
    pub device: Device,
    /// The executor has a library for matrix products.
    pub has_library: bool,
}

impl Wanted {
    /// Reads a target: `cpu`, `cpu:avx2`, a GPU by the name of its model (`h100`), or of its kind, a
    /// colon and its model.
    ///
    /// # Errors
    /// An input error for other names, which lists those that there are; an unsupported one for kinds that programs are not
    /// written for.
    pub fn parse(name: &str) -> Result<Wanted> {
        let level = name.strip_prefix("cpu:").unwrap_or(name);
        if matches!(level, "cpu" | "native") {
            return Ok(Wanted::Cpu(None));
        }
        if let Some(isa) = Isa::parse(level) {
            return Ok(Wanted::Cpu(Some(isa)));
        }
        let of_kind = |d: &'static inrush_base::Device| {
            let alone = d.presets.iter().find(|p| p.name == name);
            let full = name.split_once(':').filter(|(kind, _)| *kind == d.name);
            let full = full.and_then(|(_, model)| d.presets.iter().find(|p| p.name == model));
            alone.or(full).map(|p| (d, p))
        };
        let (kind, preset) =
            (inrush_devices::ALL.into_iter().find_map(of_kind)).ok_or_else(|| unknown(name))?;
        let runs = kind.runs.as_ref().ok_or_else(|| {
            Error::unsupported(format!("packages hold no programs for `{}` yet", kind.name))
        })?;
        let caps = (preset.caps)();
        let gpu = (caps.gpu.as_ref()).ok_or_else(|| Error::internal("a GPU without properties"))?;
        let build = GpuTarget {
            backend: kind.backend.into(),
            arch: gpu.arch.clone(),
            warp: gpu.warp,
        };
        Ok(Wanted::Gpu(Box::new(WantedGpu {
            gpu: Gpu {
                kind: kind.name.into(),
                model: preset.name.into(),
                build,
            },
            caps,
            has_library: runs.products.is_some(),
            device: Device {
                kind: runs.torch_number,
                index: 0,
            },
        })))
    }
}

fn unknown(name: &str) -> Error {
    Error::input(format!(
        "unknown target `{name}`: cpu, cpu:LEVEL (scalar, avx2, avx512 or neon), or a GPU: {}",
        inrush_devices::models().collect::<Vec<_>>().join(", ")
    ))
}

/// Returns what a package stores of a program for a GPU: its kernels with their machine code and PTX.
///
/// # Errors
/// A machine error for files of the cache that cannot be read.
pub fn parts<'a>(gpu: &Gpu, lowered: &'a Lowered, binaries: &[Binary]) -> Result<TargetParts<'a>> {
    let kernels = (binaries.iter())
        .map(|b| {
            let ptx = b.ptx.as_ref().map(std::fs::read).transpose();
            Ok(KernelParts {
                info: b.info.clone(),
                code: b.code.bytes()?.into_owned(),
                ptx: ptx.map_err(|e| Error::machine(format!("the PTX of a kernel: {e}")))?,
            })
        })
        .collect::<Result<_>>()?;
    Ok(TargetParts::Gpu {
        gpu: gpu.clone(),
        lowered,
        kernels,
    })
}

/// Returns what a package stores of a program for a GPU whose kernels are built where it is opened. `candidates` are those of each kernel.
pub fn source_parts<'a>(
    gpu: &Gpu,
    lowered: &'a Lowered,
    candidates: Vec<Vec<GpuKernel>>,
) -> TargetParts<'a> {
    let mut all = candidates.into_iter();
    let kernels = (lowered.kernels().iter())
        .map(|_| SourceParts {
            candidates: all.next().unwrap_or_default(),
        })
        .collect();
    TargetParts::Source {
        gpu: gpu.clone(),
        lowered,
        kernels,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_named_by_level_or_model() {
        let isa = |name| match Wanted::parse(name) {
            Ok(Wanted::Cpu(isa)) => isa,
            _ => panic!("{name}"),
        };
        assert_eq!((isa("cpu"), isa("native")), (None, None));
        assert_eq!(isa("cpu:avx2"), Some(Isa::Avx2));
        assert_eq!(isa("neon"), Some(Isa::Neon));
        for (name, shown, arch) in [
            ("h100", "cuda:h100", "90"),
            ("cuda:a100", "cuda:a100", "80"),
            ("mi300x", "rocm:mi300x", "gfx942"),
        ] {
            let Ok(Wanted::Gpu(w)) = Wanted::parse(name) else {
                panic!("{name}");
            };
            assert_eq!(
                (w.gpu.to_string().as_str(), w.gpu.build.arch.as_str()),
                (shown, arch)
            );
            assert!(w.device.is_gpu());
        }
        for wrong in ["", "cpu:", "cpu:h100", "h1", "rocm:h100", "cuda:"] {
            let e = Wanted::parse(wrong).err().expect("an error");
            assert!(e.to_string().contains("mi300x"), "{wrong}: {e}");
        }
    }
}
