//! A compiled model on a device: its weights, and calls.

use super::process::{Process, Tensor as DeviceTensor};
use crate::gpu::driver::DevicePtr;
use crate::gpu::plan::{CheckInput, Plain, View};
use crate::gpu::{Engine, Frame};
use crate::program::{HostProgram, Layout, Lowered, Object, Out, Read};
use crate::shape::{Shape, dtype_code};
use inrush_base::{DType, Error, Result, same_strides};
use inrush_program::{evaluate_known, solve};
use inrush_runtime::tensor::extent;
use inrush_runtime::triton::Binary;
use inrush_runtime::{Storage, Tensor, Value, WeightSource};
use std::sync::{Arc, Mutex, PoisonError};

/// A model that is ready to run.
pub struct Model {
    lowered: Lowered,
    engine: Engine<Process>,
    process: Process,
    /// Weights on the device, by slot; those that nothing reads are left out.
    weights: Vec<Option<DeviceTensor>>,
    /// One call at a time: they share the stream, and cuBLAS's handle.
    running: Mutex<()>,
}

/// The state of one call.
pub struct CallState<'a> {
    model: &'a Model,
    /// Arguments by slot.
    given: Vec<Option<&'a Value>>,
    /// Results that are no tensors of the device, by slot.
    plain: Vec<Option<Value>>,
    /// Views that steps made, by slot.
    views: Vec<Option<(DevicePtr, Shape)>>,
    pub(super) symbols: Vec<Option<i64>>,
    pub(super) sizes: Vec<Option<i64>>,
    outputs: Vec<Value>,
}

impl Model {
    /// Loads the kernels and copies the weights to the device of the process. `binaries` are those of the program's kernels, in order.
    ///
    /// # Errors
    /// A weight that is missing or not what the program says, too little memory, those of the driver.
    pub fn new(
        lowered: Lowered,
        binaries: Vec<Binary>,
        weights: &dyn WeightSource,
        process: Process,
    ) -> Result<Model> {
        let program = &lowered.program;
        let engine = Engine::new(program, binaries)?;
        engine.preload(program)?;
        let sizes = evaluate_known(&program.sizes, &vec![None; program.symbols.len()]);
        let mut resident: Vec<Option<DeviceTensor>> = Vec::new();
        resident.resize_with(program.slots, || None);
        for (slot, object) in &program.constants {
            let (Some(layout), Object::Weight(name)) =
                (layout(program, *slot), &lowered.objects[*object])
            else {
                continue;
            };
            let shape = shape(layout, &sizes)?;
            let w = weights
                .weight(name)
                .ok_or_else(|| Error::input(format!("the weight `{name}` is missing")))?;
            let bytes = shape.bytes()? as usize;
            let same = w.dtype == layout.dtype.0
                && w.sizes == shape.sizes.as_slice()
                && same_strides(w.sizes, w.strides, &shape.strides);
            if !same || w.bytes.len() < bytes {
                return Err(Error::input(format!(
                    "the weight `{name}` has other sizes, strides or dtype than its model says"
                )));
            }
            resident[*slot] = Some(process.upload(&shape, &w.bytes[..bytes])?);
        }
        Ok(Model {
            lowered,
            engine,
            process,
            weights: resident,
            running: Mutex::default(),
        })
    }

    /// Returns the names of the inputs, in call order.
    pub fn inputs(&self) -> &[String] {
        &self.lowered.inputs
    }

    /// Returns the program.
    pub fn program(&self) -> &HostProgram {
        &self.lowered.program
    }

