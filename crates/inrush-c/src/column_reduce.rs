//! Column reductions by strip-mining: sums over an axis whose elements are far apart in memory.
//!
//! The vector loop runs over columns, the reduction over rows inside of it. Written like that, each vector of columns touches one
//! cache line of every row: lines are a power of two or more apart, share few cache sets, and defeat the prefetcher. Instead the
//! columns are *strip-mined* and the loops *interchanged*: the accumulators of a strip fill an array in the first-level cache, and
//! [`ROWS`] rows at a time are read along their length.
//!
//! ```text
//! for x by vectors                     for strip of columns                 accumulators: STRIP_BYTES in L1
//!   acc = neutral                        strip[..] = neutral
//!   for y                                for y by ROWS
//!     acc = op(acc, in[y, x])    ->        for x in strip by vectors
//!   out[x] = finish(acc)                     acc = strip[x]
//!                                            for y in 0..ROWS (unrolled)
//!                                              acc = op(acc, in[y, x])
//!                                            strip[x] = acc
//!                                        for x in strip: out[x] = finish(strip[x])
//! ```
//!
//! Loading and storing an accumulator costs two accesses for `ROWS` rows. Long sums flush into an `f64` strip (see
//! [`crate::cascade`]).

use crate::cascade::TURNS;
use crate::helpers::Name;
use crate::kernel::Emitter;
use crate::loops::Lane;
use crate::text::paren;
use crate::types::{self, CType};
use inrush_base::tally::{Way, reached};
use inrush_base::{DType, Result};
use inrush_kernel::{AccId, Access, BufRole, Def, Item, Loop, Range, Role, access};

/// Rows that one sweep over a strip reads: the unroll factor.
const ROWS: i64 = 8;
/// Sweeps end where long sums and products are flushed.
const _: () = assert!(TURNS.count_ones() == 1 && TURNS % ROWS == 0);
/// Fewest rows for which strips pay.
const MANY: i64 = 8 * ROWS;
/// Fewest bytes between rows for which the hardware prefetcher takes each row for a stream of its own.
const APART: i64 = 1024;
/// Bytes that the accumulators of a strip take.
const STRIP_BYTES: i64 = 8192;

/// A vector loop in three parts: start of the accumulators, the row loop, the finish.
pub(crate) struct ColumnReduction<'k> {
    lanes: &'k Loop,
    /// Starts of accumulators, and values that every sweep evaluates anew.
    before: &'k [Item],
    /// The reduction: updates of `accs` and what these need.
    rows: &'k Loop,
    /// Values of the results, and their stores.
    after: &'k [Item],
    /// The accumulators, all of which start in `before` and have no index.
    accs: Vec<AccId>,
    /// C name of the vector loop's index.
    name: Name,
}

