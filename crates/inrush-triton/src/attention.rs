//! The loop of an attention: tiles of scores, an online softmax, a weighted sum of values.
//!
//! ```text
//! query = tl.load(in_ptr0 + ..)                        [XBLOCK, DBLOCK]
//! for roffset in tl.range(0, 4096, RBLOCK):            or over the blocks that a mask lists
//!     key = tl.load(in_ptr1 + ..)                      [DBLOCK, RBLOCK]
//!     product = tl.dot(query, key)
//!     t0 = product * 0.125                             the items of the loop
//!     new = tl.maximum(top, tl.max(t0, 1) * log2(e))
//!     p = tl.exp2(t0 * log2(e) - new[:, None])
//!     ..
//!     acc = tl.dot(p, value, acc * f[:, None])
//! ```
//!
//! Steps that are whole and steps that reach beyond the last key are written apart, and so are blocks that are kept whole and
//! blocks with a mask: only the second of each compare.
//!
//! Gradients walk in the same way; [`gradients`] writes their steps.

mod gradients;

use crate::function::Emitter;
use crate::types;
use inrush_base::{DType, Error, Result};
use inrush_expr::{Expr, Sym};
use inrush_kernel::block::{Attention, BlockItem, List, Operand, Results, Side};
use inrush_kernel::{Def, ValId};
use inrush_loops::ScalarOp;
use rustc_hash::FxHashSet;

/// How much of a step's tile is known to take part.
#[derive(Copy, Clone)]
pub(super) struct Step {
    /// No key is beyond the last one.
    whole: bool,
    /// All keys are kept, whatever the scores' mask says.
    full: bool,
}

