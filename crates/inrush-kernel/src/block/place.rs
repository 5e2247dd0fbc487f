//! The order of a block program: values before their uses, loads before the stores that follow them, barriers where threads
//! of a program hand data over through memory.
//!
//! All threads of a program run the items together, each on its own elements of the tile, and which
//! thread has which element is the compiler's affair: it may differ between two accesses. So an
//! element that one access stores may be loaded by another thread. A barrier stands between a store
//! and a load of the same storage (read after write) and between a load and a store (write after
//! read), unless both are over the whole tile at one offset.
//!
//! A looped program has two levels: the program (`outer`) and the open walk (`inner`). An item
//! belongs to the walk if it spans the looped axis. A value that does is evaluated anew in each
//! walk that needs it, since a tile cannot be kept.

use super::{BlockItem, BlockStore, Context, Walk};
use crate::build::Builder;
use crate::live::Live;
use crate::nest::{Effect, EffectKind};
use crate::{AccId, BufRole, Def, KBufId, ValId};
use inrush_base::{Error, Result};
use inrush_expr::{Expr, Sym};
use inrush_loops::{BufId, StoreMode};
use rustc_hash::FxHashMap;

pub(crate) struct Placer<'p, 'a> {
    pub b: &'p Builder<'a>,
    pub live: &'p Live,
    pub context: &'p Context<'p>,
    /// Bits of the tile's dimensions, by symbol: scalar axes have none.
    pub dims: &'p FxHashMap<Sym, u32>,
    /// The looped axis, as a bit of `dims`.
    pub looped: u32,
    /// The dimension of the own axis, as a bit of `dims`.
    pub own: u32,
    /// All dimensions without the own one.
    pub grid: u32,
    /// The own axis may have no elements.
    pub may_be_empty: bool,
    /// By value: the dimensions of the tile that it spans.
    shapes: Vec<u32>,
    /// By value: it is defined in the program, ahead of whatever is placed next.
    known: Vec<bool>,
    /// Values known within the open loop.
    inside: Option<Vec<bool>>,
    /// Items of the program so far.
    outer: Vec<BlockItem>,
    /// Items of the open walk so far.
    inner: Vec<BlockItem>,
    /// Storages stored since the last barrier, and the number of values at the store.
    stored: FxHashMap<BufId, usize>,
    /// Storages ever stored, with the number of values at that time.
    overwritten: FxHashMap<BufId, usize>,
    /// Storages loaded since the last barrier: where, and over which dimensions.
    loaded: FxHashMap<BufId, Vec<(Expr, u32)>>,
}

impl<'p, 'a> Placer<'p, 'a> {
    /// Computes the dimensions of all values. `looped`, `own` and `grid` are bits of `dims`. `may_be_empty`: the own axis may have no
    /// elements.
    #[allow(clippy::too_many_arguments)]
    pub fn new(
        b: &'p Builder<'a>,
        live: &'p Live,
        context: &'p Context<'p>,
        dims: &'p FxHashMap<Sym, u32>,
        looped: u32,
        own: u32,
        grid: u32,
        may_be_empty: bool,
    ) -> Self {
        let mut p = Placer {
            b,
            live,
            context,
            dims,
            looped,
            own,
            grid,
            may_be_empty,
            shapes: Vec::new(),
            known: vec![false; b.values.len()],
            inside: None,
            outer: Vec::new(),
            inner: Vec::new(),
            stored: FxHashMap::default(),
            overwritten: FxHashMap::default(),
            loaded: FxHashMap::default(),
        };
        let masked = match may_be_empty {
            true => p.loads_of_points(),
            false => Vec::new(),
        };
        for k in 0..b.values.len() {
            let shape = p.shape(ValId::from_index(k));
            let point = if masked.get(k) == Some(&true) { own } else { 0 };
            p.shapes.push(shape | point);
        }
        p
    }

    /// By value: loads at one place for all points of the own axis, of buffers that have no elements where the axis has none. They
    /// are masked by the axis: without points nothing is loaded either.
    fn loads_of_points(&self) -> Vec<bool> {
        let (b, ex) = (self.b, self.b.tables.exprs);
        // What effects at points need, and what those after them need.
        let mut needed = [vec![false; b.values.len()], vec![false; b.values.len()]];
        let mut todo: Vec<(usize, ValId)> = Vec::new();
        for (nest, live) in b.nests.iter().zip(&self.live.effects) {
            for (e, _) in nest.effects.iter().zip(live).filter(|(_, live)| **live) {
                let of = usize::from(e.depth == 0);
                match &e.kind {
                    EffectKind::Update { value, .. } | EffectKind::Check { value } => {
                        todo.push((of, *value));
                    }
                    EffectKind::Store {
                        offset,
                        value,
                        mask,
                        ..
                    } => {
                        todo.push((of, *value));
                        todo.extend(mask.iter().map(|m| (of, *m)));
                        todo.extend(b.expr_values(*offset).into_iter().map(|v| (of, v)));
                    }
                }
            }
        }
        while let Some((of, v)) = todo.pop() {
            if std::mem::replace(&mut needed[of][v.index()], true)
                || matches!(b.values[v.index()].def, Def::Final(_))
            {
                continue;
            }
            todo.extend(b.uses(v).iter().map(|u| (of, *u)));
        }
        let may_lack_elements = |buf: KBufId| {
            let buffer = b.tables.buffer(b.buffers[buf.index()].buf);
            buffer.sizes.iter().any(|n| ex.range(*n).lo < 1)
        };
        (b.values.iter().enumerate())
            .map(|(k, v)| match v.def {
                Def::Load { buf, .. } => needed[0][k] && !needed[1][k] && may_lack_elements(buf),
                _ => false,
            })
            .collect()
    }

