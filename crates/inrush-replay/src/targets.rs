//! The targets that every program is compiled for.

use inrush_base::{Caps, Error, Isa, Result};
use inrush_compile::Pointers;

/// A device and how its kernels address memory.
pub(crate) struct Target {
    pub name: &'static str,
    pub caps: Caps,
    pub pointers: Pointers,
}

/// All targets. None depends on the machine: CPU levels have the caches and the two threads that [`Caps::cpu`] assumes, GPUs
/// are presets.
///
/// # Errors
/// A preset that no longer exists.
pub(crate) fn all() -> Result<Vec<Target>> {
    let cpu = |isa: Isa| Target {
        name: isa.name(),
        caps: Caps::cpu(isa, 2),
        pointers: Pointers::Plain,
    };
    let gpu = |name: &'static str, caps: Option<Caps>, pointers: Pointers| {
        let caps = caps.ok_or_else(|| Error::internal(format!("no preset for {name}")))?;
        Ok(Target {
            name,
            caps,
            pointers,
        })
    };
    let h100 = || inrush_devices::model("h100");
    let mi300x = inrush_devices::model("mi300x");
    Ok(vec![
        cpu(Isa::Scalar),
        cpu(Isa::Avx2),
        cpu(Isa::Avx512),
        gpu("h100", h100(), Pointers::Plain)?,
        gpu("h100-maps", h100(), Pointers::Map)?,
        gpu("mi300x", mi300x, Pointers::Plain)?,
    ])
}
