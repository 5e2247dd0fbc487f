//! Prints loops.
//!
//! Each line has the place that it is about, so that a verifier's notes can be put under it. Ids
//! are printed as they are; symbols are declared in the header with ranges and hints.

use super::Place;
use crate::*;
use inrush_base::text::{quote, show_name};

/// Returns `[i0: s0, i1: 4]`.
pub fn axes(p: &Loops, axes: &[Axis]) -> String {
    Names::new(&p.exprs).axes(axes)
}

/// Returns every line of a program with the place that it is about.
pub fn lines(p: &Loops) -> Vec<(Option<Place>, String)> {
    let mut out = Vec::new();
    let header = format!("loops {} inputs {}", show_name(&p.name), p.num_inputs);
    out.push((Some(Place::Program), header));
    out.extend(p.exprs.show_decls().into_iter().map(|l| (None, l)));
    for (k, o) in p.origins.iter().enumerate() {
        let mut line = format!("origin o{k}: {} {}", show_name(&o.op), show_name(&o.name));
        if let Some(at) = &o.line {
            line.push_str(&format!(" at {}", quote(at)));
        }
        out.push((None, line));
    }
    for (k, b) in p.buffers.iter().enumerate() {
        let b_id = BufId::from_index(k);
        out.push((Some(Place::Buffer(b_id)), buffer(p, b_id, b)));
    }
    for (k, n) in p.nodes.iter().enumerate() {
        node(p, k, n, &mut out);
    }
    for (k, o) in p.outputs.iter().enumerate() {
        let what = match o {
            Output::Tensor { buffer } => format!("{buffer}"),
            Output::Mutation { input, buffer } => format!("{input} = {buffer}"),
            Output::Int(e) => format!("int {}", p.exprs.show(*e)),
            Output::Scalar(s) => format!("scalar {s}"),
            Output::None => "none".into(),
        };
        out.push((Some(Place::Output(k)), format!("output {what}")));
    }
    out
}

/// Returns the line of a buffer.
fn buffer(p: &Loops, id: BufId, b: &Buffer) -> String {
    let mut line = format!(
        "{id} {}: {}{}",
        show_name(&b.name),
        b.dtype,
        p.exprs.show_list(&b.sizes)
    );
    if let Some(l) = &b.layout {
        line.push_str(&format!(" layout {}", p.exprs.show_list(&l.strides)));
        if !p.exprs.is_int(l.offset, 0) {
            line.push_str(&format!(" offset {}", p.exprs.show(l.offset)));
        }
    }
    line.push_str(&match &b.kind {
        BufferKind::Input { index } => format!(" = input {index}"),
        BufferKind::Weight { name } => format!(" = weight {}", show_name(name)),
        BufferKind::Temp => " = temp".into(),
        BufferKind::Alias { of } => format!(" = alias {of}"),
    });
    line
}

/// Names of a body's index symbols. Two symbols of one position and different extents would share a name; later ones get
/// `.1`, `.2`.
struct Names<'a> {
    exprs: &'a Exprs,
    names: Vec<(Sym, String)>,
}

impl<'a> Names<'a> {
    fn new(exprs: &'a Exprs) -> Self {
        let names = exprs
            .symbols()
            .into_iter()
            .map(|s| (s, exprs.sym_info(s).name))
            .collect();
        Names { exprs, names }
    }

    /// Returns the name of an index symbol, a new one at its first occurrence.
    fn declare(&mut self, s: Sym) -> String {
        if let Some((_, n)) = self.names.iter().find(|(t, _)| *t == s) {
            return n.clone();
        }
        let base = self.exprs.sym_info(s).name;
        let taken = |n: &String| self.names.iter().any(|(_, m)| m == n);
        let mut name = base.clone();
        let mut k = 0;
        while taken(&name) {
            k += 1;
            name = format!("{base}.{k}");
        }
        self.names.push((s, name.clone()));
        name
    }

    fn show(&self, e: Expr) -> String {
        let name = |s: Sym| match self.names.iter().find(|(t, _)| *t == s) {
            Some((_, n)) => n.clone(),
            None => self.exprs.sym_info(s).name,
        };
        self.exprs.show_with(e, &name)
    }

    fn axes(&mut self, axes: &[Axis]) -> String {
        let parts: Vec<String> = axes
            .iter()
            .map(|a| format!("{}: {}", self.declare(a.sym), self.exprs.show(a.size)))
            .collect();
        format!("[{}]", parts.join(", "))
    }

    fn access(&self, buf: BufId, coords: &[Expr]) -> String {
        let parts: Vec<String> = coords.iter().map(|e| self.show(*e)).collect();
        format!("{buf}[{}]", parts.join(", "))
    }
}

/// Appends the lines of a node, as if it were at position `at`.
pub fn node(p: &Loops, at: usize, n: &Node, out: &mut Vec<(Option<Place>, String)>) {
    let mut names = Names::new(&p.exprs);
    let from: String = n.body().origins.iter().map(|o| format!(" {o}")).collect();
    let from = if from.is_empty() {
        from
    } else {
        format!(" from{from}")
    };
    match n {
        Node::Body(b) => {
            let mut line = format!("body {}", names.axes(b.outer_axes()));
            if b.is_reduction() {
                line.push_str(&format!(" reduce {}", names.axes(b.reduction_axes())));
            }
            out.push((Some(Place::Node(at)), format!("{line}{from} {{")));
        }
        Node::Contraction(c) => {
            let mut line = format!("contraction {}", c.dtype);
            for (word, axes) in [("batch", &c.batch), ("m", &c.m), ("n", &c.n), ("k", &c.k)] {
                line.push_str(&format!(" {word} {}", names.axes(axes)));
            }
            out.push((Some(Place::Node(at)), format!("{line}{from} {{")));
            for (word, x) in [("a", &c.a), ("b", &c.b)] {
                out.push((
                    None,
                    format!("  {word} = {}", names.access(x.buf, &x.coords)),
                ));
            }
        }
        Node::Attention(a) => attention(at, a, &from, &mut names, out),
        Node::Library(c) => {
            let line = format!("library {} {}{from}", show_name(&c.function), operands(c));
            return out.push((Some(Place::Node(at)), line));
        }
    }
    let body = n.body();
    let dtypes = body.dtypes(p);
    for s in body.ids() {
        let text = stmt(body, s, dtypes[s.index()], &mut names);
        out.push((Some(Place::Stmt(at, s)), format!("  {text}")));
    }
    out.push((None, "}".into()));
}

