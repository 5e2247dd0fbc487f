//! AMD GPUs. The compile half is data: presets. The run half speaks with HIP.
//!
//! Does not know: the other devices, any compiler crate.

mod driver;

pub use driver::driver;

use inrush_base::{Caps, DType, Device, Gpu, PersistentProducts, Preset, Properties, Runs};
use std::collections::BTreeMap;

/// The name of this kind of device.
const KIND: &str = "rocm";

/// The device. Builds of PyTorch for it call it `cuda`.
pub static DEVICE: Device = Device {
    name: KIND,
    torch_name: "cuda",
    torch_build: "hip",
    backend: "hip",
    backend_package: ("amd", "`triton`, or `triton-rocm` with PyTorch for ROCm"),
    binary: "hsaco",
    presets: &[
        Preset {
            name: "mi300x",
            caps: mi300x,
        },
        Preset {
            name: "mi250",
            caps: mi250,
        },
        Preset {
            name: "mi355x",
            caps: mi355x,
        },
    ],
    cpp: Some(driver::cpp),
    runs: Some(Runs {
        // The number that PyTorch reserves for HIP. Its own tensors have that of `cuda`.
        torch_number: 6,
        tensor_number: 1,
        // `kDLROCM`.
        dlpack: &[10],
        shares_streams: true,
        products: None,
        caps,
    }),
};

/// Triton converts these in software where the machine does not. It has types for the kinds without a negative zero on some
/// architectures alone.
const FLOAT8: &[DType] = &[DType::F8E4M3FN, DType::F8E5M2];

fn gpu(arch: &str, compute_units: u32, shared_kib: u32) -> Gpu {
    Gpu {
        arch: arch.into(),
        multiprocessors: compute_units,
        warp: 64,
        max_threads: 1024,
        resident_threads: 2048,
        shared_bytes: shared_kib << 10,
        registers: 131072,
        float8: FLOAT8,
        bf16_atomics: true,
        // Triton 3.6 assigns the matrix instructions of gfx942, for which it has no lowering in float64.
        dot_f64: arch != "gfx942",
        tensor_maps: false,
        measured_products: BTreeMap::new(),
        persistent_products: PersistentProducts::Never,
        programmatic_launch: false,
        max_grid_yz: 65535,
    }
}

/// Returns the capabilities of a device; `None` for architectures other than those of the presets, whose threads run in lockstep
/// by 64.
pub fn caps(p: &Properties) -> Option<Caps> {
    let preset = DEVICE.presets.iter().map(|preset| (preset.caps)());
    let mut caps =
        (preset.into_iter()).find(|c| c.gpu.as_ref().is_some_and(|g| g.arch == p.arch))?;
    let gpu = caps.gpu.as_mut()?;
    gpu.multiprocessors = p.multiprocessors;
    gpu.resident_threads = p.resident_threads;
    // PyTorch does not tell these of AMD's.
    if p.registers > 0 {
        gpu.registers = p.registers;
    }
    if p.shared_bytes > 0 {
        gpu.shared_bytes = p.shared_bytes;
    }
    Some(caps)
}

/// One of the two dies of a card, which PyTorch sees as a device.
fn mi250() -> Caps {
    Caps::gpu(KIND, gpu("gfx90a", 104, 64), 8 << 20)
}
fn mi300x() -> Caps {
    Caps::gpu(KIND, gpu("gfx942", 304, 64), 256 << 20)
}
fn mi355x() -> Caps {
    Caps::gpu(KIND, gpu("gfx950", 256, 160), 256 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_have_their_names() {
        for (name, arch) in [
            ("mi250", "gfx90a"),
            ("mi300x", "gfx942"),
            ("mi355x", "gfx950"),
        ] {
            let caps = DEVICE.caps(Some(name)).expect("a preset");
            assert_eq!(caps.gpu.expect("a GPU").arch, arch);
        }
        assert!(DEVICE.caps(Some("other")).is_none());
    }

    #[test]
    fn capabilities_are_those_of_the_device() {
        let of = |arch: &str| {
            caps(&Properties {
                arch: arch.into(),
                major: 9,
                minor: 4,
                multiprocessors: 38,
                resident_threads: 2048,
                registers: 131072,
                shared_bytes: 65536,
                l2_bytes: 4 << 20,
            })
        };
        let part = of("gfx942").and_then(|c| c.gpu).expect("a part of a card");
        assert_eq!((part.multiprocessors, part.warp), (38, 64));
        let untold = caps(&Properties {
            arch: "gfx950".into(),
            major: 9,
            minor: 5,
            multiprocessors: 256,
            resident_threads: 2048,
            registers: 0,
            shared_bytes: 0,
            l2_bytes: 4 << 20,
        });
        let gpu = untold.and_then(|c| c.gpu).expect("a whole card");
        assert_eq!((gpu.registers, gpu.shared_bytes), (131072, 160 << 10));
        assert!(of("gfx1100").is_none() && of("").is_none());
    }
}
