//! Where a graph runs: its device, and the threads of the processor.

use super::settings::Settings;
use crate::errors::raise;
use crate::fx;
use crate::host::device;
use inrush_base::Caps;
use inrush_cpu::OpenMp;
use inrush_host::devices;
use inrush_host::gpu::tune::Bench;
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
        // Builds of PyTorch without GPUs skip the scan of the graph.
        if preset.is_none() && !device::built(py)? {
            return Ok(cpu);
        }
        let device = fx::device(py, gm)?;
        let gpu = match (device, preset) {
            (None, Some(preset)) if settings.interpret => {
                Some(devices::preset(preset).map_err(raise)?)
            }
            (None, _) => None,
            (Some(_), Some(preset)) => Some(devices::preset(preset).map_err(raise)?),
            (Some(device), None) => Some(device::caps(py, device)?),
        };
        Ok(Place { device, gpu })
    }

    /// Returns what measures kernels, or `None` where there is no GPU to measure on. With
    /// `known_only` it looks up earlier measurements and makes none.
    pub fn bench(&self, py: Python<'_>, known_only: bool) -> PyResult<Option<Bench>> {
        let (Some(gpu), Some((_, target))) = (self.device, &self.gpu) else {
            return Ok(None);
        };
        if !device::present(py, gpu)? {
            return Ok(None);
        }
        device::bench(py, gpu, target.clone(), known_only).map(Some)
    }

    /// Returns PyTorch's name of the device.
    pub fn name(&self) -> String {
        devices::name(self.device())
    }

    /// Returns the device of the graph's tensors.
    pub fn device(&self) -> Device {
        self.device.unwrap_or(Device::CPU)
    }
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
