//! Statements about sizes and types, which compute nothing.
//!
//! Stage normalize turns them into guards or errors. Their rows give it schemas, so that
//! arguments are bound like those of other operators. They have no examples: an example is a
//! call on tensors.

use crate::{Meta, Route, Row};

const fn row(name: &'static str, schema: &'static str) -> Row {
    Row {
        name,
        schema,
        meta: Meta::Route,
        route: Route::Assert,
        example: "",
        props: &[],
    }
}

pub const ROWS: &[Row] = &[
    row(
        "aten._assert_tensor_metadata.default",
        "(Tensor a, SymInt[]? size=None, SymInt[]? stride=None, ScalarType? dtype=None, *, Device? device=None, Layout? layout=None) -> ()",
    ),
    row(
        "aten._assert_scalar.default",
        "(Scalar self, str assert_msg) -> ()",
    ),
    row(
        "aten.sym_constrain_range.default",
        "(Scalar size, *, int? min=None, int? max=None) -> ()",
    ),
    row(
        "aten.sym_constrain_range_for_size.default",
        "(Scalar size, *, int? min=None, int? max=None) -> ()",
    ),
];