    /// Runs the model on its flat inputs.
    ///
    /// # Errors
    /// Inputs of other sizes or dtypes than the model was compiled for; too little memory; those of the driver.
    pub fn run(&self, inputs: &[Value]) -> Result<Vec<Value>> {
        let _running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        self.process.make_current()?;
        let program = &self.lowered.program;
        if inputs.len() != program.inputs.len() {
            return Err(Error::input(format!(
                "the model takes {} inputs, got {}",
                program.inputs.len(),
                inputs.len()
            )));
        }
        let mut call = CallState {
            model: self,
            given: vec![None; program.slots],
            plain: vec![None; program.slots],
            views: vec![None; program.slots],
            symbols: vec![None; program.symbols.len()],
            sizes: Vec::new(),
            outputs: Vec::new(),
        };
        for (value, slot) in inputs.iter().zip(&program.inputs) {
            call.given[*slot] = Some(value);
        }
        call.read_symbols()?;
        call.sizes = evaluate_known(&program.sizes, &call.symbols);
        self.engine.run(&self.process, program, &mut call)?;
        Ok(call.outputs)
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        // Memory is freed in the context that it is from.
        _ = self.process.make_current();
    }
}

/// Returns the layout of a slot's tensor, if it is one of the device.
fn layout(program: &HostProgram, slot: usize) -> Option<&Layout> {
    program.gpu.as_ref()?.layouts.get(slot)?.as_ref()
}

fn shape(layout: &Layout, sizes: &[Option<i64>]) -> Result<Shape> {
    let all = |ids: &[inrush_program::SizeId]| {
        (ids.iter())
            .map(|i| sizes[i.0 as usize].ok_or_else(|| Error::input("a size overflows")))
            .collect::<Result<_>>()
    };
    Ok(Shape {
        dtype: dtype_code(layout.dtype.0),
        element: layout.dtype.0.size() as u64,
        sizes: all(&layout.sizes)?,
        strides: all(&layout.strides)?,
    })
}

fn dtype_of(code: i32) -> Result<DType> {
    crate::shape::dtype_of(code).ok_or_else(|| Error::internal("a dtype without a name"))
}

