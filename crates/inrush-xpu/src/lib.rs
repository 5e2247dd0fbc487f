//! Intel GPUs. The compile half is data: presets. The run half speaks with Level Zero; no program uses it yet.
//!
//! Does not know: the other devices, any compiler crate.

mod driver;

pub use driver::{driver, open};

use inrush_base::{Caps, DType, Device, Gpu, Preset};

/// The name of this kind of device.
const KIND: &str = "xpu";

/// The device.
pub static DEVICE: Device = Device {
    name: KIND,
    torch_name: "xpu",
    backend: "xpu",
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
    runs: None,
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
        tensor_maps: false,
        programmatic_launch: false,
        max_grid_yz: 65535,
    }
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
}
