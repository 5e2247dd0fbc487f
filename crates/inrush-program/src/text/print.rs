//! Programs to text. Nothing is assumed of the program: a damaged one prints too.

use super::{Place as Line, READS, RELATIONS};
use crate::*;
use inrush_base::text::{quote, show_name};
use std::collections::BTreeMap;

/// Every line with the place that it is about.
pub(super) fn lines(p: &Program) -> Vec<(Option<Line>, String)> {
    let sizes = Sizes::new(&p.symbols, &p.sizes);
    let mut out = vec![(None, format!("program {}", show_name(&p.name)))];
    for (k, s) in p.symbols.iter().enumerate() {
        out.push((Some(Line::Symbol(k)), symbol(s)));
    }
    for (k, s) in p.sizes.iter().enumerate() {
        out.push((
            Some(Line::Size(k)),
            format!("size z{k} = {}", sizes.line(s)),
        ));
    }
    for (k, i) in p.inputs.iter().enumerate() {
        let ty = match &i.ty {
            InputType::Tensor {
                dtype,
                sizes: n,
                strides,
            } => format!(
                "{}{} strides {}",
                dtype.0.name(),
                sizes.list(n),
                sizes.list(strides)
            ),
            InputType::Int { value } => format!("int {}", sizes.get(*value)),
            InputType::Constant { value } => format!("constant {}", Scalar::from(*value)),
            InputType::Ignored => "ignored".into(),
        };
        let reads = READS.iter().find(|r| r.0 == i.reads);
        let reads = reads.map_or(String::new(), |r| format!(" reads {}", r.1));
        let line = format!("input {k} {}: {ty}{reads}", show_name(&i.name));
        out.push((Some(Line::Input(k)), line));
    }
    for (k, g) in p.guards.iter().enumerate() {
        let relation = RELATIONS.iter().find(|r| r.0 == g.relation);
        let relation = relation.map_or("==", |r| r.1);
        let (a, b) = (sizes.get(g.left), sizes.get(g.right));
        let line = format!("guard {a} {relation} {b} {}", quote(&g.why));
        out.push((Some(Line::Guard(k)), line));
    }
    for (k, b) in p.buffers.iter().enumerate() {
        let line = format!(
            "b{k} {}: {} {} bytes{} = {}",
            show_name(&b.name),
            b.dtype.0.name(),
            sizes.get(b.bytes),
            if b.written { " written" } else { "" },
            place(&sizes, &b.place)
        );
        out.push((Some(Line::Buffer(k)), line));
    }
    for (k, f) in p.kernels.iter().enumerate() {
        let show = |c: &Check| format!("{} {}", c.kind.name(), quote(&c.message));
        let checks: Vec<String> = f.checks.iter().map(show).collect();
        let (symbol, title) = (show_name(&f.symbol), show_name(&f.title));
        let line = format!(
            "kernel k{k} {symbol} {title} checks [{}]",
            checks.join(", ")
        );
        out.push((None, line));
    }
    let arena = format!("arena {} bytes", sizes.get(p.arena_bytes));
    out.push((Some(Line::Arena), arena));
    let load = format!("load arena {} bytes", sizes.get(p.load_bytes));
    out.push((Some(Line::LoadArena), load));
    let steps = p.load_steps.iter().map(|s| ("load ", s));
    for (k, (word, s)) in steps.chain(p.steps.iter().map(|s| ("", s))).enumerate() {
        out.push((Some(Line::Step(k)), format!("{word}{}", step(&sizes, s))));
    }
    for (k, o) in p.outputs.iter().enumerate() {
        let what = match o {
            Output::Tensor {
                buffer,
                dtype,
                sizes: n,
                strides,
            } => format!(
                "b{buffer} {}{} strides {}",
                dtype.0.name(),
                sizes.list(n),
                sizes.list(strides)
            ),
            Output::Int { value } => format!("int {}", sizes.get(*value)),
            Output::Scalar { value } => format!("scalar {}", Scalar::from(*value)),
            Output::Mutation => "mutation".into(),
            Output::None => "none".into(),
        };
        out.push((Some(Line::Output(k)), format!("output {k}: {what}")));
    }
    if let Some(parts) = &p.parts {
        let lines = super::parts::lines(p, parts);
        out.extend(lines.into_iter().map(|l| (None, l)));
    }
    out
}

