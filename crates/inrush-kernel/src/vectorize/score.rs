//! Cost model of vectorisation: what lanes over an axis gain, as a sum of weights over the accesses and operations of one point of a nest.
//!
//! One unit is what a contiguous vector load saves compared with as many scalar loads. An access that takes each lane on its
//! own costs more than it saves. Weights were fitted to measurements; only their order matters much.

use super::Group;
use super::interleave;
use super::stencil::invariant_reduced;
use super::transpose::transposes;
use crate::nest::{Effect, EffectKind, Nest};
use crate::{Access, BufRole, Def, KBufId, ValId, access};
use inrush_base::{DType, Isa};
use inrush_expr::{Expr, Exprs, Sym};
use inrush_loops::scalar::OpClass;
use inrush_loops::{Axis, StoreMode};
use smallvec::SmallVec;

/// Gains of contiguous accesses.
const LOAD: f64 = 1.0;
const STORE: f64 = 2.0;
/// The same of vectors that are permuted first.
const INTERLEAVE: f64 = 1.0;
/// Cost of lanes that are each added by an index, under a mask.
const ADD_BY_INDEX: f64 = -0.5;
/// Gain where no sum over a vector ends each point, as it would with lanes along what is reduced.
const ACROSS: f64 = 64.0 * LOAD;

/// Returns how much lanes over `axis` gain in one point of nest `at`. `shared` are the group's axes if `axis` is one of them.
pub(super) fn score(g: &Group, at: usize, axis: &Axis, shared: &[Axis]) -> f64 {
    Score::new(g, at, axis, shared).run()
}

/// Multiplies the extents of axes.
pub(super) fn points(exprs: &Exprs, axes: &[Axis]) -> f64 {
    axes.iter()
        .map(|a| exprs.hint(a.size).max(1) as f64)
        .product()
}

/// One axis of one nest under judgement.
struct Score<'s, 'g, 'a> {
    g: &'s Group<'g, 'a>,
    at: usize,
    nest: &'s Nest,
    axis: &'s Axis,
    /// The group's axes if `axis` is one of them: the whole group then runs inside the lanes.
    shared: &'s [Axis],
    /// The axis as a bit of the builder's.
    bit: u64,
    /// The nest's axes: bits and extents.
    axes: SmallVec<[(u64, f64); 4]>,
}

impl<'s, 'g, 'a> Score<'s, 'g, 'a> {
    fn new(g: &'s Group<'g, 'a>, at: usize, axis: &'s Axis, shared: &'s [Axis]) -> Self {
        let nest = &g.b.nests[at];
        let exprs = g.b.tables.exprs;
        let axes = (nest.axes.iter())
            .map(|a| (g.b.bits[&a.sym], exprs.hint(a.size).max(1) as f64))
            .collect();
        Score {
            g,
            at,
            nest,
            axis,
            shared,
            bit: g.b.bits[&axis.sym],
            axes,
        }
    }

    /// Adds up effects and the values that they need, each value once.
    fn run(&self) -> f64 {
        let b = self.g.b;
        let mut total = 0.0;
        let mut todo: Vec<ValId> = Vec::new();
        let live = &self.g.live.effects[self.at];
        for (e, _) in self.nest.effects.iter().zip(live).filter(|(_, l)| **l) {
            b.effect_needs(&e.kind, &mut todo);
            total += self.effect(e);
        }
        let again = invariant_reduced(b, self.nest, self.axis);
        // Gains of loads that all lanes share, and whether other accesses take each lane on its own.
        let (mut broadcast, mut scalar) = (0.0, false);
        let mut seen = vec![false; b.values.len()];
        while let Some(v) = todo.pop() {
            if std::mem::replace(&mut seen[v.index()], true) {
                continue;
            }
            let bits = b.infos[v.index()].bits;
            if self.varying(v) {
                let weight = self.value(v);
                scalar |= weight < 0.0;
                total += weight * self.times(bits);
                todo.extend_from_slice(b.uses(v));
            } else if bits & again != 0 {
                // One load and copies of it to all lanes are one instruction where a point at a time has a load for each.
                if let Def::Load { .. } = b.values[v.index()].def {
                    broadcast += LOAD * self.times(bits);
                }
                todo.extend_from_slice(b.uses(v));
            }
        }
        // Where lanes are taken one by one anyway, a broadcast saves nothing.
        if scalar || broadcast == 0.0 {
            total
        } else {
            total + broadcast + ACROSS
        }
    }

    /// Weighs an effect, at all points of its depth.
    fn effect(&self, e: &Effect) -> f64 {
        let exprs = self.g.b.tables.exprs;
        match &e.kind {
            EffectKind::Update { .. } => 0.3 * points(exprs, &self.nest.axes),
            EffectKind::Store {
                buf,
                offset,
                mode,
                mask,
                ..
            } => {
                let masked = mask.is_some_and(|m| self.varying(m));
                let weight = match self.access(*offset) {
                    // One element after the other in any case; lanes come to them through memory.
                    Access::Gather
                        if *mode == StoreMode::Add
                            && masked
                            && self.has_masked_moves(*buf)
                            && self.has_short_indices(*buf, *offset) =>
                    {
                        ADD_BY_INDEX
                    }
                    Access::Strided(_)
                        if !self.shared.is_empty()
                            && interleave::turns(self.g, self.axis).is_some() =>
                    {
                        INTERLEAVE
                    }
                    _ => self.weigh(*buf, *offset, STORE),
                };
                weight * points(exprs, &self.nest.axes[..e.depth])
            }
            EffectKind::Check { .. } => 0.0,
        }
    }

