//! Peephole pass: `1 + erf(x * sqrt(1/2))` and `1 + tanh(x)`, as gelu has them, become one vector function each.
//!
//! ```text
//! v1 = v0 * 0.70710678
//! v2 = erf(v1)                 ->      v3 = one_plus_erf(v0)
//! v3 = v2 + 1                          v1 and v2 only if others use them
//! ```
//!
//! The sum has its own function because it cancels: near -1 few digits of `erf` are left in `1 +
//! erf`.

use crate::approx::{ONE_PLUS_ERF, ONE_PLUS_TANH};
use crate::branches::Uses;
use inrush_base::DType;
use inrush_kernel::{Def, Item, Kernel, Role, ValId, Value};
use inrush_loops::ScalarOp;
use rustc_hash::{FxHashMap, FxHashSet};

#[derive(Default)]
pub(crate) struct Peephole {
    /// Sums inside of lanes loops: the function and its operand.
    sums: FxHashMap<ValId, (&'static str, ValId)>,
    /// Values that only such sums use: they are not written.
    unused: FxHashSet<ValId>,
}

impl Peephole {
    /// `uses` counts how often each value is used.
    pub(crate) fn find(kernel: &Kernel, uses: &Uses) -> Peephole {
        let mut out = Peephole::default();
        let has_function = |v: &Value| {
            let (erf, tanh) = (ScalarOp::Erf, ScalarOp::Tanh);
            matches!(&v.def, Def::Op { op, .. } if *op == erf || *op == tanh)
        };
        if !kernel.values.iter().any(has_function) {
            return out;
        }
        let mut seen = vec![false; kernel.values.len()];
        for items in [&kernel.head, &kernel.body] {
            out.visit(kernel, items, false, &mut seen);
        }
        let mut uses = uses.0.clone();
        let mut sums: Vec<ValId> = out.sums.keys().copied().collect();
        // The order of the map is that of hashes.
        sums.sort();
        for v in sums {
            let Some((function, _)) = operand(kernel, v) else {
                continue;
            };
            // A value goes with its last use: first the function, then what only it reads.
            out.let_go(function, &mut uses);
            if out.unused(function)
                && out.sums[&v].0 == ONE_PLUS_ERF
                && let Some(scaled) = kernel.value(function).def.operands().first()
            {
                out.let_go(*scaled, &mut uses);
            }
        }
        out
    }

    /// One use less.
    fn let_go(&mut self, v: ValId, uses: &mut [u32]) {
        uses[v.index()] -= 1;
        if uses[v.index()] == 0 {
            self.unused.insert(v);
        }
    }

    /// Collects the sums of `f32` values inside vector loops.
    fn visit(&mut self, kernel: &Kernel, items: &[Item], lanes: bool, seen: &mut [bool]) {
        for item in items {
            match item {
                Item::Loop(l) => {
                    let lanes = lanes || matches!(l.role, Role::Vector { .. });
                    self.visit(kernel, &l.body, lanes, seen);
                }
                // A value that several loops evaluate is one value.
                Item::Let(v) if std::mem::replace(&mut seen[v.index()], true) => {}
                Item::Let(v) if lanes && kernel.value(*v).dtype == DType::F32 => {
                    if let Some(sum) = sum(kernel, *v) {
                        self.sums.insert(*v, sum);
                    }
                }
                _ => {}
            }
        }
    }

    /// The function that gives `v`, and of what.
    pub(crate) fn sum(&self, v: ValId) -> Option<(&'static str, ValId)> {
        self.sums.get(&v).copied()
    }

    /// Returns true if some sum is replaced.
    pub(crate) fn any(&self) -> bool {
        !self.sums.is_empty()
    }

    /// Returns true if `v` is not written, because only replaced sums use it.
    pub(crate) fn unused(&self, v: ValId) -> bool {
        self.unused.contains(&v)
    }
}

/// Returns a constant's value.
fn number(kernel: &Kernel, v: ValId) -> Option<f64> {
    match kernel.value(v).def {
        Def::Const(c) => Some(c.as_f64()),
        _ => None,
    }
}

/// The operand of a commutative operation whose other operand is a number, and the number.
fn with_number(kernel: &Kernel, v: ValId, wanted: ScalarOp) -> Option<(ValId, f64)> {
    let Def::Op { op, args } = &kernel.value(v).def else {
        return None;
    };
    if *op != wanted {
        return None;
    }
    match (number(kernel, args[0]), number(kernel, args[1])) {
        (None, Some(c)) => Some((args[0], c)),
        (Some(c), None) => Some((args[1], c)),
        _ => None,
    }
}

/// Of `1 + f(x)`: the value of `f(x)`, and `x`.
fn operand(kernel: &Kernel, v: ValId) -> Option<(ValId, ValId)> {
    let (function, one) = with_number(kernel, v, ScalarOp::Add)?;
    match &kernel.value(function).def {
        Def::Op { args, .. } if one == 1.0 && args.len() == 1 => Some((function, args[0])),
        _ => None,
    }
}

/// Returns the function that replaces `v`, and its operand. A tanh needs no factor, an erf that of
/// gelu, as it is in `f32`.
fn sum(kernel: &Kernel, v: ValId) -> Option<(&'static str, ValId)> {
    let (function, x) = operand(kernel, v)?;
    let Def::Op { op, .. } = &kernel.value(function).def else {
        return None;
    };
    // Of values that differ between lanes only: others are scalars.
    let varies = |v: ValId| !matches!(kernel.value(v).def, Def::Const(_));
    match op {
        ScalarOp::Tanh => varies(x).then_some((ONE_PLUS_TANH, x)),
        ScalarOp::Erf => {
            let (x, c) = with_number(kernel, x, ScalarOp::Mul)?;
            let wanted = std::f32::consts::FRAC_1_SQRT_2;
            (c as f32 == wanted && varies(x)).then_some((ONE_PLUS_ERF, x))
        }
        _ => None,
    }
}
