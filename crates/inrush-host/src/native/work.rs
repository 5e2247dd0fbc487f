//! Work of the host between kernels: functions of the runtime's library on copies of tensors, and control flow.
//!
//! ```text
//! dynamic   copy the inputs to the host, run the function, copy its results to the device
//! custom    call the function that the host registered, on tensors where they are (custom.rs)
//! cond      read the predicate (the host waits for it), run one of two programs
//! while     likewise in each turn
//! scan      slices of device tensors; results are copied to their places on the device
//! ```
//!
//! A body runs on the stream of the call, on tensors where they are. What it gives is the call's own, or a part of what it was given,
//! which is copied when the step ends.

use super::call::{CallState, Given, Parts};
use super::executable::{Executable, Ready, pool};
use super::process::Process;
use super::tensor::{Argument, DeviceTensor, Output};
use crate::gpu::Frame;
use crate::host::Host;
use crate::program::{Layout, Read, Segment, StepKind};
use crate::shape::{Shape, dtype_code, dtype_of};
use inrush_base::{Error, Result, Scalar, same_strides};
use inrush_program::parts::{Dynamic, Work};
use inrush_program::{SizeId, evaluate_known, solve};
use inrush_runtime::flow::{self, Flow};
use inrush_runtime::{Model, Tensor, Value, check_guard, segment_integers};
use std::sync::Arc;

/// Owns nothing: memory of the call around, which outlives the step.
struct Borrowed;

/// A step of control flow in a call.
struct Control<'x, 'a, 'f> {
    call: &'x mut CallState<'a>,
    process: &'x Process,
    frame: &'x mut Frame<'f, Process>,
    bodies: &'a [Executable],
}

impl Flow for Control<'_, '_, '_> {
    type Value = Output;

    fn slot(&mut self, slot: usize) -> Result<Output> {
        self.call.slot(self.process, self.frame, slot)
    }

    fn size(&mut self, id: SizeId) -> Result<Output> {
        Ok(Output::Value(Value::Int(self.call.size(id)?)))
    }

    fn run(&mut self, program: usize, inputs: Vec<Output>) -> Result<Vec<Output>> {
        let body = self.bodies.get(program);
        let body = body.ok_or_else(|| Error::internal("control flow has no bodies"))?;
        self.call.run_body(self.process, body, inputs)
    }

    fn truth(&mut self, value: &Output) -> Result<bool> {
        match value {
            Output::Value(v) => flow::truth(v),
            Output::Device(t) => flow::truth(&Value::Tensor(to_host(self.process, t)?)),
        }
    }

    fn length(&mut self, value: &Output) -> Result<i64> {
        let n = match value {
            Output::Device(t) => t.sizes.first().copied(),
            Output::Value(_) => None,
        };
        n.ok_or_else(|| Error::input("a scan over a tensor without dimensions"))
    }

    fn slice(&mut self, value: &Output, at: i64) -> Result<Output> {
        match value {
            Output::Device(t) if t.sizes.first().is_some_and(|n| (0..*n).contains(&at)) => {
                let elements = at as u64 * t.strides[0] as u64;
                Ok(Output::Device(DeviceTensor {
                    sizes: t.sizes[1..].to_vec(),
                    strides: t.strides[1..].to_vec(),
                    address: t.address + elements * t.dtype.size() as u64,
                    ..t.clone()
                }))
            }
            _ => Err(Error::internal("a slice of no tensor")),
        }
    }

    fn stacked(&mut self, layout: &Layout, turns: i64) -> Result<Output> {
        let all = |ids: &[SizeId]| -> Result<Vec<i64>> {
            ids.iter().map(|id| self.call.size(*id)).collect()
        };
        let (sizes, strides) = (all(&layout.sizes)?, all(&layout.strides)?);
        let negative = sizes.iter().chain(&strides).any(|n| *n < 0);
        if sizes.first() != Some(&turns) || negative {
            return Err(Error::input(format!(
                "a scan of {turns} turns stacks a tensor of sizes {sizes:?}"
            )));
        }
        let shape = Shape {
            dtype: dtype_code(layout.dtype.0),
            element: layout.dtype.0.size() as u64,
            sizes: sizes.as_slice().into(),
            strides: strides.as_slice().into(),
        };
        // Turns are copied to their places whole, with what is between their elements.
        let turn = Shape {
            sizes: shape.sizes[1..].into(),
            strides: shape.strides[1..].into(),
            ..shape.clone()
        };
        let apart = (strides[0] as u64).checked_mul(shape.element);
        let of_turn = turn.bytes()?;
        if turns > 1 && apart.is_none_or(|n| n < of_turn) {
            return Err(Error::input(format!(
                "a scan stacks turns within each other: sizes {sizes:?}, strides {strides:?}"
            )));
        }
        let made = self.process.new_tensor(&shape)?;
        Ok(Output::Device(self.call.owned(made, &shape)?))
    }

    fn put(&mut self, from: &Output, to: &Output) -> Result<()> {
        let (Output::Device(from), Output::Device(to)) = (from, to) else {
            return Err(Error::internal("a scan stacks what is no tensor"));
        };
        if from.dtype != to.dtype || from.sizes != to.sizes {
            return Err(Error::input(format!(
                "a turn gives {} of sizes {:?}, the scan stacks {} of {:?}",
                from.dtype.torch_name(),
                from.sizes,
                to.dtype.torch_name(),
                to.sizes
            )));
        }
        // SAFETY: of one dtype and sizes; the target is a part of a tensor that this step allocated, and both stay until the work
        // is done: their memory goes to later work of the stream only.
        unsafe {
            (self.process).copy_tensor((to.address, &to.shape()), (from.address, &from.shape()))
        }
    }
}

