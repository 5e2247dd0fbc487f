//! Calls that look alike: the same operator with the same constants, on values of the same types.

use crate::{Arg, Node, Type, Value, ValueId};
use rustc_hash::FxHasher;
use smallvec::SmallVec;
use std::hash::{Hash, Hasher};

/// A number for each type and each call: equal for what is alike, and seldom for anything else.
pub struct Looks {
    types: Vec<u64>,
}

impl Looks {
    pub fn new(values: &[Value]) -> Looks {
        let of = |v: &Value| {
            let mut h = FxHasher::default();
            match &v.ty {
                Type::Tensor(t) => {
                    t.dtype.hash(&mut h);
                    t.sizes.iter().for_each(|e| h.write_u32(e.0));
                    t.strides.iter().for_each(|e| h.write_u32(e.0));
                }
                Type::Int(e) => h.write_u32(e.0),
                // Few, and compared where it matters.
                _ => h.write_u32(u32::MAX),
            }
            h.finish()
        };
        Looks {
            types: values.iter().map(of).collect(),
        }
    }

    /// Makes a value unlike those that have another `mark`.
    pub fn mark(&mut self, v: ValueId, mark: u64) {
        let mut h = FxHasher::default();
        h.write_u64(self.types[v.index()]);
        h.write_u64(mark);
        self.types[v.index()] = h.finish();
    }

    /// Makes `v` like `w`, marks included.
    pub fn copy(&mut self, v: ValueId, w: ValueId) {
        self.types[v.index()] = self.types[w.index()];
    }

    /// Of a call and the types of its results.
    pub fn of(&self, node: &Node) -> u64 {
        let mut h = FxHasher::default();
        h.write_u64(self.call(node));
        for v in &node.outs {
            h.write_u64(self.types[v.index()]);
        }
        h.finish()
    }

    /// Of a call, whatever its results.
    pub fn call(&self, node: &Node) -> u64 {
        let mut h = FxHasher::default();
        h.write(node.op.as_bytes());
        for arg in &node.args {
            match arg {
                Arg::Value(v) => h.write_u64(self.types[v.index()]),
                Arg::Values(vs) => vs
                    .iter()
                    .for_each(|v| h.write_u64(v.map_or(0, |v| self.types[v.index()]))),
                Arg::Int(e) => h.write_u32(e.0),
                Arg::Ints(es) => es.iter().for_each(|e| h.write_u32(e.0)),
                Arg::Float(v) => h.write_u64(v.to_bits()),
                // The rest is compared where numbers are equal.
                _ => {}
            }
        }
        h.finish()
    }
}

/// Whether two calls are of the same operator with the same constants and as many results, and `values` holds for each pair of
/// values that they read.
pub fn alike(a: &Node, b: &Node, values: &impl Fn(ValueId, ValueId) -> bool) -> bool {
    let args = |x: &Arg, y: &Arg| match (x, y) {
        (Arg::Value(v), Arg::Value(w)) => values(*v, *w),
        (Arg::Values(v), Arg::Values(w)) => {
            v.len() == w.len()
                && v.iter().zip(w).all(|p| match p {
                    (Some(v), Some(w)) => values(*v, *w),
                    (v, w) => v == w,
                })
        }
        // Bits tell -0.0 from 0.0, and one NaN is like another.
        (Arg::Float(v), Arg::Float(w)) => v.to_bits() == w.to_bits(),
        (Arg::Floats(v), Arg::Floats(w)) => {
            let bits = |f: &f64| f.to_bits();
            v.iter().map(bits).eq(w.iter().map(bits))
        }
        (x, y) => x == y,
    };
    a.op == b.op
        && a.args.len() == b.args.len()
        && a.outs.len() == b.outs.len()
        && a.args.iter().zip(&b.args).all(|(x, y)| args(x, y))
}

/// What stands for what: pairs, one to one. Few are held at once, so this is a list.
#[derive(Debug)]
pub struct Pairs<T>(SmallVec<[(T, T); 8]>);

impl<T> Default for Pairs<T> {
    fn default() -> Self {
        Pairs(SmallVec::new())
    }
}

impl<T: Copy + PartialEq> Pairs<T> {
    /// Lets `b` stand for `a`; false where another one does, or `b` stands for another one.
    pub fn pair(&mut self, a: T, b: T) -> bool {
        match self.0.iter().find(|(x, y)| *x == a || *y == b) {
            Some(known) => *known == (a, b),
            None => {
                self.0.push((a, b));
                true
            }
        }
    }

    /// What stands for `a`.
    pub fn of(&self, a: T) -> Option<T> {
        self.0.iter().find(|(x, _)| *x == a).map(|(_, y)| *y)
    }
}

/// The values that `b` reads in the places of those that `a` reads, if the calls are alike, `values` holds for each pair, and
/// where one reads a value twice so does the other.
pub fn paired(
    a: &Node,
    b: &Node,
    values: &impl Fn(ValueId, ValueId) -> bool,
) -> Option<Pairs<ValueId>> {
    if !alike(a, b, values) {
        return None;
    }
    let mut pairs = Pairs::default();
    a.reads()
        .zip(b.reads())
        .all(|(v, w)| pairs.pair(v, w))
        .then_some(pairs)
}
