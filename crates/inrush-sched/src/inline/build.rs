//! Builds the bodies that stay, each with what was chosen to be inlined into it.
//!
//! A body is built by splicing: its statements are copied through the builder, and a load of an
//! inlined result becomes the producer's statements at the coordinates of the load, recursively.
//! Models repeat their layers, so that most bodies are equal but for buffers: these are built once
//! and copied ([`Recipe`], [`Like`]).

use inrush_expr::Exprs;
use inrush_loops::{Body, BufId, Buffer, Coords, Node, Origins, Stmt, StmtId};
use rustc_hash::FxHashMap;

use crate::dedup::Classes;
use crate::deps::Deps;
use crate::mixed_radix::{Radices, inverse};
use crate::parallel::par_map;
use inrush_loops::builder::{Builder, Load, LoadHook};

/// A load of an inlined result.
type Key = (BufId, Coords, Option<StmtId>);

/// Replaces loads of inlined results while a body is built.
struct Inliner<'a> {
    inlining: &'a Inlining<'a>,
    nodes: &'a [Node],
    /// Results that the body has so far: loads of inlined results, and their values. Few, so this is a list.
    known: Vec<(Key, StmtId)>,
}

impl LoadHook for Inliner<'_> {
    fn load(&mut self, b: &mut Builder, load: &Load) -> Option<StmtId> {
        let (w, dims) = self.inlining.writer(load.buf)?;
        // The same element under the same mask is computed once in a body.
        let key = (load.buf, Coords::from_slice(load.coords), load.mask);
        let value = match self.known.iter().find(|(k, _)| *k == key) {
            Some((_, v)) => *v,
            None => {
                let body = self.nodes[w].body();
                let value = (body.stmts.iter())
                    .find_map(|s| match s {
                        Stmt::Store { value, .. } => Some(*value),
                        _ => None,
                    })
                    .expect("an inlined body stores");
                // The producer's axes as functions of the coordinates that are read.
                let map = inverse(b.ex, dims, &body.axes, load.coords);
                let ids = b.splice(body, Some(value), &map, load.mask, self);
                let v = b.through_memory(ids[value.index()], b.buffers[load.buf.index()].dtype);
                self.known.push((key, v));
                v
            }
        };
        Some(b.masked(value, load.mask, load.fill))
    }
}

/// The chosen inlinings, and the tables to build them with.
pub(super) struct Inlining<'a> {
    pub buffers: &'a [Buffer],
    pub deps: &'a Deps,
    pub classes: &'a Classes,
    /// By node, if it is inlined: how its result is read back.
    pub inlined: &'a [Option<&'a Radices>],
}

/// Fingerprints of the parts that nodes are built from, equal if nothing but buffers differs, and the buffers that occur, one
/// node after another.
#[derive(Default)]
struct Recipe {
    /// Classes of nodes, and buffers by number.
    words: Vec<u32>,
    buffers: Vec<BufId>,
    /// Where the buffers of this node begin.
    start: usize,
}

/// A node whose body is that of an earlier one over other buffers.
#[derive(Copy, Clone)]
struct Like {
    of: usize,
    /// Where the buffers of both stand among those of recipes, and how many they are.
    theirs: usize,
    own: usize,
    count: usize,
}

