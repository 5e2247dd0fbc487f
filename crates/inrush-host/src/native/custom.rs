//! Calls of operators of the user's on a device: the function issues its work on the stream of the call.

use super::call::CallState;
use super::process::Process;
use super::tensor::{DeviceTensor, Output};
use crate::devices::by_torch_number;
use crate::gpu::Frame;
use crate::host::Host;
use crate::program::{Layout, Lowered};
use crate::shape::{Shape, dtype_code};
use inrush_base::{Error, Result};
use inrush_program::parts::{Argument, Custom};
use inrush_runtime::operators::{
    OperatorCall, OperatorDevice, OperatorTensor, Registered, arguments, check_asked_for,
    check_calls, declared_result, find_operator, invoke,
};
use inrush_runtime::tensor::contiguous_strides;

/// Checks that a program's operators have functions for GPUs, those of its bodies too.
///
/// # Errors
/// An input error that lists all that are missing, with their Python lines.
pub(super) fn check_operators(program: &Lowered) -> Result<()> {
    let device = device(program);
    let calls = program.operator_calls();
    match calls.is_empty() {
        true => Ok(()),
        false => check_calls(&calls, kind(device)?),
    }
}

/// Returns the kind of device as functions are registered for it.
fn kind(device: i32) -> Result<OperatorDevice> {
    let kind = by_torch_number(device);
    let kind = kind.ok_or_else(|| Error::internal("a device of no kind"))?;
    Ok(OperatorDevice::gpu(kind.device))
}

/// Finds the function of a call.
///
/// # Errors
/// As [`check_operators`].
pub(super) fn find(c: &Custom, program: &Lowered) -> Result<Registered> {
    find_operator(c, kind(device(program))?)
}

/// Returns PyTorch's number of the kind of device that a program is for.
fn device(program: &Lowered) -> i32 {
    program.program.gpu.as_ref().map_or(0, |g| g.device.kind)
}

impl CallState<'_> {
    /// Calls the function of an operator of the user's.
    pub(super) fn custom(
        &mut self,
        process: &Process,
        frame: &mut Frame<'_, Process>,
        c: &Custom,
        function: &Registered,
    ) -> Result<Vec<Output>> {
        let schema = &function.operator.schema;
        let mut tensors: Vec<Vec<DeviceTensor>> = vec![Vec::new(); c.args.len()];
        let mut written = Vec::new();
        for (at, a) in c.args.iter().enumerate() {
            let slots = match a {
                Argument::Tensor(slot) => vec![*slot],
                Argument::Tensors(all) => all.iter().flatten().copied().collect(),
                _ => Vec::new(),
            };
            for slot in slots {
                let mut t = self.device_tensor(process, frame, slot)?;
                if c.written(schema, at).is_some() {
                    let shape = t.shape();
                    // SAFETY: memory of the call, whose later work the copy is.
                    let copy = unsafe { process.copy_of(&shape, t.address)? };
                    t = self.owned(copy, &shape)?;
                    written.push(t.clone());
                }
                tensors[at].push(t);
            }
        }
        let mut given: Vec<_> = tensors.iter().map(|all| all.iter()).collect();
        let args = arguments(c, schema, &|id| self.size(id), |at, _| {
            let next = given[at].next();
            next.map(operator_tensor)
                .ok_or_else(|| Error::internal("an argument has fewer tensors"))
        })?;
        let mut made: Vec<Option<DeviceTensor>> = Vec::with_capacity(c.results.len());
        for l in &c.results {
            let shape = self.result_shape(l)?;
            let tensor = shape.map(|shape| self.made(process, &shape)).transpose()?;
            made.push(tensor);
        }
        let results = (made.iter())
            .map(|t| t.as_ref().map(operator_tensor))
            .collect();
        let this = &*self;
        let mut make = |at: usize, sizes: &[i64]| {
            let t = this.made(process, &this.asked_for(&c.results[at], sizes)?)?;
            let given = operator_tensor(&t);
            made[at] = Some(t);
            Ok(given)
        };
        let stream = process.stream().0 as *mut std::ffi::c_void;
        let mut call = OperatorCall::new(args, results, stream, &mut make);
        invoke(function, &mut call, &c.origin)?;
        drop(call);
        let results = made.into_iter().flatten().chain(written);
        Ok(results.map(Output::Device).collect())
    }

    fn device_tensor(
        &mut self,
        process: &Process,
        frame: &mut Frame<'_, Process>,
        slot: usize,
    ) -> Result<DeviceTensor> {
        match self.slot(process, frame, slot)? {
            Output::Device(t) => Ok(t),
            Output::Value(_) => Err(Error::internal("a function takes what is no tensor")),
        }
    }

    fn made(&self, process: &Process, shape: &Shape) -> Result<DeviceTensor> {
        let made = process.new_tensor(shape)?;
        self.owned(made, shape)
    }

    /// Returns the shape of a result; `None` if a size is not known before the call.
    fn result_shape(&self, l: &Layout) -> Result<Option<Shape>> {
        let layout = declared_result(l, &|id| self.sizes[id.0 as usize])?;
        Ok(layout.map(|(sizes, strides)| shape(l, &sizes, &strides)))
    }

    /// Returns the shape of a result of the sizes that a function asks for.
    fn asked_for(&self, l: &Layout, sizes: &[i64]) -> Result<Shape> {
        check_asked_for(l, sizes, &|id| self.sizes[id.0 as usize])?;
        Ok(shape(l, sizes, &contiguous_strides(sizes)))
    }
}

fn shape(l: &Layout, sizes: &[i64], strides: &[i64]) -> Shape {
    Shape {
        dtype: dtype_code(l.dtype.0),
        element: l.dtype.0.size() as u64,
        sizes: sizes.into(),
        strides: strides.into(),
    }
}

/// Returns a tensor as functions see it.
fn operator_tensor(t: &DeviceTensor) -> OperatorTensor {
    OperatorTensor {
        dtype: t.dtype,
        sizes: t.sizes.clone(),
        strides: t.strides.clone(),
        data: t.address as usize as *mut u8,
        device: super::dlpack::place(t.device),
        owner: t.owner.clone(),
    }
}
