//! The operators: a folder for each kind, a file for each family.
//!
//! A family file holds the functions that its rows name and ends with a table `ROWS`. There are
//! four ways to write a row, in the order in which they should be tried:
//!
//! - `pointwise!` (`pointwise/row.rs`): a scalar function; the stage does broadcast and promotion.
//! - `view` (`view/shape.rs`): the same elements at other coordinates; no loop is made.
//! - `decomposed`: calls of other operators, written with [`Builder`].
//! - `lowered`: loop bodies of its own, for what the others cannot say: reductions, windows,
//!   gathers.
//!
//! Helpers that several families use stand in `calls.rs` (short forms of calls), `padding.rs`
//! (reads under a mask) and `window.rs` (sliding windows).

mod asserts;
mod calls;
mod conv;
mod create;
mod fourier;
mod index;
mod linalg;
mod loss;
mod nn;
mod norm;
mod padding;
mod pointwise;
mod pool;
mod random;
mod reduce;
mod resample;
mod signal;
mod special;
mod table;
mod view;
mod window;

use crate::{Args, Builder, Call, Lower, Meta, Route, Row, Tensor};
use inrush_base::Result;
use inrush_graph::{Type, ValueId};

pub use index::packed_sort::sorts_in_kernel;
pub use index::sort::selects;
pub use table::lookup;

/// The families. A new file adds a line here and its `mod` line to its folder.
/// The order has no meaning: names are unique, which a test in `table.rs` holds.
const FAMILIES: &[&[Row]] = &[
    pointwise::activation::ROWS,
    pointwise::activation_backward::ROWS,
    pointwise::arith::ROWS,
    view::rearrange::ROWS,
    asserts::ROWS,
    nn::attention::ROWS,
    nn::embedding_bag::ROWS,
    pointwise::cast::ROWS,
    pointwise::compare::ROWS,
    nn::composed::ROWS,
    nn::composite::ROWS,
    loss::composite::ROWS,
    conv::convolution::ROWS,
    conv::backward::ROWS,
    view::copies::ROWS,
    create::ROWS,
    fourier::ROWS,
    linalg::distance::ROWS,
    linalg::einsum::ROWS,
    linalg::factor::ROWS,
    pointwise::foreach::ROWS,
    resample::grid_sample::ROWS,
    nn::image::ROWS,
    nn::flex::ROWS,
    nn::recurrent::ROWS,
    special::incomplete_gamma::ROWS,
    index::gather::ROWS,
    view::cat::ROWS,
    loss::losses::ROWS,
    loss::backward::ROWS,
    pointwise::math::ROWS,
    loss::margin::ROWS,
    index::masked::ROWS,
    linalg::matmul::ROWS,
    linalg::quantized::ROWS,
    reduce::moments::ROWS,
    norm::forward::ROWS,
    norm::backward::ROWS,
    index::sort::ROWS,
    pool::forward::ROWS,
    pool::backward::ROWS,
    special::polynomials::ROWS,
    pointwise::quantize::ROWS,
    pointwise::quantized::ROWS,
    random::ROWS,
    reduce::median::ROWS,
    reduce::reductions::ROWS,
    resample::upsample::ROWS,
    resample::antialias::ROWS,
    resample::backward::ROWS,
    reduce::scan::ROWS,
    index::scatter::ROWS,
    view::shape::ROWS,
    view::slice::ROWS,
    signal::ROWS,
    reduce::softmax::ROWS,
    special::functions::ROWS,
    nn::transformer::ROWS,
    view::backward::ROWS,
    special::zeta::ROWS,
];

/// Every row, family by family.
pub fn rows() -> impl Iterator<Item = &'static Row> {
    FAMILIES.iter().flat_map(|f| f.iter())
}

/// The builder that a decomposition writes its calls with.
type B<'a, 'g> = &'a mut Builder<'g>;

/// Writes the loops of one call.
type Lowering = for<'g> fn(&mut Lower<'g>, &Call<'g>) -> Result<Vec<Tensor>>;

/// A row with a loop nest of its own: how its result types follow from the call, and its lowering.
/// It has no properties; [`Row::with`] adds them.
const fn lowered(
    name: &'static str,
    schema: &'static str,
    types: fn(&Call) -> Result<Vec<Type>>,
    f: Lowering,
    example: &'static str,
) -> Row {
    Row {
        name,
        schema,
        meta: Meta::Fn(types),
        route: Route::Lower(f),
        example,
        props: &[],
    }
}

/// A row that is calls of other operators, whose types it takes.
/// The types of a call are found by decomposing it in a scratch copy.
const fn decomposed(
    name: &'static str,
    schema: &'static str,
    f: fn(&mut Builder, &Args) -> Result<Vec<ValueId>>,
    example: &'static str,
) -> Row {
    Row {
        name,
        schema,
        meta: Meta::Route,
        route: Route::Decompose(f),
        example,
        props: &[],
    }
}
