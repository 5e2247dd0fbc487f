//! Properties of devices, and PyTorch's streams and guards, looked up in the process.

use super::kinds;
use super::shim::{Shims, library, shims};
use super::triton;
use crate::errors::raise;
use inrush_base::{Caps, Error, Result};
use inrush_host::devices::{self, Executed, Properties};
use inrush_host::gpu::driver::{Driver, Entered, OwnedStream, Stream};
use inrush_host::gpu::tune::{Bench, Current, MakeCurrent, Measures};
use inrush_host::program::Device;
use inrush_program::GpuTarget;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use std::ffi::{CStr, c_void};
use std::sync::{Mutex, PoisonError};

type Guard = *mut c_void;

/// PyTorch's functions for one kind of GPU.
pub struct Functions {
    create_guard: unsafe extern "C" fn(i32, *mut Guard) -> i32,
    delete_guard: unsafe extern "C" fn(Guard) -> i32,
    current_stream: unsafe extern "C" fn(i32, *mut *mut c_void) -> i32,
    create_stream_guard: unsafe extern "C" fn(*mut c_void, i32, *mut Guard) -> i32,
    delete_stream_guard: unsafe extern "C" fn(Guard) -> i32,
    /// PyTorch's streams are objects of another library, which the driver adopts before each call.
    adopts: bool,
    library: libloading::os::unix::Library,
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
        let library = library(py, &format!("torch_{}", kind.device.torch_build))?;
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
                adopts: !kind.shares_streams(),
                library,
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

    /// Returns PyTorch's current stream of a device on this thread, ready for work of the driver.
    ///
    /// # Errors
    /// Those of the driver, which may not put work in order with PyTorch's.
    pub fn current(&self, device: Device) -> Result<Stream> {
        let none = || Error::machine("PyTorch gives no stream of the device");
        let stream = self.stream(device).ok_or_else(none)?;
        if self.adopts {
            let symbols = |name: &CStr| {
                // SAFETY: the address alone is taken, of a function of this library or of those that it was linked with.
                let found = unsafe { self.library.get::<*const c_void>(name.to_bytes_with_nul()) };
                found.ok().map(|f| f.into_raw().cast_const())
            };
            // SAFETY: the stream is PyTorch's, and stays until its work is done.
            unsafe { devices::driver(device)?.adopt(device.index, stream, &symbols) }?;
        }
        Ok(stream)
    }

    /// Returns true if a stream is one of PyTorch's: all but those that the driver made, where PyTorch's are of another library.
    pub fn knows(&self, device: Device, stream: Stream) -> bool {
        !self.adopts || self.stream(device) == Some(stream)
    }

    /// Has PyTorch know of work that was issued on an adopted stream: it issues work of its own after that, for which its events and
    /// waits stand then. Without memory for that, the work is waited for.
    pub fn tell(&self, shims: &Shims, device: Device, stream: Stream) {
        if !self.adopts {
            return;
        }
        // After a failure of the device nothing runs.
        let Ok(driver) = devices::driver(device) else {
            return;
        };
        if driver.take_issued(stream)
            && (self.stream(device) != Some(stream) || !shims.issue_one(device))
        {
            _ = driver.synchronize(stream);
        }
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
    shims: &'static Shims,
    device: Device,
    guard: Guard,
    pub stream: Stream,
    /// The device is current for the driver, where PyTorch's guard does not make it so.
    _entered: Option<Entered>,
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
            shims: shims(py)?,
            device,
            guard,
            stream: Stream(0),
            _entered: None,
        };
        on.enter(&devices::driver(device).map_err(raise)?)
            .map_err(raise)?;
        Ok(on)
    }

    /// Returns what PyTorch has to be told of work with ([`Functions::tell`]); `None` where it needs no word.
    pub fn teller(&self) -> Option<&'static Functions> {
        self.functions.adopts.then_some(self.functions)
    }

    /// Makes the device current for the driver, with PyTorch's current stream.
    fn enter(&mut self, driver: &Driver) -> Result<()> {
        let index = self.device.index;
        if !self.functions.adopts {
            driver.ensure_current(index)?;
        }
        self.stream = self.functions.current(self.device)?;
        if self.functions.adopts {
            self._entered = Some(driver.enter(driver.primary_context(index)?)?);
        }
        Ok(())
    }
}

impl Drop for On {
    fn drop(&mut self) {
        (self.functions).tell(self.shims, self.device, self.stream);
        // SAFETY: the guard was made here and is given back once.
        unsafe { (self.functions.delete_guard)(self.guard) };
    }
}

