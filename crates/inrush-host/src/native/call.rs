//! The state of one call, and the steps of the host in it.

use super::executable::Executable;
use super::memory::Owner;
use super::process::{Process, Tensor as OwnTensor};
use super::tensor::{Argument, DeviceTensor, Output};
use super::weights::{WeightSet, layout, shape};
use crate::devices;
use crate::gpu::driver::{DevicePtr, Stream};
use crate::gpu::plan::{CheckInput, Plain, View};
use crate::gpu::{Frame, POINTER_ALIGNMENT};
use crate::program::{Device, Object, Out, Read};
use crate::shape::{Shape, dtype_code};
use inrush_base::{DType, Error, Result, same_strides};
use inrush_program::{Reads, evaluate_known, solve};
use inrush_runtime::{Tensor, Value, Writes};
use std::collections::BTreeMap;
use std::sync::Arc;

/// An argument of a call.
#[derive(Copy, Clone)]
pub(super) enum Given<'a> {
    Value(&'a Value),
    Device(&'a DeviceTensor),
}

/// Everything that a call runs on.
#[derive(Copy, Clone)]
pub(super) struct Parts<'a> {
    pub(super) executable: &'a Executable,
    pub(super) set: &'a WeightSet,
    /// Tensors of the device with other strides can be copied without the host.
    pub(super) copies_strides: bool,
    /// The call is one of control flow's.
    pub(super) is_body: bool,
    /// Number of the device.
    pub(super) device: Device,
    /// The caller's stream, whose work outputs wait for.
    pub(super) stream: Option<Stream>,
}

/// The state of one call.
pub struct CallState<'a> {
    parts: Parts<'a>,
    /// Arguments by slot.
    given: Vec<Option<Given<'a>>>,
    /// Results that are no tensors of the device, by slot.
    plain: Vec<Option<Value>>,
    /// Tensors that work of the host gave, by slot.
    made: Vec<Option<DeviceTensor>>,
    /// Conditions on sizes that were checked.
    pub(super) checked: Vec<bool>,
    /// Views that steps made, by slot: the address, the shape, and the slot whose memory it is in.
    views: Vec<Option<(DevicePtr, Shape, usize)>>,
    pub(super) symbols: Vec<Option<i64>>,
    pub(super) sizes: Vec<Option<i64>>,
    /// Memory of the caller's for outputs, by position.
    into: Vec<Option<&'a DeviceTensor>>,
    /// Copies of arguments with other strides, which the driver may still read.
    pub(super) kept: Vec<Tensor>,
    /// Copies of arguments that the call writes.
    copies: Vec<(usize, Shape, OwnTensor)>,
    /// Tensors of the call that outputs share.
    shared: BTreeMap<usize, Arc<OwnTensor>>,
    pub(super) outputs: Vec<Output>,
    /// The host must wait for the stream: memory of the host's is read or written by work.
    pub(super) waits: bool,
    /// New contents of arguments in memory of the host.
    pub(super) to_host: Vec<(Tensor, DeviceTensor)>,
}

fn dtype_of(code: i32) -> Result<DType> {
    crate::shape::dtype_of(code).ok_or_else(|| Error::internal("a dtype without a name"))
}

impl<'a> From<&'a Argument> for Given<'a> {
    fn from(a: &'a Argument) -> Self {
        match a {
            Argument::Value(v) => Given::Value(v),
            Argument::Device(t) => Given::Device(t),
        }
    }
}

impl<'a> CallState<'a> {
    /// Takes the arguments of a call, and memory for its outputs if the caller brings some.
    ///
    /// # Errors
    /// An input error for another number of arguments, or for sizes that the model was not compiled for.
    pub(super) fn new(
        parts: Parts<'a>,
        inputs: &[Given<'a>],
        into: Vec<Option<&'a DeviceTensor>>,
    ) -> Result<CallState<'a>> {
        let program = &parts.executable.lowered.program;
        if inputs.len() != program.inputs.len() {
            return Err(Error::input(format!(
                "the model takes {} inputs, got {}",
                program.inputs.len(),
                inputs.len()
            )));
        }
        let mut call = CallState {
            parts,
            given: vec![None; program.slots],
            plain: vec![None; program.slots],
            made: vec![None; program.slots],
            checked: vec![false; parts.executable.lowered.guards.len()],
            views: vec![None; program.slots],
            symbols: vec![None; program.symbols.len()],
            sizes: Vec::new(),
            into,
            kept: Vec::new(),
            copies: Vec::new(),
            shared: BTreeMap::new(),
            outputs: Vec::new(),
            waits: false,
            to_host: Vec::new(),
        };
        for (value, slot) in inputs.iter().zip(&program.inputs) {
            call.given[*slot] = Some(*value);
        }
        call.read_symbols()?;
        call.sizes = evaluate_known(&program.sizes, &call.symbols);
        call.check_guards()?;
        call.check_inputs()?;
        call.check_into()?;
        Ok(call)
    }

