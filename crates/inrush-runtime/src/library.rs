//! Calls of library functions, on the buffers of a program.

use crate::tensor::extent;
use inrush_base::{DType, Error, Result, Scalar};
use inrush_cpu::Pool;
use inrush_library::{Call, Function, Input, Output};
use inrush_program::{BufferId, InputType, LibraryCall, Operand, Place, Program, SizeId};

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
    /// Reads the sizes of an operand, which must be within its buffer and the memory that the buffer is in.
    fn new(program: &Program, o: &Operand, sizes: &[i64]) -> Result<Tensor> {
        let buffer = &program.buffers[o.buffer as usize];
        let dtype = buffer.dtype.0;
        let own: Vec<i64> = o.sizes.iter().map(|s| sizes[s.0 as usize]).collect();
        let bytes = (own.iter())
            .try_fold(dtype.size(), |p, n| {
                p.checked_mul(usize::try_from(*n).ok()?)
            })
            .filter(|n| locate(program, o.buffer, sizes).is_some_and(|l| *n <= l.room));
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

/// Where a buffer is: the memory, the bytes before the buffer there, and the bytes from its start that the program says are there.
struct Located<'a> {
    place: &'a Place,
    from: usize,
    room: usize,
}

/// Finds the memory of a buffer. Functions of the library trust it, and a program may come from a file; `None` where that is damaged.
fn locate<'a>(program: &'a Program, buffer: BufferId, sizes: &[i64]) -> Option<Located<'a>> {
    let size = |id: SizeId| usize::try_from(*sizes.get(id.0 as usize)?).ok();
    let (mut at, mut from, mut room) = (buffer, 0usize, usize::MAX);
    loop {
        let b = program.buffers.get(at as usize)?;
        room = room.min(size(b.bytes)?.checked_sub(from)?);
        let place = &b.place;
        match place {
            // An alias comes after its storage.
            Place::Alias { of, offset } if *of < at => {
                from = from.checked_add(size(*offset)?)?;
                at = *of;
                continue;
            }
            Place::Alias { .. } => return None,
            Place::Arena { offset } => {
                from = from.checked_add(size(*offset)?)?;
                room = room.min(size(program.arena_bytes)?.checked_sub(from)?);
            }
            Place::Input { input } => {
                let whole = input_bytes(program, *input, sizes)?;
                room = room.min(whole.checked_sub(from)?);
            }
            // The executor allocates an output for the largest of its buffers.
            Place::Output { .. } | Place::Weight(_) | Place::Persistent { .. } => {}
        }
        return Some(Located { place, from, room });
    }
}

/// Returns the bytes of an input, from its first to its last element.
fn input_bytes(program: &Program, input: u32, sizes: &[i64]) -> Option<usize> {
    let InputType::Tensor {
        dtype,
        sizes: of,
        strides,
    } = &program.inputs.get(input as usize)?.ty
    else {
        return None;
    };
    let all = |ids: &[SizeId]| -> Option<Vec<i64>> {
        let one = |id: &SizeId| sizes.get(id.0 as usize).copied().filter(|n| *n >= 0);
        ids.iter().map(one).collect()
    };
    extent(&all(of)?, &all(strides)?)?.checked_mul(dtype.0.size())
}

/// Checks that what a function writes shares no bytes with its other operands.
fn check_apart(program: &Program, call: [&[Tensor]; 2], sizes: &[i64]) -> Result<()> {
    let damaged = |what: &str| Error::input(format!("the program is damaged: {what}"));
    let located = |t: &Tensor| {
        let found = locate(program, t.buffer, sizes);
        found
            .map(|l| (l, t.bytes))
            .ok_or_else(|| damaged("a buffer of a library function"))
    };
    let [read, written] = call.map(|all| all.iter().map(located).collect::<Result<Vec<_>>>());
    let (read, written) = (read?, written?);
    for (k, (out, bytes)) in written.iter().enumerate() {
        let shares = |(other, n): &(Located, usize)| {
            // An empty tensor has no bytes to share.
            same_memory(out.place, other.place)
                && (*n > 0 && *bytes > 0)
                && out.from < other.from + n
                && other.from < out.from + bytes
        };
        if written[k + 1..].iter().chain(&read).any(shares) {
            return Err(damaged("a library function writes what it reads"));
        }
    }
    Ok(())
}

/// Returns true for two places in one memory.
fn same_memory(a: &Place, b: &Place) -> bool {
    matches!((a, b), (Place::Arena { .. }, Place::Arena { .. })) || a == b
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
        let (inputs, outputs) = (all(&c.inputs)?, all(&c.outputs)?);
        check_apart(program, [&inputs, &outputs], sizes)?;
        Ok(PlannedLibrary {
            function,
            params: c.params.iter().map(|p| (*p).into()).collect(),
            inputs,
            outputs,
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
                    // SAFETY: as above; outputs share no bytes with each other or with inputs (checked likewise).
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
