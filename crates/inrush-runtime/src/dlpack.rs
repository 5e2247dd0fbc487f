//! Tensors of other libraries through DLPack, without copies.
//!
//! Only memory of the CPU is borrowed here. The format is that of `dlpack.h`, version 1.

use crate::tensor::{Storage, Tensor, Writes, contiguous_strides, extent, row_major_copy};
use dlpark::DlpackFlags;
use dlpark::ffi::{
    DLDataType, DLDataTypeCode, DLDevice, DLDeviceType, DLManagedTensor, DLManagedTensorVersioned,
    DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION, DLPackVersion, DLTensor,
};
use inrush_base::{DType, Error, Result};
use std::any::Any;
use std::ffi::c_void;
use std::sync::Arc;

/// The most dimensions that a tensor from outside may have: what PyTorch allows.
const MAX_RANK: usize = 64;

/// DLPack's code and bits of each dtype.
const DTYPES: &[(DType, DLDataTypeCode, u8)] = &[
    (DType::Bool, DLDataTypeCode::BOOL, 8),
    (DType::U8, DLDataTypeCode::UINT, 8),
    (DType::I8, DLDataTypeCode::INT, 8),
    (DType::U16, DLDataTypeCode::UINT, 16),
    (DType::I16, DLDataTypeCode::INT, 16),
    (DType::U32, DLDataTypeCode::UINT, 32),
    (DType::I32, DLDataTypeCode::INT, 32),
    (DType::U64, DLDataTypeCode::UINT, 64),
    (DType::I64, DLDataTypeCode::INT, 64),
    (DType::F8E4M3FN, DLDataTypeCode::FLOAT8_E4M3FN, 8),
    (DType::F8E5M2, DLDataTypeCode::FLOAT8_E5M2, 8),
    (DType::F8E4M3FNUZ, DLDataTypeCode::FLOAT8_E4M3FNUZ, 8),
    (DType::F8E5M2FNUZ, DLDataTypeCode::FLOAT8_E5M2FNUZ, 8),
    (DType::F16, DLDataTypeCode::FLOAT, 16),
    (DType::BF16, DLDataTypeCode::BFLOAT, 16),
    (DType::F32, DLDataTypeCode::FLOAT, 32),
    (DType::F64, DLDataTypeCode::FLOAT, 64),
    (DType::C64, DLDataTypeCode::COMPLEX, 64),
    (DType::C128, DLDataTypeCode::COMPLEX, 128),
];

/// Returns DLPack's name of a dtype.
pub fn data_type(dtype: DType) -> DLDataType {
    let row = DTYPES.iter().find(|r| r.0 == dtype);
    let (code, bits) = row.map_or((DLDataTypeCode::OPAQUEHANDLE, 0), |r| (r.1, r.2));
    DLDataType {
        code,
        bits,
        lanes: 1,
    }
}

/// Returns the dtype that DLPack names.
///
/// # Errors
/// An unsupported error for vectors and types that PyTorch does not have.
pub fn dtype(t: DLDataType) -> Result<DType> {
    let row = (DTYPES.iter()).find(|r| r.1 == t.code && r.2 == t.bits && t.lanes == 1);
    row.map(|r| r.0).ok_or_else(|| {
        Error::unsupported(format!(
            "a DLPack tensor of type code {}, {} bits and {} lanes",
            t.code.0, t.bits, t.lanes
        ))
    })
}

/// How a borrowed tensor is used, which decides if a copy will do.
#[derive(Copy, Clone, PartialEq, Eq)]
pub enum Borrow {
    /// Read, or written by a model that writes its inputs. A tensor with negative strides or misaligned elements is copied, and
    /// cannot be written.
    Input,
    /// As an input, in memory that must not be written.
    ReadOnly,
    /// Written. A tensor that would have to be copied is refused.
    Output,
}