/// `attention batch [..] m [..] k [..] d [..] n [..] {`, then operands and results.
fn attention(
    at: usize,
    a: &Attention,
    from: &str,
    names: &mut Names,
    out: &mut Vec<(Option<Place>, String)>,
) {
    let mut line = format!("attention batch {}", names.axes(&a.batch));
    for (word, axis) in [("m", a.m), ("k", a.k), ("d", a.d), ("n", a.n)] {
        line.push_str(&format!(" {word} {}", names.axes(&[axis])));
    }
    out.push((Some(Place::Node(at)), format!("{line}{from} {{")));
    let operands = [("query", &a.query), ("key", &a.key), ("value", &a.value)];
    let grad = a.gradients().map(|g| ("grad", &g.grad));
    for (word, x) in operands.into_iter().chain(grad) {
        let access = names.access(x.buf, &x.coords);
        out.push((None, format!("  {word} = {access}")));
    }
    for (word, product) in ["product", "grad_product"].iter().zip(a.products()) {
        if let Some(product) = product {
            out.push((None, format!("  {word} = {product}")));
        }
    }
    if let Some(b) = &a.blocks {
        out.push((None, format!("  blocks {} by {}", b.rows, b.keys)));
        let lists = [
            Some(("partial", &b.partial)),
            b.full.as_ref().map(|l| ("full", l)),
        ];
        for (word, l) in lists.into_iter().flatten() {
            let axis = names.axes(&[l.position]);
            let count = names.access(l.count.buf, &l.count.coords);
            let index = names.access(l.index.buf, &l.index.coords);
            out.push((None, format!("  {word} {axis} = {count}, {index}")));
        }
    }
    let word = match &a.results {
        Attended::Softmax { .. } => "results",
        Attended::Gradients(g) if g.exchanged => "exchanged sums",
        Attended::Gradients(_) => "sums",
    };
    let results: Vec<String> = a.results().iter().map(|b| b.to_string()).collect();
    out.push((None, format!("  {word} = {}", results.join(", "))));
}

/// `(1, false) b0 b1 -> b2`: parameters, inputs, outputs.
fn operands(c: &LibraryCall) -> String {
    let list = |all: &[BufId]| -> String { all.iter().map(|b| format!(" {b}")).collect() };
    let params: Vec<String> = c.params.iter().map(|p| p.to_string()).collect();
    let (inputs, outputs) = (list(&c.inputs), list(&c.outputs));
    format!("({}){inputs} ->{outputs}", params.join(", "))
}

fn stmt(body: &Body, id: StmtId, dtype: DType, names: &mut Names) -> String {
    let s = body.stmt(id);
    let guard = s.mask().map(|m| format!(" if {m}")).unwrap_or_default();
    let right = match s {
        Stmt::Const { value, .. } => format!("const {value}"),
        Stmt::Index { expr, .. } => format!("index {}", names.show(*expr)),
        Stmt::Load {
            buf, coords, fill, ..
        } => {
            let access = names.access(*buf, coords);
            match s.mask() {
                Some(m) => format!("load {access} if {m} else {fill}"),
                None => format!("load {access}"),
            }
        }
        Stmt::Op { op, args, .. } => {
            let args: Vec<String> = args.iter().map(|a| a.to_string()).collect();
            format!("{} {}", op.text(), args.join(", "))
        }
        Stmt::Cast { arg, to } => format!("cast {arg} to {to}"),
        Stmt::Bitcast { arg, from, to } => format!("bitcast {arg} from {from} to {to}"),
        Stmt::Reduce { op, value, .. } => format!("reduce.{} {value}", op.text()),
        Stmt::Scan { op, value, .. } => format!("scan.{} {value}", op.text()),
        Stmt::Sort { value, .. } => format!("sort {value}"),
        Stmt::Acc { of: 0, .. } => "acc".into(),
        Stmt::Acc { .. } => "grad_acc".into(),
        Stmt::Indirect {
            value,
            sym,
            size,
            wrap,
            check,
            ..
        } => {
            let wrap = if *wrap { " wrap" } else { "" };
            // The body's own operator is not printed.
            let origin = (check.origin())
                .filter(|o| body.origins.last() != Some(o))
                .map_or(String::new(), |o| format!(" {o}"));
            let check = match check {
                Check::None => "",
                Check::Index(_) => " check",
                Check::Divisor(_) => " divisor",
                Check::Value(_) => " value",
            };
            return format!(
                "{}: {} = indirect {value}{wrap}{check}{origin}{guard}",
                names.declare(*sym),
                names.show(*size)
            );
        }
        Stmt::Store {
            buf,
            coords,
            value,
            mode,
            ..
        } => {
            let access = names.access(*buf, coords);
            let mode = match mode {
                StoreMode::Set => String::new(),
                m => format!(".{}", m.text()),
            };
            return format!("store{mode} {access} = {value}{guard}");
        }
    };
    format!("{id}: {dtype} = {right}")
}
