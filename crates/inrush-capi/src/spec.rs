//! Descriptions of inputs, outputs and weights, as C structures.

use dlpark::ffi::{DLDataType, DLDataTypeCode};
use inrush_base::{DType, Scalar};
use inrush_runtime::{Dim, InputKind, InputSpec, OutputSpec, WeightSpec, dlpack};
use std::ffi::{CString, c_char};

/// `InrushKind`.
const TENSOR: i32 = 0;
const INT: i32 = 1;
const CONSTANT: i32 = 2;
const NOTHING: i32 = 3;

/// `InrushSpec`.
#[repr(C)]
pub struct CSpec {
    name: *const c_char,
    kind: i32,
    dtype: DLDataType,
    ndim: i32,
    shape: *const i64,
    shape_symbols: *const *const c_char,
    shape_min: *const i64,
    shape_max: *const i64,
}

/// A description with the lists and texts that its structure points to.
pub(crate) struct Spec {
    raw: CSpec,
    _name: Option<CString>,
    _shape: Vec<i64>,
    _texts: Vec<CString>,
    _text_pointers: Vec<*const c_char>,
    _min: Vec<i64>,
    _max: Vec<i64>,
}

// SAFETY: the pointers are into lists of the same struct, which nothing changes.
unsafe impl Send for Spec {}
// SAFETY: as above.
unsafe impl Sync for Spec {}

impl Spec {
    pub(crate) fn input(i: &InputSpec) -> Spec {
        let name = Some(i.name.as_str());
        match &i.kind {
            InputKind::Tensor { dtype, sizes } => Spec::new(name, TENSOR, Some(*dtype), sizes),
            InputKind::Int => Spec::new(name, INT, Some(DType::I64), &[]),
            InputKind::Constant(_) => Spec::new(name, CONSTANT, None, &[]),
            InputKind::Ignored => Spec::new(name, NOTHING, None, &[]),
        }
    }

    pub(crate) fn output(o: &OutputSpec) -> Spec {
        match o {
            OutputSpec::Tensor { dtype, sizes } => Spec::new(None, TENSOR, Some(*dtype), sizes),
            OutputSpec::Int => Spec::new(None, INT, Some(DType::I64), &[]),
            OutputSpec::Scalar(s) => Spec::new(None, CONSTANT, Some(number_dtype(*s)), &[]),
            OutputSpec::Mutation | OutputSpec::None => Spec::new(None, NOTHING, None, &[]),
        }
    }

    pub(crate) fn weight(w: &WeightSpec) -> Spec {
        let sizes: Vec<Dim> = w.sizes.iter().map(|n| Dim::Fixed(*n)).collect();
        Spec::new(Some(&w.name), TENSOR, Some(w.dtype), &sizes)
    }

    fn new(name: Option<&str>, kind: i32, dtype: Option<DType>, sizes: &[Dim]) -> Spec {
        let name = name.map(text);
        let shape: Vec<i64> = sizes.iter().map(fixed).collect();
        let texts: Vec<CString> = sizes.iter().map(|d| text(&d.to_string())).collect();
        let text_pointers: Vec<*const c_char> = texts.iter().map(|t| t.as_ptr()).collect();
        let (min, max): (Vec<i64>, Vec<i64>) = sizes.iter().map(bounds).unzip();
        let none = DLDataType {
            code: DLDataTypeCode::OPAQUEHANDLE,
            bits: 0,
            lanes: 0,
        };
        Spec {
            raw: CSpec {
                name: name.as_ref().map_or(std::ptr::null(), |n| n.as_ptr()),
                kind,
                dtype: dtype.map_or(none, dlpack::data_type),
                ndim: sizes.len() as i32,
                shape: shape.as_ptr(),
                shape_symbols: text_pointers.as_ptr(),
                shape_min: min.as_ptr(),
                shape_max: max.as_ptr(),
            },
            _name: name,
            _shape: shape,
            _texts: texts,
            _text_pointers: text_pointers,
            _min: min,
            _max: max,
        }
    }

    pub(crate) fn as_ptr(&self) -> *const CSpec {
        &self.raw
    }
}

/// Converts a text for C; what follows a zero byte is lost.
pub(crate) fn text(s: &str) -> CString {
    let bytes: Vec<u8> = s.bytes().take_while(|b| *b != 0).collect();
    CString::new(bytes).unwrap_or_default()
}

fn fixed(d: &Dim) -> i64 {
    match d {
        Dim::Fixed(n) => *n,
        _ => -1,
    }
}

fn bounds(d: &Dim) -> (i64, i64) {
    match d {
        Dim::Fixed(n) => (*n, *n),
        Dim::Symbol { lower, upper, .. } => (*lower, *upper),
        Dim::Formula(_) => (0, i64::MAX),
    }
}

/// Returns the dtype of the tensor that a number is returned as.
fn number_dtype(s: Scalar) -> DType {
    match s {
        Scalar::Bool(_) => DType::Bool,
        Scalar::Int(_) => DType::I64,
        Scalar::Float(_) => DType::F64,
    }
}
