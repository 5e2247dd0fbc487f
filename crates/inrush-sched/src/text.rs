//! Text of a plan, and the plan as plain loops.

use inrush_expr::Expr;
use inrush_loops::{Coords, Loops, Node, Stmt};
use std::fmt::Write;

use crate::{Group, Place, Plan, Refusal, Step};

impl Plan {
    /// What `inspect` shows: buffers and outputs, kernels in order, memory, refusals.
    pub fn print(&self) -> String {
        let mut out = self.loops.print();
        if !self.load_steps.is_empty() {
            out.push_str("at load:\n");
            self.print_steps(&self.load_steps, &mut out);
            out.push_str("each call:\n");
        }
        self.print_steps(&self.steps, &mut out);
        self.print_memory(&mut out);
        for r in &self.refusals {
            _ = writeln!(out, "refused {}", self.show_refusal(r));
        }
        out
    }

    fn print_steps(&self, steps: &[Step], out: &mut String) {
        for s in steps {
            match s {
                Step::Kernel(g) => {
                    _ = writeln!(out, "kernel {}{} {{", self.show_axes(g), show_locals(g));
                    for b in &g.bodies {
                        let text = self.loops.print_node(&Node::Body(b.clone()));
                        text.lines().for_each(|l| _ = writeln!(out, "  {l}"));
                    }
                    out.push_str("}\n");
                }
                Step::Contraction(c) => {
                    out.push_str(&self.loops.print_node(&Node::Contraction(c.clone())));
                }
            }
        }
    }

    fn show_axes(&self, g: &Group) -> String {
        let ex = &self.loops.exprs;
        let parts: Vec<String> = g
            .axes
            .iter()
            .map(|a| format!("{}: {}", ex.sym_info(a.sym).name, ex.show(a.size)))
            .collect();
        format!("[{}]", parts.join(", "))
    }

    fn print_memory(&self, out: &mut String) {
        let ex = &self.loops.exprs;
        for (what, size) in [
            ("arena", self.memory.arena_bytes),
            ("load arena", self.memory.load_bytes),
        ] {
            if let Some(size) = size {
                _ = writeln!(out, "{what} {} bytes", ex.show(size));
            }
        }
        for (k, place) in self.memory.places.iter().enumerate() {
            match place {
                Place::Arena {
                    offset,
                    bytes,
                    in_place_of,
                } => {
                    let over = in_place_of.map_or(String::new(), |b| format!(" in place of {b}"));
                    let (offset, bytes) = (ex.show(*offset), ex.show(*bytes));
                    _ = writeln!(out, "b{k} at {offset}, {bytes} bytes{over}");
                }
                Place::Load { offset, bytes } => {
                    let (offset, bytes) = (ex.show(*offset), ex.show(*bytes));
                    _ = writeln!(out, "b{k} at load {offset}, {bytes} bytes");
                }
                _ => {}
            }
        }
    }

    /// `producer -> consumer: reason`.
    pub fn show_refusal(&self, r: &Refusal) -> String {
        let name = |o: Option<inrush_loops::OriginId>| {
            o.and_then(|o| self.loops.origins.get(o.index()))
                .map_or("?", |o| o.name.as_str())
        };
        format!("{} -> {}: {}", name(r.producer), name(r.consumer), r.reason)
    }

    /// The plan as a plain program: load steps, then steps, one node after the other. It computes the same; locals have
    /// become temporaries over all outer points.
    pub fn to_loops(&self) -> Loops {
        let mut loops = self.loops.clone();
        loops.nodes.clear();
        for step in self.load_steps.iter().chain(&self.steps) {
            match step {
                Step::Contraction(c) => loops.nodes.push(Node::Contraction(c.clone())),
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

fn show_locals(g: &Group) -> String {
    if g.locals.is_empty() {
        return String::new();
    }
    let names: Vec<String> = g.locals.iter().map(|b| b.to_string()).collect();
    format!(" locals {}", names.join(" "))
}
