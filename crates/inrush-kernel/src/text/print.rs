//! Kernels to text.

use super::{Names, Place};
use crate::{Acc, BufRole, Check, Def, Item, KBufId, Kernel, KernelBuf, Kind, Range, Role, ValId};
use inrush_base::text::{quote, show_name};
use inrush_expr::{Expr, Exprs, Sym};

/// Every line of a kernel with the place that it is about.
pub(super) fn lines(exprs: &Exprs, kernel: &Kernel) -> Vec<(Option<Place>, String)> {
    let mut p = Printer {
        names: Names::of(exprs, kernel),
        exprs,
        kernel,
        items: 0,
        out: Vec::new(),
    };
    p.kernel();
    p.out
}

struct Printer<'a> {
    exprs: &'a Exprs,
    kernel: &'a Kernel,
    names: Names,
    /// Items so far.
    items: usize,
    out: Vec<(Option<Place>, String)>,
}

impl Printer<'_> {
    fn show(&self, e: Expr) -> String {
        self.exprs.show_with(e, &|s| self.names.get(s, self.exprs))
    }

    fn sym(&self, s: Sym) -> String {
        self.names.get(s, self.exprs)
    }

    fn line(&mut self, depth: usize, place: Option<Place>, text: impl Into<String>) {
        let text = format!("{}{}", "  ".repeat(depth), text.into());
        self.out.push((place, text));
    }

    fn kernel(&mut self) {
        let k = self.kernel;
        let sizes: Vec<String> = (k.sizes.iter())
            .map(|p| {
                let (name, value) = (self.sym(p.sym), self.show(p.value));
                if name == value {
                    name
                } else {
                    format!("{name} = {value}")
                }
            })
            .collect();
        let from = super::from(&k.origins);
        let name = show_name(&k.name);
        let header = format!("kernel {name}{from} {{");
        self.line(0, Some(Place::Kernel), header);
        if !self.names.order.is_empty() {
            let indices: Vec<String> = (self.names.order.iter())
                .map(|(_, name, extent)| format!("{name}: {}", self.show(*extent)))
                .collect();
            self.line(1, None, format!("index [{}]", indices.join(", ")));
        }
        self.line(1, None, format!("sizes [{}]", sizes.join(", ")));
        let mut costs = format!(
            "units {} cost {}",
            self.show(k.units),
            self.show(k.cost_per_unit)
        );
        if let Some(s) = k.scratch_bytes {
            costs.push_str(&format!(" scratch {}", self.show(s)));
        }
        self.line(1, None, costs);
        for (i, b) in k.buffers.iter().enumerate() {
            let place = Place::Buffer(KBufId::from_index(i));
            self.line(1, Some(place), show_buffer(i, b, &|e| self.show(e)));
        }
        for (i, a) in k.accs.iter().enumerate() {
            self.line(1, None, show_acc(i, a, &|e| self.show(e)));
        }
        for c in &k.checks {
            self.line(1, None, show_check(c));
        }
        self.items(&k.head, 1);
        let open = match &k.kind {
            Kind::Grid(axes) => {
                let axes: Vec<String> = axes
                    .iter()
                    .map(|a| {
                        let block = if a.block == 1 {
                            String::new()
                        } else {
                            format!(" by {}", a.block)
                        };
                        format!("{} < {}{block}", self.sym(a.sym), self.show(a.extent))
                    })
                    .collect();
                match axes.is_empty() {
                    true => "grid {".to_string(),
                    false => format!("grid {} {{", axes.join(", ")),
                }
            }
            Kind::Epilogue {
                batch,
                m,
                n,
                pieces,
            } => {
                let (b, m, n) = (self.sym(*batch), self.sym(*m), self.sym(*n));
                match pieces {
                    None => format!("tile {b}, {m}, {n} {{"),
                    Some(p) => {
                        let (row, length) = (self.sym(p.row), self.show(p.length));
                        format!("tile {b}, {m}, {n} with {row} < {length} {{")
                    }
                }
            }
        };
        self.line(1, Some(Place::Grid), open);
        self.items(&k.body, 2);
        self.line(1, None, "}");
        self.line(0, None, "}");
    }

    fn items(&mut self, items: &[Item], depth: usize) {
        for item in items {
            let place = Some(Place::Item(self.items));
            self.items += 1;
            match item {
                Item::Loop(l) => {
                    let range = match l.range {
                        Range::Full(e) => format!("< {}", self.show(e)),
                        Range::Block { extent, block } => {
                            format!("< {} in block of {block}", self.show(extent))
                        }
                        Range::Tile {
                            start,
                            step,
                            extent,
                        } => format!(
                            "< {} in tile of {step} from {}",
                            self.show(extent),
                            self.show(start)
                        ),
                        Range::Rows => "in rows".into(),
                        Range::Columns => "in columns".into(),
                        Range::Pieces(length) => format!("in pieces of {}", self.show(length)),
                        Range::Piece(length) => format!("in piece of {}", self.show(length)),
                    };
                    let role = match l.role {
                        Role::Serial => String::new(),
                        Role::Vector { width, unroll } => format!(" lanes {width} by {unroll}"),
                    };
                    let open = format!("for {} {range}{role} {{", self.sym(l.sym));
                    self.line(depth, place, open);
                    self.items(&l.body, depth + 1);
                    self.line(depth, None, "}");
                }
                Item::Let(v) => {
                    let text = self.value(*v);
                    self.line(depth, place, text);
                }
                Item::Acc(a) => self.line(depth, place, format!("start {a}")),
                Item::Update { acc, value } => {
                    self.line(depth, place, format!("update {acc}, {value}"));
                }
                Item::Store {
                    buf,
                    offset,
                    value,
                    mode,
                    mask,
                } => {
                    let mask = mask_text(*mask);
                    let offset = self.show(*offset);
                    let text = format!("store.{} {buf}[{offset}], {value}{mask}", mode.text());
                    self.line(depth, place, text);
                }
            }
        }
    }

    fn value(&self, v: ValId) -> String {
        let value = self.kernel.value(v);
        let def = show_def(&value.def, &|e| self.show(e), &|s| self.sym(s));
        format!("{} {v} = {def}", value.dtype)
    }
}

