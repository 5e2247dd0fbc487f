//! The text of a kernel: one statement a line, indented by loops.

use crate::{BufRole, Def, Item, Kernel, Kind, Range, Role, ValId};
use inrush_expr::{Expr, Exprs, Sym};
use std::fmt::Write;

/// Prints a kernel. Index symbols are named in order of appearance: `g` those of the grid, `i` those of loops.
pub fn print(exprs: &Exprs, kernel: &Kernel) -> String {
    let mut p = Printer {
        exprs,
        kernel,
        out: String::new(),
    };
    p.kernel();
    p.out
}

struct Printer<'a> {
    exprs: &'a Exprs,
    kernel: &'a Kernel,
    out: String,
}

impl Printer<'_> {
    fn show(&self, e: Expr) -> String {
        self.exprs.show(e)
    }

    fn sym(&self, s: Sym) -> String {
        self.exprs.sym_info(s).name
    }

    fn kernel(&mut self) {
        let k = self.kernel;
        _ = write!(self.out, "kernel {}", k.name);
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
        _ = writeln!(self.out, " [{}] {{", sizes.join(", "));
        for (i, b) in k.buffers.iter().enumerate() {
            let role = match &b.role {
                BufRole::In => "in".to_string(),
                BufRole::Out => "out".to_string(),
                BufRole::InOut => "inout".to_string(),
                BufRole::Local { len, per_lane } => format!(
                    "local {}{}",
                    self.show(*len),
                    if *per_lane { " lanes" } else { "" }
                ),
            };
            _ = writeln!(self.out, "  b{i} = {} {} {role}", b.dtype, b.buf);
        }
        for (i, a) in k.accs.iter().enumerate() {
            _ = write!(self.out, "  a{i} = {} {}", a.dtype, a.op.text());
            if let Some(e) = a.index {
                _ = write!(self.out, " at {}", self.show(e));
            }
            self.out.push('\n');
        }
        self.items(&k.head, 1);
        match &k.kind {
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
                _ = writeln!(self.out, "  grid {} {{", axes.join(", "));
            }
            Kind::Epilogue { batch, m, n } => {
                let (b, m, n) = (self.sym(*batch), self.sym(*m), self.sym(*n));
                _ = writeln!(self.out, "  tile {b}, {m}, {n} {{");
            }
        }
        self.items(&k.body, 2);
        _ = writeln!(self.out, "  }}\n}}");
    }

    fn items(&mut self, items: &[Item], depth: usize) {
        for item in items {
            let indent = "  ".repeat(depth);
            self.out.push_str(&indent);
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
                    };
                    let role = match l.role {
                        Role::Serial => String::new(),
                        Role::Lanes { width, unroll } => format!(" lanes {width} x {unroll}"),
                    };
                    _ = writeln!(self.out, "for {} {range}{role} {{", self.sym(l.sym));
                    self.items(&l.body, depth + 1);
                    _ = writeln!(self.out, "{indent}}}");
                }
                Item::Let(v) => self.value(*v),
                Item::Acc(a) => _ = writeln!(self.out, "start {a}"),
                Item::Update { acc, value } => _ = writeln!(self.out, "update {acc}, {value}"),
                Item::Store {
                    buf,
                    offset,
                    value,
                    mode,
                    mask,
                } => {
                    let mask = mask_text(*mask);
                    _ = writeln!(
                        self.out,
                        "store.{} {buf}[{}], {value}{mask}",
                        mode.text(),
                        self.show(*offset)
                    );
                }
            }
        }
    }

    fn value(&mut self, v: ValId) {
        let value = self.kernel.value(v);
        let def = match &value.def {
            Def::Const(c) => format!("const {c}"),
            Def::Index(e) => format!("index {}", self.show(*e)),
            Def::Load {
                buf,
                offset,
                mask,
                fill,
            } => {
                let fill = mask.map_or(String::new(), |_| format!(" else {fill}"));
                format!(
                    "load {buf}[{}]{}{fill}",
                    self.show(*offset),
                    mask_text(*mask)
                )
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
                self.sym(*sym),
                self.show(*size),
                if *wrap { " wrap" } else { "" },
                check.map_or(String::new(), |c| format!(" check {c}")),
                mask_text(*mask)
            ),
            Def::Final(a) => format!("final {a}"),
            Def::Running { acc, value } => format!("running {acc}, {value}"),
            Def::Sum => "sum".into(),
        };
        _ = writeln!(self.out, "{} {v} = {def}", value.dtype);
    }
}

fn mask_text(mask: Option<ValId>) -> String {
    mask.map_or(String::new(), |m| format!(" if {m}"))
}
