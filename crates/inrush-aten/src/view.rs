//! Views: a result whose elements are those of the source at other coordinates.
//!
//! A view moves no element. It is a function from the result's coordinates to the source's,
//! written as expressions over the result's index symbols:
//!
//! ```text
//! transpose  [4, 6] -> [6, 4]      map [i1, i0]
//! slice      [10]   -> [3]         map [i0*2 + 1]
//! expand     [1, 5] -> [4, 5]      map [0, i1]
//! reshape    [4, 6] -> [2, 12]     map [i0*2 + i1//6, i1%6]
//! ```
//!
//! Views of views compose by substitution, and a consumer that reads through a view
//! substitutes its own coordinates. Divisions are the only obstacle: expressions simplify if
//! sizes divide, and reshapes are built from small groups of dimensions so that most do.

use inrush_base::{Error, Result};
use inrush_expr::{Expr, Exprs, Sym};

/// Sizes of the result, and for each dimension of the source its coordinate as an expression over the result's indices
/// (`Exprs::index(d, sizes[d])`, see [`index`]).
#[derive(Clone, PartialEq, Debug)]
pub struct View {
    /// One for each dimension of the result.
    pub sizes: Vec<Expr>,
    /// One for each dimension of the source, with values in `0..size` of that dimension.
    pub map: Vec<Expr>,
}

/// The index expression of dimension `d`. A dimension of size 1 has one index, 0, so that it never hinders simplification.
pub fn index(exprs: &Exprs, d: usize, size: Expr) -> Expr {
    if exprs.is_int(size, 1) {
        exprs.int(0)
    } else {
        exprs.index(d as u32, size)
    }
}

/// Index expressions of all dimensions.
pub fn indices(exprs: &Exprs, sizes: &[Expr]) -> Vec<Expr> {
    sizes
        .iter()
        .enumerate()
        .map(|(d, s)| index(exprs, d, *s))
        .collect()
}

impl View {
    /// The source itself.
    /// The neutral element of composition.
    pub fn identity(exprs: &Exprs, sizes: &[Expr]) -> View {
        View {
            sizes: sizes.to_vec(),
            map: indices(exprs, sizes),
        }
    }

    /// Result dimension `k` is source dimension `order[k]`.
    pub fn permute(exprs: &Exprs, sizes: &[Expr], order: &[usize]) -> View {
        let out: Vec<Expr> = order.iter().map(|d| sizes[*d]).collect();
        let mut map = vec![exprs.int(0); sizes.len()];
        for (k, d) in order.iter().enumerate() {
            map[*d] = index(exprs, k, out[k]);
        }
        View { sizes: out, map }
    }

    /// The position in row-major order of the element at `at`.
    pub fn ravel(exprs: &Exprs, at: &[Expr], sizes: &[Expr]) -> Expr {
        at.iter().zip(sizes).fold(exprs.int(0), |linear, (i, s)| {
            exprs.add(exprs.mul(linear, *s), *i)
        })
    }

    /// The coordinates of the element at position `linear` in row-major order.
    pub fn unravel(exprs: &Exprs, mut linear: Expr, sizes: &[Expr]) -> Vec<Expr> {
        let mut at = vec![exprs.int(0); sizes.len()];
        // No element has a position in an empty tensor; dividing by its sizes would mean nothing.
        if sizes.iter().any(|s| exprs.is_int(*s, 0)) {
            return at;
        }
        for d in (0..sizes.len()).rev() {
            // The quotient of the outermost dimension is below its size anyway: no remainder
            // is needed.
            let outermost = sizes[..d].iter().all(|s| exprs.is_int(*s, 1));
            if exprs.is_int(sizes[d], 1) {
                continue;
            }
            at[d] = if outermost {
                linear
            } else {
                exprs.modulo(linear, sizes[d])
            };
            linear = exprs.floordiv(linear, sizes[d]);
        }
        at
    }

