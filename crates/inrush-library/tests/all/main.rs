//! Functions of the library against formulas written out in `f64`, and calls that must be refused.

mod fft;
mod grouped;
mod linalg;
mod matrices;
mod rnn;
mod sort;
mod support;
mod torch;
