//! A package on a GPU: calls on the caller's stream, and constants in memory of the device.

use crate::cuda::Cuda;
use crate::torch::{Handle, Owned, Torch};
use inrush_base::{Error, Result};
use inrush_host::gpu::driver::DevicePtr;
use inrush_host::native::{
    Argument, DeviceTensor, Model, NewWeight, Options, Output, Owner, Stream,
};
use inrush_host::{devices, dtype_code};
use inrush_runtime::{InputKind, Names, OutputSpec, Package, Set, Tensor, Value, View, WeightView};
use std::sync::Arc;

/// Calls that are issued at once, at least.
const CONCURRENT: usize = 4;

/// A model on a GPU, with PyTorch's functions for its device.
pub(crate) struct OnDevice {
    torch: &'static Torch,
    cuda: Cuda,
    model: Model,
}

/// Marks memory of an input, by position.
struct OfInput(usize);

/// A new constant.
enum New {
    Host(Tensor),
    Copied(DeviceTensor),
    Shared(DeviceTensor),
}

/// A result of a call.
pub(crate) enum Made {
    Tensor(Owned),
    /// A number, or nothing.
    Value(Value),
}

impl OnDevice {
    /// Loads the target of a package for the device that a name gives. `models` calls are issued at once.
    ///
    /// # Errors
    /// Those of [`Cuda::new`] and of [`Model::from_package`].
    pub(crate) fn open(
        package: &Package,
        torch: &'static Torch,
        name: &str,
        models: usize,
    ) -> Result<OnDevice> {
        let cuda = Cuda::new(torch, name)?;
        let options = Options {
            concurrent: models.max(CONCURRENT),
            library: Some(Arc::new(cuda)),
            ..Options::default()
        };
        let model = Model::from_package(package, cuda.device(), options)?;
        Ok(OnDevice { torch, cuda, model })
    }

    pub(crate) fn model(&self) -> &Model {
        &self.model
    }

    /// Runs the model on tensors, which are for the inputs at positions `passed`.
    ///
    /// # Errors
    /// An input error that names the input, for other tensors than the model takes.
    ///
    /// # Safety
    /// Handles are null or live tensors of PyTorch; the stream is one of the device's.
    pub(crate) unsafe fn run(
        &self,
        passed: &[usize],
        given: &[Owned],
        stream: Stream,
    ) -> Result<Vec<Made>> {
        let signature = self.model.signature();
        let mut values = vec![Argument::Value(Value::None); signature.inputs.len()];
        let mut handles: Vec<Handle> = vec![std::ptr::null_mut(); values.len()];
        for (tensor, at) in given.iter().zip(passed) {
            let (spec, h) = (&signature.inputs[*at], tensor.handle());
            let value = match spec.kind {
                // SAFETY: the caller's promise; the list outlives the call.
                InputKind::Int => unsafe { self.torch.tensor(h, Box::new(())) }
                    .and_then(|t| crate::container::integer(&t))
                    .map(|i| Argument::Value(Value::Int(i))),
                // SAFETY: likewise.
                _ => unsafe { self.tensor(h, Arc::new(OfInput(*at))) }.map(Argument::Device),
            };
            values[*at] = value.map_err(|e| e.context(format!("input `{}`", spec.name)))?;
            handles[*at] = h;
        }
        let _on = self.cuda.enter(stream)?;
        let outputs = self.model.call(&values, Some(stream))?;
        (outputs.into_iter().zip(&signature.outputs))
            .filter(|(_, spec)| **spec != OutputSpec::Mutation)
            .map(|(o, _)| match o {
                Output::Value(v) => Ok(Made::Value(v)),
                // SAFETY: the handles live, and the output is in memory of one or of a tensor of its own.
                Output::Device(t) => unsafe { self.output(&t, &handles) }.map(Made::Tensor),
            })
            .collect()
    }