/// Returns the name of a dtype by its number, for errors.
fn dtype_name(code: i32) -> &'static str {
    dtype_of(code).map_or("another dtype", |d| d.torch_name())
}

/// Copies a tensor to the host once the work of the call's stream is done.
fn to_host(process: &Process, t: &DeviceTensor) -> Result<Tensor> {
    let mut t = t.clone();
    t.stream = Some(process.stream());
    t.download()
}

impl<'a> CallState<'a> {
    /// Does the work of a step.
    ///
    /// # Errors
    /// Those of functions and programs, and of the driver.
    pub(super) fn work(
        &mut self,
        process: &Process,
        frame: &mut Frame<'_, Process>,
        step: usize,
    ) -> Result<()> {
        let executable = self.parts().executable;
        let StepKind::Work(work) = &executable.lowered.program.steps[step].kind else {
            return Err(Error::internal("a step that needs an interpreter"));
        };
        let results = match (&**work, &executable.works[step]) {
            (Work::Dynamic(d), Ready::Dynamic) => self.dynamic(process, frame, d)?,
            (Work::Library { segment, origin }, Ready::Library(model)) => {
                let results = self.library(process, frame, segment, model);
                results.map_err(|e| e.context(origin))?
            }
            (Work::Custom(c), Ready::Custom(function)) => {
                self.custom(process, frame, c, function)?
            }
            (work, Ready::Bodies(bodies)) => {
                let mut control = Control {
                    call: self,
                    process,
                    frame,
                    bodies,
                };
                match work {
                    Work::Cond(c) => flow::cond(&mut control, c)?,
                    Work::While(w) => flow::while_loop(&mut control, w)?,
                    Work::Scan(s) => flow::scan(&mut control, s)?,
                    _ => return Err(Error::internal("a step is not ready")),
                }
            }
            _ => return Err(Error::internal("a step is not ready")),
        };
        self.hand_over(process, work.fills(), results)?;
        match executable.lowered.program.steps[step].binds_symbols {
            // Sizes are known then.
            true => Ok(()),
            false => self.conform(process, step),
        }
    }

    pub(super) fn size(&self, id: SizeId) -> Result<i64> {
        self.sizes[id.0 as usize].ok_or_else(|| {
            Error::input("a size that depends on data is not known, overflows or divides by zero")
        })
    }

    /// Returns the value in a slot; a tensor is in memory of this call or of its caller.
    pub(super) fn slot(
        &mut self,
        process: &Process,
        frame: &mut Frame<'_, Process>,
        slot: usize,
    ) -> Result<Output> {
        if let Some(v) = self.number(slot) {
            return Ok(Output::Value(v));
        }
        let (address, shape, _) = self.located(process, frame, slot)?;
        let mut t = self.owned_by(address, &shape, Arc::new(Borrowed))?;
        t.read_only = true;
        Ok(Output::Device(t))
    }

