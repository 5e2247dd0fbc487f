//! The functions of `inrush.h`: load a package and run it from C.
//!
//! Each function checks its pointers, turns an error into a status and a text of the thread, and lets no panic out.
//!
//! Does not know: any compiler crate.

mod library;
mod spec;

use dlpark::ffi::{DLManagedTensorVersioned, DLTensor};
use inrush_base::{DType, Error, ErrorKind, Result, Scalar};
use inrush_host::native::{Argument, NewWeight, Options, Output, Stream, dlpack as device};
use inrush_host::{Open, Session};
use inrush_runtime::dlpack::{self, Borrow};
use inrush_runtime::operators::{COperator, load_operators, register_c};
use inrush_runtime::{InputKind, Names, OutputSpec, Package, Signature, Tensor, Value};
use spec::{CSpec, Spec, text};
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

/// `INRUSH_ABI`.
const ABI: u32 = 1;

/// `InrushModel`.
pub struct CModel {
    session: Session,
    signature: Signature,
    inputs: Vec<Spec>,
    outputs: Vec<Spec>,
    weights: Vec<Spec>,
}

/// `InrushOptions`.
#[repr(C)]
#[derive(Copy, Clone)]
pub struct COptions {
    size: usize,
    threads: i64,
    seed: i64,
    device: *const c_char,
    capture: i64,
    concurrent: i64,
}

thread_local! {
    static LAST_ERROR: RefCell<CString> = RefCell::new(CString::default());
}

/// Runs `f` and reports its error or panic to C.
fn guarded(f: impl FnOnce() -> Result<()>) -> c_int {
    let result = catch_unwind(AssertUnwindSafe(f));
    let error = match result {
        Ok(Ok(())) => return 0,
        Ok(Err(e)) => e,
        Err(_) => Error::internal("a panic inside inrush"),
    };
    LAST_ERROR.with_borrow_mut(|e| *e = text(&error.to_string()));
    match error.kind() {
        ErrorKind::Input
        | ErrorKind::OutOfRange
        | ErrorKind::ZeroDivision
        | ErrorKind::InvalidValue => 1,
        ErrorKind::Unsupported => 2,
        ErrorKind::Machine | ErrorKind::OutOfMemory => 3,
        ErrorKind::Internal => 4,
    }
}

fn null(what: &str) -> Error {
    Error::input(format!("`{what}` is NULL"))
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

/// Returns a text of C.
///
/// # Safety
/// `p` is null or ends with a zero byte.
unsafe fn string<'a>(p: *const c_char, what: &str) -> Result<&'a str> {
    if p.is_null() {
        return Err(null(what));
    }
    // SAFETY: the caller's promise.
    let s = unsafe { CStr::from_ptr(p) };
    s.to_str()
        .map_err(|_| Error::input(format!("`{what}` is not UTF-8")))
}

/// The version of this interface.
#[unsafe(no_mangle)]
pub extern "C" fn inrush_abi() -> u32 {
    ABI
}

/// The version of the library.
#[unsafe(no_mangle)]
pub extern "C" fn inrush_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// The last error of this thread.
#[unsafe(no_mangle)]
pub extern "C" fn inrush_last_error() -> *const c_char {
    LAST_ERROR.with_borrow(|e| e.as_ptr())
}

/// Registers functions of operators.
///
/// # Safety
/// See `inrush.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inrush_register_operators(
    list_of: *const COperator,
    count: usize,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        unsafe { register_c(list(list_of, count, "operators")?) }
    })
}

/// Registers the functions of a shared library.
///
/// # Safety
/// See `inrush.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inrush_load_operators(path: *const c_char) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        load_operators(Path::new(unsafe { string(path, "path") }?))
    })
}

/// Loads a package from a file.
///
/// # Safety
/// See `inrush.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inrush_model_open(
    path: *const c_char,
    options: *const COptions,
    model: *mut *mut CModel,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        let path = unsafe { string(path, "path") }?;
        // SAFETY: as above.
        unsafe {
            open(options, model, Some(path), || {
                Package::open(Path::new(path))
            })
        }
    })
}