    /// Returns a tensor of the device where it is.
    ///
    /// # Safety
    /// `h` is null or a live tensor, whose memory lives as long as `owner`, or as long as the result is used.
    unsafe fn tensor(&self, h: Handle, owner: Owner) -> Result<DeviceTensor> {
        if h.is_null() {
            return Err(Error::input("there is no tensor"));
        }
        let device = self.cuda.device();
        // SAFETY: a live tensor.
        let (kind, index) = unsafe { self.torch.device(h) }?;
        if (kind, index) != (device.kind, device.index) {
            let on = inrush_host::program::Device { kind, index };
            let on = match devices::by_torch_number(kind) {
                None if kind != self.torch.cpu() => "another kind of device".to_string(),
                _ => devices::name(on),
            };
            return Err(Error::input(format!(
                "it is on {on}, the model is on {}",
                devices::name(device)
            )));
        }
        // SAFETY: as above.
        let ((dtype, sizes, strides), address) =
            unsafe { (self.torch.dense(h)?, self.torch.address(h)?) };
        if address.is_null() && !sizes.contains(&0) {
            return Err(Error::input("the tensor has no memory"));
        }
        let at = (address as DevicePtr, device);
        // SAFETY: the caller's promise.
        unsafe { DeviceTensor::foreign(dtype, (sizes, strides), at, owner) }
    }

    /// Returns an output as a tensor of PyTorch in the memory that it is in.
    ///
    /// # Safety
    /// The output is in memory of a tensor that it owns, or of an input, whose handle lives.
    unsafe fn output(&self, t: &DeviceTensor, inputs: &[Handle]) -> Result<Owned> {
        let base = match (t.owner::<OfInput>(), t.owner::<Owned>()) {
            (Some((of, _)), _) => inputs[of.0],
            (None, Some((own, _))) => own.handle(),
            (None, None) => return Err(Error::internal("an output in memory of no tensor")),
        };
        // SAFETY: the caller's promise.
        let ((dtype, sizes, strides), from) = unsafe {
            (
                self.torch.dense(base)?,
                self.torch.address(base)? as DevicePtr,
            )
        };
        let offset = t.address().wrapping_sub(from) as i64 / t.dtype.size() as i64;
        if dtype == t.dtype && offset == 0 && sizes == t.sizes && strides == t.strides {
            // SAFETY: as above.
            return unsafe { self.torch.keep(base) };
        }
        let view = View {
            sizes: t.sizes.clone(),
            strides: t.strides.clone(),
            offset,
        };
        // SAFETY: as above; what is read as another dtype is in the same memory.
        unsafe {
            if dtype == t.dtype {
                return self.torch.view(base, &view, 0);
            }
            let read = self.cuda.read_as(base, dtype_code(t.dtype))?;
            self.torch.view(read.handle(), &view, 0)
        }
    }

    /// Replaces constants of a set, which come from the CPU or from the device. Those that are managed stay where they are.
    ///
    /// # Errors
    /// Those of the CPU. An input error for a managed constant whose strides or alignment kernels do not support.
    ///
    /// # Safety
    /// Handles are null or live tensors of PyTorch. Those of a managed update keep their values during calls.
    pub(crate) unsafe fn update(
        &self,
        new: &[(String, Handle)],
        (set, names, managed): (Set, Names, bool),
    ) -> Result<()> {
        let stream = self.cuda.stream()?;
        let mut values: Vec<(&str, New)> = Vec::with_capacity(new.len());
        for (name, handle) in new {
            let read = || {
                if handle.is_null() {
                    return Err(Error::input("there is no tensor"));
                }
                // SAFETY: the caller's promise; the handle that is kept holds the memory.
                unsafe {
                    let kept = self.torch.keep(*handle)?;
                    if self.torch.device(*handle)?.0 == self.torch.cpu() && !managed {
                        return self.torch.tensor(*handle, Box::new(kept)).map(New::Host);
                    }
                    let t = self.tensor(*handle, Arc::new(kept))?.written_on(stream);
                    Ok(if managed {
                        New::Shared(t)
                    } else {
                        New::Copied(t)
                    })
                }
            };
            values.push((
                name,
                read().map_err(|e| e.context(format!("constant `{name}`")))?,
            ));
        }
        let new: Vec<(&str, NewWeight<'_>)> = (values.iter())
            .map(|(name, value)| {
                let weight = match value {
                    New::Host(t) => NewWeight::Host(t.view()),
                    New::Copied(t) => NewWeight::Device(t),
                    New::Shared(t) => NewWeight::Shared(t),
                };
                (*name, weight)
            })
            .collect();
        self.model.update(set, &new, names)
    }

    /// Replaces all constants of the active set by those of a blob, which is in memory of the host.
    ///
    /// # Errors
    /// Those of the driver.
    pub(crate) fn update_from_views(&self, new: &[(&str, WeightView<'_>)]) -> Result<()> {
        let new: Vec<(&str, NewWeight<'_>)> = (new.iter())
            .map(|(name, view)| (*name, NewWeight::Host(*view)))
            .collect();
        self.model.update(Set::Active, &new, Names::All)
    }
}
