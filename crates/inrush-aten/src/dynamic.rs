//! Operators whose data decide the sizes of their results, or whose results are numbers read from data. They have no rows, since
//! no loop nest has a size that it computes itself.
//!
//! Ahead of time each is a call of a function of the runtime's library between two compiled programs; see
//! `inrush-compile/src/parts`. What stages ahead of that need is how the arguments are bound, and which function computes the
//! operator. Inside PyTorch they are called, since [`bind::signature`](crate::bind::signature) does not know them.

use crate::schema::Schema;
use rustc_hash::FxHashMap;
use std::sync::LazyLock;

/// An operator whose results depend on data in more than their elements.
pub struct Dynamic {
    /// `aten.nonzero.default`.
    pub name: &'static str,
    /// Parameters and results as PyTorch writes them.
    pub schema: &'static str,
    /// The library's function; empty for an operator that a pass expands. Its inputs are the tensors of the call in the order of the
    /// schema.
    pub function: &'static str,
    /// Parameters of the operator that the function takes, in its order.
    pub params: &'static [&'static str],
}

/// All of them, sorted by name.
pub const OPERATORS: &[Dynamic] = &[
    Dynamic {
        name: "aten._local_scalar_dense.default",
        schema: "(Tensor self) -> Scalar",
        function: "item",
        params: &[],
    },
    Dynamic {
        name: "aten._unique2.default",
        schema: "(Tensor self, bool sorted=True, bool return_inverse=False, bool return_counts=False) -> (Tensor, Tensor, Tensor)",
        function: "unique",
        params: &["sorted", "return_inverse", "return_counts"],
    },
    Dynamic {
        name: "aten.bincount.default",
        schema: "(Tensor self, Tensor? weights=None, SymInt minlength=0) -> Tensor",
        function: "bincount",
        params: &["minlength"],
    },
    Dynamic {
        name: "aten.item.default",
        schema: "(Tensor self) -> Scalar",
        function: "item",
        params: &[],
    },
    Dynamic {
        name: "aten.masked_select.default",
        schema: "(Tensor self, Tensor mask) -> Tensor",
        function: "",
        params: &[],
    },
    Dynamic {
        name: "aten.nonzero.default",
        schema: "(Tensor self) -> Tensor",
        function: "nonzero",
        params: &[],
    },
    Dynamic {
        name: "aten.nonzero_static.default",
        schema: "(Tensor self, *, SymInt size, int fill_value=-1) -> Tensor",
        function: "nonzero_static",
        params: &["size", "fill_value"],
    },
    Dynamic {
        name: "aten.repeat_interleave.Tensor",
        schema: "(Tensor repeats, *, SymInt? output_size=None) -> Tensor",
        function: "repeat_interleave",
        params: &["output_size"],
    },
    Dynamic {
        name: "aten.repeat_interleave.self_Tensor",
        schema: "(Tensor self, Tensor repeats, int? dim=None, *, SymInt? output_size=None) -> Tensor",
        function: "",
        params: &[],
    },
    Dynamic {
        name: "aten.unique_consecutive.default",
        schema: "(Tensor self, bool return_inverse=False, bool return_counts=False, int? dim=None) -> (Tensor, Tensor, Tensor)",
        function: "unique_consecutive",
        params: &["return_inverse", "return_counts", "dim"],
    },
    Dynamic {
        name: "aten.unique_dim.default",
        schema: "(Tensor self, int dim, bool sorted=True, bool return_inverse=False, bool return_counts=False) -> (Tensor, Tensor, Tensor)",
        function: "unique_dim",
        params: &["dim", "sorted", "return_inverse", "return_counts"],
    },
];

static SCHEMAS: LazyLock<FxHashMap<&str, Schema>> = LazyLock::new(|| {
    // A test holds that each of them can be read.
    (OPERATORS.iter())
        .filter_map(|d| Some((d.name, Schema::parse(d.schema).ok()?)))
        .collect()
});

/// Operators of control flow, which call graphs: [`inrush_graph::Arg::Body`]. Ahead of time each is a step of its own.
const CONTROL: &[&str] = &[
    "higher_order.cond",
    "higher_order.map_impl",
    "higher_order.scan",
    "higher_order.while_loop",
];

/// Returns true for an operator of control flow.
#[must_use]
pub fn is_control(op: &str) -> bool {
    CONTROL.contains(&op)
}

/// Returns the operator of this name.
#[must_use]
pub fn find(op: &str) -> Option<&'static Dynamic> {
    let at = OPERATORS.binary_search_by(|d| d.name.cmp(op)).ok()?;
    Some(&OPERATORS[at])
}

/// Returns the schema of an operator of this table.
#[must_use]
pub fn schema(op: &str) -> Option<&'static Schema> {
    SCHEMAS.get(op)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lookup;

    #[test]
    fn operators_are_sorted_readable_and_without_a_row() {
        assert!(OPERATORS.is_sorted_by(|a, b| a.name < b.name));
        for d in OPERATORS {
            let schema = Schema::parse(d.schema).expect(d.name);
            for p in d.params {
                assert!(schema.position(p).is_some(), "{}: {p}", d.name);
            }
            assert!(lookup(d.name).is_none(), "{}", d.name);
            assert!(find(d.name).is_some(), "{}", d.name);
        }
        assert!(find("aten.add.Tensor").is_none());
    }
}
