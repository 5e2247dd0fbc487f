//! The text form of programs in parts.
//!
//! ```text
//! parts 5 slots
//!   size z0 = u0
//!   inputs [%0]
//!   weight %1 = scale
//!   symbol u0 = %3 dim 0 after 1
//!   segment [%0] symbols [] -> [%2]
//!     program ..
//!   end
//!   dynamic nonzero [] [%2] -> [%3] from "node `at` (aten.nonzero.default)" frees [%2]
//!   view %4 = %3 at 0 [z0] strides [1]
//!   custom "mylib::scale(Tensor x, float by) -> Tensor" [%3, 2.0] -> [%4] results [f32 [z0] strides [1]] from ".."
//!   cond %2 -> [%5] from ".."
//!   then [%0, size z0]
//!     program ..
//!   end
//!   otherwise [%0]
//!     program ..
//!   end
//!   output 0: %5
//! end
//! ```
//!
//! `%3` is a slot. Sizes are those of the lines in the block, over the symbols of the program around it. Programs in a part end
//! with `end`; indentation means nothing.

mod parse;
mod print;

pub(super) use print::lines;