    /// Returns the tensor in a slot as one of the host.
    fn host_tensor(
        &mut self,
        process: &Process,
        frame: &mut Frame<'_, Process>,
        slot: usize,
    ) -> Result<Tensor> {
        match self.slot(process, frame, slot)? {
            Output::Device(t) => to_host(process, &t),
            Output::Value(_) => Err(Error::internal("a function takes what is no tensor")),
        }
    }

    /// Calls a function that allocates its results.
    fn dynamic(
        &mut self,
        process: &Process,
        frame: &mut Frame<'_, Process>,
        d: &Dynamic,
    ) -> Result<Vec<Output>> {
        let mut tensors = Vec::with_capacity(d.inputs.len());
        for slot in &d.inputs {
            let tensor = slot.map(|slot| self.host_tensor(process, frame, slot));
            tensors.push(tensor.transpose()?);
        }
        let pool = pool()?;
        pool.check_fork()?;
        let values = inrush_runtime::run_dynamic(d, tensors, &|id| self.size(id), &pool)?;
        values.into_iter().map(|v| self.moved(process, v)).collect()
    }

    /// Calls functions of the library.
    fn library(
        &mut self,
        process: &Process,
        frame: &mut Frame<'_, Process>,
        segment: &Segment,
        model: &Model,
    ) -> Result<Vec<Output>> {
        let mut inputs = Vec::with_capacity(segment.program.inputs.len());
        for slot in &segment.inputs {
            inputs.push(Value::Tensor(self.host_tensor(process, frame, *slot)?));
        }
        inputs.extend(segment_integers(segment, &self.symbols)?);
        let values = model.run(&inputs)?;
        values.into_iter().map(|v| self.moved(process, v)).collect()
    }

    /// Moves a value of the host to the device.
    fn moved(&self, process: &Process, value: Value) -> Result<Output> {
        let Value::Tensor(t) = value else {
            return Ok(Output::Value(value));
        };
        let shape = Shape {
            dtype: dtype_code(t.dtype),
            element: t.dtype.size() as u64,
            sizes: t.sizes.as_slice().into(),
            strides: t.strides.as_slice().into(),
        };
        // SAFETY: the tensor has these sizes and strides, so many bytes from its first element.
        let bytes = unsafe { std::slice::from_raw_parts(t.data(), shape.bytes()? as usize) };
        let made = process.upload(&shape, bytes)?;
        // The bytes are needed until the copy is done.
        process.driver.synchronize(process.stream())?;
        Ok(Output::Device(self.owned(made, &shape)?))
    }

    /// Runs a body on the stream of the call.
    fn run_body(
        &mut self,
        process: &Process,
        body: &Executable,
        inputs: Vec<Output>,
    ) -> Result<Vec<Output>> {
        let arguments: Vec<Argument> = inputs.into_iter().map(Argument::from).collect();
        let given: Vec<Given<'_>> = arguments.iter().map(Given::from).collect();
        let parts = Parts {
            executable: body,
            is_body: true,
            ..self.parts()
        };
        let mut inner = CallState::new(parts, &given, Vec::new())?;
        (body.engine).run(process, &body.lowered.program, &mut inner)?;
        self.waits |= inner.waits;
        self.kept.append(&mut inner.kept);
        Ok(inner.outputs)
    }

    /// Puts results into slots. One in memory of another value is copied: operators of control flow give new tensors.
    fn hand_over(
        &mut self,
        process: &Process,
        slots: &[usize],
        results: Vec<Output>,
    ) -> Result<()> {
        if slots.len() != results.len() {
            return Err(Error::internal("control flow gives other results"));
        }
        let mut made: Vec<DeviceTensor> = Vec::with_capacity(results.len());
        for (slot, result) in slots.iter().zip(results) {
            let t = match result {
                Output::Value(v) => {
                    self.put_number(*slot, v);
                    continue;
                }
                Output::Device(t) => t,
            };
            let shared =
                t.owner.is::<Borrowed>() || made.iter().any(|m| Arc::ptr_eq(&m.owner, &t.owner));
            let t = match shared {
                true => {
                    let shape = t.shape();
                    // SAFETY: memory of the call around or of an earlier result, which stays until the copy is done: it goes to
                    // later work of the stream only.
                    let copy = unsafe { process.copy_of(&shape, t.address)? };
                    self.owned(copy, &shape)?
                }
                false => t,
            };
            made.push(t.clone());
            self.put_tensor(*slot, t);
        }
        Ok(())
    }

