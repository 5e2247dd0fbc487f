//! Convolutions and their gradients.
//!
//! | file | holds |
//! |---|---|
//! | `convolution` | the numbers of a convolution, and all forward operators as contractions |
//! | `depthwise` | one channel per group: sums over taps, unrolled |
//! | `phases` | transposed with strides: one product per phase instead of inserted zeros |
//! | `backward` | gradients of input, weight and bias |

pub(super) mod backward;
pub(super) mod convolution;
pub(super) mod depthwise;
pub(super) mod phases;
