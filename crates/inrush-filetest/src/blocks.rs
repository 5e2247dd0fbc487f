//! Block programs: the stages tile and emit of GPUs, and block programs as a way to evaluate a program.
//!
//! Block programs are interpreted, because tests run on machines without a GPU; `inrush-gpucheck`
//! runs the same kernels on one. Triton source is printed and compared as text.
//!
//! The strategies that a program took are counted (`tally`), so that drawn graphs can show that
//! each of them was tested.

use crate::run::Inputs;
use crate::stages::{Program, Setup};
use inrush_base::tally::{Way, reached};
use inrush_base::{Caps, Error, Result};
use inrush_compile::Blocks;
use inrush_expr::Exprs;
use inrush_interp::{BlockMemory, Spot, Value};
use inrush_kernel::Def;
use inrush_kernel::block::{self, Block, BlockItem, DimRole};
use inrush_loops::{Loops, StoreMode};
use inrush_sched::{Place, Plan};
use std::collections::BTreeMap;

/// A plan with its block programs, verified.
pub struct Tiled {
    /// Gives the block programs their buffers and arena.
    pub plan: Plan,
    pub blocks: Blocks,
}

impl Tiled {
    /// Plans a program for a GPU and tiles its kernels.
    pub fn new(p: &Program, setup: &Setup) -> Result<Tiled> {
        let plan = p.plan_within(setup)?;
        let blocks = setup.run(|p| p.blocks(&plan))?;
        Ok(Tiled { plan, blocks })
    }

    /// Interprets the block programs in poisoned memory, the arena as the plan lays it out.
    pub fn run(&self, inputs: &Inputs, symbols: &BTreeMap<String, i64>) -> Result<Vec<Value>> {
        inrush_interp::blocks(
            &self.plan.loops,
            &self.blocks.pieces(),
            &memory(&self.plan),
            &inputs.user,
            &inputs.weights,
            symbols,
        )
    }

    /// Counts the strategies that were taken.
    pub fn tally(&self) {
        for launch in self.blocks.pieces() {
            if launch.len() > 1 {
                reached(Way::BlocksJoined);
            }
            launch.iter().for_each(|p| tally(p.block));
        }
    }

    /// Emits all kernels, and counts what only their sources show.
    ///
    /// # Errors
    /// A kernel that the printer refuses or loses.
    pub fn emit(&self, setup: &Setup) -> Result<()> {
        let kernels = setup.run(|p| p.triton(&self.plan, &self.blocks))?.kernels;
        for k in &kernels {
            // A source without the decorator has lost its kernel.
            if !k.text.contains("@triton.jit") {
                return Err(Error::internal(format!("{} is no kernel", k.function)));
            }
            for (way, sign) in SIGNS {
                if k.text.contains(sign) {
                    reached(*way);
                }
            }
        }
        Ok(())
    }
}

/// Strategies of stage emit, each with what its sources contain.
const SIGNS: &[(Way, &str)] = &[
    (Way::BlockDescriptors, "tl.make_tensor_descriptor"),
    (Way::BlockPointers, "tl.make_block_ptr"),
    (Way::BlockList, "numel"),
    (Way::BlockTwice, "    else:\n        t"),
];

/// The memory that a plan asks for: arena 0 is that of a call, arena 1 that of the load steps.
fn memory(plan: &Plan) -> BlockMemory {
    let zero = plan.loops.exprs.int(0);
    let spot = |p: &Place| match *p {
        Place::Arena { offset, .. } => Spot::Arena { arena: 0, offset },
        Place::Load { offset, .. } => Spot::Arena { arena: 1, offset },
        _ => Spot::Own,
    };
    BlockMemory {
        spots: plan.memory.places.iter().map(spot).collect(),
        // An arena that a plan does not need has no bytes.
        arenas: [plan.memory.arena_bytes, plan.memory.load_bytes]
            .map(|b| b.unwrap_or(zero))
            .to_vec(),
    }
}

/// The text of stage tile.
pub fn tile(p: &Program, setup: &Setup) -> Result<String> {
    if let Program::Blocks(exprs, blocks) = p {
        p.verify()?;
        return Ok(block::text::print_all(exprs, blocks));
    }
    let tiled = Tiled::new(p, setup)?;
    Ok(tiled.blocks.print(&tiled.plan))
}

