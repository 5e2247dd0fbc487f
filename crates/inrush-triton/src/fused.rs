//! Peephole: scalar operations that cost less as one: `1 + erf(x)` and `1 + tanh(x)` need no precision near zero that the addition
//! would lose anyway, which halves their instructions.

use inrush_base::DType;
use inrush_kernel::block::{Block, BlockItem};
use inrush_kernel::{Def, ValId};
use inrush_loops::ScalarOp;
use rustc_hash::{FxHashMap, FxHashSet};

#[derive(Default)]
pub(crate) struct Fused {
    /// Sums: the helper and its operand.
    sums: FxHashMap<ValId, (&'static str, ValId)>,
    /// Functions that nothing but sums uses.
    alone: FxHashSet<ValId>,
}

impl Fused {
    /// Finds the sums, and the functions that nothing else uses.
    pub fn find(block: &Block) -> Fused {
        let mut out = Fused::default();
        // A function that some other value uses keeps its line.
        let mut whole: FxHashSet<ValId> = FxHashSet::default();
        let mut parts: FxHashSet<ValId> = FxHashSet::default();
        visit(&block.items, &mut |item| {
            let BlockItem::Let(v) = item else {
                whole.extend(effects(item));
                return;
            };
            if let Some((f, function, arg)) = sum(block, *v) {
                out.sums.insert(*v, (f, arg));
                parts.insert(function);
                return;
            }
            whole.extend(block.value(*v).def.operands());
        });
        out.alone = parts.difference(&whole).copied().collect();
        out
    }

    /// Returns the helper that computes `v`, and of what.
    pub fn sum(&self, v: ValId) -> Option<(&'static str, ValId)> {
        self.sums.get(&v).copied()
    }

    /// Returns true if only sums use `v`, so that it needs no line.
    pub fn alone(&self, v: ValId) -> bool {
        self.alone.contains(&v)
    }
}

/// Calls `f` on all items, those in loops too.
pub(crate) fn visit(items: &[BlockItem], f: &mut dyn FnMut(&BlockItem)) {
    for item in items {
        match item {
            BlockItem::Loop(w) => visit(&w.body, f),
            item => f(item),
        }
    }
}

/// The values that an item other than a definition uses.
pub(crate) fn effects(item: &BlockItem) -> Vec<ValId> {
    match item {
        BlockItem::Update { value, .. }
        | BlockItem::Moments { value, .. }
        | BlockItem::Exponentials { value, .. } => vec![*value],
        BlockItem::FinishExponentials { shift, .. } => vec![*shift],
        BlockItem::Attend {
            score,
            second,
            keep,
        } => {
            let rest = second.iter().chain(keep).copied();
            rest.chain([*score]).collect()
        }
        BlockItem::Store(s) => s.mask.into_iter().chain([s.value]).collect(),
        _ => Vec::new(),
    }
}

/// `1 + f(x)`: the helper, the value of `f(x)`, and `x`.
fn sum(block: &Block, v: ValId) -> Option<(&'static str, ValId, ValId)> {
    let value = block.value(v);
    let Def::Op {
        op: ScalarOp::Add,
        args,
    } = &value.def
    else {
        return None;
    };
    if value.dtype != DType::F32 {
        return None;
    }
    // The addition is commutative, and both orders occur.
    let one = |v: ValId| matches!(block.value(v).def, Def::Const(c) if c.as_f64() == 1.0);
    let function = match (one(args[0]), one(args[1])) {
        (true, false) => args[1],
        (false, true) => args[0],
        _ => return None,
    };
    let Def::Op { op, args } = &block.value(function).def else {
        return None;
    };
    let helper = match op {
        ScalarOp::Erf => "one_plus_erf",
        ScalarOp::Tanh => "one_plus_tanh",
        _ => return None,
    };
    // A literal has no methods.
    let constant = matches!(block.value(args[0]).def, Def::Const(_));
    (!constant).then_some((helper, function, args[0]))
}
