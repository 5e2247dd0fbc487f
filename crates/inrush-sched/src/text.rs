//! The text form of plans, and the plan as plain loops.
//!
//! ```text
//! plan softmax inputs 1
//! size s0 in [1, 64] hint 8
//! origin o0: aten.softmax.int softmax at "model.py:12"
//! b0 x: f32[s0, 10] layout [10, 1] = input 0
//! b1 m: f32[] layout [] = temp
//! b2 y: f32[s0, 10] layout [10, 1] = temp
//! output b2
//! kernel [i0: s0] locals b1 {
//!   body [i0: s0] reduce [i1: 10] from o0 {
//!     ...
//!   }
//! }
//! arena 0 bytes
//! load arena 0 bytes
//! place b2 output 0
//! refused o0 -> o1: not_same_domain
//! ```
//!
//! Declarations and bodies are those of the loops' text. Steps that run at load bear the word `load`. A buffer's place is
//! written where its kind does not tell it.

mod parse;
mod print;

pub use parse::parse;

use inrush_expr::Expr;
use inrush_loops::{BufId, Coords, Loops, Node, OriginId, Stmt, StmtId};

use crate::{Plan, Refusal, Step};

/// A line of the text form that an error can stand on. Steps are counted from the first that runs at load.
#[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Line {
    /// The header.
    Program,
    Buffer(BufId),
    Step(usize),
    /// A body of a step.
    Body(usize, usize),
    Stmt(usize, usize, StmtId),
    /// Where a buffer lives; its declaration where no line says so.
    Place(BufId),
    Refusal(usize),
}

impl Plan {
    /// Returns the text form: buffers and outputs, kernels in order, memory, refusals. [`parse`] reads it back.
    pub fn print(&self) -> String {
        self.print_with_notes(&[])
    }

    /// Returns the text form with each note under its line, after a caret. Verifier reports use it.
    pub fn print_with_notes(&self, notes: &[(Line, String)]) -> String {
        let lines = print::lines(self);
        // A place that has no line of its own stands with the declaration.
        let there = |l: &Line| lines.iter().any(|(p, _)| *p == Some(*l));
        let notes: Vec<(Line, &String)> = (notes.iter())
            .map(|(l, note)| match l {
                Line::Place(b) if !there(l) => (Line::Buffer(*b), note),
                l => (*l, note),
            })
            .collect();
        inrush_base::text::annotate(lines, &notes)
    }

    fn origin_name(&self, o: Option<OriginId>) -> &str {
        crate::refusal::name(&self.loops.origins, o)
    }

    /// `producer -> consumer: reason`.
    pub fn show_refusal(&self, r: &Refusal) -> String {
        r.show(&self.loops.origins)
    }

    /// The plan as a plain program: load steps, then steps, one node after the other. It computes the same; locals have
    /// become temporaries over all outer points.
    pub fn to_loops(&self) -> Loops {
        let mut loops = self.loops.clone();
        loops.nodes.clear();
        for step in self.load_steps.iter().chain(&self.steps) {
            match step {
                Step::Contraction(c) => loops.nodes.push(Node::Contraction(c.clone())),
                Step::Library(c) => loops.nodes.push(Node::Library(c.clone())),
                Step::Attention(a) => loops.nodes.push(Node::Attention(a.clone())),
                Step::Kernel(g) => {
                    let axes: Vec<Expr> =
                        g.axes.iter().map(|a| loops.exprs.sym_expr(a.sym)).collect();
                    for l in &g.locals {
                        let b = &mut loops.buffers[l.index()];
                        b.layout = None;
                        b.sizes.splice(0..0, g.axes.iter().map(|a| a.size));
                    }
                    for body in &g.bodies {
                        let mut body = body.clone();
                        for s in &mut body.stmts {
                            if let Stmt::Load { buf, coords, .. } | Stmt::Store { buf, coords, .. } =
                                s
                                && g.locals.contains(buf)
                            {
                                let all: Coords =
                                    axes.iter().chain(coords.iter()).copied().collect();
                                *coords = all;
                            }
                        }
                        loops.nodes.push(Node::Body(body));
                    }
                }
            }
        }
        loops
    }
}

impl std::fmt::Display for Plan {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.print())
    }
}
