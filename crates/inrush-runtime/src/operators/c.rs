//! Functions of operators in C: the structures of `inrush.h`.

use super::{Arg, OperatorCall, OperatorDevice, OperatorTensor, register_operator};
use crate::dlpack;
use dlpark::ffi::{DLDataType, DLTensor};
use inrush_base::{Error, Result, Scalar};
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr;

/// `InrushArgKind`.
const NONE: i32 = 0;
const TENSOR: i32 = 1;
const TENSORS: i32 = 2;
const INT: i32 = 3;
const INTS: i32 = 4;
const FLOAT: i32 = 5;
const FLOATS: i32 = 6;
const BOOL: i32 = 7;
const BOOLS: i32 = 8;
const STRING: i32 = 9;
const DTYPE: i32 = 10;

/// `InrushArg`.
#[repr(C)]
pub struct CArg {
    kind: i32,
    count: i64,
    value: CValue,
}

/// The union of `InrushArg`.
#[repr(C)]
union CValue {
    tensor: *const DLTensor,
    tensors: *const *const DLTensor,
    integer: i64,
    integers: *const i64,
    float: f64,
    floats: *const f64,
    string: *const c_char,
    dtype: DLDataType,
}

impl CArg {
    /// Returns the number, `None` for one that is left out.
    ///
    /// # Errors
    /// An input error for an argument of another kind.
    pub fn number(&self) -> Result<Option<Scalar>> {
        // SAFETY: all bytes of the union are there, and any are a number.
        let (integer, float) = unsafe { (self.value.integer, self.value.float) };
        match self.kind {
            NONE => Ok(None),
            INT => Ok(Some(Scalar::Int(integer))),
            FLOAT => Ok(Some(Scalar::Float(float))),
            BOOL => Ok(Some(Scalar::Bool(integer != 0))),
            other => Err(Error::input(format!(
                "an argument of kind {other}, where a number is expected"
            ))),
        }
    }
}

/// `InrushOperatorCall`.
#[repr(C)]
pub struct COperatorCall {
    size: usize,
    args: *const CArg,
    num_args: usize,
    results: *const *const DLTensor,
    num_results: usize,
    stream: *mut c_void,
    allocate: unsafe extern "C" fn(*mut COperatorCall, usize, i32, *const i64) -> *const DLTensor,
    fail: unsafe extern "C" fn(*mut COperatorCall, *const c_char),
    state: *mut c_void,
}

/// `InrushOperator`.
#[repr(C)]
#[derive(Copy, Clone)]
pub struct COperator {
    schema: *const c_char,
    device: *const c_char,
    run: Option<unsafe extern "C" fn(*mut c_void, *mut COperatorCall) -> c_int>,
    context: *mut c_void,
}

/// The context of a function, which the host made for any thread.
struct Context(*mut c_void);

// SAFETY: `inrush.h` says that functions are called from any thread, with the context that they were registered with.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

impl Context {
    fn get(&self) -> *mut c_void {
        self.0
    }
}

/// Registers functions in C.
///
/// # Errors
/// An input error for a null pointer, text that is no UTF-8, a malformed schema, another device.
///
/// # Safety
/// The texts end with a zero byte. The functions keep the promises of `inrush.h` for as long as the process lives.
pub unsafe fn register_c(operators: &[COperator]) -> Result<()> {
    for o in operators {
        // SAFETY: the caller's promise.
        let schema = unsafe { text(o.schema, "schema") }?;
        let device = if o.device.is_null() {
            OperatorDevice::CPU
        } else {
            // SAFETY: the caller's promise.
            OperatorDevice::parse(unsafe { text(o.device, "device") }?)?
        };
        let run = (o.run).ok_or_else(|| Error::input(format!("`{schema}` has no function")))?;
        let context = Context(o.context);
        register_operator(schema, device, move |call| {
            // SAFETY: the function keeps the promises of `inrush.h`.
            unsafe { call_c(call, run, context.get()) }
        })?;
    }
    Ok(())
}