    fn read_symbols(&mut self) -> Result<()> {
        let symbols = self.parts.executable.lowered.program.symbols.iter();
        for (k, s) in symbols.enumerate().filter(|(_, s)| s.after.is_none()) {
            let value = match (s.read, self.given[s.slot]) {
                (Read::Int, Some(Given::Value(Value::Int(i)))) => *i,
                (
                    Read::Dim {
                        dim,
                        factor,
                        offset,
                    },
                    Some(given),
                ) => {
                    let sizes = match given {
                        Given::Value(Value::Tensor(t)) => &t.sizes,
                        Given::Device(t) => &t.sizes,
                        Given::Value(_) => return Err(self.at_input(s.slot, no_tensor())),
                    };
                    let size = sizes.get(dim).copied().unwrap_or(0);
                    solve(size, factor, offset).ok_or_else(|| {
                        let text = format!("size {size} is not what the model was compiled for");
                        self.at_input(s.slot, Error::input(text))
                    })?
                }
                _ => {
                    let e = Error::input("it is not of the kind the model takes");
                    return Err(self.at_input(s.slot, e));
                }
            };
            if let Some((name, lower, upper)) = &self.parts.executable.bounds[k]
                && !(*lower..=*upper).contains(&value)
            {
                let text = format!("`{name}` is {value}, outside {lower}..={upper}");
                return Err(self.at_input(s.slot, Error::input(text)));
            }
            self.symbols[k] = Some(value);
        }
        Ok(())
    }

    /// Puts the name of an input before the text of an error.
    fn at_input(&self, slot: usize, e: Error) -> Error {
        let lowered = &self.parts.executable.lowered;
        let at = lowered.program.inputs.iter().position(|s| *s == slot);
        match at.and_then(|k| lowered.inputs.get(k)) {
            Some(name) => e.context(format!("input `{name}`")),
            None => e,
        }
    }

    /// Compares the tensors among the arguments with what the model was compiled for, before anything is issued.
    fn check_inputs(&self) -> Result<()> {
        let program = &self.parts.executable.lowered.program;
        for slot in &program.inputs {
            let (Some(layout), Some(given)) = (layout(program, *slot), self.given[*slot]) else {
                continue;
            };
            let shape = shape(layout, &self.sizes)?;
            self.check_tensor(given, &shape, *slot)
                .map_err(|e| self.at_input(*slot, e))?;
        }
        Ok(())
    }

    fn check_tensor(&self, given: Given<'_>, shape: &Shape, slot: usize) -> Result<()> {
        let (dtype, sizes) = match given {
            Given::Value(Value::Tensor(t)) => (t.dtype, &t.sizes),
            Given::Value(_) => return Err(no_tensor()),
            Given::Device(t) => (t.dtype, &t.sizes),
        };
        if *sizes != shape.sizes.as_slice() || dtype_code(dtype) != shape.dtype {
            return Err(Error::input(format!(
                "a {dtype} tensor of sizes {sizes:?} where the model was compiled for {} of {:?}",
                dtype_of(shape.dtype)?,
                shape.sizes
            )));
        }
        let forbidden = match given {
            Given::Value(Value::Tensor(t)) => t.storage.writes() != Writes::Seen,
            Given::Device(t) => t.read_only,
            Given::Value(_) => false,
        };
        if self.parts.executable.written[slot] && forbidden {
            return Err(Error::input(
                "the model writes it, and its memory is read-only or a copy that the caller does not see",
            ));
        }
        if let Given::Device(t) = given {
            self.check_device(t)?;
            let copies = self.parts.copies_strides || self.parts.is_body;
            let copied = copies && self.parts.executable.reads[slot] == Reads::Elements;
            if !copied && !same_strides(&t.sizes, &t.strides, &shape.strides) {
                let advice = match self.parts.copies_strides {
                    true => "the program counts positions in its memory",
                    false => {
                        "make it contiguous, or pass it in memory of the host, which is laid out anew"
                    }
                };
                return Err(Error::input(format!(
                    "its strides are {:?}, the model was compiled for {:?}: {advice}",
                    t.strides, shape.strides
                )));
            }
        }
        Ok(())
    }

