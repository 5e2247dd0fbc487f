//! A compiled graph on a GPU: the executor, and captured calls.

use super::aten_library::{self, Functions};
use super::device::On;
use super::device_graphs::{Graphs, Todo};
use super::kinds;
use super::run::Call;
use super::scalars::Scalars;
use super::shim::Shims;
use super::torch::Torch;
use crate::errors::raise;
use inrush_host::devices;
use inrush_host::gpu;
use inrush_host::gpu::driver::Stream;
use inrush_host::gpu::tune::AtCall;
use inrush_host::program::{Device, HostProgram, StepKind};
use inrush_runtime::triton::Binary;
use pyo3::prelude::*;

/// Least work of a captured call, in launches (see [`host_work`]). A replay with its copies takes the CPU as long as some
/// launches.
const MIN_GRAPH: usize = 5;

/// Runs a program on a GPU, or its kernels in Triton's interpreter where the device is the CPU.
pub struct Engine {
    executor: gpu::Engine<Torch>,
    library: &'static Functions,
    /// Captured calls, if calls are captured.
    graphs: Option<Graphs>,
    /// Copies of the host's scalars.
    pub scalars: Scalars,
}

/// Estimates the CPU's time to issue a call, in launches.
fn host_work(program: &HostProgram) -> usize {
    (program.steps.iter())
        .map(|s| match &s.kind {
            StepKind::Segment(s) => s.program.steps.len(),
            StepKind::Library(_) => 2,
            StepKind::Call(_) => 4,
            // Programs inside PyTorch have none.
            StepKind::Work(_) => 4,
            StepKind::Kernel(_) => 1,
            StepKind::View(_) => 0,
        })
        .sum()
}

/// Returns true if calls on a device can be captured; the first time that they cannot, the user is told.
fn can_capture(py: Python<'_>, device: Device) -> PyResult<bool> {
    let driver = devices::driver(device).map_err(raise)?;
    if !driver.can_capture() {
        tell_option(py, device, "cudagraphs", "calls are not captured")?;
    }
    Ok(driver.can_capture())
}

/// Tells the user, once, that an option has no effect on a kind of device.
pub fn tell_option(py: Python<'_>, device: Device, option: &str, why: &str) -> PyResult<()> {
    let name = kinds::name(device);
    let text = format!("option `{option}` has no effect on `{name}`: {why} there");
    let module = py.import("inrush.fallback")?;
    module.call_method1("tell_option", (text,)).map(drop)
}

impl Engine {
    /// Turns library calls that this PyTorch does not have into calls from Python.
    pub fn adapt(py: Python<'_>, program: &mut HostProgram) -> PyResult<()> {
        let Some(gpu) = &program.gpu else {
            return Ok(());
        };
        // A machine without the library may compile all the same.
        let Ok(library) = aten_library::functions(py, gpu.device) else {
            return Ok(());
        };
        for step in &mut program.steps {
            if let StepKind::Library(l) = &step.kind
                && let Some(call) = &l.call
                && !library.has(&l.op)
            {
                step.kind = StepKind::Call(call.clone());
            }
        }
        Ok(())
    }

    /// The program has been checked and adapted; `binaries` are those of its kernels, none where they are interpreted.
    pub fn new(
        py: Python<'_>,
        program: &HostProgram,
        binaries: Vec<Binary>,
        graphs: bool,
    ) -> PyResult<Engine> {
        let executor = gpu::Engine::new(program, binaries).map_err(raise)?;
        let library = aten_library::functions(py, executor.device())
            .or_else(|_| aten_library::functions(py, Device::CPU))?;
        let worth = executor.device().is_gpu()
            && executor.has_known_sizes()
            && host_work(program) >= MIN_GRAPH;
        let captured = graphs && worth && can_capture(py, executor.device())?;
        Ok(Engine {
            executor,
            library,
            graphs: captured.then(Graphs::default),
            scalars: Scalars::default(),
        })
    }

    /// Returns what the call that tuned measured.
    pub fn tuned(&self) -> Vec<String> {
        self.executor.tuned()
    }

    /// Has the next call tune its kernels on its own memory.
    pub fn tune_at_call(&self, tuning: AtCall) {
        self.executor.tune_at_call(Box::new(tuning));
    }

    /// Gives up captured calls, once the work of replays is done; later ones are not captured.
    pub fn forget_graphs(&self, py: Python<'_>) -> PyResult<()> {
        match &self.graphs {
            Some(graphs) => graphs.forget(py, self.executor.device()),
            None => Ok(()),
        }
    }

    /// Replays a captured call, or returns the caller's next step.
    pub fn replay(
        &self,
        py: Python<'_>,
        shims: &'static Shims,
        call: &mut Call<'_>,
    ) -> PyResult<Todo> {
        let Some(graphs) = &self.graphs else {
            return Ok(Todo::Run);
        };
        let device = self.executor.device();
        let on = On::device(py, device)?;
        let run = |py: Python<'_>, call: &mut Call<'_>| self.run(py, shims, call);
        graphs.call(py, shims, (device, on.stream), call, &run)
    }

    /// Runs all steps; arguments are in the call's slots.
    pub fn run(&self, py: Python<'_>, shims: &'static Shims, call: &mut Call<'_>) -> PyResult<()> {
        let device = self.executor.device();
        let on = match device.is_gpu() {
            true => Some(On::device(py, device)?),
            false => None,
        };
        let host = Torch {
            shims,
            library: self.library,
            device,
            stream: on.as_ref().map_or(Stream(0), |o| o.stream),
            teller: on.as_ref().and_then(On::teller),
        };
        call.copies.clear();
        call.lent.clear();
        self.executor.run(&host, &call.runner.program, call)
    }
}