/// Borrows the memory of a DLPack tensor. `owner` keeps it alive.
///
/// # Errors
/// An input error for a tensor that is malformed or not in the memory of the CPU; an unsupported error for other dtypes.
///
/// # Safety
/// `t` describes memory that is valid while `owner` lives, as DLPack promises; its lists have `ndim` entries. What is borrowed
/// as an input that the model mutates, or as an output, can be written.
pub unsafe fn borrow(
    t: &DLTensor,
    how: Borrow,
    owner: Box<dyn Any + Send + Sync>,
) -> Result<Tensor> {
    if t.device.device_type != DLDeviceType::CPU && t.device.device_type != DLDeviceType::CUDAHOST {
        return Err(Error::input(format!(
            "a tensor in the memory of DLPack device {}, the model takes memory of the CPU",
            t.device.device_type.0
        )));
    }
    // SAFETY: the caller's promise.
    let (dtype, sizes, strides) = unsafe { layout(t)? };
    let size = dtype.size();
    if sizes.contains(&0) {
        return Tensor::zeros(dtype, sizes.clone(), contiguous_strides(&sizes));
    }
    let start = usize::try_from(t.byte_offset).ok();
    let start = start
        .filter(|_| !t.data.is_null())
        .ok_or_else(|| Error::input("a DLPack tensor without memory"))?;
    let data = t.data.cast::<u8>();
    let aligned = (data as usize).is_multiple_of(size) && start.is_multiple_of(size);
    if aligned && strides.iter().all(|s| *s >= 0) {
        let bytes = extent(&sizes, &strides)
            .and_then(|n| n.checked_mul(size)?.checked_add(start))
            .filter(|n| *n <= isize::MAX as usize)
            .ok_or_else(|| Error::input("a DLPack tensor with strides beyond memory"))?;
        let writes = if how == Borrow::ReadOnly {
            Writes::Forbidden
        } else {
            Writes::Seen
        };
        // SAFETY: the tensor's elements are in this range, which `owner` keeps.
        let storage = unsafe { Storage::foreign(data, bytes, owner) }.with_writes(writes);
        return Ok(Tensor {
            dtype,
            sizes,
            strides,
            offset: start / size,
            storage: Arc::new(storage),
        });
    }
    if how == Borrow::Output {
        return Err(Error::input(
            "an output with negative strides, or whose elements are not aligned to their size",
        ));
    }
    // SAFETY: `data + start` is the element with coordinates zero; strides stay in the tensor's memory by the caller's promise.
    unsafe { row_major_copy(data.add(start), dtype, sizes, &strides) }
}

/// Reads a tensor's dtype, sizes and strides, whatever memory it is in.
///
/// # Errors
/// An input error for a tensor that is malformed; an unsupported error for other dtypes.
///
/// # Safety
/// The lists of `t` have `ndim` entries.
pub unsafe fn layout(t: &DLTensor) -> Result<(DType, Vec<i64>, Vec<i64>)> {
    let dtype = dtype(t.dtype)?;
    // SAFETY: the caller's promise.
    let (sizes, strides) = unsafe { lists(t)? };
    let numel = sizes.iter().try_fold(1i64, |a, n| a.checked_mul(*n));
    if numel.is_none_or(|n| n.checked_mul(dtype.size() as i64).is_none()) {
        return Err(Error::input(format!(
            "a tensor of sizes {sizes:?} is too large"
        )));
    }
    Ok((dtype, sizes, strides))
}

/// Reads a tensor's sizes and strides. Strides that are left out are row-major.
unsafe fn lists(t: &DLTensor) -> Result<(Vec<i64>, Vec<i64>)> {
    let rank = usize::try_from(t.ndim).ok().filter(|n| *n <= MAX_RANK);
    let Some(rank) = rank.filter(|n| *n == 0 || !t.shape.is_null()) else {
        return Err(Error::input(format!(
            "a DLPack tensor of {} dimensions",
            t.ndim
        )));
    };
    let list = |p: *const i64| match rank {
        0 => Vec::new(),
        // SAFETY: the list has this many entries by the caller's promise.
        _ => unsafe { std::slice::from_raw_parts(p, rank) }.to_vec(),
    };
    let sizes = list(t.shape);
    if let Some(n) = sizes.iter().find(|n| **n < 0) {
        return Err(Error::input(format!("a DLPack tensor of size {n}")));
    }
    let strides = if t.strides.is_null() {
        contiguous_strides(&sizes)
    } else {
        list(t.strides)
    };
    Ok((sizes, strides))
}

/// A tensor that another library holds, with its lists and its storage.
struct Lent<Managed> {
    managed: Managed,
    sizes: Vec<i64>,
    strides: Vec<i64>,
    _owner: Box<dyn Any + Send + Sync>,
}

/// Memory that is lent to another library.
pub struct Memory {
    /// The device and the address of the element at coordinates zero there.
    pub device: DLDevice,
    pub data: *mut c_void,
    pub dtype: DType,
    pub sizes: Vec<i64>,
    /// In elements.
    pub strides: Vec<i64>,
    pub writes: Writes,
    /// Dropped when the other library is done with the memory.
    pub owner: Box<dyn Any + Send + Sync>,
}

impl From<Tensor> for Memory {
    fn from(t: Tensor) -> Memory {
        Memory {
            device: DLDevice {
                device_type: DLDeviceType::CPU,
                device_id: 0,
            },
            data: t.data().cast(),
            dtype: t.dtype,
            sizes: t.sizes,
            strides: t.strides,
            writes: t.storage.writes(),
            owner: Box::new(t.storage),
        }
    }
}

