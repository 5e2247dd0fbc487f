//! The exported functions: those that runners of PyTorch 2.11 to 2.15 look up by name, and their variants without types of C++.
//!
//! Each function returns 0, or 1 with an error that [`AOTInductorGetLastError`] gives. Handles of inputs are taken over, outputs
//! belong to the caller, constants stay the caller's. A model of the CPU ignores streams, and no model needs a proxy executor.

use crate::container::{Constant, Container, Update};
use crate::error::{guarded, last};
use crate::map;
use crate::torch::{Handle, Owned};
use inrush_base::{Error, Result};
use inrush_host::native::Stream;
use inrush_runtime::Set;
use std::ffi::{CStr, CString, c_char, c_void};

/// `AOTInductorConstantMapEntry`.
#[repr(C)]
pub(crate) struct ConstantEntry {
    name: *const c_char,
    handle: Handle,
}

fn null(what: &str) -> Error {
    Error::input(format!("`{what}` is NULL"))
}

/// Returns the container of a handle.
///
/// # Safety
/// `container` is null or live.
unsafe fn container<'a>(container: *mut Container) -> Result<&'a Container> {
    // SAFETY: the caller's promise.
    unsafe { container.as_ref() }.ok_or_else(|| null("container"))
}

/// Writes a result.
///
/// # Safety
/// `to` is null or can be written.
unsafe fn put<T>(to: *mut T, what: &str, value: T) -> Result<()> {
    if to.is_null() {
        return Err(null(what));
    }
    // SAFETY: the caller's promise.
    unsafe { to.write(value) };
    Ok(())
}

/// Returns `count` entries from `p`.
///
/// # Safety
/// `p` is null or has as many entries while the result is used.
unsafe fn list<'a, T>(p: *const T, count: usize, what: &str) -> Result<&'a [T]> {
    match count {
        0 => Ok(&[]),
        _ if p.is_null() => Err(null(what)),
        // SAFETY: the caller's promise.
        _ => Ok(unsafe { std::slice::from_raw_parts(p, count) }),
    }
}

/// Returns a text.
///
/// # Safety
/// `p` is null or ends with a zero byte.
unsafe fn text<'a>(p: *const c_char, what: &str) -> Result<&'a str> {
    if p.is_null() {
        return Err(null(what));
    }
    // SAFETY: the caller's promise.
    let s = unsafe { CStr::from_ptr(p) };
    s.to_str()
        .map_err(|_| Error::input(format!("`{what}` is not UTF-8")))
}

/// Returns the entry of a list at an index that comes from the caller.
fn entry<'a, T>(list: &'a [T], index: usize, what: &str) -> Result<&'a T> {
    list.get(index).ok_or_else(|| {
        Error::input(format!(
            "there is no {what} {index}, the model has {}",
            list.len()
        ))
    })
}

/// Loads the package and hands the container out.
///
/// # Safety
/// `out` is null or can be written, `device` null or a text.
unsafe fn create(out: *mut *mut Container, num_models: usize, device: *const c_char) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { put(out, "container_handle", std::ptr::null_mut()) }?;
    // SAFETY: as above.
    let device = unsafe { text(device, "device_str") }?;
    if num_models == 0 {
        return Err(Error::input("a container needs at least one model"));
    }
    // Calls share one model; any number of them may run at once.
    let made = Box::new(Container::open(device, num_models)?);
    // SAFETY: not null.
    unsafe { *out = Box::into_raw(made) };
    Ok(())
}

/// Runs a container. The handles of inputs are taken over whatever happens, and their slots become null.
///
/// # Safety
/// `container` is null or live; the lists have as many entries as their counts say, inputs are null or owned tensors;
/// the stream is null or one of the model's device.
unsafe fn run(
    model: *mut Container,
    inputs: *mut Handle,
    num_inputs: usize,
    outputs: *mut Handle,
    num_outputs: usize,
    stream: *mut c_void,
) -> Result<()> {
    if inputs.is_null() && num_inputs > 0 {
        return Err(null("input_handles"));
    }
    let given: Vec<Owned> = (0..num_inputs)
        // SAFETY: the list has this many entries.
        .map(|k| Owned::new(unsafe { inputs.add(k).replace(std::ptr::null_mut()) }))
        .collect();
    if outputs.is_null() && num_outputs > 0 {
        return Err(null("output_handles"));
    }
    for k in 0..num_outputs {
        // SAFETY: the list has this many entries.
        unsafe { outputs.add(k).write(std::ptr::null_mut()) };
    }
    // SAFETY: the caller's promise.
    let model = unsafe { container(model) }?;
    if num_outputs != model.output_names().len() {
        return Err(Error::input(format!(
            "the model gives {} outputs, room is given for {num_outputs}",
            model.output_names().len()
        )));
    }
    // SAFETY: the caller's promise.
    let results = unsafe { model.run(&given, Stream(stream as usize)) }?;
    for (k, tensor) in results.into_iter().enumerate() {
        // SAFETY: as many as the list has entries.
        unsafe { outputs.add(k).write(tensor.release()) };
    }
    Ok(())
}

