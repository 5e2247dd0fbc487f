//! AMD GPUs: presets.
//!
//! Does not know: the other devices, any compiler crate.

#![forbid(unsafe_code)]

use inrush_base::{Caps, DType, Device, Gpu, Preset};

/// The name of this kind of device.
const KIND: &str = "rocm";

/// The device. PyTorch calls it `cuda`.
pub static ROCM: Device = Device {
    name: KIND,
    torch_name: "cuda",
    backend: "hip",
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
    runs: None,
};

/// Triton converts these in software where the machine does not. The kinds of CDNA3 alone, which have neither infinities nor a
/// negative zero, are left to PyTorch.
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
        tensor_maps: false,
        programmatic_launch: false,
        max_grid_yz: 65535,
    }
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
            let caps = ROCM.caps(Some(name)).expect("a preset");
            assert_eq!(caps.gpu.expect("a GPU").arch, arch);
        }
        assert!(ROCM.caps(Some("other")).is_none());
    }
}