/// A symbol's name where sizes stand: quoted if it would read as something else there.
pub(super) fn symbol_name(name: &str) -> String {
    let taken = name == "min" || name == "max" || super::parse::size_number(name).is_some();
    if taken { quote(name) } else { show_name(name) }
}

fn symbol(s: &Symbol) -> String {
    let lower = match s.lower {
        i64::MIN => "-inf".to_string(),
        v => v.to_string(),
    };
    let upper = match s.upper {
        i64::MAX => "inf".to_string(),
        v => v.to_string(),
    };
    let mut line = format!("symbol {} in [{lower}, {upper}] = ", symbol_name(&s.name));
    match s.source {
        SymbolSource::Int { input } => line.push_str(&format!("input {input}")),
        SymbolSource::Data => line.push_str("data"),
        SymbolSource::Dim {
            input,
            dim,
            factor,
            offset,
        } => {
            line.push_str(&format!("input {input} dim {dim}"));
            if factor != 1 {
                line.push_str(&format!(" factor {factor}"));
            }
            if offset != 0 {
                line.push_str(&format!(" offset {offset}"));
            }
        }
    }
    line
}

fn place(sizes: &Sizes, place: &Place) -> String {
    match place {
        Place::Input { input } => format!("input {input}"),
        Place::Weight(w) => format!(
            "weight {} {:?} strides {:?}",
            show_name(&w.name),
            w.sizes,
            w.strides
        ),
        Place::Persistent { offset } => format!("load arena {}", sizes.get(*offset)),
        Place::Arena { offset } => format!("arena {}", sizes.get(*offset)),
        Place::Output { output } => format!("output {output}"),
        Place::Alias { of, offset } => format!("alias b{of} at {}", sizes.get(*offset)),
    }
}

fn step(sizes: &Sizes, s: &Step) -> String {
    match s {
        Step::Launch(l) => format!(
            "launch k{} {} sizes {} units {} cost {} scratch {}{}{} from {}",
            l.kernel,
            buffers(&l.buffers),
            sizes.list(&l.sizes),
            sizes.get(l.units),
            sizes.get(l.unit_cost),
            sizes.get(l.scratch_bytes),
            if l.serial { " serial" } else { "" },
            if l.beside { " beside" } else { "" },
            names(&l.origins)
        ),
        Step::Library(c) => {
            let params: Vec<String> = (c.params.iter())
                .map(|p| Scalar::from(*p).to_string())
                .collect();
            let list = |all: &[Operand]| {
                let parts: Vec<String> = (all.iter())
                    .map(|o| format!("b{}{}", o.buffer, sizes.list(&o.sizes)))
                    .collect();
                format!("[{}]", parts.join(", "))
            };
            format!(
                "library {} [{}] {} -> {} from {}",
                show_name(&c.function),
                params.join(", "),
                list(&c.inputs),
                list(&c.outputs),
                names(&c.origins)
            )
        }
        Step::Contract(c) => {
            let one = |l: &[Level]| {
                let parts = l.iter().map(|l| (l.size, vec![l.stride]));
                sizes.levels(parts)
            };
            let k = c.k.iter().map(|l| (l.size, vec![l.a_stride, l.b_stride]));
            let batch = (c.batch.iter()).map(|l| (l.size, vec![l.a_stride, l.b_stride]));
            let store = c.store.as_ref().map(|s| {
                let [batch, m, n] = [&s.batch, &s.m, &s.n].map(|l| sizes.list(l));
                let at = sizes.get(s.offset);
                format!(" stores at {at} batch {batch} m {m} n {n}")
            });
            format!(
                "contract {} b{} at {}, b{} at {} batch {} m {} n {} k {} -> k{} {} sizes {}{} from {}",
                c.acc.0.name(),
                c.a,
                sizes.get(c.a_offset),
                c.b,
                sizes.get(c.b_offset),
                sizes.levels(batch),
                one(&c.m),
                one(&c.n),
                sizes.levels(k),
                c.epilogue,
                buffers(&c.buffers),
                sizes.list(&c.sizes),
                store.unwrap_or_default(),
                names(&c.origins)
            )
        }
    }
}

