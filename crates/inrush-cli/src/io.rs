//! Tensors in safetensors files.
//!
//! The format is a header in JSON (name, dtype, shape, range of bytes), then the bytes of
//! contiguous row-major tensors. Reading maps the file and copies each tensor out; the library has
//! checked that ranges fit the file before a byte is read.

use inrush_base::{DType, Error, Result};
use inrush_package::{cannot_write, write_whole};
use inrush_runtime::Tensor;
use safetensors::{Dtype, SafeTensors};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;

/// Converts a file's dtype; `None` for those that no tensor here has.
fn dtype(d: Dtype) -> Option<DType> {
    Some(match d {
        Dtype::BOOL => DType::Bool,
        Dtype::U8 => DType::U8,
        Dtype::I8 => DType::I8,
        Dtype::U16 => DType::U16,
        Dtype::I16 => DType::I16,
        Dtype::U32 => DType::U32,
        Dtype::I32 => DType::I32,
        Dtype::U64 => DType::U64,
        Dtype::I64 => DType::I64,
        Dtype::F16 => DType::F16,
        Dtype::BF16 => DType::BF16,
        Dtype::F32 => DType::F32,
        Dtype::F64 => DType::F64,
        Dtype::F8_E4M3 => DType::F8E4M3FN,
        Dtype::F8_E5M2 => DType::F8E5M2,
        _ => return None,
    })
}

/// Returns the file's name of a dtype. The inverse of [`dtype`] by search, so that there is one
/// table.
fn file_dtype(d: DType) -> Option<Dtype> {
    [
        Dtype::BOOL,
        Dtype::U8,
        Dtype::I8,
        Dtype::U16,
        Dtype::I16,
        Dtype::U32,
        Dtype::I32,
        Dtype::U64,
        Dtype::I64,
        Dtype::F16,
        Dtype::BF16,
        Dtype::F32,
        Dtype::F64,
        Dtype::F8_E4M3,
        Dtype::F8_E5M2,
    ]
    .into_iter()
    .find(|f| dtype(*f) == Some(d))
}

/// All tensors of a file by name.
///
/// # Errors
/// An input error that names the file.
pub fn read(path: &Path) -> Result<BTreeMap<String, Tensor>> {
    let inner = || -> Result<BTreeMap<String, Tensor>> {
        let file = File::open(path).map_err(|e| Error::input(format!("cannot open: {e}")))?;
        if file.metadata().is_ok_and(|m| m.len() == 0) {
            return Err(Error::input("the file is empty"));
        }
        // SAFETY: the mapping is read only and dropped before this function returns.
        let map = unsafe { memmap2::Mmap::map(&file) }
            .map_err(|e| Error::input(format!("cannot map: {e}")))?;
        let tensors = SafeTensors::deserialize(&map)
            .map_err(|e| Error::input(format!("not a safetensors file: {e}")))?;
        let mut out = BTreeMap::new();
        for (name, view) in tensors.iter() {
            let dtype = dtype(view.dtype()).ok_or_else(|| {
                Error::unsupported(format!("tensor `{name}` has dtype {:?}", view.dtype()))
            })?;
            let sizes = view
                .shape()
                .iter()
                .map(|s| i64::try_from(*s))
                .collect::<std::result::Result<Vec<_>, _>>()
                .map_err(|_| Error::input(format!("tensor `{name}` is too large")))?;
            let t = Tensor::from_bytes(dtype, sizes, view.data())
                .map_err(|e| e.context(format!("tensor `{name}`")))?;
            out.insert(name.to_string(), t);
        }
        Ok(out)
    };
    inner().map_err(|e| e.in_file(path.display().to_string()))
}

/// Writes tensors under their keys ("0", "1", …). The file is written whole or not at all.
pub fn write(path: &Path, tensors: &[(String, Tensor)]) -> Result<()> {
    let mut data = Vec::with_capacity(tensors.len());
    for (name, t) in tensors {
        let d = file_dtype(t.dtype).ok_or_else(|| {
            Error::unsupported(format!("writing {} tensors to a safetensors file", t.dtype))
        })?;
        data.push((
            name.clone(),
            d,
            t.sizes.iter().map(|s| *s as usize).collect::<Vec<_>>(),
            t.to_bytes(),
        ));
    }
    let views = data
        .iter()
        .map(|(name, d, shape, bytes)| {
            safetensors::tensor::TensorView::new(*d, shape.clone(), bytes)
                .map(|v| (name.clone(), v))
                .map_err(|e| Error::internal(format!("tensor `{name}`: {e}")))
        })
        .collect::<Result<Vec<_>>>()?;
    let bytes = safetensors::serialize(views, None).map_err(|e| cannot_write(path, &e))?;
    write_whole(path, |f| {
        f.write_all(&bytes).map_err(|e| cannot_write(path, &e))
    })
}
