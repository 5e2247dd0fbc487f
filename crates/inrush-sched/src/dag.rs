//! Units of work (fused nodes) and an order of them that merging keeps valid.
//!
//! Every unit has a position; each dependency points from a lower to a higher one. Merging two units looks only at
//! the units between their positions, so that fusion stays near linear in the size of the program.

use smallvec::SmallVec;

/// Most units between two that are merged.
const WINDOW: usize = 1024;

/// Nodes of a unit; most stay alone or find few others.
pub(crate) type Members = SmallVec<[u32; 4]>;

pub(crate) struct Dag {
    /// By node: nodes that must run before it, after it.
    pub before: Vec<SmallVec<[u32; 4]>>,
    pub after: Vec<SmallVec<[u32; 4]>>,
    /// By node: its unit.
    pub unit: Vec<u32>,
    /// By unit: its nodes, ascending. Empty once merged into another.
    pub members: Vec<Members>,
    /// By unit: its position; by position: the unit there (`u32::MAX` for none).
    position: Vec<u32>,
    at: Vec<u32>,
    /// By unit: the last search that saw it.
    seen: Vec<u32>,
    /// Number of searches, which saves clearing `seen`.
    search: u32,
}

impl Dag {
    /// One unit per node, in node order.
    pub(crate) fn new(before: Vec<SmallVec<[u32; 4]>>) -> Dag {
        let n = before.len();
        let mut after: Vec<SmallVec<[u32; 4]>> = crate::deps::lists(n);
        for (k, list) in before.iter().enumerate() {
            for b in list {
                after[*b as usize].push(k as u32);
            }
        }
        Dag {
            before,
            after,
            unit: (0..n as u32).collect(),
            members: (0..n as u32).map(|k| Members::from_slice(&[k])).collect(),
            position: (0..n as u32).collect(),
            at: (0..n as u32).collect(),
            seen: vec![0; n],
            search: 0,
        }
    }

    pub(crate) fn unit_of(&self, node: usize) -> usize {
        self.unit[node] as usize
    }

    /// Units that must run before unit `u`, with repetitions.
    fn unit_before(&self, u: usize) -> impl Iterator<Item = usize> {
        self.members[u]
            .iter()
            .flat_map(|m| &self.before[*m as usize])
            .map(|b| self.unit[*b as usize] as usize)
            .filter(move |b| *b != u)
    }

    /// Merges unit `b` into unit `a` and gives the nodes that `b` had; `None`, and nothing is done, when a third unit is on
    /// a path between them (or too many units might).
    pub(crate) fn merge(&mut self, a: usize, b: usize) -> Option<Members> {
        let (low, high) = if self.position[a] < self.position[b] {
            (a, b)
        } else {
            (b, a)
        };
        let from = self.position[low];
        // The unit must come after everything that `high` waits for.
        let last = self
            .unit_before(high)
            .filter(|u| *u != low)
            .map(|u| self.position[u])
            .max();
        let place = match last {
            Some(last) if last > from => self.make_room(low, high, last)?,
            _ => from,
        };
        let gone = self.position[b];
        let own = self.position[a];
        for p in [gone, own] {
            self.at[p as usize] = u32::MAX;
        }
        self.position[a] = place;
        self.at[place as usize] = a as u32;
        let gone = std::mem::take(&mut self.members[b]);
        let members = &mut self.members[a];
        let sorted = members.is_empty() || members.last() < gone.first();
        for m in &gone {
            self.unit[*m as usize] = a as u32;
            members.push(*m);
        }
        // Most units grow by later nodes.
        if !sorted {
            members.sort_unstable();
        }
        Some(gone)
    }

    /// Moves the units up to `last` that depend on `low` to positions after it, and returns the position for the merged unit.
    /// `None` when `high` waits for something that depends on `low`.
    fn make_room(&mut self, low: usize, high: usize, last: u32) -> Option<u32> {
        let from = self.position[low];
        if (last - from) as usize > WINDOW {
            return None;
        }
        self.search += 1;
        let mark = self.search;
        // Everything between the two that depends on `low`.
        let mut stack = vec![low];
        self.seen[low] = mark;
        while let Some(u) = stack.pop() {
            for i in 0..self.members[u].len() {
                let m = self.members[u][i] as usize;
                for j in 0..self.after[m].len() {
                    let v = self.unit[self.after[m][j] as usize] as usize;
                    if v == high || self.position[v] > last || self.seen[v] == mark {
                        continue;
                    }
                    self.seen[v] = mark;
                    stack.push(v);
                }
            }
        }
        if self
            .unit_before(high)
            .any(|u| u != low && self.seen[u] == mark)
        {
            return None;
        }
        // Positions from..=last: first what does not depend on `low`, then the merged unit, then what does.
        let units: Vec<u32> = self.at[from as usize..=last as usize]
            .iter()
            .copied()
            .filter(|u| *u != u32::MAX && *u as usize != low)
            .collect();
        let (moved, kept): (Vec<u32>, Vec<u32>) = units
            .into_iter()
            .partition(|u| self.seen[*u as usize] == mark);
        self.at[from as usize..=last as usize].fill(u32::MAX);
        let mut next = from;
        let mut put = |dag: &mut Dag, u: u32| {
            dag.position[u as usize] = next;
            dag.at[next as usize] = u;
            next += 1;
        };
        for u in kept {
            put(self, u);
        }
        put(self, low as u32);
        for u in moved {
            put(self, u);
        }
        Some(self.position[low])
    }

    /// Units in a valid order.
    pub(crate) fn order(&self) -> Vec<usize> {
        self.at
            .iter()
            .filter(|u| **u != u32::MAX)
            .map(|u| *u as usize)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dag(before: &[&[u32]]) -> Dag {
        Dag::new(before.iter().map(|b| SmallVec::from_slice(b)).collect())
    }

    fn valid(d: &Dag) {
        let order = d.order();
        for u in &order {
            for b in d.unit_before(*u) {
                assert!(d.position[b] < d.position[*u], "{b} before {u}");
            }
        }
    }

    #[test]
    fn a_path_through_a_third_forbids_merging() {
        // 0 -> 1 -> 2, 0 -> 2
        let mut d = dag(&[&[], &[0], &[0, 1]]);
        assert!(d.merge(0, 2).is_none());
        assert_eq!(d.merge(1, 2).as_deref(), Some(&[2][..]));
        assert_eq!(d.merge(0, 1).as_deref(), Some(&[1, 2][..]));
        assert_eq!(d.order(), [0]);
    }

    #[test]
    fn independent_units_in_between_move() {
        // 0 -> 1, 2 alone, 3 <- 0, 2; 4 <- 1, 3
        let mut d = dag(&[&[], &[0], &[], &[0, 2], &[1, 3]]);
        assert!(d.merge(0, 3).is_some());
        valid(&d);
        assert_eq!(d.order(), [2, 0, 1, 4]);
        assert!(d.merge(0, 4).is_none());
        assert!(d.merge(0, 1).is_some());
        assert!(d.merge(4, 0).is_some());
        valid(&d);
        assert_eq!(d.order(), [2, 4]);
    }
}
