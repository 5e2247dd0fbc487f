//! Placement: puts values and effects into loops, each as far out as it may be (hoisting).
//!
//! A kernel has a head, evaluated once for a call; the grid's points; the loops inside a unit; and in the innermost of these the
//! nests of the bodies. A value is placed at the outermost level at which all axes that it depends on are known. What waits for
//! a reduction comes after the reduction's loop; what is pinned, as a load of something that the group stores, is not hoisted.
//!
//! ```text
//! head                          values of no axis
//! grid n                        values of n
//!   for c by lanes              values of n and c
//!     for r                     values of a nest's own axis, updates
//!     values after the loop     results of reductions, stores
//! ```

use crate::build::Builder;
use crate::live::Live;
use crate::nest::{Effect, EffectKind, GroupLoop, Nest};
use crate::vectorize::{OwnAxis, unroll_of_nest};
use crate::{AccId, Def, Item, Loop, Range, Role, ValId};
use inrush_base::tally::{Way, reached};
use inrush_base::{Error, Result};
use inrush_loops::Axis;
use smallvec::{SmallVec, smallvec};

/// Head and body of a kernel.
#[derive(Default)]
pub(crate) struct Tree {
    pub head: Vec<Item>,
    pub body: Vec<Item>,
}

/// Puts values and effects into loops.
pub(crate) struct Placer<'p, 'a> {
    b: &'p Builder<'a>,
    live: &'p Live,
    inner: &'p [GroupLoop],
    /// Where each nest has a lanes loop of its own: the axis by nest.
    own: Option<&'p [Option<OwnAxis>]>,
    /// Axes known at each level outside of the nests: none, those of the grid, one more for each group loop.
    level_bits: Vec<u64>,
    /// Items of each level so far: the head, the grid's points, then inside each group loop.
    lists: Vec<Vec<Item>>,
    /// By value: it is in some list, where all later nests see it.
    defined: Vec<bool>,
    /// By value, while a nest is placed: [`LATE`], [`SCAN`] and [`SEEN`].
    marks: Vec<u8>,
    /// By accumulator, whether a scan reads it as it stands.
    scanned: Vec<bool>,
    /// Values inside the loops of the open nest; the list is kept for the next one.
    placed: Vec<Placed>,
}

/// The value waits for a reduction over all axes of the nest.
const LATE: u8 = 1;
/// The value is a scan over an axis of one point, or reads one: it stays after its accumulator.
const SCAN: u8 = 2;
/// The nest needs the value.
const SEEN: u8 = 4;

/// A value inside the loops of a nest.
struct Placed {
    /// Number of axes that are open.
    depth: usize,
    /// It comes after the next loop.
    after: bool,
    value: ValId,
}

/// An accumulator, and the number of axes that are open where it starts.
type Start = (AccId, usize);

/// A nest whose loops are in the order in which they run.
struct Ordered<'n> {
    nest: &'n Nest,
    effects: SmallVec<[&'n Effect; 8]>,
    /// The axes, outermost first.
    order: Vec<usize>,
    /// The lanes of its own, and their position in `order`.
    lane: Option<(OwnAxis, usize)>,
    starts: SmallVec<[Start; 4]>,
}

impl<'p, 'a> Placer<'p, 'a> {
    /// `inner` are the loops inside a unit; `own` are the vector loops of nests, if the group has none.
    pub fn new(
        b: &'p Builder<'a>,
        live: &'p Live,
        grid: &[Axis],
        inner: &'p [GroupLoop],
        own: Option<&'p [Option<OwnAxis>]>,
    ) -> Self {
        // The number of a tile is no axis of a body.
        let bit = |a: &Axis| b.bits.get(&a.sym).copied().unwrap_or(0);
        let mut bits = grid.iter().fold(0, |acc, a| acc | bit(a));
        let mut level_bits = vec![0, bits];
        for l in inner {
            bits |= bit(&l.axis);
            level_bits.push(bits);
        }
        let mut scanned = vec![false; b.accs.len()];
        for v in &b.values {
            if let Def::Running { acc, .. } = &v.def {
                reached(Way::Scan);
                scanned[acc.index()] = true;
            }
        }
        Placer {
            b,
            live,
            inner,
            own,
            lists: vec![Vec::new(); level_bits.len()],
            level_bits,
            defined: vec![false; b.values.len()],
            marks: vec![0; b.values.len()],
            scanned,
            placed: Vec::new(),
        }
    }

