//! Properties of devices, and PyTorch's streams and guards, looked up in the process.

use super::shim::library;
use super::triton;
use crate::errors::raise;
use inrush_base::{Caps, Error};
use inrush_host::devices::{self, Executed, Properties};
use inrush_host::gpu::driver::Stream;
use inrush_host::gpu::tune::{Bench, Current};
use inrush_host::program::Device;
use inrush_program::GpuTarget;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use std::ffi::c_void;

type Guard = *mut c_void;

/// PyTorch's functions for one kind of GPU.
pub struct Functions {
    create_guard: unsafe extern "C" fn(i32, *mut Guard) -> i32,
    delete_guard: unsafe extern "C" fn(Guard) -> i32,
    current_stream: unsafe extern "C" fn(i32, *mut *mut c_void) -> i32,
    create_stream_guard: unsafe extern "C" fn(*mut c_void, i32, *mut Guard) -> i32,
    delete_stream_guard: unsafe extern "C" fn(Guard) -> i32,
    _library: libloading::os::unix::Library,
}

// SAFETY: addresses of functions that may be called from any thread.
unsafe impl Send for Functions {}
// SAFETY: likewise.
unsafe impl Sync for Functions {}

/// Returns the kind of a device.
fn kind(device: Device) -> PyResult<Executed> {
    devices::by_torch_number(device.kind)
        .ok_or_else(|| raise(Error::internal("a device without an executor")))
}

/// Returns PyTorch's module for a kind of device.
fn module<'py>(py: Python<'py>, kind: &Executed) -> PyResult<Bound<'py, PyAny>> {
    py.import("torch")?.getattr(kind.device.torch_name)
}

