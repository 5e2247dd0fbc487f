//! Rules of one node: scopes, dtypes, levels, stores.
//!
//! One pass over the statements in order. A statement is *late* if it depends on a reduction's
//! result. A late statement must not be evaluated inside the reduction, and must not be reduced
//! again: either would need a second pass over the reduction's axes.

use super::{Problem, ops, problem};
use crate::text::Place;
use crate::*;
use rustc_hash::FxHashSet;

pub(super) struct Check<'a> {
    p: &'a Loops,
    /// Position of the node.
    at: usize,
    node: &'a Node,
    body: &'a Body,
    dtypes: Vec<DType>,
    levels: Vec<Level>,
    /// Per statement: true if it depends on the result of a reduction of this body.
    late: Vec<bool>,
    /// Index symbols in scope so far.
    scope: FxHashSet<Sym>,
    /// Symbols of `scope` that depend on a reduction's result.
    late_syms: FxHashSet<Sym>,
    out: &'a mut Vec<Problem>,
}

impl<'a> Check<'a> {
    pub(super) fn new(p: &'a Loops, at: usize, node: &'a Node, out: &'a mut Vec<Problem>) -> Self {
        let body = node.body();
        Check {
            p,
            at,
            node,
            body,
            dtypes: body.dtypes(p),
            levels: body.levels(&p.exprs),
            late: Vec::with_capacity(body.stmts.len()),
            scope: FxHashSet::default(),
            late_syms: FxHashSet::default(),
            out,
        }
    }

    fn say(&mut self, s: StmtId, message: impl Into<String>) {
        problem(self.out, Place::Stmt(self.at, s), message);
    }

    fn say_node(&mut self, message: impl Into<String>) {
        problem(self.out, Place::Node(self.at), message);
    }

    pub(super) fn run(&mut self) {
        self.axes();
        if let Node::Contraction(c) = self.node {
            self.contraction(c);
        }
        if let Node::Attention(a) = self.node {
            self.attention(a);
        }
        let body = self.body;
        for s in body.ids() {
            self.stmt(s);
        }
    }

    /// Checks that axes have distinct index symbols, and extents without loop indices: nests are
    /// rectangular.
    fn axes(&mut self) {
        for a in &self.body.axes {
            if !self.scope.insert(a.sym) {
                let name = self.p.exprs.sym_info(a.sym).name;
                self.say_node(format!("two axes have the index {name}"));
            }
            if self.is_indirect(a.sym) != Some(false) {
                let name = self.p.exprs.sym_info(a.sym).name;
                self.say_node(format!("{name} is not the index of an axis"));
            }
            if has_index(self.p, a.size) {
                self.say_node("an extent depends on a loop index");
            }
        }
    }

    /// Returns true for an index that is read from data; `None` for what is no index.
    fn is_indirect(&self, s: Sym) -> Option<bool> {
        let (position, _) = self.p.exprs.index_of(s)?;
        Some(position.is_indirect())
    }

    /// Checks a contraction: axes of the epilogue, operands that use only their own axes and are
    /// affine, a dtype of the sum that holds the products.
    fn contraction(&mut self, c: &Contraction) {
        let want: Vec<Axis> = (c.batch.iter().chain(&c.m).chain(&c.n)).copied().collect();
        if c.epilogue.axes != want || c.epilogue.outer != want.len() {
            self.say_node("the epilogue's axes are not batch, m, n");
        }
        let mut all: Vec<Sym> = c.axes().map(|a| a.sym).collect();
        all.sort();
        all.dedup();
        if all.len() != c.axes().count() {
            self.say_node("two axes of the contraction are one index");
        }
        for (name, x, others) in [("a", &c.a, &c.m), ("b", &c.b, &c.n)] {
            let buffer = self.p.buffer(x.buf);
            if x.coords.len() != buffer.sizes.len() {
                self.say_node(format!("operand {name} has not one coordinate a dimension"));
            }
            let allowed: Vec<Sym> = (c.batch.iter().chain(others).chain(&c.k))
                .map(|a| a.sym)
                .collect();
            for e in &x.coords {
                let mut syms = self.p.exprs.free_syms(*e);
                syms.retain(|s| self.p.exprs.is_index(*s));
                if !syms.iter().all(|s| allowed.contains(s)) {
                    self.say_node(format!("operand {name} uses an index that is not its own"));
                } else if self.p.exprs.coefficients(*e, &syms).is_none() {
                    self.say_node(format!("a coordinate of operand {name} is not affine"));
                }
            }
            let d = buffer.dtype.compute();
            let sums = c.dtype == c.dtype.compute()
                && c.dtype.class() == d.class()
                && c.dtype.size() >= d.size()
                && (d.is_float() || d.is_int());
            if !sums {
                let (from, to) = (buffer.dtype, c.dtype);
                self.say_node(format!("products of {from} are not summed in {to}"));
            }
        }
        if self.p.buffer(c.a.buf).dtype != self.p.buffer(c.b.buf).dtype {
            self.say_node("the operands differ in dtype");
        }
    }

