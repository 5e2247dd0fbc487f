//! The text form of kernels.
//!
//! ```text
//! size s0 in [1, 64] hint 8
//! kernel relu from o0 {
//!   index [i1: 16*s0]
//!   sizes [s0]
//!   units s0 cost 128
//!   b0 = f32 b0 in
//!   b1 = f32 b1 out
//!   grid i1 < 16*s0 by 1024 {
//!     for i1 < 16*s0 in block of 1024 lanes 8 by 1 {
//!       f32 v0 = load b0[i1]
//!       f32 v1 = relu v0
//!       store.set b1[i1], v1
//!     }
//!   }
//! }
//! ```
//!
//! `b0 = f32 b7 in` is the kernel's first argument, the program's buffer `b7`. All index symbols are declared with their
//! extents in one line, in order of appearance.

pub(crate) mod parse;
pub(crate) mod print;

pub use parse::parse;

use crate::{Def, Item, KBufId, Kernel, Kind};
use inrush_expr::{Expr, Exprs, Sym};
use inrush_loops::OriginId;

/// A line of a kernel that an error can stand on.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Place {
    /// The header.
    Kernel,
    Buffer(KBufId),
    /// The line that opens the grid or tile.
    Grid,
    /// An item of head and body, counted as they are printed.
    Item(usize),
}

/// Prints a kernel, without the declarations of size symbols.
pub fn print(exprs: &Exprs, kernel: &Kernel) -> String {
    print_with_notes(exprs, kernel, &[])
}

/// Declarations and all `kernels`; [`parse`] reads them back.
pub fn print_all<'a>(exprs: &Exprs, kernels: impl IntoIterator<Item = &'a Kernel>) -> String {
    let mut out = String::new();
    for line in exprs.show_decls() {
        out.push_str(&line);
        out.push('\n');
    }
    for k in kernels {
        out.push_str(&print(exprs, k));
    }
    out
}

/// Prints a kernel with each note under its line, after a caret: how verifier reports are shown.
pub fn print_with_notes(exprs: &Exprs, kernel: &Kernel, notes: &[(Place, String)]) -> String {
    inrush_base::text::annotate(print::lines(exprs, kernel), notes)
}

pub(crate) fn from(origins: &[OriginId]) -> String {
    if origins.is_empty() {
        return String::new();
    }
    let ids: String = origins.iter().map(|o| format!(" {o}")).collect();
    format!(" from{ids}")
}

/// Names of a kernel's index symbols, by appearance. Two symbols of one position and different extents would share a name;
/// later ones get `.1`, `.2`.
#[derive(Default)]
pub(crate) struct Names {
    pub order: Vec<(Sym, String, Expr)>,
}

impl Names {
    fn of(exprs: &Exprs, kernel: &Kernel) -> Names {
        let mut syms: Vec<Sym> = kernel.sizes.iter().map(|p| p.sym).collect();
        match &kernel.kind {
            Kind::Grid(axes) => syms.extend(axes.iter().map(|a| a.sym)),
            Kind::Epilogue {
                batch,
                m,
                n,
                pieces,
            } => {
                syms.extend([*batch, *m, *n]);
                syms.extend(pieces.map(|p| p.row));
            }
        }
        let mut visit = Visit { kernel, syms };
        visit.items(&kernel.head);
        visit.items(&kernel.body);
        // The rest may hold symbols of no loop: that is for the verifier to say.
        crate::cost::each_expr(kernel, &mut |e| exprs.collect_syms(e, &mut visit.syms));
        let accs = kernel.accs.iter().filter_map(|a| a.index);
        let sizes = kernel.sizes.iter().map(|p| p.value);
        let costs = [kernel.units, kernel.cost_per_unit];
        for e in accs.chain(sizes).chain(costs).chain(kernel.scratch_bytes) {
            exprs.collect_syms(e, &mut visit.syms);
        }
        let mut names = Names::default();
        for s in visit.syms {
            names.add(exprs, s);
        }
        names
    }

    /// Names a symbol as its position says, if it is an index.
    pub fn add(&mut self, exprs: &Exprs, s: Sym) {
        self.add_as(exprs, s, &exprs.sym_info(s).name);
    }

    /// Names a symbol `base`, with a number where that is taken.
    pub fn add_as(&mut self, exprs: &Exprs, s: Sym, base: &str) {
        let Some((_, extent)) = exprs.index_of(s) else {
            return;
        };
        if self.order.iter().any(|(t, ..)| *t == s) {
            return;
        }
        // An extent may hold symbols itself; those are declared first.
        for inner in exprs.free_syms(extent) {
            self.add(exprs, inner);
        }
        let mut name = base.to_string();
        let mut k = 0;
        while self.order.iter().any(|(_, n, _)| *n == name) || exprs.sym_by_name(&name).is_some() {
            k += 1;
            name = format!("{base}.{k}");
        }
        self.order.push((s, name, extent));
    }

    pub fn get(&self, s: Sym, exprs: &Exprs) -> String {
        match self.order.iter().find(|(t, ..)| *t == s) {
            Some((_, name, _)) => name.clone(),
            None => exprs.sym_info(s).name,
        }
    }
}

struct Visit<'a> {
    kernel: &'a Kernel,
    syms: Vec<Sym>,
}

impl Visit<'_> {
    fn items(&mut self, items: &[Item]) {
        for item in items {
            match item {
                Item::Loop(l) => {
                    self.syms.push(l.sym);
                    self.items(&l.body);
                }
                Item::Let(v) => {
                    if let Some(Def::Indirect { sym, .. }) =
                        self.kernel.values.get(v.index()).map(|v| &v.def)
                    {
                        self.syms.push(*sym);
                    }
                }
                Item::Update { .. } | Item::Acc(_) | Item::Store { .. } => {}
            }
        }
    }
}
