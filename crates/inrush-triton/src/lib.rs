//! Stage emit for GPUs: block programs become Triton source, with what a build and a launch need to know.
//!
//! The text is made to be read: comments name the fused operators, the Python lines that they come from and the buffers. The
//! code depends on the block program only, and so does the kernel's name, which is its digest.
//!
//! Does not know: the scheduler, other languages.
//!
//! ```text
//! @triton.jit
//! def sum_1f2e3d4c(in_ptr0, out_ptr1, XBLOCK: tl.constexpr, RBLOCK: tl.constexpr):
//!     pid = tl.program_id(0)
//!     xpid = pid
//!     x = xpid * XBLOCK + tl.arange(0, XBLOCK)[:, None]    points of this program
//!     xmask = x < 1000                                     none where the block divides the extent
//!     r = tl.arange(0, RBLOCK)[None, :]
//!     t0 = tl.load(in_ptr0 + (512 * x + r), xmask, ..)     values
//!     a0 = t0
//!     a0 = tl.sum(a0, 1)[:, None]                          the reduced dimension keeps one point
//!     t1 = a0
//!     tl.store(out_ptr1 + (x), t1, xmask)
//! ```
//!
//! [`Block`] says all of this: which axes are dimensions, which masks they need, and the order of
//! the items.

#![forbid(unsafe_code)]

mod attention;
mod contiguity;
mod descriptors;
mod dot;
mod expr;
mod float8;
mod function;
mod fused;
mod helpers;
mod horizontal_fusion;
mod memory;
mod online_softmax;
mod ops;
mod persistent;
mod programmatic_launch;
mod reduce;
mod tail_masks;
mod types;

use inrush_base::{Caps, Result};
use inrush_expr::{Expr, Exprs};
use inrush_kernel::block::Block;
use inrush_loops::{BufId, Loops};

pub use horizontal_fusion::emit_concurrent;

/// A kernel in Triton's language.
#[derive(Clone, PartialEq, Debug)]
pub struct TritonKernel {
    /// Name of the function: the fused operators and a digest of the text.
    pub name: String,
    /// A Python module that holds the function and what it calls.
    pub source: String,
    /// Parameters in order, those with constant values left out.
    pub arguments: Vec<Argument>,
    /// Constant parameters: sizes of the tile.
    pub constants: Vec<(&'static str, i64)>,
    /// Number of programs, in the symbols of the plan.
    pub programs: Expr,
    pub warps: u32,
    pub stages: u32,
    /// The source holds assertions, which a build keeps only in debug mode.
    pub asserts: bool,
    /// It waits for the kernel before it, and may be launched before that one has ended.
    pub programmatic: bool,
}

/// A parameter.
#[derive(Clone, PartialEq, Debug)]
pub struct Argument {
    /// Its name in the source.
    pub name: String,
    /// Type in Triton's signatures: `*fp32`, `i64`.
    pub ty: String,
    pub source: ArgumentSource,
    /// A promise that the caller keeps: the address, or the number, is a multiple of 16.
    pub divisible: bool,
}

/// The value that the caller passes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ArgumentSource {
    /// The address of a buffer.
    Buffer { buf: BufId, writes: bool },
    /// The value of an expression.
    Size(Expr),
    /// A tensor map over a buffer. In elements: where it begins, then its sizes and its strides, each from the slowest
    /// dimension to the fastest.
    Map {
        buf: BufId,
        writes: bool,
        numbers: Vec<Expr>,
    },
}

impl Argument {
    /// The buffer that is passed, and whether it is written.
    pub fn buffer(&self) -> Option<(BufId, bool)> {
        match self.source {
            ArgumentSource::Buffer { buf, writes } | ArgumentSource::Map { buf, writes, .. } => {
                Some((buf, writes))
            }
            ArgumentSource::Size(_) => None,
        }
    }

