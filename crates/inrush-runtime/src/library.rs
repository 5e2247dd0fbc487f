//! Calls of library functions, on the buffers of a program.

use inrush_base::{DType, Error, Result, Scalar};
use inrush_cpu::Pool;
use inrush_library::{Call, Function, Input, Output};
use inrush_program::{BufferId, LibraryCall, Operand, Program};

/// A library call with its function and sizes.
pub(crate) struct PlannedLibrary {
    function: &'static Function,
    params: Vec<Scalar>,
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
    /// Names of its operators, for errors.
    origins: String,
}

/// A row-major tensor in a buffer.
struct Tensor {
    buffer: BufferId,
    dtype: DType,
    sizes: Vec<i64>,
    bytes: usize,
}

impl Tensor {
    /// Reads the sizes of an operand, which must be within its buffer.
    fn new(program: &Program, o: &Operand, sizes: &[i64]) -> Result<Tensor> {
        let buffer = &program.buffers[o.buffer as usize];
        let dtype = buffer.dtype.0;
        let own: Vec<i64> = o.sizes.iter().map(|s| sizes[s.0 as usize]).collect();
        let bytes = (own.iter())
            .try_fold(dtype.size(), |p, n| {
                p.checked_mul(usize::try_from(*n).ok()?)
            })
            .filter(|n| i64::try_from(*n).is_ok_and(|n| n <= sizes[buffer.bytes.0 as usize]));
        let bytes = bytes.ok_or_else(|| {
            Error::input(format!(
                "the program is damaged: a library function takes more than `{}` holds",
                buffer.name
            ))
        })?;
        Ok(Tensor {
            buffer: o.buffer,
            dtype,
            sizes: own,
            bytes,
        })
    }

    /// Returns where the tensor is; an error where its elements are not aligned.
    fn at(&self, pointers: &[*mut u8]) -> Result<*mut u8> {
        if self.bytes == 0 {
            return Ok(std::ptr::without_provenance_mut(64));
        }
        let at = pointers[self.buffer as usize];
        if at.is_null() || !(at as usize).is_multiple_of(self.dtype.size()) {
            return Err(Error::internal(
                "a library function got memory that is not aligned",
            ));
        }
        Ok(at)
    }
}

impl PlannedLibrary {
    /// Finds the function and evaluates the sizes of its tensors.
    ///
    /// # Errors
    /// An unsupported error for a function that this library lacks, an input error for sizes beyond their buffers.
    pub(crate) fn new(program: &Program, c: &LibraryCall, sizes: &[i64]) -> Result<PlannedLibrary> {
        let function = inrush_library::find(&c.function).ok_or_else(|| {
            Error::unsupported(format!(
                "the library function `{}`, which the program calls and this version of the runtime lacks",
                c.function
            ))
        })?;
        let all = |operands: &[Operand]| -> Result<Vec<Tensor>> {
            let one = |o: &Operand| Tensor::new(program, o, sizes);
            operands.iter().map(one).collect()
        };
        Ok(PlannedLibrary {
            function,
            params: c.params.iter().map(|p| (*p).into()).collect(),
            inputs: all(&c.inputs)?,
            outputs: all(&c.outputs)?,
            origins: c.origins.join(", "),
        })
    }

    /// Runs the function. `pointers` are the addresses of the program's buffers.
    pub(crate) fn run(&self, pointers: &[*mut u8], pool: &Pool) -> Result<()> {
        let inputs: Vec<Input> = (self.inputs.iter())
            .map(|t| {
                let at = t.at(pointers)?;
                Ok(Input {
                    dtype: t.dtype,
                    sizes: &t.sizes,
                    // SAFETY: the buffer has this many bytes (checked when the call was planned), and only this step runs.
                    bytes: unsafe { std::slice::from_raw_parts(at, t.bytes) },
                })
            })
            .collect::<Result<_>>()?;
        let mut outputs: Vec<Output> = (self.outputs.iter())
            .map(|t| {
                let at = t.at(pointers)?;
                Ok(Output {
                    dtype: t.dtype,
                    sizes: &t.sizes,
                    // SAFETY: as above; the plan's verifier has outputs share no bytes with each other or with inputs.
                    bytes: unsafe { std::slice::from_raw_parts_mut(at, t.bytes) },
                })
            })
            .collect::<Result<_>>()?;
        let mut call = Call {
            inputs: &inputs,
            outputs: &mut outputs,
            params: &self.params,
            pool,
        };
        (self.function.run)(&mut call)
            .map_err(|e| e.context(format!("`{}` ({})", self.function.name, self.origins)))
    }
}