    /// Checks an attention: axes of the scores, operands that use only their own axes and are affine, the scores' stores.
    fn attention(&mut self, a: &Attention) {
        let want: Vec<Axis> = a.batch.iter().chain([&a.m, &a.k]).copied().collect();
        if a.scores.axes != want || a.scores.outer != want.len() {
            self.say_node("the axes of the scores are not batch, m, k");
        }
        let mut all: Vec<Sym> = a.axes().map(|x| x.sym).collect();
        all.sort();
        all.dedup();
        if all.len() != a.axes().count() {
            self.say_node("two axes of the attention are one index");
        }
        let mut operands = vec![
            ("query", &a.query, [a.m, a.d]),
            ("key", &a.key, [a.k, a.d]),
            ("value", &a.value, [a.k, a.n]),
        ];
        operands.extend(a.gradients().map(|g| ("grad", &g.grad, [a.m, a.n])));
        let dtype = self.p.buffer(a.query.buf).dtype;
        for (name, x, own) in operands {
            let allowed: Vec<Sym> = a.batch.iter().chain(&own).map(|x| x.sym).collect();
            self.own_access(name, x, &allowed);
            if self.p.buffer(x.buf).dtype != dtype || !dtype.is_float() {
                self.say_node(format!(
                    "operand {name} is no float, or of another dtype than query"
                ));
            }
            // Quotients of batch axes stand for grouped heads; the tile's own axes are walked in steps.
            for e in &x.coords {
                let own: Vec<Sym> = own.iter().map(|x| x.sym).collect();
                if self.p.exprs.coefficients(*e, &own).is_none() {
                    self.say_node(format!("a coordinate of operand {name} is not affine"));
                }
            }
        }
        for l in a.blocks.iter().flat_map(BlockMask::lists) {
            let mut allowed: Vec<Sym> = a.batch.iter().chain([&a.m]).map(|x| x.sym).collect();
            self.own_access("count", &l.count, &allowed);
            allowed.push(l.position.sym);
            self.own_access("index", &l.index, &allowed);
        }
        let stores = (a.scores.stmts.iter()).filter(|s| matches!(s, Stmt::Store { .. }));
        let (stores, values) = (stores.count(), a.values());
        if stores != values && stores != values + 1 {
            self.say_node(match a.results {
                Attended::Softmax { .. } => {
                    "an attention stores its score, and whether the key is kept"
                }
                Attended::Gradients(_) => {
                    "gradients store a weight for each result, and whether the key is kept"
                }
            });
        }
    }

    /// Checks that an operand has a coordinate for each dimension, which uses these indices only.
    fn own_access(&mut self, name: &str, x: &Access, allowed: &[Sym]) {
        if x.coords.len() != self.p.buffer(x.buf).sizes.len() {
            self.say_node(format!("operand {name} has not one coordinate a dimension"));
        }
        for e in &x.coords {
            let syms = self.p.exprs.free_syms(*e);
            let own = |s: &Sym| !self.p.exprs.is_index(*s) || allowed.contains(s);
            if !syms.iter().all(own) {
                self.say_node(format!("operand {name} uses an index that is not its own"));
            }
        }
    }

