//! Calls whose outputs a host allocates, such as a process of PyTorch: tensors there own their memory and may be views of each other.

use crate::exec::{Prepared, copy_inputs};
use crate::model::Model;
use crate::planned::{CallShape, OutputPlace, PlannedOutput};
use crate::poison;
use crate::tensor::{ALIGN, Storage, Tensor, Value, extent};
use inrush_base::{DType, Error, Result, Scalar};
use inrush_program::InputType;
use std::sync::Arc;

/// Allocates an output: its position, dtype, sizes and strides in elements. Returns the address of its first element.
pub type Memory<'a> = dyn FnMut(usize, DType, &[i64], &[i64]) -> Result<*mut u8> + 'a;

/// An output of a call.
#[derive(Clone, PartialEq, Debug)]
pub enum HostedOutput {
    /// It is in the memory that was allocated for it.
    Own,
    /// It is a view of an input's storage, with an offset in elements from the storage's start.
    Input {
        input: usize,
        view: View,
    },
    /// It is a view of an output that was allocated, with an offset in elements from that one's first element.
    Output {
        output: usize,
        view: View,
    },
    Int(i64),
    Scalar(Scalar),
    /// Nothing: the new contents of an input or weight, which are where that is.
    Mutation,
    /// `None`.
    None,
}

/// Sizes, strides and offset of a tensor in a storage, in elements.
#[derive(Clone, PartialEq, Debug)]
pub struct View {
    pub sizes: Vec<i64>,
    pub strides: Vec<i64>,
    pub offset: i64,
}

impl Model {
    /// Runs the model and writes its outputs into memory that the host allocates with `memory`. Kernels write straight into it
    /// if it starts at a multiple of 64 bytes.
    ///
    /// # Errors
    /// Those of [`Model::run`], and those of `memory`.
    ///
    /// # Safety
    /// The memory that `memory` returns holds every coordinate of the sizes that it was passed, and nothing else reads or writes
    /// it during the call.
    pub unsafe fn run_hosted(
        &self,
        inputs: &[Value],
        memory: &mut Memory<'_>,
    ) -> Result<Vec<HostedOutput>> {
        self.bound.pool.check_fork()?;
        if self.parts.is_some() {
            let results = self.run(inputs)?;
            // SAFETY: the caller's promise.
            return unsafe { self.hand_over(&results, inputs, memory) };
        }
        self.with_frame(|frame| {
            let p = self.bind(frame, inputs)?;
            let copies = copy_inputs(self.program(), &p.sizes, inputs)?;
            let planned = (0..self.program().outputs.len())
                .map(|k| CallShape::output(self.program(), k, &p.sizes))
                .collect::<Result<Vec<_>>>()?;
            if poison::enabled() || !self.is_direct_hosted(&p, &planned, &copies) {
                let _guard = self.lock_state();
                let results = self.call(&p, frame, inputs)?;
                // SAFETY: the caller's promise.
                return unsafe { self.hand_over(&results, inputs, memory) };
            }
            let mut addresses = Vec::with_capacity(planned.len());
            for (k, o) in planned.iter().enumerate() {
                addresses.push(match o {
                    PlannedOutput::Tensor {
                        dtype,
                        sizes,
                        strides,
                        place: OutputPlace::Own,
                    } => memory(k, *dtype, sizes, strides)?,
                    _ => std::ptr::null_mut(),
                });
            }
            let _guard = self.lock_state();
            if addresses
                .iter()
                .all(|a| (*a as usize).is_multiple_of(ALIGN))
            {
                frame.outputs.clear();
                frame.outputs.extend(&addresses);
                self.issue_on(&p, frame, inputs, &copies, &[])?;
            } else {
                let results = self.call(&p, frame, inputs)?;
                for (result, to) in results.iter().zip(&addresses) {
                    if let (Value::Tensor(t), false) = (result, to.is_null()) {
                        // SAFETY: the caller's promise.
                        unsafe { write(t, *to) };
                    }
                }
            }
            (planned.into_iter())
                .map(|o| placed(o, inputs))
                .collect::<Result<Vec<_>>>()
        })
    }

    /// Returns true if kernels can write all outputs into memory of exactly the bytes that sizes and strides say, and outputs that
    /// are views have the dtype of the tensor that they are a view of, which is not a copy that was made because of its layout.
    fn is_direct_hosted(
        &self,
        p: &Prepared,
        planned: &[PlannedOutput],
        copies: &[Option<Tensor>],
    ) -> bool {
        let of_input = |k: usize| match &self.program().inputs[k].ty {
            InputType::Tensor { dtype, .. } => Some(dtype.0),
            _ => None,
        };
        let of_output = |k: usize| match &planned[k] {
            PlannedOutput::Tensor { dtype, .. } => Some(*dtype),
            _ => None,
        };
        planned.iter().enumerate().all(|(k, o)| match o {
            PlannedOutput::Tensor {
                dtype,
                sizes,
                strides,
                place,
            } => match *place {
                OutputPlace::Own => {
                    let bytes = extent(sizes, strides).and_then(|n| n.checked_mul(dtype.size()));
                    bytes.is_some_and(|n| p.output_bytes[k] <= n)
                }
                OutputPlace::Input { input, .. } => {
                    of_input(input) == Some(*dtype) && !matches!(copies.get(input), Some(Some(_)))
                }
                OutputPlace::Output { output, .. } => of_output(output) == Some(*dtype),
            },
            _ => true,
        })
    }

