//! Tensors in memory of a device, and what calls take and give.

use super::memory::Owner;
use super::process;
use crate::devices;
use crate::gpu::driver::{DevicePtr, Driver, Stream};
use crate::program::Device;
use crate::shape::{Shape, dtype_code};
use inrush_base::{DType, Error, Result};
use inrush_runtime::tensor::extent;
use inrush_runtime::{Storage, Tensor, Value};
use std::any::Any;
use std::sync::Arc;

/// A tensor in memory of a device. A clone shares the memory.
#[derive(Clone)]
pub struct DeviceTensor {
    pub dtype: DType,
    pub sizes: Vec<i64>,
    /// In elements; never negative.
    pub strides: Vec<i64>,
    /// Address of the element at coordinates zero.
    pub(super) address: DevicePtr,
    pub(super) device: Device,
    /// Calls must not write it.
    pub(super) read_only: bool,
    /// The caller's stream whose work writes it. `None` for contents that are there.
    pub(super) stream: Option<Stream>,
    pub(super) owner: Owner,
}

/// A value that a call takes for an input, or memory for an output.
#[derive(Clone)]
pub enum Argument {
    /// A number, nothing, or a tensor in memory of the host.
    Value(Value),
    Device(DeviceTensor),
}

/// A value that a call gives for an output.
#[derive(Clone)]
pub enum Output {
    /// A number, or nothing.
    Value(Value),
    Device(DeviceTensor),
}

impl From<Output> for Argument {
    fn from(output: Output) -> Self {
        match output {
            Output::Value(v) => Argument::Value(v),
            Output::Device(t) => Argument::Device(t),
        }
    }
}

impl DeviceTensor {
    /// Wraps memory of another owner, which is kept until the tensor and its clones are dropped.
    ///
    /// # Errors
    /// An input error for sizes and strides that are not those of a tensor.
    ///
    /// # Safety
    /// `address` is that of an element of this device; the tensor's elements are valid while `owner` lives. They can
    /// be written where the tensor is an output, or an input that the model writes.
    pub unsafe fn foreign(
        dtype: DType,
        (sizes, strides): (Vec<i64>, Vec<i64>),
        (address, device): (DevicePtr, Device),
        owner: Owner,
    ) -> Result<DeviceTensor> {
        let known = sizes.len() == strides.len()
            && sizes.iter().chain(&strides).all(|n| *n >= 0)
            && extent(&sizes, &strides)
                .and_then(|n| n.checked_mul(dtype.size()))
                .is_some_and(|n| n <= isize::MAX as usize);
        if !known {
            return Err(Error::input(format!(
                "a tensor of sizes {sizes:?} and strides {strides:?} in memory of a device"
            )));
        }
        if !sizes.contains(&0) && !address.is_multiple_of(dtype.size() as u64) {
            return Err(Error::input(
                "a tensor of a device whose elements are not aligned to their size",
            ));
        }
        Ok(DeviceTensor {
            dtype,
            sizes,
            strides,
            address,
            device,
            read_only: false,
            stream: None,
            owner,
        })
    }

    /// Forbids writes: a call that would write the tensor is refused.
    #[must_use]
    pub fn read_only(mut self) -> DeviceTensor {
        self.read_only = true;
        self
    }

    /// Says which stream's work writes the tensor. Work of other streams waits for it.
    #[must_use]
    pub fn written_on(mut self, stream: Stream) -> DeviceTensor {
        self.stream = Some(stream);
        self
    }

    /// Returns the owner of the memory if it is of this type: that of [`DeviceTensor::foreign`], or of a tensor that a
    /// [`TensorLibrary`](super::TensorLibrary) allocated, with the address of that tensor's first element.
    pub fn owner<T: Any>(&self) -> Option<(&T, Option<DevicePtr>)> {
        if let Some(own) = self.owner.downcast_ref::<process::Tensor>() {
            let owner = own.owner.as_ref()?.downcast_ref::<T>()?;
            return Some((owner, Some(own.address)));
        }
        Some((self.owner.downcast_ref::<T>()?, None))
    }

    /// Returns the address of the element at coordinates zero.
    pub fn address(&self) -> DevicePtr {
        self.address
    }

    /// Returns the device.
    pub fn device(&self) -> Device {
        self.device
    }

    /// Returns the stream of the caller's whose work writes the tensor; `None` if it is written.
    pub fn stream(&self) -> Option<Stream> {
        self.stream
    }

    /// Returns the bytes from the first to the last element.
    pub(super) fn bytes(&self) -> usize {
        extent(&self.sizes, &self.strides).unwrap_or(0) * self.dtype.size()
    }

    /// Copies the tensor to the host, once the work that writes it is done.
    ///
    /// # Errors
    /// Too little memory, and those of the driver.
    pub fn download(&self) -> Result<Tensor> {
        let driver = devices::driver(self.device)?;
        let _entered = driver.enter(driver.primary_context(self.device.index)?)?;
        if let Some(stream) = self.stream {
            driver.synchronize(stream)?;
        }
        let storage = Storage::uninit(self.bytes())?;
        if self.bytes() > 0 {
            // SAFETY: a fresh block of this length.
            let out = unsafe { std::slice::from_raw_parts_mut(storage.as_ptr(), self.bytes()) };
            // SAFETY: the tensor's elements are valid, and the work that writes them is done.
            unsafe { driver.read(self.address, out)? };
        }
        Ok(Tensor {
            dtype: self.dtype,
            sizes: self.sizes.clone(),
            strides: self.strides.clone(),
            offset: 0,
            storage: Arc::new(storage),
        })
    }

    /// Waits until the work that writes the tensor is done.
    ///
    /// # Errors
    /// Those of the driver, and of the work.
    pub fn wait(&self) -> Result<()> {
        let Some(stream) = self.stream else {
            return Ok(());
        };
        let driver = devices::driver(self.device)?;
        let _entered = driver.enter(driver.primary_context(self.device.index)?)?;
        driver.synchronize(stream)
    }

    /// Has later work of a stream come after the work that writes the tensor.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn order_before(&self, later: Stream) -> Result<()> {
        if self.stream.is_none() {
            return Ok(());
        }
        let driver = devices::driver(self.device)?;
        let _entered = driver.enter(driver.primary_context(self.device.index)?)?;
        self.order_in(&driver, later)
    }

    /// Likewise; the context is current.
    pub(super) fn order_in(&self, driver: &Driver, later: Stream) -> Result<()> {
        match self.stream {
            Some(stream) if stream != later => {
                let marker = driver.marker()?;
                marker.record(stream)?;
                marker.wait(later)
            }
            _ => Ok(()),
        }
    }

    pub(super) fn shape(&self) -> Shape {
        Shape {
            dtype: dtype_code(self.dtype),
            element: self.dtype.size() as u64,
            sizes: self.sizes.as_slice().into(),
            strides: self.strides.as_slice().into(),
        }
    }

    /// Returns true if both tensors have bytes in common.
    pub(super) fn overlaps(&self, other: &DeviceTensor) -> bool {
        let end = |t: &DeviceTensor| t.address + t.bytes() as u64;
        self.device == other.device && self.address < end(other) && other.address < end(self)
    }
}