    fn check_device(&self, t: &DeviceTensor) -> Result<()> {
        if t.device == self.parts.device {
            return Ok(());
        }
        Err(Error::input(format!(
            "it is in the memory of `{}`, the model is on `{}`",
            devices::name(t.device),
            devices::name(self.parts.device)
        )))
    }

    pub(super) fn parts(&self) -> Parts<'a> {
        self.parts
    }

    /// Returns buffers of a host's for the tensors among the arguments.
    ///
    /// # Errors
    /// Too little memory.
    pub(super) fn fixed_inputs(&self, host: &Process) -> Result<Vec<Option<DeviceTensor>>> {
        let inputs = self.parts.executable.lowered.program.inputs.iter();
        let fixed = |slot: &usize| {
            let Some(shape) = self.known_shape(*slot)? else {
                return Ok(None);
            };
            let buffer = host.new_tensor(&shape)?;
            Ok(Some(self.owned(buffer, &shape)?))
        };
        inputs.map(fixed).collect()
    }

    /// Returns a tensor that owns its memory.
    pub(super) fn owned(&self, tensor: OwnTensor, shape: &Shape) -> Result<DeviceTensor> {
        self.owned_by(tensor.address, shape, Arc::new(tensor))
    }

    /// Returns a tensor in memory of an owner.
    pub(super) fn owned_by(
        &self,
        address: DevicePtr,
        shape: &Shape,
        owner: Owner,
    ) -> Result<DeviceTensor> {
        Ok(DeviceTensor {
            dtype: dtype_of(shape.dtype)?,
            sizes: shape.sizes.to_vec(),
            strides: shape.strides.to_vec(),
            address,
            device: self.parts.device,
            read_only: false,
            stream: self.parts.stream,
            owner,
        })
    }

    /// Copies the tensors among the arguments into fixed buffers.
    ///
    /// # Errors
    /// Too little memory, and those of the driver.
    pub(super) fn copy_in(&mut self, host: &Process, fixed: &[Option<DeviceTensor>]) -> Result<()> {
        for (slot, to) in self
            .parts
            .executable
            .lowered
            .program
            .inputs
            .iter()
            .zip(fixed)
        {
            match (self.given[*slot], to) {
                (Some(Given::Device(t)), Some(to)) => {
                    let (to_shape, from) = (to.shape(), t.shape());
                    // SAFETY: the argument was compared with the layout of the buffer, and stays until the work is done.
                    unsafe { host.copy_tensor((to.address, &to_shape), (t.address, &from))? };
                }
                (Some(Given::Value(Value::Tensor(t))), Some(to)) => {
                    let t = match t.lies_as(&to.strides) {
                        true => t.clone(),
                        false => t.with_strides(&to.strides)?,
                    };
                    self.waits = true;
                    // SAFETY: the tensor has as many bytes from its first element as the buffer.
                    unsafe {
                        let bytes = std::slice::from_raw_parts(t.data(), to.bytes());
                        host.write(to.address, bytes)?;
                    }
                    self.kept.push(t);
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// Copies the results of a captured call to where the caller wants them: outputs, and new contents of arguments.
    ///
    /// # Errors
    /// Too little memory, and those of the driver.
    pub(super) fn copy_out(
        &mut self,
        host: &Process,
        fixed: &[Option<DeviceTensor>],
        outputs: &[Output],
    ) -> Result<()> {
        let into = std::mem::take(&mut self.into);
        for (k, o) in outputs.iter().enumerate() {
            let made = match (o, into.get(k).copied().flatten()) {
                (Output::Value(v), _) => Output::Value(v.clone()),
                (Output::Device(t), Some(to)) => {
                    same_layout(to, &t.shape()).map_err(|e| e.context(format!("output {k}")))?;
                    // SAFETY: both have this layout; the captured call's memory stays.
                    unsafe { host.copy(to.address, t.address, t.bytes() as u64)? };
                    Output::Device(to.clone())
                }
                (Output::Device(t), None) => {
                    let shape = t.shape();
                    // SAFETY: the captured call's memory stays.
                    let copy = unsafe { host.copy_of(&shape, t.address)? };
                    Output::Device(self.owned(copy, &shape)?)
                }
            };
            self.outputs.push(made);
        }
        let program = &self.parts.executable.lowered.program;
        for (slot, from) in program.inputs.iter().zip(fixed) {
            if let (Some(from), true) = (from, self.parts.executable.written[*slot]) {
                self.write_argument(host, *slot, &from.shape(), from.address)?;
            }
        }
        Ok(())
    }

    /// Writes the new contents of an argument.
    fn write_argument(
        &mut self,
        host: &Process,
        slot: usize,
        shape: &Shape,
        from: DevicePtr,
    ) -> Result<()> {
        match self.given[slot] {
            Some(Given::Device(t)) => {
                // SAFETY: both have this dtype and these sizes; the argument is the caller's until the work is done.
                unsafe { host.copy_tensor((t.address, &t.shape()), (from, shape)) }
            }
            Some(Given::Value(Value::Tensor(t))) => {
                // SAFETY: the memory is there until the call's work is done.
                let copy = unsafe { host.copy_of(shape, from)? };
                let mut tensor = self.owned(copy, shape)?;
                tensor.stream = None;
                self.to_host.push((t.clone(), tensor));
                self.waits = true;
                Ok(())
            }
            _ => Err(Error::internal("new contents of no tensor")),
        }
    }

    /// Returns the shape of an output before the call runs, if it is a tensor whose layout the program tells.
    pub(super) fn known_shape(&self, slot: usize) -> Result<Option<Shape>> {
        let found = layout(&self.parts.executable.lowered.program, slot);
        found.map(|l| shape(l, &self.sizes)).transpose()
    }

    /// Returns the outputs for which the caller has given memory: position, slot and memory.
    fn given_outputs(&self) -> impl Iterator<Item = (usize, usize, &'a DeviceTensor)> {
        let outputs = self.parts.executable.lowered.program.outputs.iter();
        let all = outputs.zip(&self.into).enumerate();
        all.filter_map(|(k, (o, into))| match (o, into) {
            (Out::Slot(slot), Some(t)) => Some((k, *slot, *t)),
            _ => None,
        })
    }

    /// Returns true if a size of a tensor is not known before the call, though all symbols of inputs are.
    fn depends_on_data(&self, slot: usize) -> bool {
        let program = &self.parts.executable.lowered.program;
        let unknown = |id: &inrush_program::SizeId| self.sizes[id.0 as usize].is_none();
        program.symbols.iter().any(|s| s.after.is_some())
            && layout(program, slot).is_some_and(|l| l.sizes.iter().chain(&l.strides).any(unknown))
    }

    /// Compares the caller's memory for outputs with these.
    fn check_into(&self) -> Result<()> {
        for (k, slot, t) in self.given_outputs() {
            let place = |e: Error| e.context(format!("output {k}"));
            self.check_device(t).map_err(place)?;
            if t.read_only {
                return Err(place(Error::input("its memory is read-only")));
            }
            if self.depends_on_data(slot) {
                return Err(Error::unsupported(format!(
                    "output {k} has a size that depends on data: no memory can be given for it ahead of the call"
                )));
            }
            if let Some(shape) = self.known_shape(slot)? {
                same_layout(t, &shape).map_err(place)?;
            }
        }
        Ok(())
    }

    /// Returns the caller's memory that kernels may write directly: it has no byte in common with an argument or another output.
    pub(super) fn outputs_into(&self) -> Vec<(usize, DevicePtr, Shape)> {
        let mut direct: Vec<(usize, DevicePtr, Shape)> = Vec::new();
        let arguments = || {
            (self.given.iter().flatten()).filter_map(|g| match g {
                Given::Device(t) => Some(*t),
                Given::Value(_) => None,
            })
        };
        for (k, slot, t) in self.given_outputs() {
            let mut others = (self.into.iter().enumerate())
                .filter(|(j, _)| *j != k)
                .filter_map(|(_, t)| *t)
                .chain(arguments());
            let aligned = t.address.is_multiple_of(POINTER_ALIGNMENT);
            let alone = !others.any(|other| other.overlaps(t));
            let once = direct.iter().all(|d| d.0 != slot);
            if aligned && alone && once {
                direct.push((slot, t.address, t.shape()));
            }
        }
        direct
    }

    /// Has a tensor of the caller's, or a weight, be on the device in the layout that was compiled for.
    pub(super) fn check_input(
        &mut self,
        process: &Process,
        frame: &mut Frame<'_, Process>,
        c: &CheckInput,
    ) -> Result<()> {
        self.bring(process, frame, c.slot, &c.shape)
    }

    fn bring(
        &mut self,
        process: &Process,
        frame: &mut Frame<'_, Process>,
        slot: usize,
        shape: &Shape,
    ) -> Result<()> {
        if let Some(e) = self.parts.executable.plan.of_slot(slot) {
            frame.bases[slot] = self.parts.set.address(e);
            return Ok(());
        }
        if frame.bases[slot] != 0 {
            // Brought for an earlier step: views point there, and steps may have written it.
            return Ok(());
        }
        let given = match &self.made[slot] {
            Some(t) if t.sizes == shape.sizes.as_slice() && dtype_code(t.dtype) == shape.dtype => {
                Some(Given::Device(t))
            }
            Some(t) => {
                return Err(Error::input(format!(
                    "a tensor that depends on data has sizes {:?}, the program expects {:?}",
                    t.sizes, shape.sizes
                )));
            }
            None => self.given[slot],
        };
        let tensor = match given {
            Some(Given::Device(t)) => {
                let same = same_strides(&t.sizes, &t.strides, &shape.strides);
                if same && t.address.is_multiple_of(POINTER_ALIGNMENT) {
                    frame.bases[slot] = t.address;
                    return Ok(());
                }
                let tensor = process.new_tensor(shape)?;
                // SAFETY: the tensor was compared with this shape, and the caller keeps it until the call's work is done.
                unsafe { process.copy_tensor((tensor.address, shape), (t.address, &t.shape()))? };
                tensor
            }
            Some(Given::Value(Value::Tensor(t))) => {
                let t = match t.lies_as(&shape.strides) {
                    true => t.clone(),
                    false => t.with_strides(&shape.strides)?,
                };
                // SAFETY: the tensor has these sizes and strides, so many bytes from its first element.
                let bytes =
                    unsafe { std::slice::from_raw_parts(t.data(), shape.bytes()? as usize) };
                self.waits = true;
                let tensor = process.upload(shape, bytes)?;
                self.kept.push(t);
                tensor
            }
            _ => return Err(self.at_input(slot, no_tensor())),
        };
        frame.bases[slot] = tensor.address;
        if self.parts.executable.written[slot] {
            // It holds new contents at the end of the call.
            self.copies.push((slot, shape.clone(), tensor));
        } else {
            frame.own[slot] = Some(tensor);
        }
        Ok(())
    }

    /// Returns true for arguments, weights, and what work of the host gave.
    fn is_brought(&self, slot: usize) -> bool {
        self.given[slot].is_some()
            || self.made[slot].is_some()
            || self.parts.executable.plan.of_slot(slot).is_some()
    }

    /// Returns the number in a slot; `None` for a tensor.
    pub(super) fn number(&self, slot: usize) -> Option<Value> {
        match (&self.plain[slot], self.given[slot]) {
            (Some(v), _) => Some(v.clone()),
            (None, Some(Given::Value(Value::Tensor(_)))) => None,
            (None, Some(Given::Value(v))) => Some(v.clone()),
            (None, _) => None,
        }
    }

    pub(super) fn put_number(&mut self, slot: usize, value: Value) {
        self.plain[slot] = Some(value);
    }

    pub(super) fn put_tensor(&mut self, slot: usize, t: DeviceTensor) {
        self.made[slot] = Some(t);
    }

    /// Returns a tensor that work of the host gave.
    pub(super) fn made_tensor(&self, slot: usize) -> Option<DeviceTensor> {
        self.made[slot].clone()
    }

    /// Returns the sizes of a tensor that work of the host gave.
    pub(super) fn made_sizes(&self, slot: usize) -> Option<&[i64]> {
        self.made[slot].as_ref().map(|t| t.sizes.as_slice())
    }

    /// Returns the address of a value on the device.
    fn address(
        &mut self,
        process: &Process,
        frame: &mut Frame<'_, Process>,
        slot: usize,
    ) -> Result<DevicePtr> {
        if let Some((address, ..)) = &self.views[slot] {
            return Ok(*address);
        }
        let here = frame.bases[slot] != 0 || frame.own[slot].is_some();
        if !here && self.is_brought(slot) {
            let shape = self.known_shape(slot)?;
            let shape = shape.ok_or_else(|| Error::internal("a value without a layout"))?;
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
            (None, Some((_, shape, _)), _) => dtype_of(shape.dtype)?,
            (None, None, Some(l)) => l.dtype.0,
            (None, None, None) => return Err(Error::internal("a view of no tensor")),
        };
        let base = self.address(process, frame, v.base)?;
        let root = self.views[v.base].as_ref().map_or(v.base, |b| b.2);
        let element = dtype.size() as u64;
        let shape = Shape {
            dtype: dtype_code(dtype),
            element,
            sizes: v.sizes.clone(),
            strides: v.strides.clone(),
        };
        let leaves = || {
            Error::input(format!(
                "a view of sizes {:?} and strides {:?} from element {} leaves its tensor",
                v.sizes, v.strides, v.offset
            ))
        };
        let offset = u64::try_from(v.offset).ok();
        let offset = offset.and_then(|o| o.checked_mul(element));
        let address = offset
            .and_then(|o| base.checked_add(o))
            .ok_or_else(leaves)?;
        self.views[v.slot] = Some((address, shape, root));
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
        self.made[slot] = None;
    }

    /// Hands out the outputs, and writes the new contents of arguments and weights. All of it is issued on the stream.
    pub(super) fn finish(
        &mut self,
        process: &Process,
        frame: &mut Frame<'_, Process>,
    ) -> Result<()> {
        let into = std::mem::take(&mut self.into);
        for (position, o) in frame.program.outputs.iter().enumerate() {
            let value = match o {
                Out::Size(id) => {
                    let size = self.sizes[id.0 as usize];
                    Output::Value(Value::Int(
                        size.ok_or_else(|| Error::input("a size overflows"))?,
                    ))
                }
                Out::Constant(k) => {
                    Output::Value(match &self.parts.executable.lowered.objects[*k] {
                        Object::Scalar(s) => Value::Scalar((*s).into()),
                        _ => Value::None,
                    })
                }
                Out::Slot(s) => {
                    let into = into.get(position).copied().flatten();
                    self.output(process, frame, *s, into)
                        .map_err(|e| e.context(format!("output {position}")))?
                }
                Out::Mutation { .. } => Output::Value(Value::None),
            };
            self.outputs.push(value);
        }
        self.write_back(process, frame)
    }

    /// Returns a tensor's address, its shape, and the slot whose memory it is in.
    pub(super) fn located(
        &mut self,
        process: &Process,
        frame: &mut Frame<'_, Process>,
        slot: usize,
    ) -> Result<(DevicePtr, Shape, usize)> {
        if let Some(view) = &self.views[slot] {
            return Ok(view.clone());
        }
        if let Some(t) = &self.made[slot] {
            return Ok((t.address, t.shape(), slot));
        }
        let shape = self.known_shape(slot)?;
        let shape = shape.ok_or_else(|| Error::internal("an output without a layout"))?;
        Ok((self.address(process, frame, slot)?, shape, slot))
    }

    /// Returns an output in memory that stays: the call's own, or an argument's. Others are copied.
    fn output(
        &mut self,
        process: &Process,
        frame: &mut Frame<'_, Process>,
        slot: usize,
        into: Option<&DeviceTensor>,
    ) -> Result<Output> {
        if let Some(v) = &self.plain[slot] {
            return Ok(Output::Value(v.clone()));
        }
        if let (Some(Given::Value(v)), false) =
            (self.given[slot], layout(frame.program, slot).is_some())
        {
            return Ok(Output::Value(v.clone()));
        }
        let (address, shape, root) = self.located(process, frame, slot)?;
        let device = |address, owner, read_only| {
            Ok(Output::Device(DeviceTensor {
                dtype: dtype_of(shape.dtype)?,
                sizes: shape.sizes.to_vec(),
                strides: shape.strides.to_vec(),
                address,
                device: self.parts.device,
                read_only,
                stream: self.parts.stream,
                owner,
            }))
        };
        if let Some(t) = into {
            same_layout(t, &shape)?;
            if t.address != address {
                // SAFETY: both have this shape; the output's memory is the call's, whose work ends after the copy.
                unsafe { process.copy(t.address, address, shape.bytes()?)? };
            }
            return Ok(Output::Device(t.clone()));
        }
        if let (None, Some(t)) = (&self.views[slot], &self.made[slot]) {
            return device(address, t.owner.clone(), false);
        }
        let changes = |o: &Out| matches!(o, Out::Mutation { into, .. } if *into == root);
        let changes = frame.program.outputs.iter().any(changes);
        if let Some(own) = frame.own[root].take() {
            self.shared.insert(root, Arc::new(own));
        }
        if let Some(own) = self.shared.get(&root) {
            return device(address, own.clone(), false);
        }
        // A view of what work of the host gave.
        if let Some(t) = &self.made[root] {
            return device(address, t.owner.clone(), false);
        }
        match self.given[root] {
            Some(Given::Device(t)) if !changes && frame.bases[root] == t.address => {
                device(address, t.owner.clone(), t.read_only)
            }
            // A weight, or an argument that is about to change.
            _ => {
                // SAFETY: the memory is there until the call's work is done.
                let copy = unsafe { process.copy_of(&shape, address)? };
                Ok(Output::Device(self.owned(copy, &shape)?))
            }
        }
    }

    /// Copies new contents to where arguments and weights are.
    fn write_back(&mut self, process: &Process, frame: &mut Frame<'_, Process>) -> Result<()> {
        let mut all = Vec::new();
        for o in &frame.program.outputs {
            let Out::Mutation { value, into } = o else {
                continue;
            };
            let (mut from, shape, root) = self.located(process, frame, *value)?;
            let mut staged: Option<OwnTensor> = None;
            if self.is_brought(root) {
                // Another copy of this call may write it first.
                // SAFETY: the memory is there until the call's work is done.
                let copy = unsafe { process.copy_of(&shape, from)? };
                from = copy.address;
                staged = Some(copy);
            }
            all.push((*into, from, shape, staged));
        }
        for (into, from, shape, staged) in all {
            let want = self.known_shape(into)?;
            let want = want.ok_or_else(|| Error::internal("a weight without a layout"))?;
            if want.dtype != shape.dtype || want.sizes != shape.sizes {
                return Err(Error::input(format!(
                    "new contents of sizes {:?} for a tensor of sizes {:?}",
                    shape.sizes, want.sizes
                )));
            }
            match self.parts.executable.plan.of_slot(into) {
                // SAFETY: both have this dtype and these sizes; the weight is the model's.
                Some(e) => unsafe {
                    process.copy_tensor((self.parts.set.address(e), &want), (from, &shape))?;
                },
                None => self.write_argument(process, into, &shape, from)?,
            }
            drop(staged);
        }
        for (slot, shape, copy) in std::mem::take(&mut self.copies) {
            let replaced = |o: &Out| matches!(o, Out::Mutation { into, .. } if *into == slot);
            if !frame.program.outputs.iter().any(replaced) {
                self.write_argument(process, slot, &shape, copy.address)?;
            }
        }
        Ok(())
    }
}

fn no_tensor() -> Error {
    Error::input("it is no tensor")
}

/// Compares a tensor of the caller's with an output.
fn same_layout(t: &DeviceTensor, shape: &Shape) -> Result<()> {
    let same = t.sizes == shape.sizes.as_slice() && dtype_code(t.dtype) == shape.dtype;
    if !same {
        return Err(Error::input(format!(
            "it is {} of sizes {:?}, the memory given is {} of sizes {:?}",
            dtype_of(shape.dtype)?,
            shape.sizes,
            t.dtype,
            t.sizes
        )));
    }
    if !same_strides(&t.sizes, &t.strides, &shape.strides) {
        return Err(Error::input(format!(
            "its strides are {:?}, those of the memory given {:?}",
            shape.strides, t.strides
        )));
    }
    Ok(())
}
