//! Functions over whole tensors that compiled programs call by name: Fourier transforms, linear algebra, sorts, recurrent
//! layers. They are what a loop nest cannot say well.
//!
//! Does not know: any compiler crate. A program names a [`Function`] and hands it row-major tensors as bytes; see [`Call`].
//!
//! - `check`: counts, dtypes, sizes and parameters of a call, which come from files and are not trusted.
//! - `parallel`: loops over disjoint parts of an output.
//! - one module a family of functions.
//!
//! Complex values are *planar*: a tensor of real parts and one of imaginary parts, of equal sizes.
//! Results do not depend on the number of threads.

mod check;
mod dynamic;
mod fft;
mod grouped;
mod linalg;
mod parallel;
mod product;
mod rnn;
mod sort;

use inrush_base::{DType, Result, Scalar};
use inrush_cpu::Pool;

/// A tensor that a function reads: row-major, aligned to its dtype.
#[derive(Clone, Copy, Debug)]
pub struct Input<'a> {
    pub dtype: DType,
    pub sizes: &'a [i64],
    pub bytes: &'a [u8],
}

/// A tensor that a function writes: row-major, aligned to its dtype. A function that succeeds has written every element.
#[derive(Debug)]
pub struct Output<'a> {
    pub dtype: DType,
    pub sizes: &'a [i64],
    pub bytes: &'a mut [u8],
}

/// One call of a function.
pub struct Call<'a, 'b> {
    pub inputs: &'b [Input<'a>],
    pub outputs: &'b mut [Output<'a>],
    pub params: &'b [Scalar],
    /// Threads that share the work.
    pub pool: &'b Pool,
}

/// A function that programs can call.
pub struct Function {
    /// Name in programs, such as `fft.c2c`. Names are unique.
    pub name: &'static str,
    /// Tensors and parameters, and what is computed from them.
    pub doc: &'static str,
    /// Computes the outputs. Refuses wrong counts, dtypes, sizes and parameters with an input error; outputs may then be
    /// partly written.
    pub run: fn(&mut Call<'_, '_>) -> Result<()>,
}

/// Takes the results of a [`DynamicFunction`], one after the other.
pub trait Results {
    /// Allocates the next result and returns its bytes, of which the function writes all. Strides put every element in a place of
    /// its own and leave no gaps.
    ///
    /// # Errors
    /// A machine error where memory is short.
    fn tensor(&mut self, dtype: DType, sizes: &[i64], strides: &[i64]) -> Result<&mut [u8]>;

    /// Makes a number the next result.
    fn number(&mut self, value: Scalar);
}

/// One call of a function that allocates its results.
pub struct DynamicCall<'a, 'b> {
    /// Row-major tensors; `None` for those left out.
    pub inputs: &'b [Option<Input<'a>>],
    /// `None` for those left out.
    pub params: &'b [Option<Scalar>],
    /// Threads that share the work.
    pub pool: &'b Pool,
    pub results: &'b mut dyn Results,
}

/// A function whose data decide the sizes of its results.
pub struct DynamicFunction {
    /// Name in programs, such as `nonzero`. Names are unique.
    pub name: &'static str,
    /// Tensors and parameters, and what is computed from them.
    pub doc: &'static str,
    /// Makes the results. Refuses wrong counts, dtypes, sizes and parameters with an input error.
    pub run: fn(&mut DynamicCall<'_, '_>) -> Result<()>,
}

/// Every function that allocates its results, sorted by name.
const DYNAMIC: &[DynamicFunction] = &[
    dynamic::counts::BINCOUNT,
    dynamic::ITEM,
    dynamic::NONZERO,
    dynamic::NONZERO_STATIC,
    dynamic::counts::REPEAT,
    dynamic::unique::UNIQUE,
    dynamic::unique::CONSECUTIVE,
    dynamic::unique::DIM,
];

/// Returns the function that allocates its results and has this name.
pub fn find_dynamic(name: &str) -> Option<&'static DynamicFunction> {
    let at = DYNAMIC.binary_search_by(|f| f.name.cmp(name)).ok()?;
    Some(&DYNAMIC[at])
}

/// Every function, sorted by name.
const TABLE: &[Function] = &[
    fft::C2C,
    fft::C2R,
    fft::R2C,
    grouped::GROUPED_MM,
    linalg::CHOLESKY,
    linalg::DET,
    linalg::EIG,
    linalg::EIGH,
    linalg::EIGVALS,
    linalg::EIGVALSH,
    linalg::INV,
    linalg::LSTSQ,
    linalg::LU_FACTOR,
    linalg::LU_UNPACK,
    linalg::MATRIX_EXP,
    linalg::QR,
    linalg::QR_R,
    linalg::SLOGDET,
    linalg::SOLVE,
    linalg::SOLVE_TRIANGULAR,
    linalg::SVD,
    linalg::SVDVALS,
    rnn::ELMAN,
    rnn::GRU,
    rnn::LSTM,
    sort::STABLE,
    sort::TOPK,
];

/// Returns the function with this name.
pub fn find(name: &str) -> Option<&'static Function> {
    let at = TABLE.binary_search_by(|f| f.name.cmp(name)).ok()?;
    Some(&TABLE[at])
}

/// Returns every function, sorted by name.
pub fn all() -> &'static [Function] {
    TABLE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_function_is_found_by_its_name() {
        assert!(TABLE.windows(2).all(|w| w[0].name < w[1].name));
        for f in all() {
            assert_eq!(find(f.name).map(|f| f.name), Some(f.name));
            assert!(!f.doc.is_empty(), "{}", f.name);
        }
        assert!(find("fft").is_none());
        assert!(DYNAMIC.windows(2).all(|w| w[0].name < w[1].name));
        assert!(DYNAMIC.iter().all(|f| find_dynamic(f.name).is_some()));
        assert!(find("").is_none());
    }
}
