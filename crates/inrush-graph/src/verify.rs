//! The verifier of graphs: what must hold between any two graph stages, each breach with its place.
//!
//! Structure only: each value is defined once and before its uses, types are well-formed, sizes
//! hold no loop index, mutations fit their inputs. Schemas of operators are no matter of this
//! crate. All breaches are collected, so that one run shows them together.

use crate::text::Place;
use crate::*;
use inrush_base::{Error, Result};

/// A broken rule and the line of the text form that it stands on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    pub place: Place,
    pub message: String,
}

/// Checks every rule of the level. The error shows the graph with a caret under each offending line.
pub fn verify(g: &Graph) -> Result<()> {
    g.bodies.iter().try_for_each(verify)?;
    let problems = problems(g);
    let Some(first) = problems.first() else {
        return Ok(());
    };
    let more = match problems.len() {
        1 => String::new(),
        n => format!(" (and {} more)", n - 1),
    };
    Err(Error::internal(format!(
        "the graph `{}` breaks a rule: {}{more}\n{}",
        g.name,
        first.message,
        report(g, &problems)
    )))
}

/// Returns the graph with each problem under its line. References outside the arena cannot be
/// printed: then only the problems.
pub fn report(g: &Graph, problems: &[Problem]) -> String {
    let known = |v: ValueId| v.index() < g.values.len();
    let printable = (g.inputs.iter().all(|i| known(i.value)))
        && (g.nodes.iter()).all(|n| n.reads().chain(n.outs.iter().copied()).all(known));
    if printable {
        let notes: Vec<(Place, String)> = problems
            .iter()
            .map(|x| (x.place, x.message.clone()))
            .collect();
        return g.print_with_notes(&notes);
    }
    problems
        .iter()
        .map(|x| format!("{:?}: {}\n", x.place, x.message))
        .collect()
}

/// Returns every broken rule, in program order.
pub fn problems(g: &Graph) -> Vec<Problem> {
    let mut c = Check {
        g,
        defined: vec![false; g.values.len()],
        out: Vec::new(),
    };
    let mut users = Vec::new();
    for (k, i) in g.inputs.iter().enumerate() {
        c.define(Place::Input(k), i.value);
        if let InputKind::User { index } = i.kind {
            if users.contains(&index) {
                c.say(Place::Input(k), format!("a second input {index}"));
            }
            users.push(index);
        }
    }
    for (k, n) in g.nodes.iter().enumerate() {
        let place = Place::Node(NodeId::from_index(k));
        n.reads().for_each(|v| c.used(place, v));
        for a in &n.args {
            if matches!(a, Arg::Body(b) if *b >= g.bodies.len()) {
                c.say(place, "there is no such body");
            }
        }
        n.outs.iter().for_each(|v| c.define(place, *v));
        if n.line.is_some_and(|l| l.index() >= g.lines.len()) {
            c.say(place, "the source line is not in the table");
        }
    }
    for (k, gd) in g.guards.iter().enumerate() {
        for e in [gd.left, gd.right] {
            c.no_index(Place::Guard(k), e);
        }
    }
    for (k, o) in g.outputs.iter().enumerate() {
        let place = Place::Output(k);
        if let OutputValue::Value(v) = o.value {
            c.output(place, v);
        }
        if let OutputKind::Mutation { input } = o.kind {
            c.mutation(place, input, &o.value);
        }
    }
    c.out
}

struct Check<'a> {
    g: &'a Graph,
    defined: Vec<bool>,
    out: Vec<Problem>,
}

impl Check<'_> {
    fn say(&mut self, place: Place, message: impl Into<String>) {
        self.out.push(Problem {
            place,
            message: message.into(),
        });
    }

    /// Notes a definition, and checks the type of the value.
    fn define(&mut self, place: Place, v: ValueId) {
        match self.defined.get_mut(v.index()) {
            None => self.say(place, format!("there is no value {v}")),
            Some(d) if *d => {
                let name = self.g.value(v).name.clone();
                self.say(place, format!("`{name}` is defined twice"));
            }
            Some(d) => {
                *d = true;
                self.ty(place, v);
            }
        }
    }

    /// Checks the value of an output. The type of an integer is its expression: stage normalize drops the node that computed it.
    fn output(&mut self, place: Place, v: ValueId) {
        let is_integer = |v: &Value| matches!(v.ty, Type::Int(_));
        match self.defined.get(v.index()) {
            Some(false) if self.g.values.get(v.index()).is_some_and(is_integer) => {
                self.ty(place, v);
            }
            _ => self.used(place, v),
        }
    }

    fn used(&mut self, place: Place, v: ValueId) {
        match self.defined.get(v.index()) {
            None => self.say(place, format!("there is no value {v}")),
            Some(true) => {}
            Some(false) => {
                let name = self.g.value(v).name.clone();
                self.say(place, format!("`{name}` is used before it is defined"));
            }
        }
    }

    /// Checks a type on its own.
    fn ty(&mut self, place: Place, v: ValueId) {
        let g = self.g;
        match &g.value(v).ty {
            Type::Tensor(t) => {
                if t.strides.len() != t.sizes.len() {
                    let (s, r) = (t.strides.len(), t.sizes.len());
                    self.say(place, format!("{s} strides for {r} dimensions"));
                }
                if t.sizes.iter().any(|e| g.exprs.range(*e).hi < 0) {
                    self.say(place, "a size is negative");
                }
                for e in t.sizes.iter().chain(&t.strides) {
                    self.no_index(place, *e);
                }
            }
            Type::Int(e) => self.no_index(place, *e),
            Type::Opaque(what) if what.is_empty() => {
                self.say(place, "an opaque value does not say what it is")
            }
            _ => {}
        }
    }

    fn no_index(&mut self, place: Place, e: Expr) {
        let exprs = &self.g.exprs;
        if exprs.free_syms(e).iter().any(|s| exprs.is_index(*s)) {
            self.say(place, "a loop index stands in a graph");
        }
    }

    /// Checks that new contents have the type of the input. Strides may differ.
    fn mutation(&mut self, place: Place, input: usize, value: &OutputValue) {
        let Some(i) = self.g.inputs.get(input) else {
            return self.say(place, format!("there is no input at position {input}"));
        };
        let OutputValue::Value(v) = value else {
            return self.say(place, "the new contents of an input are no tensor");
        };
        if v.index() >= self.g.values.len() || i.value.index() >= self.g.values.len() {
            return;
        }
        match (&self.g.value(i.value).ty, &self.g.value(*v).ty) {
            (Type::Tensor(a), Type::Tensor(b)) if a.dtype == b.dtype && a.sizes == b.sizes => {}
            _ => self.say(place, "the new contents have not the input's type"),
        }
    }
}
