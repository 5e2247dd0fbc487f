//! Operators of complex numbers and Fourier transforms, which have no rows.
//!
//! No kernel holds complex values. Ahead of time the pass `planar` of `inrush-passes` replaces each
//! of these calls, and each call of an operator with a row on complex values, by calls on real and
//! imaginary parts. All that stages ahead of it need is how the arguments are bound: the schema.
//! Inside PyTorch these operators are called, since [`bind::signature`] does not know them.

use crate::bind::{self, NamedArg};
use crate::dynamic;
use crate::schema::Schema;
use crate::user_kernel;
use inrush_base::Result;
use inrush_expr::Exprs;
use inrush_graph::Arg;
use rustc_hash::FxHashMap;
use std::sync::LazyLock;

/// Operators and their schemas, sorted by name.
pub const OPERATORS: &[(&str, &str)] = &[
    ("aten._conj.default", "(Tensor(a) self) -> Tensor(a)"),
    ("aten._conj_physical.default", "(Tensor self) -> Tensor"),
    (
        "aten._fft_c2c.default",
        "(Tensor self, SymInt[] dim, int normalization, bool forward) -> Tensor",
    ),
    (
        "aten._fft_c2r.default",
        "(Tensor self, int[] dim, int normalization, SymInt last_dim_size) -> Tensor",
    ),
    (
        "aten._fft_r2c.default",
        "(Tensor self, int[] dim, int normalization, bool onesided) -> Tensor",
    ),
    (
        "aten.complex.default",
        "(Tensor real, Tensor imag) -> Tensor",
    ),
    ("aten.conj.default", "(Tensor(a) self) -> Tensor(a)"),
    ("aten.conj_physical.default", "(Tensor self) -> Tensor"),
    (
        "aten.fft_fft.default",
        "(Tensor self, SymInt? n=None, int dim=-1, str? norm=None) -> Tensor",
    ),
    (
        "aten.fft_fft2.default",
        "(Tensor self, SymInt[1]? s=None, int[1] dim=[-2,-1], str? norm=None) -> Tensor",
    ),
    (
        "aten.fft_fftn.default",
        "(Tensor self, SymInt[1]? s=None, int[1]? dim=None, str? norm=None) -> Tensor",
    ),
    (
        "aten.fft_hfft.default",
        "(Tensor self, SymInt? n=None, int dim=-1, str? norm=None) -> Tensor",
    ),
    (
        "aten.fft_hfft2.default",
        "(Tensor self, SymInt[1]? s=None, int[1] dim=[-2,-1], str? norm=None) -> Tensor",
    ),
    (
        "aten.fft_hfftn.default",
        "(Tensor self, SymInt[1]? s=None, int[1]? dim=None, str? norm=None) -> Tensor",
    ),
    (
        "aten.fft_ifft.default",
        "(Tensor self, SymInt? n=None, int dim=-1, str? norm=None) -> Tensor",
    ),
    (
        "aten.fft_ifft2.default",
        "(Tensor self, SymInt[1]? s=None, int[1] dim=[-2,-1], str? norm=None) -> Tensor",
    ),
    (
        "aten.fft_ifftn.default",
        "(Tensor self, SymInt[1]? s=None, int[1]? dim=None, str? norm=None) -> Tensor",
    ),
    (
        "aten.fft_ihfft.default",
        "(Tensor self, SymInt? n=None, int dim=-1, str? norm=None) -> Tensor",
    ),
    (
        "aten.fft_ihfft2.default",
        "(Tensor self, SymInt[1]? s=None, int[1] dim=[-2,-1], str? norm=None) -> Tensor",
    ),
    (
        "aten.fft_ihfftn.default",
        "(Tensor self, SymInt[1]? s=None, int[1]? dim=None, str? norm=None) -> Tensor",
    ),
    (
        "aten.fft_irfft.default",
        "(Tensor self, SymInt? n=None, int dim=-1, str? norm=None) -> Tensor",
    ),
    (
        "aten.fft_irfft2.default",
        "(Tensor self, SymInt[1]? s=None, int[1] dim=[-2,-1], str? norm=None) -> Tensor",
    ),
    (
        "aten.fft_irfftn.default",
        "(Tensor self, SymInt[1]? s=None, int[1]? dim=None, str? norm=None) -> Tensor",
    ),
    (
        "aten.fft_rfft.default",
        "(Tensor self, SymInt? n=None, int dim=-1, str? norm=None) -> Tensor",
    ),
    (
        "aten.fft_rfft2.default",
        "(Tensor self, SymInt[1]? s=None, int[1] dim=[-2,-1], str? norm=None) -> Tensor",
    ),
    (
        "aten.fft_rfftn.default",
        "(Tensor self, SymInt[1]? s=None, int[1]? dim=None, str? norm=None) -> Tensor",
    ),
    ("aten.imag.default", "(Tensor(a) self) -> Tensor(a)"),
    (
        "aten.istft.default",
        "(Tensor self, int n_fft, int? hop_length=None, int? win_length=None, Tensor? window=None, bool center=True, bool normalized=False, bool? onesided=None, int? length=None, bool return_complex=False) -> Tensor",
    ),
    ("aten.polar.default", "(Tensor abs, Tensor angle) -> Tensor"),
    ("aten.real.default", "(Tensor(a) self) -> Tensor(a)"),
    (
        "aten.stft.center",
        "(Tensor self, int n_fft, int? hop_length=None, int? win_length=None, Tensor? window=None, bool center=True, str pad_mode=\"reflect\", bool normalized=False, bool? onesided=None, bool? return_complex=None, bool? align_to_window=None) -> Tensor",
    ),
    (
        "aten.stft.default",
        "(Tensor self, int n_fft, int? hop_length=None, int? win_length=None, Tensor? window=None, bool normalized=False, bool? onesided=None, bool? return_complex=None, bool? align_to_window=None) -> Tensor",
    ),
    (
        "aten.view_as_complex.default",
        "(Tensor(a) self) -> Tensor(a)",
    ),
    ("aten.view_as_real.default", "(Tensor(a) self) -> Tensor(a)"),
];

static SCHEMAS: LazyLock<FxHashMap<&str, Schema>> = LazyLock::new(|| {
    // A test holds that each of them can be read.
    (OPERATORS.iter())
        .filter_map(|(name, text)| Some((*name, Schema::parse(text).ok()?)))
        .collect()
});

/// Returns the schema of an operator of this table.
#[must_use]
pub fn schema(op: &str) -> Option<&'static Schema> {
    SCHEMAS.get(op)
}

/// Binds arguments as [`bind::bind`] does, and knows the operators of this table, of [`dynamic`] and of [`user_kernel`]
/// too. For importers of
/// programs that are compiled ahead of time.
pub fn bind(exprs: &Exprs, op: &str, given: &[NamedArg]) -> Option<Result<Vec<Arg>>> {
    bind::bind(exprs, op, given).or_else(|| {
        let schema =
            (schema(op).or_else(|| dynamic::schema(op))).or_else(|| user_kernel::schema(op))?;
        Some(bind::bind_schema(exprs, schema, given).map_err(|e| e.in_op(op)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn schemas_are_sorted_readable_and_without_a_row() {
        assert!(OPERATORS.is_sorted_by(|a, b| a.0 < b.0));
        for (name, text) in OPERATORS {
            assert!(Schema::parse(text).is_ok(), "{name}");
            assert!(crate::lookup(name).is_none(), "{name} has a row");
        }
    }
}