/// Returns the functions for a kind of device.
pub fn functions(py: Python<'_>, device: Device) -> PyResult<&'static Functions> {
    static FUNCTIONS: [PyOnceLock<Functions>; devices::KINDS] =
        [const { PyOnceLock::new() }; devices::KINDS];
    let found = (devices::executed().enumerate()).find(|(_, d)| d.torch_number() == device.kind);
    let none = || raise(Error::internal("a device without an executor"));
    let (at, kind) = found.ok_or_else(none)?;
    FUNCTIONS[at].get_or_try_init(py, || {
        let name = kind.device.torch_name;
        let library = library(py, &format!("torch_{name}"))?;
        let missing = |e: libloading::Error| {
            raise(Error::machine(format!(
                "this PyTorch lacks a function for {name} devices: {e}"
            )))
        };
        // SAFETY: names and types are those of PyTorch's `shim.h`.
        unsafe {
            Ok(Functions {
                create_guard: *library
                    .get(format!("aoti_torch_create_{name}_guard\0").as_bytes())
                    .map_err(missing)?,
                delete_guard: *library
                    .get(format!("aoti_torch_delete_{name}_guard\0").as_bytes())
                    .map_err(missing)?,
                current_stream: *library
                    .get(format!("aoti_torch_get_current_{name}_stream\0").as_bytes())
                    .map_err(missing)?,
                create_stream_guard: *library
                    .get(format!("aoti_torch_create_{name}_stream_guard\0").as_bytes())
                    .map_err(missing)?,
                delete_stream_guard: *library
                    .get(format!("aoti_torch_delete_{name}_stream_guard\0").as_bytes())
                    .map_err(missing)?,
                _library: library,
            })
        }
    })
}

/// A stream of the caller's that is PyTorch's current one until this is dropped.
pub struct OnStream {
    functions: &'static Functions,
    /// Null where the stream was current already.
    guard: Guard,
}

impl Functions {
    /// Returns PyTorch's current stream of a device on this thread.
    pub fn stream(&self, device: Device) -> Option<Stream> {
        let mut stream = std::ptr::null_mut();
        // SAFETY: the pointer is to a local.
        let rc = unsafe { (self.current_stream)(device.index, &mut stream) };
        (rc == 0).then_some(Stream(stream as usize))
    }

    /// Makes a stream PyTorch's current one; `None` if PyTorch refuses.
    pub fn enter(&'static self, device: Device, stream: Stream) -> Option<OnStream> {
        let mut guard = std::ptr::null_mut();
        if self.stream(device)? != stream {
            let raw = stream.0 as *mut c_void;
            // SAFETY: the stream is one of the device's; the pointer is to a local.
            let rc = unsafe { (self.create_stream_guard)(raw, device.index, &mut guard) };
            if rc != 0 || guard.is_null() {
                return None;
            }
        }
        Some(OnStream {
            functions: self,
            guard,
        })
    }
}

impl Drop for OnStream {
    fn drop(&mut self) {
        if !self.guard.is_null() {
            // SAFETY: the guard was made by `enter` and is given back once.
            unsafe { (self.functions.delete_stream_guard)(self.guard) };
        }
    }
}

/// Makes a device current for PyTorch and the driver until it is dropped.
pub struct On {
    functions: &'static Functions,
    guard: Guard,
    pub stream: Stream,
}

impl On {
    pub fn device(py: Python<'_>, device: Device) -> PyResult<On> {
        let functions = functions(py, device)?;
        let mut guard = std::ptr::null_mut();
        // SAFETY: the pointer is to a local.
        if unsafe { (functions.create_guard)(device.index, &mut guard) } != 0 {
            return Err(raise(Error::machine(format!(
                "the device `{}` cannot be used",
                devices::name(device)
            ))));
        }
        let mut on = On {
            functions,
            guard,
            stream: Stream(0),
        };
        let driver = devices::driver(device).map_err(raise)?;
        driver.ensure_current(device.index).map_err(raise)?;
        let mut stream = std::ptr::null_mut();
        // SAFETY: likewise.
        if unsafe { (functions.current_stream)(device.index, &mut stream) } != 0 {
            return Err(raise(Error::machine(
                "PyTorch gives no stream of the device",
            )));
        }
        on.stream = Stream(stream as usize);
        Ok(on)
    }
}

impl Drop for On {
    fn drop(&mut self) {
        // SAFETY: the guard was made here and is given back once.
        unsafe { (self.functions.delete_guard)(self.guard) };
    }
}

/// Returns true if this PyTorch can have tensors on devices that are executed on.
pub fn built(py: Python<'_>) -> PyResult<bool> {
    static BUILT: PyOnceLock<bool> = PyOnceLock::new();
    BUILT
        .get_or_try_init(py, || {
            let version = py.import("torch")?.getattr("version")?;
            for kind in devices::executed() {
                if !version.getattr(kind.device.torch_name)?.is_none() {
                    return Ok(true);
                }
            }
            Ok(false)
        })
        .copied()
}

/// Returns true if this machine has a device of this kind that PyTorch can use.
pub fn present(py: Python<'_>, device: Device) -> PyResult<bool> {
    (module(py, &kind(device)?)?)
        .call_method0("is_available")?
        .extract()
}

/// Returns capabilities and build target of a device.
///
/// # Errors
/// Where PyTorch cannot tell, or Triton cannot build for the device.
pub fn caps(py: Python<'_>, device: Device) -> PyResult<(Caps, GpuTarget)> {
    let kind = kind(device)?;
    let p = module(py, &kind)?.call_method1("get_device_properties", (device.index,))?;
    let number = |name: &str| -> PyResult<u32> { p.getattr(name)?.extract() };
    let (major, minor) = (number("major")?, number("minor")?);
    let properties = Properties {
        arch: format!("{major}{minor}"),
        major,
        minor,
        multiprocessors: number("multi_processor_count")?,
        resident_threads: number("max_threads_per_multi_processor")?,
        registers: number("regs_per_multiprocessor")?,
        shared_bytes: number("shared_memory_per_block_optin")?,
        l2_bytes: p.getattr("L2_cache_size")?.extract()?,
    };
    kind.caps(&properties).map_err(raise)
}

/// Returns what measures kernels on a device; with `known_only` it takes what was measured before, and measures nothing.
pub fn bench(
    py: Python<'_>,
    device: Device,
    target: GpuTarget,
    known_only: bool,
) -> PyResult<Bench> {
    let name = module(py, &kind(device)?)?
        .call_method1("get_device_name", (device.index,))?
        .extract()?;
    let current = move || {
        let on = Python::attach(|py| On::device(py, device));
        let on =
            on.map_err(|e| Error::machine(format!("the device cannot be used for tuning: {e}")))?;
        Ok(Current {
            stream: on.stream,
            guard: Box::new(on),
        })
    };
    let pool = triton::pool(py)?;
    Ok(Bench::new(
        (device, Box::new(current)),
        name,
        target,
        pool,
        known_only,
    ))
}