fn buffers(ids: &[BufferId]) -> String {
    let parts: Vec<String> = ids.iter().map(|b| format!("b{b}")).collect();
    format!("[{}]", parts.join(", "))
}

fn names(names: &[String]) -> String {
    let parts: Vec<String> = names.iter().map(|n| show_name(n)).collect();
    format!("[{}]", parts.join(", "))
}

/// How each size stands where it is used.
pub(super) struct Sizes<'a> {
    symbols: &'a [Symbol],
    lines: &'a [Size],
    /// The first line of each constant and symbol.
    first: BTreeMap<(bool, i64), usize>,
}

impl<'a> Sizes<'a> {
    pub(super) fn new(symbols: &'a [Symbol], lines: &'a [Size]) -> Self {
        let mut first = BTreeMap::new();
        for (k, s) in lines.iter().enumerate() {
            if let Some(key) = leaf(s) {
                first.entry(key).or_insert(k);
            }
        }
        Sizes {
            symbols,
            lines,
            first,
        }
    }

    /// Returns a size where it is used. A constant or symbol stands for itself only at its first
    /// line, so that reading back finds the same line.
    pub(super) fn get(&self, id: SizeId) -> String {
        let at = id.0 as usize;
        let line = self.lines.get(at);
        match line.and_then(|l| leaf(l).filter(|key| self.first.get(key) == Some(&at))) {
            Some(_) => line.map_or_else(String::new, |l| self.line(l)),
            None => format!("z{at}"),
        }
    }

    /// Returns the right side of a size line.
    pub(super) fn line(&self, s: &Size) -> String {
        let two = |a: SizeId, op: &str, b: SizeId| format!("{} {op} {}", self.get(a), self.get(b));
        let call = |f: &str, a: SizeId, b: SizeId| format!("{f}({}, {})", self.get(a), self.get(b));
        match *s {
            Size::Const(v) => v.to_string(),
            Size::Sym(s) => match self.symbols.get(s as usize) {
                Some(s) => symbol_name(&s.name),
                None => format!("symbol {s}"),
            },
            Size::Add(a, b) => two(a, "+", b),
            Size::Mul(a, b) => two(a, "*", b),
            Size::FloorDiv(a, b) => two(a, "//", b),
            Size::Mod(a, b) => two(a, "%", b),
            Size::Min(a, b) => call("min", a, b),
            Size::Max(a, b) => call("max", a, b),
        }
    }

    pub(super) fn list(&self, ids: &[SizeId]) -> String {
        let parts: Vec<String> = ids.iter().map(|i| self.get(*i)).collect();
        format!("[{}]", parts.join(", "))
    }

    /// `[size: stride stride, ...]`.
    fn levels(&self, levels: impl Iterator<Item = (SizeId, Vec<SizeId>)>) -> String {
        let parts: Vec<String> = levels
            .map(|(size, strides)| {
                let strides: String = strides
                    .iter()
                    .map(|s| format!(" {}", self.get(*s)))
                    .collect();
                format!("{}:{strides}", self.get(size))
            })
            .collect();
        format!("[{}]", parts.join(", "))
    }
}

/// Returns a key that tells constants and symbols apart.
fn leaf(s: &Size) -> Option<(bool, i64)> {
    match *s {
        Size::Const(v) => Some((false, v)),
        Size::Sym(s) => Some((true, s as i64)),
        _ => None,
    }
}
