//! Calls of library functions, on the buffers of a program.

use crate::parts::{input, row_major};
use crate::tensor::{contiguous_strides, extent};
use inrush_base::{DType, Error, Result, Scalar};
use inrush_cpu::Pool;
use inrush_library::{Call, Function, Input, Output};
use inrush_program::{BufferId, InputType, LibraryCall, Operand, Place, Program, SizeId};

/// Finds a function.
///
/// # Errors
/// An unsupported error for one that this library lacks.
fn find(name: &str) -> Result<&'static Function> {
    inrush_library::find(name).ok_or_else(|| {
        Error::unsupported(format!(
            "the library function `{name}`, which the program calls and this version of the runtime lacks"
        ))
    })
}

/// Calls a function of the library by its name. Inputs are in any layout, outputs row-major and of the caller's memory.
///
/// # Errors
/// An unsupported error for a function that the library lacks; an input error for outputs that are not row-major or share memory
/// with another operand; those of the function.
///
/// # Safety
/// Nothing else accesses the memory of the outputs during the call.
pub unsafe fn run_library(
    name: &str,
    inputs: Vec<crate::Tensor>,
    outputs: &[crate::Tensor],
    params: &[Scalar],
    pool: &Pool,
) -> Result<()> {
    let function = find(name)?;
    let at = |e: Error| e.context(format!("`{name}`"));
    let range = |t: &crate::Tensor| {
        let bytes = extent(&t.sizes, &t.strides).and_then(|n| n.checked_mul(t.dtype.size()));
        let begin = t.data() as usize;
        let bytes = bytes.ok_or_else(|| at(Error::input("a tensor that is too large")))?;
        Ok(begin..begin.saturating_add(bytes))
    };
    let read: Vec<_> = inputs.iter().map(range).collect::<Result<_>>()?;
    let written: Vec<_> = outputs.iter().map(range).collect::<Result<_>>()?;
    for (k, (t, own)) in outputs.iter().zip(&written).enumerate() {
        if !t.lies_as(&contiguous_strides(&t.sizes)) {
            let text = format!(
                "output {k} has strides {:?}, it must be row-major",
                t.strides
            );
            return Err(at(Error::input(text)));
        }
        let shares = |other: &std::ops::Range<usize>| {
            !own.is_empty() && !other.is_empty() && own.start < other.end && other.start < own.end
        };
        if written[k + 1..].iter().chain(&read).any(shares) {
            let text = format!("output {k} shares memory with another tensor of the call");
            return Err(at(Error::input(text)));
        }
    }
    let inputs: Vec<crate::Tensor> = (inputs.into_iter()).map(row_major).collect::<Result<_>>()?;
    let inputs: Vec<Input> = inputs.iter().map(input).collect::<Result<_>>()?;
    let mut outputs: Vec<Output> = (outputs.iter().zip(&written))
        .map(|(t, own)| Output {
            dtype: t.dtype,
            sizes: &t.sizes,
            bytes: match own.len() {
                0 => &mut [],
                // SAFETY: the tensor's storage has these bytes, which no other operand has and nothing else accesses.
                n => unsafe { std::slice::from_raw_parts_mut(t.data(), n) },
            },
        })
        .collect();
    let mut call = Call {
        inputs: &inputs,
        outputs: &mut outputs,
        params,
        pool,
    };
    (function.run)(&mut call).map_err(at)
}

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
        let function = find(&c.function)?;
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
