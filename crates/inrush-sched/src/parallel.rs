//! Parallel map over independent bodies. Each thread has a fork of the arena of expressions; results are imported in order, so that
//! they do not depend on the number of threads.

use inrush_base::{shares, side_by_side};
use inrush_expr::{Exprs, Import};
use inrush_loops::{Attention, Axis, Body, Contraction, Node, Stmt};

/// Statements for which a thread of their own pays.
const LEAST: usize = 384;

/// Maps items in order. Threads take runs of items with about equally many statements.
pub(crate) fn par_map<T: Send, R: Refers + Send>(
    ex: &Exprs,
    items: Vec<T>,
    threads: usize,
    statements: impl Fn(&T) -> usize,
    make: impl Fn(&Exprs, T) -> R + Sync,
) -> Vec<R> {
    par_map_with(ex, items, threads, statements, make, 0, || ()).0
}

/// [`par_map`], while this thread does `other`, which takes about as long as `weight` statements.
pub(crate) fn par_map_with<T: Send, R: Refers + Send, A>(
    ex: &Exprs,
    mut items: Vec<T>,
    threads: usize,
    statements: impl Fn(&T) -> usize,
    make: impl Fn(&Exprs, T) -> R + Sync,
    weight: usize,
    other: impl FnOnce() -> A,
) -> (Vec<R>, A) {
    let mut weights: Vec<usize> = items.iter().map(statements).collect();
    if let Some(first) = weights.first_mut() {
        // This thread takes the first run, and does `other` as well.
        *first += weight;
    }
    let runs = shares(&weights, threads, LEAST);
    let run =
        |ex: &Exprs, items: Vec<T>| -> Vec<R> { items.into_iter().map(|i| make(ex, i)).collect() };
    if runs.len() == 1 {
        return (run(ex, items), other());
    }
    let mut out = Vec::with_capacity(items.len());
    let rest = runs[1..].iter().rev();
    let mut rest: Vec<(Exprs, Vec<T>)> = (rest)
        .map(|r| (ex.fork(), items.split_off(r.start)))
        .collect();
    rest.reverse();
    let mut aside = None;
    let made = side_by_side(
        || {
            aside = Some(other());
            (run(ex, items), None)
        },
        rest,
        |(fork, items)| (run(&fork, items), Some(fork)),
    );
    for (mut made, fork) in made {
        if let Some(fork) = &fork {
            let mut import = Import::new(ex, fork);
            if !import.is_trivial() {
                made.iter_mut().for_each(|r| r.import(&mut import));
            }
        }
        out.append(&mut made);
    }
    (out, aside.expect("this thread does it first"))
}

/// A value that refers to expressions and symbols by number.
pub(crate) trait Refers {
    /// Takes over the numbers of the arena that `import` brings them to.
    fn import(&mut self, import: &mut Import);
}

impl Refers for [Axis] {
    fn import(&mut self, import: &mut Import) {
        for a in self {
            (a.sym, a.size) = (import.sym(a.sym), import.expr(a.size));
        }
    }
}

impl Refers for Body {
    fn import(&mut self, import: &mut Import) {
        self.axes.import(import);
        for stmt in &mut self.stmts {
            for e in stmt.exprs_mut() {
                *e = import.expr(*e);
            }
            if let Stmt::Indirect { sym, size, .. } = stmt {
                (*sym, *size) = (import.sym(*sym), import.expr(*size));
            }
        }
    }
}

impl Refers for Contraction {
    fn import(&mut self, import: &mut Import) {
        for axes in [&mut self.batch, &mut self.m, &mut self.n, &mut self.k] {
            axes.import(import);
        }
        for e in self.a.coords.iter_mut().chain(&mut self.b.coords) {
            *e = import.expr(*e);
        }
        self.epilogue.import(import);
    }
}

impl Refers for Attention {
    fn import(&mut self, import: &mut Import) {
        self.batch.import(import);
        let lists = self.blocks.iter_mut();
        let lists = lists.flat_map(|b| [Some(&mut b.partial), b.full.as_mut()]);
        let positions = lists.flatten().map(|l| &mut l.position);
        let own = [&mut self.m, &mut self.k, &mut self.d, &mut self.n];
        for a in own.into_iter().chain(positions) {
            (a.sym, a.size) = (import.sym(a.sym), import.expr(a.size));
        }
        for x in self.accesses_mut() {
            x.coords.iter_mut().for_each(|e| *e = import.expr(*e));
        }
        self.scores.import(import);
    }
}

impl Refers for Node {
    fn import(&mut self, import: &mut Import) {
        match self {
            Node::Body(b) => b.import(import),
            Node::Contraction(c) => c.import(import),
            // It names buffers only, not expressions.
            Node::Library(_) => {}
            Node::Attention(a) => a.import(import),
        }
    }
}

impl Refers for crate::Group {
    fn import(&mut self, import: &mut Import) {
        self.axes.import(import);
        self.bodies.iter_mut().for_each(|b| b.import(import));
    }
}

impl<R: Refers> Refers for (usize, R) {
    fn import(&mut self, import: &mut Import) {
        self.1.import(import);
    }
}

impl Refers for crate::group::Formed {
    fn import(&mut self, import: &mut Import) {
        self.group.import(import);
        for local in &mut self.locals {
            let layout = &mut local.layout;
            for e in local.sizes.iter_mut().chain(&mut layout.strides) {
                *e = import.expr(*e);
            }
            layout.offset = import.expr(layout.offset);
        }
    }
}