/// Loads a package from memory.
///
/// # Safety
/// See `inrush.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inrush_model_open_memory(
    bytes: *const c_void,
    size: usize,
    options: *const COptions,
    model: *mut *mut CModel,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        let bytes = unsafe { list(bytes.cast::<u8>(), size, "bytes") }?.to_vec();
        // SAFETY: as above.
        unsafe { open(options, model, None, || Package::read(bytes)) }
    })
}

/// Loads a package that `read` gives, and hands the model out.
///
/// # Safety
/// `options` is null or begins with its size, and its text ends with a zero byte; `out` is null or can be written.
unsafe fn open(
    options: *const COptions,
    out: *mut *mut CModel,
    path: Option<&str>,
    read: impl FnOnce() -> Result<Package>,
) -> Result<()> {
    if out.is_null() {
        return Err(null("model"));
    }
    // SAFETY: not null.
    unsafe { *out = std::ptr::null_mut() };
    // SAFETY: the caller's promise.
    let options = unsafe { read_options(options) }?;
    let count =
        |n: i64, what: &str| usize::try_from(n).map_err(|_| Error::input(format!("{n} {what}")));
    let device = if options.device.is_null() {
        "cpu"
    } else {
        // SAFETY: the caller's promise.
        unsafe { string(options.device, "options.device") }?
    };
    let mut gpu = Options {
        capture: options.capture != 0,
        seed: options.seed,
        ..Options::default()
    };
    if options.concurrent != 0 {
        gpu.concurrent = count(options.concurrent, "calls at once")?;
    }
    let open = Open {
        device: device.into(),
        threads: match options.threads {
            0 => None,
            n => Some(count(n, "threads")?),
        },
        options: gpu,
    };
    let session = Session::new(read()?, &open).map_err(|e| match path {
        Some(path) => e.in_file(path),
        None => e,
    })?;
    let signature = session.signature();
    let made = CModel {
        inputs: signature.inputs.iter().map(Spec::input).collect(),
        outputs: signature.outputs.iter().map(Spec::output).collect(),
        weights: session.weights().iter().map(Spec::weight).collect(),
        signature,
        session,
    };
    // SAFETY: not null.
    unsafe { *out = Box::into_raw(Box::new(made)) };
    Ok(())
}

/// Reads options. A caller that was compiled with a shorter structure leaves out what came later.
unsafe fn read_options(options: *const COptions) -> Result<COptions> {
    let mut out = COptions {
        size: size_of::<COptions>(),
        threads: 0,
        seed: 0,
        device: std::ptr::null(),
        capture: 0,
        concurrent: 0,
    };
    if options.is_null() {
        return Ok(out);
    }
    // SAFETY: the structure begins with its size.
    let size = unsafe { (*options).size };
    if !(size_of::<usize>()..=4096).contains(&size) {
        return Err(Error::input(format!(
            "`options.size` is {size}: set it to sizeof(InrushOptions)"
        )));
    }
    let known = size.min(size_of::<COptions>());
    // SAFETY: both structures have at least `known` bytes of integers and pointers.
    unsafe {
        std::ptr::copy_nonoverlapping(options.cast::<u8>(), (&raw mut out).cast::<u8>(), known);
    }
    Ok(out)
}

/// Frees a model.
///
/// # Safety
/// `model` is null or of this library, and no thread uses it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inrush_model_free(model: *mut CModel) {
    if !model.is_null() {
        // SAFETY: made by `open`, and freed once.
        let model = unsafe { Box::from_raw(model) };
        // A panic while it is dropped must not reach C.
        _ = catch_unwind(AssertUnwindSafe(|| drop(model)));
    }
}

/// Returns an entry of a list of the model.
unsafe fn entry(model: *const CModel, index: usize, of: fn(&CModel) -> &[Spec]) -> *const CSpec {
    // SAFETY: null or live by the caller's promise.
    let model = unsafe { model.as_ref() };
    let found = model.and_then(|m| of(m).get(index));
    found.map_or(std::ptr::null(), Spec::as_ptr)
}

