//! Programs for some sizes of a graph with symbolic sizes on a GPU.
//!
//! Tiles, split sums and the choice of libraries follow from known sizes, and vector loads from rows
//! that start at multiples of 16 bytes. So such a graph becomes up to three programs. A call runs
//! the first one whose checks its sizes pass.
//!
//! ```text
//! arguments --[all sizes are those of the traced call]----> every size is a number
//!           --[sizes that rows are as long as are near]---> s0 is 16*t, where t is from 65 to 256
//!           '--else---------------------------------------> all sizes
//! ```
//!
//! A size is *near* if it is a multiple of 16 bytes as the traced one is (where that has rows start at such multiples), and is
//! between a quarter of the next power of two and that power. So rows are loaded by vectors, and programs hold them
//! whole. The second program is there if the graph has rows whose lengths are symbolic.

use crate::fx::{Imported, Source};
use crate::host::shim::Shims;
use inrush_expr::{Expr, Exprs, Sym, SymKind, SymMap};
use inrush_graph::{InputKind, Type};
use pyo3::prelude::*;
use serde::{Deserialize, Serialize};

/// Elements that one load of 16 bytes brings at most, of dtypes of two bytes and more.
const LANES: i64 = 8;
/// Traced sizes of which others are near. Programs hold no longer rows.
const HELD: i64 = 16384;

/// A condition on a size.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
enum Test {
    Is(i64),
    Near { factor: i64, least: i64, most: i64 },
}

impl Test {
    fn holds(self, n: i64) -> bool {
        match self {
            Test::Is(value) => n == value,
            Test::Near {
                factor,
                least,
                most,
            } => (least..=most).contains(&n) && n.checked_rem(factor) == Some(0),
        }
    }
}

/// A condition on a size of an argument.
#[derive(Copy, Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Check {
    /// The position of the argument.
    input: usize,
    /// The dimension of a tensor; `None` for an integer argument.
    dim: Option<usize>,
    test: Test,
}