    /// The same elements in row-major order under other sizes; the products of sizes must agree.
    /// Both lists are walked from the outermost dimension. A group ends where the products of
    /// both sides agree:
    ///
    /// ```text
    /// [a, b, c, d] -> [a*b, c, d]    groups (a, b | a*b), (c | c), (d | d)
    /// ```
    ///
    /// If products are not found equal, the rest is one group.
    pub fn reshape(exprs: &Exprs, from: &[Expr], to: &[Expr]) -> View {
        let mut map = vec![exprs.int(0); from.len()];
        // Runs of dimensions with equal products are reshaped on their own: most reshapes split or merge a few dimensions,
        // and small expressions simplify where one expression over all dimensions may not.
        let (mut i, mut j) = (0, 0);
        while i < from.len() || j < to.len() {
            let (i0, j0) = (i, j);
            let (mut p, mut q) = (exprs.int(1), exprs.int(1));
            if i < from.len() && j < to.len() {
                p = exprs.mul(p, from[i]);
                q = exprs.mul(q, to[j]);
                i += 1;
                j += 1;
                // Grow the side that is smaller by its hint until the products are equal by canonical form.
                while p != q && (i < from.len() || j < to.len()) {
                    let grow_from =
                        j == to.len() || (i < from.len() && exprs.hint(p) <= exprs.hint(q));
                    if grow_from {
                        p = exprs.mul(p, from[i]);
                        i += 1;
                    } else {
                        q = exprs.mul(q, to[j]);
                        j += 1;
                    }
                }
            }
            if p != q || i == i0 || j == j0 {
                // The rest: sizes of one, or sizes whose equality the caller vouches for.
                (i, j) = (from.len(), to.len());
            }
            let inner: Vec<Expr> = (j0..j).map(|d| index(exprs, d, to[d])).collect();
            let linear = Self::ravel(exprs, &inner, &to[j0..j]);
            for (k, c) in Self::unravel(exprs, linear, &from[i0..i])
                .into_iter()
                .enumerate()
            {
                map[i0 + k] = c;
            }
        }
        View {
            sizes: to.to_vec(),
            map,
        }
    }

    /// Broadcasting to `to`, whose trailing dimensions match or meet a size of 1.
    ///
    /// # Errors
    ///
    /// If a size is neither equal to its target nor 1.
    pub fn expand(exprs: &Exprs, from: &[Expr], to: &[Expr]) -> Result<View> {
        let lead = to
            .len()
            .checked_sub(from.len())
            .ok_or_else(|| Error::input("a tensor cannot be expanded to fewer dimensions"))?;
        let map = from
            .iter()
            .enumerate()
            .map(|(d, s)| {
                let t = to[lead + d];
                if exprs.prove_eq(*s, t) {
                    Ok(index(exprs, lead + d, t))
                } else if exprs.is_int(*s, 1) {
                    Ok(exprs.int(0))
                } else {
                    Err(Error::input(format!(
                        "sizes {} do not expand to {}",
                        exprs.show_list(from),
                        exprs.show_list(to)
                    )))
                }
            })
            .collect::<Result<_>>()?;
        Ok(View {
            sizes: to.to_vec(),
            map,
        })
    }

    /// Every `step`th index of dimension `d` from `start`, `len` of them.
    pub fn slice(
        exprs: &Exprs,
        sizes: &[Expr],
        d: usize,
        start: Expr,
        len: Expr,
        step: Expr,
    ) -> View {
        let mut out = sizes.to_vec();
        out[d] = len;
        let mut map = indices(exprs, &out);
        map[d] = exprs.add(start, exprs.mul(map[d], step));
        View { sizes: out, map }
    }

    /// Index `at` of dimension `d`, which disappears.
    pub fn select(exprs: &Exprs, sizes: &[Expr], d: usize, at: Expr) -> View {
        let mut out = sizes.to_vec();
        out.remove(d);
        let mut map = indices(exprs, &out);
        map.insert(d, at);
        View { sizes: out, map }
    }

    /// Strides of the result for a source of these strides: those of a true view where the map is affine, row-major ones
    /// where it is not.
    pub fn strides(&self, exprs: &Exprs, source: &[Expr]) -> Vec<Expr> {
        let syms: Vec<Sym> = self
            .sizes
            .iter()
            .enumerate()
            .map(|(d, s)| exprs.index_sym(d as u32, *s))
            .collect();
        // The offset in memory as a function of the result's indices; its coefficients are
        // the strides.
        let total = exprs.sum(self.map.iter().zip(source).map(|(m, s)| exprs.mul(*m, *s)));
        let contiguous = exprs.contiguous_strides(&self.sizes);
        match exprs.affine(total, &syms) {
            // Tensors of PyTorch never run backwards: what reverses is a copy.
            Some((strides, _)) if strides.iter().any(|s| exprs.range(*s).lo < 0) => contiguous,
            Some((mut strides, _)) => {
                // The stride of a dimension of size 1 is never used; the row-major one reads
                // best.
                for (d, s) in strides.iter_mut().enumerate() {
                    if exprs.is_int(self.sizes[d], 1) {
                        *s = contiguous[d];
                    }
                }
                strides.into_vec()
            }
            None => contiguous,
        }
    }
}

impl View {
    /// Returns true if the view of a source of these strides has strides too.
    /// If not, PyTorch's `view` would refuse, and `reshape` copies.
    pub fn is_affine(&self, exprs: &Exprs, source: &[Expr]) -> bool {
        let syms: Vec<Sym> = self
            .sizes
            .iter()
            .enumerate()
            .map(|(d, s)| exprs.index_sym(d as u32, *s))
            .collect();
        let total = exprs.dot(source, &self.map);
        exprs.coefficients(total, &syms).is_some()
    }
}
