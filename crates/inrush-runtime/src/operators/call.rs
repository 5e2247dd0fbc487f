//! One call of an operator's function.

use super::Registered;
use dlpark::ffi::{DLDevice, DLDeviceType};
use inrush_base::schema::{Kind, Schema};
use inrush_base::{DType, Error, Result, Scalar};
use inrush_program::host::Layout;
use inrush_program::parts::{Argument, Custom};
use inrush_program::{Num, SizeId};
use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// A tensor that a function is given: its elements are in memory of the call's device, from `data` on.
pub struct OperatorTensor {
    pub dtype: DType,
    pub sizes: Vec<i64>,
    /// In elements; never negative.
    pub strides: Vec<i64>,
    /// The element at coordinates zero.
    pub data: *mut u8,
    /// Where the memory is, as DLPack says it.
    pub device: DLDevice,
    /// Keeps memory of the host: clone it to use the tensor after the call. On a GPU arguments are the call's own: copy them to keep
    /// them.
    pub owner: Arc<dyn Any + Send + Sync>,
}

impl fmt::Debug for OperatorTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{:?}", self.dtype, self.sizes)
    }
}

/// A type of elements that a tensor of the host can be seen as.
pub trait Element: Copy + 'static + sealed::Sealed {
    const DTYPE: DType;
}

mod sealed {
    pub trait Sealed {}
}

macro_rules! elements {
    ($($t:ty: $d:ident),*) => {$(
        impl sealed::Sealed for $t {}
        impl Element for $t {
            const DTYPE: DType = DType::$d;
        }
    )*};
}

elements!(f32: F32, f64: F64, i8: I8, i16: I16, i32: I32, i64: I64, u8: U8, u16: U16, u32: U32, u64: U64);

impl OperatorTensor {
    /// Returns the number of elements.
    pub fn numel(&self) -> usize {
        self.sizes.iter().product::<i64>() as usize
    }

    /// Returns true if the elements are in row-major order without gaps.
    pub fn is_contiguous(&self) -> bool {
        let dense = crate::tensor::contiguous_strides(&self.sizes);
        inrush_base::same_strides(&self.sizes, &self.strides, &dense)
    }

    /// Returns the elements in row-major order. `None` for another dtype, other strides, or memory of a GPU.
    pub fn as_slice<T: Element>(&self) -> Option<&[T]> {
        if !self.has::<T>() {
            return None;
        }
        match self.numel() {
            0 => Some(&[]),
            // SAFETY: so many aligned elements of this type are there while the call lasts, which the tensor does not outlive.
            n => Some(unsafe { std::slice::from_raw_parts(self.data.cast::<T>(), n) }),
        }
    }

    /// Returns the elements to be written. `None` as for [`OperatorTensor::as_slice`].
    pub fn as_mut_slice<T: Element>(&mut self) -> Option<&mut [T]> {
        if !self.has::<T>() {
            return None;
        }
        match self.numel() {
            0 => Some(&mut []),
            // SAFETY: as above; tensors that functions may write share no memory with others of the call.
            n => Some(unsafe { std::slice::from_raw_parts_mut(self.data.cast::<T>(), n) }),
        }
    }

    fn has<T: Element>(&self) -> bool {
        let on_host = self.device.device_type == DLDeviceType::CPU;
        self.dtype == T::DTYPE && on_host && self.is_contiguous()
    }
}

/// An argument of a call.
#[derive(Debug)]
pub enum Arg {
    None,
    Tensor(OperatorTensor),
    Tensors(Vec<Option<OperatorTensor>>),
    Int(i64),
    Ints(Vec<i64>),
    Float(f64),
    Floats(Vec<f64>),
    Bool(bool),
    Bools(Vec<bool>),
    Text(String),
    DType(DType),
}

/// A call of an operator.
pub struct OperatorCall<'a> {
    /// One for each parameter of the schema. A tensor that the schema says is written may be written; others may not.
    pub args: Vec<Arg>,
    /// One for each result, lists of tensors flattened: memory to be filled. `None` for a result whose sizes the function decides:
    /// see [`OperatorCall::allocate`].
    pub results: Vec<Option<OperatorTensor>>,
    /// The stream of a call on a GPU, which the function's work goes to; null on a CPU.
    pub stream: *mut c_void,
    make: &'a mut Make<'a>,
}

/// Allocates the result at a position, of the sizes that a function asks for.
pub type Make<'a> = dyn FnMut(usize, &[i64]) -> Result<OperatorTensor> + 'a;

impl<'a> OperatorCall<'a> {
    /// Begins a call, for executors. `make` allocates results whose sizes the function decides.
    pub fn new(
        args: Vec<Arg>,
        results: Vec<Option<OperatorTensor>>,
        stream: *mut c_void,
        make: &'a mut Make<'a>,
    ) -> OperatorCall<'a> {
        OperatorCall {
            args,
            results,
            stream,
            make,
        }
    }

    /// Allocates the result at a position whose sizes the function decides, with unspecified contents.
    ///
    /// # Errors
    /// An input error for a result that is there, and for sizes that are not as the program declares; a machine error for too little
    /// memory.
    pub fn allocate(&mut self, at: usize, sizes: &[i64]) -> Result<&mut OperatorTensor> {
        let place = self.results.get_mut(at);
        let place = place.ok_or_else(|| Error::input(format!("there is no result {at}")))?;
        if place.is_some() {
            return Err(Error::input(format!("result {at} is allocated")));
        }
        Ok(place.insert((self.make)(at, sizes)?))
    }

    /// Returns the tensor that is the argument at a position.
    ///
    /// # Errors
    /// An input error for another argument.
    pub fn tensor(&self, at: usize) -> Result<&OperatorTensor> {
        match self.args.get(at) {
            Some(Arg::Tensor(t)) => Ok(t),
            other => Err(Error::input(format!(
                "argument {at} is {other:?}, no tensor"
            ))),
        }
    }
}

