//! The scheduler: from loops, one per operator, to a plan: fused kernels in order, with layouts and memory.
//!
//! Every stage is a function of its input, [`Options`] and [`inrush_base::Caps`]; decisions read numbers, never a device's name.
//! Every fusion that was considered and refused is a [`Refusal`].
//!
//! Does not know: languages; devices other than by `Caps`.
//!
//! | step | what it does | file |
//! |---|---|---|
//! | canonicalise | mutations become copies at the end, axes of one point go | `canonicalize.rs` |
//! | inline | pointwise producers into their readers | `inline.rs` |
//! | pad | producers write into the middle of padded buffers | `fuse_padding.rs` |
//! | split | long reductions with few results | `split.rs` |
//! | delinearise | `i // 64`, `i % 64` become two axes | `delinearize.rs` |
//! | swap | operands of convolutions over planes | `conv_nchw.rs` |
//! | layout | strides of temporaries | `layout.rs` |
//! | fuse | nodes into units | `fuse.rs` |
//! | form, order | units into kernels, then the order of these | `group.rs`, `order.rs` |
//! | arrange | order and number of loops, copies of small tensors | `loop_order.rs`, `prepack.rs` |
//! | memory | places of buffers | `memory.rs` |

#![forbid(unsafe_code)]

mod attention;
mod canonicalize;
mod conv_nchw;
mod dag;
mod dedup;
mod delinearize;
mod deps;
mod fingerprint;
mod fold_weights;
mod fuse;
mod fuse_padding;
mod group;
mod inline;
mod layout;
mod loop_order;
mod memory;
mod mixed_radix;
mod options;
mod order;
mod parallel;
mod plan;
mod prepack;
mod refusal;
mod schedule;
mod split;
pub mod text;
mod verify;

pub use fingerprint::Fingerprint;
/// The name that inrush-compile still uses.
pub use fingerprint::Fingerprint as Form;
pub use inrush_loops::OriginId;
pub use layout::layout;
pub use memory::{memory, plan_memory};
pub use options::Options;
pub use plan::{Group, Memory, Place, Plan, Regions, Step};
pub use refusal::{Reason, Refusal};
pub use schedule::{fuse, schedule};
pub use verify::verify;
