//! Views that reorder, split, merge and broadcast dimensions.
//!
//! All are [`View`]s, so that none makes a loop. Reshapes are the only ones whose maps need
//! division:
//!
//! ```text
//! x: f32[2,6].view(3, 4)     y[i0,i1] reads x[(4 * i0 + i1) // 6, (4 * i0 + i1) % 6]
//! ```
//!
//! A reshape that splits or merges whole dimensions simplifies to an affine map. Properties say
//! which results share memory in eager (`Alias`) and which only may (`MayAlias`); the maps are the
//! same.

use crate::props::Prop;
use crate::view::{index, indices};
use crate::{Call, Meta, Route, Row, View};
use inrush_base::{Error, Result};
use inrush_expr::{Expr, Exprs};

/// A row that is a view; its types follow from the views' sizes.
pub(in crate::ops) const fn view(
    name: &'static str,
    schema: &'static str,
    f: fn(&Call) -> Result<Vec<View>>,
    example: &'static str,
) -> Row {
    Row {
        name,
        schema,
        meta: Meta::Route,
        route: Route::View(f),
        example,
        props: &[],
    }
}

/// `sizes` with a `-1` replaced by what makes the number of elements equal that of `from`.
/// Fails unless the products are proved equal: a reshape has no guard to fall back on.
pub(in crate::ops) fn infer_sizes(
    exprs: &Exprs,
    from: &[Expr],
    sizes: &[Expr],
) -> Result<Vec<Expr>> {
    let total = exprs.product(from.iter().copied());
    let mut out = sizes.to_vec();
    let hole = sizes.iter().position(|s| exprs.is_int(*s, -1));
    if let Some(k) = hole {
        let others = sizes.iter().enumerate().filter(|(d, _)| *d != k);
        let rest = exprs.product(others.map(|(_, s)| *s));
        out[k] = exprs.divide_exact(total, rest).ok_or_else(|| {
            Error::input(format!(
                "{} elements do not fill sizes {}",
                exprs.show(total),
                exprs.show_list(sizes)
            ))
        })?;
    }
    if !exprs.prove_eq(total, exprs.product(out.iter().copied())) {
        return Err(Error::input(format!(
            "sizes {} cannot be seen as {}",
            exprs.show_list(from),
            exprs.show_list(&out)
        )));
    }
    Ok(out)
}

/// Reshapes the first argument; `sizes` may have one -1.
fn reshape_to(c: &Call, sizes: &[Expr]) -> Result<Vec<View>> {
    let from = &c.viewed()?.sizes;
    let to = infer_sizes(c.exprs, from, sizes)?;
    Ok(vec![View::reshape(c.exprs, from, &to)])
}

/// Merges dimensions `start_dim..=end_dim`; a number becomes a vector of one.
fn flatten(c: &Call) -> Result<Vec<View>> {
    let t = c.viewed()?;
    let (first, last) = (c.dim("start_dim", t.rank())?, c.dim("end_dim", t.rank())?);
    // Dimension 0 of a number is accepted by `dim`, but there is nothing to merge.
    if t.rank() == 0 {
        return reshape_to(c, &[c.exprs.int(1)]);
    }
    if first > last {
        return Err(Error::input("flatten: start_dim comes after end_dim"));
    }
    let mut sizes = t.sizes[..first].to_vec();
    sizes.push(c.exprs.product(t.sizes[first..=last].iter().copied()));
    sizes.extend(&t.sizes[last + 1..]);
    reshape_to(c, &sizes)
}

/// Splits one dimension; one of the sizes may be -1.
fn unflatten(c: &Call) -> Result<Vec<View>> {
    let t = c.viewed()?;
    let d = c.dim("dim", t.rank())?;
    let inner = infer_sizes(c.exprs, &t.sizes[d..=d], c.ints("sizes")?)?;
    let mut sizes = t.sizes[..d].to_vec();
    sizes.extend(inner);
    sizes.extend(&t.sizes[d + 1..]);
    reshape_to(c, &sizes)
}

/// Result dimension `k` is source dimension `dims[k]`.
fn permute(c: &Call) -> Result<Vec<View>> {
    let t = c.viewed()?;
    let order = c.dims("dims", t.rank())?;
    if order.len() != t.rank() {
        return Err(c.unsupported("dims", "not a permutation"));
    }
    Ok(vec![View::permute(c.exprs, &t.sizes, &order)])
}