    /// Weighs a value that varies over the lanes, once.
    fn value(&self, v: ValId) -> f64 {
        match &self.g.b.values[v.index()].def {
            // Transposing a tile costs a few shuffles.
            Def::Load {
                offset, mask: None, ..
            } if self.is_transposed(*offset) => -0.2,
            // Masks that differ between lanes are tried lane by lane where the machine has no loads under a mask.
            Def::Load {
                buf,
                offset,
                mask: Some(m),
                ..
            } if self.varying(*m) => match self.access(*offset) {
                Access::Contiguous if self.has_masked_moves(*buf) => 0.4,
                Access::Strided(_)
                    if self.has_masked_moves(*buf) && self.is_every_second(*buf, *offset) =>
                {
                    0.1
                }
                Access::Gather if self.has_gather(*buf, *offset) => -0.5,
                _ => -1.0,
            },
            Def::Load { buf, offset, .. } if self.is_every_second(*buf, *offset) => 0.3,
            Def::Load { buf, offset, .. } => self.weigh(*buf, *offset, LOAD),
            Def::Op { op, .. } if op.class() == OpClass::Math => 2.0,
            Def::Op { .. } => 0.2,
            _ => 0.0,
        }
    }

    /// Weighs an access without a mask of its own.
    fn weigh(&self, buf: KBufId, offset: Expr, weight: f64) -> f64 {
        if self.is_own_vector(buf) {
            return weight;
        }
        match self.access(offset) {
            Access::Uniform => 0.0,
            Access::Contiguous => weight,
            Access::Gather if self.has_gather(buf, offset) && weight == LOAD => -0.5,
            Access::Strided(_) | Access::Gather => -1.5 * weight,
        }
    }

    /// Classifies an offset for lanes over the axis.
    fn access(&self, offset: Expr) -> Access {
        let b = self.g.b;
        let some = !b.indirect.is_empty();
        let varies = |s: Sym| some && b.indirect.contains_key(&s) && b.bits[&s] & self.bit != 0;
        access(b.tables.exprs, offset, self.axis.sym, varies)
    }

    /// Counts how often something that depends on these axes is evaluated in one point of the group.
    fn times(&self, bits: u64) -> f64 {
        let of = self.axes.iter().filter(|a| a.0 & bits != 0);
        of.map(|a| a.1).product()
    }

    /// Returns true if a value differs between lanes. After a reduction inside the lanes everything does, whatever it is made of.
    fn varying(&self, v: ValId) -> bool {
        let info = self.g.b.infos[v.index()];
        info.bits & self.bit != 0 || (!self.shared.is_empty() && info.pinned)
    }

    /// Returns true for locals of a group that runs inside the lanes: they hold whole vectors.
    fn is_own_vector(&self, buf: KBufId) -> bool {
        let role = &self.g.b.buffers[buf.index()].role;
        !self.shared.is_empty() && matches!(role, BufRole::Local { .. })
    }

    /// Returns true if a load becomes two vectors and a permutation.
    fn is_every_second(&self, buf: KBufId, offset: Expr) -> bool {
        let b = self.g.b;
        matches!(self.access(offset), Access::Strided(c) if b.tables.exprs.is_int(c, 2))
            && b.buffers[buf.index()].dtype.size() >= 4
            && !self.is_own_vector(buf)
    }

    /// Returns true if the group's tile would be transposed for this load.
    fn is_transposed(&self, offset: Expr) -> bool {
        let b = self.g.b;
        b.nests.iter().all(|n| n.axes.is_empty())
            && (self.shared.iter()).any(|a| transposes(b, offset, self.axis, a))
    }

    /// Returns true if the machine moves elements of the buffer under a vector of masks.
    fn has_masked_moves(&self, buf: KBufId) -> bool {
        matches!(self.g.caps.isa, Isa::Avx2 | Isa::Avx512)
            && matches!(self.g.b.buffers[buf.index()].dtype.size(), 4 | 8)
            && !self.is_own_vector(buf)
    }

    /// Returns true if one instruction loads all lanes.
    fn has_gather(&self, buf: KBufId, offset: Expr) -> bool {
        self.g.caps.isa == Isa::Avx512 && self.has_short_indices(buf, offset)
    }

    /// Returns true if floats are accessed and every indirect index of the offset is one that the kernel makes of floats: such
    /// need half of their bits, where an instruction converts them.
    fn has_short_indices(&self, buf: KBufId, offset: Expr) -> bool {
        let b = self.g.b;
        let converts = |arg: ValId| match b.values[arg.index()].dtype {
            DType::F64 => self.g.caps.isa == Isa::Avx512,
            d => d.is_float(),
        };
        matches!(b.buffers[buf.index()].dtype, DType::F32 | DType::F64)
            && (b.expr_values(offset).iter()).all(|v| match &b.values[v.index()].def {
                Def::Indirect {
                    value, check: None, ..
                } => {
                    matches!(&b.values[value.index()].def, Def::Cast { arg, .. } if converts(*arg))
                }
                _ => true,
            })
    }
}
