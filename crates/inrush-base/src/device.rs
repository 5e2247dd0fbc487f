//! Kinds of GPUs as plain data, one value in each device's crate.

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
}

/// A GPU model.
pub struct Preset {
    pub name: &'static str,
    pub caps: fn() -> Caps,
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
