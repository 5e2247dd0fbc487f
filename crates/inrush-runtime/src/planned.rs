//! Calls on memory that the caller owns: for a host that brings tensors of its own, such as a PyTorch process.

use crate::bind;
use crate::exec::Prepared;
use crate::model::{Model, root};
use crate::poison;
use crate::tensor::{Storage, extent};
use inrush_base::{DType, Error, Result, Scalar};
use inrush_program::{InputType, Output, Place, Program, Reads, SizeId};
use std::sync::Arc;

/// A prepared call: all that depends only on the values of its symbols.
pub struct CallPlan {
    prepared: Arc<Prepared>,
    inputs: Vec<Option<PlannedInput>>,
    outputs: Vec<PlannedOutput>,
}

/// A tensor that a call takes.
#[derive(Clone, PartialEq, Debug)]
pub struct PlannedInput {
    pub dtype: DType,
    pub sizes: Vec<i64>,
    /// In elements. Those of dimensions of size one may differ.
    pub strides: Vec<i64>,
    /// How the program reads its memory.
    pub reads: Reads,
}

/// An output of the program at these sizes.
#[derive(Clone, PartialEq, Debug)]
pub enum PlannedOutput {
    Tensor {
        dtype: DType,
        sizes: Vec<i64>,
        /// In elements.
        strides: Vec<i64>,
        place: OutputPlace,
    },
    Int(i64),
    Scalar(Scalar),
    /// The call writes it into an input.
    Mutation,
    None,
}

/// Where an output's elements are.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum OutputPlace {
    /// In memory that the caller passes at this position, at least as large as sizes and strides say.
    Own,
    /// In an input's memory, this many elements after its first.
    Input { input: usize, offset: i64 },
    /// In the memory of an earlier output, likewise.
    Output { output: usize, offset: i64 },
}

impl CallPlan {
    /// By position; `None` for inputs that are no tensors.
    pub fn inputs(&self) -> &[Option<PlannedInput>] {
        &self.inputs
    }

    pub fn outputs(&self) -> &[PlannedOutput] {
        &self.outputs
    }

    /// Returns the number of threads that work was partitioned for. Calls on another number are correct but slower: plan again.
    pub fn threads(&self) -> usize {
        self.prepared.threads
    }

    /// Returns the bytes of intermediates.
    pub fn arena_bytes(&self) -> usize {
        self.prepared.arena_bytes
    }
}

/// Sizes of a call and layouts of its inputs and outputs, from the values of the program's symbols.
pub struct CallShape {
    /// Values of all size lines.
    pub sizes: Vec<i64>,
    /// By position; `None` for inputs that are no tensors.
    pub inputs: Vec<Option<PlannedInput>>,
    pub outputs: Vec<PlannedOutput>,
}

impl CallShape {
    /// Evaluates the sizes, and checks ranges and guards.
    ///
    /// # Errors
    /// An input error when a symbol is outside its range or a guard does not hold.
    pub fn of(p: &Program, symbols: &[i64]) -> Result<CallShape> {
        if symbols.len() != p.symbols.len() {
            return Err(Error::internal(format!(
                "{} symbols given, the program has {}",
                symbols.len(),
                p.symbols.len()
            )));
        }
        for (s, v) in p.symbols.iter().zip(symbols) {
            if *v < s.lower || *v > s.upper {
                return Err(Error::input(format!(
                    "`{}` is {v}, outside {}..={}",
                    s.name, s.lower, s.upper
                )));
            }
        }
        let sizes = bind::sizes(p, symbols)?;
        bind::check(p, &sizes, symbols, &[])?;
        let outputs = (0..p.outputs.len())
            .map(|k| Self::output(p, k, &sizes))
            .collect::<Result<_>>()?;
        let value = |id: &SizeId| sizes[id.0 as usize];
        let inputs = (p.inputs.iter())
            .map(|i| match &i.ty {
                InputType::Tensor {
                    dtype,
                    sizes,
                    strides,
                } => Some(PlannedInput {
                    dtype: dtype.0,
                    sizes: sizes.iter().map(value).collect(),
                    strides: strides.iter().map(value).collect(),
                    reads: i.reads,
                }),
                _ => None,
            })
            .collect();
        Ok(CallShape {
            sizes,
            inputs,
            outputs,
        })
    }

