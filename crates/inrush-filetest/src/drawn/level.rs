//! Levels that drawn graphs are checked on.

use inrush_base::Isa;

/// A level of the CPU, for which graphs are compiled, or a GPU, whose block programs are interpreted.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Level {
    Cpu(Isa),
    Gpu(&'static str),
}

impl Level {
    /// The levels of this processor.
    pub fn available() -> Vec<Level> {
        let levels = inrush_cpu::available();
        levels.into_iter().map(Level::Cpu).collect()
    }

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
