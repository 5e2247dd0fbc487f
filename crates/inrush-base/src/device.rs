//! Kinds of GPUs as plain data, one value in each device's crate.

use crate::Caps;

/// A kind of GPU. Nothing else in the workspace names one, but the list of them in `inrush-devices`.
pub struct Device {
    /// The name in targets: alone, or with a preset's after a colon.
    pub name: &'static str,
    /// PyTorch's name of the device type.
    pub torch_name: &'static str,
    /// The name of PyTorch's builds for such devices: that of their version in `torch.version`, and the end of the library's name.
    pub torch_build: &'static str,
    /// The kernel compiler's name of the back end.
    pub backend: &'static str,
    /// The vendor's name among the kernel compiler's back ends, and the packages that have it.
    pub backend_package: (&'static str, &'static str),
    /// File extension of its binaries.
    pub binary: &'static str,
    /// Presets by name, the first being the default.
    pub presets: &'static [Preset],
    /// Returns the declarations of its driver for printed C++; `None` for kinds that C++ is not printed for.
    pub cpp: Option<fn() -> String>,
    /// Requirements of running on such devices; `None` for kinds that are compiled for only.
    pub runs: Option<Runs>,
}

/// Requirements of running on a kind of GPU.
pub struct Runs {
    /// PyTorch's number of the device type (`c10::DeviceType`, which is stable). No other kind has it.
    pub torch_number: i32,
    /// PyTorch's number of the device type that tensors of its builds for such devices have: kinds may share it, as they do
    /// PyTorch's name.
    pub tensor_number: i32,
    /// DLPack's numbers of memory that kernels of such devices access; the first is that of their own memory.
    pub dlpack: &'static [i32],
    /// True if streams of other libraries, which DLPack passes, are streams of the driver. Elsewhere the host waits for work whose
    /// results go from one library to another.
    pub shares_streams: bool,
    /// Folders where the library for matrix products may be, besides those that the system knows; `None` where programs
    /// multiply by kernels alone.
    pub products: Option<&'static [&'static str]>,
    /// Returns the capabilities of a device with these properties; `None` if kernels cannot be built for it.
    pub caps: fn(&Properties) -> Option<Caps>,
}

/// The properties that a device reports.
pub struct Properties {
    /// The instruction set as the kernel compiler names it: `90`, `gfx942`.
    pub arch: String,
    /// Version of the instruction set.
    pub major: u32,
    pub minor: u32,
    pub multiprocessors: u32,
    pub resident_threads: u32,
    /// Zero where it is not told; so is the next.
    pub registers: u32,
    pub shared_bytes: u32,
    pub l2_bytes: usize,
}

/// A GPU model.
pub struct Preset {
    pub name: &'static str,
    pub caps: fn() -> Caps,
}

impl Device {
    /// Returns the capabilities of a preset, of the default one without a name; `None` for a name
    /// that the device does not have.
    pub fn caps(&self, preset: Option<&str>) -> Option<Caps> {
        let found = match preset {
            None => self.presets.first(),
            Some(name) => self.presets.iter().find(|p| p.name == name),
        };
        found.map(|p| (p.caps)())
    }
}
