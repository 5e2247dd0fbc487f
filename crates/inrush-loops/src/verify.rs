//! The verifier of loops: the rules of this level, each violation with its place.
//!
//! ```text
//! verify.rs   references, buffers and aliases, order of writes and reads, outputs
//! body.rs     one node: scopes of indices, dtypes, phases, stores
//! bounds.rs   accesses that range analysis cannot prove
//! ops.rs      dtypes that each operation takes
//! ```
//!
//! References are checked first, and everything else only if they are good: other rules follow ids
//! without looking. Before scheduling the program is in single assignment: a node does not read
//! what it writes, and inputs are not written. Schedules relax these two ([`verify_scheduled`]).

mod body;
mod bounds;
mod ops;

pub use bounds::Unproven;

use crate::text::Place;
use crate::*;
use inrush_base::{Error, Result};

/// A broken rule and the line of the text form that it stands on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    pub place: Place,
    pub message: String,
}

/// Checks every rule of the level. The error shows the program with a caret under each offending line.
pub fn verify(p: &Loops) -> Result<()> {
    outcome(p, problems(p))
}

/// Checks the rules that still hold after scheduling: mutated inputs are written by nodes, and a node may overwrite what it
/// reads at the same point.
pub fn verify_scheduled(p: &Loops) -> Result<()> {
    outcome(p, problems_at(p, true))
}

/// Turns problems into one error, which shows the program.
fn outcome(p: &Loops, problems: Vec<Problem>) -> Result<()> {
    if problems.is_empty() {
        return Ok(());
    }
    let summary = match problems.len() {
        1 => problems[0].message.clone(),
        n => format!("{} (and {} more)", problems[0].message, n - 1),
    };
    Err(Error::internal(format!(
        "the loops of `{}` break a rule: {summary}\n{}",
        p.name,
        report(p, &problems)
    )))
}

/// Returns the program with each problem under its line. Broken references cannot be printed: then
/// only the problems.
pub fn report(p: &Loops, problems: &[Problem]) -> String {
    if reference_problems(p).is_empty() {
        let notes: Vec<(Place, String)> = problems
            .iter()
            .map(|x| (x.place, x.message.clone()))
            .collect();
        p.print_with_notes(&notes)
    } else {
        problems
            .iter()
            .map(|x| format!("{:?}: {}\n", x.place, x.message))
            .collect()
    }
}

/// Returns the accesses that range analysis does not prove to be in bounds and that no mask guards.
/// They are not errors: lowering may know more than ranges do. File tests list them (`unproven`).
pub fn unproven(p: &Loops) -> Vec<Unproven> {
    bounds::unproven(p)
}

/// Returns every broken rule, in program order.
pub fn problems(p: &Loops) -> Vec<Problem> {
    problems_at(p, false)
}

fn problems_at(p: &Loops, scheduled: bool) -> Vec<Problem> {
    // References first: the other checks follow them.
    let mut out = reference_problems(p);
    if !out.is_empty() {
        return out;
    }
    buffers(p, &mut out);
    let mut written: Vec<bool> = p
        .buffers
        .iter()
        .map(|b| matches!(b.kind, BufferKind::Input { .. } | BufferKind::Weight { .. }))
        .collect();
    for (k, node) in p.nodes.iter().enumerate() {
        let mut check = body::Check::new(p, k, node, &mut out);
        check.run();
        order(p, k, node, scheduled, &mut written, &mut out);
    }
    outputs(p, &written, &mut out);
    out
}

fn problem(out: &mut Vec<Problem>, place: Place, message: impl Into<String>) {
    out.push(Problem {
        place,
        message: message.into(),
    });
}

