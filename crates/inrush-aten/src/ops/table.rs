//! Operators by name. The table is made when inrush is built: a process asks for a few dozen of them.
//!
//! The table is an open-addressing hash table with linear probing, computed by `const` evaluation.
//! Starting a process costs nothing for operators that it does not use: neither a table nor a
//! schema is built for them.

use super::FAMILIES;
use crate::Op;
use crate::ops::pointwise::row as pointwise;
use std::sync::OnceLock;

/// Number of rows.
const ROWS: usize = {
    let (mut count, mut f) = (0, 0);
    while f < FAMILIES.len() {
        count += FAMILIES[f].len();
        f += 1;
    }
    count
};

/// Places of the table: enough that most names are at the first one that is looked at.
/// A load of at most one half also means that a free place exists, so that every search ends.
const PLACES: usize = (2 * ROWS).next_power_of_two();

/// A place that holds no operator.
const FREE: u16 = u16::MAX;

/// Every row, family by family.
/// Statics, because [`Op`] keeps its parsed schema and callers keep `&'static Op`.
static OPS: [Op; ROWS] = {
    let mut ops = [const {
        Op {
            row: &FAMILIES[0][0],
            schema: OnceLock::new(),
        }
    }; ROWS];
    let (mut at, mut f) = (0, 0);
    while f < FAMILIES.len() {
        let mut k = 0;
        while k < FAMILIES[f].len() {
            ops[at].row = &FAMILIES[f][k];
            at += 1;
            k += 1;
        }
        f += 1;
    }
    ops
};

/// Positions in [`OPS`]; a name is at the place of its hash or at one of those that follow, before the first free one.
static TABLE: [u16; PLACES] = {
    let mut table = [FREE; PLACES];
    let (mut at, mut f) = (0, 0);
    while f < FAMILIES.len() {
        let mut k = 0;
        while k < FAMILIES[f].len() {
            let mut place = hash(FAMILIES[f][k].name);
            while table[place] != FREE {
                place = (place + 1) % PLACES;
            }
            table[place] = at;
            at += 1;
            k += 1;
        }
        f += 1;
    }
    table
};

/// The place where the search for a name begins.
/// FNV-1a without its offset basis. The upper bits are folded into the lower ones, which alone
/// choose the place.
const fn hash(name: &str) -> usize {
    let bytes = name.as_bytes();
    let (mut hash, mut k) = (0u32, 0);
    while k < bytes.len() {
        hash = (hash ^ bytes[k] as u32).wrapping_mul(0x0100_0193);
        k += 1;
    }
    (hash ^ (hash >> 15)) as usize % PLACES
}

/// Returns the operator called `name` (`aten.add.Tensor`), or the one that `name` is an alias of.
///
/// An alias replaces the name between the dots and keeps the overload: `aten.clip.Tensor` becomes
/// `aten.clamp.Tensor`. A row of the alias's own name would win.
pub fn lookup(name: &str) -> Option<&'static Op> {
    exactly(name).or_else(|| {
        let mut parts = name.splitn(3, '.');
        let (space, base, overload) = (parts.next()?, parts.next()?, parts.next()?);
        let (_, of) = pointwise::ALIASES
            .iter()
            .find(|(alias, _)| *alias == base)?;
        exactly(&format!("{space}.{of}.{overload}"))
    })
}

/// The operator that has this name and no other.
fn exactly(name: &str) -> Option<&'static Op> {
    let mut place = hash(name);
    loop {
        match TABLE[place] {
            FREE => return None,
            at if OPS[at as usize].row.name == name => return Some(&OPS[at as usize]),
            _ => place = (place + 1) % PLACES,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_is_found_by_its_name() {
        let mut names = std::collections::HashSet::new();
        for row in crate::rows() {
            let found = lookup(row.name).expect("it stands in the table").row;
            assert_eq!((found.name, found.schema), (row.name, row.schema));
            assert!(names.insert(row.name), "two rows are {}", row.name);
        }
        assert_eq!(names.len(), ROWS);
    }

    #[test]
    fn other_names_of_an_operator_find_it() {
        for (name, row) in [
            ("aten.multiply.Scalar", "aten.mul.Scalar"),
            ("aten.special_psi.default", "aten.digamma.default"),
            ("aten.__and__.Tensor", "aten.bitwise_and.Tensor"),
        ] {
            assert_eq!(lookup(name).expect(name).row.name, row);
        }
        for unknown in [
            "",
            "aten",
            "aten.add",
            "aten.multiply.tensor",
            "prims.add.Tensor",
        ] {
            assert!(lookup(unknown).is_none(), "{unknown}");
        }
    }
}
