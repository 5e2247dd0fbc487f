//! Stage `emit`: a kernel as C source.
//!
//! Plain C with vector extensions, for gcc and clang, without headers. Equal kernels give equal text: parameters are named by
//! position, the function by the digest of its text, so a kernel that occurs twice in a model is compiled once.
//!
//! A grid kernel is `i32 NAME(char *const *bufs, const i64 *sizes, i64 begin, i64 end)`: buffers in the order of
//! [`Kernel::arguments`] (then the thread's scratch, if the kernel asks for it), values of [`Kernel::sizes`], a range of
//! units. It returns 0, or 1 + the position of the check that failed. An epilogue is `void NAME(char *const *bufs, const
//! i64 *sizes, const void *acc, i64 ld, i64 batch, i64 m0, i64 m1, i64 n0, i64 n1)`, with `acc` at the sum of (m0, n0) in
//! rows of `ld` elements.
//!
//! Does not know: the scheduler.
//!
//! How the text of a kernel comes about:
//!
//! 1. `facts.rs` finds what is true of the kernel as a whole: where accumulators live, which sums
//!    are long, which values one arm of a selection needs.
//! 2. `kernel.rs` walks the tree of items once and writes as it goes. `loops.rs` keeps what is true
//!    inside the open loops.
//! 3. Each value becomes one variable (`values.rs`), or one for each vector that a turn of its loop
//!    handles.
//! 4. Operations without an operator of C are calls of inline functions. `helpers.rs` makes these
//!    on demand, once a unit.
//!
//! Letters of names: `s` sizes, `b` buffers, `g` grid indices, `i` loop indices, `v` values, `a`
//! accumulators, `w` their `f64`, `p` their partial sums, `t` and `n` indices from data in 64 and
//! 32 bits, `x` transposed tiles, `q` comparisons and pointers to a column of taps, `y` results of
//! branches, `m` vectors that are loaded lane by lane. A suffix `_1` is the copy: the second
//! vector, or the second jammed row.

#![forbid(unsafe_code)]

mod approx;
mod branches;
mod cascade;
mod column_reduce;
mod convert;
mod divide;
mod epilogue_tile;
mod expr;
mod facts;
mod float8;
mod gamma;
mod helpers;
mod interleave;
mod kernel;
mod libm;
mod load;
mod loops;
mod memory;
mod ops;
mod partial;
mod peephole;
mod philox;
mod reduce;
mod scalar_ops;
mod series;
mod store;
mod text;
mod types;
mod unroll_jam;
mod values;
mod vector_memory;
mod vector_ops;

use inrush_base::{Caps, Result};
use inrush_expr::Exprs;
use inrush_kernel::Kernel;

use helpers::Helpers;
use rustc_hash::FxHashSet;
use std::sync::Arc;

pub use helpers::Helper;

/// One emitted function.
#[derive(Clone, Debug)]
pub struct Function {
    /// Its symbol: `k` and the digest of its text.
    pub name: String,
    /// The definition with its final name. What it calls is in `helpers`, not here.
    pub text: String,
    /// Helpers that it uses, each after those that it needs.
    pub helpers: Vec<Arc<Helper>>,
}

/// Bytes that the text of most functions fits into.
const TEXT: usize = 1 << 15;

/// Emits kernels for one target. What kernels have in common is made once.
pub struct Writer<'a> {
    caps: &'a Caps,
    helpers: Helpers,
    /// Functions are written here, where the memory is warm.
    text: String,
}

impl<'a> Writer<'a> {
    pub fn new(caps: &'a Caps) -> Writer<'a> {
        Writer {
            caps,
            helpers: Helpers::default(),
            text: String::with_capacity(TEXT),
        }
    }

    /// Emits one kernel.
    pub fn function(&mut self, exprs: &Exprs, kernel: &Kernel) -> Result<Function> {
        self.text.clear();
        let out = std::mem::take(&mut self.text);
        let done = kernel::emit(exprs, kernel, self.caps, &mut self.helpers, out);
        let helpers = self.helpers.take();
        self.text = done?;
        // The digest is taken with the placeholder in the text, so that it does not depend on
        // itself.
        let digest = blake3::hash(self.text.as_bytes()).to_hex();
        let name = format!("k{}", &digest[..16]);
        let text = self.text.replacen(kernel::NAME, &name, 1);
        Ok(Function {
            name,
            text,
            helpers,
        })
    }
}

/// Emits one kernel for the given target.
pub fn emit(exprs: &Exprs, kernel: &Kernel, caps: &Caps) -> Result<Function> {
    Writer::new(caps).function(exprs, kernel)
}

/// A compilation unit with the given functions, each name once.
pub fn unit<'a>(functions: impl IntoIterator<Item = &'a Function>) -> String {
    let mut known: FxHashSet<&str> = FxHashSet::default();
    let mut text = String::from(types::PRELUDE);
    let mut bodies: Vec<&str> = Vec::new();
    for f in functions {
        if !known.insert(&f.name) {
            continue;
        }
        // Helpers of equal names have equal texts: a name holds all that its text depends on.
        for h in &f.helpers {
            if known.insert(&h.name) {
                text.push_str(&h.text);
            }
        }
        bodies.push(&f.text);
    }
    text.reserve_exact(bodies.iter().map(|b| b.len()).sum());
    bodies.into_iter().for_each(|b| text.push_str(b));
    text
}
