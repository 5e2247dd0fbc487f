//! Layers: attention, embeddings, compositions of other operators.

pub(super) mod attention;
pub(super) mod composed;
pub(super) mod composite;
pub(super) mod embedding_bag;
pub(super) mod image;
pub(super) mod transformer;
