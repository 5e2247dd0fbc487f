//! Stores whose elements interleave: a loop of a few turns inside the lanes, whose turns write neighbouring elements.
//!
//! Images that go from planes to channels last have two to four channels side by side. Lanes run over pixels, so that every channel is
//! read by whole vectors. The vectors of all channels are kept, and permuted into whole vectors of the result:
//!
//! ```text
//! for x by 16 lanes                     for x by 16 lanes
//!   for c in 0..3                         for c in 0..3 (unrolled)
//!     out[3*x + c] = in[x + c*n]   ->       kept[c] = in[x + c*n ..]
//!                                         out[3*x ..] = three vectors of kept[0], kept[1], kept[2]
//! ```

use crate::helpers::Name;
use crate::kernel::Emitter;
use crate::types::{self, CType};
use inrush_base::tally::{Way, reached};
use inrush_base::{Result, digits};
use inrush_expr::Expr;
use inrush_kernel::{Def, INTERLEAVED, Item, KBufId, Loop, Range, ValId};
use inrush_loops::StoreMode;
use std::fmt::Write as _;

/// The store of a loop whose turns interleave.
#[derive(Clone, Copy)]
pub(crate) struct Interleaved {
    buf: KBufId,
    offset: Expr,
    value: ValId,
    turns: i64,
}

impl Emitter<'_> {
    /// Returns the store that ends a loop inside whole lanes, if its turns interleave and nothing else is stored.
    pub(crate) fn interleaved(&self, l: &Loop) -> Option<Interleaved> {
        let lane = self.state.lane.as_ref()?;
        let Range::Full(extent) = l.range else {
            return None;
        };
        let turns = (self.exprs.as_int(extent)).filter(|n| INTERLEAVED.contains(n))?;
        let (last, before) = l.body.split_last()?;
        let Item::Store {
            buf,
            offset,
            value,
            mode: StoreMode::Set,
            mask: None,
        } = *last
        else {
            return None;
        };
        let is = |sym, n| {
            let c = self.exprs.coefficient(offset, sym);
            c.is_some_and(|c| self.exprs.is_int(c, n))
        };
        let d = self.kernel.buffer(buf).dtype;
        let plain = d.size() == 4 && !d.is_narrow_float() && !self.per_lane(buf);
        let whole = lane.count.is_none() && lane.copies == 1 && lane.rows.is_none();
        // What an earlier turn stored is not in memory yet.
        let values = before.iter().all(|i| match i {
            Item::Let(v) => {
                !matches!(self.kernel.value(*v).def, Def::Load { buf: b, .. } if b == buf)
            }
            _ => false,
        });
        (plain && whole && values && lane.width >= 4 && is(lane.sym, turns) && is(l.sym, 1))
            .then_some(Interleaved {
                buf,
                offset,
                value,
                turns,
            })
    }

    /// Writes a loop inside the lanes whose turns interleave.
    pub(crate) fn interleave(&mut self, l: &Loop, name: &Name, s: Interleaved) -> Result<()> {
        reached(Way::Interleave);
        let elem = types::memory(self.kernel.buffer(s.buf).dtype);
        let (w, turns) = (self.width(), digits(s.turns as u32));
        let ty = self.helpers.vector(elem, w);
        self.open("");
        self.line([&*ty, " ", name, "k[", &turns, "];"]);
        self.names.insert(l.sym, (name.clone(), false));
        self.line(["#pragma GCC unroll ", &*turns]);
        self.open([
            "for (i64 ",
            name,
            " = 0; ",
            name,
            " < ",
            &turns,
            "; ",
            name,
            "++)",
        ]);
        let (_, values) = l.body.split_last().expect("it ends in the store");
        self.items(values)?;
        let vector = self.vector(s.value)?;
        self.line([name, "k[", name, "] = ", &vector, ";"]);
        self.close();
        // The place of the first turn's first lane.
        self.names.insert(l.sym, ("0".into(), false));
        let at = self.expr(s.offset, false)?;
        let f = self.helpers.interleave(elem, w, s.turns);
        let buf = self.buffer_name(s.buf);
        self.line([&*f, "(", &buf, " + ", &at, ", ", name, "k);"]);
        self.close();
        Ok(())
    }
}

/// Returns the body of a helper that writes `turns` vectors of `w` lanes: lane `l` of vector `j` of the result is lane `(w*j + l) / turns`
/// of the vector `(w*j + l) % turns`. Each vector after the first adds its lanes by a permutation.
pub(crate) fn permutations(vector: &str, w: u32, turns: i64) -> String {
    let mut body = String::new();
    for j in 0..turns {
        let from = |l: i64| ((w as i64 * j + l) % turns, (w as i64 * j + l) / turns);
        let mut sum = "v[0]".to_string();
        for k in 1..turns {
            let lanes = (0..w as i64).map(|l| match from(l) {
                (0, at) if k == 1 => at,
                (of, at) if of == k => w as i64 + at,
                _ => l,
            });
            let lanes: Vec<String> = lanes.map(|l| l.to_string()).collect();
            sum = format!("SHUF{w}({sum}, v[{k}], {})", lanes.join(","));
        }
        _ = write!(body, "*({vector}u *)(p + {}) = {sum};\n ", w as i64 * j);
    }
    body
}

impl crate::helpers::Helpers {
    /// Writes vectors whose lanes interleave.
    fn interleave(&mut self, elem: CType, w: u32, turns: i64) -> Name {
        let kind = match turns {
            2 => "2",
            3 => "3",
            _ => "4",
        };
        self.once(("interleave", kind, elem, w), |h| {
            let v = h.vector(elem, w);
            let name = format!("interleave{turns}_{v}");
            h.shuffle(w);
            h.function(
                &name,
                format_args!("void {name}({elem} *p, const {v} *v)"),
                |_| permutations(&v, w, turns),
            );
            name
        })
    }
}

#[cfg(test)]
mod tests {
    use super::permutations;

    /// Carries out the text of the permutations on vectors whose elements say where they belong.
    #[test]
    fn elements_come_to_their_places() {
        for (w, turns) in [(4, 2), (4, 3), (8, 3), (8, 4), (16, 2), (16, 3), (16, 4)] {
            let text = permutations("v", w, turns);
            let mut out = Vec::new();
            for line in text.lines().filter(|l| l.contains('=')) {
                let mut sum: Vec<i64> = (0..w as i64).map(|l| l * turns).collect();
                let parts: Vec<&str> = line.split("v[").skip(2).collect();
                assert_eq!(parts.len() as i64, turns - 1, "{line}");
                for (k, part) in parts.iter().enumerate() {
                    let (_, lanes) = part.split_once(", ").unwrap();
                    let lanes = lanes.split(')').next().unwrap();
                    let lanes: Vec<usize> = lanes.split(',').map(|n| n.parse().unwrap()).collect();
                    let second = |l: usize| l as i64 * turns + k as i64 + 1;
                    sum = lanes
                        .iter()
                        .map(|l| match l.checked_sub(w as usize) {
                            Some(l) => second(l),
                            None => sum[*l],
                        })
                        .collect();
                }
                out.extend(sum);
            }
            let all: Vec<i64> = (0..w as i64 * turns).collect();
            assert_eq!(out, all, "{w} lanes, {turns} turns");
        }
    }
}
