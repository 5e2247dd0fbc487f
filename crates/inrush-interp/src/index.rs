//! Values of symbols, bound from input shapes, and index expressions compiled for evaluation at
//! every point of a nest.
//!
//! A size expression is evaluated a few times, straight from the interner. An index expression is
//! evaluated at each point, so `Index` is compiled from it once: sizes are folded to constants,
//! loop indices become positions in a list of slots, and the interner, which is in a cell, is not
//! touched again.

use inrush_base::{Error, Result};
use inrush_expr::{Expr, Exprs, Node, Sym};
use rustc_hash::FxHashMap;

/// Values of the size symbols.
pub type Symbols = FxHashMap<Sym, i64>;

/// Binds symbols from the sizes of an input. Each dimension determines at most one new symbol.
/// [`check`] compares the sizes once all symbols are bound.
/// A dimension `2*s + 1` of size 7 gives `s = 3`. Dimensions that name no new symbol, or several,
/// are passed over; a later one may determine them.
pub fn bind(
    exprs: &Exprs,
    declared: &[Expr],
    actual: &[i64],
    symbols: &mut Symbols,
    what: &str,
) -> Result<()> {
    if declared.len() != actual.len() {
        return Err(Error::input(format!(
            "{what} has {} dimensions, expected {}",
            actual.len(),
            declared.len()
        )));
    }
    for (e, v) in declared.iter().zip(actual) {
        // A size that `k` does not divide is not reported here: `check` shows the whole shape.
        let Some((s, v)) = solve(exprs, *e, *v, symbols) else {
            continue;
        };
        let info = exprs.sym_info(s);
        if v < info.lower || v > info.upper {
            let name = info.name;
            return Err(Error::input(format!(
                "{what}: {name} is {v}, outside its range"
            )));
        }
        symbols.insert(s, v);
    }
    Ok(())
}

/// Returns the one unknown symbol of `e`, from `e == v` where `e` is `k*s + c`.
/// `None` if `e` has no or several unknown symbols, is not affine in it, or has no integer
/// solution.
fn solve(exprs: &Exprs, e: Expr, v: i64, symbols: &Symbols) -> Option<(Sym, i64)> {
    let mut unknown = exprs.free_syms(e);
    unknown.retain(|s| !symbols.contains_key(s));
    let &[s] = unknown.as_slice() else {
        return None;
    };
    let (coefs, rest) = exprs.affine(e, &[s])?;
    let k = size(exprs, coefs[0], symbols).ok()?;
    let left = v.checked_sub(size(exprs, rest, symbols).ok()?)?;
    // `checked_rem` is also `None` for `k = 0`, where any value would do.
    (left.checked_rem(k) == Some(0)).then(|| (s, left / k))
}

/// Checks that the declared sizes are the actual ones, once all symbols are bound.
pub fn check(
    exprs: &Exprs,
    declared: &[Expr],
    actual: &[i64],
    symbols: &Symbols,
    what: &str,
) -> Result<()> {
    let want = sizes(exprs, declared, symbols)?;
    if want != actual {
        return Err(Error::input(format!(
            "{what} has sizes {actual:?}, expected {want:?}"
        )));
    }
    Ok(())
}

/// Returns the values of `list`.
pub(crate) fn sizes(exprs: &Exprs, list: &[Expr], symbols: &Symbols) -> Result<Vec<i64>> {
    list.iter().map(|e| size(exprs, *e, symbols)).collect()
}

/// Returns the value of `e`.
/// Fails on a symbol without a value, a division by zero and an overflow.
pub(crate) fn size(exprs: &Exprs, e: Expr, symbols: &Symbols) -> Result<i64> {
    exprs.eval(e, &|s| symbols.get(&s).copied())
}

/// An index expression with sizes substituted and loop indices resolved to slots.
#[derive(Debug)]
pub(crate) enum Index {
    Const(i64),
    /// A loop index or indirect index: position in the list given to `eval`.
    Slot(usize),
    /// A constant, and coefficients with their terms.
    Sum(i64, Vec<(i64, Index)>),
    Product(Vec<Index>),
    FloorDiv(Box<[Index; 2]>),
    Mod(Box<[Index; 2]>),
    Min(Box<[Index; 2]>),
    Max(Box<[Index; 2]>),
}

impl Index {
    /// Compiles `e`; `slot` returns the slot of a loop index.
    pub(crate) fn new(
        exprs: &Exprs,
        e: Expr,
        symbols: &Symbols,
        slot: &dyn Fn(Sym) -> Option<usize>,
    ) -> Result<Index> {
        let go = |x: Expr| Index::new(exprs, x, symbols, slot);
        let pair = |a: Expr, b: Expr| Ok::<_, Error>(Box::new([go(a)?, go(b)?]));
        Ok(match exprs.node(e) {
            Node::Const(v) => Index::Const(v),
            Node::Sym(s) => match (slot(s), symbols.get(&s)) {
                // A slot hides a size symbol: indices change from point to point.
                (Some(k), _) => Index::Slot(k),
                (None, Some(v)) => Index::Const(*v),
                (None, None) => {
                    let name = exprs.sym_info(s).name;
                    return Err(Error::input(format!("`{name}` has no value")));
                }
            },
            Node::Sum { base, terms } => {
                let terms: Result<_> = terms.iter().map(|(c, t)| Ok((*c, go(*t)?))).collect();
                Index::Sum(base, terms?)
            }
            Node::Product(f) => Index::Product(f.iter().map(|t| go(*t)).collect::<Result<_>>()?),
            Node::FloorDiv(a, b) => Index::FloorDiv(pair(a, b)?),
            Node::Mod(a, b) => Index::Mod(pair(a, b)?),
            Node::Min(a, b) => Index::Min(pair(a, b)?),
            Node::Max(a, b) => Index::Max(pair(a, b)?),
        })
    }

    /// Returns the value; a division by zero or an overflow is an error.
    pub(crate) fn eval(&self, slots: &[i64]) -> Result<i64> {
        let overflow = || Error::input("an index does not fit a 64-bit integer");
        let both = |p: &[Index; 2]| Ok::<_, Error>((p[0].eval(slots)?, p[1].eval(slots)?));
        match self {
            Index::Const(v) => Ok(*v),
            Index::Slot(k) => Ok(slots[*k]),
            Index::Sum(base, terms) => terms.iter().try_fold(*base, |acc, (c, t)| {
                let v = t.eval(slots)?.checked_mul(*c).ok_or_else(overflow)?;
                acc.checked_add(v).ok_or_else(overflow)
            }),
            Index::Product(f) => f.iter().try_fold(1i64, |acc, t| {
                acc.checked_mul(t.eval(slots)?).ok_or_else(overflow)
            }),
            Index::FloorDiv(p) => {
                let (a, b) = both(p)?;
                floor_div(a, b)
            }
            Index::Mod(p) => {
                let (a, b) = both(p)?;
                // The remainder fits even where the product wraps.
                Ok(a.wrapping_sub(floor_div(a, b)?.wrapping_mul(b)))
            }
            Index::Min(p) => both(p).map(|(a, b)| a.min(b)),
            Index::Max(p) => both(p).map(|(a, b)| a.max(b)),
        }
    }
}

/// Returns the quotient rounded downwards, as Python's `//`; Rust's division rounds towards zero.
fn floor_div(a: i64, b: i64) -> Result<i64> {
    let q = a
        .checked_div(b)
        .ok_or_else(|| Error::input("an index divides by zero"))?;
    Ok(q - (a % b != 0 && (a < 0) != (b < 0)) as i64)
}
