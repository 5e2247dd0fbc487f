//! Plans to text.

use super::Line;
use crate::{Group, Place, Plan, Step};
use inrush_base::text::show_name;
use inrush_loops::{BufId, BufferKind, Loops, Node, text};

/// Every line with the place that it is about.
pub(super) fn lines(p: &Plan) -> Vec<(Option<Line>, String)> {
    let mut out = Vec::new();
    for (place, line) in text::lines(&p.loops) {
        match place {
            Some(text::Place::Program) => {
                let line = line.replacen("loops", "plan", 1);
                out.push((Some(Line::Program), line));
            }
            Some(text::Place::Buffer(b)) => out.push((Some(Line::Buffer(b)), line)),
            _ => out.push((None, line)),
        }
    }
    let steps = p.load_steps.iter().map(|s| ("load ", s));
    for (k, (word, s)) in steps.chain(p.steps.iter().map(|s| ("", s))).enumerate() {
        step(&p.loops, k, word, s, &mut out);
    }
    memory(p, &mut out);
    for (k, r) in p.refusals.iter().enumerate() {
        let id = |o: Option<inrush_loops::OriginId>| o.map_or("?".into(), |o| o.to_string());
        let (a, b) = (id(r.producer), id(r.consumer));
        let name = |o| show_name(p.origin_name(o));
        let (from, to) = (name(r.producer), name(r.consumer));
        let line = format!("refused {a} -> {b}: {} ;; {from} -> {to}", r.reason);
        out.push((Some(Line::Refusal(k)), line));
    }
    out
}

fn step(loops: &Loops, at: usize, word: &str, s: &Step, out: &mut Vec<(Option<Line>, String)>) {
    match s {
        Step::Kernel(g) => {
            let line = format!(
                "{word}kernel {}{} {{",
                text::axes(loops, &g.axes),
                show_locals(g)
            );
            out.push((Some(Line::Step(at)), line));
            for (k, b) in g.bodies.iter().enumerate() {
                // One at a time: bodies may be long.
                node(loops, at, k, &Node::Body(b.clone()), "  ", out);
            }
            out.push((None, "}".into()));
        }
        Step::Contraction(c) => node(loops, at, 0, &Node::Contraction(c.clone()), word, out),
        Step::Library(c) => node(loops, at, 0, &Node::Library(c.clone()), word, out),
        Step::Attention(a) => node(loops, at, 0, &Node::Attention(a.clone()), word, out),
    }
}

/// The lines of a node; `front` stands before its first line and, where it is blank, before all.
fn node(
    loops: &Loops,
    step: usize,
    body: usize,
    n: &Node,
    front: &str,
    out: &mut Vec<(Option<Line>, String)>,
) {
    let mut lines = Vec::new();
    text::node(loops, 0, n, &mut lines);
    let blank = if front.trim().is_empty() { front } else { "" };
    for (place, line) in lines {
        out.push(match place {
            Some(text::Place::Node(_)) => {
                let place = match n {
                    Node::Body(_) => Line::Body(step, body),
                    Node::Contraction(_) | Node::Library(_) | Node::Attention(_) => {
                        Line::Step(step)
                    }
                };
                (Some(place), format!("{front}{line}"))
            }
            Some(text::Place::Stmt(_, s)) => {
                (Some(Line::Stmt(step, body, s)), format!("{blank}{line}"))
            }
            _ => (None, format!("{blank}{line}")),
        });
    }
}

fn show_locals(g: &Group) -> String {
    if g.locals.is_empty() {
        return String::new();
    }
    let names: Vec<String> = g.locals.iter().map(|b| b.to_string()).collect();
    format!(" locals {}", names.join(" "))
}

fn memory(p: &Plan, out: &mut Vec<(Option<Line>, String)>) {
    let ex = &p.loops.exprs;
    for (what, size) in [
        ("arena", p.memory.arena_bytes),
        ("load arena", p.memory.load_bytes),
    ] {
        if let Some(size) = size {
            out.push((None, format!("{what} {} bytes", ex.show(size))));
        }
    }
    let locals = locals(p);
    for (k, place) in p.memory.places.iter().enumerate() {
        if *place == implied(&p.loops, &locals, k) {
            continue;
        }
        let what = match place {
            Place::Unused => "unused".into(),
            Place::Input(i) => format!("input {i}"),
            Place::Weight => "weight".into(),
            Place::Output(i) => format!("output {i}"),
            Place::Arena {
                offset,
                bytes,
                in_place_of,
            } => {
                let over = in_place_of.map_or(String::new(), |b| format!(" in place of {b}"));
                let (offset, bytes) = (ex.show(*offset), ex.show(*bytes));
                format!("arena {offset}, {bytes} bytes{over}")
            }
            Place::Load { offset, bytes } => {
                let (offset, bytes) = (ex.show(*offset), ex.show(*bytes));
                format!("load {offset}, {bytes} bytes")
            }
            Place::Local => "local".into(),
            Place::Alias(of) => format!("alias {of}"),
        };
        let at = Line::Place(BufId::from_index(k));
        out.push((Some(at), format!("place b{k} {what}")));
    }
}

/// Marks the buffers that are locals of kernels.
pub(super) fn locals(p: &Plan) -> Vec<bool> {
    let mut out = vec![false; p.loops.buffers.len()];
    for s in p.load_steps.iter().chain(&p.steps) {
        if let Step::Kernel(g) = s {
            for b in &g.locals {
                if let Some(l) = out.get_mut(b.index()) {
                    *l = true;
                }
            }
        }
    }
    out
}

/// The place that a buffer has when no line says otherwise.
pub(super) fn implied(loops: &Loops, locals: &[bool], buffer: usize) -> Place {
    match loops.buffers.get(buffer).map(|b| &b.kind) {
        Some(BufferKind::Input { index }) => Place::Input(*index),
        Some(BufferKind::Weight { .. }) => Place::Weight,
        Some(BufferKind::Alias { of }) => Place::Alias(*of),
        Some(BufferKind::Temp) if locals[buffer] => Place::Local,
        _ => Place::Unused,
    }
}
