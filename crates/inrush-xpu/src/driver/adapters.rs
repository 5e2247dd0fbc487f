//! Adapters of the Unified Runtime, through which the SYCL runtime reaches Level Zero.
//!
//! Both adapters for Level Zero are loaded, and the one that was not chosen reports nothing. Names, types and numbers are those of the
//! header `ur_api.h`.

use super::none;
use inrush_base::Result;
use inrush_driver::{Handle, Symbols};
use std::ffi::c_void;
use std::ptr::null_mut;

/// `UR_ADAPTER_INFO_BACKEND`, and `UR_BACKEND_LEVEL_ZERO` among its values.
const BACKEND: u32 = 0;
const LEVEL_ZERO: u32 = 1;
/// `UR_ADAPTER_INFO_VERSION`: 1 for the first adapter for Level Zero, 2 for the second one.
const VERSION: u32 = 2;

/// `ur_result_t`; 0 for success.
type Status = u32;
type Get = unsafe extern "C" fn(u32, *mut Handle, *mut u32) -> Status;
type Info = unsafe extern "C" fn(Handle, u32, usize, *mut c_void, *mut usize) -> Status;
type Release = unsafe extern "C" fn(Handle) -> Status;

/// Functions of the Unified Runtime's loader, on which the SYCL runtime depends.
pub(super) struct Adapters {
    get: Get,
    info: Info,
    release: Release,
}

impl Adapters {
    /// Looks the functions up.
    ///
    /// # Errors
    /// An unsupported error that names the one that is missing.
    pub(super) fn find(symbols: Symbols<'_>) -> Result<Adapters> {
        let find = |name| super::queues::find(symbols, name, "libur_loader");
        // SAFETY: the types are those of the header for these symbols.
        unsafe {
            Ok(Adapters {
                get: std::mem::transmute::<*const c_void, Get>(find(c"urAdapterGet")?),
                info: std::mem::transmute::<*const c_void, Info>(find(c"urAdapterGetInfo")?),
                release: std::mem::transmute::<*const c_void, Release>(find(c"urAdapterRelease")?),
            })
        }
    }

    /// Returns the version of the adapter for Level Zero, the lowest one if there are several.
    ///
    /// # Errors
    /// An unsupported error where the runtime does not tell it.
    pub(super) fn version(&self) -> Result<u32> {
        let mut count = 0;
        // SAFETY: without a list the number alone is written, here to a local.
        told("urAdapterGet", unsafe {
            (self.get)(0, null_mut(), &mut count)
        })?;
        let mut all = vec![null_mut(); count as usize];
        // SAFETY: the list is as long as it says.
        told("urAdapterGet", unsafe {
            (self.get)(count, all.as_mut_ptr(), null_mut())
        })?;
        all.retain(|a: &Handle| !a.is_null());
        let version = self.version_among(&all);
        for adapter in all {
            // SAFETY: the list holds each adapter once.
            _ = unsafe { (self.release)(adapter) };
        }
        match version? {
            Some(version) => Ok(version),
            None => none("the SYCL runtime of this process has no adapter for Level Zero"),
        }
    }

    fn version_among(&self, all: &[Handle]) -> Result<Option<u32>> {
        let mut lowest = None;
        for adapter in all {
            // SAFETY: the adapter is one of the list, which is held.
            let number = |what| unsafe { self.number(*adapter, what) };
            if number(BACKEND)? == LEVEL_ZERO {
                let version = number(VERSION)?;
                lowest = Some(lowest.map_or(version, |l: u32| l.min(version)));
            }
        }
        Ok(lowest)
    }

    /// Returns what an adapter tells of itself.
    ///
    /// # Safety
    /// The adapter exists, and the information is a number of 32 bits.
    unsafe fn number(&self, adapter: Handle, what: u32) -> Result<u32> {
        let mut value = 0u32;
        let at = (&raw mut value).cast();
        // SAFETY: the value is a local of this size.
        told("urAdapterGetInfo", unsafe {
            (self.info)(adapter, what, size_of::<u32>(), at, null_mut())
        })?;
        Ok(value)
    }
}

/// Turns a status into a result.
fn told(what: &str, status: Status) -> Result<()> {
    match status {
        0 => Ok(()),
        _ => none(&format!(
            "the SYCL runtime of this process does not tell its adapter: {what} gives {status}"
        )),
    }
}