/// A structure that DLPack hands over: with the version of the format, or without, as before 1.0.
trait Managed: Sized {
    fn new(tensor: DLTensor, writes: Writes) -> Self;
    /// The tensor, and the context that the deleter gets.
    fn parts(&mut self) -> (&mut DLTensor, &mut *mut c_void);
}

impl Managed for DLManagedTensorVersioned {
    fn new(dl_tensor: DLTensor, writes: Writes) -> Self {
        DLManagedTensorVersioned {
            version: DLPackVersion {
                major: DLPACK_MAJOR_VERSION,
                minor: DLPACK_MINOR_VERSION,
            },
            manager_ctx: std::ptr::null_mut(),
            deleter: Some(delete),
            flags: if writes == Writes::Forbidden {
                DlpackFlags::READ_ONLY
            } else {
                DlpackFlags::empty()
            },
            dl_tensor,
        }
    }

    fn parts(&mut self) -> (&mut DLTensor, &mut *mut c_void) {
        (&mut self.dl_tensor, &mut self.manager_ctx)
    }
}

impl Managed for DLManagedTensor {
    fn new(dl_tensor: DLTensor, _: Writes) -> Self {
        DLManagedTensor {
            dl_tensor,
            manager_ctx: std::ptr::null_mut(),
            deleter: Some(delete_unversioned),
        }
    }

    fn parts(&mut self) -> (&mut DLTensor, &mut *mut c_void) {
        (&mut self.dl_tensor, &mut self.manager_ctx)
    }
}

/// Lends a tensor to another library, which calls `deleter` when it no longer needs it.
pub fn lend(t: impl Into<Memory>) -> *mut DLManagedTensorVersioned {
    lend_as(t.into())
}

/// Likewise in the format before DLPack 1.0, which cannot say that memory is read-only.
///
/// # Errors
/// An input error for a tensor in memory that must not be written.
pub fn lend_unversioned(t: impl Into<Memory>) -> Result<*mut DLManagedTensor> {
    let memory = t.into();
    if memory.writes == Writes::Forbidden {
        return Err(Error::input(
            "read-only memory cannot be exported in a format of DLPack before 1.0",
        ));
    }
    Ok(lend_as(memory))
}

fn lend_as<M: Managed>(m: Memory) -> *mut M {
    let tensor = DLTensor {
        data: m.data,
        device: m.device,
        ndim: m.sizes.len() as i32,
        dtype: data_type(m.dtype),
        shape: std::ptr::null_mut(),
        strides: std::ptr::null_mut(),
        byte_offset: 0,
    };
    let mut lent = Box::new(Lent {
        managed: M::new(tensor, m.writes),
        sizes: m.sizes,
        strides: m.strides,
        _owner: m.owner,
    });
    let (shape, strides) = (lent.sizes.as_mut_ptr(), lent.strides.as_mut_ptr());
    let lent = Box::into_raw(lent);
    // SAFETY: a live box; the pointer to a field keeps the provenance of the whole through the context.
    unsafe {
        let (tensor, context) = (*lent).managed.parts();
        (tensor.shape, tensor.strides) = (shape, strides);
        *context = lent.cast();
        &raw mut (*lent).managed
    }
}

/// Drops what [`lend`] made.
unsafe extern "C" fn delete(managed: *mut DLManagedTensorVersioned) {
    if !managed.is_null() {
        // SAFETY: from `lend`, whose context is the box around it, and is deleted once.
        drop(unsafe {
            Box::from_raw(
                (*managed)
                    .manager_ctx
                    .cast::<Lent<DLManagedTensorVersioned>>(),
            )
        });
    }
}

