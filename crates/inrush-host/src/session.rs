//! A package on whichever device it was opened for: the CPU, through `inrush-runtime`, or a GPU.

use crate::native::{Argument, DeviceTensor, Model, NewWeight, Options, Output, Stream, device};
use inrush_base::{Error, Result};
use inrush_package::Package;
use inrush_runtime::{
    Model as CpuModel, Names, Pool, Session as CpuSession, Signature, Tensor, Value, WeightSpec,
    WeightView,
};
use std::sync::Arc;

/// How a package is opened.
#[derive(Clone, Debug, Default)]
pub struct Open {
    /// `cpu`, or a GPU by its kind and number (`:1` after the kind for the second one). Empty for the CPU.
    pub device: String,
    /// Threads of each call on the CPU; `None` for one for each processor.
    pub threads: Option<usize>,
    /// Options of GPUs, and the seed on any device.
    pub options: Options,
}

/// A loaded package. Calls and updates of weights may come from several threads at once.
// There is one for each package.
#[allow(clippy::large_enum_variant)]
pub enum Session {
    Cpu(CpuSession),
    Gpu(Model),
}

impl Session {
    /// Loads a package for a device.
    ///
    /// # Errors
    /// An input error for an unknown device and for graphs of the driver on the CPU; those of [`Model::from_package`] and of
    /// [`inrush_runtime::Model::from_package`].
    pub fn new(package: Package, o: &Open) -> Result<Session> {
        if !matches!(o.device.as_str(), "" | "cpu") {
            let on = device::parse(&o.device)?;
            let model = Model::from_package(&package, on, o.options.clone())?;
            return Ok(Session::Gpu(model));
        }
        if o.options.capture {
            return Err(Error::input(
                "captured graphs are for GPUs, not for the CPU",
            ));
        }
        let model = CpuModel::from_package(package, Arc::new(Pool::new(o.threads)?))?;
        // Loading has used its pool. The threads of this one have not started, so that the process can fork before its first call.
        let model = model.on_pool(Arc::new(Pool::new(o.threads)?));
        model.set_seed(o.options.seed);
        Ok(Session::Cpu(CpuSession::new(model)))
    }

    /// Returns the inputs and outputs.
    pub fn signature(&self) -> Signature {
        match self {
            Session::Cpu(s) => Signature::of(s.model().program()),
            Session::Gpu(m) => m.signature().clone(),
        }
    }

    /// Lists the weights of the model, in the program's order.
    pub fn weights(&self) -> Vec<WeightSpec> {
        match self {
            Session::Cpu(s) => s.weights(),
            Session::Gpu(m) => m.weights(),
        }
    }

    /// Returns the name of the device: `cpu`, or its kind and number.
    pub fn device(&self) -> String {
        match self {
            Session::Cpu(_) => "cpu".into(),
            Session::Gpu(m) => crate::devices::name(m.device()),
        }
    }

    /// Runs the model: see [`Model::call`]. On the CPU outputs are tensors of the host.
    ///
    /// # Errors
    /// Those of the device's calls; an input error for a stream or memory of a device on the CPU.
    pub fn run(&self, inputs: Vec<Argument>, stream: Option<Stream>) -> Result<Vec<Output>> {
        match self {
            Session::Gpu(m) => m.call(&inputs, stream),
            Session::Cpu(s) => {
                no_stream(stream)?;
                let outputs = s.run(&on_host("input", inputs)?)?;
                Ok(outputs.into_iter().map(Output::Value).collect())
            }
        }
    }

    /// Runs the model into memory of the caller: see [`Model::call_into`].
    ///
    /// # Errors
    /// As [`Session::run`], and for memory that does not fit an output.
    ///
    /// # Safety
    /// As for [`Model::call_into`] and [`inrush_runtime::Model::run_into`].
    pub unsafe fn run_into(
        &self,
        inputs: Vec<Argument>,
        outputs: Vec<Argument>,
        stream: Option<Stream>,
    ) -> Result<()> {
        match self {
            // SAFETY: the caller's promise.
            Session::Gpu(m) => unsafe { m.call_into(&inputs, &outputs, stream) },
            Session::Cpu(s) => {
                no_stream(stream)?;
                let (inputs, outputs) = (on_host("input", inputs)?, on_host("output", outputs)?);
                // SAFETY: the caller's promise.
                unsafe { s.run_into(&inputs, &outputs) }
            }
        }
    }

    /// Replaces weights of the inactive set, by copies.
    ///
    /// # Errors
    /// An input error that names the weight; the sets are unchanged then.
    pub fn update_weights(&self, new: &[(&str, NewWeight<'_>)], names: Names) -> Result<()> {
        let s = match self {
            Session::Gpu(m) => return m.update_weights(new, names),
            Session::Cpu(s) => s,
        };
        let views = (new.iter())
            .map(|(name, w)| match w {
                NewWeight::Host(v) => Ok((*name, *v)),
                NewWeight::Device(t) | NewWeight::Shared(t) => {
                    Err(on_device(&format!("weight `{name}`"), t))
                }
            })
            .collect::<Result<Vec<(&str, WeightView<'_>)>>>()?;
        s.update_weights(&views, names)
    }

    /// Makes the inactive set the active one. Calls that have begun finish on the old set.
    ///
    /// # Errors
    /// An input error where no update came since the last swap.
    pub fn swap_weights(&self) -> Result<()> {
        match self {
            Session::Cpu(s) => s.swap_weights(),
            Session::Gpu(m) => m.swap_weights(),
        }
    }

    /// Forgets the inactive set.
    pub fn discard_update(&self) {
        match self {
            Session::Cpu(s) => s.discard_update(),
            Session::Gpu(m) => m.discard_update(),
        }
    }

    /// Returns a copy of a weight of the active set on the host; `None` for a name that the model does not have, or for too little
    /// memory on the CPU.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn weight(&self, name: &str) -> Result<Option<Tensor>> {
        match self {
            Session::Cpu(s) => Ok(s.model().weight(name)),
            Session::Gpu(m) => m.weight(name),
        }
    }

    /// Sets the seed of the next call's random numbers. False when the model draws none.
    ///
    /// # Errors
    /// Those of the driver.
    pub fn set_seed(&self, seed: i64) -> Result<bool> {
        match self {
            Session::Cpu(s) => Ok(s.model().set_seed(seed)),
            Session::Gpu(m) => m.set_seed(seed),
        }
    }

    /// Returns the number of threads of a call on the CPU, or of calls at once on a GPU.
    pub fn threads(&self) -> usize {
        match self {
            Session::Cpu(s) => s.model().threads(),
            Session::Gpu(m) => m.concurrent(),
        }
    }
}

fn no_stream(stream: Option<Stream>) -> Result<()> {
    match stream {
        None => Ok(()),
        Some(_) => Err(Error::input(
            "a stream is given, and the model is on the CPU, which has none",
        )),
    }
}

fn on_device(what: &str, t: &DeviceTensor) -> Error {
    Error::input(format!(
        "{what} is in the memory of `{}`, the model is on the CPU",
        crate::devices::name(t.device())
    ))
}

/// Returns values of the host.
fn on_host(what: &str, all: Vec<Argument>) -> Result<Vec<Value>> {
    let host = |(k, a): (usize, Argument)| match a {
        Argument::Value(v) => Ok(v),
        Argument::Device(t) => Err(on_device(&format!("{what} {k}"), &t)),
    };
    all.into_iter().enumerate().map(host).collect()
}
