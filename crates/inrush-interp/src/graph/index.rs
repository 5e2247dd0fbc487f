//! Gathers and scatters.
//!
//! Checks follow eager: `index` and `index_put` accept negative indices and count them from the
//! end; `gather`, `scatter`, `index_select` and `embedding` refuse them. An index out of range is
//! an error in all of them.
//!
//! Writes happen in row-major order of the index, so the last of several writes to one element
//! stays. PyTorch leaves that order open.

use super::call::Call;
use super::{Eval, broadcast, broadcast_position, broadcasts, domain, points, position};
use crate::tensor::Tensor;
use inrush_base::{DType, Error, Result, Scalar};
use inrush_loops::{ScalarOp, eval};

pub(super) const TABLE: &[(&str, Eval)] = &[
    ("index.Tensor _unsafe_index.Tensor", |c| {
        let x = c.tensor(0)?;
        let pick = Picker::new(x, c.tensors(1)?)?;
        let out = c.build(0, &pick.sizes(), |at| x.get(pick.position(at)?));
        Ok(vec![out?])
    }),
    ("index_put", |c| {
        let x = c.tensor(0)?;
        let pick = Picker::new(x, c.tensors(1)?)?;
        let values = c.tensor(2)?;
        let accumulate = c.bool(3, false)?;
        let d = domain(x.dtype);
        broadcasts(&values.sizes, &pick.sizes())?;
        // Sums stay in `f64` and are rounded once, at the end.
        let mut wide = x.scalars()?;
        for at in points(&pick.sizes()) {
            let p = pick.position(&at)?;
            let v = values.get(broadcast_position(&values.sizes, &at)?)?;
            wide[p] = match (accumulate, d) {
                (false, _) => v,
                // Booleans accumulate by or.
                (true, DType::Bool) => eval::op(ScalarOp::Or, d, &[wide[p], v])?,
                (true, _) => eval::op(ScalarOp::Add, d, &[wide[p], v])?,
            };
        }
        Ok(vec![Tensor::from_scalars(x.dtype, &x.sizes, &wide)?])
    }),
    ("index_select", |c| {
        let (x, index) = (c.tensor(0)?, c.tensor(2)?);
        let d = c.dim(1, x.rank())?;
        let mut sizes = x.sizes.clone();
        // A scalar has no dimension to select from, and its result is a scalar.
        if let Some(n) = sizes.get_mut(d) {
            *n = index.numel() as i64;
        }
        if index.rank() > 1 {
            return Err(Error::input("an index that is no vector"));
        }
        let out = c.build(0, &sizes, |at| {
            // Element `at[d]` of the vector of indices; an index that is a scalar has one
            // element.
            let i = index.get(at.get(d).map_or(0, |i| *i as usize))?;
            x.get(replaced(x, at, d, i)?)
        });
        Ok(vec![out?])
    }),
    ("embedding", |c| {
        let (weight, index) = (c.tensor(0)?, c.tensor(1)?);
        let &[rows, columns] = weight.sizes.as_slice() else {
            return Err(Error::input("a weight that is no matrix"));
        };
        let sizes = [index.sizes.as_slice(), &[columns]].concat();
        let out = c.build(0, &sizes, |at| {
            let (row, col) = at.split_at(index.rank());
            let i = index.get(position(&index.sizes, row)?)?.as_i64();
            let i = checked(i, rows, false)?;
            weight.get(position(&weight.sizes, &[i, col[0]])?)
        });
        Ok(vec![out?])
    }),
    ("gather", |c| {
        let (x, index) = (c.tensor(0)?, c.tensor(2)?);
        let d = c.dim(1, x.rank())?;
        // `index` may be smaller than `x` in the other dimensions: the result has its sizes.
        let out = c.build(0, &index.sizes, |at| {
            let i = index.get(position(&index.sizes, at)?)?;
            x.get(replaced(x, at, d, i)?)
        });
        Ok(vec![out?])
    }),
    ("scatter.src scatter.value", |c| scattered(c, None)),
    ("scatter_add", |c| scattered(c, Some(ScalarOp::Add))),
];

/// Checks an index and returns it; with `wrap`, negative ones count from the end.
fn checked(i: i64, n: i64, wrap: bool) -> Result<i64> {
    let w = if wrap && i < 0 { i + n } else { i };
    if !(0..n).contains(&w) {
        return Err(Error::input(format!(
            "index {i} is out of range for a dimension of size {n}"
        )));
    }
    Ok(w)
}

