//! Kernels: built by a pool of Triton workers, and loaded.

use super::arena::ALIGNMENT;
use super::arguments;
use super::driver::Kernel;
use crate::devices;
use crate::program::{Gpu, Lowered, USER_KERNEL};
use inrush_base::{Error, ErrorKind, Result};
use inrush_program::{GpuKernel, GpuTarget};
use inrush_runtime::triton::{Binary, MachineCode, Pool};
use rustc_hash::FxHashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Returns the binaries of a program's kernels, and true if all of them were there already.
pub fn build(pool: &Pool, gpu: &Gpu) -> Result<(Vec<Binary>, bool)> {
    let sources: Vec<_> = gpu.kernels.iter().collect();
    let (results, cached) = pool.build_all(&sources, &gpu.target);
    let mut binaries = Vec::with_capacity(results.len());
    for (made, kernel) in results.into_iter().zip(&gpu.kernels) {
        let binary = made.map_err(|e| of_user(kernel, e))?;
        check_launchable(kernel, &binary)?;
        binaries.push(binary);
    }
    Ok((binaries, cached))
}

/// Builds one kernel of a user's, to see whether a target can have it. The binary stays in the cache.
///
/// # Errors
/// Those of the build; an unsupported error for what no launch gives the kernel.
pub fn try_kernel(pool: &Pool, kernel: &GpuKernel, target: &GpuTarget, shared: u32) -> Result<()> {
    let (mut results, _) = pool.build_all(&[kernel], target);
    let made = results.pop().ok_or_else(|| Error::internal("no result"))?;
    let binary = made.map_err(|e| of_user(kernel, e))?;
    check_launchable(kernel, &binary)?;
    match binary.info.shared {
        n if n <= shared => Ok(()),
        n => Err(Error::unsupported(format!(
            "the Triton kernel `{}` needs {n} bytes of shared memory, the device has {shared}",
            kernel.function
        ))),
    }
}

/// Returns the error of a build: a kernel of the user's is the user's to mend.
fn of_user(kernel: &GpuKernel, e: Error) -> Error {
    match is_users(kernel) && e.kind() == ErrorKind::Internal {
        true => Error::input(e.message().to_string()),
        false => e,
    }
}

/// Returns true for a kernel that a user wrote.
fn is_users(kernel: &GpuKernel) -> bool {
    kernel.symbol.starts_with(USER_KERNEL)
}

/// Refuses a kernel that asks for more than launches give.
pub(crate) fn check_launchable(kernel: &GpuKernel, binary: &Binary) -> Result<()> {
    let b = &binary.info;
    if b.ctas == 1 && !b.cooperative && b.scratch_align <= ALIGNMENT {
        return Ok(());
    }
    let what = "clusters, a cooperative launch or scratch memory beyond the usual alignment";
    Err(match is_users(kernel) {
        true => Error::unsupported(format!(
            "the Triton kernel `{}` asks for {what}",
            kernel.function
        )),
        false => Error::internal(format!("the kernel `{}` asks for {what}", kernel.function)),
    })
}

/// Returns the binaries of the kernels of a program and of those that its control flow calls, in the order of [`Lowered::kernels`].
pub fn build_all(pool: &Pool, lowered: &Lowered) -> Result<(Vec<Binary>, bool)> {
    let (mut binaries, mut cached) = (Vec::new(), true);
    for l in lowered.programs() {
        let gpu = (l.program.gpu.as_ref()).ok_or_else(|| Error::internal("no kernels"))?;
        let (made, there) = build(pool, gpu)?;
        binaries.extend(made);
        cached &= there;
    }
    Ok((binaries, cached))
}

/// Kernels that are loaded, by kind and index of the device and machine code: graphs share them. They stay: what somebody captured may launch them when the
/// function that it was captured from is gone.
type Loaded = FxHashMap<([i32; 2], String), Arc<Kernel>>;
static LOADED: Mutex<Option<Loaded>> = Mutex::new(None);

/// Loads a kernel into the current context.
///
/// # Errors
/// Those of the driver.
pub fn load(binary: &Binary, kernel: &GpuKernel, gpu: &Gpu) -> Result<Arc<Kernel>> {
    let driver = devices::driver(gpu.device)?;
    let mut all = LOADED.lock().unwrap_or_else(PoisonError::into_inner);
    let all = all.get_or_insert_default();
    let key = ([gpu.device.kind, gpu.device.index], binary.code.key());
    if let Some(k) = all.get(&key) {
        return Ok(k.clone());
    }
    let ptx = matches!(binary.code, MachineCode::Ptx { .. });
    let (code, b) = (binary.code.bytes()?, &binary.info);
    let threads = b.warps * gpu.target.warp;
    let loaded = match ptx {
        true => driver.load_ptx(&code, &b.symbol, threads, b.shared)?,
        false => driver.load(&code, &b.symbol, threads, b.shared)?,
    };
    let loaded = loaded.with_warps(b.warps)?;
    let loaded = match b.maps.is_empty() && !driver.takes_each() {
        true => loaded,
        false => loaded.with_places(arguments::places(&kernel.signature, !b.maps.is_empty())?),
    };
    let loaded = match kernel.programmatic {
        // SAFETY: stage emit says so of kernels that begin with the wait only.
        true => unsafe { loaded.programmatic() },
        false => loaded,
    };
    let loaded = Arc::new(loaded);
    all.insert(key, loaded.clone());
    Ok(loaded)
}
