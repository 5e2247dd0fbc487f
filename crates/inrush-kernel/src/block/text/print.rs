//! Block programs to text.

use super::Place;
use crate::block::{Block, BlockItem, BlockStore, Blocks, DimRole, Operand, Results, Side};
use crate::text::Names;
use crate::text::print::{mask_text, show_acc, show_buffer, show_check, show_def};
use crate::{Def, KBufId, ValId};
use inrush_base::text::show_name;
use inrush_expr::{Expr, Exprs, Sym};

/// Returns every line of a block program with the place that it is about.
pub(super) fn lines(exprs: &Exprs, block: &Block) -> Vec<(Option<Place>, String)> {
    let mut p = Printer {
        names: names(exprs, block),
        exprs,
        block,
        items: 0,
        out: Vec::new(),
    };
    p.block();
    p.out
}

/// Names the axes `z`, `y`, `x` (the last one of the grid), `r` and `k`, other indices by their positions.
fn names(exprs: &Exprs, block: &Block) -> Names {
    let mut names = Names::default();
    for (i, d) in block.dims.iter().enumerate() {
        names.add_as(exprs, d.sym, block.letter(i));
    }
    if let Some(p) = &block.product {
        names.add_as(exprs, p.k, "k");
    }
    if let Some(a) = &block.attention {
        names.add_as(exprs, a.d.sym, "d");
        names.add_as(exprs, a.n.sym, "n");
        let lists = a.blocks.iter().flat_map(Blocks::lists);
        for (l, name) in lists.zip(["p", "f"]) {
            names.add_as(exprs, l.position, name);
        }
    }
    let mut syms: Vec<Sym> = Vec::new();
    super::super::each_expr(block, &mut |e| exprs.collect_syms(e, &mut syms));
    for v in &block.values {
        if let Def::Indirect { sym, .. } = v.def {
            syms.push(sym);
        }
    }
    for s in syms {
        names.add(exprs, s);
    }
    names
}

struct Printer<'a> {
    exprs: &'a Exprs,
    block: &'a Block,
    names: Names,
    /// Items so far.
    items: usize,
    out: Vec<(Option<Place>, String)>,
}