    /// Reads the symbols that become known after a step, evaluates sizes, and checks conditions whose sides are known now.
    ///
    /// # Errors
    /// An input error for a value out of range or a condition that does not hold.
    pub(super) fn bind_symbols(&mut self, process: &Process, step: usize) -> Result<()> {
        let executable = self.parts().executable;
        for (k, s) in executable.lowered.program.symbols.iter().enumerate() {
            if s.after != Some(step) {
                continue;
            }
            let value =
                match (s.read, self.number(s.slot), self.made_sizes(s.slot)) {
                    (Read::Int, Some(Value::Int(v) | Value::Scalar(Scalar::Int(v))), _) => v,
                    (
                        Read::Dim {
                            dim,
                            factor,
                            offset,
                        },
                        _,
                        Some(sizes),
                    ) => {
                        let size = sizes.get(dim).copied();
                        let solved = size.and_then(|n| solve(n, factor, offset));
                        solved.ok_or_else(|| {
                        let name = executable.bounds[k].as_ref().map_or("a size", |b| b.0.as_str());
                        Error::input(format!(
                            "`{name}` has no value: {size:?} is not {factor} times it plus {offset}"
                        ))
                    })?
                    }
                    _ => return Err(Error::internal("a symbol is read from nothing")),
                };
            if let Some((name, lower, upper)) = &executable.bounds[k]
                && !(*lower..=*upper).contains(&value)
            {
                return Err(Error::input(format!(
                    "`{name}` is {value}, outside {lower}..={upper}"
                )));
            }
            self.symbols[k] = Some(value);
        }
        self.sizes = evaluate_known(&executable.lowered.program.sizes, &self.symbols);
        self.check_guards()?;
        self.conform(process, step)
    }

    /// Checks the conditions on sizes whose sides are known, each once.
    pub(super) fn check_guards(&mut self) -> Result<()> {
        let guards = &self.parts().executable.lowered.guards;
        for (g, checked) in guards.iter().zip(&mut self.checked) {
            let sides = (
                self.sizes[g.left.0 as usize],
                self.sizes[g.right.0 as usize],
            );
            if let ((Some(l), Some(r)), false) = (sides, *checked) {
                check_guard(g, l, r)?;
                *checked = true;
            }
        }
        Ok(())
    }

    /// Gives the results of a step the layouts that the program expects.
    fn conform(&mut self, process: &Process, step: usize) -> Result<()> {
        let executable = self.parts().executable;
        let StepKind::Work(work) = &executable.lowered.program.steps[step].kind else {
            return Ok(());
        };
        for slot in work.fills() {
            let (Some(want), Some(t)) = (self.known_shape(*slot)?, self.made_tensor(*slot)) else {
                continue;
            };
            let have = t.shape();
            // PyTorch exports the counts of `unique` and `bincount` with the dtype of the elements.
            let promised = !matches!(**work, Work::Dynamic(_));
            let differs = have.dtype != want.dtype || have.sizes.len() != want.sizes.len();
            if promised && differs {
                return Err(Error::input(format!(
                    "it gives {} of sizes {:?}, the program expects {} of sizes {:?}",
                    dtype_name(have.dtype),
                    have.sizes,
                    dtype_name(want.dtype),
                    want.sizes
                ))
                .context(work.origin()));
            }
            // Exports may be wrong about sizes that nothing reads; what reads it, checks it.
            if differs || have.sizes != want.sizes {
                continue;
            }
            if same_strides(&have.sizes, &have.strides, &want.strides) {
                continue;
            }
            let copy = process.new_tensor(&want)?;
            // SAFETY: of one dtype and sizes; the source goes to later work of the stream only.
            unsafe { process.copy_tensor((copy.address, &want), (t.address, &have))? };
            let t = self.owned(copy, &want)?;
            self.put_tensor(*slot, t);
        }
        Ok(())
    }
}
