//! For tests: results against the operator cases that `python/gen_op_cases.py` writes with PyTorch.

#![forbid(unsafe_code)]

pub mod rows;

use inrush_base::{DType, Error, Result};
use inrush_interp::Tensor;
use serde_json::Value as Json;

/// Cases that hold something which is refused: the case's name and what the refusal must say. A case that runs all the same
/// fails the test, so that this list only shrinks.
pub const REFUSED: &[(&str, &str)] = &[];

/// The outcome of a case in the light of a list such as [`REFUSED`]: a failure that it foresees is none, a success that it
/// does not foresee is one.
pub fn expected(name: &str, outcome: Result<()>, gaps: &[(&str, &str)]) -> Result<()> {
    let gap = gaps.iter().find(|g| g.0 == name);
    match (outcome, gap) {
        (Err(e), Some(g)) if e.to_string().contains(g.1) => Ok(()),
        (Ok(()), Some(_)) => Err(Error::internal(
            "agrees, but stands in the list of cases that do not",
        )),
        (outcome, _) => outcome,
    }
}

/// A tensor of a safetensors file.
pub fn tensor(view: &safetensors::tensor::TensorView) -> Result<Tensor> {
    use safetensors::Dtype as D;
    let dtype = match view.dtype() {
        D::BOOL => DType::Bool,
        D::U8 => DType::U8,
        D::I8 => DType::I8,
        D::U16 => DType::U16,
        D::I16 => DType::I16,
        D::U32 => DType::U32,
        D::I32 => DType::I32,
        D::U64 => DType::U64,
        D::I64 => DType::I64,
        D::F16 => DType::F16,
        D::BF16 => DType::BF16,
        D::F32 => DType::F32,
        D::F64 => DType::F64,
        D::F8_E4M3 => DType::F8E4M3FN,
        D::F8_E5M2 => DType::F8E5M2,
        other => return Err(Error::unsupported(format!("dtype {other:?}"))),
    };
    Ok(Tensor {
        dtype,
        sizes: view.shape().iter().map(|s| *s as i64).collect(),
        data: view.data().to_vec(),
    })
}

/// Compares `got` with PyTorch's result, or with the result computed in `f64` where there is one: either will do.
pub fn check(
    name: &str,
    got: &Tensor,
    want: &Tensor,
    exact: Option<&Tensor>,
    tolerance: &Json,
    problems: &mut Vec<String>,
) -> Result<()> {
    if got.dtype != want.dtype || got.sizes != want.sizes {
        problems.push(format!(
            "{name}: {}{:?}, expected {}{:?}",
            got.dtype, got.sizes, want.dtype, want.sizes
        ));
        return Ok(());
    }
    let mut found = mismatch(got, want, tolerance)?;
    if let (Some(_), Some(exact)) = (&found, exact)
        && mismatch(got, exact, tolerance)?.is_none()
    {
        found = None;
    }
    if let Some(what) = found {
        problems.push(format!("{name}: {what}"));
    }
    Ok(())
}

fn mismatch(got: &Tensor, want: &Tensor, tolerance: &Json) -> Result<Option<String>> {
    let number = |key: &str| tolerance[key].as_f64().unwrap_or_default();
    let norm = tolerance["kind"] == "norm";
    // A buffer that a call changed comes without a tolerance: its update may round once less than eager's.
    let (rtol, atol) = match tolerance {
        Json::Null => (1e-6, 1e-7),
        _ => (number("rtol"), number("atol")),
    };
    let (mut error, mut size) = (0f64, 0f64);
    for k in 0..want.numel() {
        let (a, b) = (got.get(k)?, want.get(k)?);
        let (x, y) = (a.as_f64(), b.as_f64());
        let same = a == b || x == y && got.dtype.is_float() || x.is_nan() && y.is_nan();
        if same {
            size += if y.is_finite() { y * y } else { 0.0 };
            continue;
        }
        let close = x.is_finite() && y.is_finite() && (x - y).abs() <= atol + rtol * y.abs();
        if norm && x.is_finite() && y.is_finite() {
            error += (x - y) * (x - y);
            size += y * y;
        } else if !close {
            return Ok(Some(format!("element {k} is {a}, expected {b}")));
        }
    }
    let error = error.sqrt() / size.sqrt().max(1e-30);
    Ok((norm && error > number("max")).then(|| format!("error {error:.2e} of the norm")))
}
