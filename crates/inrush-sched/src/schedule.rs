//! The scheduler's stages, in order.

use inrush_base::{Caps, Result};
use inrush_loops::{BufId, Loops, Node};
use rustc_hash::FxHashSet;

use crate::fuse::Fused;
use crate::{Options, Plan, Step, deps, digits, fold, fuse as fusion, group, inline, prepare};

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
    prepare::mutations(&mut loops)?;
    for node in &mut loops.nodes {
        if let Node::Body(b) = node {
            prepare::unit_axes(&loops.exprs, b);
        }
    }
    drop_dead(&mut loops);
    if options.fuse {
        inline::inline(&mut loops, options, caps.gpu.is_some(), &mut refusals);
        crate::pads::fuse_pads(&mut loops);
        crate::split::split_reductions(&mut loops, caps, options)?;
        // Tiles of a GPU add as a tree.
        if caps.gpu.is_none() {
            crate::widen::widen_sums(&mut loops);
        }
        for k in 0..loops.nodes.len() {
            digits::split_digits(&loops.exprs, &mut loops.nodes[k])?;
        }
    }
    let nodes = std::mem::take(&mut loops.nodes);
    crate::layout::choose(&mut loops, &nodes);
    let deps = deps::Deps::new(&loops, &nodes);
    let at_load = fold::at_load(&loops, &nodes, &deps);
    let fused = fusion::fuse(&loops, nodes, deps, &at_load, caps, options, &mut refusals)?;
    let (steps, load_steps) = steps(&mut loops, fused, &at_load, options)?;
    Ok(Plan {
        loops,
        steps,
        load_steps,
        memory: Default::default(),
        refusals,
    })
}

fn drop_dead(loops: &mut Loops) {
    let live = deps::live_nodes(loops, &loops.nodes);
    let mut flags = live.iter();
    loops.nodes.retain(|_| *flags.next().expect("one per node"));
}

/// Kernels from units.
fn steps(
    loops: &mut Loops,
    mut fused: Fused,
    at_load: &[bool],
    options: &Options,
) -> Result<(Vec<Step>, Vec<Step>)> {
    let deps = deps::Deps::new(loops, &fused.nodes);
    let (mut steps, mut load_steps) = (Vec::new(), Vec::new());
    let order = crate::order::order(loops, &fused);
    for u in order {
        let members = fused.dag.members[u].clone();
        let inside: FxHashSet<u32> = members.iter().copied().collect();
        let outside = |b: BufId| {
            deps.output[b.index()]
                || deps.aliased[b.index()]
                || deps.fixed[b.index()]
                || deps.readers[b.index()].iter().any(|r| !inside.contains(r))
                || deps.writers[b.index()].iter().any(|w| !inside.contains(w))
        };
        let target = if at_load[members[0] as usize] {
            &mut load_steps
        } else {
            &mut steps
        };
        let first = members[0] as usize;
        if let Node::Contraction(_) = fused.nodes[first] {
            let empty = Node::Body(Default::default());
            let Node::Contraction(mut c) = std::mem::replace(&mut fused.nodes[first], empty) else {
                continue;
            };
            group::dead_stores(
                &loops.exprs,
                std::slice::from_mut(&mut c.epilogue),
                &outside,
            );
            target.push(Step::Contraction(c));
            continue;
        }
        let parts: Vec<group::Member> = members
            .iter()
            .map(|m| group::Member {
                body: fused.nodes[*m as usize].body(),
                shared: &fused.shared[*m as usize],
            })
            .collect();
        let g = group::group(loops, &parts, &fused.units[u].sizes, &outside, options)?;
        target.push(Step::Kernel(g));
    }
    Ok((steps, load_steps))
}