impl Check {
    /// Returns true if the argument passes. `argument` gives arguments by position.
    fn holds<'py>(
        &self,
        shims: &Shims,
        argument: &dyn Fn(usize) -> Option<Bound<'py, PyAny>>,
    ) -> bool {
        let Some(object) = argument(self.input) else {
            return false;
        };
        match self.dim {
            None => object.extract().is_ok_and(|n| self.test.holds(n)),
            Some(dim) => shims.handle(&object).is_some_and(|h| {
                // SAFETY: `object` holds the tensor.
                let shape = unsafe { shims.shape(h) };
                shape.is_ok_and(|(sizes, _)| sizes.get(dim).is_some_and(|n| self.test.holds(*n)))
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

/// Returns the checks of the program for the traced sizes. Empty where the graph has no symbolic
/// sizes, where the arguments do not determine them, and where it has subgraphs, which choose for
/// themselves.
pub fn known(imported: &Imported) -> Vec<Check> {
    let ex = &imported.graph.exprs;
    let subgraphs = |s: &Source| matches!(s, Source::Object(_));
    if imported.sources.values().any(subgraphs) {
        return Vec::new();
    }
    let mut found: Vec<(Expr, Check)> = Vec::new();
    for (e, input, dim) in arguments(imported) {
        let traced = ex.as_int(e).is_none().then(|| value(ex, e)).flatten();
        if let Some(value) = traced
            && !found.iter().any(|(known, _)| *known == e)
        {
            let test = Test::Is(value);
            found.push((e, Check { input, dim, test }));
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

/// Returns the sizes of arguments, with position and dimension.
fn arguments(imported: &Imported) -> Vec<(Expr, usize, Option<usize>)> {
    let mut out = Vec::new();
    for i in &imported.graph.inputs {
        let InputKind::User { index } = i.kind else {
            continue;
        };
        match &imported.graph.value(i.value).ty {
            Type::Tensor(t) => {
                out.extend((t.sizes.iter().enumerate()).map(|(d, e)| (*e, index, Some(d))));
            }
            Type::Int(e) => out.push((*e, index, None)),
            _ => {}
        }
    }
    out
}

/// A size for which a program is made: a factor times a symbol of its own.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Near {
    /// The symbol of the size.
    pub name: String,
    pub factor: i64,
    /// Bounds of the size.
    pub least: i64,
    pub most: i64,
}

impl Near {
    /// Returns what is near to a size that is a multiple of `factor`.
    fn new(name: String, size: i64, factor: i64) -> Near {
        let power = (size.clamp(1, HELD) as u64).next_power_of_two() as i64;
        let (least, most) = match size <= HELD {
            true => (power / 4 + 1, power),
            false => (1, i64::MAX),
        };
        Near {
            name,
            factor,
            least,
            most,
        }
    }

    /// Returns the same within further bounds of the size.
    pub fn within(&self, least: i64, most: i64) -> Near {
        Near {
            least: self.least.max(least),
            most: self.most.min(most),
            ..self.clone()
        }
    }

    /// Bounds of the symbol that is the size by its factor.
    pub fn part(&self) -> (i64, i64) {
        let least = self
            .least
            .unsigned_abs()
            .div_ceil(self.factor.unsigned_abs());
        let most = match self.most {
            i64::MAX => i64::MAX,
            n => n / self.factor,
        };
        (least.cast_signed(), most)
    }
}

/// Returns the sizes that rows are as long as, of which others may be near, and the checks of a call. Sizes are multiples where rows
/// would not start at multiples of 16 bytes otherwise. Empty if no size would be known better than in the program for all sizes.
pub fn near(imported: &Imported) -> (Vec<Near>, Vec<Check>) {
    let ex = &imported.graph.exprs;
    let mut strides: Vec<Expr> = Vec::new();
    for v in &imported.graph.values {
        if let Type::Tensor(t) = &v.ty {
            strides.extend(t.strides.iter().filter(|e| ex.as_int(**e).is_none()));
        }
    }
    strides.sort();
    strides.dedup();
    // The length of rows comes before products of it and of sizes further out.
    strides.sort_by_key(|e| ex.hint(*e));
    let sizes = arguments(imported);
    let (mut found, mut checks) = (Vec::new(), Vec::new());
    let fork = ex.fork();
    let mut scaled = SymMap::default();
    let starts_whole = |e: Expr, scaled: &SymMap| {
        fork.is_int(fork.modulo(fork.subst(e, scaled), fork.int(LANES)), 0)
    };
    for e in &strides {
        for s in ex.free_syms(*e) {
            // Integer arguments bind whole symbols only.
            let at = (sizes.iter()).find(|(e, _, dim)| dim.is_some() && ex.as_sym(*e) == Some(s));
            let (Some((_, input, dim)), None, Some(size)) = (at, scaled.get(s), hint(ex, s)) else {
                continue;
            };
            let scale = |factor: i64| {
                let near = Near::new(ex.sym_info(s).name, size, factor);
                let (least, most) = near.part();
                let part = fork.size_sym(&part_of(&near.name, factor), least, most);
                (near, fork.mul(fork.int(factor), fork.sym_expr(part)))
            };
            // A multiple is asked for only where some rows then start whole that would not otherwise.
            let helps = |factor: i64| {
                let mut with = scaled.clone();
                with.insert(s, scale(factor).1);
                let gains = |e: &Expr| !starts_whole(*e, &scaled) && starts_whole(*e, &with);
                size % factor == 0 && strides.iter().any(gains)
            };
            let factor = match size {
                _ if size <= 0 => continue,
                _ if helps(2 * LANES) => 2 * LANES,
                _ if helps(LANES) => LANES,
                _ => 1,
            };
            let (near, part) = scale(factor);
            if factor == 1 && near.most == i64::MAX {
                continue;
            }
            scaled.insert(s, part);
            let test = Test::Near {
                factor,
                least: near.least,
                most: near.most,
            };
            checks.push(Check {
                input: *input,
                dim: *dim,
                test,
            });
            found.push(near);
        }
    }
    (found, checks)
}

/// Returns the name of the symbol that is a size by its factor.
pub fn part_of(name: &str, factor: i64) -> String {
    format!("{name}_by_{factor}")
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
