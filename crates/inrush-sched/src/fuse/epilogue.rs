//! Fuses pointwise nodes into the epilogues of contractions.
//!
//! The node's axes have to be the contraction's, each paired with one, so that a result can be
//! computed from its sum alone. All accesses move by at most one element from column to column,
//! because columns are vector lanes.

use super::{Aligned, Edge, Fuser, SymPairs, Syms, Verdict, accesses, add};
use crate::Reason;
use inrush_base::Result;
use inrush_expr::{Exprs, Sym, SymMap};
use inrush_loops::{Axis, Body, Node, Stmt};

impl Fuser<'_> {
    /// Makes node `k` part of the epilogue of contraction unit `u`.
    pub(super) fn epilogue(&mut self, u: usize, k: usize) -> Result<Verdict> {
        let own = self.f.dag.unit_of(k);
        match self.f.nodes[self.f.dag.members[u][0] as usize] {
            Node::Library(_) => return Ok(Verdict::Kept(Reason::IsLibraryCall)),
            Node::Attention(_) => return Ok(Verdict::Kept(Reason::IsAttention)),
            Node::Body(_) | Node::Contraction(_) => {}
        }
        if self.body(k).is_reduction() {
            return Ok(Verdict::Kept(Reason::ReductionOfContraction));
        }
        if let Some(reason) = self.misfit(u, own) {
            return Ok(Verdict::Kept(reason));
        }
        let t = self.f.dag.members[u][0] as usize;
        if self.writes_operand(t, k) {
            return Ok(Verdict::Kept(Reason::Overwritten));
        }
        let Some(mut edges) = self.edges(u, own, false) else {
            return Ok(Verdict::Kept(Reason::Overwritten));
        };
        if edges.is_empty() {
            return Ok(Verdict::Kept(Reason::NotSameDomain));
        }
        let Some(map) = self.one_map(&mut edges)? else {
            return Ok(Verdict::Kept(Reason::ReadsOtherPoints));
        };
        let merged = match self.append(u, t, k, &map) {
            Ok(merged) => merged,
            Err(reason) => return Ok(Verdict::Kept(reason)),
        };
        if self.f.dag.merge(u, own).is_none() {
            return Ok(Verdict::Kept(Reason::WouldCycle));
        }
        // The contraction leads its unit; what was merged into it is empty from now on.
        let members = &mut self.f.dag.members[u];
        members.retain(|m| *m as usize != t);
        members.insert(0, t as u32);
        *self.f.nodes[t].body_mut() = merged;
        self.f.nodes[k] = Node::Body(Body::default());
        let gone = std::mem::take(&mut self.f.units[own]);
        let unit = &mut self.f.units[u];
        unit.appended = true;
        unit.stmts += gone.stmts;
        add(&mut unit.buffers, &gone.buffers);
        Ok(Verdict::Fused)
    }

    /// Returns true if node `k` writes the storage of an operand of contraction `t`.
    fn writes_operand(&self, t: usize, k: usize) -> bool {
        let Node::Contraction(c) = &self.f.nodes[t] else {
            return false;
        };
        let operands = [c.a.buf, c.b.buf].map(|b| self.loops.storage(b));
        let writes = self.body(k).writes();
        (writes.iter()).any(|b| operands.contains(&self.loops.storage(*b)))
    }

    /// Returns the one mapping of symbols from the second to the first side of all edges; `None` when there is none.
    fn one_map(&mut self, edges: &mut [Edge]) -> Result<Option<SymPairs>> {
        let splits = self.splits;
        let turned = |same: Aligned| -> SymPairs {
            let mut pairs: SymPairs = same.pairs.iter().map(|(x, y)| (*y, *x)).collect();
            pairs.sort_unstable();
            pairs
        };
        let mut map = None;
        for i in 0..edges.len() {
            let same = self.align(edges, i, true)?;
            if !same.whole {
                return Ok(None);
            }
            map = Some(turned(same));
        }
        // Splits of a later edge renamed axes of earlier ones: ask all again, without splitting.
        let again = edges.len() > 1 || self.splits != splits;
        for i in 0..if again { edges.len() } else { 0 } {
            let same = self.align(edges, i, false)?;
            if map.as_ref() != Some(&turned(same)) {
                return Ok(None);
            }
        }
        Ok(map)
    }

    /// Returns the epilogue of contraction `t` of unit `u` with the statements of node `k`, whose symbols `map` renames.
    fn append(
        &self,
        u: usize,
        t: usize,
        k: usize,
        map: &[(Sym, Sym)],
    ) -> std::result::Result<Body, Reason> {
        let (Node::Contraction(c), Node::Body(body)) = (&self.f.nodes[t], &self.f.nodes[k]) else {
            return Err(Reason::NotSameDomain);
        };
        let ex = self.ex();
        let wide = |axes: &[Axis]| {
            axes.iter()
                .filter(|a| !ex.is_int(a.size, 1))
                .map(|a| a.sym)
                .collect::<Syms>()
        };
        let (theirs, mine) = (wide(&c.epilogue.axes), wide(&body.axes));
        let covered = mine.len() == theirs.len()
            && mine.len() == map.len()
            && mine.iter().all(|s| map.iter().any(|(y, _)| y == s))
            && theirs.iter().all(|s| map.iter().any(|(_, x)| x == s));
        if !covered {
            return Err(Reason::NotSameDomain);
        }
        let rename: SymMap = map.iter().map(|(y, x)| (*y, ex.sym_expr(*x))).collect();
        let lanes: Vec<Sym> = c.n.iter().map(|a| a.sym).collect();
        if !affine_in_lanes(ex, body, &rename, &lanes) {
            return Err(Reason::NotAffineInLanes);
        }
        let first = crate::group::First {
            body: &c.epilogue,
            outer: c.epilogue.outer,
            appended: self.f.units[u].appended,
        };
        let reserved = c.k.iter().map(|a| a.sym);
        crate::group::append(ex, &self.loops.buffers, first, body, &rename, reserved)
            .ok_or(Reason::ReadsOtherPoints)
    }
}

/// Returns true if every access of a body, once renamed into a contraction's axes, moves by one element or none from column to
/// column.
fn affine_in_lanes(ex: &Exprs, body: &Body, rename: &SymMap, lanes: &[Sym]) -> bool {
    if body
        .stmts
        .iter()
        .any(|s| matches!(s, Stmt::Indirect { .. }))
    {
        return false;
    }
    accesses(body).all(|(_, coords, _)| {
        let mut moving = 0;
        coords.iter().all(|c| {
            let c = ex.subst(*c, rename);
            match ex.coefficients(c, lanes) {
                Some(coefs) => coefs.iter().all(|k| {
                    moving += !ex.is_int(*k, 0) as usize;
                    ex.is_int(*k, 0) || (ex.is_int(*k, 1) && moving <= lanes.len())
                }),
                None => false,
            }
        })
    })
}