/// Registers the operators of a shared library, which exports `inrush_operators`: see `inrush.h`. The library stays loaded.
///
/// # Errors
/// An input error for a library that cannot be loaded or does not export the function; those of [`register_c`].
pub fn load_operators(path: &Path) -> Result<()> {
    let at = |e: libloading::Error| Error::input(e.to_string()).in_file(path.display().to_string());
    // SAFETY: the user names the library to be run.
    let library = unsafe { libloading::Library::new(path) }.map_err(at)?;
    type Operators = unsafe extern "C" fn(*mut usize) -> *const COperator;
    // SAFETY: `inrush.h` declares the function so.
    let operators = unsafe { library.get::<Operators>(b"inrush_operators\0") }.map_err(at)?;
    let mut count = 0;
    // SAFETY: as above.
    let list = unsafe { operators(&raw mut count) };
    let list = match count {
        0 => &[][..],
        _ if list.is_null() => return Err(Error::input("`inrush_operators` gives NULL")),
        // SAFETY: so many are there while the library is loaded.
        _ => unsafe { std::slice::from_raw_parts(list, count) },
    };
    // SAFETY: the library stays loaded.
    let registered = unsafe { register_c(list) };
    std::mem::forget(library);
    registered.map_err(|e| e.in_file(path.display().to_string()))
}

/// Returns a text of C.
///
/// # Safety
/// `p` is null or ends with a zero byte.
unsafe fn text<'a>(p: *const c_char, what: &str) -> Result<&'a str> {
    if p.is_null() {
        return Err(Error::input(format!("the `{what}` of an operator is NULL")));
    }
    // SAFETY: the caller's promise.
    let text = unsafe { CStr::from_ptr(p) };
    let text = text.to_str();
    text.map_err(|_| Error::input(format!("the `{what}` of an operator is not UTF-8")))
}

/// The state of a call of a function in C.
struct State<'a, 'b> {
    call: &'a mut OperatorCall<'b>,
    /// Results that the function allocated; they stay where they are.
    #[allow(clippy::vec_box)] // The function has their addresses.
    made: Vec<Box<DLTensor>>,
    error: Option<Error>,
    message: Option<String>,
}

/// Calls a function in C.
///
/// # Safety
/// It keeps the promises of `inrush.h`.
unsafe fn call_c(
    call: &mut OperatorCall<'_>,
    run: unsafe extern "C" fn(*mut c_void, *mut COperatorCall) -> c_int,
    context: *mut c_void,
) -> Result<()> {
    let zero = |a: &&Arg| matches!(a, Arg::Text(t) if t.contains('\0'));
    if call.args.iter().any(|a| zero(&a)) {
        return Err(Error::unsupported(
            "a text with a zero byte for a function in C",
        ));
    }
    let mut held = Held::default();
    let args: Vec<CArg> = call.args.iter().map(|a| held.arg(a)).collect();
    let results: Vec<DLTensor> = (call.results.iter().flatten()).map(tensor).collect();
    let mut given = results.iter();
    let results: Vec<*const DLTensor> = (call.results.iter())
        .map(|r| match r {
            Some(_) => given.next().map_or(ptr::null(), ptr::from_ref),
            None => ptr::null(),
        })
        .collect();
    let stream = call.stream;
    let mut state = State {
        call,
        made: Vec::new(),
        error: None,
        message: None,
    };
    let mut c = COperatorCall {
        size: size_of::<COperatorCall>(),
        args: args.as_ptr(),
        num_args: args.len(),
        results: results.as_ptr(),
        num_results: results.len(),
        stream,
        allocate,
        fail,
        state: (&raw mut state).cast(),
    };
    // SAFETY: the caller's promise.
    let status = unsafe { run(context, &raw mut c) };
    let message = |s: &mut State<'_, '_>| s.message.take();
    match status {
        0 => Ok(()),
        _ if state.error.is_some() => {
            Err(state.error.take().unwrap_or_else(|| Error::internal("")))
        }
        status => {
            let text =
                message(&mut state).unwrap_or_else(|| format!("it failed with status {status}"));
            Err(match status {
                1 => Error::input(text),
                2 => Error::unsupported(text),
                3 => Error::machine(text),
                _ => Error::internal(text),
            })
        }
    }
}

/// The lists that arguments point to.
#[derive(Default)]
struct Held {
    #[allow(clippy::vec_box)] // Boxes stay where they are as the list grows.
    tensors: Vec<Box<DLTensor>>,
    lists: Vec<Vec<*const DLTensor>>,
    integers: Vec<Vec<i64>>,
    texts: Vec<CString>,
}

