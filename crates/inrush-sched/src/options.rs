//! Numbers that the scheduler's policies read.

/// Limits and thresholds; the defaults are what the measurements in the benchmarks chose.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Options {
    /// Inline, fuse and split; off, every node becomes a kernel of its own.
    pub fuse: bool,
    /// Statements of one fused kernel.
    pub max_stmts: usize,
    /// Distinct buffers of one fused kernel.
    pub max_buffers: usize,
    /// A result with several readers is recomputed in each when its operations (math functions count
    /// [`inrush_loops::MATH_OPS`]) stay at or below this.
    pub inline_ops: i64,
    /// And when it loads at most this many values that change along the innermost axes.
    pub inline_loads: usize,
    /// How many times the work of a producer may grow by inlining it into a consumer that evaluates it more than once.
    pub inline_repeat: i64,
    /// Bytes of scratch that one outer point of a kernel may keep.
    pub local_bytes: i64,
    /// A reduction is split when its outer points are fewer than the threads and it has at least this many elements.
    pub split_elements: i64,
    /// Number of threads to use; 0 counts as 1. The plan does not depend on it.
    pub threads: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            fuse: true,
            max_stmts: 400,
            max_buffers: 48,
            inline_ops: 8,
            inline_loads: 2,
            inline_repeat: 1,
            local_bytes: 128 << 10,
            split_elements: 32 << 10,
            threads: 1,
        }
    }
}
