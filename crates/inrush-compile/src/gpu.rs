//! Stages tile and emit for GPUs: the distinct kernels of a plan as Triton source.

use crate::functions::Instance;
use crate::same;
use inrush_base::{Caps, Result};
use inrush_kernel::block::{Block, Context, block, block_contraction};
use inrush_loops::BufId;
use inrush_program::GpuKernel;
use inrush_sched::{Plan, Step};
use inrush_triton::{ArgumentSource, TritonKernel};
use rustc_hash::{FxHashMap, FxHasher};
use std::hash::{Hash, Hasher};

/// The distinct block programs of a plan, and which of them each step runs.
pub struct Blocks {
    pub distinct: Vec<Block>,
    pub load_steps: Vec<Instance>,
    pub steps: Vec<Instance>,
}

/// The distinct kernels, in the order of the blocks, with their arguments in the terms of the plan.
pub struct GpuKernels {
    pub kernels: Vec<GpuKernel>,
    pub emitted: Vec<TritonKernel>,
    pub load_steps: Vec<Instance>,
    pub steps: Vec<Instance>,
}

/// Stage tile. Steps that differ in nothing but their buffers are tiled once.
pub fn tile(plan: &Plan, caps: &Caps) -> Result<Blocks> {
    let storage = plan.storages();
    let context = Context {
        caps,
        storage: &storage,
    };
    let mut distinct: Vec<Block> = Vec::new();
    // By form: the block, and for each of its buffers the place among the buffers of the form.
    let mut known: FxHashMap<Vec<u64>, (u32, Vec<usize>)> = FxHashMap::default();
    let mut one = |step: &Step| -> Result<Instance> {
        let mut form = same::form(&plan.loops, step);
        // What lies in the same bytes, beyond aliases.
        for b in &form.buffers {
            let s = storage[b.index()];
            let at = form.buffers.iter().position(|x| storage[x.index()] == s);
            form.words.push(at.unwrap_or(usize::MAX) as u64);
        }
        if let Some((kernel, places)) = known.get(&form.words) {
            return Ok(Instance {
                kernel: *kernel,
                buffers: places.iter().map(|p| form.buffers[*p]).collect(),
            });
        }
        let made = match step {
            Step::Kernel(g) => block(&plan.loops, &g.axes, &g.bodies, &g.locals, &context)?,
            Step::Contraction(c) => block_contraction(&plan.loops, c, &context)?,
        };
        let buffers: Vec<BufId> = made.buffers.iter().map(|b| b.buf).collect();
        let places: Option<Vec<usize>> = (buffers.iter())
            .map(|b| form.buffers.iter().position(|x| x == b))
            .collect();
        let kernel = distinct.len() as u32;
        distinct.push(made);
        if let Some(places) = places {
            known.insert(form.words, (kernel, places));
        }
        Ok(Instance { kernel, buffers })
    };
    let load_steps = (plan.load_steps.iter())
        .map(&mut one)
        .collect::<Result<_>>()?;
    let steps = plan.steps.iter().map(&mut one).collect::<Result<_>>()?;
    Ok(Blocks {
        distinct,
        load_steps,
        steps,
    })
}

/// Stage emit. Instances pass on the buffers that the source takes.
pub fn emit(plan: &Plan, blocks: Blocks) -> Result<GpuKernels> {
    let mut out = GpuKernels {
        kernels: Vec::with_capacity(blocks.distinct.len()),
        emitted: Vec::with_capacity(blocks.distinct.len()),
        load_steps: Vec::new(),
        steps: Vec::new(),
    };
    let mut taken: Vec<Vec<usize>> = Vec::with_capacity(blocks.distinct.len());
    for b in &blocks.distinct {
        // Executors hand over addresses that are multiples of 16.
        let k = inrush_triton::emit(&plan.loops, b, &|_| true)?;
        let places = (k.arguments.iter())
            .filter_map(|a| match a.source {
                ArgumentSource::Buffer { buf, .. } => b.buffers.iter().position(|x| x.buf == buf),
                ArgumentSource::Size(_) => None,
            })
            .collect();
        taken.push(places);
        out.kernels.push(kernel(&k));
        out.emitted.push(k);
    }
    let pass = |all: Vec<Instance>| {
        all.into_iter()
            .map(|i| Instance {
                kernel: i.kernel,
                buffers: (taken[i.kernel as usize].iter())
                    .map(|p| i.buffers[*p])
                    .collect(),
            })
            .collect()
    };
    out.load_steps = pass(blocks.load_steps);
    out.steps = pass(blocks.steps);
    Ok(out)
}

/// What a build and a launch need. The symbol says all that the name, a digest of the text, does not.
fn kernel(k: &TritonKernel) -> GpuKernel {
    let divisible: Vec<usize> = (k.arguments.iter().enumerate())
        .filter(|(_, a)| a.divisible)
        .map(|(i, _)| i)
        .collect();
    let mut rest = FxHasher::default();
    (&k.constants, &divisible, k.warps, k.stages, k.asserts).hash(&mut rest);
    for a in &k.arguments {
        (&a.name, &a.ty).hash(&mut rest);
    }
    let symbol = format!("{}_{:016x}", k.name, rest.finish());
    GpuKernel {
        symbol,
        text: k.source.clone(),
        function: k.name.clone(),
        signature: (k.arguments.iter())
            .map(|a| (a.name.clone(), a.ty.clone()))
            .collect(),
        constants: (k.constants.iter())
            .map(|(n, v)| (n.to_string(), *v))
            .collect(),
        divisible,
        warps: k.warps,
        stages: k.stages,
        debug: k.asserts,
    }
}

/// The kernels' sources one after another.
pub fn show(kernels: &GpuKernels) -> String {
    let texts: Vec<&str> = kernels.kernels.iter().map(|k| k.text.as_str()).collect();
    texts.join("\n\n")
}
