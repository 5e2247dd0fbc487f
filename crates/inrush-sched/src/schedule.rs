//! The scheduler's stages, in order.
//!
//! The order matters. Inlining comes first, because it leaves fewer nodes and longer bodies to all
//! other steps. Splitting reductions comes after it, since what was inlined into a reduction is
//! part of each chunk. Layouts come before fusion, which asks for contiguous runs of memory. Memory
//! comes last: it needs the order of the steps.

use inrush_base::{Caps, Result};
use inrush_loops::{Body, BufId, Loops, Node};

use crate::fuse::Fused;
use crate::parallel::par_map_with;
use crate::{
    Options, Plan, Step, canonicalize, delinearize, deps, fold_weights, fuse as fusion, group,
    inline,
};

/// Loops to a finished plan: [`fuse`], [`crate::layout`], [`crate::plan_memory`].
pub fn schedule(loops: Loops, caps: &Caps, options: &Options) -> Result<Plan> {
    let mut plan = fuse(loops, caps, options)?;
    crate::layout(&mut plan, caps, options)?;
    crate::plan_memory(&mut plan)?;
    Ok(plan)
}

/// Stage fuse: inlines, splits reductions, and groups nodes into kernels, in a valid order.
pub fn fuse(mut loops: Loops, caps: &Caps, options: &Options) -> Result<Plan> {
    let mut options = options.clone();
    if caps.gpu.is_some() {
        // Programs compute locals again wherever they need them: nothing is kept.
        options.local_bytes = i64::MAX;
    }
    let options = &options;
    let mut refusals = Vec::new();
    canonicalize::mutations(&mut loops)?;
    for node in &mut loops.nodes {
        if let Node::Body(b) = node {
            canonicalize::unit_axes(&loops.exprs, b);
        }
    }
    let mut nodes = std::mem::take(&mut loops.nodes);
    let uses = deps::drop_dead(&loops, &mut nodes);
    loops.nodes = nodes;
    if options.fuse {
        // The number of programs that run at a time stands for threads.
        let tiles = caps.gpu.is_some().then_some(caps.threads as i64);
        inline::inline(&mut loops, uses, options, tiles, &mut refusals);
        crate::attention::inline_products(&mut loops);
        crate::fuse_padding::fuse_pads(&mut loops);
        crate::split::split_reductions(&mut loops, caps, options)?;
        for k in 0..loops.nodes.len() {
            delinearize::delinearize(&loops.exprs, &mut loops.nodes[k])?;
        }
    }
    let mut nodes = std::mem::take(&mut loops.nodes);
    if options.fuse {
        crate::conv_nchw::swap_operands(&mut loops, &mut nodes, caps);
    }
    crate::layout::choose(&mut loops, &nodes, caps);
    if options.fuse {
        nodes = crate::split::split_columns(&mut loops, nodes, caps)?;
    }
    let deps = deps::Deps::new(&loops, &nodes);
    let at_load = fold_weights::at_load(&loops, &nodes, &deps);
    let fused = fusion::fuse(&loops, nodes, deps, &at_load, caps, options, &mut refusals)?;
    let (steps, load_steps) = steps(&mut loops, fused, &at_load, options);
    Ok(Plan {
        loops,
        steps,
        load_steps,
        memory: Default::default(),
        refusals,
    })
}

/// Kernels from units.
fn steps(
    loops: &mut Loops,
    mut fused: Fused,
    at_load: &[bool],
    options: &Options,
) -> (Vec<Step>, Vec<Step>) {
    let mut nodes = std::mem::take(&mut fused.nodes);
    let (dag, deps) = (&fused.dag, &fused.deps);
    let members = |u: usize| dag.members[u].as_slice();
    // Whether others than the members of a unit see a buffer. Members behind the first are in order.
    let outside = |members: &[u32], b: BufId| {
        let other = |n: &u32| members[0] != *n && members[1..].binary_search(n).is_err();
        deps.output[b.index()]
            || deps.aliased[b.index()]
            || deps.fixed[b.index()]
            || deps.readers[b.index()].iter().any(other)
            || deps.writers[b.index()].iter().any(other)
    };
    let units = dag.order();
    let mut kernels: Vec<(usize, Vec<group::Member>)> = Vec::with_capacity(units.len());
    for u in &units {
        let first = members(*u)[0] as usize;
        if !matches!(nodes[first], Node::Body(_)) {
            continue;
        }
        let parts = members(*u).iter().map(|m| group::Member {
            body: std::mem::take(nodes[*m as usize].body_mut()),
            shared: &fused.shared[*m as usize],
        });
        kernels.push((*u, parts.collect()));
    }
    let buffers = &loops.buffers;
    // Forming kernels does not ask for their order.
    let (formed, order) = par_map_with(
        &loops.exprs,
        kernels,
        options.threads,
        |(_, parts)| parts.iter().map(|m| m.body.stmts.len()).sum(),
        |ex, (u, parts)| {
            let outside = |b| outside(members(u), b);
            let group = group::group(ex, buffers, parts, &fused.units[u].sizes, &outside);
            (u, group::locals(ex, buffers, group, &outside, options))
        },
        units.len() / 2,
        || crate::order::order(loops, &fused),
    );
    let mut by_unit: Vec<Option<group::Formed>> = Vec::new();
    by_unit.resize_with(fused.units.len(), || None);
    for (u, kernel) in formed {
        by_unit[u] = Some(kernel);
    }
    let (mut steps, mut load_steps) = (Vec::new(), Vec::new());
    for u in order {
        let outside = |b| outside(members(u), b);
        let first = members(u)[0] as usize;
        let step = match std::mem::replace(&mut nodes[first], Node::Body(Body::default())) {
            Node::Contraction(mut c) => {
                group::dead_stores(
                    &loops.exprs,
                    std::slice::from_mut(&mut c.epilogue),
                    &outside,
                );
                Step::Contraction(c)
            }
            Node::Library(c) => Step::Library(c),
            Node::Attention(a) => Step::Attention(a),
            Node::Body(_) => {
                let formed = by_unit[u].take().expect("one for each kernel");
                for local in formed.locals {
                    let b = &mut loops.buffers[local.buf.index()];
                    (b.sizes, b.layout) = (local.sizes, Some(local.layout));
                }
                Step::Kernel(formed.group)
            }
        };
        // Units mix no nodes of both kinds: fusion refuses these.
        if at_load[first] {
            load_steps.push(step)
        } else {
            steps.push(step)
        }
    }
    (steps, load_steps)
}
