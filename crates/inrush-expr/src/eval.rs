//! Evaluation with checked arithmetic.
//!
//! For compile time only: calls evaluate size arithmetic that was written out as a list of lines.

use crate::{Expr, Exprs, Node, Sym};
use inrush_base::{Error, Result};

impl Exprs {
    /// Returns the value of `e`.
    ///
    /// # Errors
    ///
    /// A symbol without a value, a division by zero, a result beyond `i64`.
    pub fn eval(&self, e: Expr, value: &dyn Fn(Sym) -> Option<i64>) -> Result<i64> {
        let overflow = || Error::input(format!("`{}` does not fit a 64-bit integer", self.show(e)));
        match self.node(e) {
            Node::Const(v) => Ok(v),
            Node::Sym(s) => value(s).ok_or_else(|| {
                Error::input(format!("the size `{}` has no value", self.sym_info(s).name))
            }),
            Node::Sum { base, terms } => {
                let mut acc = base;
                for (c, t) in terms {
                    let v = self.eval(t, value)?.checked_mul(c).ok_or_else(overflow)?;
                    acc = acc.checked_add(v).ok_or_else(overflow)?;
                }
                Ok(acc)
            }
            Node::Product(f) => {
                let mut acc = 1i64;
                for t in f {
                    acc = acc.checked_mul(self.eval(t, value)?).ok_or_else(overflow)?;
                }
                Ok(acc)
            }
            Node::FloorDiv(a, b) => floor_div(self.eval(a, value)?, self.eval(b, value)?)
                .ok_or_else(|| Error::input(format!("division by zero in `{}`", self.show(e)))),
            Node::Mod(a, b) => {
                let (a, b) = (self.eval(a, value)?, self.eval(b, value)?);
                floor_div(a, b)
                    // The remainder is smaller than the divisor, so it is right even if the product
                    // wraps.
                    .map(|q| a.wrapping_sub(q.wrapping_mul(b)))
                    .ok_or_else(|| Error::input(format!("division by zero in `{}`", self.show(e))))
            }
            Node::Min(a, b) => Ok(self.eval(a, value)?.min(self.eval(b, value)?)),
            Node::Max(a, b) => Ok(self.eval(a, value)?.max(self.eval(b, value)?)),
        }
    }
}

/// Returns the floor of `a / b`; `None` for a zero divisor or a quotient beyond `i64`.
pub(crate) fn floor_div(a: i64, b: i64) -> Option<i64> {
    let q = a.checked_div(b)?;
    Some(if a % b != 0 && ((a < 0) != (b < 0)) {
        q - 1
    } else {
        q
    })
}
