//! Scalar tensors of the host that kernels read, and their copies on the device.
//!
//! Floats of modules are such arguments where sizes are dynamic. They hardly ever change, so a copy serves all calls with the
//! same value.

use super::shim::{Handle, Shims};
use super::tensor::Owned;
use inrush_host::dtype_of;
use inrush_host::gpu::driver::Stream;
use inrush_host::program::Device;
use pyo3::intern;
use pyo3::prelude::*;
use rustc_hash::FxHashMap;
use std::sync::{Mutex, PoisonError};

/// Copies that a graph keeps at most. Streams come and go; the slots of a graph do not.
const MAX_KEPT: usize = 1024;

/// Copies of scalars, by slot and stream: work on one stream may run before what another one was given.
#[derive(Default)]
pub struct Scalars(Mutex<FxHashMap<(usize, usize), Kept>>);

/// A copy on the device.
struct Kept {
    dtype: i32,
    /// The bytes of the element.
    value: u64,
    copy: DeviceScalar,
}

/// A tensor without dimensions on the device.
pub struct DeviceScalar {
    pub object: Py<PyAny>,
    pub address: u64,
}

impl DeviceScalar {
    fn share(&self, py: Python<'_>) -> DeviceScalar {
        DeviceScalar {
            object: self.object.clone_ref(py),
            address: self.address,
        }
    }
}

impl Scalars {
    /// Returns a copy of the argument in `slot` for work on `stream` of `device`; `None` if it is no scalar tensor of the host, or
    /// has no memory of its own. The caller holds the copy until its work is issued, and never writes it.
    ///
    /// The stream must not be in a capture: replays would read memory that is released when the value changes.
    ///
    /// # Errors
    /// PyTorch's own.
    pub fn copy(
        &self,
        py: Python<'_>,
        shims: &'static Shims,
        (device, stream): (Device, Stream),
        slot: usize,
        argument: (&Bound<'_, PyAny>, Handle),
    ) -> PyResult<Option<DeviceScalar>> {
        let (object, h) = argument;
        // SAFETY: the tensor is held by the caller.
        let ((dtype, on), (sizes, _)) = unsafe { (shims.kind(h)?, shims.shape(h)?) };
        if on.is_gpu() || !sizes.is_empty() {
            return Ok(None);
        }
        // SAFETY: it is a tensor of the host, held by the caller.
        let (at, _) = unsafe { shims.data(h)? };
        let width = dtype_of(dtype).map_or(0, |d| d.size());
        // SAFETY: as above.
        let plain = unsafe { shims.is_materialized(h, at) };
        if !plain || !(1..=8).contains(&width) {
            return Ok(None);
        }
        let mut bytes = [0u8; 8];
        // SAFETY: the element has `width` bytes, and the array has room.
        unsafe { std::ptr::copy_nonoverlapping(at, bytes.as_mut_ptr(), width) };
        let value = u64::from_ne_bytes(bytes);
        let key = (slot, stream.0);
        {
            let kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let same = |k: &&Kept| k.dtype == dtype && k.value == value;
            if let Some(k) = kept.get(&key).filter(same) {
                return Ok(Some(k.copy.share(py)));
            }
        }
        let Some((handle, address)) = shims.allocate(&[], &[], dtype, device) else {
            return Err(super::steps::out_of_memory(py, device, width as u64));
        };
        let owned = Owned { handle, shims };
        // SAFETY: the tensor is owned.
        let made = unsafe { shims.object(py, owned.handle)? };
        // It passes the number with its launch; a copy would wait for the device.
        made.call_method1(py, intern!(py, "fill_"), (object,))?;
        let copy = DeviceScalar {
            object: made,
            address,
        };
        let new = Kept {
            dtype,
            value,
            copy: copy.share(py),
        };
        // What was kept is released after the lock: Python may run meanwhile.
        let old = {
            let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let all = (kept.len() >= MAX_KEPT).then(|| std::mem::take(&mut *kept));
            (all, kept.insert(key, new))
        };
        drop(old);
        Ok(Some(copy))
    }
}