/// Returns the length of a list of the model.
unsafe fn length(model: *const CModel, of: fn(&CModel) -> &[Spec]) -> usize {
    // SAFETY: null or live by the caller's promise.
    unsafe { model.as_ref() }.map_or(0, |m| of(m).len())
}

macro_rules! lists {
    ($($count:ident $get:ident $field:ident;)*) => {$(
        /// The number of entries; 0 for NULL.
        ///
        /// # Safety
        /// `model` is null or of this library.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $count(model: *const CModel) -> usize {
            // SAFETY: the caller's promise.
            unsafe { length(model, |m| &m.$field) }
        }

        /// An entry, or NULL.
        ///
        /// # Safety
        /// `model` is null or of this library.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $get(model: *const CModel, index: usize) -> *const CSpec {
            // SAFETY: the caller's promise.
            unsafe { entry(model, index, |m| &m.$field) }
        }
    )*};
}

lists! {
    inrush_model_num_inputs inrush_model_input inputs;
    inrush_model_num_outputs inrush_model_output outputs;
    inrush_model_num_weights inrush_model_weight weights;
}

/// Runs a model into new tensors.
///
/// # Safety
/// See `inrush.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inrush_model_run(
    model: *mut CModel,
    inputs: *const *const DLTensor,
    num_inputs: usize,
    outputs: *mut *mut DLManagedTensorVersioned,
    num_outputs: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    guarded(|| unsafe { run(model, None, (inputs, num_inputs), (outputs, num_outputs)) })
}

/// Likewise with all work on a stream of the caller's.
///
/// # Safety
/// See `inrush.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inrush_model_run_on_stream(
    model: *mut CModel,
    stream: *mut c_void,
    inputs: *const *const DLTensor,
    num_inputs: usize,
    outputs: *mut *mut DLManagedTensorVersioned,
    num_outputs: usize,
) -> c_int {
    let stream = Some(Stream(stream as usize));
    // SAFETY: the caller's promise.
    guarded(|| unsafe { run(model, stream, (inputs, num_inputs), (outputs, num_outputs)) })
}

/// Runs a model into new tensors.
///
/// # Safety
/// As for [`inrush_model_run_on_stream`].
unsafe fn run(
    model: *mut CModel,
    stream: Option<Stream>,
    (inputs, num_inputs): (*const *const DLTensor, usize),
    (outputs, num_outputs): (*mut *mut DLManagedTensorVersioned, usize),
) -> Result<()> {
    // SAFETY: the caller's promise.
    let m = unsafe { model.as_ref() }.ok_or_else(|| null("model"))?;
    if num_outputs > 0 && outputs.is_null() {
        return Err(null("outputs"));
    }
    for k in 0..num_outputs {
        // SAFETY: the list has this many entries.
        unsafe { *outputs.add(k) = std::ptr::null_mut() };
    }
    if num_outputs != m.outputs.len() {
        return Err(Error::input(format!(
            "the model gives {} outputs, room is given for {num_outputs}",
            m.outputs.len()
        )));
    }
    // SAFETY: the caller's promise.
    let inputs = unsafe { read_inputs(m, inputs, num_inputs) }?;
    let results = m.session.run(inputs, stream)?;
    let memory = |o: Output| match o {
        Output::Device(t) => Ok(Some(device::lend(t, false))),
        Output::Value(v) => Ok(returned(v)?.map(dlpack::Memory::from)),
    };
    let results: Vec<Option<dlpack::Memory>> =
        results.into_iter().map(memory).collect::<Result<_>>()?;
    for (k, t) in results.into_iter().enumerate() {
        if let Some(t) = t {
            // SAFETY: the list has this many entries.
            unsafe { *outputs.add(k) = dlpack::lend(t) };
        }
    }
    Ok(())
}

/// Runs a model into memory of the caller.
///
/// # Safety
/// See `inrush.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inrush_model_run_into(
    model: *mut CModel,
    inputs: *const *const DLTensor,
    num_inputs: usize,
    outputs: *const *const DLTensor,
    num_outputs: usize,
) -> c_int {
    // SAFETY: the caller's promise.
    guarded(|| unsafe { run_into(model, None, (inputs, num_inputs), (outputs, num_outputs)) })
}

