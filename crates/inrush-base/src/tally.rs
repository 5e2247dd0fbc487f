//! Counts how often each algorithm and each strategy of the compiler was taken, for tests that must reach all of them.
//!
//! Nothing is counted before [`start`], which only tests call. It is no feature of the crate: tests and programs then share one build.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

macro_rules! ways {
    ($($(#[$doc:meta])* $name:ident $text:literal,)*) => {
        /// A way to compute something that is taken for some sizes, layouts, dtypes or neighbours only.
        #[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
        pub enum Way { $($(#[$doc])* $name,)* }

        impl Way {
            pub const ALL: &[Way] = &[$(Way::$name,)*];

            pub fn name(self) -> &'static str {
                match self { $(Way::$name => $text,)* }
            }
        }
    };
}

ways! {
    // The engine's.
    GemmPacked "product: right operand packed at load",
    GemmPacking "product: right operand packed on the way",
    GemmCopying "product: rows of the left operand copied",
    GemmTransposing "product: rows of the left operand transposed",
    GemmEven "product: tall tiles over rows that lie evenly",
    GemmTaps "product: several taps",
    GemmStretches "product: sums advance by stretches",
    GemmParts "product: parts for several threads",
    Dot "product in place: sums along k",
    Axpy "product in place: sums along n",
    Outer "product: long sums, few results",
    Grouped "product: several groups in a vector",
    Planes "planes: left operand read in place",
    PlanesCopied "planes: left operand laid out at the call",
    PlanesPacked "planes: left operand laid out at load",
    Winograd2 "minimal filtering, tiles of 2",
    Winograd4 "minimal filtering, tiles of 4",
    Stored "product: sums stored without an epilogue",
    Epilogue "product: sums through an epilogue",
    // Stage fuse.
    Split "fuse: reductions split among threads",
    SplitColumns "fuse: reductions down columns split by rows",
    SplitScan "fuse: scans split",
    SplitOnline "fuse: split variances and softmaxes in one pass over memory",
    TurnedPlanes "fuse: convolutions by planes",
    // Stage tile.
    NoLanes "tile: no lanes",
    OwnLanes "tile: lanes along a body's own axis",
    SharedLanes "tile: lanes along a shared axis",
    TransposedTile "tile: transposition",
    Beneath "tile: an axis runs inside the lanes",
    Pixels "tile: pixels of a row side by side",
    RowEdges "tile: rows of pixels cut at the edges",
    Edges "tile: loops cut at the edges of windows",
    Bends "tile: loops cut where loads turn",
    OneWalk "tile: mean and variance in one walk",
    Apart "tile: combining stores shared out",
    FlatLength "tile: length as an argument",
    EpilogueColumns "tile: epilogues along columns",
    EpilogueRows "tile: epilogues along rows, sums transposed",
    Scan "tile: scans",
    // Stage emit.
    Strips "emit: sums of columns by strips",
    Rows "emit: rows of windows side by side",
    Copies "emit: several vectors side by side",
    Interleave "emit: elements of several vectors interleaved",
    PartialVector "emit: a partial vector at the end",
    LazyBranch "emit: branches that are taken by need",
    Combine "emit: combining stores one by one",
    CombineVector "emit: combining stores by vectors",
    Gather "emit: lanes gathered",
    Scatter "emit: lanes stored one by one",
    // Stage wrap.
    Together "wrap: launches that share a table of work",
    // Block programs of GPUs.
    BlockFlat "block: flat",
    BlockTransposed "block: tile of two axes",
    BlockPersistent "block: rows held whole",
    BlockLooped "block: rows walked in steps",
    BlockColumns "block: columns walked in steps",
    BlockMoments "block: mean and variance in one loop",
    BlockExponentials "block: maximum and sum of a softmax in one loop",
    BlockBack "block: a second loop goes back",
    BlockScan "block: scans",
    BlockSort "block: sorts",
    BlockProduct "block: products",
    BlockTakesTiles "block: persistent products",
    BlockSkinny "block: products of few rows",
    BlockAttention "block: attention",
    BlockCausal "block: causal attention",
    BlockLookUp "block: indices that are read",
    BlockAtomic "block: combining stores",
    BlockMasks "block: masks at the end of an axis",
    BlockBarrier "block: barriers",
    BlocksJoined "block: launches joined",
    BlockDescriptors "block: tensor descriptors",
    BlockPointers "block: block pointers",
    BlockList "block: lists of tensors in a launch",
    BlockTwice "block: code of its own for the last program",
}

static COUNTING: AtomicBool = AtomicBool::new(false);
static COUNTS: [AtomicU64; Way::ALL.len()] = [const { AtomicU64::new(0) }; Way::ALL.len()];

/// Starts to count, for the rest of the process.
pub fn start() {
    COUNTING.store(true, Ordering::Relaxed);
}

/// Counts that a way was taken.
#[inline]
pub fn reached(way: Way) {
    if COUNTING.load(Ordering::Relaxed) {
        COUNTS[way as usize].fetch_add(1, Ordering::Relaxed);
    }
}

/// How often each way was taken in this process, since [`start`].
pub fn counts() -> Vec<(Way, u64)> {
    (Way::ALL.iter())
        .map(|w| (*w, COUNTS[*w as usize].load(Ordering::Relaxed)))
        .collect()
}
