//! GPU models as numbers.

use super::KIND;
use inrush_base::{Caps, DType, Gpu, PersistentProducts, Preset, Properties};
use std::collections::BTreeMap;

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
        dot_f64: true,
        tensor_maps: true,
        measured_products: BTreeMap::new(),
        persistent_products: match arch {
            "90" => PersistentProducts::Large,
            _ => PersistentProducts::Never,
        },
        programmatic_launch: true,
        max_grid_yz: 65535,
    }
}

/// Returns the capabilities of a device; `None` for one that Triton cannot build for.
pub fn caps(p: &Properties) -> Option<Caps> {
    if p.major < 7 {
        return None;
    }
    let float8: &[DType] = match (p.major, p.minor) {
        (9.., _) | (8, 9) => FLOAT8,
        (8, _) => &[DType::F8E5M2],
        _ => &[],
    };
    let arch = format!("{}{}", p.major, p.minor);
    let mut g = gpu(&arch, p.multiprocessors, 0, float8);
    g.resident_threads = p.resident_threads;
    g.registers = p.registers;
    g.shared_bytes = p.shared_bytes;
    g.bf16_atomics = p.major >= 8;
    g.tensor_maps = p.major >= 9;
    g.programmatic_launch = p.major >= 9;
    Some(Caps::gpu(KIND, g, p.l2_bytes))
}

fn a100() -> Caps {
    let gpu = Gpu {
        tensor_maps: false,
        measured_products: BTreeMap::new(),
        persistent_products: PersistentProducts::Never,
        programmatic_launch: false,
        ..gpu("80", 108, 163, &[DType::F8E5M2])
    };
    Caps::gpu(KIND, gpu, 40 << 20)
}
fn h100() -> Caps {
    Caps::gpu(KIND, gpu("90", 132, 227, FLOAT8), 50 << 20)
}
fn h200() -> Caps {
    Caps::gpu(KIND, gpu("90", 132, 227, FLOAT8), 50 << 20)
}
fn b200() -> Caps {
    Caps::gpu(KIND, gpu("100", 148, 227, FLOAT8), 126 << 20)
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