/// Updates constants that come in a map of C++.
///
/// # Safety
/// `model` is null or live, `new` is null or a live map of names to tensors.
unsafe fn update_from_map(model: *mut Container, new: *const c_void, update: Update) -> Result<()> {
    // SAFETY: the caller's promise.
    let (model, new) = unsafe { (container(model)?, map::read(new)?) };
    // SAFETY: as above.
    unsafe { model.update(&new, update) }
}

/// Updates constants that come in a list.
///
/// # Safety
/// `model` is null or live; the list has `count` entries, each with a text and a tensor.
unsafe fn update_from_list(
    model: *mut Container,
    new: *const ConstantEntry,
    count: usize,
    update: Update,
) -> Result<()> {
    // SAFETY: the caller's promise.
    let (model, entries) = unsafe { (container(model)?, list(new, count, "pairs")?) };
    let mut new = Vec::with_capacity(count);
    for e in entries {
        // SAFETY: as above.
        new.push((unsafe { text(e.name, "name") }?.to_string(), e.handle));
    }
    // SAFETY: as above.
    unsafe { model.update(&new, update) }
}

/// Returns a constant by index.
///
/// # Safety
/// `model` is null or live.
unsafe fn constant<'a>(model: *mut Container, index: usize) -> Result<&'a Constant> {
    // SAFETY: the caller's promise.
    entry(unsafe { container(model) }?.constants(), index, "constant")
}

/// Returns the name at an index.
fn name(list: &[CString], index: usize, what: &str) -> Result<*const c_char> {
    Ok(entry(list, index, what)?.as_ptr())
}

fn set(use_inactive: bool) -> Set {
    if use_inactive {
        Set::Inactive
    } else {
        Set::Active
    }
}

/// Returns an update by copies.
fn copies(use_inactive: bool, all: bool) -> Update {
    Update {
        set: set(use_inactive),
        all,
        managed: false,
    }
}

/// Returns an update that reads the caller's memory.
fn managed(use_inactive: bool, all: bool) -> Update {
    Update {
        managed: true,
        ..copies(use_inactive, all)
    }
}

fn unsupported(what: &str) -> Result<()> {
    Err(Error::unsupported(format!(
        "{what} is not done in packages of inrush"
    )))
}

