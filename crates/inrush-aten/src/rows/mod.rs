//! The operators, one family a file.

mod arith;
mod convolution;
mod matmul;
mod reduce;
mod shape;
mod window;

use crate::{Op, Row};
use rustc_hash::FxHashMap;
use std::sync::OnceLock;

/// The families. A new file adds a line here.
const FAMILIES: &[&[Row]] = &[
    arith::ROWS,
    convolution::ROWS,
    matmul::ROWS,
    reduce::ROWS,
    shape::ROWS,
];

/// Every row, family by family.
pub fn rows() -> impl Iterator<Item = &'static Row> {
    FAMILIES.iter().flat_map(|f| f.iter())
}

/// The operator called `name` (`aten.add.Tensor`).
pub fn lookup(name: &str) -> Option<&'static Op> {
    static TABLE: OnceLock<FxHashMap<&'static str, Op>> = OnceLock::new();
    let table = TABLE.get_or_init(|| {
        rows()
            .map(|row| {
                (
                    row.name,
                    Op {
                        row,
                        schema: OnceLock::new(),
                    },
                )
            })
            .collect()
    });
    table.get(name)
}

#[cfg(test)]
mod tests {
    #[test]
    fn names_are_unique() {
        let mut seen = std::collections::BTreeSet::new();
        for row in super::rows() {
            assert!(seen.insert(row.name), "{} has two rows", row.name);
        }
    }
}