impl Held {
    fn tensor(&mut self, t: &OperatorTensor) -> *const DLTensor {
        let made = Box::new(tensor(t));
        let at: *const DLTensor = &raw const *made;
        self.tensors.push(made);
        at
    }

    fn arg(&mut self, a: &Arg) -> CArg {
        let one = |kind, value| CArg {
            kind,
            count: 1,
            value,
        };
        let list = |kind, count: usize, value| CArg {
            kind,
            count: count as i64,
            value,
        };
        match a {
            Arg::None => list(NONE, 0, CValue { integer: 0 }),
            Arg::Tensor(t) => one(
                TENSOR,
                CValue {
                    tensor: self.tensor(t),
                },
            ),
            Arg::Tensors(all) => {
                let pointers: Vec<*const DLTensor> = (all.iter())
                    .map(|t| t.as_ref().map_or(ptr::null(), |t| self.tensor(t)))
                    .collect();
                let value = CValue {
                    tensors: pointers.as_ptr(),
                };
                self.lists.push(pointers);
                list(TENSORS, all.len(), value)
            }
            Arg::Int(v) => one(INT, CValue { integer: *v }),
            Arg::Ints(all) => {
                let integers = all.as_ptr();
                list(INTS, all.len(), CValue { integers })
            }
            Arg::Float(v) => one(FLOAT, CValue { float: *v }),
            Arg::Floats(all) => {
                let floats = all.as_ptr();
                list(FLOATS, all.len(), CValue { floats })
            }
            Arg::Bool(v) => one(
                BOOL,
                CValue {
                    integer: i64::from(*v),
                },
            ),
            Arg::Bools(all) => {
                let words: Vec<i64> = all.iter().map(|v| i64::from(*v)).collect();
                let integers = words.as_ptr();
                self.integers.push(words);
                list(BOOLS, all.len(), CValue { integers })
            }
            Arg::Text(t) => {
                // `call_c` refuses texts with zero bytes.
                let text = CString::new(t.as_str()).unwrap_or_default();
                let string = text.as_ptr();
                self.texts.push(text);
                one(STRING, CValue { string })
            }
            Arg::DType(d) => one(
                DTYPE,
                CValue {
                    dtype: dlpack::data_type(*d),
                },
            ),
        }
    }
}

/// Returns a tensor as DLPack describes it. It points into the lists of `t`.
fn tensor(t: &OperatorTensor) -> DLTensor {
    DLTensor {
        data: t.data.cast(),
        device: t.device,
        ndim: t.sizes.len() as i32,
        dtype: dlpack::data_type(t.dtype),
        shape: t.sizes.as_ptr().cast_mut(),
        strides: t.strides.as_ptr().cast_mut(),
        byte_offset: 0,
    }
}

/// `InrushOperatorCall.allocate`.
unsafe extern "C" fn allocate(
    call: *mut COperatorCall,
    at: usize,
    ndim: i32,
    shape: *const i64,
) -> *const DLTensor {
    // SAFETY: the function passes the call that it was given, whose state lives as long as it runs.
    let state = unsafe { &mut *(*call).state.cast::<State<'_, '_>>() };
    let sizes = match usize::try_from(ndim) {
        Ok(0) => Ok(&[][..]),
        Ok(n) if n <= 64 && !shape.is_null() => {
            // SAFETY: the list has `ndim` entries.
            Ok(unsafe { std::slice::from_raw_parts(shape, n) })
        }
        _ => Err(Error::input(format!("a result of {ndim} dimensions"))),
    };
    let made = sizes.and_then(|sizes| state.call.allocate(at, sizes).map(|t| tensor(t)));
    match made {
        Ok(t) => {
            let made = Box::new(t);
            let at: *const DLTensor = &raw const *made;
            state.made.push(made);
            at
        }
        Err(e) => {
            state.error = Some(e);
            ptr::null()
        }
    }
}

/// `InrushOperatorCall.fail`.
unsafe extern "C" fn fail(call: *mut COperatorCall, message: *const c_char) {
    // SAFETY: as above.
    let state = unsafe { &mut *(*call).state.cast::<State<'_, '_>>() };
    if !message.is_null() {
        // SAFETY: the text ends with a zero byte.
        let text = unsafe { CStr::from_ptr(message) };
        state.message = Some(text.to_string_lossy().into_owned());
    }
}
