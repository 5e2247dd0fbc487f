//! Reads `.pt2` archives of `torch.export`: the graph, and the ranges of its weights in the file.
//!
//! An archive is a zip with uncompressed entries, so the file is mapped and weights are slices of
//! the mapping. Everything in it is untrusted: it is checked before it is used, and nothing in it
//! is executed. Sample inputs are a pickle; the pickle reader can build tensors and plain
//! containers only.
//!
//! ```text
//! archive   zip directory over the mapping
//! json      errors with their place; schema: the keys of the program's JSON that are read
//! convert   JSON -> Graph: names, symbols (srepr), guards, nodes, signature
//! weights   names -> slices of the mapping; sample: the inputs the model was exported with (pickle)
//! tree      Python's nesting of inputs and outputs
//! ```
//!
//! Order of work of `open`: the zip directory, the container's format and version, the program's
//! JSON (in parallel with the configurations of weights), conversion to a graph, correction of
//! strides to those of eager, sample inputs. A mistake in the graph is an error. A mistake in
//! parts that compiling can do without (nesting of inputs, guards, sample inputs) is a note of
//! the model.
//!
//! The crate knows operators only through `inrush_aten::complex::bind`, which orders arguments by their
//! schema, and through a few predicates about assertions and metadata. Everything else about
//! operators is the work of stage normalize and later ones.

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
