//! Functions of the library that allocate their results, on tensors of the host.

use super::function;
use crate::poison;
use crate::tensor::{Recycler, Tensor, Value, contiguous_strides, extent};
use inrush_base::{DType, Error, Result, Scalar};
use inrush_cpu::Pool;
use inrush_library::{DynamicCall, DynamicFunction, Input, Results};
use inrush_program::SizeId;
use inrush_program::parts::{Dynamic, Param};
use std::sync::Arc;

/// Runs a function that allocates its results, for executors whose tensors are elsewhere. `tensors` are its inputs in any layout;
/// `size` evaluates the sizes among its parameters.
///
/// # Errors
/// An unsupported error for a function that the library lacks; those of the function, with its operator.
pub fn run_dynamic(
    d: &Dynamic,
    tensors: Vec<Option<Tensor>>,
    size: &dyn Fn(SizeId) -> Result<i64>,
    pool: &Pool,
) -> Result<Vec<Value>> {
    let recycler = Arc::new(Recycler::default());
    call(d, function(&d.function)?, tensors, size, (pool, &recycler))
}

/// Calls a function of the library.
pub(super) fn call(
    d: &Dynamic,
    function: &DynamicFunction,
    tensors: Vec<Option<Tensor>>,
    size: &dyn Fn(SizeId) -> Result<i64>,
    (pool, recycler): (&Pool, &Arc<Recycler>),
) -> Result<Vec<Value>> {
    let params: Vec<Option<Scalar>> = (d.params.iter())
        .map(|p| match p {
            Param::Num(n) => Ok(Some((*n).into())),
            Param::Size(id) => size(*id).map(|v| Some(Scalar::Int(v))),
            Param::None => Ok(None),
        })
        .collect::<Result<_>>()?;
    let values = results(function, tensors, &params, (pool, recycler));
    match values.map_err(|e| e.context(&d.origin))? {
        values if values.len() == d.outs.len() => Ok(values),
        values => Err(Error::internal(format!(
            "`{}` gives {} results",
            d.function,
            values.len()
        ))),
    }
}

/// Returns the results of a function that allocates them, by its name. Tensors are in any layout.
///
/// # Errors
/// An unsupported error for a function that the library lacks; those of the function.
pub fn library_results(
    name: &str,
    tensors: Vec<Option<Tensor>>,
    params: &[Option<Scalar>],
    pool: &Pool,
) -> Result<Vec<Value>> {
    let recycler = Arc::new(Recycler::default());
    let made = results(function(name)?, tensors, params, (pool, &recycler));
    made.map_err(|e| e.context(format!("`{name}`")))
}

/// Calls a function that allocates its results.
fn results(
    function: &DynamicFunction,
    tensors: Vec<Option<Tensor>>,
    params: &[Option<Scalar>],
    (pool, recycler): (&Pool, &Arc<Recycler>),
) -> Result<Vec<Value>> {
    let tensors: Vec<Option<Tensor>> = (tensors.into_iter())
        .map(|t| t.map(row_major).transpose())
        .collect::<Result<_>>()?;
    let inputs: Vec<Option<Input>> = (tensors.iter())
        .map(|t| t.as_ref().map(input).transpose())
        .collect::<Result<_>>()?;
    let mut made = Made {
        values: Vec::new(),
        recycler,
    };
    let mut call = DynamicCall {
        inputs: &inputs,
        params,
        pool,
        results: &mut made,
    };
    (function.run)(&mut call)?;
    Ok(made.values)
}

/// Returns a tensor as functions take it: row-major, aligned to its elements. It is copied if it is not.
pub(crate) fn row_major(t: Tensor) -> Result<Tensor> {
    let strides = contiguous_strides(&t.sizes);
    let aligned = (t.data() as usize).is_multiple_of(t.dtype.size().clamp(1, 8));
    if t.lies_as(&strides) && aligned {
        Ok(t)
    } else {
        t.with_strides(&strides)
    }
}

/// Returns a row-major tensor as a function reads it.
pub(crate) fn input(t: &Tensor) -> Result<Input<'_>> {
    let start = t.offset * t.dtype.size();
    let bytes = t.numel() * t.dtype.size();
    let bytes = match bytes {
        0 => Some(&[][..]),
        n => t.storage.bytes().get(start..).and_then(|b| b.get(..n)),
    };
    Ok(Input {
        dtype: t.dtype,
        sizes: &t.sizes,
        bytes: bytes.ok_or_else(|| Error::internal("a tensor is larger than its storage"))?,
    })
}

/// Results of a function.
struct Made<'a> {
    values: Vec<Value>,
    recycler: &'a Arc<Recycler>,
}

impl Results for Made<'_> {
    fn tensor(&mut self, dtype: DType, sizes: &[i64], strides: &[i64]) -> Result<&mut [u8]> {
        let bytes = extent(sizes, strides)
            .and_then(|n| n.checked_mul(dtype.size()))
            .ok_or_else(|| Error::input(format!("a tensor of sizes {sizes:?} is too large")))?;
        let storage = self.recycler.take(bytes)?;
        if poison::enabled() {
            // SAFETY: storage of this size, which nothing else has.
            unsafe { poison::fill(storage.as_ptr(), bytes) };
        }
        let address = storage.as_ptr();
        self.values.push(Value::Tensor(Tensor {
            dtype,
            sizes: sizes.to_vec(),
            strides: strides.to_vec(),
            offset: 0,
            storage: Arc::new(storage),
        }));
        if bytes == 0 {
            return Ok(&mut []);
        }
        // SAFETY: fresh storage of this size, which the list holds and nothing else reads before the function has returned.
        // Functions write whole results and read none.
        Ok(unsafe { std::slice::from_raw_parts_mut(address, bytes) })
    }

    fn number(&mut self, value: Scalar) {
        self.values.push(match value {
            Scalar::Int(v) => Value::Int(v),
            other => Value::Scalar(other),
        });
    }
}