/// Dimensions `a` and `b` exchanged.
fn swap(c: &Call, a: &str, b: &str) -> Result<Vec<View>> {
    let t = c.viewed()?;
    let (a, b) = (c.dim(a, t.rank())?, c.dim(b, t.rank())?);
    let mut order: Vec<usize> = (0..t.rank()).collect();
    if !order.is_empty() {
        order.swap(a, b);
    }
    Ok(vec![View::permute(c.exprs, &t.sizes, &order)])
}

/// The last two dimensions exchanged; `t` allows fewer than two.
/// Serves `mH` and `adjoint` too: real numbers are their own conjugates.
fn transpose_last(c: &Call) -> Result<Vec<View>> {
    let t = c.viewed()?;
    let mut order: Vec<usize> = (0..t.rank()).collect();
    if let [.., a, b] = order.as_mut_slice() {
        std::mem::swap(a, b);
    }
    Ok(vec![View::permute(c.exprs, &t.sizes, &order)])
}

/// Dimensions that are not named keep their order in the places that are left.
fn movedim(c: &Call) -> Result<Vec<View>> {
    let t = c.viewed()?;
    let list = |name: &str| -> Result<Vec<usize>> {
        match c.arg(name)? {
            inrush_graph::Arg::Int(_) => Ok(vec![c.dim(name, t.rank())?]),
            _ => c.dims(name, t.rank()),
        }
    };
    let (from, to) = (list("source")?, list("destination")?);
    if from.len() != to.len() {
        return Err(Error::input(
            "movedim: source and destination differ in length",
        ));
    }
    let mut order = vec![usize::MAX; t.rank()];
    for (f, d) in from.iter().zip(&to) {
        // A number accepts dimension 0, which it does not have.
        if let Some(slot) = order.get_mut(*d) {
            *slot = *f;
        }
    }
    let mut rest = (0..t.rank()).filter(|d| !from.contains(d));
    for slot in &mut order {
        if *slot == usize::MAX {
            *slot = rest
                .next()
                .ok_or_else(|| Error::input("movedim: not a permutation"))?;
        }
    }
    Ok(vec![View::permute(c.exprs, &t.sizes, &order)])
}

/// `expand`: a size of -1 keeps the dimension.
fn expand(c: &Call) -> Result<Vec<View>> {
    let t = c.viewed()?;
    let mut sizes = c.ints("size")?.to_vec();
    let lead = sizes.len().saturating_sub(t.rank());
    for (d, s) in sizes.iter_mut().enumerate() {
        if c.exprs.is_int(*s, -1) {
            // `d - lead` wraps to a huge number for new dimensions, which have no source size to
            // keep.
            *s = *t
                .sizes
                .get(d.wrapping_sub(lead))
                .ok_or_else(|| Error::input("a new dimension cannot have size -1"))?;
        }
    }
    Ok(vec![View::expand(c.exprs, &t.sizes, &sizes)?])
}

/// Only the sizes of `other` are read.
fn expand_as(c: &Call) -> Result<Vec<View>> {
    let to = &c.tensor("other")?.sizes;
    Ok(vec![View::expand(c.exprs, &c.viewed()?.sizes, to)?])
}

/// Drops the dimensions of `which` that have size 1.
/// A symbolic size stays, even if it is 1 at a call.
fn squeeze(c: &Call, which: impl Fn(usize) -> bool) -> Result<Vec<View>> {
    let t = c.viewed()?;
    // Dimensions that are dropped are read at their only index, 0.
    let gone = |d: usize| which(d) && c.exprs.is_int(t.sizes[d], 1);
    let kept: Vec<usize> = (0..t.rank()).filter(|d| !gone(*d)).collect();
    let sizes: Vec<Expr> = kept.iter().map(|d| t.sizes[*d]).collect();
    let mut map = vec![c.exprs.int(0); t.rank()];
    for (k, d) in kept.iter().enumerate() {
        map[*d] = index(c.exprs, k, sizes[k]);
    }
    Ok(vec![View { sizes, map }])
}

fn squeeze_dim(c: &Call) -> Result<Vec<View>> {
    let d = c.dim("dim", c.viewed()?.rank())?;
    squeeze(c, |k| k == d)
}

fn squeeze_dims(c: &Call) -> Result<Vec<View>> {
    let dims = c.dims("dim", c.viewed()?.rank())?;
    squeeze(c, |k| dims.contains(&k))
}

