//! Where a graph runs: its device, and the threads of the processor.

use super::settings::Settings;
use crate::errors::raise;
use crate::fx;
use crate::host::{device, kinds, tell_option};
use inrush_base::{Caps, Error};
use inrush_cpu::OpenMp;
use inrush_host::devices;
use inrush_host::gpu::tune::{Bench, Measures};
use inrush_host::program::Device;
use inrush_program::GpuTarget;
use inrush_runtime::Pool;
use pyo3::prelude::*;
use std::sync::{Arc, OnceLock};

/// Where a graph runs.
pub struct Place {
    /// The GPU whose tensors are the graph's.
    pub device: Option<Device>,
    /// Set for graphs on GPUs, interpreted ones too.
    pub gpu: Option<(Caps, GpuTarget)>,
}

impl Place {
    /// Finds the device of a graph. A preset takes the place of the device's own properties;
    /// without `interpret` a graph of the CPU stays one.
    pub fn of(py: Python<'_>, gm: &Bound<'_, PyAny>, settings: &Settings) -> PyResult<Place> {
        let cpu = Place {
            device: None,
            gpu: None,
        };
        let preset = settings.gpu.as_deref();
        let kinds = kinds::kinds(py)?;
        // Builds of PyTorch without GPUs skip the scan of the graph.
        if preset.is_none() && !kinds.has_gpus() {
            return Ok(cpu);
        }
        let found = fx::device(py, gm, kinds)?;
        let (device, gpu) = match (found.gpu, preset) {
            (None, Some(preset)) if settings.interpret => {
                (None, Some(devices::preset(preset).map_err(raise)?))
            }
            (None, _) => (None, None),
            (Some(device), Some(preset)) => {
                let made = devices::preset(preset).map_err(raise)?;
                (Some(of_preset(device, &made.0)?), Some(made))
            }
            (Some(device), None) => match kinds::refusal(py, device) {
                Some(why) => {
                    tell(py, why.message())?;
                    (None, None)
                }
                None => (Some(device), Some(device::caps(py, device)?)),
            },
        };
        if let (None, Some(name)) = (device, &found.other) {
            tell(py, &unknown(name))?;
        }
        Ok(Place { device, gpu })
    }

    /// Returns what measures kernels, or `None` where there is no GPU to measure on.
    pub fn bench(&self, py: Python<'_>, measures: Measures) -> PyResult<Option<Bench>> {
        let (Some(gpu), Some((caps, target))) = (self.device, &self.gpu) else {
            return Ok(None);
        };
        if !device::present(py, gpu)? {
            return Ok(None);
        }
        if !device::can_time(gpu).map_err(raise)? {
            if measures != Measures::Nothing {
                tell_option(py, gpu, "tune", "the time of work is not measured")?;
            }
            return Ok(None);
        }
        device::bench(py, gpu, (target.clone(), caps.l2_bytes), measures).map(Some)
    }

    /// Returns PyTorch's name of the device.
    pub fn name(&self) -> String {
        kinds::name(self.device())
    }

    /// Returns the device of the graph's tensors.
    pub fn device(&self) -> Device {
        self.device.unwrap_or(Device::CPU)
    }
}

/// Returns the device of a graph's tensors as one of the preset's kind: kinds share PyTorch's names.
///
/// # Errors
/// An input error for tensors that are on no such device.
fn of_preset(device: Device, caps: &Caps) -> PyResult<Device> {
    let mut kinds = devices::executed();
    let kind = kinds.find(|k| k.device.name == caps.kind);
    let kind = kind.ok_or_else(|| raise(Error::internal("a preset of no kind")))?;
    match kind.tensor_number() == kinds::number(device) {
        true => Ok(Device {
            kind: kind.torch_number(),
            index: device.index,
        }),
        false => Err(raise(Error::input(format!(
            "the graph is for `{}`, INRUSH_GPU names `{}`",
            kinds::name(device),
            caps.kind
        )))),
    }
}

/// Says that there are no kernels for a device of PyTorch's.
fn unknown(name: &str) -> String {
    let known: Vec<String> = (devices::executed())
        .map(|k| format!("`{}` ({})", k.device.torch_name, k.device.name))
        .collect();
    format!(
        "there are no kernels for `{name}` in PyTorch's process; there are for `cpu`, {}",
        known.join(", ")
    )
}

/// Warns, once for each cause, that a graph's operators are all called by PyTorch.
fn tell(py: Python<'_>, why: &str) -> PyResult<()> {
    let module = py.import("inrush.fallback")?;
    module.call_method1("tell_device", (why,)).map(drop)
}

/// Returns the threads that all compiled graphs of the process share: those of PyTorch's own OpenMP
/// runtime, so that there is one set of threads, of the size that `torch.set_num_threads` says. A
/// second set would compete for the cores with the operators that are called in between, so it is
/// used only while the first one stalls. Threads of inrush's own where the user asks for a number, or
/// where there is no such runtime.
pub fn pool(py: Python<'_>, threads: Option<usize>) -> PyResult<Arc<Pool>> {
    static POOL: OnceLock<Arc<Pool>> = OnceLock::new();
    if threads.is_some() {
        return Ok(Arc::new(Pool::new(threads).map_err(raise)?));
    }
    if let Some(p) = POOL.get() {
        return Ok(p.clone());
    }
    let pool = match OpenMp::of_process() {
        Some(runtime) => Pool::openmp(runtime),
        None => Pool::new(crate::host::shim::shims(py)?.threads()).map_err(raise)?,
    };
    Ok(POOL.get_or_init(|| Arc::new(pool)).clone())
}

/// Returns the properties of this machine's processor.
pub fn caps(threads: usize) -> Caps {
    let mut caps = Caps::cpu(inrush_cpu::detect(), threads);
    caps.vector_math &= inrush_runtime::cc::has_vector_math();
    caps
}
