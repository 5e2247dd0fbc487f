//! Forms contractions: from axes with index expressions to [`Contraction`] nodes whose accesses are affine.
//!
//! A view in front of a matrix product (heads folded into features, keys repeated for grouped queries) shows up as floor
//! divisions and remainders of an axis. Splitting that axis at the divisor makes the access affine again without moving a
//! byte; only what no split can straighten is copied first.
//!
//! ```text
//! a[row // 64, red // 64, row % 64, red % 64]      row < s0*64, red < 768
//!
//! row = 64*r1 + r0,  red = 64*k1 + k0              r0 < 64, k0 < 64
//!
//! a[r1, k1, r0, k0]                                four affine coordinates
//! ```
//!
//! The engine and the micro-kernels step through operands with one stride per axis, hence
//! affine. A split preserves the set of points and, for parts in lexicographic order, the
//! order of the sum. It needs an extent that the divisor divides exactly (`s0*64` by 64);
//! symbols divide as polynomials. Each split makes the extents smaller, so the process ends.

use inrush_expr::{Expr, Exprs, Node as ExprNode, Sym, SymMap};
use inrush_loops::{Axis, Coords};

/// A contraction while it is formed: axes by role, and every list of expressions over them.
#[derive(Clone, Debug)]
pub(crate) struct Form {
    pub batch: Vec<Axis>,
    pub m: Vec<Axis>,
    pub n: Vec<Axis>,
    pub k: Vec<Axis>,
    /// Coordinates of the first operand, in its buffer.
    pub a: Coords,
    /// Coordinates of the second operand, in its buffer.
    pub b: Coords,
    /// Logical indices of the result, over batch, m and n axes.
    pub out: Vec<Expr>,
}

impl Form {
    /// Axes by role, in the order in which they are numbered.
    fn groups(&mut self) -> [&mut Vec<Axis>; 4] {
        [&mut self.batch, &mut self.m, &mut self.n, &mut self.k]
    }

    /// All axes: batch, m, n, k.
    pub fn axes(&self) -> impl Iterator<Item = &Axis> {
        self.batch
            .iter()
            .chain(&self.m)
            .chain(&self.n)
            .chain(&self.k)
    }

    fn syms(&self) -> Vec<Sym> {
        self.axes().map(|a| a.sym).collect()
    }

    /// Rewrites every coordinate after an axis changed its name or was split.
    fn subst(&mut self, exprs: &Exprs, map: &SymMap) {
        for list in [&mut self.a, &mut self.b] {
            for e in list.iter_mut() {
                *e = exprs.subst(*e, map);
            }
        }
        for e in &mut self.out {
            *e = exprs.subst(*e, map);
        }
    }

    /// Splits axes until both accesses are affine, as far as that is possible.
    pub fn split_axes(&mut self, exprs: &Exprs) {
        let mut position = self.axes().count() as u32;
        while let Some((sym, inner)) = self.find_split(exprs) {
            let mut map = SymMap::default();
            for group in self.groups() {
                let Some(at) = group.iter().position(|x| x.sym == sym) else {
                    continue;
                };
                let outer = exprs.floordiv(group[at].size, inner);
                let (hi, lo) = (
                    exprs.index_sym(position, outer),
                    exprs.index_sym(position + 1, inner),
                );
                position += 2;
                group.splice(
                    at..=at,
                    [
                        Axis {
                            sym: hi,
                            size: outer,
                        },
                        Axis {
                            sym: lo,
                            size: inner,
                        },
                    ],
                );
                let whole = exprs.add(exprs.mul(exprs.sym_expr(hi), inner), exprs.sym_expr(lo));
                map.insert(sym, whole);
                break;
            }
            self.subst(exprs, &map);
        }
    }

    /// An axis to split and the extent of its inner part.
    fn find_split(&self, exprs: &Exprs) -> Option<(Sym, Expr)> {
        self.a
            .iter()
            .chain(&self.b)
            .find_map(|e| self.find_split_in(exprs, *e))
    }

