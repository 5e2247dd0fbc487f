//! Which ways each level has, and the families of graphs that take those which few graphs take.
//!
//! `tally` counts each algorithm and strategy that a graph takes. `drawn-graphs --reach yes`
//! fails unless each way of each level was taken at least once, so that a way whose condition
//! became unreachable, or that no family leads to, is noticed. `family` names where to look for
//! ways that few graphs take.

use super::Level;
use inrush_base::Isa;
use inrush_base::tally::Way;

/// Ways that code without vectors of floats has not: its lanes are types of one or two bytes, four of which fill a word, and the
/// engine's tiles are loops.
const VECTORS: &[Way] = &[
    Way::GemmTransposing,
    Way::GemmEven,
    Way::Grouped,
    Way::Beneath,
    Way::Pixels,
    Way::RowEdges,
    Way::OneWalk,
    Way::Strips,
    Way::Rows,
    Way::LazyBranch,
    Way::CombineVector,
    Way::Interleave,
];

/// Ways that AVX-512 alone has.
/// Only AVX-512 has tall tiles.
const WIDEST: &[Way] = &[Way::GemmEven];

/// Strategies of kernels of GPUs.
const BLOCKS: &[Way] = &[
    Way::BlockFlat,
    Way::BlockTransposed,
    Way::BlockPersistent,
    Way::BlockLooped,
    Way::BlockColumns,
    Way::BlockMoments,
    Way::BlockExponentials,
    Way::BlockBack,
    Way::BlockScan,
    Way::BlockSort,
    Way::BlockProduct,
    Way::BlockTakesTiles,
    Way::BlockSkinny,
    Way::BlockAttention,
    Way::BlockCausal,
    Way::BlockLookUp,
    Way::BlockAtomic,
    Way::BlockMasks,
    Way::BlockBarrier,
    Way::BlocksJoined,
    Way::BlockDescriptors,
    Way::BlockPointers,
    Way::BlockList,
    Way::BlockTwice,
    Way::SplitOnline,
    Way::SplitScan,
];

/// Returns true if a level has such a way.
pub(super) fn exists(level: Level, way: Way) -> bool {
    let block = BLOCKS.contains(&way);
    match level {
        Level::Gpu(_) => block || way == Way::Split,
        _ if block => false,
        Level::Cpu(Isa::Scalar) => !VECTORS.contains(&way),
        Level::Cpu(Isa::Avx2) => !WIDEST.contains(&way),
        Level::Cpu(Isa::Avx512) => true,
        // Not required: the emulator runs too few graphs to take each.
        Level::Cpu(Isa::Neon) => false,
    }
}

/// The family that takes a way most often, where not nearly all graphs do.
pub(super) fn family(way: Way) -> Option<&'static str> {
    Some(match way {
        Way::GemmTransposing | Way::GemmEven | Way::Dot | Way::Axpy | Way::Stored => "product",
        Way::GemmStretches | Way::GemmTaps | Way::Grouped | Way::Edges | Way::EpilogueRows => {
            "convolution of a model"
        }
        Way::Outer => "gradients of a convolution",
        Way::Planes | Way::PlanesCopied | Way::PlanesPacked | Way::TurnedPlanes => "by planes",
        Way::Winograd2 | Way::Winograd4 => "minimal filtering",
        Way::Split | Way::OneWalk => "long reduction",
        Way::Pixels | Way::RowEdges | Way::Rows => "row of pixels",
        Way::Strips | Way::SplitColumns => "sums of columns",
        Way::Interleave => "planes to pixels",
        Way::Bends => "bent row",
        Way::Beneath => "resampling",
        Way::Combine | Way::CombineVector | Way::Apart => "scatter",
        Way::Scan => "scan",
        Way::OwnLanes
        | Way::SharedLanes
        | Way::TransposedTile
        | Way::Gather
        | Way::Scatter
        | Way::Copies
        | Way::PartialVector => "bytes",
        Way::LazyBranch | Way::Together => "row of the table",
        Way::BlockLooped
        | Way::BlockColumns
        | Way::BlockMoments
        | Way::BlockExponentials
        | Way::BlockBack
        | Way::SplitOnline => "long rows",
        Way::SplitScan => "long scan",
        Way::BlockBarrier => "norm between products",
        Way::BlockDescriptors | Way::BlockPointers | Way::BlockTransposed => "turned tile",
        Way::BlockList => "list of tensors",
        Way::BlockScan => "scan",
        Way::BlockSort => "order",
        Way::BlockAtomic | Way::BlockLookUp => "scatter",
        Way::BlockProduct | Way::BlockSkinny => "product",
        Way::BlockTakesTiles => "product of halves",
        Way::BlockAttention | Way::BlockCausal => "attention",
        _ => return None,
    })
}
