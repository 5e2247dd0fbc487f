//! Checks of a call: everything that a function relies on is made sure of here, since programs come from files.

use crate::{Call, DynamicCall, Input, Output};
use bytemuck::Pod;
use inrush_base::{DType, Error, Result, Scalar};
use inrush_cpu::Pool;

/// An element type that functions compute with.
pub(crate) trait Element: Pod + Send + Sync {
    const DTYPE: DType;
}

macro_rules! elements {
    ($($t:ty => $dtype:ident),*) => { $(impl Element for $t { const DTYPE: DType = DType::$dtype; })* };
}
elements!(u8 => U8, i8 => I8, u16 => U16, i16 => I16, u32 => U32, i32 => I32, u64 => U64, i64 => I64, f32 => F32, f64 => F64);

/// The parts of a call after its counts were checked.
pub(crate) struct Parts<'a, 'b, const I: usize, const O: usize> {
    pub inputs: &'b [Input<'a>; I],
    pub outputs: &'b mut [Output<'a>; O],
    pub params: &'b [Scalar],
    pub pool: &'b Pool,
    /// True if no output has elements. Other sizes of a batch may then be anything, so that loops over them may not end.
    pub empty: bool,
}

impl<'a, 'b> Call<'a, 'b> {
    /// Splits a call of `I` inputs and `O` outputs into its parts. Refuses tensors whose bytes do not fit their sizes.
    pub(crate) fn parts<const I: usize, const O: usize>(&mut self) -> Result<Parts<'a, '_, I, O>> {
        self.check_tensors()?;
        let empty = self.outputs.iter().all(|o| o.bytes.is_empty());
        let (given, written) = (self.inputs.len(), self.outputs.len());
        let counts = || {
            Error::input(format!(
                "{given} inputs and {written} outputs, not {I} and {O}"
            ))
        };
        Ok(Parts {
            inputs: self.inputs.try_into().map_err(|_| counts())?,
            outputs: (&mut *self.outputs).try_into().map_err(|_| counts())?,
            params: self.params,
            pool: self.pool,
            empty,
        })
    }

    /// Refuses tensors whose bytes do not fit their dtypes and sizes.
    pub(crate) fn check_tensors(&self) -> Result<()> {
        for (i, t) in self.inputs.iter().enumerate() {
            check_bytes(t.dtype, t.sizes, t.bytes).map_err(|e| e.context(format!("input {i}")))?;
        }
        for (i, t) in self.outputs.iter().enumerate() {
            check_bytes(t.dtype, t.sizes, t.bytes).map_err(|e| e.context(format!("output {i}")))?;
        }
        Ok(())
    }
}

impl<'a> DynamicCall<'a, '_> {
    /// Returns the only input, whose bytes fit its sizes.
    pub(crate) fn one_input(&self) -> Result<Input<'a>> {
        let [Some(x)] = self.inputs else {
            let given = self.inputs.len();
            return Err(Error::input(format!("{given} inputs, not 1")));
        };
        check_bytes(x.dtype, x.sizes, x.bytes).map_err(|e| e.context("input 0"))?;
        Ok(*x)
    }

    /// Returns the first input, and the second one unless it is left out. Their bytes fit their sizes.
    pub(crate) fn one_or_two_inputs(&self) -> Result<(Input<'a>, Option<Input<'a>>)> {
        let (x, second) = match self.inputs {
            [Some(x)] => (*x, None),
            [Some(x), second] => (*x, *second),
            all => return Err(Error::input(format!("{} inputs, not 1 or 2", all.len()))),
        };
        for (k, t) in [x].iter().chain(&second).enumerate() {
            check_bytes(t.dtype, t.sizes, t.bytes).map_err(|e| e.context(format!("input {k}")))?;
        }
        Ok((x, second))
    }

    /// Refuses parameters.
    pub(crate) fn no_params(&self) -> Result<()> {
        Params::new(self.params).end()
    }
}

/// Refuses bytes that are not those of a tensor with this dtype and these sizes, or that are not aligned to the dtype.
fn check_bytes(dtype: DType, sizes: &[i64], bytes: &[u8]) -> Result<()> {
    let elements = count(sizes)?;
    if elements.checked_mul(dtype.size()) != Some(bytes.len()) {
        return Err(Error::input(format!(
            "{} bytes for {sizes:?} of {dtype}",
            bytes.len()
        )));
    }
    let align = dtype.size().min(8);
    if !bytes.is_empty() && !bytes.as_ptr().addr().is_multiple_of(align) {
        return Err(Error::input(format!(
            "{dtype} is not aligned to {align} bytes"
        )));
    }
    Ok(())
}

