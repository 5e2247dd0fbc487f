//! An operator's call as its definition sees it: arguments by position in schema order.
//!
//! Accessors take the position of an argument in the operator's schema and convert it: constants,
//! symbolic integers at this call's sizes, and scalars that other nodes computed are all the same
//! to a definition. An argument beyond the list is absent, and defaults belong to the
//! definitions.

use super::{broadcast_position, points, position};
use crate::index::{Symbols, size};
use crate::tensor::{Tensor, Value, numel};
use inrush_base::{DType, Error, Result, Scalar};
use inrush_graph::{Arg, Graph, ValueId};

/// `values` are those of the whole graph.
pub(super) struct Call<'a> {
    pub g: &'a Graph,
    pub args: &'a [Arg],
    pub values: &'a [Value],
    pub symbols: &'a Symbols,
    /// dtype and sizes of each result that is a tensor.
    pub outs: &'a [Option<(DType, Vec<i64>)>],
}

/// Floats (or integers as floats) in row-major order.
/// `f64` holds all values of the float dtypes; integers beyond 2^53 are not exact.
#[derive(Clone, Debug)]
pub(super) struct Floats {
    pub sizes: Vec<i64>,
    pub data: Vec<f64>,
}

impl Floats {
    pub(super) fn zeros(sizes: &[i64]) -> Result<Floats> {
        Ok(Floats {
            sizes: sizes.to_vec(),
            data: vec![0.0; numel(sizes)?],
        })
    }
    /// Builds a tensor of these sizes whose elements are `f` of their coordinates.
    pub(super) fn build(sizes: &[i64], mut f: impl FnMut(&[i64]) -> Result<f64>) -> Result<Floats> {
        numel(sizes)?;
        Ok(Floats {
            sizes: sizes.to_vec(),
            data: points(sizes).map(|at| f(&at)).collect::<Result<_>>()?,
        })
    }
    /// Returns an element; one outside of the tensor is an error.
    pub(super) fn at(&self, at: &[i64]) -> Result<f64> {
        self.get(position(&self.sizes, at)?)
    }
    /// Returns the element that a broadcast has at `at`.
    pub(super) fn broadcast_at(&self, at: &[i64]) -> Result<f64> {
        self.get(broadcast_position(&self.sizes, at)?)
    }
    fn get(&self, place: usize) -> Result<f64> {
        let element = self.data.get(place).copied();
        element.ok_or_else(|| Error::input(format!("element {place} of {:?}", self.sizes)))
    }
    /// Returns the elements at these places.
    pub(super) fn all(&self, places: &[usize]) -> Result<Vec<f64>> {
        places.iter().map(|p| self.get(*p)).collect()
    }
    /// Converts a tensor of any dtype.
    pub(super) fn of(t: &Tensor) -> Result<Floats> {
        let data = (0..t.numel()).map(|k| Ok(t.get(k)?.as_f64()));
        Ok(Floats {
            sizes: t.sizes.clone(),
            data: data.collect::<Result<_>>()?,
        })
    }
    /// Rounds to a tensor of `dtype`.
    pub(super) fn tensor(&self, dtype: DType) -> Result<Tensor> {
        let mut t = Tensor::zeros(dtype, &self.sizes)?;
        for (k, v) in self.data.iter().enumerate() {
            t.set(k, Scalar::Float(*v).convert(dtype))?;
        }
        Ok(t)
    }
}