    /// Checks one statement: operands, mask, scope of its indices, phase.
    fn stmt(&mut self, s: StmtId) {
        let stmt = self.body.stmt(s);
        for o in stmt.operands() {
            if !self.body.stmt(o).has_value() {
                self.say(s, format!("{o} has no value"));
            }
        }
        if let Some(m) = stmt.mask()
            && self.dtypes[m.index()] != DType::Bool
        {
            self.say(s, format!("the mask {m} is not bool"));
        }
        let mut late = stmt.operands().iter().any(|o| self.late[o.index()]);
        for e in stmt.exprs() {
            for sym in self.p.exprs.free_syms(*e) {
                late |= self.late_syms.contains(&sym);
                if self.p.exprs.is_index(sym) && !self.scope.contains(&sym) {
                    let name = self.p.exprs.sym_info(sym).name;
                    self.say(s, format!("the index {name} is not in scope"));
                }
            }
        }
        let point = self.levels[s.index()] == Level::Point;
        if late && (point || matches!(stmt, Stmt::Reduce { .. })) {
            self.say(
                s,
                "needs a second pass: it uses a reduction's result inside the reduction",
            );
        }
        self.late.push(late || matches!(stmt, Stmt::Reduce { .. }));
        self.typed(s, stmt);
        if let Stmt::Indirect { sym, size, .. } = stmt {
            if has_index(self.p, *size) {
                self.say(s, "the size depends on a loop index");
            }
            if !self.scope.insert(*sym) {
                let name = self.p.exprs.sym_info(*sym).name;
                self.say(s, format!("the index {name} is defined twice"));
            }
            if self.is_indirect(*sym) != Some(true) {
                let name = self.p.exprs.sym_info(*sym).name;
                self.say(s, format!("{name} is not an indirect index"));
            }
            if late {
                self.late_syms.insert(*sym);
            }
        }
    }

    /// Checks dtypes and numbers of coordinates of one statement.
    fn typed(&mut self, s: StmtId, stmt: &Stmt) {
        match stmt {
            Stmt::Const { value, dtype } => {
                if *dtype != dtype.compute() {
                    self.say(s, format!("{dtype} is not a compute dtype"));
                } else if value.convert(*dtype) != *value {
                    self.say(s, format!("{value} is not a constant of {dtype}"));
                }
            }
            Stmt::Index { dtype, .. } => {
                if *dtype != dtype.compute() || !(dtype.is_int() || dtype.is_float()) {
                    self.say(s, format!("an index cannot be a {dtype}"));
                }
            }
            Stmt::Load {
                buf,
                coords,
                fill,
                mask,
            } => {
                self.coords(s, *buf, coords);
                let d = self.p.buffer(*buf).dtype.compute();
                if mask.is_some() && fill.convert(d) != *fill {
                    self.say(s, format!("{fill} is not a value of {d}"));
                }
            }
            Stmt::Op { op, args, dtype } => self.op(s, *op, args, *dtype),
            Stmt::Cast { .. } => {}
            Stmt::Bitcast { arg, from, to } => {
                if from.size() != to.size() {
                    self.say(s, format!("{from} and {to} differ in size"));
                }
                self.operand(s, *arg, from.compute());
            }
            Stmt::Indirect { value, .. } => {
                let d = self.dtypes[value.index()];
                if !d.is_int() {
                    self.say(s, format!("an index cannot be a {d}"));
                }
            }
            Stmt::Reduce { op, value, dtype } | Stmt::Scan { op, value, dtype } => {
                if !self.body.is_reduction() {
                    self.say(s, "the body has no reduction axes");
                }
                let d = self.dtypes[value.index()];
                match ops::reduced(*op, d) {
                    Err(why) => self.say(s, format!("{}: {d} {why}", op.text())),
                    Ok(r) if r != *dtype => self.say(s, format!("gives {r}, not {dtype}")),
                    Ok(_) => {}
                }
            }
            Stmt::Sort { value, dtype } => {
                if self.body.reduction_axes().len() != 1 {
                    self.say(s, "a sort runs along one reduction axis");
                }
                match self.dtypes[value.index()] {
                    d if !matches!(d, DType::I32 | DType::I64) => {
                        self.say(s, format!("keys cannot be {d}"));
                    }
                    d if d != *dtype => self.say(s, format!("gives {d}, not {dtype}")),
                    _ => {}
                }
            }
            Stmt::Acc { dtype, of } => match self.node {
                Node::Contraction(_) if *of != 0 => self.say(s, "a contraction has one sum"),
                Node::Attention(a) if *of != 0 && (*of > 1 || a.gradients().is_none()) => {
                    self.say(s, format!("no product of number {of}"));
                }
                Node::Contraction(c) if c.dtype == *dtype => {}
                Node::Attention(_) if *dtype == DType::F32 => {}
                Node::Contraction(c) => {
                    self.say(s, format!("the contraction sums in {}", c.dtype));
                }
                Node::Attention(_) => self.say(s, "products of an attention are summed in f32"),
                _ => self.say(
                    s,
                    "only a contraction's epilogue and an attention's scores have a sum",
                ),
            },
            Stmt::Store {
                buf,
                coords,
                value,
                mode,
                mask,
            } => {
                self.coords(s, *buf, coords);
                self.operand(s, *value, self.p.buffer(*buf).dtype.compute());
                if *mode == StoreMode::Set {
                    self.stored_once(s, coords, *mask);
                }
            }
        }
    }

