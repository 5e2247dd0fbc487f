//! Lazy evaluation of selections: an arm that costs more than a mispredicted jump runs only if some lane takes it.
//!
//! Vector code evaluates both arms of a `select` for every lane. Special functions are several formulas of which each element
//! takes one, and a whole vector mostly takes the same one. So an expensive arm is put under `if (any lane)` (or under the plain
//! condition in scalar code).
//!
//! ```text
//! t = costly(x)                       t = 0
//! y = select(c, t, z)      ->         if (any(c)) t = costly(x)
//!                                     y = select(c, t, z)
//! ```
//!
//! A value belongs to an arm if no other statement uses it. Loads stay in place: they carry masks of their own.

use crate::kernel::Emitter;
use crate::values::Var;
use inrush_base::Result;
use inrush_base::tally::{Way, reached};
use inrush_kernel::{Def, Item, Kernel, ValId};
use inrush_loops::ScalarOp;
use inrush_loops::scalar::OpClass;
use rustc_hash::{FxHashMap, FxHashSet};
use std::collections::BinaryHeap;

/// Work, in operations of a vector, from which on a branch is worth a jump that may be foretold wrongly.
const WORTH: u32 = 40;
/// That of a function of the library's.
const FUNCTION: u32 = 20;

/// Branches that stand in each other at most: a chain of selections would be as deep as it is long, and read as often.
pub(crate) const DEPTH: u32 = 4;

/// How often each value of a kernel is used.
pub(crate) struct Uses(pub Vec<u32>);

/// A branch: what it computes, in order, the last value being its result.
struct Branch {
    /// In the order of the kernel, the result last.
    values: Vec<ValId>,
    condition: ValId,
    /// Taken where the condition does not hold.
    otherwise: bool,
}

/// Branches by the selection that they stand before, and all their values.
#[derive(Default)]
pub(crate) struct Plan {
    /// Branches to write ahead of each selection.
    before: FxHashMap<ValId, Vec<Branch>>,
    /// Values that are written inside a branch and nowhere else.
    later: FxHashSet<ValId>,
}

impl Plan {
    /// Returns true if a value is left to a branch.
    pub(crate) fn waits(&self, v: ValId) -> bool {
        self.later.contains(&v)
    }
}

impl Uses {
    /// Counts the uses of each value as operand, as update, and as stored value or mask.
    pub(crate) fn of(kernel: &Kernel) -> Uses {
        fn count(kernel: &Kernel, items: &[Item], seen: &mut [bool], uses: &mut [u32]) {
            for item in items {
                match item {
                    Item::Loop(l) => count(kernel, &l.body, seen, uses),
                    // A value that several loops evaluate is one value.
                    Item::Let(v) if std::mem::replace(&mut seen[v.index()], true) => {}
                    Item::Let(v) => {
                        let def = &kernel.value(*v).def;
                        def.each_operand(|x| uses[x.index()] += 1);
                    }
                    Item::Update { value, .. } => uses[value.index()] += 1,
                    Item::Store { value, mask, .. } => {
                        uses[value.index()] += 1;
                        mask.iter().for_each(|m| uses[m.index()] += 1);
                    }
                    Item::Acc(_) => {}
                }
            }
        }
        let mut uses = vec![0; kernel.values.len()];
        let mut seen = vec![false; kernel.values.len()];
        count(kernel, &kernel.head, &mut seen, &mut uses);
        count(kernel, &kernel.body, &mut seen, &mut uses);
        Uses(uses)
    }

    /// The branches among the values of one turn of a loop. Those of later selections come first: what stands in a branch is
    /// looked at again when the branch is written.
    pub(crate) fn plan(&self, kernel: &Kernel, items: &[Item]) -> Plan {
        let chooses = |i: &Item| matches!(i, Item::Let(v) if is_selection(kernel, *v));
        if !items.iter().any(chooses) {
            return Plan::default();
        }
        // A branch takes values of this list alone: one from an outer loop is evaluated there, less
        // often.
        let lets: Vec<ValId> = (items.iter())
            .filter_map(|i| match i {
                Item::Let(v) => Some(*v),
                _ => None,
            })
            .collect();
        let place: FxHashMap<ValId, usize> =
            lets.iter().enumerate().map(|(at, v)| (*v, at)).collect();
        let mut plan = Plan::default();
        for at in (0..lets.len()).rev() {
            let v = lets[at];
            // It stands in the arm of a later selection. That arm's own plan finds it.
            if plan.waits(v) {
                continue;
            }
            let Def::Op {
                op: ScalarOp::Where,
                args,
            } = &kernel.value(v).def
            else {
                continue;
            };
            for (root, otherwise) in [(args[1], false), (args[2], true)] {
                let values = self.only_for(kernel, &lets, &place, root);
                let work: u32 = values.iter().map(|v| work(kernel, *v)).sum();
                if work < WORTH {
                    continue;
                }
                plan.later.extend(&values);
                plan.before.entry(v).or_default().push(Branch {
                    values,
                    condition: args[0],
                    otherwise,
                });
            }
        }
        plan
    }

