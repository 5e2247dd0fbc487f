//! Layers: attention, embeddings, compositions of other operators.
//!
//! All rows here are decompositions. `attention` is the one to read for how operators with large
//! intermediates are written; `embedding_bag` for how a loop over data-dependent ranges becomes
//! searches and scatters; `composite` holds what PyTorch itself would decompose, `composed` what
//! belongs to no family.

pub(super) mod attention;
pub(super) mod composed;
pub(super) mod composite;
pub(super) mod embedding_bag;
pub(super) mod flex;
pub(super) mod image;
pub(super) mod recurrent;
pub(super) mod transformer;
