//! Choice between one kernel and a library for a product and the pointwise operators after it, where tuning is to measure that: both
//! ways are compiled as graphs of their own and run on numbers that are drawn.

use super::place::Place;
use super::report::Watch;
use super::settings::{Settings, Tune};
use super::{State, When, options, program};
use crate::errors::raise;
use crate::fx::Imported;
use crate::host::kinds;
use crate::host::run::Runner;
use inrush_base::{Caps, DType, Error, Result};
use inrush_compile::{Fusible, Request, fusible};
use inrush_expr::Expr;
use inrush_graph::{Graph, Type};
use inrush_host::gpu::tune::Bench;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use rustc_hash::FxHashMap;

/// Adds to `caps` for which products of a graph the kernel won. Those that were never measured are measured if `bench` does that.
pub fn choose(
    py: Python<'_>,
    (graph, request): (&Graph, &Request),
    (place, settings): (&Place, &Settings),
    caps: &mut Caps,
    bench: &mut Bench,
) -> PyResult<()> {
    let options = options(settings, true);
    let (whole, of) = (graph.clone(), caps.clone());
    let found = py.detach(|| fusible(whole, request, &of, &options, &mut ()));
    // What fails here fails, or is called, when the graph is compiled.
    for product in found.unwrap_or_default() {
        let text = product.graph.print();
        let [m, n, k] = product.sizes;
        let told = format!("product {m} x {n} x {k} and what follows");
        let takes_kernel = match bench.known_product(&text, &told) {
            // A thread measures later; a first call measures kernels only.
            None if settings.tune == Tune::Known => {
                bench.unknown += 1;
                None
            }
            None if bench.measures() => {
                match measure(py, &product, (&text, &told), (place, settings), bench) {
                    Ok(kernel) => Some(kernel),
                    Err(e) => {
                        bench.done.push(format!("{told}: not measured: {e}"));
                        None
                    }
                }
            }
            known => known,
        };
        if let (Some(kernel), Some(gpu)) = (takes_kernel, &mut caps.gpu) {
            gpu.measured_products.insert(product.sizes, kernel);
        }
    }
    Ok(())
}

/// Measures both ways.
fn measure(
    py: Python<'_>,
    product: &Fusible,
    names: (&str, &str),
    (place, settings): (&Place, &Settings),
    bench: &mut Bench,
) -> PyResult<bool> {
    let [m, n, k] = product.sizes;
    let operands = [m.saturating_mul(k), k.saturating_mul(n)];
    let results = (product.graph.values.len() as i64).saturating_mul(m.saturating_mul(n));
    let elements = operands.into_iter().fold(results, i64::saturating_add);
    bench.has_room(2 * elements.max(0) as u64).map_err(raise)?;
    let inputs = inputs(py, &product.graph, place)?;
    let [library, kernel] = [false, true].map(|way| compiled(py, product, place, settings, way));
    let (library, kernel) = (library?, kernel?);
    let run = |runner: &Runner| -> Result<()> {
        Python::attach(|py| {
            let arguments: Vec<_> = inputs.iter().map(|i| i.bind(py).clone()).collect();
            let done = runner.run(py, arguments.into_iter());
            done.map(drop).map_err(|e| Error::machine(e.to_string()))
        })
    };
    let (mut by_library, mut by_kernel) = (|| run(&library), || run(&kernel));
    // Other threads go on while the device works.
    let won = py.detach(|| bench.product(names, &mut by_library, &mut by_kernel));
    won.map_err(raise)
}

/// Compiles a product one way.
fn compiled(
    py: Python<'_>,
    product: &Fusible,
    place: &Place,
    settings: &Settings,
    kernel: bool,
) -> PyResult<Runner> {
    let graph = product.graph.clone();
    let nodes = graph.nodes.len();
    let imported = Imported {
        graph,
        nodes: (0..nodes).map(|_| None).collect(),
        called: vec![None; nodes],
        pure: vec![false; nodes],
        constants: Vec::new(),
        sources: FxHashMap::default(),
    };
    let mut gpu = place.gpu.clone();
    if let Some(gpu) = gpu.as_mut().and_then(|(caps, _)| caps.gpu.as_mut()) {
        gpu.measured_products.insert(product.sizes, kernel);
    }
    let place = Place {
        device: place.device,
        gpu,
    };
    let settings = Settings {
        trace: None,
        graphs: false,
        later: false,
        inference: true,
        tune: match settings.tune {
            Tune::Background => Tune::Background,
            _ => Tune::Now,
        },
        ..settings.clone()
    };
    let watch = Watch::new(false);
    match program(py, imported, &place, &settings, None, watch, When::Now)? {
        State::Ready(runner, _) => Ok(runner),
        State::Pending(_) => Err(raise(Error::internal("a product that is not built"))),
    }
}

/// Returns drawn tensors of the types of a graph's inputs, of which all sizes are known.
fn inputs(py: Python<'_>, graph: &Graph, place: &Place) -> PyResult<Vec<Py<PyAny>>> {
    let torch = py.import("torch")?;
    let device = kinds::name(place.device());
    // A generator of its own: the process's random numbers stay as they are.
    let generator = torch.call_method1("Generator", (&device,))?;
    generator.call_method1("manual_seed", (0,))?;
    let mut out = Vec::new();
    for i in &graph.inputs {
        let Type::Tensor(t) = &graph.value(i.value).ty else {
            return Err(raise(Error::internal("an input of a product is no tensor")));
        };
        let ints =
            |e: &[Expr]| -> Option<Vec<i64>> { e.iter().map(|e| graph.exprs.as_int(*e)).collect() };
        let known = ints(&t.sizes).zip(ints(&t.strides));
        let (sizes, strides) =
            known.ok_or_else(|| raise(Error::internal("a size of a product is not known")))?;
        let last: i64 = sizes
            .iter()
            .zip(&strides)
            .map(|(n, s)| (n - 1).max(0) * s)
            .sum();
        let named = PyDict::new(py);
        let dtype = match t.dtype {
            DType::BF16 => "bfloat16",
            DType::F16 => "float16",
            _ => return Err(raise(Error::internal("an input of a product is no half"))),
        };
        named.set_item("dtype", torch.getattr(dtype)?)?;
        named.set_item("device", &device)?;
        named.set_item("generator", &generator)?;
        let all = torch.call_method("randn", (last + 1,), Some(&named))?;
        out.push(all.call_method1("as_strided", (sizes, strides))?.unbind());
    }
    // Measuring may use another stream.
    let kind = torch.getattr(device.split(':').next().unwrap_or_default())?;
    kind.call_method0("synchronize")?;
    Ok(out)
}
