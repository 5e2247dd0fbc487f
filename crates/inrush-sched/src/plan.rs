//! The scheduler's result: kernels in order, and the place of every buffer.

use inrush_expr::Expr;
use inrush_loops::{Attention, Axis, Body, BufId, Bufs, Contraction, LibraryCall, Loops, OriginId};

use crate::Refusal;

/// A scheduled program.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Buffers, outputs, origins and expressions. Every buffer has a layout; `nodes` is empty, the steps took them.
    ///
    /// An output that is a mutation names its input twice: a step stores the new contents into it.
    pub loops: Loops,
    /// Steps of a call, in order.
    pub steps: Vec<Step>,
    /// Steps that run once, when weights are loaded: they read weights only, and write buffers of [`Place::Load`].
    pub load_steps: Vec<Step>,
    pub memory: Memory,
    /// Fusions that were considered and refused.
    pub refusals: Vec<Refusal>,
}

impl Plan {
    /// For each buffer the one whose bytes it shares.
    pub fn storages(&self) -> Vec<BufId> {
        (0..self.loops.buffers.len())
            .map(|k| {
                let mut b = self.loops.storage(BufId::from_index(k));
                while let Some(Place::Arena {
                    in_place_of: Some(of),
                    ..
                }) = self.memory.places.get(b.index())
                {
                    b = *of;
                }
                b
            })
            .collect()
    }

    /// Returns the byte range of each buffer, to tell which may touch the same bytes.
    pub fn regions(&self) -> Regions {
        let ex = &self.loops.exprs;
        let of = |k: usize| {
            let mut b = self.loops.storage(BufId::from_index(k));
            while let Some(Place::Alias(of)) = self.memory.places.get(b.index()) {
                b = *of;
            }
            match self.memory.places.get(b.index()) {
                Some(Place::Arena { offset, bytes, .. }) => {
                    match (ex.as_int(*offset), ex.as_int(*bytes)) {
                        (Some(from), Some(n)) => Region::Arena(from, from.saturating_add(n)),
                        _ => Region::Arena(0, i64::MAX),
                    }
                }
                _ => Region::Own(b),
            }
        };
        Regions((0..self.loops.buffers.len()).map(of).collect())
    }
}

#[derive(Copy, Clone, PartialEq, Debug)]
enum Region {
    Own(BufId),
    /// Bytes of the arena.
    Arena(i64, i64),
}

/// Places of the buffers of a plan.
#[derive(Clone, PartialEq, Debug)]
pub struct Regions(Vec<Region>);

impl Regions {
    /// Returns true if two buffers may share a byte.
    pub fn overlap(&self, a: BufId, b: BufId) -> bool {
        match (self.0[a.index()], self.0[b.index()]) {
            (Region::Own(x), Region::Own(y)) => x == y,
            (Region::Arena(a, b), Region::Arena(x, y)) => a < y && x < b,
            _ => false,
        }
    }
}

/// One launch.
#[derive(Clone, PartialEq, Debug)]
pub enum Step {
    Kernel(Group),
    /// A matrix product or convolution with its fused epilogue.
    Contraction(Box<Contraction>),
    /// A function of the runtime's library.
    Library(Box<LibraryCall>),
    /// An attention with its fused scores.
    Attention(Box<Attention>),
}

/// A fused kernel: for each point of `axes`, the bodies run in order, each over its own remaining axes.
///
/// - `axes` are parallel and lead the axis list of every body, with the same symbols: `body.axes[..axes.len()] == axes`, and
///   `body.outer >= axes.len()`. A pure pointwise kernel has no axes beyond them.
/// - A body reads of what an earlier body of the group wrote only what it wrote at the same point of `axes`.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Group {
    pub axes: Vec<Axis>,
    pub bodies: Vec<Body>,
    /// Buffers that live within one point of `axes` and never reach memory. Their sizes and coordinates span one point only
    /// (no coordinate holds a group axis): rank 0 is a value, rank 1 a row of scratch, both row-major. An earlier body of the
    /// group writes them before a later one reads them.
    pub locals: Vec<BufId>,
}

/// Where buffers live.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Memory {
    /// One per buffer of [`Plan::loops`].
    pub places: Vec<Place>,
    /// Size of the arena of one call. `None` only while the plan is being made.
    pub arena_bytes: Option<Expr>,
    /// Size of the arena that the load steps fill, kept as long as the weights.
    pub load_bytes: Option<Expr>,
}

/// The storage of one buffer.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Default)]
pub enum Place {
    /// No step uses it.
    #[default]
    Unused,
    /// The user's input of this position.
    Input(usize),
    /// A weight, by the name in the buffer's kind.
    Weight,
    /// An allocation of its own, given to the user as the output of this position (the first, if several name it).
    Output(usize),
    /// In the call's arena. Buffers whose lives do not overlap share bytes; with `in_place_of`, the one step that
    /// writes this buffer reads that one for the last time, element by element.
    Arena {
        offset: Expr,
        bytes: Expr,
        in_place_of: Option<BufId>,
    },
    /// In the arena of what is computed at load.
    Load { offset: Expr, bytes: Expr },
    /// Scratch of one kernel: see [`Group::locals`].
    Local,
    /// The storage of another buffer.
    Alias(BufId),
}

impl Group {
    /// Operators that the kernel came from, each once, in order.
    pub fn origins(&self) -> Vec<OriginId> {
        let mut out = Vec::new();
        for o in self.bodies.iter().flat_map(|b| &b.origins) {
            if !out.contains(o) {
                out.push(*o);
            }
        }
        out
    }
}

impl Step {
    /// The bodies of the step; of a contraction its epilogue, of an attention its scores.
    pub fn bodies(&self) -> &[Body] {
        match self {
            Step::Kernel(g) => &g.bodies,
            Step::Contraction(c) => std::slice::from_ref(&c.epilogue),
            Step::Library(c) => std::slice::from_ref(&c.site),
            Step::Attention(a) => std::slice::from_ref(&a.scores),
        }
    }

    /// Buffers read, each once; what the step itself wrote before is included.
    pub fn reads(&self) -> Bufs {
        let mut out = Bufs::new();
        match self {
            Step::Contraction(c) => add(&mut out, &[c.a.buf, c.b.buf]),
            Step::Library(c) => add(&mut out, &c.inputs),
            Step::Attention(a) => a.accesses().for_each(|x| add(&mut out, &[x.buf])),
            Step::Kernel(_) => {}
        }
        self.bodies().iter().for_each(|b| add(&mut out, &b.reads()));
        out
    }

    /// Buffers written, each once.
    pub fn writes(&self) -> Bufs {
        let mut out = Bufs::new();
        if let Step::Attention(a) = self {
            // Stores of the scores are no stores to memory.
            return a.results();
        }
        if let Step::Library(c) = self {
            add(&mut out, &c.outputs);
        }
        self.bodies()
            .iter()
            .for_each(|b| add(&mut out, &b.writes()));
        out
    }
}

fn add(out: &mut Bufs, more: &[BufId]) {
    for b in more {
        if !out.contains(b) {
            out.push(*b);
        }
    }
}