    /// Copies results into memory of the host, but for those that share an input's storage.
    ///
    /// # Safety
    /// As for [`Model::run_hosted`].
    unsafe fn hand_over(
        &self,
        results: &[Value],
        inputs: &[Value],
        memory: &mut Memory<'_>,
    ) -> Result<Vec<HostedOutput>> {
        let mut out: Vec<HostedOutput> = Vec::with_capacity(results.len());
        let program = self.program();
        for (k, (result, spec)) in results.iter().zip(&program.outputs).enumerate() {
            out.push(match result {
                Value::Int(v) => HostedOutput::Int(*v),
                Value::Scalar(v) => HostedOutput::Scalar(*v),
                Value::None if matches!(spec, inrush_program::Output::Mutation) => {
                    HostedOutput::Mutation
                }
                Value::None => HostedOutput::None,
                Value::Tensor(t) => match base(t, inputs, &results[..k], &out) {
                    Some(view) => view,
                    None => {
                        let to = memory(k, t.dtype, &t.sizes, &t.strides)?;
                        // SAFETY: the caller's promise.
                        unsafe { write(t, to) };
                        HostedOutput::Own
                    }
                },
            });
        }
        Ok(out)
    }
}

/// Returns what became of an output that was planned.
fn placed(o: PlannedOutput, inputs: &[Value]) -> Result<HostedOutput> {
    Ok(match o {
        PlannedOutput::Int(v) => HostedOutput::Int(v),
        PlannedOutput::Scalar(v) => HostedOutput::Scalar(v),
        PlannedOutput::Mutation => HostedOutput::Mutation,
        PlannedOutput::None => HostedOutput::None,
        PlannedOutput::Tensor {
            sizes,
            strides,
            place,
            ..
        } => match place {
            OutputPlace::Own => HostedOutput::Own,
            OutputPlace::Output { output, offset } => HostedOutput::Output {
                output,
                view: View {
                    sizes,
                    strides,
                    offset,
                },
            },
            OutputPlace::Input { input, offset } => {
                let Some(Value::Tensor(t)) = inputs.get(input) else {
                    return Err(Error::internal("an output is a view of no tensor"));
                };
                HostedOutput::Input {
                    input,
                    view: View {
                        sizes,
                        strides,
                        offset: t.offset as i64 + offset,
                    },
                }
            }
        },
    })
}

/// Returns a result as a view of an input or of an earlier result of the host's, if it shares its storage.
fn base(
    t: &Tensor,
    inputs: &[Value],
    results: &[Value],
    done: &[HostedOutput],
) -> Option<HostedOutput> {
    let same = |v: &Value| match v {
        Value::Tensor(o) if shares(&t.storage, &o.storage) && o.dtype == t.dtype => Some(o.offset),
        _ => None,
    };
    let view = |offset: i64| View {
        sizes: t.sizes.clone(),
        strides: t.strides.clone(),
        offset,
    };
    let of_input = inputs.iter().position(|v| same(v).is_some());
    if let Some(input) = of_input {
        return Some(HostedOutput::Input {
            input,
            view: view(t.offset as i64),
        });
    }
    let (output, at) = (results.iter().enumerate())
        .filter(|(k, _)| done[*k] == HostedOutput::Own)
        .find_map(|(k, v)| Some((k, same(v)?)))?;
    // A host's tensor holds its own elements only.
    let Value::Tensor(whole) = &results[output] else {
        return None;
    };
    let have = extent(&whole.sizes, &whole.strides)?;
    let offset = t.offset.checked_sub(at)?;
    let need = extent(&t.sizes, &t.strides)?.checked_add(offset)?;
    (need <= have).then(|| HostedOutput::Output {
        output,
        view: view(offset as i64),
    })
}

/// Returns true if two tensors are in one storage that has bytes.
fn shares(a: &Arc<Storage>, b: &Arc<Storage>) -> bool {
    Arc::ptr_eq(a, b) && !a.is_empty()
}

/// Copies the elements of a tensor to an address, with its strides.
///
/// # Safety
/// `to` is the first element of memory that holds every coordinate at these strides.
unsafe fn write(t: &Tensor, to: *mut u8) {
    let bytes = extent(&t.sizes, &t.strides).map_or(0, |n| n * t.dtype.size());
    if bytes > 0 {
        // SAFETY: the caller's promise; the tensor is inside its storage, and the memory is new.
        unsafe { std::ptr::copy_nonoverlapping(t.data(), to, bytes) };
    }
}