impl Emitter<'_> {
    /// Writes the program of an attention after its header.
    pub(crate) fn attention(&mut self, a: &Attention) -> Result<()> {
        let items = &self.block.items;
        let mut body: &[BlockItem] = &[];
        self.line("d = tl.arange(0, DBLOCK)");
        self.line("n = tl.arange(0, NBLOCK)");
        for item in items {
            match item {
                BlockItem::Let(v) => self.define(*v)?,
                BlockItem::Loop(w) => body = &w.body,
                _ => return Err(Error::internal("an attention with items of its own")),
            }
        }
        self.name(a.d.sym, "d[None, :]");
        let masks = [
            self.mask(1 << Attention::ROWS),
            self.below(&a.d, "d[None, :]")?,
        ];
        self.tile_load("query", &a.query, "[XBLOCK, DBLOCK]", &masks)?;
        match &a.results {
            Results::Softmax { .. } => {
                self.line("top = tl.full([XBLOCK], float(\"-inf\"), tl.float32)");
                self.line("total = tl.zeros([XBLOCK], tl.float32)");
                self.line("acc = tl.zeros([XBLOCK, NBLOCK], tl.float32)");
            }
            Results::Gradients { grad, by_value, .. } => {
                self.start_gradients(a, grad, by_value.is_some())?;
            }
        }
        match (&a.blocks, a.causal) {
            (None, None) => self.all_keys(a, body)?,
            (None, Some(after)) => self.keys_up_to_rows(a, body, after)?,
            (Some(b), _) => {
                self.line("row = xpid * XBLOCK");
                for (k, l) in b.lists().enumerate().collect::<Vec<_>>().into_iter().rev() {
                    self.listed_keys(a, body, l, b.keys, k == 1)?;
                }
            }
        }
        self.results(a)
    }

    /// Has `name` stand for a symbol from here on.
    fn name(&mut self, sym: Sym, name: &str) {
        self.names.symbols.insert(sym, name.into());
    }

    /// Returns the mask of an operand's own axis, by the name of its indices; `None` if its block is exact.
    fn below(&self, side: &Side, name: &str) -> Result<Option<String>> {
        let extent = (!side.exact)
            .then(|| self.offset(side.extent))
            .transpose()?;
        Ok(extent.map(|n| format!("({name} < {n})")))
    }

    /// Walks all keys. The last step is written apart if it may be partial.
    fn all_keys(&mut self, a: &Attention, body: &[BlockItem]) -> Result<()> {
        let d = self.block.dims[Attention::KEYS];
        let extent = self.offset(d.extent)?;
        let whole = Step {
            whole: true,
            full: false,
        };
        if d.exact {
            self.line(format!("for roffset in tl.range(0, {extent}, RBLOCK):"));
            return self.indented(|e| e.key_step(a, body, whole));
        }
        if self.exprs.range(d.extent).hi >= d.block {
            let end = format!("{extent} // RBLOCK * RBLOCK");
            self.line(format!("for roffset in tl.range(0, {end}, RBLOCK):"));
            self.indented(|e| e.key_step(a, body, whole))?;
        }
        self.line(format!("roffset = {extent} // RBLOCK * RBLOCK"));
        let partial = Step {
            whole: false,
            full: false,
        };
        self.key_step(a, body, partial)
    }

    /// Walks the keys up to the last row's position plus `after`: first the steps in which every row keeps every key.
    fn keys_up_to_rows(&mut self, a: &Attention, body: &[BlockItem], after: i64) -> Result<()> {
        let d = self.block.dims[Attention::KEYS];
        let extent = self.offset(d.extent)?;
        let rows = "xpid * XBLOCK";
        self.line(format!(
            "whole = tl.maximum(tl.minimum({rows} + {}, {extent}), 0) // RBLOCK * RBLOCK",
            after + 1
        ));
        self.line("for roffset in tl.range(0, whole, RBLOCK):");
        let full = Step {
            whole: true,
            full: true,
        };
        self.indented(|e| e.key_step(a, body, full))?;
        self.line(format!(
            "end = tl.minimum({rows} + XBLOCK + {after}, {extent})"
        ));
        self.line("for roffset in tl.range(whole, end, RBLOCK):");
        let masked = Step {
            whole: d.exact,
            full: false,
        };
        self.indented(|e| e.key_step(a, body, masked))
    }

    /// Walks the blocks of keys of a list. The next block is loaded a step ahead.
    fn listed_keys(
        &mut self,
        a: &Attention,
        body: &[BlockItem],
        list: &List,
        keys: i64,
        full: bool,
    ) -> Result<()> {
        let x = self.block.dims[Attention::ROWS].sym;
        let r = self.block.dims[Attention::KEYS];
        let rows = self.names.symbols.insert(x, "row".into());
        let (count, index) = (self.buffer(list.count.buf), self.buffer(list.index.buf));
        let offset = self.offset(list.count.offset)?;
        self.line(format!("count = tl.load({count} + ({offset}))"));
        self.name(list.position, "0");
        let first = self.offset(list.index.offset)?;
        self.name(list.position, "position");
        let next = self.offset(list.index.offset)?;
        if let Some(rows) = rows {
            self.names.symbols.insert(x, rows);
        }
        self.line(format!("block = tl.load({index} + ({first}))"));
        let per = keys / r.block;
        let (steps, ahead) = match per {
            1 => ("count".to_string(), "step + 1".to_string()),
            n => (format!("count * {n}"), format!("(step + 1) // {n}")),
        };
        self.line(format!("for step in tl.range(0, {steps}):"));
        self.indented(|e| {
            e.line(match per {
                1 => format!("roffset = tl.multiple_of(block * {keys}, RBLOCK)"),
                n => format!(
                    "roffset = tl.multiple_of(block * {keys} + step % {n} * RBLOCK, RBLOCK)"
                ),
            });
            // A list of one block has nothing ahead, and Triton's pipeline takes no value that stays.
            if next != first {
                e.line(format!("position = tl.minimum({ahead}, count - 1)"));
                e.line(format!("block = tl.load({index} + ({next}))"));
            }
            let step = Step {
                whole: r.exact,
                full,
            };
            e.key_step(a, body, step)
        })
    }

    /// Writes one step: the product, the items, the softmax.
    fn key_step(&mut self, a: &Attention, body: &[BlockItem], step: Step) -> Result<()> {
        let r = self.block.dims[Attention::KEYS];
        let wide = if self.block.wide { ".to(tl.int64)" } else { "" };
        self.line(format!(
            "r = (roffset + tl.arange(0, RBLOCK)[None, :]){wide}"
        ));
        if !step.whole {
            let extent = self.offset(r.extent)?;
            self.line(format!("rmask = r < {extent}"));
        }
        self.state.whole_step = step.whole;
        if let Results::Gradients { by_value, .. } = &a.results {
            self.gradient_step(a, body, step, by_value.is_some())?;
            self.state.whole_step = false;
            return Ok(());
        }
        self.name(a.d.sym, "d[:, None]");
        let masks = [
            self.mask(1 << Attention::KEYS),
            self.below(&a.d, "d[:, None]")?,
        ];
        self.tile_load("key", &a.key, "[DBLOCK, RBLOCK]", &masks)?;
        let precision = self.precision(a);
        self.line(format!("product = tl.dot(query, key{precision})"));
        let Some(BlockItem::Attend { score, keep, .. }) = body.last() else {
            return Err(Error::internal("an attention without scores"));
        };
        let keep = keep.filter(|_| !step.full);
        let (score, factor) = self.scaled(*score);
        self.define_needed(body, keep.into_iter().chain([score]).collect())?;
        self.softmax(score, keep, factor)?;
        self.weighted_sum(a, step)?;
        self.state.whole_step = false;
        Ok(())
    }

    /// Writes what `todo` is computed from. Each step defines its values again.
    fn define_needed(&mut self, body: &[BlockItem], todo: Vec<ValId>) -> Result<()> {
        let loads = self.state.loads_left.clone();
        let needed = self.needed(todo);
        for item in body {
            if let BlockItem::Let(v) = item
                && needed.contains(v)
            {
                self.define(*v)?;
            }
        }
        self.state.loads_left = loads;
        Ok(())
    }

    /// Returns the tile of a value of rows and keys, with `other` beyond the last key and where a key is not kept.
    fn kept(&mut self, value: ValId, keep: Option<ValId>, other: &str) -> Result<String> {
        let shape = 1 << Attention::ROWS | 1 << Attention::KEYS;
        let have = self.block.shapes[value.index()];
        let text = self.spread(self.text(value)?, have, shape);
        let mut masks: Vec<String> = self.mask(1 << Attention::KEYS).into_iter().collect();
        if let Some(k) = keep {
            masks.push(self.text(k)?);
        }
        if masks.is_empty() {
            return Ok(text);
        }
        Ok(format!("tl.where({}, {text}, {other})", masks.join(" & ")))
    }

    /// Takes the scores of a step into `top`, the greatest so far, and `total`, both in powers of two.
    fn softmax(&mut self, score: ValId, keep: Option<ValId>, factor: f64) -> Result<()> {
        let scores = self.kept(score, keep, "float(\"-inf\")")?;
        let factor = types::literal(inrush_base::Scalar::Float(factor), DType::F32);
        for line in [
            format!("scores = {scores}"),
            format!("new = tl.maximum(top, tl.max(scores, 1) * {factor})"),
            // A row without kept keys so far has nothing to subtract.
            "shift = tl.where(new == float(\"-inf\"), 0.0, new)".to_string(),
            format!("p = tl.exp2(scores * {factor} - shift[:, None])"),
            "f = tl.exp2(top - shift)".to_string(),
            "total = total * f + tl.sum(p, 1)".to_string(),
            "top = new".to_string(),
        ] {
            self.line(line);
        }
        Ok(())
    }

    /// Loads operands of a step, keys along the first axis: name, operand, its other side, the index of that, and the shape.
    fn load_along_rows(
        &mut self,
        step: Step,
        operands: &[(&str, &Operand, &Side, &str, &str)],
    ) -> Result<()> {
        let r = self.block.dims[Attention::KEYS];
        let wide = if self.block.wide { ".to(tl.int64)" } else { "" };
        self.line(format!(
            "rt = (roffset + tl.arange(0, RBLOCK)[:, None]){wide}"
        ));
        let before = self.names.symbols.insert(r.sym, "rt".into());
        let of_r = if step.whole {
            None
        } else {
            Some(format!("(rt < {})", self.offset(r.extent)?))
        };
        for (name, operand, side, index, shape) in operands {
            self.name(side.sym, index);
            let masks = [of_r.clone(), self.below(side, index)?];
            self.tile_load(name, operand, shape, &masks)?;
        }
        if let Some(name) = before {
            self.names.symbols.insert(r.sym, name);
        }
        Ok(())
    }

    /// Adds the values of a step, weighted by `p`.
    fn weighted_sum(&mut self, a: &Attention, step: Step) -> Result<()> {
        let value = ("value", &a.value, &a.n, "n[None, :]", "[RBLOCK, NBLOCK]");
        self.load_along_rows(step, &[value])?;
        let dtype = types::name(self.block.buffers[a.value.buf.index()].dtype)?;
        let precision = self.precision(a);
        self.line(format!(
            "acc = tl.dot(p.to(tl.{dtype}), value, acc * f[:, None]{precision})"
        ));
        Ok(())
    }

    /// Writes the results. A row without kept keys is zero.
    fn results(&mut self, a: &Attention) -> Result<()> {
        self.name(a.n.sym, "n[None, :]");
        let of_n = self.below(&a.n, "n[None, :]")?;
        let (out, logsumexp, max) = match &a.results {
            Results::Softmax {
                out,
                logsumexp,
                max,
            } => (out, logsumexp, max),
            Results::Gradients {
                by_key, by_value, ..
            } => {
                self.name(a.d.sym, "d[None, :]");
                let of_d = self.below(&a.d, "d[None, :]")?;
                self.tile_store("by_key", by_key, "[XBLOCK, DBLOCK]", of_d)?;
                return by_value.iter().try_for_each(|o| {
                    self.tile_store("by_value", o, "[XBLOCK, NBLOCK]", of_n.clone())
                });
            }
        };
        self.line("empty = total == 0.0");
        self.line("out = acc / tl.where(empty, 1.0, total)[:, None]");
        self.line("logsumexp = tl.where(empty, float(\"-inf\"), top + tl.log2(total))");
        for (value, o, shape, mask) in [
            ("out", out, "[XBLOCK, NBLOCK]", of_n),
            ("logsumexp[:, None]", logsumexp, "[XBLOCK, 1]", None),
            ("top[:, None]", max, "[XBLOCK, 1]", None),
        ] {
            self.tile_store(value, o, shape, mask)?;
        }
        Ok(())
    }

    /// Stores a tile of the program's rows, where the mask of its own axis is true.
    fn tile_store(
        &mut self,
        value: &str,
        o: &Operand,
        shape: &str,
        mask: Option<String>,
    ) -> Result<()> {
        let rows = self.mask(1 << Attention::ROWS);
        let pointer = self.buffer(o.buf);
        let offset = self.spread_offset(o.offset, shape)?;
        let masks: Vec<String> = rows.into_iter().chain(mask).collect();
        let mask = if masks.is_empty() {
            String::new()
        } else {
            format!(", {}", masks.join(" & "))
        };
        self.line(format!("tl.store({pointer} + {offset}, {value}{mask})"));
        Ok(())
    }

    /// Loads a tile of an operand; what the masks leave out is zero.
    fn tile_load(
        &mut self,
        name: &str,
        o: &Operand,
        shape: &str,
        masks: &[Option<String>],
    ) -> Result<()> {
        let pointer = self.buffer(o.buf);
        let offset = self.spread_offset(o.offset, shape)?;
        let masks: Vec<String> = masks.iter().flatten().cloned().collect();
        let mask = if masks.is_empty() {
            String::new()
        } else {
            format!(", {}, other=0.0", masks.join(" & "))
        };
        self.line(format!("{name} = tl.load({pointer} + {offset}{mask})"));
        Ok(())
    }

    /// An offset over all of a tile.
    fn spread_offset(&self, offset: Expr, shape: &str) -> Result<String> {
        let wide = if self.block.wide { "int64" } else { "int32" };
        Ok(match self.exprs.as_int(offset) {
            Some(v) => format!("tl.full({shape}, {v}, tl.{wide})"),
            None => format!("tl.broadcast_to({}, {shape})", self.offset(offset)?),
        })
    }

    /// Returns the argument that keeps products of float32 from being rounded to tf32.
    fn precision(&self, a: &Attention) -> &'static str {
        match self.block.buffers[a.query.buf.index()].dtype {
            DType::F32 => ", input_precision=\"ieee\"",
            _ => "",
        }
    }

    /// Returns a score without a constant factor that it ends with, and the factor times log2(e): one multiplication for each
    /// element instead of two.
    fn scaled(&self, score: ValId) -> (ValId, f64) {
        let log2 = std::f64::consts::LOG2_E;
        if let Def::Op {
            op: ScalarOp::Mul,
            args,
        } = &self.block.value(score).def
        {
            for (v, c) in [(args[0], args[1]), (args[1], args[0])] {
                if let Some(c) = self.constant(c).map(|c| c.as_f64())
                    && (1e-30..1e30).contains(&c)
                    && self.constant(v).is_none()
                {
                    return (v, c * log2);
                }
            }
        }
        (score, log2)
    }

    /// Returns the values that scores and mask are computed from, with them.
    fn needed(&self, mut todo: Vec<ValId>) -> FxHashSet<ValId> {
        let mut out = FxHashSet::default();
        while let Some(v) = todo.pop() {
            if !out.insert(v) {
                continue;
            }
            let def = &self.block.value(v).def;
            todo.extend(def.operands());
            let syms = def
                .expr()
                .map(|e| self.exprs.free_syms(e))
                .unwrap_or_default();
            let indices =
                self.block.values.iter().enumerate().filter(
                    |(_, v)| matches!(v.def, Def::Indirect { sym, .. } if syms.contains(&sym)),
                );
            todo.extend(indices.map(|(k, _)| ValId::from_index(k)));
        }
        out
    }
}

