//! The surroundings of a graph: its device, the libraries, and what its caller knows.

use crate::effects::may_write;
use inrush_base::Caps;
use inrush_graph::{Node, ValueId};
use rustc_hash::FxHashSet;

/// Everything besides the graph that a pass may look at.
pub struct Context<'a> {
    pub caps: &'a Caps,
    /// Returns true if a library of the host computes the operator, which is then called between segments.
    pub serves: &'a dyn Fn(&str) -> bool,
    /// True if nothing of the graph is kept for gradients, so that values between its results may have any layout.
    pub inference: bool,
    /// Results of calls that must stay: they have arguments that the graph does not hold, or the host asked for the call.
    pub kept: FxHashSet<ValueId>,
    /// Results of calls that write nothing, though their operator's name does not say so.
    pub pure: FxHashSet<ValueId>,
}

impl<'a> Context<'a> {
    /// Returns the surroundings of a segment, in which no library is called.
    pub fn segment(caps: &'a Caps) -> Context<'a> {
        Context {
            caps,
            serves: &|_| false,
            inference: false,
            kept: FxHashSet::default(),
            pure: FxHashSet::default(),
        }
    }

    /// Returns true if a library computes the operator on a GPU.
    pub fn gpu_serves(&self, op: &str) -> bool {
        self.caps.gpu.is_some() && (self.serves)(op)
    }

    /// Returns true if the call may write its arguments.
    pub fn may_write(&self, node: &Node) -> bool {
        may_write(&node.op) && !node.outs.iter().any(|v| self.pure.contains(v))
    }

    /// Returns true if the call must stay as it is.
    pub fn is_kept(&self, node: &Node) -> bool {
        node.outs.iter().any(|v| self.kept.contains(v))
    }
}