    /// Places all nests, and closes the loops of the group around them.
    pub fn run(mut self) -> Result<Tree> {
        for n in 0..self.b.nests.len() {
            self.nest(n)?;
        }
        let mut items = self.lists.pop().unwrap_or_default();
        for l in self.inner.iter().rev() {
            let looped = Item::Loop(Box::new(Loop {
                sym: l.axis.sym,
                range: l.range,
                role: l.role,
                body: items,
            }));
            items = self.lists.pop().unwrap_or_default();
            items.push(looped);
        }
        Ok(Tree {
            head: self.lists.pop().unwrap_or_default(),
            body: items,
        })
    }

    /// Returns the list in which nests are placed.
    fn innermost(&mut self) -> &mut Vec<Item> {
        self.lists.last_mut().expect("at least head and grid")
    }

    /// Evaluates a value of the group, as far out as it may be.
    fn hoist(&mut self, v: ValId) {
        if std::mem::replace(&mut self.defined[v.index()], true) {
            return;
        }
        let info = self.b.infos[v.index()];
        let last = self.lists.len() - 1;
        let level = if info.pinned {
            last
        } else {
            (self.level_bits.iter())
                // The outermost level at which no axis of the value is unknown.
                .position(|bits| info.bits & !bits == 0)
                .unwrap_or(last)
        };
        self.lists[level].push(Item::Let(v));
    }

    /// Places one nest: its loops in the innermost list, other values further out.
    fn nest(&mut self, at: usize) -> Result<()> {
        let nest = &self.b.nests[at];
        let effects: SmallVec<[&Effect; 8]> = (nest.effects.iter().zip(&self.live.effects[at]))
            .filter(|(_, l)| **l)
            .map(|(e, _)| e)
            .collect();
        if effects.is_empty() {
            return Ok(());
        }
        let lane = self.own.and_then(|axes| axes[at]);
        let (order, lane_at) = nest.order(lane.map(|l| l.axis));
        // Everything that this nest evaluates, operands first.
        let needed = self.needed(&effects);
        let starts = effects
            .iter()
            .filter_map(|e| match e.kind {
                EffectKind::Update { acc, start, .. } => Some((acc, start)),
                EffectKind::Store { .. } | EffectKind::Check { .. } => None,
            })
            .chain(self.running(&needed, order.len()))
            .collect();
        let ordered = Ordered {
            nest,
            effects,
            order,
            lane: lane.zip(lane_at),
            starts,
        };
        let late = self.depths(at, &ordered, &needed)?;
        let mut items = self.loops(&ordered);
        let last: SmallVec<[Item; 4]> = ordered.stores(0).collect();
        self.innermost().append(&mut items);
        // After the loops of the reduction, in the innermost list of the group.
        for v in late {
            self.hoist(v);
        }
        self.innermost().extend(last);
        Ok(())
    }

    /// Hoists what depends on no axis of the nest, and notes for the other values how many axes are open where they are
    /// evaluated. Returns those that wait for a reduction over all axes.
    fn depths(&mut self, at: usize, o: &Ordered, needed: &[ValId]) -> Result<Vec<ValId>> {
        let b = self.b;
        let n = o.order.len();
        let mut position: SmallVec<[usize; 4]> = smallvec![0; n];
        for (p, axis) in o.order.iter().enumerate() {
            position[*axis] = p;
        }
        let own_bits: SmallVec<[u64; 4]> = o.nest.axes.iter().map(|a| b.bits[&a.sym]).collect();
        let all_own = own_bits.iter().fold(0, |a, x| a | x);
        let mut placed = std::mem::take(&mut self.placed);
        placed.clear();
        let mut late: Vec<ValId> = Vec::new();
        for &value in needed {
            let info = b.infos[value.index()];
            let of = |m: u8, u: &ValId| m | self.marks[u.index()];
            let mut mark = b.uses(value).iter().fold(0, of) & (LATE | SCAN);
            match &b.values[value.index()].def {
                Def::Final(a) if o.starts.iter().any(|s| s.0 == *a && s.1 == 0) => mark |= LATE,
                Def::Running { .. } => mark |= SCAN,
                _ => {}
            }
            self.marks[value.index()] |= mark;
            let reduction = info.after.filter(|(nest, _)| *nest == at);
            let mut put = |depth, after| {
                placed.push(Placed {
                    depth,
                    after,
                    value,
                })
            };
            if mark & LATE != 0 {
                late.push(value);
            } else if mark & SCAN != 0 && n == 0 {
                put(0, false);
            } else if info.bits & all_own == 0 && reduction.is_none() {
                self.hoist(value);
            } else {
                let depth = (0..n)
                    .filter(|axis| info.bits & own_bits[*axis] != 0)
                    .map(|axis| position[axis] + 1)
                    .max()
                    .unwrap_or(0);
                // The result of a reduction exists after its loop, at the depth of the axes outside
                // of it.
                match reduction {
                    Some((_, d)) if depth <= d => put(d, true),
                    Some(_) => {
                        return Err(Error::unsupported(
                            "a value that depends on the result of a reduction and on its axes",
                        ));
                    }
                    None => put(depth, false),
                }
            }
        }
        for v in needed {
            self.marks[v.index()] = 0;
        }
        self.placed = placed;
        Ok(late)
    }