/// Finds ids that are out of range.
fn reference_problems(p: &Loops) -> Vec<Problem> {
    let mut out = Vec::new();
    let nbufs = p.buffers.len();
    let bad_buf = |b: BufId| b.index() >= nbufs;
    for (k, b) in p.buffers.iter().enumerate() {
        if let BufferKind::Alias { of } = b.kind
            && of.index() >= k
        {
            let place = Place::Buffer(BufId::from_index(k));
            problem(
                &mut out,
                place,
                format!("an alias of {of}, which is not an earlier buffer"),
            );
        }
    }
    for (k, n) in p.nodes.iter().enumerate() {
        let body = n.body();
        if body.outer > body.axes.len() {
            problem(&mut out, Place::Node(k), "more outer axes than axes");
        }
        let checked = body.stmts.iter().filter_map(|s| match s {
            crate::Stmt::Indirect { check, .. } => check.origin(),
            _ => None,
        });
        for o in body.origins.iter().copied().chain(checked) {
            if o.index() >= p.origins.len() {
                problem(&mut out, Place::Node(k), format!("no origin {o}"));
            }
        }
        if let Node::Contraction(c) = n {
            for b in [c.a.buf, c.b.buf] {
                if bad_buf(b) {
                    problem(&mut out, Place::Node(k), format!("no buffer {b}"));
                }
            }
        }
        if let Node::Attention(a) = n {
            let buffers = a.accesses().map(|x| x.buf).chain(a.results());
            let products = a.products().into_iter().flatten();
            for b in buffers.chain(products).filter(|b| bad_buf(*b)) {
                problem(&mut out, Place::Node(k), format!("no buffer {b}"));
            }
        }
        if let Node::Library(c) = n {
            for b in c.inputs.iter().chain(&c.outputs).filter(|b| bad_buf(**b)) {
                problem(&mut out, Place::Node(k), format!("no buffer {b}"));
            }
        }
        for s in body.ids() {
            let place = Place::Stmt(k, s);
            for o in body.stmt(s).operands() {
                if o >= s {
                    problem(
                        &mut out,
                        place,
                        format!("{s} uses {o}, which does not come before it"),
                    );
                }
            }
            if let Stmt::Load { buf, .. } | Stmt::Store { buf, .. } = body.stmt(s)
                && bad_buf(*buf)
            {
                problem(&mut out, place, format!("no buffer {buf}"));
            }
        }
    }
    for (k, o) in p.outputs.iter().enumerate() {
        let bufs = match o {
            Output::Tensor { buffer } => vec![*buffer],
            Output::Mutation { input, buffer } => vec![*input, *buffer],
            _ => vec![],
        };
        for b in bufs.into_iter().filter(|b| bad_buf(*b)) {
            problem(&mut out, Place::Output(k), format!("no buffer {b}"));
        }
    }
    out
}

/// Checks sizes, layouts and aliases.
fn buffers(p: &Loops, out: &mut Vec<Problem>) {
    let has_index = |e: &Expr| p.exprs.free_syms(*e).iter().any(|s| p.exprs.is_index(*s));
    for (k, b) in p.buffers.iter().enumerate() {
        let place = Place::Buffer(BufId::from_index(k));
        if b.sizes.iter().any(|e| p.exprs.range(*e).hi < 0) {
            problem(out, place, "a size is negative");
        }
        if b.sizes.iter().any(has_index) {
            problem(out, place, "a size depends on a loop index");
        }
        if let Some(l) = &b.layout {
            if l.strides.len() != b.sizes.len() {
                let (s, r) = (l.strides.len(), b.sizes.len());
                problem(
                    out,
                    place,
                    format!("the layout has {s} strides for {r} dimensions"),
                );
            }
            if l.strides.iter().chain([&l.offset]).any(has_index) {
                problem(out, place, "the layout depends on a loop index");
            }
        }
        match &b.kind {
            BufferKind::Input { index } if *index >= p.num_inputs => {
                let n = p.num_inputs;
                problem(
                    out,
                    place,
                    format!("input {index} of a program with {n} inputs"),
                );
            }
            BufferKind::Alias { of } => alias(p, place, b, p.buffer(*of), out),
            _ => {}
        }
    }
}

/// Checks that an alias is within its storage. What ranges cannot decide passes.
fn alias(p: &Loops, place: Place, b: &Buffer, of: &Buffer, out: &mut Vec<Problem>) {
    let ex = &p.exprs;
    let (Some(layout), Some(_)) = (&b.layout, &of.layout) else {
        problem(
            out,
            place,
            "an alias and the buffer that it is of must have layouts",
        );
        return;
    };
    if b.dtype.size() != of.dtype.size() {
        problem(
            out,
            place,
            format!("an alias of {} seen as {}", of.dtype, b.dtype),
        );
    }
    let last = |l: &Layout, sizes: &[Expr]| {
        let steps = (l.strides.iter().zip(sizes))
            .map(|(s, n)| ex.mul(*s, ex.max(ex.sub(*n, ex.int(1)), ex.int(0))));
        ex.add(l.offset, ex.sum(steps))
    };
    if let Some(theirs) = &of.layout
        && layout.strides.len() == b.sizes.len()
        && theirs.strides.len() == of.sizes.len()
        && ex.prove_lt(last(theirs, &of.sizes), last(layout, &b.sizes))
    {
        problem(out, place, "the alias reaches beyond its buffer");
    }
}

