//! Walks over a finished kernel: renumbering, its expressions, what one unit costs.
//!
//! Renumbering makes equal kernels equal values, whatever order their group was built in: numbers
//! follow the first appearance in the items. The cost of a unit is an expression in the sizes,
//! since executors share units out at a call.

use crate::{AccId, BufRole, Def, Item, KBufId, Kernel, Kind, Range, ValId, Value};
use inrush_expr::{Expr, Exprs};
use inrush_loops::scalar::OpClass;

/// Calls `f` on every expression that the code evaluates.
pub(crate) fn each_expr(kernel: &Kernel, f: &mut dyn FnMut(Expr)) {
    if let Kind::Grid(axes) = &kernel.kind {
        axes.iter().for_each(|a| f(a.extent));
    }
    walk(kernel, &kernel.head, f);
    walk(kernel, &kernel.body, f);
    for b in &kernel.buffers {
        if let BufRole::Local { len, .. } = b.role {
            f(len);
        }
    }
}

/// Calls `f` on the expressions of items.
fn walk(kernel: &Kernel, items: &[Item], f: &mut dyn FnMut(Expr)) {
    for item in items {
        match item {
            Item::Loop(l) => {
                match l.range {
                    Range::Full(e)
                    | Range::Block { extent: e, .. }
                    | Range::Pieces(e)
                    | Range::Piece(e) => f(e),
                    Range::Tile { start, extent, .. } => {
                        f(start);
                        f(extent);
                    }
                    Range::Rows | Range::Columns => {}
                }
                walk(kernel, &l.body, f);
            }
            Item::Let(v) => {
                let def = &kernel.value(*v).def;
                if let Some(e) = def.expr() {
                    f(e);
                }
                if let Def::Indirect { size, .. } = def {
                    f(*size);
                }
            }
            Item::Acc(_) => {}
            Item::Update { acc, .. } => {
                if let Some(e) = kernel.accs[acc.index()].index {
                    f(e);
                }
            }
            Item::Store { offset, .. } => f(*offset),
        }
    }
}

/// New numbers by old ones.
struct Names {
    values: Vec<Option<ValId>>,
    bufs: Vec<Option<KBufId>>,
    accs: Vec<Option<AccId>>,
    checks: Vec<Option<u32>>,
    /// Old numbers of values, buffers, accumulators and checks, in the new order.
    order: (Vec<ValId>, Vec<KBufId>, Vec<AccId>, Vec<u32>),
}

impl Names {
    fn buf(&mut self, b: KBufId) -> KBufId {
        let order = &mut self.order.1;
        *self.bufs[b.index()].get_or_insert_with(|| {
            order.push(b);
            KBufId::from_index(order.len() - 1)
        })
    }
    fn acc(&mut self, a: AccId) -> AccId {
        let order = &mut self.order.2;
        *self.accs[a.index()].get_or_insert_with(|| {
            order.push(a);
            AccId::from_index(order.len() - 1)
        })
    }
    fn check(&mut self, c: u32) -> u32 {
        let order = &mut self.order.3;
        *self.checks[c as usize].get_or_insert_with(|| {
            order.push(c);
            order.len() as u32 - 1
        })
    }
    /// Values are defined before they are used, so a use finds its new name.
    fn value(&mut self, v: ValId) -> ValId {
        let order = &mut self.order.0;
        *self.values[v.index()].get_or_insert_with(|| {
            order.push(v);
            ValId::from_index(order.len() - 1)
        })
    }

    /// Renames what items define and use, in order of appearance.
    fn items(&mut self, items: &mut [Item], values: &[Value]) {
        for item in items {
            match item {
                Item::Loop(l) => self.items(&mut l.body, values),
                Item::Let(v) => {
                    match &values[v.index()].def {
                        Def::Load { buf, .. } => _ = self.buf(*buf),
                        Def::Final(a) | Def::Running { acc: a, .. } => _ = self.acc(*a),
                        Def::Indirect { check: Some(c), .. } => _ = self.check(*c),
                        _ => {}
                    }
                    *v = self.value(*v);
                }
                Item::Acc(a) => *a = self.acc(*a),
                Item::Update { acc, value } => {
                    *acc = self.acc(*acc);
                    *value = self.value(*value);
                }
                Item::Store {
                    buf, value, mask, ..
                } => {
                    *buf = self.buf(*buf);
                    *value = self.value(*value);
                    if let Some(m) = mask {
                        *m = self.value(*m);
                    }
                }
            }
        }
    }
}