/// Returns the number of elements of a tensor. Refuses negative sizes, and sizes whose product overflows even where a zero
/// is among them, so that products of some of the sizes are safe.
pub(crate) fn count(sizes: &[i64]) -> Result<usize> {
    let mut product = 1usize;
    let mut empty = false;
    for &s in sizes {
        let s =
            usize::try_from(s).map_err(|_| Error::input(format!("negative size in {sizes:?}")))?;
        if s == 0 {
            empty = true;
            continue;
        }
        product = product
            .checked_mul(s)
            .filter(|p| *p <= isize::MAX as usize / 16)
            .ok_or_else(|| Error::input(format!("{sizes:?} has too many elements")))?;
    }
    Ok(if empty { 0 } else { product })
}

/// Returns a size that [`count`] has accepted.
pub(crate) fn size(sizes: &[i64], dim: usize) -> usize {
    usize::try_from(sizes[dim]).unwrap_or(0)
}

impl<'a> Input<'a> {
    /// Returns the elements. Refuses another dtype.
    pub(crate) fn elements<T: Element>(&self) -> Result<&'a [T]> {
        self.check_dtype(T::DTYPE)?;
        self.elements_as()
    }

    /// Returns the elements as values of a type that represents them. Refuses one of another size.
    pub(crate) fn elements_as<T: Pod>(&self) -> Result<&'a [T]> {
        check_width::<T>(self.dtype)?;
        // Empty tensors need no alignment.
        if self.bytes.is_empty() {
            return Ok(&[]);
        }
        bytemuck::try_cast_slice(self.bytes).map_err(|e| Error::input(format!("input: {e}")))
    }

    /// Refuses another dtype.
    pub(crate) fn check_dtype(&self, want: DType) -> Result<()> {
        if self.dtype == want {
            return Ok(());
        }
        Err(Error::input(format!("input of {}, not {want}", self.dtype)))
    }

    /// Refuses other sizes.
    pub(crate) fn check_sizes(&self, want: &[i64]) -> Result<()> {
        if self.sizes == want {
            return Ok(());
        }
        Err(Error::input(format!(
            "input of {:?}, not {want:?}",
            self.sizes
        )))
    }
}

impl Output<'_> {
    /// Returns the elements. Refuses another dtype.
    pub(crate) fn elements<T: Element>(&mut self) -> Result<&mut [T]> {
        if self.dtype != T::DTYPE {
            return Err(Error::input(format!(
                "output of {}, not {}",
                self.dtype,
                T::DTYPE
            )));
        }
        self.elements_as()
    }

    /// Returns the elements as values of a type that represents them. Refuses one of another size.
    pub(crate) fn elements_as<T: Pod>(&mut self) -> Result<&mut [T]> {
        check_width::<T>(self.dtype)?;
        if self.bytes.is_empty() {
            return Ok(&mut []);
        }
        bytemuck::try_cast_slice_mut(self.bytes).map_err(|e| Error::input(format!("output: {e}")))
    }

    /// Refuses other sizes.
    pub(crate) fn check_sizes(&self, want: &[i64]) -> Result<()> {
        if self.sizes == want {
            return Ok(());
        }
        Err(Error::input(format!(
            "output of {:?}, not {want:?}",
            self.sizes
        )))
    }
}

/// Refuses a type that does not have the size of a dtype's elements.
fn check_width<T>(dtype: DType) -> Result<()> {
    if size_of::<T>() == dtype.size() {
        return Ok(());
    }
    Err(Error::internal(format!(
        "{} bytes for an element of {dtype}",
        size_of::<T>()
    )))
}

/// A parameter, which some functions let be left out.
pub(crate) trait Given: Copy {
    fn given(self) -> Option<Scalar>;
}

impl Given for Scalar {
    fn given(self) -> Option<Scalar> {
        Some(self)
    }
}

impl Given for Option<Scalar> {
    fn given(self) -> Option<Scalar> {
        self
    }
}

