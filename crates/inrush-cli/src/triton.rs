//! Programs for GPUs: graphs compiled for one, kernels built by Triton in worker processes.
//!
//! Nothing here needs a GPU. Triton is a Python package of the interpreter that `INRUSH_PYTHON` names.

use crate::progress::Progress;
use crate::session::{self, Times, Watch};
use inrush_base::{Caps, Result};
use inrush_compile::{Libraries, Options};
use inrush_graph::Graph;
use inrush_host::gpu::build;
use inrush_host::native::{self, Lowered};
use inrush_host::program::Device;
use inrush_program::{GpuKernel, GpuTarget};
use inrush_runtime::triton::{Binary, Pool};
use std::time::Instant;

/// A GPU that graphs are compiled for.
pub(crate) struct Gpu<'a> {
    pub(crate) caps: &'a Caps,
    pub(crate) target: &'a GpuTarget,
    pub(crate) device: Device,
    pub(crate) libraries: Libraries,
}

/// Compiles a graph for a GPU. No kernel is built.
pub(crate) fn lower(
    graph: Graph,
    gpu: &Gpu<'_>,
    progress: &Progress,
    times: &mut Times,
) -> Result<Lowered> {
    lower_tunable(graph, gpu, false, progress, times).map(|made| made.0)
}

/// Compiles a graph for a GPU. No kernel is built. With `tune` gives others that take the launches of each kernel.
pub(crate) fn lower_tunable(
    graph: Graph,
    gpu: &Gpu<'_>,
    tune: bool,
    progress: &Progress,
    times: &mut Times,
) -> Result<(Lowered, Vec<Vec<GpuKernel>>)> {
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let options = Options {
        threads: threads.min(8),
        libraries: gpu.libraries,
        verify: session::verify(),
        retile: tune,
        ..Options::default()
    };
    let mut watch = Watch {
        times,
        progress,
        start: Instant::now(),
    };
    let target = (gpu.caps, gpu.target);
    native::compile_tunable(graph, target, gpu.device, &options, &[], &mut watch)
}

/// Compiles a graph for a GPU and builds its kernels. Returns true with them if all were in the cache.
pub(crate) fn compile(
    graph: Graph,
    gpu: &Gpu<'_>,
    pool: &Pool,
    progress: &Progress,
    times: &mut Times,
) -> Result<(Lowered, Vec<Binary>, bool)> {
    let lowered = lower(graph, gpu, progress, times)?;
    let start = Instant::now();
    progress.step(format!(
        "build: {} kernels by Triton",
        lowered.kernels().len()
    ));
    let (binaries, cached) = build::build_all(pool, &lowered)?;
    times.stages.push(("build", start.elapsed()));
    Ok((lowered, binaries, cached))
}
