//! Graph to text.

use super::{FORMATS, Place, READS, RELATIONS};
use crate::*;
use inrush_base::text::{quote, show_name};
use rustc_hash::FxHashMap;

/// Returns every line with the place that it is about.
pub(super) fn lines(g: &Graph) -> Vec<(Option<Place>, String)> {
    let mut p = Printer {
        g,
        ids: FxHashMap::default(),
    };
    let mut out = vec![(
        Some(Place::Program),
        format!("graph {}", show_name(&g.name)),
    )];
    out.extend(g.exprs.show_decls().into_iter().map(|l| (None, l)));
    for (k, l) in g.lines.iter().enumerate() {
        out.push((None, format!("line{k}: {}", quote(l))));
    }
    if g.foreign_inputs {
        out.push((None, "foreign_inputs".to_string()));
    }
    for (word, tree) in [("in_tree", &g.in_tree), ("out_tree", &g.out_tree)] {
        if let Some(t) = tree {
            out.push((None, format!("{word} {}", quote(t))));
        }
    }
    for op in &g.operators {
        out.push((None, format!("operator {}", quote(&op.to_string()))));
    }
    for body in &g.bodies {
        out.push((None, "body".to_string()));
        out.extend(
            lines(body)
                .into_iter()
                .map(|(_, l)| (None, format!("  {l}"))),
        );
        out.push((None, "end".to_string()));
    }
    for (k, i) in g.inputs.iter().enumerate() {
        let what = match &i.kind {
            InputKind::User { index } => format!("input {index}"),
            InputKind::Parameter { name } => format!("parameter {}", show_name(name)),
            InputKind::Buffer { name, persistent } => {
                let kept = if *persistent { " persistent" } else { "" };
                format!("buffer {}{kept}", show_name(name))
            }
            InputKind::Constant { name } => format!("constant {}", show_name(name)),
        };
        let left = p.define(i.value);
        let at = match i.begin {
            0 => String::new(),
            begin => format!(" at {begin}"),
        };
        let reads = READS.iter().find(|r| r.0 == i.reads);
        let reads = reads.map_or(String::new(), |r| format!(" reads {}", r.1));
        out.push((Some(Place::Input(k)), format!("{left} = {what}{at}{reads}")));
    }
    for (k, gd) in g.guards.iter().enumerate() {
        let rel = RELATIONS.iter().find(|r| r.0 == gd.relation);
        let line = format!(
            "guard {} {} {} because {}",
            g.exprs.show(gd.left),
            rel.map_or("", |r| r.1),
            g.exprs.show(gd.right),
            quote(&gd.why)
        );
        out.push((Some(Place::Guard(k)), line));
    }
    for (k, n) in g.nodes.iter().enumerate() {
        out.push((Some(Place::Node(NodeId::from_index(k))), p.node(n)));
    }
    for (k, o) in g.outputs.iter().enumerate() {
        let kind = match &o.kind {
            OutputKind::User { index } => format!("output {index}"),
            OutputKind::Mutation { input } => format!("mutate {input}"),
        };
        let value = match &o.value {
            OutputValue::Value(v) => p.show(*v),
            OutputValue::Scalar(s) => format!("scalar {s}"),
            OutputValue::None => "none".into(),
        };
        out.push((Some(Place::Output(k)), format!("{kind}: {value}")));
    }
    out
}

struct Printer<'a> {
    g: &'a Graph,
    /// Number of each value in the text.
    ids: FxHashMap<ValueId, usize>,
}

impl Printer<'_> {
    /// Returns `%3 name: type`.
    fn define(&mut self, v: ValueId) -> String {
        let next = self.ids.len();
        let id = *self.ids.entry(v).or_insert(next);
        let value = self.g.value(v);
        format!("%{id} {}: {}", show_name(&value.name), self.ty(&value.ty))
    }

    fn show(&self, v: ValueId) -> String {
        match self.ids.get(&v) {
            Some(id) => format!("%{id}"),
            // Broken graphs are printed too, in the verifier's reports.
            None => format!("%undefined{}", v.0),
        }
    }

    fn ty(&self, t: &Type) -> String {
        let ex = &self.g.exprs;
        match t {
            Type::Tensor(t) => {
                let mut out = format!("{}{}", t.dtype, ex.show_list(&t.sizes));
                if t.strides != ex.contiguous_strides(&t.sizes) {
                    out.push_str(&format!(" strides {}", ex.show_list(&t.strides)));
                }
                out
            }
            Type::Int(e) => format!("int {}", ex.show(*e)),
            Type::Float => "float".into(),
            Type::Bool => "bool".into(),
            Type::Constant(v) => format!("constant {v}"),
            Type::None => "none".into(),
            Type::Opaque(what) => format!("opaque {}", quote(what)),
        }
    }

    fn node(&mut self, n: &Node) -> String {
        let args: Vec<String> = n.args.iter().map(|a| self.arg(a)).collect();
        let outs: Vec<String> = n.outs.iter().map(|v| self.define(*v)).collect();
        let left = if outs.is_empty() {
            "call ".to_string()
        } else {
            format!("{} = ", outs.join(", "))
        };
        let at = n.line.map(|l| format!(" at {l}")).unwrap_or_default();
        let made_for = n.made_for.as_ref();
        let made_for = made_for.map_or(String::new(), |op| format!(" for {}", show_name(op)));
        format!(
            "{left}{}({}){at}{made_for}",
            show_name(&n.op),
            args.join(", ")
        )
    }

    fn arg(&self, a: &Arg) -> String {
        fn list<T>(items: &[T], show: impl Fn(&T) -> String) -> String {
            let parts: Vec<String> = items.iter().map(show).collect();
            format!("[{}]", parts.join(", "))
        }
        match a {
            Arg::None => "none".into(),
            Arg::Value(v) => self.show(*v),
            Arg::Values(vs) if vs.is_empty() => "tensors[]".into(),
            Arg::Values(vs) => list(vs, |v| v.map_or("none".into(), |v| self.show(v))),
            Arg::Int(e) => self.g.exprs.show(*e),
            Arg::Ints(es) => self.g.exprs.show_list(es),
            Arg::Float(f) => Scalar::Float(*f).to_string(),
            Arg::Floats(fs) => format!("floats{}", list(fs, |f| Scalar::Float(*f).to_string())),
            Arg::Complex(re, im) => {
                let parts = [*re, *im];
                format!("complex{}", list(&parts, |f| Scalar::Float(*f).to_string()))
            }
            Arg::Bool(b) => b.to_string(),
            Arg::Bools(bs) => format!("bools{}", list(bs, |b| b.to_string())),
            Arg::Str(s) => quote(s),
            Arg::DType(d) => format!("dtype.{d}"),
            Arg::MemoryFormat(m) => {
                let name = FORMATS.iter().find(|f| f.0 == *m).map_or("", |f| f.1);
                format!("format.{name}")
            }
            Arg::Body(k) => format!("body {k}"),
            Arg::Other(s) => format!("other {}", quote(s)),
        }
    }
}