    /// Builds the loops of a nest, innermost first.
    fn loops(&self, o: &Ordered) -> Vec<Item> {
        let n = o.order.len();
        let values = |d: usize, after: bool| {
            let at = (self.placed.iter()).filter(move |p| p.depth == d && p.after == after);
            at.map(|p| Item::Let(p.value))
        };
        let mut items: Vec<Item> = Vec::new();
        for d in (0..=n).rev() {
            // Accumulators come first: a scan without axes reads its own among the values of this level.
            let count = self.placed.iter().filter(|p| p.depth == d).count();
            let room = count + o.starts.len() + o.effects.len() + 1;
            let mut level: Vec<Item> = Vec::with_capacity(room);
            let at = o.starts.iter().filter(|(_, start)| *start == d);
            level.extend(at.map(|(acc, _)| Item::Acc(*acc)));
            level.extend(values(d, false));
            if d < n && !items.is_empty() {
                let axis = o.nest.axes[o.order[d]];
                let role = match o.lane {
                    Some((lane, at)) if at == d => Role::Vector {
                        width: lane.width,
                        unroll: unroll_of_nest(self.b, &items, &o.starts, d),
                    },
                    _ => Role::Serial,
                };
                level.push(Item::Loop(Box::new(Loop {
                    sym: axis.sym,
                    range: Range::Full(axis.size),
                    role,
                    body: items,
                })));
            }
            if d == n {
                level.extend(o.effects.iter().filter_map(|e| self.update(e)));
            }
            level.extend(values(d, true));
            if d > 0 {
                level.extend(o.stores(d));
            }
            items = level;
        }
        items
    }

    /// Makes the item of an update.
    fn update(&self, e: &Effect) -> Option<Item> {
        match e.kind {
            // The value of a scan updates its accumulator itself.
            EffectKind::Update { acc, value, .. } if !self.scanned[acc.index()] => {
                Some(Item::Update { acc, value })
            }
            _ => None,
        }
    }

    /// Returns accumulators of live scans, which start before the last axis.
    fn running(&self, needed: &[ValId], n: usize) -> Vec<Start> {
        needed
            .iter()
            .filter_map(|v| match self.b.values[v.index()].def {
                Def::Running { acc, .. } => Some((acc, n.saturating_sub(1))),
                _ => None,
            })
            .collect()
    }

    /// Returns values that the effects need and that no enclosing scope has yet, operands first.
    fn needed(&mut self, effects: &[&Effect]) -> Vec<ValId> {
        let b = self.b;
        let mut todo: Vec<ValId> = Vec::new();
        for e in effects {
            b.effect_needs(&e.kind, &mut todo);
        }
        let mut wanted = Vec::with_capacity(16);
        while let Some(v) = todo.pop() {
            if self.defined[v.index()] || self.marks[v.index()] == SEEN {
                continue;
            }
            self.marks[v.index()] = SEEN;
            wanted.push(v);
            todo.extend_from_slice(b.uses(v));
        }
        // Operands have lower numbers than what uses them.
        wanted.sort_unstable();
        wanted
    }
}

impl Ordered<'_> {
    /// Returns the stores inside the first `depth` axes.
    fn stores(&self, depth: usize) -> impl Iterator<Item = Item> + '_ {
        let at = self.effects.iter().filter(move |e| e.depth == depth);
        at.filter_map(|e| match &e.kind {
            EffectKind::Store {
                buf,
                offset,
                value,
                mode,
                mask,
            } => Some(Item::Store {
                buf: *buf,
                offset: *offset,
                value: *value,
                mode: *mode,
                mask: *mask,
            }),
            // An index that is checked is evaluated where it is known.
            EffectKind::Check { .. } | EffectKind::Update { .. } => None,
        })
    }
}