/// Defines exported functions. The body is a `Result<()>`.
macro_rules! exported {
    ($($(#[$doc:meta])* fn $name:ident($($arg:ident: $ty:ty),* $(,)?) $body:block)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// Pointers are null or as PyTorch's `interface.h` says.
        #[unsafe(no_mangle)]
        #[allow(unused_unsafe)] // Functions that are not supported read no pointer.
        pub(crate) unsafe extern "C" fn $name($($arg: $ty),*) -> i32 {
            // SAFETY: the caller's promise.
            guarded(|| unsafe { $body })
        }
    )*};
}

exported! {
    /// Loads the package for a device.
    fn AOTInductorModelContainerCreateWithDevice(
        out: *mut *mut Container, num_models: usize, device: *const c_char, _cubin_dir: *const c_char,
    ) { create(out, num_models, device) }

    /// Loads the package, for the CPU if `is_cpu` is true, else for the current GPU.
    fn AOTInductorModelContainerCreate(
        out: *mut *mut Container, num_models: usize, is_cpu: bool, _cubin_dir: *const c_char,
    ) { create(out, num_models, if is_cpu { c"cpu" } else { c"cuda" }.as_ptr()) }

    /// Loads the package with constants of the caller, who keeps them.
    fn AOTInductorModelContainerCreateWithExternalConstants(
        out: *mut *mut Container, num_models: usize, device: *const c_char, _cubin_dir: *const c_char,
        entries: *const ConstantEntry, count: usize,
    ) {
        create(out, num_models, device)?;
        let done = update_from_list(*out, entries, count, managed(false, true));
        if done.is_err() {
            drop(Box::from_raw(out.replace(std::ptr::null_mut())));
        }
        done
    }

    /// Frees a container.
    fn AOTInductorModelContainerDelete(model: *mut Container) {
        if !model.is_null() {
            drop(Box::from_raw(model));
        }
        Ok(())
    }

    /// Runs the model.
    fn AOTInductorModelContainerRun(
        model: *mut Container, inputs: *mut Handle, num_inputs: usize, outputs: *mut Handle, num_outputs: usize,
        stream: *mut c_void, _proxy: *mut c_void,
    ) { run(model, inputs, num_inputs, outputs, num_outputs, stream) }

    /// Runs the model. Calls need no lock, so that there is nothing to leave out for a caller with one thread.
    fn AOTInductorModelContainerRunSingleThreaded(
        model: *mut Container, inputs: *mut Handle, num_inputs: usize, outputs: *mut Handle, num_outputs: usize,
        stream: *mut c_void, _proxy: *mut c_void,
    ) { run(model, inputs, num_inputs, outputs, num_outputs, stream) }

    /// Gives the number of inputs that are passed.
    fn AOTInductorModelContainerGetNumInputs(model: *mut Container, out: *mut usize) {
        put(out, "ret_num_inputs", container(model)?.input_names().len())
    }

    /// Gives the name of an input.
    fn AOTInductorModelContainerGetInputName(model: *mut Container, index: usize, out: *mut *const c_char) {
        put(out, "ret_input_names", name(container(model)?.input_names(), index, "input")?)
    }

    /// Gives the number of outputs.
    fn AOTInductorModelContainerGetNumOutputs(model: *mut Container, out: *mut usize) {
        put(out, "ret_num_outputs", container(model)?.output_names().len())
    }

    /// Gives the name of an output.
    fn AOTInductorModelContainerGetOutputName(model: *mut Container, index: usize, out: *mut *const c_char) {
        put(out, "ret_output_names", name(container(model)?.output_names(), index, "output")?)
    }

    /// Gives the tree specifications of inputs and outputs.
    fn AOTInductorModelContainerGetCallSpec(
        model: *mut Container, in_spec: *mut *const c_char, out_spec: *mut *const c_char,
    ) {
        let (inputs, outputs) = container(model)?.trees()?;
        put(in_spec, "in_spec", inputs.as_ptr())?;
        put(out_spec, "out_spec", outputs.as_ptr())
    }

    /// Gives the number of constants.
    fn AOTInductorModelContainerGetNumConstants(model: *mut Container, out: *mut usize) {
        put(out, "num_constants", container(model)?.constants().len())
    }

    /// Gives the name of a constant in updates, which is its fully qualified name.
    fn AOTInductorModelContainerGetConstantName(model: *mut Container, index: usize, out: *mut *const c_char) {
        put(out, "name", constant(model, index)?.name.as_ptr())
    }

    /// Gives the fully qualified name of a constant.
    fn AOTInductorModelContainerGetConstantOriginalFQN(
        model: *mut Container, index: usize, out: *mut *const c_char,
    ) { put(out, "original_fqn", constant(model, index)?.name.as_ptr()) }

    /// Gives PyTorch's number of a constant's dtype.
    fn AOTInductorModelContainerGetConstantDtype(model: *mut Container, index: usize, out: *mut i32) {
        put(out, "dtype", constant(model, index)?.dtype)
    }

    /// Gives the bytes of a constant.
    fn AOTInductorModelContainerGetConstantDataSize(model: *mut Container, index: usize, out: *mut usize) {
        put(out, "data_size", constant(model, index)?.bytes)
    }

    /// Gives false: results of load steps are no constants.
    fn AOTInductorModelContainerGetConstantFromFolded(model: *mut Container, index: usize, out: *mut bool) {
        constant(model, index)?;
        put(out, "from_folded", false)
    }

    /// Gives the bytes of a blob of all constants.
    fn AOTInductorModelContainerGetConstantsBlobSize(model: *mut Container, out: *mut u64) {
        put(out, "ret_size", container(model)?.blob_bytes() as u64)
    }

    /// Gives true: the package holds its constants, and they are loaded with it.
    fn AOTInductorModelContainerDidCallLoadConstants(model: *mut Container, out: *mut bool) {
        container(model)?;
        put(out, "did_call_load_constants", true)
    }

    /// Replaces constants by copies.
    fn AOTInductorModelContainerUpdateConstantBuffer(
        model: *mut Container, map: *const c_void, use_inactive: bool, all: bool,
    ) { update_from_map(model, map, copies(use_inactive, all)) }

    /// Replaces constants by copies.
    fn AOTInductorModelContainerUpdateConstantBufferPairs(
        model: *mut Container, pairs: *const ConstantEntry, count: usize, use_inactive: bool, all: bool,
    ) { update_from_list(model, pairs, count, copies(use_inactive, all)) }

    /// Replaces constants by copies of tensors of the CPU.
    fn AOTInductorModelContainerUpdateConstantBufferFromCpu(
        model: *mut Container, map: *const c_void, use_inactive: bool, all: bool,
    ) { update_from_map(model, map, copies(use_inactive, all)) }

    /// Replaces constants by copies of tensors of the CPU.
    fn AOTInductorModelContainerUpdateConstantBufferFromCpuPairs(
        model: *mut Container, pairs: *const ConstantEntry, count: usize, use_inactive: bool, all: bool,
    ) { update_from_list(model, pairs, count, copies(use_inactive, all)) }

    /// Replaces constants of the inactive set by copies.
    fn AOTInductorModelContainerUpdateInactiveConstantBuffer(model: *mut Container, map: *const c_void) {
        update_from_map(model, map, copies(true, true))
    }

    /// Replaces constants of the inactive set by copies.
    fn AOTInductorModelContainerUpdateInactiveConstantBufferPairs(
        model: *mut Container, pairs: *const ConstantEntry, count: usize,
    ) { update_from_list(model, pairs, count, copies(true, true)) }

    /// Replaces constants by the caller's tensors, without copies.
    fn AOTInductorModelContainerUpdateUserManagedConstantBuffer(
        model: *mut Container, map: *const c_void, use_inactive: bool, all: bool,
    ) { update_from_map(model, map, managed(use_inactive, all)) }

    /// Replaces constants by the caller's tensors, without copies.
    fn AOTInductorModelContainerUpdateUserManagedConstantBufferPairs(
        model: *mut Container, pairs: *const ConstantEntry, count: usize, use_inactive: bool, all: bool,
    ) { update_from_list(model, pairs, count, managed(use_inactive, all)) }

    /// Replaces all constants of the active set by those of a blob.
    fn AOTInductorModelUpdateConstantsFromBlob(model: *mut Container, blob: *const u8) {
        container(model)?.update_from_blob(blob)
    }

    /// Computes what depends on constants only again. Updates do so themselves; it is needed for tensors that the caller has written,
    /// on a CPU: on a GPU nothing is computed before calls.
    fn AOTInductorModelContainerRunConstantFolding(
        model: *mut Container, use_inactive: bool, _stream: *mut c_void, _proxy: *mut c_void,
    ) { container(model)?.fold(set(use_inactive)) }

    /// Makes the inactive set the active one.
    fn AOTInductorModelContainerSwapConstantBuffer(model: *mut Container) { container(model)?.swap() }

    /// Forgets the inactive set.
    fn AOTInductorModelContainerFreeInactiveConstantBuffer(model: *mut Container) {
        container(model)?.free_inactive();
        Ok(())
    }

    /// Gives an error: only C++ can insert into the map.
    fn AOTInductorModelContainerExtractConstantsMap(
        _model: *mut Container, _map: *mut c_void, _use_inactive: bool,
    ) { unsupported("reading constants back") }

    /// Gives an error where it would be turned on: a call runs on the stream that it is given, whichever calls came before.
    fn AOTInductorModelContainerSetUseStreamAffinity(_model: *mut Container, on: bool) {
        if on { unsupported("an affinity to streams") } else { Ok(()) }
    }

    /// Gives an error: there is no such affinity.
    fn AOTInductorModelContainerGetStreamAffinityModelIndexForTesting(_model: *mut Container) {
        unsupported("an affinity to streams")
    }
}

/// Gives the text of the thread's last error, empty after a success. It lives until the thread's next call.
///
/// # Safety
/// `out` is null or can be written.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn AOTInductorGetLastError(out: *mut *const c_char) -> i32 {
    if out.is_null() {
        return 1;
    }
    // SAFETY: not null.
    unsafe { *out = last() };
    0
}
