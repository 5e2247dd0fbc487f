//! Facts about operators that other stages ask for: what shares memory, what a library does well,
//! what sorts or draws. They stand in the operator's row ([`Row::props`]), and no other crate lists
//! operators by name.
//!
//! A property is declared where the operator is defined and found by a query (`has`,
//! `library`), so that a new operator needs no edits in the scheduler, the runtime or the
//! importers. Queries by name also answer for operators without a row, which only libraries
//! implement.

use crate::{Route, Row, lookup};

/// A fact about an operator.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Prop {
    /// The results are elements of the first argument at other coordinates, in its memory: a view
    /// that never copies.
    Alias,
    /// As [`Prop::Alias`] where strides allow it, else a copy: `reshape`.
    MayAlias,
    /// The result is the memory of the first argument, read as another dtype.
    Bitcasts,
    /// The result is the memory of the first argument, read by strides of the call's own. It is not
    /// a function of the argument's coordinates.
    Restrides,
    /// The result is memory that holds nothing yet; others write it.
    Uninitialized,
    /// Changes the dtype of each element.
    Converts,
    /// The result is an argument that is a number, as a tensor without dimensions.
    Scalar,
    /// Draws random numbers: the row has the parameters `seed` and `stream` of [`crate::random`].
    Draws,
    /// Brings rows into order, or finds elements by their rank in a row.
    Sorts(SortAxis),
    /// Finds the `k` greatest or least elements of each row.
    TopK,
    /// A library does it well.
    Library(Library),
    /// Inside PyTorch its operator is called on CPUs, too: processors have instructions for it.
    LibraryOnCpu,
    /// Ahead of time it is a call of a function of the runtime's own library. Inside PyTorch its operator is called.
    LibraryFunction,
    /// Number of spatial dimensions, which the name says and no argument does: `max_pool2d` has two.
    Spatial(usize),
}

/// The elements that an operator sorts as one row.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum SortAxis {
    /// Dimension `dim` of `self`.
    Dim,
    /// The first dimension of `self`.
    First,
    /// All elements of `self`.
    Flat,
    /// `n` numbers that the operator makes itself.
    Count,
}

/// A family of operators that libraries implement.
#[derive(Copy, Clone, PartialEq, Eq, Debug)]
pub enum Library {
    /// Products of matrices and of batches of matrices.
    Product,
    /// The same with something added to the product, or of other dtypes.
    ProductWithBias,
    /// Convolutions and their gradients.
    Convolution,
    /// Attention that keeps no scores, and its gradients.
    Attention,
    /// Orders and greatest elements of rows.
    Sort,
}

/// Operators without a row that libraries implement, by their names without overloads.
const WITHOUT_ROW: &[(&str, Library)] = &[
    ("_efficient_attention_backward", Library::Attention),
    ("_efficient_attention_forward", Library::Attention),
    ("_flash_attention_backward", Library::Attention),
    ("_flash_attention_forward", Library::Attention),
    ("_scaled_dot_product_cudnn_attention", Library::Attention),
    (
        "_scaled_dot_product_cudnn_attention_backward",
        Library::Attention,
    ),
    (
        "_scaled_dot_product_efficient_attention",
        Library::Attention,
    ),
    (
        "_scaled_dot_product_efficient_attention_backward",
        Library::Attention,
    ),
    ("_scaled_dot_product_flash_attention", Library::Attention),
    (
        "_scaled_dot_product_flash_attention_backward",
        Library::Attention,
    ),
    // The overloads `dtype`, which say the result's dtype.
    ("addmm", Library::ProductWithBias),
    ("baddbmm", Library::ProductWithBias),
    ("bmm", Library::ProductWithBias),
    ("mm", Library::ProductWithBias),
];

/// Reads the offset of a tensor in its storage.
pub const STORAGE_OFFSET: &str = "aten.sym_storage_offset.default";

/// Operators that read a tensor's sizes, strides and offset. They have no row, since importers know
/// their results.
const READS_METADATA: &[&str] = &[
    "aten.sym_numel.default",
    "aten.sym_size.int",
    STORAGE_OFFSET,
    "aten.sym_stride.int",
];

/// Asserts that a condition on numbers holds.
pub const ASSERT_SCALAR: &str = "aten._assert_scalar.default";

/// Asserts that a tensor of one element is not zero. It has no row: kernels do not read it.
const ASSERT_ASYNC: &str = "aten._assert_async.msg";

impl Row {
    /// Adds properties to a row.
    pub(crate) const fn with(mut self, props: &'static [Prop]) -> Row {
        self.props = props;
        self
    }

    /// Returns true if the operator has this property.
    #[must_use]
    pub fn has(&self, prop: Prop) -> bool {
        self.props.contains(&prop)
    }

    /// Returns true if the operator draws random numbers.
    #[must_use]
    pub fn draws(&self) -> bool {
        self.has(Prop::Draws)
    }

    /// Returns what the operator sorts, if it sorts.
    #[must_use]
    pub fn sorts(&self) -> Option<SortAxis> {
        self.props.iter().find_map(|p| match p {
            Prop::Sorts(what) => Some(*what),
            _ => None,
        })
    }

