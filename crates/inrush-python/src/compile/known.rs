//! The program for the sizes of the traced call.
//!
//! A graph with symbolic sizes on a GPU becomes two programs: one for all sizes, and one for those
//! of the call that was traced, in which every size is a number. Tiles, split sums and the choice of
//! libraries follow from known sizes. A call compares its sizes with the traced ones, and runs the
//! program that fits.
//!
//! ```text
//! arguments --[Check] all hold--> program of known sizes
//!           '--else-------------> program of all sizes
//! ```

use crate::fx::{Imported, Source};
use crate::host::shim::Shims;
use inrush_expr::{Expr, Exprs, Sym, SymKind};
use inrush_graph::{InputKind, Type};
use pyo3::prelude::*;
use serde::{Deserialize, Serialize};

/// A number that an argument must have.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Check {
    /// The position of the argument.
    input: usize,
    /// The dimension of a tensor; `None` for an integer argument.
    dim: Option<usize>,
    value: i64,
}

impl Check {
    /// Returns true if the argument has the number. `argument` gives arguments by position.
    fn holds<'py>(
        &self,
        shims: &Shims,
        argument: &dyn Fn(usize) -> Option<Bound<'py, PyAny>>,
    ) -> bool {
        let Some(object) = argument(self.input) else {
            return false;
        };
        match self.dim {
            None => object.extract::<i64>().is_ok_and(|n| n == self.value),
            Some(dim) => shims.handle(&object).is_some_and(|h| {
                // SAFETY: `object` holds the tensor.
                let shape = unsafe { shims.shape(h) };
                shape.is_ok_and(|(sizes, _)| sizes.get(dim) == Some(&self.value))
            }),
        }
    }
}

/// Returns true if all checks hold for a call's arguments.
pub fn fits<'py>(
    checks: &[Check],
    shims: &Shims,
    argument: &dyn Fn(usize) -> Option<Bound<'py, PyAny>>,
) -> bool {
    checks.iter().all(|c| c.holds(shims, argument))
}

/// Returns what a call is compared by. Empty where the graph has no symbolic sizes, where the
/// arguments do not determine them, and where it has subgraphs, which choose for themselves.
pub fn checks(imported: &Imported) -> Vec<Check> {
    let ex = &imported.graph.exprs;
    let subgraphs = |s: &Source| matches!(s, Source::Object(_));
    if imported.sources.values().any(subgraphs) {
        return Vec::new();
    }
    let mut found: Vec<(Expr, Check)> = Vec::new();
    let mut note = |e: Expr, input: usize, dim: Option<usize>| {
        let traced = ex.as_int(e).is_none().then(|| value(ex, e)).flatten();
        if let Some(value) = traced
            && !found.iter().any(|(known, _)| *known == e)
        {
            found.push((e, Check { input, dim, value }));
        }
    };
    for i in &imported.graph.inputs {
        let InputKind::User { index } = i.kind else {
            continue;
        };
        match &imported.graph.value(i.value).ty {
            Type::Tensor(t) => {
                (t.sizes.iter().enumerate()).for_each(|(d, e)| note(*e, index, Some(d)))
            }
            Type::Int(e) => note(*e, index, None),
            _ => {}
        }
    }
    let determined = |s: Sym| {
        let by = |e: Expr| {
            ex.affine(e, &[s]).is_some_and(|(c, rest)| {
                ex.as_int(c[0]).is_some_and(|c| c != 0) && ex.as_int(rest).is_some()
            })
        };
        found.iter().any(|(e, _)| by(*e))
    };
    let sizes = ex.symbols().into_iter().filter(|s| hint(ex, *s).is_some());
    if !sizes.into_iter().all(determined) {
        return Vec::new();
    }
    found.into_iter().map(|(_, c)| c).collect()
}

/// Returns the traced value of a symbol of sizes.
fn hint(ex: &Exprs, s: Sym) -> Option<i64> {
    let info = ex.sym_info(s);
    (info.kind == SymKind::Size).then_some(info.hint).flatten()
}

/// Returns the traced value of an expression of sizes.
fn value(ex: &Exprs, e: Expr) -> Option<i64> {
    ex.eval(e, &|s| hint(ex, s)).ok()
}