    /// Dimensions of an expression.
    pub fn expr_shape(&self, e: Expr) -> u32 {
        let ex = self.b.tables.exprs;
        ex.free_syms(e).iter().fold(0, |m, s| {
            m | self.dims.get(s).copied().unwrap_or(0)
                | (self.b.indirect.get(s)).map_or(0, |v| self.shapes[v.index()])
        })
    }

    /// Returns the dimensions of a value, given those of its operands.
    fn shape(&self, v: ValId) -> u32 {
        let def = &self.b.values[v.index()].def;
        let operands = |of: &[ValId]| of.iter().fold(0, |m, o| m | self.shapes[o.index()]);
        match def {
            // An attention has a product for each key that it walks, a contraction no own axis.
            Def::Sum(_) => self.grid | self.own,
            // A reduction is known for each point of the grid's dimensions.
            Def::Final(_) => self.grid,
            Def::Running { value, .. } | Def::Sorted { value } => {
                operands(&[*value]) | self.own | self.grid
            }
            _ => {
                let own = def.expr().map_or(0, |e| self.expr_shape(e));
                own | operands(&def.operands())
            }
        }
    }

    /// Places all nests. Returns the items, and the dimensions of each value.
    pub fn run(mut self) -> Result<(Vec<BlockItem>, Vec<u32>)> {
        for n in 0..self.b.nests.len() {
            let nest = &self.b.nests[n];
            let effects: Vec<Effect> = (nest.effects.iter())
                .zip(&self.live.effects[n])
                .filter(|(_, live)| **live)
                .map(|(e, _)| e.clone())
                .collect();
            // Running reductions are alive through their values.
            let deep = !nest.axes.is_empty();
            if self.looped == 0 || !deep {
                for e in &effects {
                    self.effect(e)?;
                    if let EffectKind::Update { acc, .. } = e.kind {
                        self.finish(acc, false);
                    }
                }
                continue;
            }
            self.looped_nest(&effects)?;
        }
        Ok((self.outer, self.shapes))
    }

    /// One pass over the looped axis.
    fn looped_nest(&mut self, effects: &[Effect]) -> Result<()> {
        let accs: Vec<AccId> = (effects.iter())
            .filter_map(|e| match e.kind {
                EffectKind::Update { acc, .. } => Some(acc),
                _ => None,
            })
            .collect();
        for acc in &accs {
            self.outer.push(BlockItem::Acc(*acc));
        }
        self.inside = Some(vec![false; self.b.values.len()]);
        // Effects at the points of the own axis are the walk; those at the group's points wait for
        // its end.
        let (points, after): (Vec<&Effect>, Vec<&Effect>) =
            effects.iter().partition(|e| e.depth > 0);
        for e in &points {
            self.effect(e)?;
        }
        let body = std::mem::take(&mut self.inner);
        self.inside = None;
        if !body.is_empty() {
            self.outer.push(BlockItem::Loop(Walk { body, back: false }));
        }
        for acc in accs {
            self.finish(acc, true);
        }
        for e in after {
            self.effect(e)?;
        }
        Ok(())
    }

    /// Closes an accumulator, and defines the values that read its result. With `item` its lanes have to be combined first.
    fn finish(&mut self, acc: AccId, item: bool) {
        if item {
            self.outer.push(BlockItem::Finish(acc));
        }
        for (k, v) in self.b.values.iter().enumerate() {
            if v.def == Def::Final(acc) && self.live.values[k] {
                self.outer.push(BlockItem::Let(ValId::from_index(k)));
                self.known[k] = true;
            }
        }
    }