/// Numbers values, buffers, accumulators and checks by first appearance; what never appears goes.
pub(crate) fn renumber(kernel: &mut Kernel) {
    let mut names = Names {
        values: vec![None; kernel.values.len()],
        bufs: vec![None; kernel.buffers.len()],
        accs: vec![None; kernel.accs.len()],
        checks: vec![None; kernel.checks.len()],
        order: Default::default(),
    };
    let (mut head, mut body) = (
        std::mem::take(&mut kernel.head),
        std::mem::take(&mut kernel.body),
    );
    names.items(&mut head, &kernel.values);
    names.items(&mut body, &kernel.values);
    (kernel.head, kernel.body) = (head, body);
    let mut values = Vec::with_capacity(names.order.0.len());
    let order = std::mem::take(&mut names.order.0);
    const BEFORE: &str = "what a value needs comes before it";
    let new = |v: &ValId| names.values[v.index()].expect(BEFORE);
    let new_acc = |a: &AccId| names.accs[a.index()].expect(BEFORE);
    for v in order {
        let old = &mut kernel.values[v.index()];
        let mut value = Value {
            def: std::mem::replace(&mut old.def, Def::Sum(0)),
            dtype: old.dtype,
        };
        match &mut value.def {
            Def::Const(_) | Def::Index(_) | Def::Sum(_) => {}
            Def::Load { buf, mask, .. } => {
                *buf = names.bufs[buf.index()].expect(BEFORE);
                if let Some(m) = mask {
                    *m = new(m);
                }
            }
            Def::Op { args, .. } => args.iter_mut().for_each(|a| *a = new(a)),
            Def::Cast { arg, .. } | Def::Bitcast { arg, .. } => *arg = new(arg),
            Def::Indirect {
                value, check, mask, ..
            } => {
                *value = new(value);
                if let Some(c) = check {
                    *c = names.checks[*c as usize].expect(BEFORE);
                }
                if let Some(m) = mask {
                    *m = new(m);
                }
            }
            Def::Final(a) => *a = new_acc(a),
            Def::Running { acc, value } => {
                *acc = new_acc(acc);
                *value = new(value);
            }
            Def::Sorted { value } => *value = new(value),
        }
        values.push(value);
    }
    kernel.values = values;
    let (_, bufs, accs, checks) = names.order;
    kernel.buffers = (bufs.iter())
        .map(|b| kernel.buffers[b.index()].clone())
        .collect();
    kernel.accs = (accs.iter())
        .map(|a| kernel.accs[a.index()].clone())
        .collect();
    kernel.checks = (checks.iter())
        .map(|c| kernel.checks[*c as usize].clone())
        .collect();
}

/// Bytes touched plus weighted operations of one unit (of one point of an epilogue's tile).
pub(crate) fn per_unit(exprs: &Exprs, kernel: &Kernel) -> Expr {
    items_cost(exprs, kernel, &kernel.body)
}

/// Costs up to which single items may be added.
const MOST_COST: i64 = 1 << 62;

/// Adds up the costs of items. Loops multiply the costs of their bodies.
fn items_cost(exprs: &Exprs, kernel: &Kernel, items: &[Item]) -> Expr {
    let mut here = 0i64;
    let mut total = exprs.int(0);
    for item in items {
        match item {
            Item::Loop(l) => {
                let each = items_cost(exprs, kernel, &l.body);
                let times = match l.range {
                    Range::Full(e) => e,
                    Range::Block { extent, block } => exprs.min(extent, exprs.int(block)),
                    Range::Tile { step, extent, .. } => exprs.min(extent, exprs.int(step)),
                    Range::Rows | Range::Columns | Range::Pieces(_) | Range::Piece(_) => {
                        exprs.int(1)
                    }
                };
                // Most sizes are known.
                let known = exprs.as_int(times).zip(exprs.as_int(each));
                let cost = known.and_then(|(n, each)| n.checked_mul(each)?.checked_add(here));
                match cost {
                    Some(cost) if cost < MOST_COST => here = cost,
                    _ => total = exprs.add(total, exprs.mul(times, each)),
                }
            }
            Item::Let(v) => {
                here += match &kernel.value(*v).def {
                    Def::Load { buf, .. } => kernel.buffer(*buf).dtype.size() as i64,
                    // A function takes about as long as eight simple operations; a byte of memory
                    // counts as one.
                    Def::Op { op, .. } if op.class() == OpClass::Math => 8,
                    Def::Op { .. } | Def::Cast { .. } => 1,
                    _ => 0,
                }
            }
            Item::Acc(_) => {}
            Item::Update { .. } => here += 1,
            Item::Store { buf, .. } => here += kernel.buffer(*buf).dtype.size() as i64,
        }
    }
    exprs.add(total, exprs.int(here))
}
