//! Structural hashes of calls: the same operator with the same constants, on values of the same
//! types.
//!
//! Used wherever equal work is done once: common subexpressions, memoized decompositions and
//! lowerings, and repeated blocks. Hashes find candidates; [`alike`] and [`paired`] compare them.

use crate::{Arg, Node, Type, Value, ValueId};
use rustc_hash::FxHasher;
use smallvec::SmallVec;
use std::hash::{Hash, Hasher};

/// Hashes of values' types and of calls. Equal for alike calls, and rarely for others.
pub struct Looks {
    /// Hash of the type of each value, mixed with its marks.
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
                // Rare types share a hash; callers compare them.
                _ => h.write_u32(u32::MAX),
            }
            h.finish()
        };
        Looks {
            types: values.iter().map(of).collect(),
        }
    }

    /// Mixes `mark` into a value's hash, so that only values with the same mark are alike.
    pub fn mark(&mut self, v: ValueId, mark: u64) {
        let mut h = FxHasher::default();
        h.write_u64(self.types[v.index()]);
        h.write_u64(mark);
        self.types[v.index()] = h.finish();
    }

    /// Gives `v` the hash of `w`, marks included.
    pub fn copy(&mut self, v: ValueId, w: ValueId) {
        self.types[v.index()] = self.types[w.index()];
    }

    /// Returns the hash of a call and the types of its results.
    pub fn of(&self, node: &Node) -> u64 {
        let mut h = FxHasher::default();
        h.write_u64(self.call(node));
        for v in &node.outs {
            h.write_u64(self.types[v.index()]);
        }
        h.finish()
    }

    /// Returns the hash of a call without its results.
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
                Arg::Complex(re, im) => {
                    h.write_u64(re.to_bits());
                    h.write_u64(im.to_bits());
                }
                // Other arguments are left to the comparison.
                _ => {}
            }
        }
        h.finish()
    }
}

/// Returns true if two calls have the same operator, constants and number of results, and `values`
/// holds for each pair of values that they read.
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
        // Compares bits: -0.0 differs from 0.0, and a NaN equals itself.
        (Arg::Float(v), Arg::Float(w)) => v.to_bits() == w.to_bits(),
        (Arg::Complex(a, b), Arg::Complex(c, d)) => {
            a.to_bits() == c.to_bits() && b.to_bits() == d.to_bits()
        }
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

/// A one-to-one correspondence. Few pairs are held at once, so this is a list.
#[derive(Debug)]
pub struct Pairs<T>(SmallVec<[(T, T); 8]>);

impl<T> Default for Pairs<T> {
    fn default() -> Self {
        Pairs(SmallVec::new())
    }
}

impl<T: Copy + PartialEq> Pairs<T> {
    /// Pairs `a` with `b`. Returns false if either is already paired with something else.
    pub fn pair(&mut self, a: T, b: T) -> bool {
        match self.0.iter().find(|(x, y)| *x == a || *y == b) {
            Some(known) => *known == (a, b),
            None => {
                self.0.push((a, b));
                true
            }
        }
    }

    /// Returns the partner of `a`.
    pub fn of(&self, a: T) -> Option<T> {
        self.0.iter().find(|(x, _)| *x == a).map(|(_, y)| *y)
    }
}

/// Returns the correspondence of the values that `a` and `b` read, if the calls are alike, `values`
/// holds for each pair, and the correspondence is one to one.
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