/// `b0 = f32 b7 in`.
pub(crate) fn show_buffer(i: usize, b: &KernelBuf, show: &dyn Fn(Expr) -> String) -> String {
    let role = match &b.role {
        BufRole::In => "in".to_string(),
        BufRole::Out => "out".to_string(),
        BufRole::Stream => "stream".to_string(),
        BufRole::InOut => "inout".to_string(),
        BufRole::Local { len, per_lane } => {
            let lanes = if *per_lane { " lanes" } else { "" };
            format!("local {}{lanes}", show(*len))
        }
    };
    format!("b{i} = {} {} {role}", b.dtype, b.buf)
}

/// `a0 = f32 sum`.
pub(crate) fn show_acc(i: usize, a: &Acc, show: &dyn Fn(Expr) -> String) -> String {
    let at = (a.index).map_or(String::new(), |e| format!(" at {}", show(e)));
    format!("a{i} = {} {}{at}", a.dtype, a.op.text())
}

/// `check from o0 index "message"`.
pub(crate) fn show_check(c: &Check) -> String {
    let from = super::from(c.origin.as_slice());
    format!("check{from} {} {}", c.kind.name(), quote(&c.message))
}

/// Prints the definition of a value: `add v0, v1`.
pub(crate) fn show_def(
    def: &Def,
    show: &dyn Fn(Expr) -> String,
    name: &dyn Fn(Sym) -> String,
) -> String {
    match def {
        Def::Const(c) => format!("const {c}"),
        Def::Index(e) => format!("index {}", show(*e)),
        Def::Load {
            buf,
            offset,
            mask,
            fill,
        } => {
            let fill = mask.map_or(String::new(), |_| format!(" else {fill}"));
            format!("load {buf}[{}]{}{fill}", show(*offset), mask_text(*mask))
        }
        Def::Op { op, args } => {
            let args: Vec<String> = args.iter().map(|a| a.to_string()).collect();
            format!("{} {}", op.text(), args.join(", "))
        }
        Def::Cast { arg, to } => format!("cast {arg} to {to}"),
        Def::Bitcast { arg, from, to } => format!("bitcast {arg} from {from} to {to}"),
        Def::Indirect {
            value,
            sym,
            size,
            wrap,
            check,
            mask,
        } => format!(
            "indirect {value} as {} < {}{}{}{}",
            name(*sym),
            show(*size),
            if *wrap { " wrap" } else { "" },
            check.map_or(String::new(), |c| format!(" check {c}")),
            mask_text(*mask)
        ),
        Def::Final(a) => format!("final {a}"),
        Def::Running { acc, value } => format!("running {acc}, {value}"),
        Def::Sorted { value } => format!("sorted {value}"),
        Def::Sum(0) => "sum".into(),
        Def::Sum(_) => "grad_sum".into(),
    }
}

pub(crate) fn mask_text(mask: Option<ValId>) -> String {
    mask.map_or(String::new(), |m| format!(" if {m}"))
}
