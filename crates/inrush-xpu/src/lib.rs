//! Intel GPUs. The compile half is data: presets. The run half speaks with Level Zero.
//!
//! Does not know: the other devices, any compiler crate.

mod driver;

pub use driver::{driver, open};

use inrush_base::{Caps, DType, Device, Gpu, PersistentProducts, Preset, Properties, Runs};
use std::collections::BTreeMap;

/// The name of this kind of device.
const KIND: &str = "xpu";

/// The device.
pub static DEVICE: Device = Device {
    name: KIND,
    torch_name: "xpu",
    torch_build: "xpu",
    backend: "xpu",
    backend_package: (
        "intel",
        "`triton-xpu`, which comes with PyTorch for Intel GPUs",
    ),
    binary: "spv",
    presets: &[
        Preset {
            name: "max1550",
            caps: max1550,
        },
        Preset {
            name: "b580",
            caps: b580,
        },
        Preset {
            name: "a770",
            caps: a770,
        },
    ],
    cpp: Some(driver::cpp),
    runs: Some(Runs {
        torch_number: 12,
        tensor_number: 12,
        // `kDLOneAPI`.
        dlpack: &[14],
        // DLPack passes none for such memory; PyTorch's are queues of SYCL, which the driver adopts.
        shares_streams: false,
        products: None,
        caps,
    }),
};

fn gpu(arch: &str, cores: u32, registers: u32, bf16_atomics: bool) -> Gpu {
    const FLOAT8: &[DType] = &[];
    Gpu {
        arch: arch.into(),
        multiprocessors: cores,
        warp: 32,
        max_threads: 1024,
        resident_threads: 1024,
        shared_bytes: 128 << 10,
        registers,
        float8: FLOAT8,
        bf16_atomics,
        dot_f64: true,
        tensor_maps: false,
        measured_products: BTreeMap::new(),
        persistent_products: PersistentProducts::Never,
        programmatic_launch: false,
        max_grid_yz: 65535,
    }
}

/// Returns the capabilities of a device; `None` for architectures other than those of the presets.
pub fn caps(p: &Properties) -> Option<Caps> {
    let preset = DEVICE.presets.iter().map(|preset| (preset.caps)());
    let mut caps =
        (preset.into_iter()).find(|c| c.gpu.as_ref().is_some_and(|g| g.arch == p.arch))?;
    let gpu = caps.gpu.as_mut()?;
    gpu.multiprocessors = p.multiprocessors;
    gpu.resident_threads = p.resident_threads;
    gpu.registers = p.registers;
    gpu.shared_bytes = p.shared_bytes;
    caps.threads = p.multiprocessors as usize;
    Some(caps)
}

fn max1550() -> Caps {
    Caps::gpu(KIND, gpu("pvc", 64, 131072, false), 204 << 20)
}
fn b580() -> Caps {
    Caps::gpu(KIND, gpu("bmg", 20, 65536, false), 18 << 20)
}
fn a770() -> Caps {
    Caps::gpu(KIND, gpu("dg2", 32, 65536, false), 16 << 20)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_comes_first() {
        assert_eq!(DEVICE.caps(None), DEVICE.caps(Some("max1550")));
    }

    #[test]
    fn capabilities_are_those_of_the_device() {
        let of = |arch: &str| {
            caps(&Properties {
                arch: arch.into(),
                major: 0,
                minor: 0,
                multiprocessors: 56,
                resident_threads: 1024,
                registers: 131072,
                shared_bytes: 131072,
                l2_bytes: 108 << 20,
            })
        };
        let part = of("pvc").and_then(|c| c.gpu).expect("a smaller card");
        assert_eq!((part.multiprocessors, part.warp), (56, 32));
        assert!(of("unknown").is_none() && of("").is_none());
    }
}