/// Returns the position in `x` of `at` with coordinate `d`, where there is one, replaced by an
/// index.
fn replaced(x: &Tensor, at: &[i64], d: usize, i: Scalar) -> Result<usize> {
    let mut at = at.to_vec();
    if let (Some(a), Some(n)) = (at.get_mut(d), x.sizes.get(d)) {
        *a = checked(i.as_i64(), *n, false)?;
    }
    position(&x.sizes, &at)
}

/// Writes the source, or one number, to the places that the index names along the dimension in
/// argument 1, and combines with what is there if an operation is given.
fn scattered(c: &Call, combine: Option<ScalarOp>) -> Result<Vec<Tensor>> {
    let (x, index) = (c.tensor(0)?, c.tensor(2)?);
    let d = c.dim(1, x.rank())?;
    // `scatter.value` has a number instead, which may come as a tensor without dimensions.
    let source = c.tensor(3).ok().filter(|t| t.rank() == index.rank());
    let mut wide = x.scalars()?;
    for at in points(&index.sizes) {
        let i = index.get(position(&index.sizes, &at)?)?;
        let p = replaced(x, &at, d, i)?;
        let v = match source {
            Some(s) => s.get(position(&s.sizes, &at)?)?,
            None => c.opt_scalar(3)?.unwrap_or(Scalar::Int(0)),
        };
        let v = v.convert(domain(x.dtype));
        wide[p] = match combine {
            None => v,
            Some(o) => eval::op(o, domain(x.dtype), &[wide[p], v])?,
        };
    }
    Ok(vec![Tensor::from_scalars(x.dtype, &x.sizes, &wide)?])
}

/// Advanced indexing. Index tensors are broadcast together and replace the dimensions that they
/// index. Their result dimensions come first, unless the indexed dimensions are adjacent: then they
/// stay in place.
/// For `x[:, i, j]` with `i` of sizes `[2, 1]` and `j` of `[3]`, the common sizes `[2, 3]` stand
/// in place of dimensions 1 and 2; for `x[i, :, j]` they come first.
struct Picker<'a> {
    x: &'a Tensor,
    /// One entry a dimension of `x`.
    index: Vec<Option<&'a Tensor>>,
    /// Broadcast sizes of the index tensors, and where they stand in the result.
    common: Vec<i64>,
    place: usize,
}

impl<'a> Picker<'a> {
    /// Masks are refused, as their number of true elements decides a size.
    fn new(x: &'a Tensor, mut index: Vec<Option<&'a Tensor>>) -> Result<Picker<'a>> {
        if index.iter().flatten().any(|t| !t.dtype.is_int()) {
            return Err(Error::unsupported("masks as indices"));
        }
        if index.len() > x.rank() {
            return Err(Error::input("more indices than dimensions"));
        }
        // Dimensions without an index are taken whole.
        index.resize(x.rank(), None);
        let common = (index.iter().flatten())
            .try_fold(Vec::new(), |sizes, t| broadcast(&sizes, &t.sizes))?;
        let at: Vec<usize> = (0..x.rank()).filter(|d| index[*d].is_some()).collect();
        let neighbours = at.windows(2).all(|w| w[1] == w[0] + 1);
        let place = match (neighbours, at.first()) {
            (true, Some(first)) => *first,
            _ => 0,
        };
        Ok(Picker {
            x,
            index,
            common,
            place,
        })
    }

    /// Returns the sizes of the result.
    fn sizes(&self) -> Vec<i64> {
        let rest = (0..self.x.rank()).filter(|d| self.index[*d].is_none());
        let mut out: Vec<i64> = rest.map(|d| self.x.sizes[d]).collect();
        out.splice(self.place..self.place, self.common.iter().copied());
        out
    }

    /// Returns the position in `x` of the element at `at` of the result.
    fn position(&self, at: &[i64]) -> Result<usize> {
        let end = self.place + self.common.len();
        let picked = &at[self.place..end];
        let mut rest = at[..self.place].iter().chain(&at[end..]);
        let mut from = Vec::with_capacity(self.x.rank());
        for (d, t) in self.index.iter().enumerate() {
            from.push(match t {
                Some(t) => {
                    let i = t.get(broadcast_position(&t.sizes, picked)?)?.as_i64();
                    checked(i, self.x.sizes[d], true)?
                }
                None => *rest.next().unwrap_or(&0),
            });
        }
        position(&self.x.sizes, &from)
    }
}