    /// The numbers that are passed.
    pub fn numbers(&self) -> &[Expr] {
        match &self.source {
            ArgumentSource::Buffer { .. } => &[],
            ArgumentSource::Size(e) => std::slice::from_ref(e),
            ArgumentSource::Map { numbers, .. } => numbers,
        }
    }
}

/// Writes a kernel. `aligned` tells which buffers start at multiples of 16 bytes.
pub fn emit(
    loops: &Loops,
    block: &Block,
    caps: &Caps,
    aligned: &dyn Fn(BufId) -> bool,
) -> Result<TritonKernel> {
    let waits = programmatic_launch::applies(caps);
    let emitted = function::emit(loops, block, caps, function::Role::Kernel { waits })?;
    let (buffers, sizes) = (&emitted.buffers, &emitted.sizes);
    let mut arguments = arguments(loops, block, caps, buffers, sizes, aligned)?;
    arguments.extend(emitted.maps);
    let (name, source) = named(
        &block.name,
        &function::head(&emitted.function),
        &emitted.comments,
        &emitted.function,
        &arguments,
    );
    Ok(TritonKernel {
        name,
        source,
        arguments,
        constants: emitted.constants,
        programs: persistent::launched(&loops.exprs, block, caps),
        warps: block.warps,
        stages: block.stages,
        asserts: emitted.asserts,
        programmatic: waits,
    })
}

/// Returns true if a kernel may write a buffer.
fn writes(b: &inrush_kernel::KernelBuf) -> bool {
    b.role != inrush_kernel::BufRole::In
}

/// Lists the parameters of a function: buffers that its text uses, then sizes.
fn arguments(
    loops: &Loops,
    block: &Block,
    caps: &Caps,
    buffers: &[Option<String>],
    sizes: &[String],
    aligned: &dyn Fn(BufId) -> bool,
) -> Result<Vec<Argument>> {
    let mut arguments = Vec::new();
    for (b, name) in block.buffers.iter().zip(buffers) {
        let Some(name) = name else { continue };
        arguments.push(Argument {
            name: name.clone(),
            ty: format!("*{}", types::stored(b.dtype, caps)?),
            source: ArgumentSource::Buffer {
                buf: b.buf,
                writes: writes(b),
            },
            divisible: aligned(b.buf),
        });
    }
    for (p, name) in block.sizes.iter().zip(sizes) {
        arguments.push(Argument {
            name: name.clone(),
            ty: if block.wide { "i64" } else { "i32" }.into(),
            source: ArgumentSource::Size(p.value),
            divisible: divisible(&loops.exprs, p.value),
        });
    }
    Ok(arguments)
}

/// The kernel's name, which says what the code is and not where it comes from, and the source.
fn named(
    name: &str,
    head: &str,
    comments: &str,
    function: &str,
    arguments: &[Argument],
) -> (String, String) {
    let mut hasher = blake3::Hasher::new();
    hasher.update(head.as_bytes());
    hasher.update(function.as_bytes());
    // Types are no part of the text, and a binary is built for them.
    for a in arguments {
        hasher.update(a.ty.as_bytes());
    }
    let digest = hasher.finalize().to_hex();
    let name = format!("{}_{}", identifier(name), &digest.as_str()[..8]);
    let function = function.replace(function::NAME, &name);
    let source = format!("{head}{comments}{function}");
    (name, source)
}

/// Returns true if a number is a multiple of 16 for every size: Triton specialises code for that.
fn divisible(ex: &Exprs, e: Expr) -> bool {
    ex.is_int(ex.modulo(e, ex.int(16)), 0)
}

/// A name that Python accepts.
fn identifier(name: &str) -> String {
    let text: String = (name.chars())
        .map(|c| if c.is_ascii_alphanumeric() { c } else { '_' })
        .collect();
    match text.chars().next() {
        Some(c) if !c.is_ascii_digit() => text,
        _ => format!("k_{text}"),
    }
}