/// Returns sizes and strides of a result that is allocated ahead of the call; `None` if a size is not known then.
///
/// # Errors
/// An input error for negative sizes and strides.
pub fn declared_result(
    l: &Layout,
    known: &dyn Fn(SizeId) -> Option<i64>,
) -> Result<Option<(Vec<i64>, Vec<i64>)>> {
    let all = |ids: &[SizeId]| -> Option<Vec<i64>> { ids.iter().map(|id| known(*id)).collect() };
    let (Some(sizes), Some(strides)) = (all(&l.sizes), all(&l.strides)) else {
        return Ok(None);
    };
    if sizes.iter().chain(&strides).any(|n| *n < 0) {
        return Err(Error::input(format!(
            "a result of sizes {sizes:?} and strides {strides:?}"
        )));
    }
    Ok(Some((sizes, strides)))
}

/// Checks the sizes that a function asks for against those that the program declares.
///
/// # Errors
/// An input error where they differ, or one is negative.
pub fn check_asked_for(
    l: &Layout,
    sizes: &[i64],
    known: &dyn Fn(SizeId) -> Option<i64>,
) -> Result<()> {
    let fits = sizes.len() == l.sizes.len()
        && (sizes.iter().zip(&l.sizes))
            .all(|(n, id)| *n >= 0 && known(*id).is_none_or(|known| known == *n));
    if fits {
        return Ok(());
    }
    Err(Error::input(format!(
        "a result of sizes {sizes:?}, which are not those that the program declares"
    )))
}

/// Builds the arguments of a call by its operator's schema. `tensor` gives the tensor of a slot, by the argument's position.
///
/// # Errors
/// Those of the functions.
pub fn arguments(
    call: &Custom,
    schema: &Schema,
    size: &dyn Fn(SizeId) -> Result<i64>,
    mut tensor: impl FnMut(usize, usize) -> Result<OperatorTensor>,
) -> Result<Vec<Arg>> {
    let mut all = Vec::with_capacity(call.args.len());
    for (at, a) in call.args.iter().enumerate() {
        all.push(match a {
            Argument::None => Arg::None,
            Argument::Tensor(slot) => Arg::Tensor(tensor(at, *slot)?),
            Argument::Tensors(slots) => Arg::Tensors(
                (slots.iter())
                    .map(|s| s.map(|s| tensor(at, s)).transpose())
                    .collect::<Result<_>>()?,
            ),
            Argument::Size(id) => Arg::Int(size(*id)?),
            Argument::Sizes(ids) => {
                Arg::Ints(ids.iter().map(|id| size(*id)).collect::<Result<_>>()?)
            }
            Argument::Num(n) => match Scalar::from(*n) {
                Scalar::Bool(v) => Arg::Bool(v),
                Scalar::Int(v) => Arg::Int(v),
                Scalar::Float(v) => Arg::Float(v),
            },
            Argument::Nums(all) => numbers(all, schema.params.get(at).map(|p| p.kind))?,
            Argument::Text(t) => Arg::Text(t.clone()),
            Argument::DType(d) => Arg::DType(d.0),
        });
    }
    Ok(all)
}

/// Returns a list of numbers. What an empty one is a list of, the schema says.
fn numbers(all: &[Num], kind: Option<Kind>) -> Result<Arg> {
    let of = all.iter().copied().map(Scalar::from);
    Ok(match kind {
        Some(Kind::Floats) => Arg::Floats(
            of.map(|s| match s {
                Scalar::Float(v) => v,
                Scalar::Int(v) => v as f64,
                Scalar::Bool(v) => f64::from(v),
            })
            .collect(),
        ),
        Some(Kind::Bools) => Arg::Bools(of.map(|s| s == Scalar::Bool(true)).collect()),
        _ => Arg::Ints(
            of.map(|s| match s {
                Scalar::Int(v) => Ok(v),
                _ => Err(Error::internal("a list of integers has another number")),
            })
            .collect::<Result<_>>()?,
        ),
    })
}

/// Runs an operator's function. Returns once it has; the results are all there then.
///
/// # Errors
/// Those of the function, with the operator and its Python line; an internal error if it panics.
pub fn invoke(found: &Registered, call: &mut OperatorCall<'_>, origin: &str) -> Result<()> {
    let run = catch_unwind(AssertUnwindSafe(|| (found.run)(call)));
    let name = &found.operator.name;
    let outcome = run.unwrap_or_else(|_| Err(Error::internal(format!("`{name}` panicked"))));
    outcome.map_err(|e| e.context(origin))?;
    match call.results.iter().position(Option::is_none) {
        Some(at) => {
            let e = Error::input(format!("`{name}` did not allocate its result {at}"));
            Err(e.context(origin))
        }
        None => Ok(()),
    }
}
