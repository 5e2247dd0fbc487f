//! What the compiler and its printers ask a device for: plain data, one value in each device's crate.

use crate::Caps;

/// A kind of GPU. Nothing else in the workspace names one.
pub struct Device {
    /// The name in targets: `cuda`, or `cuda:h100` with a preset's.
    pub name: &'static str,
    /// PyTorch's name of the device type.
    pub torch_name: &'static str,
    /// The kernel compiler's name of the back end.
    pub backend: &'static str,
    /// File extension of its binaries.
    pub binary: &'static str,
    /// Presets by name, the first being the default.
    pub presets: &'static [Preset],
    pub python: PythonStrings,
    pub cpp: CppStrings,
}

/// A GPU model.
pub struct Preset {
    pub name: &'static str,
    pub caps: fn() -> Caps,
}

/// How a wrapper in Python does what depends on the device. `{}` stands for the device's index.
pub struct PythonStrings {
    pub import_raw_stream: &'static str,
    pub raw_stream: &'static str,
    pub guard: &'static str,
    pub set_device: &'static str,
    pub synchronize: &'static str,
}

/// How a wrapper in C++ does. `{}` stands for the device's index.
pub struct CppStrings {
    pub header: &'static str,
    pub stream_type: &'static str,
    pub kernel_type: &'static str,
    pub device_pointer: &'static str,
    pub guard: &'static str,
    pub stream_guard: &'static str,
    /// The parameter through which a kernel finds its scratch space; `None` where kernels take none.
    pub global_scratch: Option<&'static str>,
}

impl Device {
    /// The capabilities of a preset; of the default one without a name.
    pub fn caps(&self, preset: Option<&str>) -> Option<Caps> {
        let found = match preset {
            None => self.presets.first(),
            Some(name) => self.presets.iter().find(|p| p.name == name),
        };
        found.map(|p| (p.caps)())
    }
}