    /// Returns the library that implements the operator.
    #[must_use]
    pub fn library(&self) -> Option<Library> {
        self.props.iter().find_map(|p| match p {
            Prop::Library(library) => Some(*library),
            _ => None,
        })
    }

    /// Returns the number of spatial dimensions, if the operator's name says it.
    pub(crate) fn spatial(&self) -> Option<usize> {
        self.props.iter().find_map(|p| match p {
            Prop::Spatial(n) => Some(*n),
            _ => None,
        })
    }
}

/// Returns true if `op` has a row with this property.
#[must_use]
pub fn has(op: &str, prop: Prop) -> bool {
    lookup(op).is_some_and(|op| op.row.has(prop))
}

/// Returns true if each element of the result is a function of one element of each operand.
#[must_use]
pub fn is_elementwise(op: &str) -> bool {
    lookup(op)
        .is_some_and(|op| matches!(op.row.route, Route::Pointwise(_)) || op.row.has(Prop::Converts))
}

/// Returns true if `op` reads a tensor's sizes, strides or offset, and no element.
#[must_use]
pub fn reads_metadata(op: &str) -> bool {
    READS_METADATA.contains(&op)
}

/// Returns true if `op` asserts something and has no result.
#[must_use]
pub fn asserts(op: &str) -> bool {
    op == ASSERT_ASYNC || lookup(op).is_some_and(|op| matches!(op.row.route, Route::Assert))
}

/// Returns the library that implements `op`, which need not have a row.
#[must_use]
pub fn library(op: &str) -> Option<Library> {
    if let Some(op) = lookup(op) {
        return op.row.library();
    }
    // All overloads share a line of the table; one with a row was answered above.
    let (name, _) = op.strip_prefix("aten.")?.split_once('.')?;
    let at = WITHOUT_ROW.binary_search_by_key(&name, |(n, _)| n);
    at.ok().map(|at| WITHOUT_ROW[at].1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows;

    #[test]
    fn rows_with_a_seed_are_those_that_draw() {
        for row in rows().filter(|r| r.name.starts_with("aten.")) {
            let schema = lookup(row.name).expect("a row").schema();
            let both = ["seed", "stream"].map(|p| schema.position(p).is_some());
            assert_eq!(both, [row.draws(); 2], "{}", row.name);
        }
    }

    #[test]
    fn views_say_whether_they_share_memory() {
        let shares = [Prop::Alias, Prop::MayAlias, Prop::Restrides, Prop::Bitcasts];
        for row in rows() {
            let schema = lookup(row.name).expect("a row").schema();
            let annotated = schema.returns.iter().any(|r| r.alias.is_some());
            let props = shares.iter().filter(|p| row.has(**p)).count();
            match row.route {
                // Tracers make a tensor of a constant with it, which is a new one at each call.
                _ if row.name == "aten.lift_fresh.default" => assert_eq!(props, 0),
                Route::View(_) if annotated => assert_eq!(props, 1, "{}", row.name),
                // Its argument is used no more, so that PyTorch need not say that memory is shared.
                Route::View(_) if row.name == "aten._unsafe_view.default" => assert_eq!(props, 1),
                Route::View(_) => assert_eq!(props, 0, "{}", row.name),
                _ if row.has(Prop::Bitcasts) => assert_eq!(props, 1),
                _ => assert_eq!(props, 0, "{}", row.name),
            }
        }
    }

    #[test]
    fn rows_that_sort_have_the_parameters_that_say_what() {
        let mut count = 0;
        for row in rows() {
            let Some(sorts) = row.sorts() else { continue };
            let schema = lookup(row.name).expect("a row").schema();
            let has = |p: &str| schema.position(p).is_some();
            let wants = match sorts {
                SortAxis::Dim => has("self") && has("dim"),
                SortAxis::First | SortAxis::Flat => has("self") && !has("dim"),
                SortAxis::Count => has("n"),
            };
            assert!(wants, "{}", row.name);
            count += 1;
        }
        assert_eq!(count, 13);
    }

    #[test]
    fn names_tell_the_number_of_spatial_dimensions() {
        for row in rows() {
            if let Some(n) = row.spatial() {
                assert!(row.name.contains(&format!("{n}d")), "{}", row.name);
            }
        }
        assert_eq!(
            lookup("aten.max_pool3d.default")
                .expect("a row")
                .row
                .spatial(),
            Some(3)
        );
    }

    #[test]
    fn libraries_are_found_with_and_without_rows() {
        assert!(WITHOUT_ROW.is_sorted_by_key(|(name, _)| name));
        for (name, _) in WITHOUT_ROW {
            assert!(
                library(&format!("aten.{name}.dtype")).is_some(),
                "{name} has a row of this overload"
            );
        }
        assert_eq!(library("aten.mm.default"), Some(Library::Product));
        assert_eq!(library("aten.mm.dtype"), Some(Library::ProductWithBias));
        assert_eq!(library("aten.sort.stable"), Some(Library::Sort));
        assert_eq!(
            library("aten._scaled_mm.default"),
            Some(Library::ProductWithBias)
        );
        assert_eq!(library("aten.add.Tensor"), None);
        assert_eq!(library("aten.sort.values"), None);
        assert_eq!(library("prims.mm"), None);
    }
}
