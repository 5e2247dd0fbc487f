//! Recurrent layers: one layer, one direction.
//!
//! The products of all steps' inputs with their weights are computed together, some steps at a time. Then each step adds the
//! product of the state with its weights, which are packed once, and applies the cell to all elements of the state.
//! Halves are computed in `f32`: they are rounded when results are written, not between steps.

mod activation;
mod cells;
mod layer;

pub(crate) use cells::{ELMAN, GRU, LSTM};
