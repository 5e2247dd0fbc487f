//! Memory that complex and real values share, in a graph that writes.
//!
//! Views of a part are views, so writes reach them. Two operators give views in eager and new memory here: `view_as_real`, which
//! stacks the parts, and `conj`, which negates one. A write into memory that such a value shows is refused.

use inrush_aten::{Prop, complex, lookup, props};
use inrush_base::{Error, Result};
use inrush_graph::{Arg, Node, ValueId};
use rustc_hash::{FxHashMap, FxHashSet};

/// Operators whose result shares memory in eager and not here.
const COPIED: &[&str] = &[
    "aten.view_as_real.default",
    "aten._conj.default",
    "aten.conj.default",
    "aten.adjoint.default",
    "aten.mH.default",
    "aten.matrix_H.default",
];

/// The memory that values share, as far as it matters. Empty for a graph without writes.
pub(super) struct Shared {
    writes: bool,
    /// The value that begins the memory of a view.
    root: FxHashMap<ValueId, ValueId>,
    /// Roots of which a copy stands for a view.
    copied: FxHashSet<ValueId>,
}

impl Shared {
    pub(super) fn of(nodes: &[Node]) -> Shared {
        Shared {
            writes: nodes.iter().any(|n| crate::may_write(&n.op)),
            root: FxHashMap::default(),
            copied: FxHashSet::default(),
        }
    }

    /// Returns true if the graph writes into some value.
    pub(super) fn writes(&self) -> bool {
        self.writes
    }

    /// Notes what a call shares.
    ///
    /// # Errors
    /// For a write into memory that a copy shows.
    pub(super) fn look(&mut self, node: &Node, write: bool) -> Result<()> {
        let Some(Arg::Value(first)) = node.args.first().filter(|_| self.writes) else {
            return Ok(());
        };
        let root = *self.root.get(first).unwrap_or(first);
        if write && self.copied.contains(&root) {
            return Err(Error::unsupported(
                "a write into memory that is seen as complex and as real numbers",
            ));
        }
        if COPIED.contains(&node.op.as_str()) {
            self.copied.insert(root);
        }
        let aliases = write
            || props::has(&node.op, Prop::Alias)
            || props::has(&node.op, Prop::MayAlias)
            || complex::schema(&node.op).is_some_and(|s| {
                lookup(&node.op).is_none() && s.returns.iter().any(|r| r.alias.is_some())
            });
        if aliases {
            for v in &node.outs {
                self.root.insert(*v, root);
            }
        }
        Ok(())
    }
}
