//! Reads `.pt2` archives of `torch.export`: the graph, and where its weights lie in the file.
//!
//! An archive is a zip whose entries are stored as they are, so that the file is mapped and weights are slices of the map.
//! Everything in it is untrusted: it is checked before it is believed, and nothing in it is executed. Sample inputs are a
//! pickle, which is read by a reader that can build tensors and plain containers only.
//!
//! ```text
//! archive   zip directory over the map
//! json      errors with their place; schema: what is read of the program's JSON
//! convert   JSON -> Graph: names, symbols (srepr), guards, nodes, signature
//! weights   names -> slices of the map; sample: the inputs the model was exported with (pickle)
//! tree      Python's nesting of inputs and outputs
//! ```

mod archive;
pub mod arith;
mod codes;
mod convert;
mod guard;
mod json;
mod lex;
mod model;
mod pickle;
mod sample;
mod schema;
mod srepr;
pub mod sympy;
mod tree;
mod weights;

pub use archive::{Archive, Bytes};
pub use json::last_frame;
pub use model::{Bind, Model, Options, Signature, open, open_bytes, open_with};
pub use sample::{Sample, SampleTensor, Slice};
pub use tree::Tree;
pub use weights::{TensorRef, WeightView, Weights};
