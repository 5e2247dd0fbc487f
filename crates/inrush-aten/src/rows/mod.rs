//! The operators, one family a file.

mod activation;
mod activation_backward;
mod arith;
mod arrange;
mod asserts;
mod attention;
mod bag;
mod calls;
mod cast;
mod compare;
mod composed;
mod composite;
mod composite_loss;
mod convolution;
mod convolution_backward;
mod convolution_depthwise;
mod convolution_phases;
mod copies;
mod create;
mod distance;
mod einsum;
mod equation;
mod foreach;
mod grid;
mod image;
mod incomplete;
mod indexing;
mod join;
mod loss;
mod loss_backward;
mod margin;
mod masked;
mod math;
mod matmul;
mod moments;
mod norm;
mod norm_backward;
mod order;
mod pointwise;
mod polynomial;
mod pool;
mod pool_backward;
mod quantize;
mod random;
mod rank;
mod reduce;
mod resample;
mod resample_backward;
mod scan;
mod scatter;
mod shape;
mod slice;
mod softmax;
mod special;
mod special_tables;
mod table;
mod transformer;
mod view_backward;
mod window;
mod zeta;

use crate::{Args, Builder, Call, Lower, Meta, Route, Row, Tensor};
use inrush_base::Result;
use inrush_graph::{Type, ValueId};

pub use order::selects;
pub use table::lookup;

/// The families. A new file adds a line here.
const FAMILIES: &[&[Row]] = &[
    activation::ROWS,
    activation_backward::ROWS,
    arith::ROWS,
    arrange::ROWS,
    asserts::ROWS,
    attention::ROWS,
    bag::ROWS,
    cast::ROWS,
    compare::ROWS,
    composed::ROWS,
    composite::ROWS,
    composite_loss::ROWS,
    convolution::ROWS,
    convolution_backward::ROWS,
    copies::ROWS,
    create::ROWS,
    distance::ROWS,
    einsum::ROWS,
    foreach::ROWS,
    grid::ROWS,
    image::ROWS,
    incomplete::ROWS,
    indexing::ROWS,
    join::ROWS,
    loss::ROWS,
    loss_backward::ROWS,
    math::ROWS,
    margin::ROWS,
    masked::ROWS,
    matmul::ROWS,
    moments::ROWS,
    norm::ROWS,
    norm_backward::ROWS,
    order::ROWS,
    pool::ROWS,
    pool_backward::ROWS,
    polynomial::ROWS,
    quantize::ROWS,
    random::ROWS,
    rank::ROWS,
    reduce::ROWS,
    resample::ROWS,
    resample_backward::ROWS,
    scan::ROWS,
    scatter::ROWS,
    shape::ROWS,
    slice::ROWS,
    softmax::ROWS,
    special::ROWS,
    transformer::ROWS,
    view_backward::ROWS,
    zeta::ROWS,
];

/// Every row, family by family.
pub fn rows() -> impl Iterator<Item = &'static Row> {
    FAMILIES.iter().flat_map(|f| f.iter())
}

/// Writes the loops of one call.
type Lowering = for<'g> fn(&mut Lower<'g>, &Call<'g>) -> Result<Vec<Tensor>>;

/// A row with a loop nest of its own: how its result types follow from the call, and its lowering.
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