impl Printer<'_> {
    fn show(&self, e: Expr) -> String {
        self.exprs.show_with(e, &|s| self.sym(s))
    }

    fn sym(&self, s: Sym) -> String {
        self.names.get(s, self.exprs)
    }

    fn line(&mut self, depth: usize, place: Option<Place>, text: impl Into<String>) {
        let text = format!("{}{}", "  ".repeat(depth), text.into());
        self.out.push((place, text));
    }

    fn block(&mut self) {
        let b = self.block;
        let (name, from) = (show_name(&b.name), crate::text::from(&b.origins));
        self.line(0, Some(Place::Block), format!("block {name}{from} {{"));
        self.indices();
        self.dims();
        let sizes: Vec<String> = (b.sizes.iter())
            .map(|p| match (self.sym(p.sym), self.show(p.value)) {
                (name, value) if name == value => name,
                (name, value) => format!("{name} = {value}"),
            })
            .collect();
        self.line(1, None, format!("sizes [{}]", sizes.join(", ")));
        let launch = format!(
            "programs {} warps {} stages {}{}",
            self.show(b.programs),
            b.warps,
            b.stages,
            if b.wide { " wide" } else { "" }
        );
        self.line(1, Some(Place::Launch), launch);
        if let Some(t) = b.chosen {
            self.line(1, Some(Place::Tile), format!("tile {t}"));
        }
        for (i, buf) in b.buffers.iter().enumerate() {
            let place = Place::Buffer(KBufId::from_index(i));
            self.line(1, Some(place), show_buffer(i, buf, &|e| self.show(e)));
        }
        for (i, a) in b.accs.iter().enumerate() {
            self.line(1, None, show_acc(i, a, &|e| self.show(e)));
        }
        for c in &b.checks {
            self.line(1, None, show_check(c));
        }
        self.product();
        self.attention();
        self.list(&b.items, 1);
        self.line(0, None, "}");
    }

    /// `index [i7: 40]`: symbols that are no axes.
    fn indices(&mut self) {
        let b = self.block;
        let axis = |s: Sym| {
            b.dims.iter().any(|d| d.sym == s)
                || b.product.as_ref().is_some_and(|p| p.k == s)
                || b.attention.as_ref().is_some_and(|a| {
                    let mut lists = a.blocks.iter().flat_map(Blocks::lists);
                    a.d.sym == s || a.n.sym == s || lists.any(|l| l.position == s)
                })
        };
        let indices: Vec<String> = (self.names.order.iter())
            .filter(|(s, ..)| !axis(*s))
            .map(|(_, name, extent)| format!("{name}: {}", self.show(*extent)))
            .collect();
        if !indices.is_empty() {
            self.line(1, None, format!("index [{}]", indices.join(", ")));
        }
    }

    fn dims(&mut self) {
        for (i, d) in self.block.dims.iter().enumerate() {
            let role = match d.role {
                DimRole::Grid => "grid",
                DimRole::Persistent => "persistent",
                DimRole::Looped => "looped",
            };
            let text = format!(
                "{} = {} < {} by {} {role}{}",
                self.sym(d.sym),
                self.exprs.sym_info(d.sym).name,
                self.show(d.extent),
                d.block,
                if d.exact { " exact" } else { "" }
            );
            self.line(1, Some(Place::Dim(i)), text);
        }
    }

    /// `product f32 b0[EXPR], b1[EXPR] for k = i9 < 64 by 32 exact group 8`.
    fn product(&mut self) {
        let Some(p) = &self.block.product else {
            return;
        };
        let text = format!(
            "product {} {}[{}], {}[{}] for {} = {} < {} by {}{} group {}{}",
            p.dtype,
            p.a.buf,
            self.show(p.a.offset),
            p.b.buf,
            self.show(p.b.offset),
            self.sym(p.k),
            self.exprs.sym_info(p.k).name,
            self.show(p.extent),
            p.block,
            if p.exact { " exact" } else { "" },
            p.group,
            if p.persistent { " persistent" } else { "" },
        );
        self.line(1, Some(Place::Product), text);
    }

    /// `attention d = i4 < 64 by 64 exact`, then a line for each of the other parts.
    fn attention(&mut self) {
        let Some(a) = &self.block.attention else {
            return;
        };
        let side = |p: &Self, s: &Side| {
            let exact = if s.exact { " exact" } else { "" };
            let (name, symbol) = (p.sym(s.sym), p.exprs.sym_info(s.sym).name);
            format!(
                "{name} = {symbol} < {} by {}{exact}",
                p.show(s.extent),
                s.block
            )
        };
        let place = Some(Place::Attention);
        self.line(1, place, format!("attention {}", side(self, &a.d)));
        self.line(1, place, format!("columns {}", side(self, &a.n)));
        let operands = [("query", &a.query), ("key", &a.key), ("value", &a.value)];
        let grad = a.grad().map(|o| ("grad", o));
        for (word, o) in operands.into_iter().chain(grad) {
            let text = format!("{word} {}", self.operand(o));
            self.line(1, place, text);
        }
        if let Some(b) = &a.blocks {
            self.line(1, place, format!("blocks {} by {}", b.rows, b.keys));
            for (l, word) in b.lists().zip(["partial", "full"]) {
                let (name, symbol) = (self.sym(l.position), self.exprs.sym_info(l.position).name);
                let axis = format!("{name} = {symbol} < {} by 1", self.show(l.extent));
                let (count, index) = (self.operand(&l.count), self.operand(&l.index));
                self.line(1, place, format!("{word} {axis}: {count}, {index}"));
            }
        }
        if let Some(after) = a.causal {
            self.line(1, place, format!("causal {after}"));
        }
        let results: Vec<String> = a.results().into_iter().map(|o| self.operand(o)).collect();
        let word = match a.results {
            Results::Softmax { .. } => "results",
            Results::Gradients { .. } => "sums",
        };
        self.line(1, place, format!("{word} {}", results.join(", ")));
    }

    fn operand(&self, o: &Operand) -> String {
        format!("{}[{}]", o.buf, self.show(o.offset))
    }

    /// `[x, r]`: the dimensions of a shape; nothing where it has none.
    fn shape(&self, shape: u32) -> String {
        let dims: Vec<String> = (self.block.dims.iter().enumerate())
            .filter(|(i, _)| shape & (1 << i) != 0)
            .map(|(_, d)| self.sym(d.sym))
            .collect();
        if dims.is_empty() {
            return String::new();
        }
        format!("[{}]", dims.join(", "))
    }

    fn list(&mut self, items: &[BlockItem], depth: usize) {
        for item in items {
            let place = Some(Place::Item(self.items));
            self.items += 1;
            if let BlockItem::Loop(w) = item {
                let back = if w.back { " back" } else { "" };
                let axis = self.block.reduced().map(|i| self.block.dims[i].sym);
                let axis = axis.map_or("r".into(), |s| self.sym(s));
                self.line(depth, place, format!("for {axis}{back} {{"));
                self.list(&w.body, depth + 1);
                self.line(depth, None, "}");
                continue;
            }
            let text = self.item(item);
            self.line(depth, place, text);
        }
    }

    fn item(&self, item: &BlockItem) -> String {
        match item {
            BlockItem::Loop(_) => String::new(),
            BlockItem::Let(v) => self.value(*v),
            BlockItem::Acc(a) => format!("start {a}"),
            BlockItem::Update { acc, value } => format!("update {acc}, {value}"),
            BlockItem::Finish(a) => format!("finish {a}"),
            BlockItem::Moments {
                sum,
                squares,
                value,
            } => format!("moments {sum}, {squares}, {value}"),
            BlockItem::FinishMoments { sum, squares } => {
                format!("finish_moments {sum}, {squares}")
            }
            BlockItem::Exponentials { max, sum, value } => {
                format!("exponentials {max}, {sum}, {value}")
            }
            BlockItem::FinishExponentials { max, sum, shift } => {
                format!("finish_exponentials {max}, {sum}, {shift}")
            }
            BlockItem::Attend {
                score,
                second,
                keep,
            } => {
                let second = second.map_or(String::new(), |v| format!(", {v}"));
                format!("attend {score}{second}{}", mask_text(*keep))
            }
            BlockItem::Store(s) => self.store(s),
            BlockItem::Barrier => "barrier".into(),
        }
    }

    fn store(&self, s: &BlockStore) -> String {
        format!(
            "store.{}{} {}[{}], {}{}",
            s.mode.text(),
            self.shape(s.shape),
            s.buf,
            self.show(s.offset),
            s.value,
            mask_text(s.mask)
        )
    }

    fn value(&self, v: ValId) -> String {
        let value = self.block.value(v);
        let shape = self.shape(self.block.shapes[v.index()]);
        let def = show_def(&value.def, &|e| self.show(e), &|s| self.sym(s));
        format!("{}{shape} {v} = {def}", value.dtype)
    }
}
