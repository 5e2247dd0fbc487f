//! GPU models as numbers.

use inrush_base::{Caps, DType, DeviceKind, Gpu, Preset};

pub(crate) const ALL: &[Preset] = &[
    Preset {
        name: "h100",
        caps: h100,
    },
    Preset {
        name: "h200",
        caps: h200,
    },
    Preset {
        name: "a100",
        caps: a100,
    },
    Preset {
        name: "b200",
        caps: b200,
    },
];

/// The float8 kinds whose conversions the hardware has from Ada on.
const FLOAT8: &[DType] = &[DType::F8E4M3FN, DType::F8E5M2];

fn gpu(arch: &str, multiprocessors: u32, shared_kib: u32, float8: &'static [DType]) -> Gpu {
    Gpu {
        arch: arch.into(),
        multiprocessors,
        warp: 32,
        max_threads: 1024,
        resident_threads: 2048,
        shared_bytes: shared_kib << 10,
        registers: 65536,
        float8,
        bf16_atomics: true,
        max_grid_yz: 65535,
    }
}

fn a100() -> Caps {
    Caps::gpu(
        DeviceKind::Cuda,
        gpu("80", 108, 163, &[DType::F8E5M2]),
        40 << 20,
    )
}
fn h100() -> Caps {
    Caps::gpu(DeviceKind::Cuda, gpu("90", 132, 227, FLOAT8), 50 << 20)
}
fn h200() -> Caps {
    Caps::gpu(DeviceKind::Cuda, gpu("90", 132, 227, FLOAT8), 50 << 20)
}
fn b200() -> Caps {
    Caps::gpu(DeviceKind::Cuda, gpu("100", 148, 227, FLOAT8), 126 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn presets_are_gpus_and_named_once() {
        for (k, p) in ALL.iter().enumerate() {
            assert!((p.caps)().gpu.is_some());
            assert!(ALL[..k].iter().all(|q| q.name != p.name));
        }
    }
}
