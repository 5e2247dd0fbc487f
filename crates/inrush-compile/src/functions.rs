//! Kernels of a plan: tiled, emitted, each distinct function once.

use crate::wrap::Emitted;
use inrush_base::{Caps, Result};
use inrush_c::Function;
use inrush_kernel::Kernel;
use inrush_sched::{Plan, Step};
use rustc_hash::FxHashMap;

/// Kernels of the load steps and of the steps, in order.
pub struct Kernels {
    pub load_steps: Vec<Kernel>,
    pub steps: Vec<Kernel>,
}

/// Functions and the steps that call them.
pub struct EmittedAll {
    pub functions: Vec<Function>,
    pub load_steps: Vec<Emitted>,
    pub steps: Vec<Emitted>,
}

/// Stage tile over all steps.
pub fn tile(plan: &Plan, caps: &Caps) -> Result<Kernels> {
    let one = |s: &Step| match s {
        Step::Kernel(g) => inrush_kernel::tile(&plan.loops, &g.axes, &g.bodies, &g.locals, caps),
        Step::Contraction(c) => inrush_kernel::tile_epilogue(&plan.loops, c, caps),
    };
    Ok(Kernels {
        load_steps: plan.load_steps.iter().map(one).collect::<Result<_>>()?,
        steps: plan.steps.iter().map(one).collect::<Result<_>>()?,
    })
}

/// The kernels as text.
pub fn show(plan: &Plan, kernels: &Kernels) -> String {
    let all = kernels.load_steps.iter().chain(&kernels.steps);
    inrush_kernel::text::print_all(&plan.loops.exprs, all)
}

/// Stage emit: C source, equal functions once.
pub fn emit(plan: &Plan, kernels: Kernels, caps: &Caps) -> Result<EmittedAll> {
    let mut functions: Vec<Function> = Vec::new();
    let mut by_name: FxHashMap<String, u32> = FxHashMap::default();
    let mut one = |kernel: Kernel| -> Result<Emitted> {
        let function = inrush_c::emit(&plan.loops.exprs, &kernel, caps)?;
        let next = functions.len() as u32;
        let at = *by_name.entry(function.name.clone()).or_insert_with(|| {
            functions.push(function);
            next
        });
        Ok(Emitted {
            kernel,
            function: at,
        })
    };
    let load_steps = kernels
        .load_steps
        .into_iter()
        .map(&mut one)
        .collect::<Result<_>>()?;
    let steps = kernels
        .steps
        .into_iter()
        .map(&mut one)
        .collect::<Result<_>>()?;
    Ok(EmittedAll {
        functions,
        load_steps,
        steps,
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