impl Inlining<'_> {
    /// The node that computes a buffer, if that node is inlined.
    fn writer(&self, b: BufId) -> Option<(usize, &Radices)> {
        match self.deps.writers[b.index()].as_slice() {
            [w] => Some((*w as usize, self.inlined[*w as usize]?)),
            _ => None,
        }
    }

    /// The nodes that stay, with everything inlined that was chosen. What is the same over other buffers, with all that goes
    /// into it, is built once.
    pub(super) fn build_all(
        &self,
        ex: &Exprs,
        mut nodes: Vec<Node>,
        weight: impl Fn(usize) -> usize,
        threads: usize,
    ) -> Vec<Node> {
        let stays = |k: &usize| self.inlined[*k].is_none();
        let mut known: FxHashMap<Vec<u32>, (usize, usize)> = FxHashMap::default();
        let mut recipe = Recipe::default();
        // For what is not built itself, what it is a copy of.
        let mut copies: Vec<Option<Like>> = Vec::with_capacity(nodes.len());
        for k in 0..nodes.len() {
            if !stays(&k) || self.classes.like(k) < 2 {
                copies.push(None);
                continue;
            }
            self.recipe(k, &mut recipe);
            let own = recipe.start;
            copies.push(match known.get(recipe.words.as_slice()) {
                Some((of, theirs)) => Some(Like {
                    of: *of,
                    theirs: *theirs,
                    own,
                    count: recipe.buffers.len() - own,
                }),
                None => {
                    known.insert(recipe.words.clone(), (k, own));
                    None
                }
            });
        }
        let rest: Vec<usize> = (0..nodes.len())
            .filter(|k| stays(k) && copies[*k].is_none())
            .collect();
        let built = par_map(
            ex,
            rest,
            threads,
            |k| weight(*k),
            |ex, k| self.build(ex, &nodes, k),
        );
        let mut built = built.into_iter();
        let mut out: Vec<Node> = Vec::with_capacity(nodes.len());
        // Where the body of each node stands now; `None` if it is the node's own as it was.
        let mut place: Vec<Option<usize>> = vec![None; nodes.len()];
        for (k, copy) in copies.into_iter().enumerate().filter(|(k, _)| stays(k)) {
            let body = match &copy {
                Some(copy) => place[copy.of].map(|at| {
                    let mut origins = Origins::new();
                    self.collect_origins(&nodes, k, &mut origins);
                    copy.make(out[at].body(), &recipe.buffers, origins)
                }),
                None => built.next().filter(|b| b != nodes[k].body()),
            };
            debug_assert!(
                copy.is_none() || {
                    let body = body.as_ref().unwrap_or(nodes[k].body());
                    *body == self.build(ex, &nodes, k)
                }
            );
            let mut node = std::mem::replace(&mut nodes[k], Node::Body(Body::default()));
            if let Some(body) = body {
                *node.body_mut() = body;
                place[k] = Some(out.len());
            }
            out.push(node);
        }
        out
    }

    /// Writes down what [`Inlining::build`] sees of a node and of all that goes into it.
    fn recipe(&self, k: usize, r: &mut Recipe) {
        r.words.clear();
        r.start = r.buffers.len();
        r.body(self.classes, k);
        let mut at = r.start;
        while at < r.buffers.len() {
            let b = r.buffers[at];
            r.words.push(self.buffers[b.index()].dtype as u32);
            match self.writer(b) {
                Some((w, _)) => r.body(self.classes, w),
                None => r.words.push(u32::MAX),
            }
            at += 1;
        }
    }

    /// The body of a node with everything inlined that was chosen.
    fn build(&self, ex: &Exprs, nodes: &[Node], k: usize) -> Body {
        let node = &nodes[k];
        let body = node.body();
        let mut b = Builder::new(ex, self.buffers, body.axes.iter().map(|a| a.sym));
        if let Node::Contraction(c) = node {
            c.k.iter().for_each(|a| b.reserve(a.sym));
        }
        if let Node::Attention(a) = node {
            let positions = a.blocks.iter().flat_map(|m| m.lists()).map(|l| l.position);
            [a.d, a.n]
                .into_iter()
                .chain(positions)
                .for_each(|a| b.reserve(a.sym));
        }
        b.will_write(&self.deps.writes[k]);
        let mut hook = Inliner {
            inlining: self,
            nodes,
            known: Vec::new(),
        };
        b.splice(body, None, &inrush_expr::SymMap::default(), None, &mut hook);
        let mut origins = Origins::new();
        self.collect_origins(nodes, k, &mut origins);
        let mut done = b.finish(Body {
            axes: body.axes.clone(),
            outer: body.outer,
            stmts: Vec::new(),
            origins,
        });
        if matches!(node, Node::Body(_)) {
            crate::canonicalize::unit_axes(ex, &mut done);
        }
        done
    }

    /// Origins of a body: its own last, producers first.
    fn collect_origins(&self, nodes: &[Node], k: usize, out: &mut Origins) {
        for b in &self.deps.reads[k] {
            if let Some((w, _)) = self.writer(*b)
                && out.len() < 64
            {
                self.collect_origins(nodes, w, out);
            }
        }
        for o in &nodes[k].body().origins {
            if !out.contains(o) {
                out.push(*o);
            }
        }
    }
}

impl Recipe {
    /// The class of a node, and its buffers by number.
    fn body(&mut self, classes: &Classes, k: usize) {
        self.words.push(classes.of(k) as u32);
        for b in classes.buffers(k) {
            // Few occur: the list itself is searched.
            let own = &self.buffers[self.start..];
            let at = own.iter().position(|x| x == b);
            self.words.push(at.unwrap_or(own.len()) as u32);
            if at.is_none() {
                self.buffers.push(*b);
            }
        }
    }
}

impl Like {
    /// The body over this node's buffers; `buffers` are those of recipes.
    fn make(&self, of: &Body, buffers: &[BufId], origins: Origins) -> Body {
        let theirs = &buffers[self.theirs..][..self.count];
        let own = &buffers[self.own..][..self.count];
        let mut body = Body {
            axes: of.axes.clone(),
            outer: of.outer,
            stmts: of.stmts.clone(),
            origins,
        };
        for stmt in &mut body.stmts {
            if let Stmt::Load { buf, .. } | Stmt::Store { buf, .. } = stmt
                && let Some(at) = theirs.iter().position(|b| b == buf)
            {
                *buf = own[at];
            }
        }
        body
    }
}
