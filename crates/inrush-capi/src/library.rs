//! Functions of the library by their names, for programs that are printed as C++ and hosts of their own.

use super::{guarded, list, null, returned, string};
use dlpark::ffi::{DLManagedTensorVersioned, DLTensor};
use inrush_base::{Error, Result, Scalar};
use inrush_runtime::dlpack::{self, Borrow};
use inrush_runtime::operators::CArg;
use inrush_runtime::{Pool, Tensor, library_results, run_library};
use std::collections::BTreeMap;
use std::ffi::{c_char, c_int};
use std::sync::{Arc, Mutex, PoisonError};

/// Threads by their number. They stay, as those of a model that is never freed would.
static POOLS: Mutex<BTreeMap<usize, Arc<Pool>>> = Mutex::new(BTreeMap::new());

/// Returns threads of this number, 0 for one per processor.
fn pool(threads: i64) -> Result<Arc<Pool>> {
    let wrong = || Error::input(format!("{threads} threads"));
    let threads = usize::try_from(threads).map_err(|_| wrong())?;
    let mut all = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
    let pool = match all.get(&threads) {
        Some(pool) => pool.clone(),
        None => {
            let made = Arc::new(Pool::new((threads > 0).then_some(threads))?);
            all.insert(threads, made.clone());
            made
        }
    };
    pool.check_fork()?;
    Ok(pool)
}

/// Borrows a list of tensors; `None` for NULL.
///
/// # Safety
/// The list has `count` entries, which are null or live during the call.
unsafe fn tensors(
    all: *const *const DLTensor,
    count: usize,
    (what, how): (&str, Borrow),
) -> Result<Vec<Option<Tensor>>> {
    // SAFETY: the caller's promise.
    let all = unsafe { list(all, count, what) }?;
    let one = |(k, t): (usize, &*const DLTensor)| {
        // SAFETY: as above.
        let Some(t) = (unsafe { t.as_ref() }) else {
            return Ok(None);
        };
        // SAFETY: the memory is the caller's, and outlives the call.
        let t = unsafe { dlpack::borrow(t, how, Box::new(())) };
        t.map(Some).map_err(|e| e.context(format!("{what}[{k}]")))
    };
    all.iter().enumerate().map(one).collect()
}

/// Returns the tensors of a list that has no NULL.
fn whole(all: Vec<Option<Tensor>>, what: &str) -> Result<Vec<Tensor>> {
    let one = |(k, t): (usize, Option<Tensor>)| t.ok_or_else(|| null(&format!("{what}[{k}]")));
    all.into_iter().enumerate().map(one).collect()
}

/// Reads numbers; `None` for those left out.
///
/// # Safety
/// The list has `count` entries.
unsafe fn numbers(all: *const CArg, count: usize) -> Result<Vec<Option<Scalar>>> {
    // SAFETY: the caller's promise.
    let all = unsafe { list(all, count, "params") }?;
    let one = |(k, a): (usize, &CArg)| a.number().map_err(|e| e.context(format!("params[{k}]")));
    all.iter().enumerate().map(one).collect()
}

/// Runs a function of the library into memory of the caller.
///
/// # Safety
/// See `inrush.h`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn inrush_library_run(
    function: *const c_char,
    threads: i64,
    inputs: *const *const DLTensor,
    num_inputs: usize,
    params: *const CArg,
    num_params: usize,
    outputs: *const *const DLTensor,
    num_outputs: usize,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        let (name, inputs, outputs, params) = unsafe {
            (
                string(function, "function")?,
                tensors(inputs, num_inputs, ("inputs", Borrow::ReadOnly))?,
                tensors(outputs, num_outputs, ("outputs", Borrow::Output))?,
                numbers(params, num_params)?,
            )
        };
        let (inputs, outputs) = (whole(inputs, "inputs")?, whole(outputs, "outputs")?);
        let number = |(k, p): (usize, Option<Scalar>)| {
            p.ok_or_else(|| Error::input(format!("`params[{k}]` is left out")))
        };
        let params: Vec<Scalar> = (params.into_iter().enumerate())
            .map(number)
            .collect::<Result<_>>()?;
        // SAFETY: the outputs are the caller's, who leaves them to this call.
        unsafe { run_library(name, inputs, &outputs, &params, &*pool(threads)?) }
    })
}

/// Runs a function of the library whose data decide the sizes of its results, into new tensors.
///
/// # Safety
/// See `inrush.h`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn inrush_library_results(
    function: *const c_char,
    threads: i64,
    inputs: *const *const DLTensor,
    num_inputs: usize,
    params: *const CArg,
    num_params: usize,
    outputs: *mut *mut DLManagedTensorVersioned,
    num_outputs: usize,
) -> c_int {
    guarded(|| {
        if num_outputs > 0 && outputs.is_null() {
            return Err(null("outputs"));
        }
        for k in 0..num_outputs {
            // SAFETY: the list has this many entries by the caller's promise.
            unsafe { *outputs.add(k) = std::ptr::null_mut() };
        }
        // SAFETY: the caller's promise.
        let (name, inputs, params) = unsafe {
            (
                string(function, "function")?,
                tensors(inputs, num_inputs, ("inputs", Borrow::ReadOnly))?,
                numbers(params, num_params)?,
            )
        };
        let values = library_results(name, inputs, &params, &*pool(threads)?)?;
        if values.len() != num_outputs {
            return Err(Error::input(format!(
                "`{name}` gives {} results, room is given for {num_outputs}",
                values.len()
            )));
        }
        let made: Vec<Option<Tensor>> = values.into_iter().map(returned).collect::<Result<_>>()?;
        for (k, t) in made.into_iter().enumerate() {
            if let Some(t) = t {
                // SAFETY: the list has this many entries.
                unsafe { *outputs.add(k) = dlpack::lend(t) };
            }
        }
        Ok(())
    })
}