impl CallState<'_> {
    fn read_symbols(&mut self) -> Result<()> {
        for (k, s) in self.model.program().symbols.iter().enumerate() {
            let value = match (s.read, self.given[s.slot]) {
                (Read::Int, Some(Value::Int(i))) => *i,
                (
                    Read::Dim {
                        dim,
                        factor,
                        offset,
                    },
                    Some(Value::Tensor(t)),
                ) => {
                    let size = t.sizes.get(dim).copied().unwrap_or(0);
                    solve(size, factor, offset).ok_or_else(|| {
                        Error::input(format!(
                            "size {size} is not what the model was compiled for"
                        ))
                    })?
                }
                _ => return Err(Error::input("an input is not of the kind the model takes")),
            };
            self.symbols[k] = Some(value);
        }
        Ok(())
    }

    /// Has a tensor of the caller's, or a weight, be on the device in the layout that was compiled for.
    pub(super) fn check_input(
        &self,
        process: &Process,
        frame: &mut Frame<'_, Process>,
        c: &CheckInput,
    ) -> Result<()> {
        if c.written {
            return Err(Error::internal("a step that writes an input"));
        }
        self.bring(process, frame, c.slot, &c.shape)
    }

    fn bring(
        &self,
        process: &Process,
        frame: &mut Frame<'_, Process>,
        slot: usize,
        shape: &Shape,
    ) -> Result<()> {
        use crate::host::Host;
        if let Some(w) = &self.model.weights[slot] {
            frame.bases[slot] = process.address(w).unwrap_or(0);
            return Ok(());
        }
        let Some(Value::Tensor(t)) = self.given[slot] else {
            return Err(Error::input("an input is no tensor"));
        };
        if t.sizes != shape.sizes.as_slice() || dtype_code(t.dtype) != shape.dtype {
            return Err(Error::input(format!(
                "a {} tensor of sizes {:?} where the model was compiled for {} of {:?}",
                t.dtype,
                t.sizes,
                dtype_of(shape.dtype)?,
                shape.sizes
            )));
        }
        let copy;
        let t = match t.lies_as(&shape.strides) {
            true => t,
            false => {
                copy = t.with_strides(&shape.strides)?;
                &copy
            }
        };
        // SAFETY: the tensor has these sizes and strides, so many bytes from its first element.
        let bytes = unsafe { std::slice::from_raw_parts(t.data(), shape.bytes()? as usize) };
        let tensor = process.upload(shape, bytes)?;
        frame.bases[slot] = process.address(&tensor).unwrap_or(0);
        frame.own[slot] = Some(tensor);
        Ok(())
    }

    /// Returns the address of a value on the device.
    fn address(
        &self,
        process: &Process,
        frame: &mut Frame<'_, Process>,
        slot: usize,
    ) -> Result<DevicePtr> {
        if let Some((address, _)) = &self.views[slot] {
            return Ok(*address);
        }
        let here = frame.bases[slot] != 0 || frame.own[slot].is_some();
        if !here && (self.given[slot].is_some() || self.model.weights[slot].is_some()) {
            let layout = layout(frame.program, slot);
            let layout = layout.ok_or_else(|| Error::internal("a value without a layout"))?;
            let shape = shape(layout, &self.sizes)?;
            self.bring(process, frame, slot, &shape)?;
        }
        Ok(frame.bases[slot])
    }

    pub(super) fn view(
        &mut self,
        process: &Process,
        frame: &mut Frame<'_, Process>,
        v: &View,
    ) -> Result<()> {
        let dtype = match (v.dtype, &self.views[v.base], layout(frame.program, v.base)) {
            (Some(code), _, _) => dtype_of(code)?,
            (None, Some((_, shape)), _) => dtype_of(shape.dtype)?,
            (None, None, Some(l)) => l.dtype.0,
            (None, None, None) => return Err(Error::internal("a view of no tensor")),
        };
        let base = self.address(process, frame, v.base)?;
        let element = dtype.size() as u64;
        let shape = Shape {
            dtype: dtype_code(dtype),
            element,
            sizes: v.sizes.clone(),
            strides: v.strides.clone(),
        };
        let offset = v.offset.max(0) as u64 * element;
        self.views[v.slot] = Some((base + offset, shape));
        Ok(())
    }

    pub(super) fn set(&mut self, slot: usize, value: &Plain) {
        self.plain[slot] = Some(match value {
            Plain::Int(i) => Value::Int(*i),
            Plain::Scalar(s) => Value::Scalar(*s),
            Plain::None => Value::None,
        });
    }

    pub(super) fn release(&mut self, slot: usize) {
        self.views[slot] = None;
    }

    /// Copies the outputs to the caller.
    pub(super) fn finish(
        &mut self,
        process: &Process,
        frame: &mut Frame<'_, Process>,
    ) -> Result<()> {
        let program = frame.program;
        for o in &program.outputs {
            let value = match o {
                Out::Size(id) => {
                    let size = self.sizes[id.0 as usize];
                    Value::Int(size.ok_or_else(|| Error::input("a size overflows"))?)
                }
                Out::Constant(k) => match &self.model.lowered.objects[*k] {
                    Object::Scalar(s) => Value::Scalar((*s).into()),
                    _ => Value::None,
                },
                Out::Slot(s) => self.output(process, frame, *s)?,
            };
            self.outputs.push(value);
        }
        Ok(())
    }

    fn output(
        &self,
        process: &Process,
        frame: &mut Frame<'_, Process>,
        slot: usize,
    ) -> Result<Value> {
        if let Some(v) = &self.plain[slot] {
            return Ok(v.clone());
        }
        if let Some(v) = self.given[slot] {
            return Ok(v.clone());
        }
        let shape = match (&self.views[slot], layout(frame.program, slot)) {
            (Some((_, shape)), _) => shape.clone(),
            (None, Some(l)) => shape(l, &self.sizes)?,
            (None, None) => return Err(Error::internal("an output without a layout")),
        };
        let address = self.address(process, frame, slot)?;
        let bytes = shape.bytes()? as usize;
        let bytes = match bytes {
            0 => Vec::new(),
            // SAFETY: the value has this shape; its memory lives in the frame or the model.
            n => unsafe { process.download(address, n)? },
        };
        let (sizes, strides) = (shape.sizes.to_vec(), shape.strides.to_vec());
        debug_assert!(extent(&sizes, &strides).is_some());
        Ok(Value::Tensor(Tensor {
            dtype: dtype_of(shape.dtype)?,
            sizes,
            strides,
            offset: 0,
            storage: Arc::new(Storage::from_bytes(&bytes)?),
        }))
    }
}