/// Likewise with all work on a stream of the caller's.
///
/// # Safety
/// See `inrush.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inrush_model_run_into_on_stream(
    model: *mut CModel,
    stream: *mut c_void,
    inputs: *const *const DLTensor,
    num_inputs: usize,
    outputs: *const *const DLTensor,
    num_outputs: usize,
) -> c_int {
    let stream = Some(Stream(stream as usize));
    // SAFETY: the caller's promise.
    guarded(|| unsafe { run_into(model, stream, (inputs, num_inputs), (outputs, num_outputs)) })
}

/// Runs a model into memory of the caller.
///
/// # Safety
/// As for [`inrush_model_run_into_on_stream`].
unsafe fn run_into(
    model: *mut CModel,
    stream: Option<Stream>,
    (inputs, num_inputs): (*const *const DLTensor, usize),
    (outputs, num_outputs): (*const *const DLTensor, usize),
) -> Result<()> {
    // SAFETY: the caller's promise.
    let m = unsafe { model.as_ref() }.ok_or_else(|| null("model"))?;
    // SAFETY: as above.
    let inputs = unsafe { read_inputs(m, inputs, num_inputs) }?;
    // SAFETY: as above.
    let outputs = unsafe { list(outputs, num_outputs, "outputs") }?;
    let place = |(k, t): (usize, &*const DLTensor)| {
        let wanted = m.signature.outputs.get(k);
        if !matches!(wanted, Some(OutputSpec::Tensor { .. })) {
            return Ok(Argument::Value(Value::None));
        }
        // SAFETY: null or live during the call.
        let t = unsafe { t.as_ref() }.ok_or_else(|| null(&format!("outputs[{k}]")))?;
        // SAFETY: the memory is the caller's until the call's work is done.
        let t = unsafe { device::borrow(t, Borrow::Output, Box::new(())) };
        t.map_err(|e| e.context(format!("output {k}")))
    };
    let outputs: Vec<Argument> = outputs
        .iter()
        .enumerate()
        .map(place)
        .collect::<Result<_>>()?;
    // SAFETY: the caller's promise.
    unsafe { m.session.run_into(inputs, outputs, stream) }
}

/// Reads the inputs of a call.
///
/// # Safety
/// The list has `count` entries, which are null or live during the call.
unsafe fn read_inputs(
    m: &CModel,
    inputs: *const *const DLTensor,
    count: usize,
) -> Result<Vec<Argument>> {
    // SAFETY: the caller's promise.
    let inputs = unsafe { list(inputs, count, "inputs") }?;
    let read = |(k, t): (usize, &*const DLTensor)| {
        let spec = m.signature.inputs.get(k);
        // SAFETY: null or live during the call.
        let t = unsafe { t.as_ref() };
        match (spec.map(|s| &s.kind), t) {
            (Some(InputKind::Constant(_) | InputKind::Ignored), None) => {
                Ok(Argument::Value(Value::None))
            }
            (_, None) => Err(null(&format!("inputs[{k}]"))),
            (kind, Some(t)) => {
                // SAFETY: the memory is the caller's until the call's work is done.
                let t = unsafe { device::borrow(t, Borrow::Input, Box::new(())) }?;
                match (kind, &t) {
                    (
                        Some(InputKind::Int | InputKind::Constant(_)),
                        Argument::Value(Value::Tensor(t)),
                    ) => number(t).map(Argument::Value),
                    (Some(InputKind::Int | InputKind::Constant(_)), _) => Err(Error::input(
                        "a number is passed as a tensor in memory of the host",
                    )),
                    (Some(InputKind::Ignored), _) => Ok(Argument::Value(Value::None)),
                    _ => Ok(t),
                }
            }
        }
        .map_err(|e: Error| match spec {
            Some(s) => e.context(format!("input `{}`", s.name)),
            None => e,
        })
    };
    inputs.iter().enumerate().map(read).collect()
}

