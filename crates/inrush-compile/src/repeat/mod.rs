//! Models repeat their blocks: a long run of equal blocks is compiled as a run of four, and the plan of the second one serves
//! for all that were left out.
//!
//! [`fold_blocks`] leaves the first two and the last two blocks of the longest run in a graph. That graph goes through the stages up to
//! the plan as any other would. [`expand_blocks`] then looks at what the two inner blocks became: where their steps are equal but for
//! the buffers, and the buffers correspond as the blocks' values do, those steps compute any block of the run from the block
//! before it, and are repeated with the buffers of each. Blocks that fusion does not treat alike are compiled one by one.
//!
//! What comes out is the plan that the whole graph would have given: buffers, names and origins included.

mod expand;
mod find;
mod fold;

#[cfg(test)]
mod tests;

pub use expand::expand_blocks;
pub use fold::{Folded, fold_blocks};