    /// Places an effect, after all that it needs.
    fn effect(&mut self, e: &Effect) -> Result<()> {
        match &e.kind {
            EffectKind::Update { acc, value, .. } => {
                self.need(*value)?;
                let item = BlockItem::Update {
                    acc: *acc,
                    value: *value,
                };
                self.push(item, self.own);
                Ok(())
            }
            EffectKind::Check { value } => self.need(*value),
            EffectKind::Store {
                buf,
                offset,
                value,
                mode,
                mask,
            } => {
                if matches!(self.b.buffers[buf.index()].role, BufRole::Local { .. }) {
                    return Err(Error::unsupported(
                        "a fused kernel that reads a value of another point of its tile",
                    ));
                }
                // What is read before this store must have been read by now.
                for k in 0..e.at {
                    let v = ValId::from_index(k);
                    let is_load = matches!(self.b.values[k].def, Def::Load { .. });
                    let streams = self.looped != 0 && self.shapes[k] & self.looped != 0;
                    if is_load && self.live.values[k] && !streams && self.ready(v) {
                        self.need(v)?;
                    }
                }
                self.need(*value)?;
                for v in self.b.expr_values(*offset) {
                    self.need(v)?;
                }
                if let Some(m) = mask {
                    self.need(*m)?;
                }
                let point = if e.depth > 0 { self.own } else { 0 };
                let mut shape = self.expr_shape(*offset)
                    | self.shapes[value.index()]
                    | mask.map_or(0, |m| self.shapes[m.index()]);
                if *mode != StoreMode::Set {
                    // Each point combines once.
                    shape |= self.grid | point;
                } else if self.may_be_empty {
                    // Masked by the axis: without points nothing is stored, not even in one place for all.
                    shape |= point;
                }
                self.before_store(*buf, *offset, shape, e.at)?;
                let item = BlockItem::Store(BlockStore {
                    buf: *buf,
                    offset: *offset,
                    value: *value,
                    mode: *mode,
                    mask: *mask,
                    shape,
                });
                self.push(item, shape);
                Ok(())
            }
        }
    }

    /// Appends an item to the open loop, if its dimensions have the looped one, else to the program.
    fn push(&mut self, item: BlockItem, shape: u32) {
        if self.inside.is_some() && shape & self.looped != 0 {
            self.inner.push(item);
        } else {
            self.outer.push(item);
        }
    }

    /// Returns the storage of a buffer, as the caller knows it.
    fn storage(&self, buf: KBufId) -> BufId {
        (self.context).storage(self.b.tables, self.b.buffers[buf.index()].buf)
    }

    /// A store must not overtake other threads' loads of the same bytes.
    fn before_store(&mut self, buf: KBufId, offset: Expr, shape: u32, at: usize) -> Result<()> {
        let storage = self.storage(buf);
        let full = self.grid | self.own;
        // Harmless: each element is loaded and stored at one offset over the whole tile.
        let hazard = (self.loaded.get(&storage)).is_some_and(|loads| {
            loads
                .iter()
                .any(|(o, s)| *o != offset || *s != full || *s != shape)
        });
        if hazard {
            if self.inside.is_some() && shape & self.looped != 0 {
                // A later step would read what an earlier one has overwritten, and no barrier ahead
                // of the loop helps.
                let elsewhere = (self.loaded[&storage].iter())
                    .any(|(o, s)| *o != offset && s & self.looped != 0);
                if elsewhere {
                    return Err(Error::unsupported(
                        "a looped kernel that overwrites what it reads at other places",
                    ));
                }
            }
            self.barrier();
        }
        self.stored.insert(storage, at);
        self.overwritten.insert(storage, at);
        Ok(())
    }

    /// Has threads wait for each other. Accesses before it conflict with none after it.
    fn barrier(&mut self) {
        // A barrier ahead of a loop serves all of the loop.
        self.outer.push(BlockItem::Barrier);
        self.stored.clear();
        self.loaded.clear();
    }

    /// Returns true if every reduction that `v` needs is done.
    fn ready(&self, v: ValId) -> bool {
        if self.known[v.index()] {
            return true;
        }
        let def = &self.b.values[v.index()].def;
        !matches!(def, Def::Final(_)) && self.b.uses(v).iter().all(|u| self.ready(*u))
    }

    /// Evaluates a value unless it is known.
    fn need(&mut self, v: ValId) -> Result<()> {
        let k = v.index();
        let streams = self.shapes[k] & self.looped != 0;
        let known = match &self.inside {
            Some(inside) if streams => inside[k],
            _ => self.known[k],
        };
        if known {
            return Ok(());
        }
        if streams && self.inside.is_none() {
            return Err(Error::internal("a looped value outside of its loop"));
        }
        let b = self.b;
        for u in b.uses(v) {
            self.need(*u)?;
        }
        match &self.b.values[k].def {
            Def::Final(_) => {
                return Err(Error::internal("a reduction is used before it is done"));
            }
            Def::Load { buf, offset, .. } => {
                if matches!(self.b.buffers[buf.index()].role, BufRole::Local { .. }) {
                    return Err(Error::unsupported(
                        "a fused kernel that reads a value of another point of its tile",
                    ));
                }
                let storage = self.storage(*buf);
                if let Some(at) = self.overwritten.get(&storage) {
                    if k < *at && streams {
                        return Err(Error::unsupported(
                            "a looped kernel that reads again what it has overwritten",
                        ));
                    }
                    if self.stored.contains_key(&storage) {
                        self.barrier();
                    }
                }
                let entry = (*offset, self.shapes[k]);
                self.loaded.entry(storage).or_default().push(entry);
            }
            Def::Running { acc, .. } if streams => self.outer.push(BlockItem::Acc(*acc)),
            _ => {}
        }
        self.push(BlockItem::Let(v), self.shapes[k]);
        match &mut self.inside {
            Some(inside) if streams => inside[k] = true,
            _ => self.known[k] = true,
        }
        Ok(())
    }
}
