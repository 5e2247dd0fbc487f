//! Kernels of a plan: tiled, emitted, each distinct function once.

use crate::same;
use inrush_base::{Caps, Error, Result};
use inrush_c::Function;
use inrush_kernel::Kernel;
use inrush_loops::BufId;
use inrush_sched::{Plan, Step};
use rustc_hash::FxHashMap;

/// The distinct kernels of a plan, and which of them each step runs.
pub struct Kernels {
    pub distinct: Vec<Kernel>,
    pub load_steps: Vec<Instance>,
    pub steps: Vec<Instance>,
}

/// A kernel as one step runs it.
pub struct Instance {
    /// Position among the distinct kernels.
    pub kernel: u32,
    /// What the step passes, in the order of [`Kernel::arguments`].
    pub buffers: Vec<BufId>,
}

/// The distinct functions.
pub struct Functions {
    pub functions: Vec<Function>,
    /// For each distinct kernel its function: kernels of different steps may still give equal text.
    pub of_kernel: Vec<u32>,
}

/// Stage tile over all steps. Steps that differ in nothing but their buffers are tiled once.
pub fn tile(plan: &Plan, caps: &Caps) -> Result<Kernels> {
    let mut distinct: Vec<Kernel> = Vec::new();
    // By form: the kernel, and for each argument its place among the buffers of the form.
    let mut known: FxHashMap<Vec<u64>, (u32, Vec<usize>)> = FxHashMap::default();
    let mut one = |step: &Step| -> Result<Instance> {
        let form = same::form(&plan.loops, step);
        if let Some((kernel, places)) = known.get(&form.words) {
            return Ok(Instance {
                kernel: *kernel,
                buffers: places.iter().map(|p| form.buffers[*p]).collect(),
            });
        }
        let made = match step {
            Step::Kernel(g) => {
                inrush_kernel::tile(&plan.loops, &g.axes, &g.bodies, &g.locals, caps)?
            }
            Step::Contraction(c) => inrush_kernel::tile_epilogue(&plan.loops, c, caps)?,
        };
        let buffers: Vec<BufId> = made.arguments().map(|(_, b)| b.buf).collect();
        let places = buffers
            .iter()
            .map(|b| form.buffers.iter().position(|x| x == b))
            .collect::<Option<Vec<usize>>>()
            .ok_or_else(|| {
                Error::internal("a kernel takes a buffer that its step does not touch")
            })?;
        let kernel = distinct.len() as u32;
        distinct.push(made);
        known.insert(form.words, (kernel, places));
        Ok(Instance { kernel, buffers })
    };
    let load_steps = plan
        .load_steps
        .iter()
        .map(&mut one)
        .collect::<Result<_>>()?;
    let steps = plan.steps.iter().map(&mut one).collect::<Result<_>>()?;
    Ok(Kernels {
        distinct,
        load_steps,
        steps,
    })
}

/// The distinct kernels as text.
pub fn show(plan: &Plan, kernels: &Kernels) -> String {
    inrush_kernel::text::print_all(&plan.loops.exprs, &kernels.distinct)
}

/// Stage emit: C source, equal functions once.
pub fn emit(plan: &Plan, kernels: &Kernels, caps: &Caps) -> Result<Functions> {
    let mut functions: Vec<Function> = Vec::new();
    let mut by_name: FxHashMap<String, u32> = FxHashMap::default();
    let mut of_kernel = Vec::with_capacity(kernels.distinct.len());
    let mut writer = inrush_c::Writer::new(caps);
    for kernel in &kernels.distinct {
        let function = writer.function(&plan.loops.exprs, kernel)?;
        let next = functions.len() as u32;
        let at = *by_name.entry(function.name.clone()).or_insert_with(|| {
            functions.push(function);
            next
        });
        of_kernel.push(at);
    }
    Ok(Functions {
        functions,
        of_kernel,
    })
}

/// Translation units of similar length: longest first into the shortest piece; within a piece functions keep their order.
pub fn spread(functions: &[Function], pieces: usize) -> Vec<String> {
    let pieces = pieces.min(functions.len()).max(1);
    let mut order: Vec<usize> = (0..functions.len()).collect();
    order.sort_by_key(|i| (std::cmp::Reverse(functions[*i].text.len()), *i));
    let mut lengths = vec![0; pieces];
    let mut piece_of = vec![0; functions.len()];
    for i in order {
        let p = (0..pieces).min_by_key(|p| (lengths[*p], *p)).unwrap_or(0);
        lengths[p] += functions[i].text.len();
        piece_of[i] = p;
    }
    (0..pieces)
        .map(|p| {
            inrush_c::unit(
                functions
                    .iter()
                    .zip(&piece_of)
                    .filter(|(_, q)| **q == p)
                    .map(|(f, _)| f),
            )
        })
        .collect()
}