/// Drops what [`lend_unversioned`] made.
unsafe extern "C" fn delete_unversioned(managed: *mut DLManagedTensor) {
    if !managed.is_null() {
        // SAFETY: as above.
        drop(unsafe { Box::from_raw((*managed).manager_ctx.cast::<Lent<DLManagedTensor>>()) });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Describes part of `data`. The lists are leaked: a DLPack tensor does not own them.
    fn tensor(data: &mut [f32], shape: &[i64], strides: &[i64], byte_offset: u64) -> DLTensor {
        let list = |l: &[i64]| l.to_vec().leak().as_mut_ptr();
        DLTensor {
            data: data.as_mut_ptr().cast(),
            device: DLDevice {
                device_type: DLDeviceType::CPU,
                device_id: 0,
            },
            ndim: shape.len() as i32,
            dtype: data_type(DType::F32),
            shape: list(shape),
            strides: if strides.is_empty() {
                std::ptr::null_mut()
            } else {
                list(strides)
            },
            byte_offset,
        }
    }

    fn floats(t: &Tensor) -> Vec<f32> {
        let bytes = t.to_bytes();
        let word = |b: &[u8]| f32::from_ne_bytes([b[0], b[1], b[2], b[3]]);
        bytes.chunks(4).map(word).collect()
    }

    #[test]
    fn memory_is_shared_where_it_can_be() -> Result<()> {
        let mut data = [0.0, 1.0, 2.0, 3.0, 4.0, 5.0];
        let t = tensor(&mut data, &[2, 2], &[1, 2], 4);
        // SAFETY: the array outlives the tensors.
        let shared = unsafe { borrow(&t, Borrow::Output, Box::new(()))? };
        assert_eq!(floats(&shared), [1.0, 3.0, 2.0, 4.0]);
        assert_eq!(shared.data().cast_const().cast::<f32>(), &raw const data[1]);
        let t = tensor(&mut data, &[3], &[-2], 20);
        // SAFETY: as above.
        let copied = unsafe { borrow(&t, Borrow::Input, Box::new(()))? };
        assert_eq!(floats(&copied), [5.0, 3.0, 1.0]);
        // SAFETY: as above.
        assert!(unsafe { borrow(&t, Borrow::Output, Box::new(())) }.is_err());
        let t = tensor(&mut data, &[2, 3], &[], 0);
        // SAFETY: as above.
        let dense = unsafe { borrow(&t, Borrow::Input, Box::new(()))? };
        assert_eq!(dense.strides, [3, 1]);
        Ok(())
    }

    #[test]
    fn malformed_tensors_are_refused() {
        let mut data = [0.0; 4];
        // SAFETY: nothing is read of a tensor that is refused.
        let refused = |t: &DLTensor| unsafe { borrow(t, Borrow::Input, Box::new(())) }.is_err();
        let mut t = tensor(&mut data, &[4], &[1], 0);
        t.ndim = -1;
        assert!(refused(&t));
        t.ndim = 1000;
        assert!(refused(&t));
        assert!(refused(&tensor(&mut data, &[-4], &[1], 0)));
        assert!(refused(&tensor(&mut data, &[i64::MAX, 3], &[1, 1], 0)));
        assert!(refused(&tensor(&mut data, &[i64::MAX / 8], &[1 << 40], 0)));
        let mut t = tensor(&mut data, &[4], &[1], 0);
        t.device.device_type = DLDeviceType::CUDA;
        assert!(refused(&t));
        let mut t = tensor(&mut data, &[4], &[1], 0);
        t.dtype.lanes = 4;
        assert!(refused(&t));
        let mut t = tensor(&mut data, &[4], &[1], 0);
        t.data = std::ptr::null_mut();
        assert!(refused(&t));
    }

    #[test]
    fn every_dtype_comes_back() -> Result<()> {
        for d in DType::all() {
            assert_eq!(dtype(data_type(d))?, d);
        }
        Ok(())
    }

    #[test]
    fn a_lent_tensor_lives_until_it_is_deleted() -> Result<()> {
        let t = Tensor::from_bytes(DType::F32, vec![1, 2], &[0; 8])?;
        let storage = t.storage.clone();
        let lent = lend(t);
        assert_eq!(Arc::strong_count(&storage), 2);
        // SAFETY: `lent` is live until its deleter ran.
        unsafe {
            let d = &(*lent).dl_tensor;
            assert_eq!((d.ndim, *d.shape.add(1), *d.strides), (2, 2, 2));
            (*lent).deleter.expect("a deleter")(lent);
        }
        assert_eq!(Arc::strong_count(&storage), 1);
        let t = Tensor::from_bytes(DType::F32, vec![1, 2], &[0; 8])?;
        let storage = t.storage.clone();
        let lent = lend_unversioned(t)?;
        // SAFETY: as above.
        unsafe {
            let d = &(*lent).dl_tensor;
            assert_eq!((d.ndim, *d.shape.add(1), *d.strides), (2, 2, 2));
            (*lent).deleter.expect("a deleter")(lent);
        }
        assert_eq!(Arc::strong_count(&storage), 1);
        Ok(())
    }

    #[test]
    fn read_only_memory_stays_read_only() -> Result<()> {
        let mut data = [0.0; 4];
        let t = tensor(&mut data, &[4], &[1], 0);
        // SAFETY: the array outlives the tensors.
        let t = unsafe { borrow(&t, Borrow::ReadOnly, Box::new(()))? };
        assert_eq!(t.storage.writes(), Writes::Forbidden);
        assert!(lend_unversioned(t.clone()).is_err());
        let lent = lend(t);
        // SAFETY: `lent` is live until its deleter ran.
        unsafe {
            assert_eq!((*lent).flags, DlpackFlags::READ_ONLY);
            (*lent).deleter.expect("a deleter")(lent);
        }
        let backwards = tensor(&mut data, &[4], &[-1], 12);
        // SAFETY: as above.
        let copied = unsafe { borrow(&backwards, Borrow::Input, Box::new(()))? };
        assert_eq!(copied.storage.writes(), Writes::Lost);
        Ok(())
    }
}