    /// Evaluates the layout and place of an output.
    pub(crate) fn output(p: &Program, k: usize, sizes: &[i64]) -> Result<PlannedOutput> {
        let value = |id: &SizeId| sizes[id.0 as usize];
        Ok(match &p.outputs[k] {
            Output::Int { value: v } => PlannedOutput::Int(value(v)),
            Output::Scalar { value } => PlannedOutput::Scalar((*value).into()),
            Output::Mutation => PlannedOutput::Mutation,
            Output::None => PlannedOutput::None,
            Output::Tensor {
                buffer,
                dtype,
                sizes: s,
                strides,
            } => {
                let mut offset = 0;
                let mut at = *buffer;
                while let Place::Alias { of, offset: by } = &p.buffers[at as usize].place {
                    offset += value(by);
                    at = *of;
                }
                let offset = offset / dtype.0.size().max(1) as i64;
                let place = match root(p, *buffer).1 {
                    Place::Output { output } if *output as usize == k && offset == 0 => {
                        OutputPlace::Own
                    }
                    Place::Output { output } => OutputPlace::Output {
                        output: *output as usize,
                        offset,
                    },
                    Place::Input { input } => OutputPlace::Input {
                        input: *input as usize,
                        offset,
                    },
                    _ => {
                        return Err(Error::internal(format!(
                            "output {k} has no storage of its own"
                        )));
                    }
                };
                PlannedOutput::Tensor {
                    dtype: dtype.0,
                    sizes: s.iter().map(value).collect(),
                    strides: strides.iter().map(value).collect(),
                    place,
                }
            }
        })
    }
}

impl Model {
    /// Plans calls for these values of the program's symbols, in the program's order.
    ///
    /// # Errors
    /// An input error when a symbol is outside its range or a guard does not hold.
    pub fn plan(&self, symbols: &[i64]) -> Result<CallPlan> {
        let shape = CallShape::of(self.program(), symbols)?;
        let prepared = Arc::new(self.prepare(symbols.to_vec(), shape.sizes)?);
        Ok(CallPlan {
            prepared,
            inputs: shape.inputs,
            outputs: shape.outputs,
        })
    }

    /// Runs a planned call. Addresses are by position of inputs and outputs; those of integers, and of outputs that are not
    /// [`OutputPlace::Own`], are ignored.
    ///
    /// # Errors
    /// An input error for an index out of range inside the model.
    ///
    /// # Safety
    /// Each address is that of the first element of a tensor with the dtype, sizes and strides that the program says, and
    /// no other thread writes it meanwhile.
    pub unsafe fn run_planned(
        &self,
        plan: &CallPlan,
        inputs: &[*mut u8],
        outputs: &[*mut u8],
    ) -> Result<()> {
        let p = self.program();
        if inputs.len() < p.inputs.len() || outputs.len() < p.outputs.len() {
            return Err(Error::internal("too few addresses for a call"));
        }
        self.bound.pool.check_fork()?;
        let _guard = self.lock_state();
        if poison::enabled() {
            // SAFETY: the caller's promise.
            return unsafe { self.run_poisoned(plan, inputs, outputs) };
        }
        self.with_frame(|frame| self.issue(&plan.prepared, frame, inputs, outputs, &[]))
    }

    /// Runs a planned call on outputs between guards, which are copied to where the caller wants them.
    ///
    /// # Safety
    /// As for [`Model::run_planned`].
    unsafe fn run_poisoned(
        &self,
        plan: &CallPlan,
        inputs: &[*mut u8],
        outputs: &[*mut u8],
    ) -> Result<()> {
        let prepared = &plan.prepared;
        let held: Vec<Option<Arc<Storage>>> = (plan.outputs.iter())
            .zip(&prepared.output_bytes)
            .map(|(output, bytes)| match output {
                PlannedOutput::Tensor {
                    dtype,
                    sizes,
                    strides,
                    place: OutputPlace::Own,
                } if *bytes > 0 && !sizes.contains(&0) => {
                    let there = extent(sizes, strides).map_or(0, |n| n * dtype.size());
                    if there < *bytes {
                        return Err(Error::internal(format!(
                            "an output of sizes {sizes:?} would take {bytes} bytes"
                        )));
                    }
                    Ok(Some(Arc::new(self.output_storage(*bytes)?)))
                }
                _ => Ok(None),
            })
            .collect::<Result<_>>()?;
        let own = |(k, to): (usize, &*mut u8)| match held.get(k) {
            Some(Some(s)) => s.as_ptr(),
            _ => *to,
        };
        let made: Vec<*mut u8> = outputs.iter().enumerate().map(own).collect();
        let fences = poison::fences(self.program(), &[], &[], &held);
        self.with_frame(|frame| self.issue(prepared, frame, inputs, &made, &fences))?;
        for (storage, to) in held.iter().zip(outputs) {
            if let Some(s) = storage {
                // SAFETY: the caller's memory has at least the bytes that sizes and strides say, which was checked.
                unsafe { std::ptr::copy_nonoverlapping(s.as_ptr(), *to, s.len()) };
            }
        }
        Ok(())
    }
}
