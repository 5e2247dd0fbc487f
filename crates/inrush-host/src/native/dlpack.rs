//! Tensors of other libraries in memory of a device, through DLPack and without copies.

use super::tensor::{Argument, DeviceTensor};
use crate::devices;
use crate::program::Device;
use dlpark::ffi::{DLDevice, DLDeviceType, DLTensor};
use inrush_base::{Error, Result};
use inrush_runtime::dlpack::{self, Borrow, Memory};
use inrush_runtime::{Value, Writes};
use std::any::Any;
use std::ffi::c_void;
use std::sync::Arc;

/// Returns true for memory that a GPU's kernels read and write.
pub fn is_of_device(device: DLDeviceType) -> bool {
    devices::of_dlpack(device.0 as i32, 0).is_some()
}

/// Returns true if streams of other libraries are streams of this memory's driver.
pub fn shares_streams(device: DLDeviceType) -> bool {
    devices::of_dlpack(device.0 as i32, 0).is_some_and(devices::shares_streams)
}

/// Returns DLPack's name of a device.
pub(super) fn place(device: Device) -> DLDevice {
    DLDevice {
        device_type: DLDeviceType(devices::dlpack_number(device).unwrap_or(0) as _),
        device_id: device.index,
    }
}

/// Borrows the memory of a DLPack tensor, of the host or of a device. `owner` keeps it alive.
///
/// # Errors
/// An input error for a tensor that is malformed or in other memory; an unsupported error for other dtypes; those of the driver.
///
/// # Safety
/// As for [`dlpack::borrow`], with elements that are valid on their device.
pub unsafe fn borrow(
    t: &DLTensor,
    how: Borrow,
    owner: Box<dyn Any + Send + Sync>,
) -> Result<Argument> {
    let (kind, index) = (t.device.device_type.0 as i32, t.device.device_id);
    let Some(device) = devices::of_dlpack(kind, index) else {
        // SAFETY: the caller's promise.
        let t = unsafe { dlpack::borrow(t, how, owner)? };
        return Ok(Argument::Value(Value::Tensor(t)));
    };
    // SAFETY: the caller's promise.
    let (dtype, sizes, strides) = unsafe { dlpack::layout(t)? };
    let empty = sizes.contains(&0);
    if t.data.is_null() && !empty {
        return Err(Error::input("a DLPack tensor without memory"));
    }
    let address = (t.data as u64)
        .checked_add(t.byte_offset)
        .ok_or_else(|| Error::input("a DLPack tensor beyond memory"))?;
    if !empty && !devices::driver(device)?.can_access(address)? {
        return Err(Error::input(format!(
            "its memory on `{}` was allocated in a context of another library, which kernels of this one cannot access: pass a copy \
             in memory of the host",
            devices::name(device)
        )));
    }
    // SAFETY: the caller's promise.
    let t = unsafe {
        DeviceTensor::foreign(
            dtype,
            (sizes, strides),
            (address, device),
            Arc::new(Owner { _owner: owner }),
        )?
    };
    Ok(Argument::Device(match how {
        Borrow::ReadOnly => t.read_only(),
        Borrow::Input | Borrow::Output => t,
    }))
}

/// Keeps what keeps the memory.
struct Owner {
    _owner: Box<dyn Any + Send + Sync>,
}

/// Waits for the device before memory is used again, which work of a stream that is not known may read.
struct Waits {
    device: Device,
    _tensor: DeviceTensor,
}

impl Drop for Waits {
    fn drop(&mut self) {
        let wait = || {
            let driver = devices::driver(self.device)?;
            let _entered = driver.enter(driver.primary_context(self.device.index)?)?;
            driver.synchronize_all()
        };
        // A device that failed does no work any more.
        _ = wait();
    }
}

/// Returns a tensor as memory that is lent to another library. With `waits`, its last use is on a stream that is not that of the
/// tensor: the memory serves other calls when all work of the device at its return is done.
pub fn lend(t: DeviceTensor, waits: bool) -> Memory {
    let writes = match t.read_only {
        true => Writes::Forbidden,
        false => Writes::Seen,
    };
    Memory {
        device: place(t.device),
        data: t.address as *mut c_void,
        dtype: t.dtype,
        sizes: t.sizes.clone(),
        strides: t.strides.clone(),
        writes,
        owner: match waits {
            true => Box::new(Waits {
                device: t.device,
                _tensor: t,
            }),
            false => Box::new(t),
        },
    }
}