    fn operand(&mut self, s: StmtId, o: StmtId, want: DType) {
        let d = self.dtypes[o.index()];
        if d != want {
            self.say(s, format!("{o} is {d}, expected {want}"));
        }
    }

    /// Checks number and dtypes of an operation's operands.
    fn op(&mut self, s: StmtId, op: ScalarOp, args: &[StmtId], dtype: DType) {
        if args.len() != op.arity() {
            let (n, want) = (args.len(), op.arity());
            self.say(s, format!("{} takes {want} operands, not {n}", op.text()));
            return;
        }
        if let Some(why) = ops::refuses(op, dtype) {
            self.say(s, format!("{}: {dtype} {why}", op.text()));
        }
        for (k, a) in args.iter().enumerate() {
            let want = match (op, k) {
                (ScalarOp::Where, 0) => DType::Bool,
                _ => dtype,
            };
            self.operand(s, *a, want);
        }
    }

    fn coords(&mut self, s: StmtId, buf: BufId, coords: &[Expr]) {
        let rank = self.p.buffer(buf).sizes.len();
        if coords.len() != rank {
            let n = coords.len();
            self.say(
                s,
                format!("{n} coordinates for the {rank} dimensions of {buf}"),
            );
        }
    }

    /// Checks that a plain store writes each element once: each axis of its loops must occur in the
    /// coordinates. Data-dependent and masked stores are the lowering's responsibility.
    fn stored_once(&mut self, s: StmtId, coords: &[Expr], mask: Option<StmtId>) {
        let ex = &self.p.exprs;
        let mut syms = Vec::new();
        coords.iter().for_each(|c| ex.collect_syms(*c, &mut syms));
        if mask.is_some() || syms.iter().any(|y| self.body.indirect(*y).is_some()) {
            return;
        }
        if self.has_place_of_one() {
            return;
        }
        let axes = match self.levels[s.index()] {
            Level::Point => &self.body.axes[..],
            Level::Outer => self.body.outer_axes(),
        };
        let missing: Vec<String> = axes
            .iter()
            .filter(|a| !syms.contains(&a.sym) && ex.range(a.size).hi > 1)
            .map(|a| ex.sym_info(a.sym).name)
            .collect();
        for name in missing {
            self.say(s, format!("every {name} stores into the same place"));
        }
    }

    /// Returns true if an index from data has one place only. Coordinates then have a zero in its place, and what is stored there
    /// depends on data no less than where there are more.
    fn has_place_of_one(&self) -> bool {
        let ex = &self.p.exprs;
        (self.body.stmts.iter())
            .any(|s| matches!(s, Stmt::Indirect { size, .. } if ex.range(*size).hi <= 1))
    }
}

fn has_index(p: &Loops, e: Expr) -> bool {
    p.exprs.free_syms(e).iter().any(|s| p.exprs.is_index(*s))
}