    /// `root` and what only it uses, in order. Looks at these and at what they read, whatever else the kernel holds.
    fn only_for(
        &self,
        kernel: &Kernel,
        lets: &[ValId],
        place: &FxHashMap<ValId, usize>,
        root: ValId,
    ) -> Vec<ValId> {
        // Uses from inside, by place. The last place is next: all that uses it has been seen.
        let mut inside: FxHashMap<usize, u32> = FxHashMap::default();
        let mut open: BinaryHeap<usize> = BinaryHeap::new();
        if let Some(at) = place.get(&root) {
            inside.insert(*at, 1);
            open.push(*at);
        }
        let mut out = Vec::new();
        while let Some(at) = open.pop() {
            let v = lets[at];
            let def = &kernel.value(v).def;
            let waits = matches!(def, Def::Op { .. } | Def::Cast { .. } | Def::Bitcast { .. });
            // A value outside of the arm uses it too, or it is a load or an index, which is
            // cheap.
            if !waits || inside.get(&at) != Some(&self.0[v.index()]) {
                continue;
            }
            out.push(v);
            for at in def.operands().into_iter().filter_map(|x| place.get(&x)) {
                let uses = inside.entry(*at).or_default();
                // Each place is queued once, whatever the number of its uses.
                if *uses == 0 {
                    open.push(*at);
                }
                *uses += 1;
            }
        }
        out.reverse();
        out
    }
}

/// Returns true for `where(condition, a, b)`.
fn is_selection(kernel: &Kernel, v: ValId) -> bool {
    let def = &kernel.value(v).def;
    matches!(def, Def::Op { op, .. } if *op == ScalarOp::Where)
}

/// Estimates what a value costs, in operations of a vector.
fn work(kernel: &Kernel, v: ValId) -> u32 {
    match &kernel.value(v).def {
        Def::Op { op, .. } if op.class() == OpClass::Math => FUNCTION,
        Def::Op {
            op: ScalarOp::Recurrence | ScalarOp::Kummer | ScalarOp::GammaFraction,
            ..
        } => FUNCTION,
        Def::Op {
            op: ScalarOp::Div | ScalarOp::Sqrt | ScalarOp::Rsqrt | ScalarOp::Reciprocal,
            ..
        } => 4,
        _ => 1,
    }
}

impl Emitter<'_> {
    /// Writes the branches that stand before the selection `v`.
    pub(crate) fn branches(&mut self, plan: &Plan, v: ValId) -> Result<()> {
        for b in plan.before.get(&v).into_iter().flatten() {
            self.branch(b)?;
        }
        Ok(())
    }

    fn branch(&mut self, b: &Branch) -> Result<()> {
        let items: Vec<Item> = b.values.iter().map(|v| Item::Let(*v)).collect();
        let Some(root) = b.values.last() else {
            return Ok(());
        };
        let (mask, varies) = self.var(b.condition)?;
        reached(Way::LazyBranch);
        self.state.open_branches += 1;
        // The arm runs if any lane takes it: `any(mask)`, or `!all(mask)` for the arm of lanes that
        // do not.
        let test = if varies {
            let (int, w) = (self.mask_elem(), self.width());
            let which = if b.otherwise { "all" } else { "any" };
            let f = self.helpers.lanes_test(which, int, w, self.caps);
            format!("{f}({mask})")
        } else {
            mask.to_string()
        };
        let elem = self.elem(self.dtype(*root));
        let ty = self.helpers.vector(elem, self.width());
        let name = self.lanes_name('y', *root);
        // Zeros where the branch is not taken: the selection reads none of them.
        self.line(format_args!("{ty} {name} = {{0}};"));
        let not = if b.otherwise { "!" } else { "" };
        self.open(format_args!("if ({not}({test}))"));
        self.items(&items)?;
        let value = self.vector(*root)?;
        self.line(format_args!("{name} = {value};"));
        self.close();
        self.state.open_branches -= 1;
        // The arm's own variables end with its block; this one is what the selection sees.
        self.vars[root.index()] = Some(Var::Lanes('y'));
        Ok(())
    }
}
