//! What a device is, and PyTorch's streams and guards, looked up in the process.

use super::shim::library;
use super::triton;
use crate::errors::raise;
use inrush_base::{Caps, Error};
use inrush_host::gpu::driver::{Driver, Stream};
use inrush_host::gpu::tune::{Bench, Current};
use inrush_host::program::Device;
use inrush_program::GpuTarget;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use std::ffi::c_void;

/// PyTorch's number for CUDA devices.
pub const CUDA: i32 = 1;

type Guard = *mut c_void;

/// PyTorch's functions for one kind of GPU.
pub struct Functions {
    create_guard: unsafe extern "C" fn(i32, *mut Guard) -> i32,
    delete_guard: unsafe extern "C" fn(Guard) -> i32,
    current_stream: unsafe extern "C" fn(i32, *mut *mut c_void) -> i32,
    _library: libloading::os::unix::Library,
}

// SAFETY: addresses of functions that may be called from any thread.
unsafe impl Send for Functions {}
// SAFETY: likewise.
unsafe impl Sync for Functions {}

/// The functions of this process.
pub fn functions(py: Python<'_>) -> PyResult<&'static Functions> {
    static FUNCTIONS: PyOnceLock<Functions> = PyOnceLock::new();
    FUNCTIONS.get_or_try_init(py, || {
        let library = library(py, "torch_cuda")?;
        let missing = |e: libloading::Error| {
            raise(Error::machine(format!(
                "this PyTorch lacks a function of its CUDA half: {e}"
            )))
        };
        // SAFETY: names and types are those of PyTorch's `shim.h`.
        unsafe {
            Ok(Functions {
                create_guard: *library
                    .get(b"aoti_torch_create_cuda_guard")
                    .map_err(missing)?,
                delete_guard: *library
                    .get(b"aoti_torch_delete_cuda_guard")
                    .map_err(missing)?,
                current_stream: *library
                    .get(b"aoti_torch_get_current_cuda_stream")
                    .map_err(missing)?,
                _library: library,
            })
        }
    })
}

/// Has a device be the current one, as PyTorch and the driver see it, while this lives.
pub struct On {
    functions: &'static Functions,
    guard: Guard,
    pub stream: Stream,
}

impl On {
    pub fn device(py: Python<'_>, device: Device) -> PyResult<On> {
        let functions = functions(py)?;
        let mut guard = std::ptr::null_mut();
        // SAFETY: the pointer is to a local.
        if unsafe { (functions.create_guard)(device.index, &mut guard) } != 0 {
            return Err(raise(Error::machine(format!(
                "the CUDA device {} cannot be used",
                device.index
            ))));
        }
        let mut on = On {
            functions,
            guard,
            stream: Stream(0),
        };
        let driver = Driver::get().map_err(raise)?;
        driver.ensure_current(device.index).map_err(raise)?;
        let mut stream = std::ptr::null_mut();
        // SAFETY: likewise.
        if unsafe { (functions.current_stream)(device.index, &mut stream) } != 0 {
            return Err(raise(Error::machine("PyTorch gives no CUDA stream")));
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

/// Whether this PyTorch can have tensors on CUDA devices.
pub fn built(py: Python<'_>) -> PyResult<bool> {
    static BUILT: PyOnceLock<bool> = PyOnceLock::new();
    BUILT
        .get_or_try_init(py, || {
            let version = py.import("torch")?.getattr("version")?.getattr("cuda")?;
            Ok(!version.is_none())
        })
        .copied()
}

/// Whether this machine has a CUDA device that PyTorch can use.
pub fn present(py: Python<'_>) -> PyResult<bool> {
    let cuda = py.import("torch")?.getattr("cuda")?;
    cuda.call_method0("is_available")?.extract()
}

/// Capabilities and build target of a device.
///
/// # Errors
/// Where PyTorch cannot tell, or Triton cannot build for the device.
pub fn caps(py: Python<'_>, index: i32) -> PyResult<(Caps, GpuTarget)> {
    let torch = py.import("torch")?;
    let p = (torch.getattr("cuda")?).call_method1("get_device_properties", (index,))?;
    let number = |name: &str| -> PyResult<u32> { p.getattr(name)?.extract() };
    let (major, minor) = (number("major")?, number("minor")?);
    let caps = inrush_cuda::caps(&inrush_cuda::Properties {
        major,
        minor,
        multiprocessors: number("multi_processor_count")?,
        resident_threads: number("max_threads_per_multi_processor")?,
        registers: number("regs_per_multiprocessor")?,
        shared_bytes: number("shared_memory_per_block_optin")?,
        l2_bytes: p.getattr("L2_cache_size")?.extract()?,
    });
    let caps = caps.ok_or_else(|| {
        raise(Error::unsupported(format!(
            "a GPU of compute capability {major}.{minor}: Triton builds for 7.0 and later"
        )))
    })?;
    let target = target(&caps).map_err(raise)?;
    Ok((caps, target))
}

/// Capabilities and target of a preset such as `cuda:h100`.
pub fn preset(name: &str) -> Result<(Caps, GpuTarget), Error> {
    let (device, preset) = match name.split_once(':') {
        Some((d, p)) => (d, Some(p)),
        None => (name, None),
    };
    let caps = (device == inrush_cuda::CUDA.name)
        .then(|| inrush_cuda::CUDA.caps(preset))
        .flatten();
    let caps = caps.ok_or_else(|| Error::input(format!("there is no GPU preset `{name}`")))?;
    let target = target(&caps)?;
    Ok((caps, target))
}

fn target(caps: &Caps) -> Result<GpuTarget, Error> {
    let gpu = (caps.gpu.as_ref()).ok_or_else(|| Error::internal("a GPU without properties"))?;
    Ok(GpuTarget {
        backend: inrush_cuda::CUDA.backend.into(),
        arch: gpu.arch.clone(),
        warp: gpu.warp,
    })
}

/// Returns what measures kernels on a device; with `known_only` it takes what was measured before, and measures nothing.
pub fn bench(
    py: Python<'_>,
    device: Device,
    target: GpuTarget,
    known_only: bool,
) -> PyResult<Bench> {
    let cuda = py.import("torch")?.getattr("cuda")?;
    let name = cuda
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
        Box::new(current),
        name,
        target,
        pool,
        known_only,
    ))
}
