//! Horizontal fusion: chooses which launches become one.
//!
//! A launch costs the host and the device some time of its own, however little it does. Steps that do not depend on each other
//! share one where all of them are short, or where all do the same to tensors of different lengths, as the steps of an
//! optimiser do.
//!
//! Greedy list scheduling ([`group_of`]): each launch joins the first group that takes it after all
//! groups that it depends on. Groups in order keep every dependency; within one there are none.

use super::{Block, DimRole};
use crate::group::group_of;
use crate::{BufRole, Def};
use inrush_base::DType;
use inrush_loops::{BufId, Tables};
use std::mem::{Discriminant, discriminant};

/// A launch: a block program with its buffers, by position among those of the block.
#[derive(Copy, Clone, Debug)]
pub struct Piece<'a> {
    pub block: &'a Block,
    pub buffers: &'a [BufId],
}

/// Pointers that one launch takes: 2 of the 4 KiB that every driver takes.
const POINTERS: usize = 256;
/// Kinds of code in one launch, which is built for the neediest of them.
const KINDS: usize = 4;

impl Block {
    /// A flat walk over one axis, whose length may differ among those that share its code.
    pub fn is_flat(&self) -> bool {
        let [d] = self.dims.as_slice() else {
            return false;
        };
        d.role == DimRole::Grid && d.is_tile() && self.product.is_none()
    }
}

/// A fingerprint of the code. Whether code is shared is decided by its text, later.
#[derive(Clone, PartialEq)]
struct Kind {
    values: Vec<(Discriminant<Def>, DType)>,
    buffers: Vec<DType>,
    items: usize,
}

struct Group {
    pieces: Vec<usize>,
    /// The kinds, where more may join.
    kinds: Vec<Kind>,
    /// All are short.
    short: bool,
    /// All are flat and of one kind.
    list: bool,
    pointers: usize,
    programs: i64,
    warps: (u32, u32),
}

/// Returns the order in which to launch `pieces`, those of an inner list in one launch. `overlap` tells which buffers may share
/// bytes, `units` how many programs run at the same time at least.
pub fn fuse_horizontally(
    tables: Tables,
    pieces: &[Piece],
    overlap: &dyn Fn(BufId, BufId) -> bool,
    units: i64,
) -> Vec<Vec<usize>> {
    let mut groups: Vec<Group> = Vec::new();
    for (at, p) in pieces.iter().enumerate() {
        let block = p.block;
        let programs = (tables.exprs.as_int(block.programs))
            .filter(|_| block.sizes.is_empty() && block.product.is_none())
            .filter(|_| block.attention.is_none());
        let Some(programs) = programs else {
            groups.push(Group {
                pieces: vec![at],
                kinds: Vec::new(),
                short: false,
                list: false,
                pointers: 0,
                programs: 0,
                warps: (0, 0),
            });
            continue;
        };
        let kind = Kind {
            values: (block.values.iter())
                .map(|v| (discriminant(&v.def), v.dtype))
                .collect(),
            buffers: block.buffers.iter().map(|b| b.dtype).collect(),
            items: block.items.len(),
        };
        let one = Group {
            pieces: vec![at],
            kinds: vec![kind],
            short: programs <= 2 * units,
            list: block.is_flat(),
            pointers: block.buffers.len(),
            programs,
            warps: (block.warps, block.warps),
        };
        let depends = |g: &Group| (g.pieces.iter()).any(|k| clash(&pieces[*k], p, overlap));
        match group_of(&groups, depends, |g| g.takes(&one)) {
            Some(g) => groups[g].join(one),
            None => groups.push(one),
        }
    }
    groups.into_iter().map(|g| g.pieces).collect()
}

impl Group {
    /// Returns true if a launch may join: there is room for its pointers, and all stay short, or flat and of one kind.
    fn takes(&self, one: &Group) -> bool {
        let [kind] = one.kinds.as_slice() else {
            return false;
        };
        let known = self.kinds.contains(kind);
        let warps = (self.warps.0.min(one.warps.0), self.warps.1.max(one.warps.1));
        let list = self.list && one.list && known;
        let short = self.short
            && one.short
            && (known || self.kinds.len() < KINDS)
            && warps.1 <= 4 * warps.0;
        (list || short)
            && self.pointers + one.pointers <= POINTERS
            && self.programs.saturating_add(one.programs) <= i32::MAX as i64
    }

    /// Adds a launch, and updates what the group has in common.
    fn join(&mut self, one: Group) {
        self.pieces.extend(one.pieces);
        for k in one.kinds {
            if !self.kinds.contains(&k) {
                self.kinds.push(k);
            }
        }
        self.list &= one.list && self.kinds.len() == 1;
        self.short &= one.short;
        self.pointers += one.pointers;
        self.programs += one.programs;
        self.warps = (self.warps.0.min(one.warps.0), self.warps.1.max(one.warps.1));
    }
}

/// Returns true if the order of two launches matters: one writes what the other touches.
pub(super) fn clash(a: &Piece, b: &Piece, overlap: &dyn Fn(BufId, BufId) -> bool) -> bool {
    let meets = |x: &Piece, y: &Piece| {
        let writes = x.block.buffers.iter().zip(x.buffers);
        writes
            .filter(|(k, _)| k.role != BufRole::In)
            .any(|(_, w)| y.buffers.iter().any(|b| overlap(*w, *b)))
    };
    meets(a, b) || meets(b, a)
}
