//! How a graph is compiled: options of the user.

use std::path::PathBuf;

/// How a graph is compiled, from the user's options.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// A broken invariant in a stage is an error; otherwise the operators of its segment are
    /// called.
    pub strict: bool,
    /// Nothing of the graph is kept for gradients.
    pub inference: bool,
    /// The caller holds arguments until a call ends. The lists of backward graphs hold the last reference of saved tensors.
    pub keeps_arguments: bool,
    /// Threads; PyTorch's number where left out.
    pub threads: Option<usize>,
    /// Random operators are called, so that they follow eager's stream.
    pub fallback_random: bool,
    /// A folder that gets the text of every stage.
    pub trace: Option<PathBuf>,
    /// Calls on a GPU are captured and replayed.
    pub graphs: bool,
    /// How kernels for a GPU name the elements of strided tiles.
    pub pointers: inrush_compile::Pointers,
    /// Which products of halves are kernels on a GPU; by default what was measured says.
    pub products: Option<inrush_base::PersistentProducts>,
    /// Tiles of kernels for a GPU are measured.
    pub tune: Tune,
    /// A preset by the name of its device and its own: it stands for the properties of devices, so that a machine without one can
    /// compile.
    pub gpu: Option<String>,
    /// Compile graphs of the CPU for that preset, and run their kernels in Triton's interpreter: for tests.
    pub interpret: bool,
    /// The C compiler, or Triton, works while the caller goes on; what it finds is told later.
    pub later: bool,
}

/// When tiles are measured.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum Tune {
    #[default]
    Never,
    /// While compiling.
    Now,
    /// In a thread, while calls go on.
    Background,
    /// At the first call, on its memory.
    AtCall,
    /// Never, but what won before is taken.
    Known,
}