/// Checks that each temporary is written before it is read. Before scheduling, inputs and weights
/// are never written, and no node reads what it writes.
fn order(
    p: &Loops,
    k: usize,
    node: &Node,
    scheduled: bool,
    written: &mut [bool],
    out: &mut Vec<Problem>,
) {
    let body = node.body();
    let writes: Vec<BufId> = node.writes().into_iter().map(|b| p.storage(b)).collect();
    let read = |b: BufId, place: Place, out: &mut Vec<Problem>| {
        let storage = p.storage(b);
        if !scheduled && writes.contains(&storage) {
            problem(
                out,
                place,
                format!("{b} is read by the node that writes it"),
            );
        } else if !written[storage.index()] {
            problem(out, place, format!("{b} is read before it is written"));
        }
    };
    if let Node::Contraction(c) = node {
        read(c.a.buf, Place::Node(k), out);
        read(c.b.buf, Place::Node(k), out);
    }
    if let Node::Attention(a) = node {
        for x in a.accesses() {
            read(x.buf, Place::Node(k), out);
        }
    }
    if let Node::Library(c) = node {
        for b in &c.inputs {
            read(*b, Place::Node(k), out);
        }
        library(p, k, c, scheduled, out);
    }
    for s in body.ids() {
        let place = Place::Stmt(k, s);
        match body.stmt(s) {
            Stmt::Load { buf, .. } => read(*buf, place, out),
            Stmt::Store { buf, mode, .. } => {
                let storage = p.storage(*buf);
                if !scheduled && !matches!(p.buffer(storage).kind, BufferKind::Temp) {
                    problem(out, place, format!("{buf} is not a temporary"));
                } else if *mode != StoreMode::Set && !written[storage.index()] {
                    problem(
                        out,
                        place,
                        format!("{buf} is combined with before it is written"),
                    );
                }
            }
            _ => {}
        }
    }
    for b in writes {
        written[b.index()] = true;
    }
    if node.writes().is_empty() {
        problem(out, Place::Node(k), "the node stores nothing");
    }
}

/// Checks a library call: no statements, buffers that are row-major, and outputs of its own.
fn library(p: &Loops, k: usize, c: &LibraryCall, scheduled: bool, out: &mut Vec<Problem>) {
    let mut say = |what: String| problem(out, Place::Node(k), what);
    if !c.site.stmts.is_empty() || !c.site.axes.is_empty() {
        say("a library call has no axes and no statements".into());
    }
    for b in c.inputs.iter().chain(&c.outputs) {
        if !is_row_major(p, *b) {
            say(format!("{b} of a library call is not row-major"));
        }
    }
    for (at, b) in c.outputs.iter().enumerate() {
        if c.inputs.contains(b) || c.outputs[..at].contains(b) {
            say(format!(
                "{b} is written by a library call that uses it twice"
            ));
        }
        if !scheduled && !matches!(p.buffer(p.storage(*b)).kind, BufferKind::Temp) {
            say(format!("{b} is not a temporary"));
        }
    }
}

/// Returns true if a buffer's layout is row-major from its first element on.
fn is_row_major(p: &Loops, b: BufId) -> bool {
    let (ex, b) = (&p.exprs, p.buffer(b));
    let Some(layout) = &b.layout else {
        return false;
    };
    let strides = ex.contiguous_strides(&b.sizes);
    let mut pairs = (layout.strides.iter().zip(&strides)).zip(&b.sizes);
    ex.is_int(layout.offset, 0) && pairs.all(|((a, b), size)| a == b || ex.is_int(*size, 1))
}

/// Checks that outputs are written, and that mutations have the type of their input.
fn outputs(p: &Loops, written: &[bool], out: &mut Vec<Problem>) {
    for (k, o) in p.outputs.iter().enumerate() {
        let place = Place::Output(k);
        let mut need = |b: BufId| {
            if !written[p.storage(b).index()] {
                problem(out, place, format!("{b} is never written"));
            }
        };
        match o {
            Output::Tensor { buffer } => {
                need(*buffer);
                if p.buffer(*buffer).layout.is_none() {
                    problem(out, place, format!("the output {buffer} has no layout"));
                }
            }
            Output::Mutation { input, buffer } => {
                need(*buffer);
                let (i, b) = (p.buffer(*input), p.buffer(*buffer));
                if matches!(i.kind, BufferKind::Temp | BufferKind::Alias { .. }) {
                    problem(out, place, format!("{input} is not an input"));
                }
                if i.sizes != b.sizes || i.dtype != b.dtype {
                    problem(out, place, format!("{buffer} has not the type of {input}"));
                }
            }
            _ => {}
        }
    }
}