/// Parameters of a call, read from the first on.
pub(crate) struct Params<'a, P = Scalar> {
    rest: &'a [P],
}

impl<'a, P: Given> Params<'a, P> {
    pub(crate) fn new(params: &'a [P]) -> Self {
        Params { rest: params }
    }

    fn next(&mut self, name: &str) -> Result<Scalar> {
        self.optional(name)?
            .ok_or_else(|| Error::input(format!("parameter `{name}` is missing")))
    }

    /// Reads a parameter that may be left out.
    fn optional(&mut self, name: &str) -> Result<Option<Scalar>> {
        let (first, rest) = (self.rest.split_first())
            .ok_or_else(|| Error::input(format!("parameter `{name}` is missing")))?;
        self.rest = rest;
        Ok(first.given())
    }

    /// Reads an integer that may be left out.
    pub(crate) fn optional_int(&mut self, name: &str) -> Result<Option<i64>> {
        match self.rest.first().map(|p| p.given()) {
            Some(None) => self.optional(name).map(|_| None),
            _ => self.int(name).map(Some),
        }
    }

    /// Reads a dimension that may be left out, of a tensor of rank `rank`.
    pub(crate) fn optional_dim(&mut self, rank: usize) -> Result<Option<usize>> {
        match self.rest.first().map(|p| p.given()) {
            Some(None) => self.optional("dim").map(|_| None),
            _ => self.dim(rank).map(Some),
        }
    }

    /// Reads an integer.
    pub(crate) fn int(&mut self, name: &str) -> Result<i64> {
        match self.next(name)? {
            Scalar::Int(v) => Ok(v),
            other => Err(Error::input(format!(
                "parameter `{name}` is {other}, not an integer"
            ))),
        }
    }

    /// Reads a truth value; 0 and 1 are taken too.
    pub(crate) fn flag(&mut self, name: &str) -> Result<bool> {
        match self.next(name)? {
            Scalar::Bool(v) => Ok(v),
            Scalar::Int(v @ (0 | 1)) => Ok(v == 1),
            other => Err(Error::input(format!(
                "parameter `{name}` is {other}, not true or false"
            ))),
        }
    }

    /// Reads a dimension of a tensor of rank `rank`; negative ones count from the end.
    pub(crate) fn dim(&mut self, rank: usize) -> Result<usize> {
        let dim = self.int("dim")?;
        let signed = i64::try_from(rank).unwrap_or(i64::MAX);
        let at = if dim < 0 {
            dim.checked_add(signed)
        } else {
            Some(dim)
        };
        at.filter(|d| (0..signed).contains(d))
            .and_then(|d| usize::try_from(d).ok())
            .ok_or_else(|| Error::input(format!("dimension {dim} of a tensor of rank {rank}")))
    }

    /// Returns the number of parameters that were not read yet.
    pub(crate) fn left(&self) -> usize {
        self.rest.len()
    }

    /// Refuses parameters that were not read.
    pub(crate) fn end(self) -> Result<()> {
        if self.rest.is_empty() {
            return Ok(());
        }
        Err(Error::input(format!(
            "{} parameters too many",
            self.rest.len()
        )))
    }
}

/// Refuses a dtype that a function does not take.
pub(crate) fn refuse_dtype(dtype: DType) -> Error {
    Error::input(format!("elements of {dtype} are not taken"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_that_no_memory_holds_are_refused() {
        assert_eq!(count(&[]).unwrap(), 1);
        assert_eq!(count(&[3, 0, 5]).unwrap(), 0);
        assert_eq!(count(&[3, 5]).unwrap(), 15);
        assert!(count(&[-1]).is_err());
        assert!(count(&[i64::MAX, 4]).is_err());
        assert!(count(&[0, i64::MAX, 4]).is_err());
    }

    #[test]
    fn bytes_must_fit_the_sizes() {
        let bytes = [0u64; 4];
        let bytes: &[u8] = bytemuck::cast_slice(&bytes);
        assert!(check_bytes(DType::F32, &[8], bytes).is_ok());
        assert!(check_bytes(DType::F32, &[7], bytes).is_err());
        assert!(check_bytes(DType::F32, &[7], &bytes[2..30]).is_err());
        assert!(check_bytes(DType::F32, &[0], &[]).is_ok());
    }
}
