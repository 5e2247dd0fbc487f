//! Matrix products of strided operands by the engine of `inrush-cpu`, with every address checked.

use inrush_base::{DType, Error, Result};
use inrush_cpu::{
    Affine, GemmShape, Lhs, Operands, Output, Packed, PackedB, Plan, Pool, RhsView, StoreView,
    detect,
};

/// Rows that make packing the right operand of a product that is run often worth its while.
const PACKED_ROWS: usize = 4;

/// Row and column stride of an operand, in elements.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Strides(pub usize, pub usize);

impl Strides {
    /// Returns the elements from the first to the last of `rows x cols`. Sizes are those of tensors in memory or of parts of them.
    fn span(self, rows: usize, cols: usize) -> Option<usize> {
        if rows == 0 || cols == 0 {
            return Some(0);
        }
        let rows = (rows - 1).checked_mul(self.0)?;
        rows.checked_add((cols - 1).checked_mul(self.1)?)?
            .checked_add(1)
    }

    /// Refuses bytes that do not hold `rows x cols` elements of `dtype`.
    fn check(self, rows: usize, cols: usize, dtype: DType, bytes: &[u8]) -> Result<()> {
        let span = self
            .span(rows, cols)
            .and_then(|n| n.checked_mul(dtype.size()));
        if span.is_some_and(|n| n <= bytes.len()) {
            return Ok(());
        }
        Err(Error::internal(format!(
            "{} bytes for {rows} x {cols} of {dtype} with strides {self:?}",
            bytes.len()
        )))
    }
}

/// `C = A B` for `m x k` and `k x n` operands of known strides, planned once and run at any addresses.
pub(crate) struct Product {
    m: usize,
    k: usize,
    n: usize,
    dtype: DType,
    out: DType,
    a: Strides,
    b: Strides,
    /// Row stride of the result.
    c: usize,
    /// None where a result has no elements or is zero.
    plan: Option<Plan>,
    packed: Option<Packed>,
}

/// Sizes and layouts of a product.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub m: usize,
    pub k: usize,
    pub n: usize,
    /// Elements of both operands.
    pub dtype: DType,
    /// Type of the sums.
    pub acc: DType,
    /// Elements of the result.
    pub out: DType,
    pub a: Strides,
    pub b: Strides,
    pub c: usize,
}

impl Product {
    /// Plans a product.
    pub(crate) fn new(pool: &Pool, s: Shape) -> Result<Product> {
        let mut product = Product {
            m: s.m,
            k: s.k,
            n: s.n,
            dtype: s.dtype,
            out: s.out,
            a: s.a,
            b: s.b,
            c: s.c,
            plan: None,
            packed: None,
        };
        if s.m == 0 || s.k == 0 || s.n == 0 {
            return Ok(product);
        }
        let lhs = product.lhs()?;
        let rhs = product.rhs(std::ptr::null())?;
        let shape = GemmShape::new(1, s.m, s.k, s.n);
        product.plan = Some(Plan::product(
            shape,
            s.acc,
            detect(),
            pool.threads(),
            &lhs,
            Some(&rhs),
        )?);
        Ok(product)
    }

    /// Plans a product that is run often with one right operand, which is packed where that pays.
    pub(crate) fn with_weights(pool: &Pool, s: Shape, b: &[u8]) -> Result<Product> {
        let mut product = Product::new(pool, s)?;
        s.b.check(s.k, s.n, s.dtype, b)?;
        if product.plan.is_none() || s.m < PACKED_ROWS {
            return Ok(product);
        }
        let lhs = product.lhs()?;
        let shape = GemmShape::new(1, s.m, s.k, s.n);
        let plan = Plan::product(shape, s.acc, detect(), pool.threads(), &lhs, None)?;
        let rhs = product.rhs(b.as_ptr())?;
        // SAFETY: the operand's elements are within its bytes, as checked above.
        let packed = unsafe { PackedB::pack(pool, detect(), s.acc, &rhs) }?;
        product.plan = Some(plan);
        product.packed = Some(Packed::Rhs(packed));
        Ok(product)
    }

    fn lhs(&self) -> Result<Lhs<'static>> {
        Ok(Lhs {
            ptr: std::ptr::null(),
            dtype: self.dtype,
            matrices: Affine::ONE,
            rows: Affine::linear(self.m, signed(self.a.0)?),
            taps: &[0],
            k_step: signed(self.a.1)?,
        })
    }

    fn rhs(&self, ptr: *const u8) -> Result<RhsView> {
        Ok(RhsView {
            ptr,
            dtype: self.dtype,
            matrices: Affine::ONE,
            k: Affine::linear(self.k, signed(self.b.0)?),
            cols: Affine::linear(self.n, signed(self.b.1)?),
        })
    }

    /// Computes the product of operands that start at the first byte of `a` and `b`, to the start of `c`. A product that was
    /// planned with weights is given the same ones.
    pub(crate) fn run(&self, pool: &Pool, a: &[u8], b: &[u8], c: &mut [u8]) -> Result<()> {
        let &Product { m, k, n, .. } = self;
        self.a.check(m, k, self.dtype, a)?;
        self.b.check(k, n, self.dtype, b)?;
        Strides(self.c, 1).check(m, n, self.out, c)?;
        let Some(plan) = &self.plan else {
            let size = self.out.size();
            if n > 0 {
                for row in 0..m {
                    c[row * self.c * size..(row * self.c + n) * size].fill(0);
                }
            }
            return Ok(());
        };
        let view = StoreView {
            ptr: c.as_mut_ptr(),
            dtype: self.out,
            batch: Affine::ONE,
            rows: Affine::linear(m, signed(self.c)?),
            cols: Affine::linear(n, 1),
        };
        let operands = Operands {
            a: a.as_ptr(),
            b: b.as_ptr(),
            packed: self.packed.as_ref(),
        };
        // SAFETY: all elements of the operands and the result are within their bytes, as checked above. The result is borrowed
        // mutably, so it overlaps neither operand; its rows do not overlap each other, as `Strides` of results are row-major.
        unsafe { plan.run(pool, &operands, &Output::Store(view)) }
    }
}

fn signed(stride: usize) -> Result<isize> {
    isize::try_from(stride).map_err(|_| Error::internal(format!("stride {stride}")))
}
