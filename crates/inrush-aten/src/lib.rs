//! The meaning of ATen operators: one [`Row`] each, grouped in family files, and the stages that
//! read them.
//!
//! A row gives an operator's signature (`schema`), the types of its results (`meta`) and its way to
//! loops (`route`); its `example` is its test. The stages [`normalize`], [`decompose`] and
//! [`lower`] know an operator only through its row, except for a few that are about the graph
//! itself (in-place writes, asserts).
//!
//! Does not know: scheduling, languages.

#![forbid(unsafe_code)]

pub mod bind;
pub mod call;
pub mod complex;
pub mod decompose;
pub mod dynamic;
pub mod example;
#[cfg(test)]
mod flat;
pub mod layouts;
pub mod lower;
pub mod meta;
pub mod normalize;
pub mod numbers;
pub mod ops;
pub mod props;
pub mod random;
pub mod user_kernel;
pub mod view;

pub use bind::{NamedArg, bind};
pub use call::{Args, Call, Demands, Operand};
pub use decompose::{Builder, decompose, decompose_library, decompose_marked, replace};
pub use inrush_base::schema::{self, Schema};
pub use lower::body::BodyBuilder;
pub use lower::{
    Lower, Mark, Marks, Processor, Pw, Tensor, input_buffer, lower, lower_marked, num_inputs,
};
pub use normalize::{normalize, normalize_whole, prune, resolve_ints};
pub use ops::{lookup, rows, selects, sorts_in_kernel};
pub use props::Prop;
pub use view::View;

use inrush_base::Result;
use inrush_graph::{Type, ValueId};
use inrush_loops::StmtId;
use std::sync::OnceLock;

/// An operator.
pub struct Row {
    /// `aten.add.Tensor`.
    pub name: &'static str,
    /// Parameters and results as PyTorch writes them: `(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor`.
    pub schema: &'static str,
    pub meta: Meta,
    pub route: Route,
    /// A call on typed tensors, `(f32[2,3], f32[3], alpha=2)`; see [`example`].
    pub example: &'static str,
    /// Facts that other stages ask for.
    pub props: &'static [Prop],
}

/// Types of the results.
#[derive(Copy, Clone)]
pub enum Meta {
    /// By the route: promotion and broadcast of a [`Route::Pointwise`], sizes of a [`Route::View`].
    Route,
    Fn(fn(&Call) -> Result<Vec<Type>>),
}

/// How an operator becomes loops.
#[derive(Copy, Clone)]
pub enum Route {
    /// A scalar function of broadcast operands.
    Pointwise(Pointwise),
    /// The same elements at other coordinates: makes no loop.
    View(fn(&Call) -> Result<Vec<View>>),
    /// Calls of other operators; disappears in stage `decompose`.
    Decompose(fn(&mut Builder, &Args) -> Result<Vec<ValueId>>),
    /// Says something about sizes or types and computes nothing; stage `normalize` consumes it.
    Assert,
    /// Bodies of its own.
    Lower(for<'g> fn(&mut Lower<'g>, &Call<'g>) -> Result<Vec<Tensor>>),
}

/// A scalar function and what it is applied to.
#[derive(Copy, Clone)]
pub struct Pointwise {
    /// Parameters that are operands, tensors or numbers; they promote together. Those that are `None` in a call are left
    /// out of what `function` is given. A leading `?` marks a condition: it is made bool and promotes nothing.
    pub operands: &'static [&'static str],
    pub promo: Promo,
    pub function: PointwiseFn,
}

/// The value of one element. Operands come as values of the compute dtype.
pub type PointwiseFn = fn(&mut Pw, &[StmtId]) -> Result<StmtId>;

/// dtype in which a pointwise operator computes, and dtype of what it returns.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Promo {
    /// Both are the common dtype of the operands.
    Common,
    /// Both are the common dtype, or the default float if that is no float.
    Float,
    /// As `Float` without a `rounding_mode`, as `Common` with one.
    Division,
    /// Both are the first operand's dtype.
    First,
    /// Computes in the common dtype, returns bool.
    Compare,
    /// Operands are made bool, and so is the result.
    Logical,
}

/// A row with its parsed schema.
pub struct Op {
    pub row: &'static Row,
    schema: OnceLock<Schema>,
}

impl Op {
    /// The parsed schema; parsed at first use. Rows are checked by a test, so that the parse cannot fail here.
    pub fn schema(&self) -> &Schema {
        self.schema
            .get_or_init(|| Schema::parse(self.row.schema).unwrap_or_default())
    }
}
