//! Views: the same elements under other coordinates.

use crate::{Call, Meta, Route, Row, View};
use inrush_base::{Error, Result};
use inrush_expr::{Expr, Exprs};

pub(super) const fn view(
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
    }
}

/// `sizes` with a `-1` replaced by what makes the number of elements equal that of `from`.
pub(super) fn infer_sizes(exprs: &Exprs, from: &[Expr], sizes: &[Expr]) -> Result<Vec<Expr>> {
    let total = exprs.product(from.iter().copied());
    let mut out = sizes.to_vec();
    let hole = sizes.iter().position(|s| exprs.is_int(*s, -1));
    if let Some(k) = hole {
        let rest = exprs.product(
            sizes
                .iter()
                .enumerate()
                .filter(|(d, _)| *d != k)
                .map(|(_, s)| *s),
        );
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

fn reshape(c: &Call, sizes: &str) -> Result<Vec<View>> {
    let from = &c.tensor("self")?.sizes;
    let to = infer_sizes(c.exprs, from, c.ints(sizes)?)?;
    Ok(vec![View::reshape(c.exprs, from, &to)])
}

fn permute(c: &Call) -> Result<Vec<View>> {
    let t = c.tensor("self")?;
    let order = c.dims("dims", t.rank())?;
    if order.len() != t.rank() {
        return Err(c.unsupported("dims", "not a permutation"));
    }
    Ok(vec![View::permute(c.exprs, &t.sizes, &order)])
}

pub const ROWS: &[Row] = &[
    view(
        "aten.view.default",
        "(Tensor(a) self, SymInt[] size) -> Tensor(a)",
        |c| reshape(c, "size"),
        "(f32[2,6], [3,-1])",
    ),
    view(
        "aten.permute.default",
        "(Tensor(a) self, int[] dims) -> Tensor(a)",
        permute,
        "(f32[2,3,4], [2,0,1])",
    ),
];
