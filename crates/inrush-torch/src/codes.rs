//! Numbers that stand for dtypes, layouts, memory formats in archives. They are not those of PyTorch's C++ side.
//!
//! They are the enumerations `ScalarType`, `Layout` and `MemoryFormat` of
//! `torch/_export/serde/schema.py`, which count from 1 and keep 0 for "unknown". The schema only
//! ever adds to them, so a code that is not listed means a newer archive or a damaged one.

use inrush_base::{DType, Error, Result};
use inrush_graph::MemoryFormat;

/// Returns the dtype. A dtype that PyTorch has and this compiler does not is named in the error.
pub fn dtype(code: i64) -> Result<DType> {
    Ok(match code {
        1 => DType::U8,
        2 => DType::I8,
        3 => DType::I16,
        4 => DType::I32,
        5 => DType::I64,
        6 => DType::F16,
        7 => DType::F32,
        8 => DType::F64,
        10 => DType::C64,
        11 => DType::C128,
        12 => DType::Bool,
        13 => DType::BF16,
        28 => DType::U16,
        29 => DType::F8E4M3FN,
        30 => DType::F8E5M2,
        31 => DType::F8E4M3FNUZ,
        32 => DType::F8E5M2FNUZ,
        34 => DType::U32,
        35 => DType::U64,
        9 => return Err(Error::unsupported("the dtype complex32")),
        33 => return Err(Error::unsupported("the dtype float8_e8m0fnu")),
        _ => {
            return Err(Error::unsupported(format!(
                "an unknown dtype (code {code})"
            )));
        }
    })
}

/// Returns the memory format of an argument such as that of `clone` and `contiguous`.
pub fn memory_format(code: i64) -> Result<MemoryFormat> {
    Ok(match code {
        1 => MemoryFormat::Contiguous,
        2 => MemoryFormat::ChannelsLast,
        3 => MemoryFormat::ChannelsLast3d,
        4 => MemoryFormat::Preserve,
        _ => {
            return Err(Error::unsupported(format!(
                "an unknown memory format (code {code})"
            )));
        }
    })
}

/// Returns the name of a layout as it stands in operators' schemas. Only `strided` tensors can be
/// compiled; the others are named in errors.
pub fn layout(code: i64) -> Result<&'static str> {
    Ok(match code {
        1 => "sparse_coo",
        2 => "sparse_csr",
        3 => "sparse_csc",
        4 => "sparse_bsr",
        5 => "sparse_bsc",
        6 => "mkldnn",
        7 => "strided",
        _ => {
            return Err(Error::unsupported(format!(
                "an unknown layout (code {code})"
            )));
        }
    })
}
