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

mod approx;
mod expr;
mod function;
mod fused;
mod helpers;
mod memory;
mod ops;
mod philox;
mod reduce;
mod strips;
mod types;

use inrush_base::{Caps, Result};
use inrush_expr::Exprs;
use inrush_kernel::Kernel;

pub use helpers::Helpers;

/// One emitted function.
#[derive(Clone, Debug)]
pub struct Function {
    /// Its symbol: `k` and the digest of its text.
    pub name: String,
    pub text: String,
    pub helpers: Helpers,
}

/// Emits one kernel for the given target.
pub fn emit(exprs: &Exprs, kernel: &Kernel, caps: &Caps) -> Result<Function> {
    let (text, helpers) = function::emit(exprs, kernel, caps)?;
    let digest = blake3::hash(text.as_bytes()).to_hex();
    let name = format!("k{}", &digest[..16]);
    Ok(Function {
        text: text.replacen(function::NAME, &name, 1),
        name,
        helpers,
    })
}

/// A compilation unit with the given functions, each name once.
pub fn unit<'a>(functions: impl IntoIterator<Item = &'a Function>) -> String {
    let mut helpers = Helpers::default();
    let mut names: Vec<&str> = Vec::new();
    let mut body = String::new();
    for f in functions {
        if names.contains(&f.name.as_str()) {
            continue;
        }
        names.push(&f.name);
        helpers.merge(&f.helpers);
        body.push_str(&f.text);
    }
    format!("{}{}{body}", types::PRELUDE, helpers.text())
}