/// Finds positions of an attention that need no 64 bits: they fit 32, and are only compared with each other or with numbers
/// that do, or converted to floats. Each would take two instructions or more for every score.
pub(crate) fn narrow_positions(e: &Emitter) -> FxHashSet<ValId> {
    let block = e.block;
    if block.attention.is_none() || block.wide {
        return FxHashSet::default();
    }
    let values = || (0..block.values.len()).map(ValId::from_index);
    let fits = |v: ValId| match &block.value(v).def {
        Def::Index(x) => block.value(v).dtype == DType::I64 && e.fits(*x),
        _ => false,
    };
    let number = |v: ValId| {
        let small = |c: inrush_base::Scalar| i32::try_from(c.as_i64()).is_ok();
        e.constant(v).is_some_and(small)
    };
    let mut out: FxHashSet<ValId> = values().filter(|v| fits(*v)).collect();
    // A position that one reader needs wide is wide, and so is one that it is compared with.
    loop {
        let before = out.len();
        for v in values() {
            let def = &block.value(v).def;
            let takes = match def {
                Def::Cast { to, .. } => to.is_float(),
                Def::Op { op, args } if compares(*op) => {
                    args.iter().all(|a| out.contains(a) || number(*a))
                }
                _ => false,
            };
            if !takes {
                def.operands().iter().for_each(|a| _ = out.remove(a));
            }
        }
        if out.len() == before {
            return out;
        }
    }
}

fn compares(op: ScalarOp) -> bool {
    use ScalarOp::{Eq, Ge, Gt, Le, Lt, Ne};
    matches!(op, Eq | Ge | Gt | Le | Lt | Ne)
}
