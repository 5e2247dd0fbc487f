//! Analysis: facts about a kernel that its text depends on, found once ahead of writing.
//!
//! The writer goes over the tree once and cannot look ahead. Facts that need the whole tree are
//! found here: an accumulator is declared before the loop that decides in how many vectors it is
//! kept, and a branch needs the number of uses of a value.

use crate::branches::Uses;
use crate::cascade::Cascade;
use crate::loops::split_vector;
use crate::peephole::Peephole;
use inrush_expr::{Exprs, Sym};
use inrush_kernel::{Item, Kernel, Kind, Loop, Role};

/// Facts about a kernel.
pub(crate) struct Analysis<'a> {
    /// For each load that several vector loops repeat: the last of these loops.
    /// A kernel with passes over one row (softmax: maximum, sum, quotients) loads it in each.
    /// Prefetching pays in the last pass only, while the others compute from the cache.
    pub last_of_several: Vec<Option<&'a Loop>>,
    /// The grid axis along which consecutive units step by one.
    pub inner_grid_axis: Option<Sym>,
    /// Per accumulator declared outside its vector loop: that loop's width and unroll factor.
    pub acc_vectors: Vec<Option<(u32, u32)>>,
    /// Per accumulator: width of the vector loop in which it was declared.
    pub started: Vec<Option<u32>>,
    /// Sums that are replaced by functions of their own.
    pub peephole: Peephole,
    /// Accumulators that are kept in `f64`.
    pub cascade: Cascade,
    /// Number of uses of each value, for [`crate::branches`].
    pub uses: Uses,
    /// True if some value has eight bytes: half-width vectors are then full registers of these, otherwise half registers.
    pub has_64bit: bool,
}

impl<'a> Analysis<'a> {
    /// Finds the facts of a kernel.
    pub(crate) fn new(exprs: &Exprs, kernel: &'a Kernel) -> Analysis<'a> {
        let uses = Uses::of(kernel);
        let mut out = Analysis {
            last_of_several: vec![None; kernel.values.len()],
            inner_grid_axis: match &kernel.kind {
                Kind::Grid(axes) => axes.last().filter(|a| a.block == 1).map(|a| a.sym),
                Kind::Epilogue { .. } => None,
            },
            acc_vectors: vec![None; kernel.accs.len()],
            started: vec![None; kernel.accs.len()],
            peephole: Peephole::find(kernel, &uses),
            cascade: Cascade::find(exprs, kernel),
            uses,
            has_64bit: kernel.values.iter().any(|v| v.dtype.compute().size() == 8),
        };
        let mut first = vec![None; kernel.values.len()];
        find_repeated(&kernel.body, None, &mut first, &mut out.last_of_several);
        find_acc_vectors(exprs, &kernel.head, None, &mut out);
        find_acc_vectors(exprs, &kernel.body, None, &mut out);
        out
    }
}

/// Finds, for each value that several vector loops evaluate, the last of these loops.
fn find_repeated<'k>(
    items: &'k [Item],
    open: Option<&'k Loop>,
    first: &mut [Option<&'k Loop>],
    last: &mut [Option<&'k Loop>],
) {
    for item in items {
        match item {
            Item::Loop(l) => {
                let inner = match l.role {
                    Role::Vector { .. } => Some(l.as_ref()),
                    Role::Serial => open,
                };
                find_repeated(&l.body, inner, first, last);
            }
            Item::Let(v) => match (open, first[v.index()]) {
                (Some(l), None) => first[v.index()] = Some(l),
                // The tree is walked in the order in which it runs: the last write wins.
                (Some(l), Some(f)) if !std::ptr::eq(l, f) => last[v.index()] = Some(l),
                _ => {}
            },
            _ => {}
        }
    }
}

/// Finds accumulators that live outside of the vector loop that updates them.
fn find_acc_vectors(exprs: &Exprs, items: &[Item], lanes: Option<(u32, u32)>, out: &mut Analysis) {
    for item in items {
        match item {
            Item::Loop(l) => {
                let inner = match l.role {
                    Role::Vector { width, .. } => Some((width, split_vector(exprs, l).unroll)),
                    Role::Serial => lanes,
                };
                find_acc_vectors(exprs, &l.body, inner, out);
            }
            // The start stands ahead of all updates, so that it decides between the two tables.
            Item::Acc(a) => out.started[a.index()] = lanes.map(|l| l.0),
            Item::Update { acc, .. } if out.started[acc.index()].is_none() => {
                // Parts of a row that is split at bends feed one accumulator, with as many vectors as the widest part has room for.
                let most = out.acc_vectors[acc.index()].map_or(0, |s| s.1);
                out.acc_vectors[acc.index()] = lanes.map(|(w, copies)| (w, copies.max(most)));
            }
            _ => {}
        }
    }
}