/// Reads a number from a tensor of one element.
fn number(t: &Tensor) -> Result<Value> {
    let bytes = t.to_bytes();
    let wrong = || Error::input("a number is passed as a tensor of one int64, float64 or bool");
    let word = <[u8; 8]>::try_from(bytes.as_slice());
    match (t.dtype, word) {
        (DType::I64, Ok(w)) => Ok(Value::Int(i64::from_ne_bytes(w))),
        (DType::F64, Ok(w)) => Ok(Value::Scalar(Scalar::Float(f64::from_ne_bytes(w)))),
        (DType::Bool, _) if bytes.len() == 1 => Ok(Value::Scalar(Scalar::Bool(bytes[0] != 0))),
        (DType::I32, _) => {
            let word = <[u8; 4]>::try_from(bytes.as_slice()).map_err(|_| wrong())?;
            Ok(Value::Int(i32::from_ne_bytes(word).into()))
        }
        _ => Err(wrong()),
    }
}

/// Makes an output a tensor; `None` where it is nothing.
fn returned(v: Value) -> Result<Option<Tensor>> {
    let one = |dtype, bytes: &[u8]| Tensor::from_bytes(dtype, Vec::new(), bytes).map(Some);
    match v {
        Value::Tensor(t) => Ok(Some(t)),
        Value::Int(i) | Value::Scalar(Scalar::Int(i)) => one(DType::I64, &i.to_ne_bytes()),
        Value::Scalar(Scalar::Float(f)) => one(DType::F64, &f.to_ne_bytes()),
        Value::Scalar(Scalar::Bool(b)) => one(DType::Bool, &[u8::from(b)]),
        Value::None => Ok(None),
    }
}

/// Replaces weights of the inactive set.
///
/// # Safety
/// See `inrush.h`.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inrush_model_update_weights(
    model: *mut CModel,
    names: *const *const c_char,
    tensors: *const *const DLTensor,
    count: usize,
    all: c_int,
) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        let m = unsafe { model.as_ref() }.ok_or_else(|| null("model"))?;
        // SAFETY: as above.
        let (names, tensors) = unsafe {
            (
                list(names, count, "names")?,
                list(tensors, count, "tensors")?,
            )
        };
        let mut given: Vec<(&str, Argument)> = Vec::new();
        for (k, (name, t)) in names.iter().zip(tensors).enumerate() {
            // SAFETY: texts end with a zero byte; tensors are live during the call.
            let (name, t) = unsafe { (string(*name, &format!("names[{k}]"))?, t.as_ref()) };
            let t = t.ok_or_else(|| null(&format!("tensors[{k}]")))?;
            // SAFETY: as above.
            let t = unsafe { device::borrow(t, Borrow::ReadOnly, Box::new(())) };
            given.push((name, t.map_err(|e| e.context(format!("weight `{name}`")))?));
        }
        let new: Vec<(&str, NewWeight<'_>)> = (given.iter())
            .filter_map(|(name, t)| match t {
                Argument::Value(Value::Tensor(t)) => Some((*name, NewWeight::Host(t.view()))),
                Argument::Device(t) => Some((*name, NewWeight::Device(t))),
                Argument::Value(_) => None,
            })
            .collect();
        let names = if all != 0 { Names::All } else { Names::Some };
        m.session.update_weights(&new, names)
    })
}

/// Makes the inactive set the active one.
///
/// # Safety
/// `model` is null or of this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inrush_model_swap_weights(model: *mut CModel) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        let m = unsafe { model.as_ref() }.ok_or_else(|| null("model"))?;
        m.session.swap_weights()
    })
}

/// Forgets the inactive set.
///
/// # Safety
/// `model` is null or of this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inrush_model_discard_update(model: *mut CModel) {
    // SAFETY: the caller's promise.
    if let Some(m) = unsafe { model.as_ref() } {
        m.session.discard_update();
    }
}

/// Sets the seed of the next call's random numbers.
///
/// # Safety
/// `model` is null or of this library.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn inrush_model_set_seed(model: *mut CModel, seed: i64) -> c_int {
    guarded(|| {
        // SAFETY: the caller's promise.
        let m = unsafe { model.as_ref() }.ok_or_else(|| null("model"))?;
        if m.session.set_seed(seed)? {
            Ok(())
        } else {
            Err(Error::input("the model draws no random numbers"))
        }
    })
}
