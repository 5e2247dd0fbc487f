//! From loops to a finished kernel: passes over its items, then names, arguments and memory.

use crate::build::Builder;
use crate::place::Tree;
use crate::{BufRole, Kernel, Kind, Param, cost, online_variance, peel, split_piecewise};
use inrush_expr::{Expr, Exprs, Sym};
use inrush_loops::{Body, OriginId, Tables};

/// Results from this many bytes on are stored past the caches: what reads them would find little of them there.
const STREAM_BYTES: i64 = 32 << 20;
/// Bytes up to which locals are on the stack.
const STACK_BYTES: i64 = 32 << 10;
/// Bytes to which each local is aligned in scratch.
const ALIGNMENT: i64 = 64;

/// Decisions that the passes need to know besides the kernel.
#[derive(Copy, Clone, Default)]
pub(crate) struct Choices {
    /// Lanes of a loop that the whole group runs inside: locals hold whole vectors then.
    pub lane_width: Option<u32>,
    /// The axis whose pixels are jammed, and by how many.
    pub jammed: Option<(Sym, &'static [i64])>,
}

/// A rewrite of a kernel's items, which does nothing where it does not apply.
type Pass = fn(&Exprs, &mut Kernel, &Choices);

/// Passes over the loops of a grid, in order.
const LOOP_PASSES: &[Pass] = &[
    |exprs, k, _| online_variance::rewrite(exprs, k),
    |exprs, k, _| split_piecewise::split(exprs, k),
    |exprs, k, c| {
        if let Some((row, factors)) = c.jammed {
            peel::peel_row(exprs, k, row, factors)
        }
    },
    |exprs, k, _| peel::peel(exprs, k),
];

/// Makes the kernel of what was placed.
pub(crate) fn finish(
    b: Builder,
    tree: Tree,
    kind: Kind,
    origins: Vec<OriginId>,
    units: Expr,
    choices: Choices,
) -> Kernel {
    let tables = b.tables;
    let exprs = tables.exprs;
    let mut kernel = Kernel {
        name: name(tables, &origins),
        origins,
        kind,
        buffers: b.buffers,
        sizes: Vec::new(),
        values: b.values,
        accs: b.accs,
        head: tree.head,
        body: tree.body,
        checks: b.checks,
        units,
        cost_per_unit: exprs.int(1),
        scratch_bytes: None,
    };
    let grid = matches!(kernel.kind, Kind::Grid(_));
    // An epilogue has no loops but those over its tile.
    if grid {
        for pass in LOOP_PASSES {
            pass(exprs, &mut kernel, &choices);
        }
    }
    // Equal kernels are equal items with equal names.
    cost::renumber(&mut kernel);
    set_sizes(exprs, &mut kernel);
    if grid {
        stream_large_results(tables, &mut kernel);
    }
    set_locals(exprs, &mut kernel, choices.lane_width);
    kernel.cost_per_unit = cost::per_unit(exprs, &kernel);
    kernel
}

/// Makes arguments of the sizes in expressions, in order of appearance.
fn set_sizes(exprs: &Exprs, kernel: &mut Kernel) {
    let mut syms: Vec<Sym> = Vec::new();
    cost::each_expr(kernel, &mut |e| exprs.collect_syms(e, &mut syms));
    kernel.sizes = syms
        .into_iter()
        .filter(|s| !exprs.is_index(*s))
        .map(|sym| Param {
            sym,
            value: exprs.sym_expr(sym),
        })
        .collect();
}

/// Marks results that are larger than the caches.
fn stream_large_results(tables: Tables, kernel: &mut Kernel) {
    for buf in kernel.buffers.iter_mut().filter(|b| b.role == BufRole::Out) {
        let sizes = &tables.buffer(buf.buf).sizes;
        let total = (sizes.iter()).fold(buf.dtype.size() as i64, |p, s| {
            p.saturating_mul(tables.exprs.hint(*s))
        });
        // At the hints: a kernel streams or does not, whatever sizes a call has.
        if total >= STREAM_BYTES {
            buf.role = BufRole::Stream;
        }
    }
}

/// Sizes locals. Large ones are in scratch that the caller brings, small ones on the stack.
fn set_locals(exprs: &Exprs, kernel: &mut Kernel, lane_width: Option<u32>) {
    let lanes = i64::from(lane_width.unwrap_or(1));
    let mut bytes = exprs.int(0);
    for buf in &mut kernel.buffers {
        let size = buf.dtype.size() as i64;
        if let BufRole::Local { len, per_lane } = &mut buf.role {
            // Each lane runs its own point of the group, with a local of its own.
            *per_lane = lane_width.is_some();
            let each = exprs.mul(*len, exprs.int(size * lanes));
            let align = exprs.int(ALIGNMENT);
            bytes = exprs.add(bytes, exprs.mul(exprs.ceildiv(each, align), align));
        }
    }
    // One size that is not known moves all locals to scratch.
    if exprs.as_int(bytes).is_none_or(|b| b > STACK_BYTES) {
        kernel.scratch_bytes = Some(bytes);
    }
}

/// Returns the operators that bodies were made for, each once.
pub(crate) fn origins(bodies: &[Body]) -> Vec<OriginId> {
    let mut out = Vec::new();
    for o in bodies.iter().flat_map(|b| &b.origins) {
        if !out.contains(o) {
            out.push(*o);
        }
    }
    out
}

/// Words of a title.
const WORDS: usize = 6;

/// Operators of an attention, which come first in a title.
const ATTENTION: &str = "inrush.attention";

/// Returns a title made of the operators: `add_gelu_mul`.
pub(crate) fn name(tables: Tables, origins: &[OriginId]) -> String {
    let of = |o: &OriginId| tables.origins.get(o.index());
    let attends = |o: &OriginId| of(o).is_some_and(|origin| origin.op.starts_with(ATTENTION));
    let mut parts: Vec<&str> = Vec::new();
    if origins.iter().any(attends) {
        parts.push("attention");
    }
    for o in origins {
        let Some(origin) = of(o).filter(|_| !attends(o)) else {
            continue;
        };
        let aten = origin.op.strip_prefix("aten.");
        let own = || origin.op.strip_prefix("inrush.");
        let op = aten.or_else(own).unwrap_or(&origin.op);
        let word = op.split('.').next().unwrap_or(op).trim_start_matches('_');
        if parts.last() != Some(&word) {
            parts.push(word);
        }
        if parts.len() == WORDS {
            break;
        }
    }
    if parts.is_empty() {
        "kernel".into()
    } else {
        parts.join("_")
    }
}