impl<'a> Call<'a> {
    pub(super) fn arg(&self, k: usize) -> &'a Arg {
        self.args.get(k).unwrap_or(&Arg::None)
    }

    fn wrong(&self, k: usize, what: &str) -> Error {
        Error::input(format!("argument {k} is no {what}: {:?}", self.arg(k)))
    }

    fn value(&self, v: ValueId) -> Result<&'a Tensor> {
        self.values[v.index()].tensor()
    }

    /// Returns a tensor; `None` when the argument is. Fails on other arguments.
    pub(super) fn opt_tensor(&self, k: usize) -> Result<Option<&'a Tensor>> {
        match self.arg(k) {
            Arg::None => Ok(None),
            Arg::Value(v) => self.value(*v).map(Some),
            _ => Err(self.wrong(k, "tensor")),
        }
    }

    pub(super) fn tensor(&self, k: usize) -> Result<&'a Tensor> {
        self.opt_tensor(k)?.ok_or_else(|| self.wrong(k, "tensor"))
    }

    pub(super) fn floats(&self, k: usize) -> Result<Floats> {
        Floats::of(self.tensor(k)?)
    }

    pub(super) fn opt_floats(&self, k: usize) -> Result<Option<Floats>> {
        self.opt_tensor(k)?.map(Floats::of).transpose()
    }

    /// Returns a list of tensors, of which some may be `None` (the indices of `index`).
    pub(super) fn tensors(&self, k: usize) -> Result<Vec<Option<&'a Tensor>>> {
        match self.arg(k) {
            Arg::Values(vs) => vs
                .iter()
                .map(|v| v.map(|v| self.value(v)).transpose())
                .collect(),
            _ => Err(self.wrong(k, "list of tensors")),
        }
    }

    /// Returns a number; `None` when the argument is.
    pub(super) fn opt_scalar(&self, k: usize) -> Result<Option<Scalar>> {
        Ok(Some(match self.arg(k) {
            Arg::None => return Ok(None),
            Arg::Int(e) => Scalar::Int(size(&self.g.exprs, *e, self.symbols)?),
            Arg::Float(f) => Scalar::Float(*f),
            Arg::Bool(b) => Scalar::Bool(*b),
            Arg::Value(v) => match &self.values[v.index()] {
                Value::Scalar(s) => *s,
                // Overloads for scalars accept tensors of one element.
                Value::Tensor(t) if t.numel() == 1 => t.get(0)?,
                _ => return Err(self.wrong(k, "number")),
            },
            _ => return Err(self.wrong(k, "number")),
        }))
    }

    /// Returns a number as a float, or `default` when the argument is absent; `int` and `bool`
    /// likewise.
    pub(super) fn float(&self, k: usize, default: f64) -> Result<f64> {
        Ok(self.opt_scalar(k)?.map_or(default, |s| s.as_f64()))
    }

    pub(super) fn int(&self, k: usize, default: i64) -> Result<i64> {
        Ok(self.opt_scalar(k)?.map_or(default, |s| s.as_i64()))
    }

    pub(super) fn bool(&self, k: usize, default: bool) -> Result<bool> {
        Ok(self.opt_scalar(k)?.map_or(default, |s| s.as_bool()))
    }

    /// Returns a list of integers. A lone integer is a list of one, as in PyTorch's `int[1]`.
    pub(super) fn opt_ints(&self, k: usize) -> Result<Option<Vec<i64>>> {
        match self.arg(k) {
            Arg::None => Ok(None),
            Arg::Ints(es) => (es.iter())
                .map(|e| size(&self.g.exprs, *e, self.symbols))
                .collect::<Result<_>>()
                .map(Some),
            Arg::Int(_) => Ok(Some(vec![self.int(k, 0)?])),
            _ => Err(self.wrong(k, "list of integers")),
        }
    }

    pub(super) fn ints(&self, k: usize) -> Result<Vec<i64>> {
        Ok(self.opt_ints(k)?.unwrap_or_default())
    }

    /// Returns one entry per dimension: a single integer serves all `n`, an absent list means
    /// `default`.
    pub(super) fn per_dim(&self, k: usize, n: usize, default: i64) -> Result<Vec<i64>> {
        let v = self.ints(k)?;
        match v.len() {
            0 => Ok(vec![default; n]),
            1 => Ok(vec![v[0]; n]),
            m if m == n => Ok(v),
            _ => Err(self.wrong(k, "list of that length")),
        }
    }

    /// Returns a string, empty when the argument is absent.
    pub(super) fn str(&self, k: usize) -> &'a str {
        match self.arg(k) {
            Arg::Str(s) => s,
            _ => "",
        }
    }

    /// Returns a dimension of a tensor of `rank`, counted from zero. Scalars accept dimension 0 and
    /// -1, which they do not have.
    pub(super) fn dim(&self, k: usize, rank: usize) -> Result<usize> {
        wrap(self.int(k, 0)?, rank)
    }

    /// Returns a dimension of `x`, which is no scalar, and its size.
    pub(super) fn axis(&self, k: usize, x: &Tensor) -> Result<(usize, i64)> {
        let d = self.dim(k, x.rank())?;
        let n = x.sizes.get(d).copied();
        Ok((d, n.ok_or_else(|| Error::input("a dimension of a scalar"))?))
    }

    /// Returns the dimensions to reduce: none or an empty list means all.
    pub(super) fn dims(&self, k: usize, rank: usize) -> Result<Vec<usize>> {
        match self.opt_ints(k)? {
            None => Ok((0..rank).collect()),
            Some(v) if v.is_empty() => Ok((0..rank).collect()),
            // Scalars accept dimension 0 and -1, which they do not have.
            Some(v) if rank == 0 => v
                .into_iter()
                .try_for_each(|d| wrap(d, 0).map(|_| ()))
                .map(|()| Vec::new()),
            Some(v) => v.into_iter().map(|d| wrap(d, rank)).collect(),
        }
    }

    /// Returns the dtype and sizes that the graph declares for result `k`.
    pub(super) fn out(&self, k: usize) -> Result<(DType, &'a [i64])> {
        match self.outs.get(k) {
            Some(Some((d, s))) => Ok((*d, s)),
            _ => Err(Error::input(format!("result {k} is no tensor"))),
        }
    }

    /// Returns the dtype of result `k`, which must be declared with `sizes`: those that the
    /// operator gives. A definition derives them from the operands, and has them compared here
    /// before anything is computed or allocated.
    /// The dtype is taken from the declaration and not derived again.
    pub(super) fn given(&self, k: usize, sizes: &[i64]) -> Result<DType> {
        let (dtype, declared) = self.out(k)?;
        same(dtype, sizes, dtype, declared)?;
        Ok(dtype)
    }

    /// Builds result `k` of these sizes and the declared dtype; its elements are `f` of their
    /// coordinates.
    pub(super) fn build(
        &self,
        k: usize,
        sizes: &[i64],
        mut f: impl FnMut(&[i64]) -> Result<Scalar>,
    ) -> Result<Tensor> {
        let dtype = self.given(k, sizes)?;
        let mut t = Tensor::zeros(dtype, sizes)?;
        for (i, at) in points(sizes).enumerate() {
            t.set(i, f(&at)?.convert(dtype))?;
        }
        Ok(t)
    }

    /// Builds the only result from floats.
    pub(super) fn floats_of(
        &self,
        sizes: &[i64],
        mut f: impl FnMut(&[i64]) -> Result<f64>,
    ) -> Result<Vec<Tensor>> {
        Ok(vec![self.build(0, sizes, |at| f(at).map(Scalar::Float))?])
    }
}

/// Checks that a result has the dtype and sizes that it is declared with.
pub(super) fn same(dtype: DType, sizes: &[i64], declared: DType, dims: &[i64]) -> Result<()> {
    if dtype == declared && sizes == dims {
        Ok(())
    } else {
        Err(Error::input(format!(
            "gives {dtype}{sizes:?}, declared as {declared}{dims:?}"
        )))
    }
}

/// Returns a dimension counted from zero; negative ones count from the end. A scalar is treated
/// as if it had one dimension.
pub(super) fn wrap(d: i64, rank: usize) -> Result<usize> {
    let n = rank.max(1) as i64;
    let w = if d < 0 { d + n } else { d };
    if !(0..n).contains(&w) {
        return Err(Error::input(format!(
            "dimension {d} of a tensor of rank {rank}"
        )));
    }
    Ok(w as usize)
}