impl Emitter<'_> {
    /// Splits a vector loop into these parts, if it is a column reduction that strips make faster.
    pub(crate) fn as_column_reduction<'k>(
        &self,
        l: &'k Loop,
        name: &Name,
    ) -> Option<ColumnReduction<'k>> {
        if !matches!(
            (&l.role, &l.range),
            (Role::Vector { .. }, Range::Block { .. })
        ) {
            return None;
        }
        // The first loop of the body has to be the only one: `after` takes none.
        let at = l.body.iter().position(|i| matches!(i, Item::Loop(_)))?;
        let Item::Loop(rows) = &l.body[at] else {
            return None;
        };
        let (before, after) = (&l.body[..at], &l.body[at + 1..]);
        let Range::Full(extent) = rows.range else {
            return None;
        };
        let mut accs = Vec::new();
        for item in before {
            match item {
                Item::Acc(a) => accs.push(*a),
                Item::Let(_) => {}
                _ => return None,
            }
        }
        // Accumulators that one number holds: no index of an extreme, no masks.
        let plain = |a: &AccId| {
            let acc = &self.kernel.accs[a.index()];
            !acc.op.is_arg() && acc.dtype != DType::Bool
        };
        let fits = rows.role == Role::Serial
            && !accs.is_empty()
            && accs.iter().all(plain)
            && self.exprs.hint(extent) >= MANY
            && (after.iter()).all(|i| matches!(i, Item::Let(_) | Item::Store { .. }));
        if !fits {
            return None;
        }
        // One load that walks down columns is enough to pay for the strips.
        let mut apart = false;
        for item in &rows.body {
            match item {
                Item::Update { acc, .. } if accs.contains(acc) => {}
                Item::Let(v) => match &self.kernel.value(*v).def {
                    Def::Running { .. } | Def::Final(_) => return None,
                    Def::Load { buf, offset, .. } => {
                        let b = self.kernel.buffer(*buf);
                        let along = access(self.exprs, *offset, l.sym, |_| false);
                        let step = self.exprs.coefficient(*offset, rows.sym);
                        let step = step.map_or(0, |c| self.exprs.hint(c));
                        let bytes = step.saturating_mul(b.dtype.size() as i64).saturating_abs();
                        apart |=
                            b.role == BufRole::In && along == Access::Contiguous && bytes >= APART;
                    }
                    _ => {}
                },
                _ => return None,
            }
        }
        apart.then(|| ColumnReduction {
            lanes: l,
            before,
            rows,
            after,
            accs,
            name: name.clone(),
        })
    }

    /// Writes a column reduction by strips.
    pub(crate) fn column_reduction(&mut self, s: &ColumnReduction) -> Result<()> {
        let (Role::Vector { width, .. }, Range::Full(extent)) = (s.lanes.role, s.rows.range) else {
            return Ok(());
        };
        reached(Way::Strips);
        let sizes = s.accs.iter().map(|a| self.kernel.accs[a.index()].dtype);
        let bytes: i64 = sizes.map(|d| d.size() as i64).sum();
        // Columns of a strip: whole vectors of every width, which are at most 64 lanes.
        let strip = (STRIP_BYTES / bytes / 64).max(1) * 64;
        let count = paren(&self.expr(extent, false)?);
        self.open(format_args!(
            "for (i64 from = lo; from < hi; from += {strip})"
        ));
        self.line(format_args!(
            "const i64 to = from + {strip} < hi ? from + {strip} : hi;"
        ));
        for a in &s.accs {
            let acc = &self.kernel.accs[a.index()];
            let elem = types::scalar(acc.dtype);
            let neutral = self.neutral(acc.op, acc.dtype);
            self.line(format_args!(
                "{elem} strip{a}[{strip}] __attribute__((aligned(64))); \
                 for (i64 k = 0; k < {strip}; k++) strip{a}[k] = {neutral};"
            ));
            if self.facts.cascade.is_long(*a) {
                let neutral = self.neutral(acc.op, DType::F64);
                self.line(format_args!(
                    "f64 wide{a}[{strip}] __attribute__((aligned(64))); \
                     for (i64 k = 0; k < {strip}; k++) wide{a}[k] = {neutral};"
                ));
            }
        }
        self.line("i64 row = 0;");
        self.open(format_args!(
            "for (; row + {ROWS} <= {count}; row += {ROWS})"
        ));
        self.sweep(s, width, Some(ROWS.to_string()))?;
        self.flush_strips(s, width);
        self.close();
        // Fewer than `ROWS` rows are left: they stay in the `f32` strip, which the finish adds.
        let rest = self.exprs.modulo(extent, self.exprs.int(ROWS));
        if !self.exprs.is_int(rest, 0) {
            self.open(format_args!("if (row < {count})"));
            self.sweep(s, width, Some(format!("{count} - row")))?;
            self.close();
        }
        self.sweep(s, width, None)?;
        self.close();
        Ok(())
    }

    /// Flushes the strips of long sums and products into their `f64` strips, every [`TURNS`] rows.
    fn flush_strips(&mut self, s: &ColumnReduction, width: u32) {
        let long = |a: &&AccId| self.facts.cascade.is_long(**a);
        let long: Vec<AccId> = s.accs.iter().filter(long).copied().collect();
        if long.is_empty() {
            return;
        }
        let (own, wide) = (
            self.helpers.vector(CType::F32, width),
            self.helpers.vector(CType::F64, width),
        );
        // `row` is a multiple of `ROWS`: its bits below `TURNS` are all set in the last sweep of a
        // chain.
        let last = TURNS - ROWS;
        self.open(format_args!("if ((row & {last}) == {last})"));
        self.open(format_args!("for (i64 k = 0; k < to - from; k += {width})"));
        for a in long {
            let part = format!("*({own} *)(strip{a} + k)");
            let taken = self
                .helpers
                .convert(&part, CType::F32, CType::F64, width, self.caps);
            let neutral = self.neutral(self.kernel.accs[a.index()].op, DType::F32);
            let (all, sign) = (
                self.helpers.broadcast(CType::F32, width),
                self.sign(a).trim(),
            );
            self.line(format_args!(
                "*({wide} *)(wide{a} + k) {sign}= {taken}; {part} = {all}({neutral});"
            ));
        }
        self.close();
        self.close();
    }

    /// Writes one sweep over the strip: reduces so many rows, or finishes if there are none.
    fn sweep(&mut self, s: &ColumnReduction, width: u32, rows: Option<String>) -> Result<()> {
        let name = &s.name;
        // No partial vector if the axis is a multiple of the width: blocks and strips are as well.
        let whole = match s.lanes.range {
            Range::Block { extent, .. } => {
                let rest = self.exprs.modulo(extent, self.exprs.int(width as i64));
                self.exprs.is_int(rest, 0)
            }
            _ => false,
        };
        self.open("");
        self.line(format_args!("i64 {name} = from;"));
        self.open(format_args!(
            "for (; {name} + {width} <= to; {name} += {width})"
        ));
        self.column(s, width, None, rows.as_deref())?;
        self.close();
        if !whole {
            self.open(format_args!("if ({name} < to)"));
            self.line(format_args!("const i64 c = to - {name};"));
            self.column(s, width, Some("c".into()), rows.as_deref())?;
            self.close();
        }
        self.close();
        Ok(())
    }

    /// Writes one vector of the strip.
    fn column(
        &mut self,
        s: &ColumnReduction,
        width: u32,
        count: Option<String>,
        rows: Option<&str>,
    ) -> Result<()> {
        self.names.insert(s.lanes.sym, (s.name.clone(), false));
        self.state.lane = Some(Lane {
            sym: s.lanes.sym,
            width,
            count,
            copies: 1,
            rows: None,
            copy: 0,
        });
        let done = self.column_items(s, width, rows);
        self.state.lane = None;
        done
    }

    fn column_items(&mut self, s: &ColumnReduction, width: u32, rows: Option<&str>) -> Result<()> {
        let mut places = Vec::new();
        for a in &s.accs {
            let elem = types::scalar(self.kernel.accs[a.index()].dtype);
            let ty = self.helpers.vector(elem, width);
            let at = format!("({} - from)", s.name);
            let place = format!("*({ty} *)(strip{a} + {at})");
            self.line(format_args!("{ty} {a}_0 = {place};"));
            if rows.is_none() && self.facts.cascade.is_long(*a) {
                let (ty, wide) = (
                    self.helpers.vector(CType::F64, width),
                    self.wide(*a, Some(0)),
                );
                self.line(format_args!("{ty} {wide} = *({ty} *)(wide{a} + {at});"));
            }
            places.push(format!("{place} = {a}_0;"));
        }
        // The accumulators' starts are left out, since the strips hold what came before.
        for item in s.before {
            if let Item::Let(_) = item {
                self.items(std::slice::from_ref(item))?;
            }
        }
        // The finish reads the strip and writes results; nothing goes back.
        let Some(rows) = rows else {
            return self.items(s.after);
        };
        let name = self.loop_name();
        self.names.insert(s.rows.sym, (name.clone(), false));
        self.line(format_args!("#pragma GCC unroll {ROWS}"));
        self.open(format_args!(
            "for (i64 {name} = row; {name} < row + ({rows}); {name}++)"
        ));
        self.items(&s.rows.body)?;
        self.close();
        // Back to the strip, after all rows of the sweep.
        places.iter().for_each(|p| self.line(p.as_str()));
        Ok(())
    }
}