/// Returns true if this machine has a device of this kind that PyTorch can use.
pub fn present(py: Python<'_>, device: Device) -> PyResult<bool> {
    if !kinds::kinds(py)?.is_built_for(device) {
        return Ok(false);
    }
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
    if !kind.shares_streams() {
        // The driver tells what PyTorch does not, once it has PyTorch's devices.
        let _on = On::device(py, device)?;
        let driver = devices::driver(device).map_err(raise)?;
        return kind.current(&driver).map_err(raise);
    }
    let p = module(py, &kind)?.call_method1("get_device_properties", (device.index,))?;
    let number = |name: &str| -> PyResult<u32> { p.getattr(name)?.extract() };
    let is_first = kind.device.torch_build == kind.device.torch_name;
    // Builds for other vendors than the first lack some, which their presets know.
    let known = |name: &str| -> PyResult<u32> {
        match p.getattr_opt(name)? {
            None if !is_first => Ok(0),
            _ => number(name),
        }
    };
    let (major, minor) = (number("major")?, number("minor")?);
    // All builds have an attribute of this name; in those of the first vendor it is the device's name.
    let arch = if is_first {
        format!("{major}{minor}")
    } else {
        without_features(p.getattr("gcnArchName")?.extract()?)
    };
    let properties = Properties {
        arch,
        major,
        minor,
        multiprocessors: number("multi_processor_count")?,
        resident_threads: number("max_threads_per_multi_processor")?,
        registers: known("regs_per_multiprocessor")?,
        shared_bytes: known("shared_memory_per_block_optin")?,
        l2_bytes: known("L2_cache_size")? as usize,
    };
    kind.caps(&properties).map_err(raise)
}

/// Returns an architecture without its features: `gfx942` of `gfx942:sramecc+:xnack-`.
fn without_features(full: String) -> String {
    full.split(':').next().unwrap_or_default().into()
}

/// Returns true if the driver of a device measures the time of work, which needs no call of the driver.
///
/// # Errors
/// Those of finding the driver.
pub fn can_time(device: Device) -> Result<bool> {
    Ok(devices::driver(device)?.can_time())
}

/// Returns the stream of a device on which background work is measured: one for the whole process, because libraries keep memory for
/// each stream that they have met.
fn background_stream(device: Device, driver: &Driver) -> Result<Stream> {
    static STREAMS: Mutex<Vec<(Device, OwnedStream)>> = Mutex::new(Vec::new());
    let mut streams = STREAMS.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some((_, own)) = streams.iter().find(|s| s.0 == device) {
        return Ok(own.stream());
    }
    let own = driver.own_stream()?;
    let stream = own.stream();
    streams.push((device, own));
    Ok(stream)
}

/// Returns the bytes of a device's memory that no process has taken.
fn free_memory(py: Python<'_>, device: Device) -> PyResult<u64> {
    let told = module(py, &kind(device)?)?.call_method1("mem_get_info", (device.index,))?;
    told.get_item(0)?.extract()
}

/// Returns what measures kernels on a device with a last cache of so many bytes. In the background they run on a stream that does not wait for others.
pub fn bench(
    py: Python<'_>,
    device: Device,
    target: (GpuTarget, usize),
    measures: Measures,
) -> PyResult<Bench> {
    let name = module(py, &kind(device)?)?
        .call_method1("get_device_name", (device.index,))?
        .extract()?;
    let library = functions(py, device)?;
    let fails = |e: PyErr| Error::machine(format!("the device cannot be used for tuning: {e}"));
    let now = move || {
        let on = Python::attach(|py| On::device(py, device)).map_err(fails)?;
        Ok(Current {
            stream: on.stream,
            free: None,
            guard: Box::new(on),
        })
    };
    let background = move || {
        let (on, free) =
            Python::attach(|py| Ok((On::device(py, device)?, free_memory(py, device)?)))
                .map_err(fails)?;
        let driver = devices::driver(device)?;
        driver.leave_captures_alone()?;
        let stream = background_stream(device, &driver)?;
        // PyTorch's work of this thread goes there, too.
        let entered = library.enter(device, stream);
        Ok(Current {
            stream,
            free: Some(free),
            guard: Box::new((entered, on)),
        })
    };
    let current: MakeCurrent = match measures {
        Measures::InBackground => Box::new(background),
        Measures::Now | Measures::Nothing => Box::new(now),
    };
    let pool = triton::pool(py)?;
    Ok(Bench::new((device, current), name, target, pool, measures))
}