/// The text of stage emit. Names of kernels hold a digest of the rest, which says nothing to a reader.
pub fn emit(p: &Program, setup: &Setup) -> Result<String> {
    if let Program::Blocks(exprs, blocks) = p {
        p.verify()?;
        let all: Result<Vec<String>> = blocks
            .iter()
            .map(|b| emit_one(exprs, b, &setup.caps))
            .collect();
        return Ok(all?.join("\n\n"));
    }
    let tiled = Tiled::new(p, setup)?;
    let kernels = setup.run(|p| p.triton(&tiled.plan, &tiled.blocks))?;
    let texts = kernels.kernels.iter().map(|k| plain(&k.text, &k.function));
    Ok(texts.collect::<Vec<_>>().join("\n\n"))
}

/// The source of a block program that belongs to no plan: its buffers start at multiples of 16 bytes.
pub fn emit_one(exprs: &Exprs, b: &Block, caps: &Caps) -> Result<String> {
    let loops = Loops {
        exprs: exprs.clone(),
        ..Loops::default()
    };
    let k = inrush_triton::emit(&loops, b, caps, &|_| true).map_err(|e| e.in_stage("emit"))?;
    Ok(plain(&k.source, &k.name))
}

/// A source without the digest in the name of its kernel, and without imports.
fn plain(text: &str, function: &str) -> String {
    // `NAME_DIGEST`: what follows the last underscore goes.
    let name = function.rsplit_once('_').map_or(function, |n| n.0);
    let text = text.replace(function, name);
    // Imports stand at the top and are the same in each source.
    let lines = text
        .lines()
        .skip_while(|l| l.is_empty() || l.contains("import "));
    lines.map(|l| format!("{l}\n")).collect()
}

/// Counts the strategies of a block program.
fn tally(b: &Block) {
    let tiles = b
        .dims
        .iter()
        .filter(|d| d.is_tile() && d.role == DimRole::Grid);
    let role = b.reduced().map(|i| b.dims[i].role);
    let wide = b
        .dims
        .iter()
        .filter(|d| d.role == DimRole::Grid && d.block > 1)
        .count();
    if let Some(a) = &b.attention {
        reached(match a.causal {
            Some(_) => Way::BlockCausal,
            None => Way::BlockAttention,
        });
    }
    // The interpreter meets steps this long where few rows meet long sums alone.
    let long = |p: &inrush_kernel::block::Product| p.block > 64;
    reached(match (&b.product, role, tiles.count()) {
        (Some(p), ..) if long(p) => Way::BlockSkinny,
        (Some(p), ..) if p.persistent => Way::BlockTakesTiles,
        (Some(_), ..) => Way::BlockProduct,
        (None, None, 2..) => Way::BlockTransposed,
        (None, None, _) => Way::BlockFlat,
        // Several columns a program, walked down row by row.
        (None, Some(DimRole::Looped), _) if wide > 0 => Way::BlockColumns,
        (None, Some(DimRole::Looped), _) => Way::BlockLooped,
        (None, Some(_), _) => Way::BlockPersistent,
    });
    if b.dims.iter().any(|d| d.is_tile() && !d.exact) {
        reached(Way::BlockMasks);
    }
    for v in &b.values {
        match v.def {
            Def::Running { .. } => reached(Way::BlockScan),
            Def::Sorted { .. } => reached(Way::BlockSort),
            Def::Indirect { .. } => reached(Way::BlockLookUp),
            _ => {}
        }
    }
    items(&b.items);
}

/// Counts the strategies of items, loops included.
fn items(list: &[BlockItem]) {
    for item in list {
        match item {
            BlockItem::Loop(w) => {
                if w.back {
                    reached(Way::BlockBack);
                }
                items(&w.body);
            }
            BlockItem::Moments { .. } => reached(Way::BlockMoments),
            BlockItem::Exponentials { .. } => reached(Way::BlockExponentials),
            BlockItem::Barrier => reached(Way::BlockBarrier),
            BlockItem::Store(s) if s.mode != StoreMode::Set => reached(Way::BlockAtomic),
            _ => {}
        }
    }
}
