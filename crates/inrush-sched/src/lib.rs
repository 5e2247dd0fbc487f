//! The scheduler: from loops, one per operator, to a plan: fused kernels in order, with layouts and memory.
//!
//! Every stage is a function of its input, [`Options`] and [`inrush_base::Caps`]; decisions read numbers, never a device's name.
//! Every fusion that was considered and refused is a [`Refusal`].
//!
//! Does not know: languages; devices other than by `Caps`.

#![forbid(unsafe_code)]

mod access;
mod axes;
mod beside;
mod classes;
mod dag;
mod deps;
mod digits;
mod emit;
mod fold;
mod form;
mod fuse;
mod group;
mod inline;
mod layout;
mod memory;
mod options;
mod order;
mod pads;
mod plan;
mod planes;
mod prepare;
mod refusal;
mod relayout;
mod schedule;
mod split;
pub mod text;
mod verify;

pub use form::Form;
pub use inrush_loops::OriginId;
pub use layout::layout;
pub use memory::{memory, plan_memory};
pub use options::Options;
pub use plan::{Group, Memory, Place, Plan, Regions, Step};
pub use refusal::{Reason, Refusal};
pub use schedule::{fuse, schedule};
pub use verify::verify;
