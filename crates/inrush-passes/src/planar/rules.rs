//! The rule of each operator.

use super::context::{Cx, Rule};
use super::{arith, fourier, functions, parts, products, stft};
use inrush_aten::{Prop, Route, lookup};
use inrush_base::{Error, Result};
use inrush_graph::Arg;

/// Operators with a rule of their own, sorted by name without overload.
const RULES: &[(&str, Rule)] = &[
    ("_conj", arith::conj),
    ("_conj_physical", arith::conj),
    ("_convolution", products::convolution),
    ("_fft_c2c", fourier::own_c2c),
    ("_fft_c2r", fourier::own_c2r),
    ("_fft_r2c", fourier::own_r2c),
    ("_to_copy", parts::convert),
    ("abs", arith::abs),
    ("absolute", arith::abs),
    ("add", arith::add),
    ("addcdiv", arith::addcdiv),
    ("addcmul", arith::addcmul),
    ("addmm", products::addmm),
    ("addmv", products::addmv),
    ("adjoint", parts::adjoint),
    ("angle", arith::angle),
    ("baddbmm", products::baddbmm),
    ("bmm", products::pair),
    ("complex", parts::complex),
    ("conj", arith::conj),
    ("conj_physical", arith::conj),
    ("conv1d", products::convolution),
    ("conv2d", products::convolution),
    ("conv3d", products::convolution),
    ("convolution", products::convolution),
    ("cos", functions::cos),
    ("cosh", functions::cosh),
    ("div", arith::div),
    ("divide", arith::div),
    ("dot", products::pair),
    ("dropout", parts::dropout),
    ("einsum", products::einsum),
    ("eq", arith::eq),
    ("exp", functions::exp),
    ("exp2", functions::exp2),
    ("eye", parts::unit),
    ("fft_fft", fourier::fft),
    ("fft_fft2", fourier::fftn),
    ("fft_fftn", fourier::fftn),
    ("fft_hfft", fourier::hfft),
    ("fft_hfft2", fourier::hfftn),
    ("fft_hfftn", fourier::hfftn),
    ("fft_ifft", fourier::ifft),
    ("fft_ifft2", fourier::ifftn),
    ("fft_ifftn", fourier::ifftn),
    ("fft_ihfft", fourier::ihfft),
    ("fft_ihfft2", fourier::ihfftn),
    ("fft_ihfftn", fourier::ihfftn),
    ("fft_irfft", fourier::irfft),
    ("fft_irfft2", fourier::irfftn),
    ("fft_irfftn", fourier::irfftn),
    ("fft_rfft", fourier::rfft),
    ("fft_rfft2", fourier::rfftn),
    ("fft_rfftn", fourier::rfftn),
    ("ger", products::pair),
    ("imag", parts::imag),
    ("inner", products::pair),
    ("isfinite", arith::isfinite),
    ("isinf", arith::isinf),
    ("isnan", arith::isnan),
    ("isreal", arith::isreal),
    ("istft", stft::istft),
    ("kron", products::pair),
    ("lerp", arith::lerp),
    ("linalg_norm", parts::of_modulus),
    ("linalg_vector_norm", parts::of_modulus),
    ("linear", products::linear),
    ("log", functions::log),
    ("log10", functions::log10),
    ("log2", functions::log2),
    ("logical_not", arith::logical_not),
    ("mH", parts::adjoint),
    ("matmul", products::pair),
    ("matrix_H", parts::adjoint),
    ("mm", products::pair),
    ("mul", arith::mul),
    ("multiply", arith::mul),
    ("mv", products::pair),
    ("ne", arith::ne),
    ("new_ones", parts::unit),
    ("norm", parts::of_modulus),
    ("not_equal", arith::ne),
    ("ones", parts::unit),
    ("ones_like", parts::unit),
    ("outer", products::pair),
    ("polar", parts::polar),
    ("pow", functions::pow),
    ("real", parts::real),
    ("reciprocal", arith::reciprocal),
    ("resolve_conj", parts::same),
    ("resolve_neg", parts::same),
    ("rsqrt", functions::rsqrt),
    ("rsub", arith::rsub),
    ("sgn", arith::sgn),
    ("sigmoid", functions::sigmoid),
    ("sin", functions::sin),
    ("sinh", functions::sinh),
    ("sqrt", functions::sqrt),
    ("square", arith::square),
    ("std", parts::deviation),
    ("stft", stft::stft),
    ("sub", arith::sub),
    ("subtract", arith::sub),
    ("tan", functions::tan),
    ("tanh", functions::tanh),
    ("tensordot", products::pair),
    ("to", parts::convert),
    ("true_divide", arith::div),
    ("type_as", parts::convert),
    ("var", parts::variance),
    ("vdot", products::vdot),
    ("view_as_complex", parts::view_as_complex),
    ("view_as_real", parts::view_as_real),
];

/// Operators whose result shares the memory of its parts, as eager's does.
const SHARES: &[&str] = &["imag", "real", "view_as_complex"];

/// Returns the rule of a call, and whether its result may share memory with its first argument.
pub(super) fn rule(cx: &Cx) -> Result<(Rule, bool)> {
    let base = parts::base(cx.op);
    let rounds = matches!(cx.arg("rounding_mode"), Ok(Arg::Str(_)));
    if let Ok(at) = RULES.binary_search_by_key(&base, |(name, _)| name)
        && !rounds
    {
        return Ok((RULES[at].1, SHARES.contains(&base)));
    }
    if parts::EACH
        .binary_search_by_key(&base, |(name, _)| name)
        .is_ok()
    {
        return Ok((parts::each, false));
    }
    let view = lookup(cx.op).filter(|op| matches!(op.row.route, Route::View(_)));
    if let Some(op) = view
        && !op.row.has(Prop::Restrides)
        && !op.row.has(Prop::Bitcasts)
    {
        return Ok((parts::view, true));
    }
    Err(Error::unsupported(
        "the operator has no rule for complex numbers",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_sorted_and_do_not_overlap() {
        assert!(RULES.is_sorted_by(|a, b| a.0 < b.0));
        assert!(parts::EACH.is_sorted_by(|a, b| a.0 < b.0));
        let twice = |name: &str| parts::EACH.binary_search_by_key(&name, |e| e.0).is_ok();
        assert_eq!(RULES.iter().find(|r| twice(r.0)).map(|r| r.0), None);
    }
}
