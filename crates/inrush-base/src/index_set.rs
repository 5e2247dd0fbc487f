//! Open-addressing index over a list that the caller owns.

use rustc_hash::{FxBuildHasher, FxHashMap};
use std::hash::{BuildHasher, Hash};

/// Maps values to their positions in the caller's list. The table holds hashes alone: values, which may be large, stay in the
/// list, and the caller compares them.
#[derive(Clone, Debug, Default)]
pub struct Lookup {
    /// Position by hash. After a collision, the next free number stands for the hash (linear probing).
    positions: FxHashMap<u64, u32>,
}

/// Where [`Lookup::find`] has found nothing: the place of a value that is not in the list yet.
#[derive(Debug)]
pub struct Vacant(u64);

impl Lookup {
    /// A table with room for so many values.
    pub fn with_capacity(values: usize) -> Lookup {
        Lookup {
            positions: FxHashMap::with_capacity_and_hasher(values, FxBuildHasher),
        }
    }

    /// The position of a value, or the place for it. `is` says whether what the list has at a position equals the value.
    pub fn find(
        &self,
        value: impl Hash,
        mut is: impl FnMut(usize) -> bool,
    ) -> Result<usize, Vacant> {
        let mut hash = FxBuildHasher.hash_one(value);
        while let Some(&position) = self.positions.get(&hash) {
            if is(position as usize) {
                return Ok(position as usize);
            }
            hash = hash.wrapping_add(1);
        }
        Err(Vacant(hash))
    }

    /// Remembers the position of a value that was not found. Nothing else was inserted since.
    pub fn insert(&mut self, place: Vacant, position: usize) {
        let before = self.positions.insert(place.0, position as u32);
        debug_assert!(before.is_none(), "two values in one place");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::Hasher;

    /// Numbers whose hashes are those of what is left of a division by ten.
    #[derive(PartialEq)]
    struct Colliding(u32);

    impl Hash for Colliding {
        fn hash<H: Hasher>(&self, state: &mut H) {
            (self.0 % 10).hash(state);
        }
    }

    /// Positions that a list without equal values has for each of some numbers.
    fn positions(lookup: &mut Lookup, numbers: &[u32]) -> Vec<usize> {
        let mut list: Vec<Colliding> = Vec::new();
        let mut position = |&n: &u32| {
            let value = Colliding(n);
            let place = match lookup.find(&value, |k| list[k] == value) {
                Ok(at) => return at,
                Err(place) => place,
            };
            lookup.insert(place, list.len());
            list.push(value);
            list.len() - 1
        };
        numbers.iter().map(&mut position).collect()
    }

    #[test]
    fn equal_hashes_keep_values_apart() {
        let numbers = [3, 13, 4, 3, 23, 13, 4, 23, 14];
        let want = [0, 1, 2, 0, 3, 1, 2, 3, 4];
        assert_eq!(positions(&mut Lookup::default(), &numbers), want);
        assert_eq!(positions(&mut Lookup::with_capacity(9), &numbers), want);
    }

    #[test]
    fn unknown_values_are_not_found() {
        let mut lookup = Lookup::default();
        assert!(lookup.find(7, |_| true).is_err());
        positions(&mut lookup, &[7]);
        let value = Colliding(7);
        assert_eq!(lookup.find(&value, |_| true).ok(), Some(0));
        assert!(lookup.find(&value, |_| false).is_err());
    }

    #[test]
    fn many_values_are_found_again() {
        let mut numbers: Vec<u32> = (0..1000).collect();
        numbers.extend(0..1000);
        let want: Vec<usize> = (0..1000).chain(0..1000).collect();
        assert_eq!(positions(&mut Lookup::default(), &numbers), want);
    }
}