    /// Looks for `axis // b` or `axis % b` in an expression, innermost first: an outer
    /// division becomes simple once the inner one is gone.
    fn find_split_in(&self, exprs: &Exprs, e: Expr) -> Option<(Sym, Expr)> {
        match exprs.node(e) {
            ExprNode::Const(_) | ExprNode::Sym(_) => None,
            ExprNode::Sum { terms, .. } => terms
                .iter()
                .find_map(|(_, t)| self.find_split_in(exprs, *t)),
            ExprNode::Product(f) => f.iter().find_map(|t| self.find_split_in(exprs, *t)),
            ExprNode::Min(a, b) | ExprNode::Max(a, b) => self
                .find_split_in(exprs, a)
                .or_else(|| self.find_split_in(exprs, b)),
            ExprNode::FloorDiv(a, b) | ExprNode::Mod(a, b) => {
                self.find_split_in(exprs, a).or_else(|| {
                    let sym = exprs.as_sym(a)?;
                    let axis = self.axes().find(|x| x.sym == sym)?;
                    let quotient = exprs.divide_exact(axis.size, b)?;
                    // A split into 1 x n or n x 1 would repeat for ever.
                    let trivial = exprs.is_int(quotient, 1) || exprs.is_int(b, 1);
                    (!trivial).then_some((sym, b))
                })
            }
        }
    }

    /// Returns true if the coordinates are affine in the axes.
    pub fn is_affine(&self, exprs: &Exprs, coords: &[Expr]) -> bool {
        let syms = self.syms();
        coords
            .iter()
            .all(|c| exprs.coefficients(*c, &syms).is_some())
    }

    /// Numbers the axes in order. With `full`, m, n and k get an axis of extent 1 where they have none.
    pub fn renumber(&mut self, exprs: &Exprs, full: bool) {
        let mut map = SymMap::default();
        let mut position = 0;
        for (g, group) in self.groups().into_iter().enumerate() {
            if full && g > 0 && group.is_empty() {
                let size = exprs.int(1);
                let sym = exprs.index_sym(position, size);
                group.push(Axis { sym, size });
            }
            for axis in group.iter_mut() {
                let sym = exprs.index_sym(position, axis.size);
                map.insert(axis.sym, exprs.sym_expr(sym));
                axis.sym = sym;
                position += 1;
            }
        }
        self.subst(exprs, &map);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use smallvec::smallvec;

    fn axis(exprs: &Exprs, position: u32, size: i64) -> Axis {
        let size = exprs.int(size);
        Axis {
            sym: exprs.index_sym(position, size),
            size,
        }
    }

    /// Heads folded into the features: `k = h * 64 + d` reads `[row // 64, h, row % 64, d]`.
    #[test]
    fn folded_heads_become_affine() {
        let x = Exprs::new();
        let b = x.sym_expr(x.size_sym("s0", 1, 8192));
        let rows = x.mul(b, x.int(64));
        let m = Axis {
            sym: x.index_sym(0, rows),
            size: rows,
        };
        let (n, k) = (axis(&x, 1, 768), axis(&x, 2, 768));
        let (row, col, red) = (x.sym_expr(m.sym), x.sym_expr(n.sym), x.sym_expr(k.sym));
        let c64 = x.int(64);
        let mut form = Form {
            batch: vec![],
            m: vec![m],
            n: vec![n],
            k: vec![k],
            a: smallvec![
                x.floordiv(row, c64),
                x.floordiv(red, c64),
                x.modulo(row, c64),
                x.modulo(red, c64)
            ],
            b: smallvec![red, col],
            out: vec![row, col],
        };
        form.split_axes(&x);
        form.renumber(&x, true);
        assert!(form.is_affine(&x, &form.a) && form.is_affine(&x, &form.b));
        assert_eq!((form.m.len(), form.n.len(), form.k.len()), (2, 1, 2));
        assert_eq!(x.show(form.a[1]), "i3");
    }
}
