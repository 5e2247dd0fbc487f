//! Sums of products: matrix products, einsum and convolutions become one [`Contraction`] with affine accesses, or a plain
//! reduction where the template has nothing to offer (integers, products with a vector).
//!
//! ```text
//! mm                  M: i        N: j  K: k         a[i, k]                 b[k, j]
//! bmm      Batch: p   M: i        N: j  K: k         a[p, i, k]              b[p, k, j]
//! conv2d   Batch: g   M: n, y, x  N: c  K: q, r, s   a[n, g*Q+q, y+r, x+s]   b[g*C+c, q, r, s]
//! ```
//!
//! A row declares axes with their roles and says at which indices both operands are read. An
//! operand may be a view: its coordinates are substituted, axes are split until they are
//! affine (`form`), and only if that fails the operand is copied once. The epilogue
//! (`finish`) is a body over the parallel axes, whose accumulator is the finished sum; stage
//! fuse inlines more work into it.
//!
//! A plain reduction serves the rest: integers, sums over nothing, and products that lack one
//! of the roles M, N and K, as a product of a matrix and a vector, whose speed is that of
//! memory.

use super::body::BodyBuilder;
use super::form::Form;
use super::{Lower, Tensor};
use inrush_base::{DType, Error, Result, Scalar};
use inrush_expr::{Expr, Exprs};
use inrush_loops::{Access, Axis, Contraction, ReduceOp, ScalarOp, StmtId};

/// Role of an axis: in both operands and the result, in the first only, in the second only, or summed.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Role {
    Batch,
    M,
    N,
    K,
}

/// A sum of products in the making: axes are declared one by one, then [`Product::lower`] says what is read and stored.
pub struct Product<'g> {
    exprs: &'g Exprs,
    axes: Vec<(Role, Axis)>,
    /// By role: an axis was declared. Axes of size 1 count, though they are left out of
    /// `axes`.
    declared: [bool; 4],
    /// A summed axis has size 0, so the sum is zero.
    empty: bool,
}

/// An operand: a tensor and the index of each of its dimensions.
pub type Indexed<'t> = (&'t Tensor, Vec<Expr>);

/// The result: its dtype, sizes and the index of each dimension.
pub struct Target {
    pub dtype: DType,
    pub sizes: Vec<Expr>,
    pub index: Vec<Expr>,
}

/// Refuses operands of two dtypes, as eager does.
pub fn same_dtype(a: DType, b: DType) -> Result<()> {
    match a == b {
        true => Ok(()),
        false => Err(Error::input(format!("operands of dtypes {a} and {b}"))),
    }
}

impl<'g> Product<'g> {
    pub fn new(exprs: &'g Exprs) -> Self {
        Product {
            exprs,
            axes: Vec::new(),
            declared: [false; 4],
            empty: false,
        }
    }

    /// Declares an axis and gives its index; 0 for an axis of size 1.
    pub fn axis(&mut self, role: Role, size: Expr) -> Expr {
        self.declared[role as usize] = true;
        if self.exprs.is_int(size, 1) {
            return self.exprs.int(0);
        }
        self.empty |= role == Role::K && self.exprs.is_int(size, 0);
        let sym = self.exprs.index_sym(self.axes.len() as u32, size);
        self.axes.push((role, Axis { sym, size }));
        self.exprs.sym_expr(sym)
    }

    /// Returns the axes of a role in the order of their declaration.
    fn of(&self, role: Role) -> Vec<Axis> {
        self.axes
            .iter()
            .filter(|(r, _)| *r == role)
            .map(|(_, a)| *a)
            .collect()
    }

    /// Emits the sum of `a * b`. `finish` makes the stored value from the sum; it is given the index of each dimension of
    /// the result.
    pub fn lower(
        self,
        lw: &mut Lower<'g>,
        a: Indexed,
        b: Indexed,
        target: Target,
        finish: impl FnOnce(&mut BodyBuilder<'g>, StmtId, &[Expr]) -> Result<StmtId>,
    ) -> Result<Tensor> {
        let exprs = self.exprs;
        same_dtype(a.0.dtype, b.0.dtype)?;
        let dtype = target.dtype.compute();
        // The template multiplies floats by matrices; a product with a vector is bound by memory.
        let template = dtype.is_float()
            && !self.empty
            && [Role::M, Role::N, Role::K]
                .iter()
                .all(|r| self.declared[*r as usize]);
        // Formed anew after each copy, because splits that the other operand alone asked for
        // may be gone.
        let form_of = |ta: &Tensor, tb: &Tensor| {
            let mut form = Form {
                batch: self.of(Role::Batch),
                m: self.of(Role::M),
                n: self.of(Role::N),
                k: self.of(Role::K),
                a: ta.at(exprs, &a.1),
                b: tb.at(exprs, &b.1),
                out: target.index.clone(),
            };
            if template {
                form.split_axes(exprs);
            }
            form
        };
        let (mut ta, mut tb) = (a.0.clone(), b.0.clone());
        let mut form = form_of(&ta, &tb);
        if template && !form.is_affine(exprs, &form.a) {
            ta = lw.materialize(a.0);
            form = form_of(&ta, &tb);
        }
        if template && !form.is_affine(exprs, &form.b) {
            tb = lw.materialize(b.0);
            form = form_of(&ta, &tb);
        }
        if template && !(form.is_affine(exprs, &form.a) && form.is_affine(exprs, &form.b)) {
            // After a copy coordinates are the index expressions of the row, which must be
            // affine.
            return Err(Error::internal("a contraction with a bent access"));
        }
        form.renumber(exprs, template);
        let out = lw.temp(target.dtype, &target.sizes);
        let sizes: Vec<Expr> = [&form.batch, &form.m, &form.n]
            .into_iter()
            .flatten()
            .map(|x| x.size)
            .collect();
        let mut body = lw.body(&sizes);
        let sum = if template {
            body.acc(dtype)
        } else if self.empty {
            body.constant(Scalar::Int(0), dtype)
        } else {
            body.reduce_axes(&form.k.iter().map(|x| x.size).collect::<Vec<_>>());
            let mut factor = |t: &Tensor, coords: &[Expr]| {
                let sizes = &lw.loops.buffers[t.buf.index()].sizes;
                let v = body.load(&Tensor::whole(exprs, t.buf, t.dtype, sizes), coords);
                body.cast(v, dtype)
            };
            let (x, y) = (factor(&ta, &form.a), factor(&tb, &form.b));
            let product = body.op(ScalarOp::Mul, &[x, y]);
            // A sum of one product starts from zero too, so that -0 becomes +0 as in eager.
            match self.declared[Role::K as usize] {
                true => body.reduce(ReduceOp::Sum, product),
                false => product,
            }
        };
        let value = finish(&mut body, sum, &form.out)?;
        let value = body.cast_for_store(value, target.dtype);
        body.store(out.buf, &form.out, value);
        if template {
            lw.push_contraction(Contraction {
                batch: form.batch,
                m: form.m,
                n: form.n,
                k: form.k,
                a: Access {
                    buf: ta.buf,
                    coords: form.a,
                },
                b: Access {
                    buf: tb.buf,
                    coords: form.b,
                },
                dtype,
                epilogue: body.finish(),
            });
        } else {
            lw.push(body);
        }
        Ok(out)
    }
}