/// Dimensions count to the rank of the result, so -1 is a new last one.
fn unsqueeze(c: &Call) -> Result<Vec<View>> {
    let t = c.viewed()?;
    let d = c.dim("dim", t.rank() + 1)?;
    let mut sizes = t.sizes.clone();
    sizes.insert(d, c.exprs.int(1));
    let mut map = indices(c.exprs, &sizes);
    map.remove(d);
    Ok(vec![View { sizes, map }])
}

/// Gathers the elements at strided positions of a row-major source; stage `normalize` makes the source row-major.
/// The furthest element must be proved to be inside the source.
fn as_strided(c: &Call) -> Result<Vec<View>> {
    let (e, t) = (c.exprs, c.viewed()?);
    let (sizes, strides) = (c.ints("size")?, c.ints("stride")?);
    if sizes.len() != strides.len() {
        return Err(Error::input(
            "as_strided: sizes and strides differ in length",
        ));
    }
    let offset = c.opt_int("storage_offset")?.unwrap_or(e.int(0));
    // Row-major position of the point that is read, and of the furthest one.
    let (mut linear, mut last) = (offset, offset);
    for (d, (size, stride)) in sizes.iter().zip(strides).enumerate() {
        linear = e.add(linear, e.mul(index(e, d, *size), *stride));
        last = e.add(last, e.mul(e.sub(*size, e.int(1)), *stride));
    }
    let nonnegative = strides.iter().all(|s| e.prove_nonneg(*s)) && e.prove_nonneg(offset);
    if !nonnegative || !e.prove_lt(last, t.numel(e)) {
        return Err(Error::unsupported(
            "as_strided that may reach outside the tensor",
        ));
    }
    Ok(vec![View {
        sizes: sizes.to_vec(),
        map: View::unravel(e, linear, &t.sizes),
    }])
}

