//! Levels that drawn graphs are checked on.
//!
//! Levels of one processor differ in the width of vectors, and so in peeled loops, tiles and
//! algorithms. GPUs need no device: their block programs are interpreted.

use inrush_base::Isa;

/// A level of the CPU, for which graphs are compiled, or a GPU, whose block programs are interpreted.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Level {
    Cpu(Isa),
    /// A preset of a device, by its name.
    Gpu(&'static str),
}

impl Level {
    /// The levels of this processor.
    pub fn available() -> Vec<Level> {
        let levels = inrush_cpu::available();
        levels.into_iter().map(Level::Cpu).collect()
    }

    /// Returns the level of a name such as `avx2` or `h100`.
    pub fn parse(text: &str) -> Option<Level> {
        let preset = (inrush_devices::ALL.iter().flat_map(|d| d.presets)).find(|p| p.name == text);
        match preset {
            Some(p) => Some(Level::Gpu(p.name)),
            None => Isa::parse(text).map(Level::Cpu),
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Level::Cpu(isa) => isa.name(),
            Level::Gpu(name) => name,
        }
    }

    /// Returns true if graphs can be checked on it here.
    pub fn is_available(self) -> bool {
        match self {
            Level::Cpu(isa) => crate::emulated::is_available(isa),
            Level::Gpu(_) => true,
        }
    }
}