pub const ROWS: &[Row] = &[
    view(
        "aten.view.default",
        "(Tensor(a) self, SymInt[] size) -> Tensor(a)",
        |c| reshape_to(c, c.ints("size")?),
        "(f32[2,6], [3,-1])",
    ).with(&[Prop::Alias]),
    view(
        "aten._unsafe_view.default",
        "(Tensor self, SymInt[] size) -> Tensor",
        |c| reshape_to(c, c.ints("size")?),
        "(f32[s0,6], [-1])",
    ).with(&[Prop::Alias]),
    view(
        "aten.reshape.default",
        "(Tensor(a) self, SymInt[] shape) -> Tensor(a)",
        |c| reshape_to(c, c.ints("shape")?),
        "(f32[2,3,4], [6,-1,2])",
    ).with(&[Prop::MayAlias]),
    view(
        "aten.view_as.default",
        "(Tensor(a) self, Tensor other) -> Tensor(a)",
        |c| reshape_to(c, &c.tensor("other")?.sizes),
        "(f32[2,6], f32[3,4])",
    ).with(&[Prop::Alias]),
    view(
        "aten.reshape_as.default",
        "(Tensor(a) self, Tensor other) -> Tensor(a)",
        |c| reshape_to(c, &c.tensor("other")?.sizes),
        "(f32[2,6], f32[12])",
    ).with(&[Prop::MayAlias]),
    view(
        "aten.ravel.default",
        "(Tensor(a) self) -> Tensor(a)",
        |c| reshape_to(c, &[c.exprs.int(-1)]),
        "(f32[2,6])",
    ).with(&[Prop::MayAlias]),
    view(
        "aten.flatten.using_ints",
        "(Tensor(a) self, int start_dim=0, int end_dim=-1) -> Tensor(a)",
        flatten,
        "(f32[2,3,4], 1)",
    ).with(&[Prop::MayAlias]),
    view(
        "aten.unflatten.int",
        "(Tensor(a) self, int dim, SymInt[] sizes) -> Tensor(a)",
        unflatten,
        "(f32[2,12], -1, [3,-1])",
    ).with(&[Prop::Alias]),
    view(
        "aten.permute.default",
        "(Tensor(a) self, int[] dims) -> Tensor(a)",
        permute,
        "(f32[2,3,4], [2,0,1])",
    ).with(&[Prop::Alias]),
    view(
        "aten.transpose.int",
        "(Tensor(a) self, int dim0, int dim1) -> Tensor(a)",
        |c| swap(c, "dim0", "dim1"),
        "(f32[2,3,4], 1, -1)",
    ).with(&[Prop::Alias]),
    view(
        "aten.swapaxes.default",
        "(Tensor(a) self, int axis0, int axis1) -> Tensor(a)",
        |c| swap(c, "axis0", "axis1"),
        "(f32[2,3,4], 0, 1)",
    ).with(&[Prop::Alias]),
    view(
        "aten.swapdims.default",
        "(Tensor(a) self, int dim0, int dim1) -> Tensor(a)",
        |c| swap(c, "dim0", "dim1"),
        "(f32[2,3,4], 0, 2)",
    ).with(&[Prop::Alias]),
    view(
        "aten.t.default",
        "(Tensor(a) self) -> Tensor(a)",
        transpose_last,
        "(f32[2,3])",
    ).with(&[Prop::Alias]),
    view(
        "aten.mT.default",
        "(Tensor(a) self) -> Tensor(a)",
        transpose_last,
        "(f32[2,3,4])",
    ).with(&[Prop::Alias]),
    view(
        "aten.mH.default",
        "(Tensor(a) self) -> Tensor(a)",
        transpose_last,
        "(f32[2,3,4])",
    ).with(&[Prop::Alias]),
    view(
        "aten.matrix_H.default",
        "(Tensor(a) self) -> Tensor(a)",
        transpose_last,
        "(f32[3,4])",
    ).with(&[Prop::Alias]),
    view(
        "aten.adjoint.default",
        "(Tensor(a) self) -> Tensor(a)",
        transpose_last,
        "(f32[2,3,4])",
    ).with(&[Prop::Alias]),
    view(
        "aten.numpy_T.default",
        "(Tensor(a) self) -> Tensor(a)",
        |c| {
            let sizes = &c.viewed()?.sizes;
            let order: Vec<usize> = (0..sizes.len()).rev().collect();
            Ok(vec![View::permute(c.exprs, sizes, &order)])
        },
        "(f32[2,3,4])",
    ).with(&[Prop::Alias]),
    view(
        "aten.movedim.int",
        "(Tensor(a) self, int source, int destination) -> Tensor(a)",
        movedim,
        "(f32[2,3,4], 0, -1)",
    ).with(&[Prop::Alias]),
    view(
        "aten.movedim.intlist",
        "(Tensor(a) self, int[] source, int[] destination) -> Tensor(a)",
        movedim,
        "(f32[2,3,4], [0,1], [1,2])",
    ).with(&[Prop::Alias]),
    view(
        "aten.expand.default",
        "(Tensor(a) self, SymInt[] size, *, bool implicit=False) -> Tensor(a)",
        expand,
        "(f32[3,1], [2,-1,4])",
    ).with(&[Prop::Alias]),
    view(
        "aten.expand_as.default",
        "(Tensor(a) self, Tensor other) -> Tensor(a)",
        expand_as,
        "(f32[3,1], f32[2,3,4])",
    ).with(&[Prop::Alias]),
    view(
        "aten.broadcast_to.default",
        "(Tensor(a) self, SymInt[] size) -> Tensor(a)",
        expand,
        "(f32[3,1], [3,5])",
    ).with(&[Prop::Alias]),
    view(
        "aten.squeeze.default",
        "(Tensor(a) self) -> Tensor(a)",
        |c| squeeze(c, |_| true),
        "(f32[1,3,1])",
    ).with(&[Prop::Alias]),
    view(
        "aten.squeeze.dim",
        "(Tensor(a) self, int dim) -> Tensor(a)",
        squeeze_dim,
        "(f32[1,3,1], -1)",
    ).with(&[Prop::Alias]),
    view(
        "aten.squeeze.dims",
        "(Tensor(a) self, int[] dim) -> Tensor(a)",
        squeeze_dims,
        "(f32[1,3,1], [0,1])",
    ).with(&[Prop::Alias]),
    view(
        "aten.unsqueeze.default",
        "(Tensor(a) self, int dim) -> Tensor(a)",
        unsqueeze,
        "(f32[2,3], -1)",
    ).with(&[Prop::Alias]),
    view(
        "aten.as_strided.default",
        "(Tensor(a) self, SymInt[] size, SymInt[] stride, SymInt? storage_offset=None) -> Tensor(a)",
        as_strided,
        "(f32[3,4], [2,3], [4,1], 1)",
    ).with(&[Prop::Restrides]),
];
