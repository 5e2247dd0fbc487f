//! A recipe's steps at known sizes, flattened: addresses of the arena's values are offsets, arguments are packed.

use super::arena::{self, Item};
use super::blas::Gemm;
use super::homes::{Home, Homes};
use crate::recipe::{Argument, Layout, Library, LibraryOp, Recipe, Segment, UserKernel, What};
use crate::shim::dtype_code;
use inrush_base::{Error, Result};
use inrush_cuda::driver::Arguments;
use inrush_program::{BufferId, Place, SizeId, Step};
use inrush_runtime::{CallShape, OutputPlace, PlannedOutput};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;

/// What happens in one stretch of a recipe.
pub struct Plan {
    pub arena_bytes: u64,
    pub ops: Vec<Op>,
    /// What has to run once: the step of the segment, bytes of the block that is filled, launches.
    pub loads: Vec<(usize, u64, Vec<Launch>)>,
    /// Number of operands of library calls, whose tensors are kept between calls.
    pub operands: usize,
    /// Number of lists of launches.
    pub lists: usize,
    /// Number of runs.
    pub runs: usize,
}

/// Base addresses are numbered: slots first, then the arena, then the blocks that load steps filled, by step.
pub type BaseId = u32;

pub enum Op {
    /// Takes a tensor of Python's: checks that it lies as it was compiled for.
    Take(Box<Take>),
    /// Makes a tensor.
    Allocate(Box<Allocate>),
    Launch(Launch),
    /// Launches that follow one another.
    List(List),
    Library(Box<LibraryCall>),
    /// Launches, lists of them and products that follow one another.
    Run(Run),
    /// Copies bytes of the device.
    Copy(Copy),
    /// Calls the operator of a step from Python, which sees these slots.
    Python {
        step: usize,
        reads: Vec<usize>,
    },
    /// A tensor in another's memory, for Python.
    View(Box<View>),
    /// Results of a segment that are no tensors.
    Set {
        slot: usize,
        value: Plain,
    },
    /// Nothing needs the slot's memory any more.
    Free {
        slot: usize,
    },
}

impl Op {
    /// Needs the interpreter.
    pub fn is_python(&self) -> bool {
        matches!(
            self,
            Op::Take(_) | Op::Python { .. } | Op::View(_) | Op::Set { .. }
        )
    }
}

#[derive(Clone, Debug)]
pub enum Plain {
    Int(i64),
    Scalar(inrush_base::Scalar),
    None,
}

/// A tensor's dtype and how it lies.
#[derive(Clone, PartialEq, Debug)]
pub struct Shape {
    pub dtype: i32,
    pub element: u64,
    pub sizes: SmallVec<[i64; 6]>,
    pub strides: SmallVec<[i64; 6]>,
}

impl Shape {
    /// Bytes from the first to the last element.
    pub fn bytes(&self) -> Result<u64> {
        if self.sizes.contains(&0) {
            return Ok(0);
        }
        let mut last: i64 = 0;
        for (n, s) in self.sizes.iter().zip(&self.strides) {
            last = (n - 1)
                .checked_mul(*s)
                .and_then(|x| last.checked_add(x))
                .ok_or_else(|| Error::input("a tensor beyond 64 bits"))?;
        }
        Ok((last as u64 + 1) * self.element)
    }
}

pub struct Take {
    pub slot: usize,
    pub shape: Shape,
    /// A step writes it.
    pub written: bool,
}

pub struct Allocate {
    pub slot: usize,
    pub shape: Shape,
}

/// Small, since plans for sizes that nobody met before are made while the caller waits.
pub struct Launch {
    /// Position among the recipe's kernels.
    pub kernel: usize,
    pub grid: [u32; 3],
    pub arguments: Box<[u8]>,
    /// Addresses to fill in: where among the arguments, base and bytes from it.
    pub addresses: Box<[(u32, BaseId, u64)]>,
}

pub struct List {
    /// Position among the plan's lists.
    pub id: usize,
    pub launches: Vec<Launch>,
    /// Bases that any of them takes.
    pub bases: Vec<BaseId>,
}

pub struct Run {
    /// Position among the plan's runs.
    pub id: usize,
    pub ops: Vec<Op>,
    /// Bases that any of them takes.
    pub bases: Vec<BaseId>,
}

/// Addresses of a launch while it is packed.
type Addresses = SmallVec<[(u32, BaseId, u64); 16]>;

/// Fewer launches than these are issued one by one.
const MIN_LIST: usize = 4;

pub struct Copy {
    pub to: (BaseId, u64),
    pub from: (BaseId, u64),
    pub bytes: u64,
}

pub struct LibraryCall {
    pub step: usize,
    /// A product that cuBLAS takes as it lies.
    pub gemm: Option<Gemm>,
    /// Operands by position; `None` for those left out.
    pub inputs: SmallVec<[Option<Operand>; 4]>,
    /// Memory for the result, where the function writes into it.
    pub out: Option<Operand>,
    /// Which results anything reads.
    pub wanted: Vec<bool>,
    /// Shapes that results must have, by position, where they are tensors of the device.
    pub shapes: Vec<Option<Shape>>,
}

pub enum Operand {
    /// A tensor over memory with a base; position among the kept tensors.
    Memory {
        kept: usize,
        base: BaseId,
        offset: u64,
        shape: Shape,
    },
    /// Whatever Python put there.
    Slot(usize),
}

pub struct View {
    pub slot: usize,
    pub base: usize,
    pub sizes: SmallVec<[i64; 6]>,
    pub strides: SmallVec<[i64; 6]>,
    /// In elements.
    pub offset: i64,
}

/// What an address is in before the arena is laid out.
#[derive(Copy, Clone)]
enum At {
    /// In the memory that a slot has by itself.
    Slot(usize),
    /// In the temporaries of the segment of a step.
    Temporary(usize),
    /// In what the load steps of a segment filled.
    Loaded(usize),
    /// Scratch space of a launch: its item.
    Scratch(usize),
}

/// Bits of a [`BaseId`] that count, while the others say which kind of [`At`] it stands for.
const COUNT: u32 = 30;

impl At {
    /// What stands in the place of a base until the arena is laid out.
    fn code(self) -> BaseId {
        let (kind, count) = match self {
            At::Slot(n) => (0, n),
            At::Temporary(n) => (1, n),
            At::Loaded(n) => (2, n),
            At::Scratch(n) => (3, n),
        };
        debug_assert!(count < 1 << COUNT);
        kind << COUNT | count as BaseId
    }

    fn of(code: BaseId) -> At {
        let count = (code & ((1 << COUNT) - 1)) as usize;
        match code >> COUNT {
            0 => At::Slot(count),
            1 => At::Temporary(count),
            2 => At::Loaded(count),
            _ => At::Scratch(count),
        }
    }
}

struct Planner<'a> {
    recipe: &'a Recipe,
    homes: &'a Homes,
    layouts: &'a [Option<Layout>],
    sizes: &'a [Option<i64>],
    kernels: &'a FxHashMap<String, usize>,
    /// By kernel: bytes of scratch space for each program.
    scratch: &'a [u64],
    /// Arguments are looked at before anything runs.
    first: Vec<Op>,
    ops: Vec<Op>,
    items: Vec<Item>,
    item_of: FxHashMap<(bool, usize), usize>,
    taken: Vec<bool>,
    /// For slots inside of others: the slot with the memory, and bytes from its start.
    root: FxHashMap<usize, (usize, u64)>,
    loads: Vec<(usize, u64, Vec<Launch>)>,
    operands: usize,
    written: Vec<bool>,
    start: usize,
}

/// Slots of arguments that segments write.
pub fn written(recipe: &Recipe) -> Vec<bool> {
    let mut written = vec![false; recipe.slots];
    for step in &recipe.steps {
        if let What::Segment(s) = &step.what {
            for b in s.program.buffers.iter().filter(|b| b.written) {
                if let Place::Input { input } = b.place
                    && let Some(slot) = s.inputs.get(input as usize)
                {
                    written[*slot] = true;
                }
            }
        }
    }
    written
}

/// Plans the steps `range` of a recipe. `symbols` and `sizes` are those that are known when it starts.
pub fn plan(
    recipe: &Recipe,
    homes: &Homes,
    range: std::ops::Range<usize>,
    symbols: &[Option<i64>],
    sizes: &[Option<i64>],
    kernels: &FxHashMap<String, usize>,
    scratch: &[u64],
) -> Result<Plan> {
    let gpu = (recipe.gpu.as_ref()).ok_or_else(|| Error::internal("no graph for a GPU"))?;
    let mut p = Planner {
        recipe,
        homes,
        layouts: &gpu.layouts,
        sizes,
        kernels,
        scratch,
        first: Vec::new(),
        ops: Vec::new(),
        items: Vec::new(),
        item_of: FxHashMap::default(),
        taken: vec![false; recipe.slots],
        root: FxHashMap::default(),
        loads: Vec::new(),
        operands: 0,
        written: written(recipe),
        start: range.start,
    };
    // Views and aliases that earlier stretches made.
    for at in 0..range.start {
        p.note_views(at, symbols)?;
    }
    for at in range {
        p.note_views(at, symbols)?;
        p.step(at, symbols)?;
    }
    let arena_bytes = arena::place(&mut p.items);
    let mut ops = std::mem::take(&mut p.ops);
    ops.iter_mut().for_each(|op| p.resolve(op));
    let (ops, lists) = lists(std::mem::take(&mut p.first).into_iter().chain(ops));
    let bytes = |slot: usize| p.shape(p.root(slot).0).and_then(|s| s.bytes());
    let (ops, runs) = runs(ops, |slot| bytes(slot).unwrap_or(0));
    Ok(Plan {
        arena_bytes,
        ops,
        loads: p.loads,
        operands: p.operands,
        lists,
        runs,
    })
}

/// Gathers launches that only allocations and releases stand between; memory is made before them and released after them.
fn lists(ops: impl Iterator<Item = Op>) -> (Vec<Op>, usize) {
    let mut out = Vec::new();
    let mut count = 0;
    let mut ops = ops.peekable();
    while ops.peek().is_some() {
        let (mut made, mut launches, mut freed) = (Vec::new(), Vec::new(), Vec::new());
        let gathers = |o: &Op| matches!(o, Op::Launch(_) | Op::Allocate(_) | Op::Free { .. });
        while let Some(op) = ops.next_if(gathers) {
            match op {
                Op::Launch(l) => launches.push(l),
                Op::Allocate(_) => made.push(op),
                _ => freed.push(op),
            }
        }
        out.append(&mut made);
        if launches.len() < MIN_LIST {
            out.extend(launches.into_iter().map(Op::Launch));
        } else {
            let mut bases: Vec<BaseId> = (launches.iter())
                .flat_map(|l| l.addresses.iter().map(|a| a.1))
                .collect();
            bases.sort_unstable();
            bases.dedup();
            out.push(Op::List(List {
                id: count,
                launches,
                bases,
            }));
            count += 1;
        }
        out.append(&mut freed);
        out.extend(ops.next());
    }
    (out, count)
}

/// Bytes of memory that a run makes before it has to, or releases later than it could.
const MAX_MOVED: u64 = 64 << 20;

/// Gathers launches and products that only allocations and releases stand between, as [`lists`] does with launches alone.
fn runs(ops: Vec<Op>, bytes: impl Fn(usize) -> u64) -> (Vec<Op>, usize) {
    let mut out = Vec::new();
    let mut count = 0;
    let mut ops = ops.into_iter().peekable();
    while ops.peek().is_some() {
        let (mut made, mut steps, mut freed) = (Vec::new(), Vec::new(), Vec::new());
        let mut moved = 0;
        let mut gathers = |o: &Op| {
            moved += match o {
                Op::Launch(_) | Op::List(_) => 0,
                Op::Library(l) if l.gemm.is_some() => 0,
                Op::Allocate(a) => a.shape.bytes().unwrap_or(u64::MAX),
                Op::Free { slot } => bytes(*slot),
                _ => return false,
            };
            moved <= MAX_MOVED
        };
        while let Some(op) = ops.next_if(&mut gathers) {
            match op {
                Op::Allocate(_) => made.push(op),
                Op::Free { .. } => freed.push(op),
                _ => steps.push(op),
            }
        }
        out.append(&mut made);
        let launches = |op: &Op| match op {
            Op::List(l) => l.launches.len(),
            _ => 1,
        };
        let products = steps.iter().any(|op| matches!(op, Op::Library(_)));
        if products && steps.iter().map(launches).sum::<usize>() >= MIN_LIST {
            let mut bases = Vec::new();
            steps.iter().for_each(|op| bases_of(op, &mut bases));
            bases.sort_unstable();
            bases.dedup();
            out.push(Op::Run(Run {
                id: count,
                ops: steps,
                bases,
            }));
            count += 1;
        } else {
            out.append(&mut steps);
        }
        out.append(&mut freed);
        out.extend(ops.next());
    }
    (out, count)
}

/// Bases that a step takes addresses from.
fn bases_of(op: &Op, out: &mut Vec<BaseId>) {
    match op {
        Op::Launch(l) => out.extend(l.addresses.iter().map(|a| a.1)),
        Op::List(l) => out.extend(&l.bases),
        Op::Library(l) => {
            for operand in l.inputs.iter().flatten().chain(&l.out) {
                if let Operand::Memory { base, .. } = operand {
                    out.push(*base);
                }
            }
        }
        _ => {}
    }
}

impl Planner<'_> {
    fn from_before(&self, slot: usize) -> bool {
        let args = self.recipe.inputs.contains(&slot);
        let constant = || self.recipe.constants.iter().any(|c| c.0 == slot);
        let earlier = || {
            (self.recipe.steps[..self.start].iter()).any(|s| match &s.what {
                What::Call(c) => c.outs.contains(&slot),
                _ => false,
            })
        };
        args || constant() || earlier()
    }

    fn size(&self, id: SizeId) -> Result<i64> {
        self.sizes[id.0 as usize].ok_or_else(|| {
            Error::input("a size that depends on data is not known yet, or overflows")
        })
    }

    fn all(&self, ids: &[SizeId]) -> Result<SmallVec<[i64; 6]>> {
        ids.iter().map(|i| self.size(*i)).collect()
    }

    fn shape(&self, slot: usize) -> Result<Shape> {
        let l = (self.layouts[slot].as_ref())
            .ok_or_else(|| Error::internal("a value without a layout"))?;
        Ok(Shape {
            dtype: dtype_code(l.dtype.0),
            element: l.dtype.0.size() as u64,
            sizes: self.all(&l.sizes)?,
            strides: self.all(&l.strides)?,
        })
    }

    /// The slot that has the memory, and bytes from its start.
    fn root(&self, slot: usize) -> (usize, u64) {
        self.root.get(&slot).copied().unwrap_or((slot, 0))
    }

    /// Where slots inside of others are.
    fn note_views(&mut self, at: usize, symbols: &[Option<i64>]) -> Result<()> {
        match &self.recipe.steps[at].what {
            What::View(v) => {
                let (root, from) = self.root(v.base);
                let element = match &self.layouts[v.base] {
                    Some(l) => l.dtype.0.size() as u64,
                    // A view for Python alone.
                    None => return Ok(()),
                };
                let offset = self.size(v.offset)? as u64 * element;
                self.root.insert(v.value, (root, from + offset));
            }
            What::Kernel(k) => {
                for (w, out) in k.written.iter().zip(&k.outs) {
                    if let Home::Inside(base) = self.homes.home[*out] {
                        debug_assert_eq!(Some(base), k.tensors[*w]);
                        self.root.insert(*out, self.root(base));
                    }
                }
            }
            What::Segment(s) => {
                let inner = |h: &Home| matches!(h, Home::Inside(_));
                if s.outputs.iter().any(|o| inner(&self.homes.home[*o])) {
                    let shape = CallShape::of(&s.program, &values(s, symbols)?)?;
                    for (k, slot) in s.outputs.iter().enumerate() {
                        let (Home::Inside(base), Some(PlannedOutput::Tensor { dtype, place, .. })) =
                            (self.homes.home[*slot], shape.outputs.get(k))
                        else {
                            continue;
                        };
                        let offset = match place {
                            OutputPlace::Own => 0,
                            OutputPlace::Input { offset, .. }
                            | OutputPlace::Output { offset, .. } => *offset,
                        };
                        let (root, from) = self.root(base);
                        let bytes = offset as u64 * dtype.size() as u64;
                        self.root.insert(*slot, (root, from + bytes));
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Has a native step read or write the memory of `slot`.
    fn touch(&mut self, slot: usize) -> Result<()> {
        let (root, _) = self.root(slot);
        if self.homes.home[root] == Home::Python && !self.taken[root] {
            self.taken[root] = true;
            let shape = self.shape(root)?;
            let take = Op::Take(Box::new(Take {
                slot: root,
                shape,
                written: self.written[root],
            }));
            match self.from_before(root) {
                true => self.first.push(take),
                false => self.ops.push(take),
            }
        }
        Ok(())
    }

    /// Memory for a slot that a native step defines.
    fn define(&mut self, slot: usize, shape: Shape, at: usize) -> Result<()> {
        match self.homes.home[slot] {
            Home::Arena => {
                self.item_of.insert((false, slot), self.items.len());
                self.items.push(Item {
                    from: at,
                    to: self.homes.last[slot],
                    bytes: shape.bytes()?,
                    offset: 0,
                });
            }
            Home::Own => (self.ops).push(Op::Allocate(Box::new(Allocate { slot, shape }))),
            _ => {}
        }
        Ok(())
    }

    fn base(&self, at: At, offset: u64) -> (BaseId, u64) {
        let slots = self.recipe.slots as BaseId;
        let item = |key| self.item_of.get(&key).map(|i| self.items[*i].offset);
        match at {
            At::Slot(s) => match item((false, s)) {
                Some(o) => (slots, o + offset),
                None => (s as BaseId, offset),
            },
            At::Temporary(step) => (slots, item((true, step)).unwrap_or(0) + offset),
            At::Loaded(step) => (slots + 1 + step as BaseId, offset),
            At::Scratch(item) => (slots, self.items[item].offset + offset),
        }
    }

    /// Puts the places of the arena in where addresses stand for what they are in.
    fn resolve(&self, op: &mut Op) {
        let fix = |base: &mut BaseId, offset: &mut u64| {
            (*base, *offset) = self.base(At::of(*base), *offset);
        };
        match op {
            Op::Launch(l) => {
                (l.addresses.iter_mut()).for_each(|(_, base, offset)| fix(base, offset))
            }
            Op::Copy(c) => {
                fix(&mut c.to.0, &mut c.to.1);
                fix(&mut c.from.0, &mut c.from.1);
            }
            Op::Library(l) => {
                let operands = l.inputs.iter_mut().flatten().chain(&mut l.out);
                for operand in operands {
                    if let Operand::Memory { base, offset, .. } = operand {
                        fix(base, offset);
                    }
                }
            }
            _ => {}
        }
    }

    fn step(&mut self, at: usize, symbols: &[Option<i64>]) -> Result<()> {
        let recipe = self.recipe;
        let step = &recipe.steps[at];
        match &step.what {
            What::Segment(s) => self.segment(at, s, symbols)?,
            What::Call(c) => {
                let reads = c.reads();
                self.ops.push(Op::Python { step: at, reads });
                // Results are looked at when a native step wants them.
                c.outs.iter().for_each(|s| self.taken[*s] = false);
            }
            What::View(v) => {
                if self.homes.seen[v.value] {
                    let view = View {
                        slot: v.value,
                        base: v.base,
                        sizes: self.all(&v.sizes)?,
                        strides: self.all(&v.strides)?,
                        offset: self.size(v.offset)?,
                    };
                    self.ops.push(Op::View(Box::new(view)));
                }
            }
            What::Library(l) => self.library(at, l)?,
            What::Kernel(k) => self.kernel(at, k)?,
        }
        // Memory whose last reader this was; of views nothing is freed but the object.
        for slot in &self.homes.frees[at] {
            self.ops.push(Op::Free { slot: *slot });
        }
        Ok(())
    }

    fn segment(&mut self, at: usize, s: &Segment, symbols: &[Option<i64>]) -> Result<()> {
        let p = &s.program;
        let shape = CallShape::of(p, &values(s, symbols)?)?;
        for (k, slot) in s.inputs.iter().enumerate() {
            if shape.inputs.get(k).is_some_and(Option::is_some) {
                self.touch(*slot)?;
            }
        }
        for (k, slot) in s.outputs.iter().enumerate() {
            match &shape.outputs[k] {
                PlannedOutput::Tensor {
                    dtype,
                    sizes,
                    strides,
                    place,
                } => {
                    let shape = Shape {
                        dtype: dtype_code(*dtype),
                        element: dtype.size() as u64,
                        sizes: sizes.as_slice().into(),
                        strides: strides.as_slice().into(),
                    };
                    match place {
                        OutputPlace::Own => self.define(*slot, shape, at)?,
                        OutputPlace::Input { offset, .. } | OutputPlace::Output { offset, .. } => {
                            if let Home::Inside(base) = self.homes.home[*slot]
                                && self.homes.seen[*slot]
                            {
                                self.ops.push(Op::View(Box::new(View {
                                    slot: *slot,
                                    base,
                                    sizes: shape.sizes,
                                    strides: shape.strides,
                                    offset: *offset,
                                })));
                            }
                        }
                    }
                }
                PlannedOutput::Int(i) => self.set(*slot, Plain::Int(*i)),
                PlannedOutput::Scalar(v) => self.set(*slot, Plain::Scalar(*v)),
                PlannedOutput::Mutation | PlannedOutput::None => self.set(*slot, Plain::None),
            }
        }
        let temporaries = shape.sizes[p.arena_bytes.0 as usize].max(0) as u64;
        if temporaries > 0 {
            self.item_of.insert((true, at), self.items.len());
            self.items.push(Item {
                from: at,
                to: at,
                bytes: temporaries,
                offset: 0,
            });
        }
        if !p.load_steps.is_empty() {
            let mut loads = Vec::new();
            for step in &p.load_steps {
                let Some(mut launch) = self.launch(at, s, step, &shape.sizes)? else {
                    continue;
                };
                for (_, base, offset) in &mut launch.addresses {
                    let from @ At::Loaded(_) = At::of(*base) else {
                        return Err(Error::internal("a load step reads what a call brings"));
                    };
                    (*base, *offset) = self.base(from, *offset);
                }
                loads.push(launch);
            }
            let bytes = shape.sizes[p.load_bytes.0 as usize].max(0) as u64;
            self.loads.push((at, bytes, loads));
        }
        for step in &p.steps {
            let launch = self.launch(at, s, step, &shape.sizes)?;
            self.ops.extend(launch.map(Op::Launch));
        }
        Ok(())
    }

    fn set(&mut self, slot: usize, value: Plain) {
        self.ops.push(Op::Set { slot, value });
    }

    /// Where a buffer of a segment is.
    fn buffer(&self, at: usize, s: &Segment, sizes: &[i64], b: BufferId) -> Result<(At, u64)> {
        let (mut b, mut offset) = (b, 0i64);
        loop {
            match &s.program.buffers[b as usize].place {
                Place::Alias { of, offset: by } => {
                    offset += sizes[by.0 as usize];
                    b = *of;
                }
                Place::Arena { offset: by } => {
                    return Ok((At::Temporary(at), (offset + sizes[by.0 as usize]) as u64));
                }
                Place::Persistent { offset: by } => {
                    return Ok((At::Loaded(at), (offset + sizes[by.0 as usize]) as u64));
                }
                Place::Input { input } => {
                    let slot = s.inputs.get(*input as usize);
                    let slot = slot.ok_or_else(|| Error::internal("a tensor without a slot"))?;
                    let (root, from) = self.root(*slot);
                    return Ok((At::Slot(root), from + offset as u64));
                }
                Place::Output { output } => {
                    let slot = s.outputs.get(*output as usize);
                    let slot = slot.ok_or_else(|| Error::internal("an output without a slot"))?;
                    let (root, from) = self.root(*slot);
                    return Ok((At::Slot(root), from + offset as u64));
                }
                Place::Weight(w) => {
                    return Err(Error::internal(format!("weight `{}` in a graph", w.name)));
                }
            }
        }
    }

    /// A launch, or nothing where there is nothing to do.
    fn launch(
        &mut self,
        at: usize,
        s: &Segment,
        step: &Step,
        sizes: &[i64],
    ) -> Result<Option<Launch>> {
        let Step::Launch(l) = step else {
            return Err(Error::internal(
                "a contraction of the CPU in a GPU's program",
            ));
        };
        let programs = sizes[l.units.0 as usize];
        if programs <= 0 {
            return Ok(None);
        }
        let programs = i32::try_from(programs).map_err(|_| {
            Error::unsupported(format!(
                "{programs} programs of `{}`: a grid has fewer than 2^31",
                s.program.kernels[l.kernel as usize].title
            ))
        })?;
        let symbol = s.program.kernels[l.kernel as usize].symbol.as_str();
        let kernel = *(self.kernels.get(symbol))
            .ok_or_else(|| Error::input(format!("a stored graph is damaged: no `{symbol}`")))?;
        let gpu = (self.recipe.gpu.as_ref()).ok_or_else(|| Error::internal("no kernels"))?;
        let signature = &gpu.kernels[kernel].signature;
        if signature.len() != l.buffers.len() + l.sizes.len() {
            return Err(Error::input(
                "a stored graph is damaged: arguments of a kernel",
            ));
        }
        // Eight bytes each, and two pointers at the end.
        let mut arguments = Arguments::with_capacity(8 * signature.len() + 16);
        let mut addresses: Addresses = SmallVec::new();
        for b in &l.buffers {
            let (from, offset) = self.buffer(at, s, sizes, *b)?;
            addresses.push((arguments.pointer(0) as u32, from.code(), offset));
        }
        for (size, (name, ty)) in l.sizes.iter().zip(&signature[l.buffers.len()..]) {
            let v = sizes[size.0 as usize];
            match ty.as_str() {
                "i64" => arguments.i64(v),
                "i32" => arguments.i32(i32::try_from(v).map_err(|_| {
                    Error::unsupported(format!("`{name}` is {v}: the kernel counts in 32 bits"))
                })?),
                other => return Err(Error::internal(format!("an argument of type `{other}`"))),
            };
        }
        let grid = [programs as u32, 1, 1];
        let place = arguments.finish(0);
        addresses.extend(self.scratch(at, kernel, grid, place)?);
        Ok(Some(Launch {
            kernel,
            grid,
            arguments: arguments.bytes().into(),
            addresses: addresses.as_slice().into(),
        }))
    }

    /// Scratch space of a launch, if its kernel asks for any: it lives through the step.
    fn scratch(
        &mut self,
        at: usize,
        kernel: usize,
        grid: [u32; 3],
        place: usize,
    ) -> Result<Option<(u32, BaseId, u64)>> {
        let each = self.scratch.get(kernel).copied().unwrap_or(0);
        if each == 0 {
            return Ok(None);
        }
        let programs = grid.iter().try_fold(1u64, |n, g| n.checked_mul(*g as u64));
        // Programs find their part with 32 bits.
        let bytes = (programs.and_then(|n| n.checked_mul(each)))
            .filter(|n| *n < 1 << 31)
            .ok_or_else(|| {
                Error::unsupported("a launch that needs 2 GiB of scratch memory or more")
            })?;
        self.items.push(Item {
            from: at,
            to: at,
            bytes,
            offset: 0,
        });
        let item = self.items.len() - 1;
        Ok(Some((place as u32, At::Scratch(item).code(), 0)))
    }

    /// A kernel of the user's, behind copies of what it writes and others read.
    fn kernel(&mut self, at: usize, k: &UserKernel) -> Result<()> {
        let mut places = Vec::with_capacity(k.tensors.len());
        for slot in &k.tensors {
            let (root, from) = match slot {
                Some(slot) => {
                    self.touch(*slot)?;
                    self.root(*slot)
                }
                None => (0, 0),
            };
            places.push((At::Slot(root), from));
        }
        for (w, out) in k.written.iter().zip(&k.outs) {
            let shape = self.shape(k.tensors[*w].unwrap_or(*out))?;
            if let Home::Inside(base) = self.homes.home[*out] {
                if self.homes.seen[*out] {
                    self.ops.push(Op::View(Box::new(View {
                        slot: *out,
                        base,
                        sizes: shape.sizes,
                        strides: shape.strides,
                        offset: 0,
                    })));
                }
                continue;
            }
            let bytes = shape.bytes()?;
            self.define(*out, shape, at)?;
            let (from, offset) = places[*w];
            let to = At::Slot(*out);
            if bytes > 0 && k.tensors[*w].is_some() {
                self.ops.push(Op::Copy(Copy {
                    to: (to.code(), 0),
                    from: (from.code(), offset),
                    bytes,
                }));
            }
            places[*w] = (to, 0);
        }
        let gpu = (self.recipe.gpu.as_ref()).ok_or_else(|| Error::internal("no kernels"))?;
        let kernel = &gpu.kernels[k.kernel];
        let mut grid = [0u32; 3];
        for (n, g) in grid.iter_mut().zip(&k.grid) {
            let size = self.number(g)?;
            *n = u32::try_from(size.max(0))
                .ok()
                .filter(|n| *n < 1 << 31)
                .ok_or_else(|| {
                    Error::unsupported(format!(
                        "a grid of {size} programs of `{}`",
                        kernel.function
                    ))
                })?;
        }
        if grid.contains(&0) {
            return Ok(());
        }
        let mut arguments = Arguments::default();
        let mut addresses: Addresses = SmallVec::new();
        for (a, (name, ty)) in k.arguments.iter().zip(&kernel.signature) {
            if let Argument::Tensor(t) = a {
                let (from, offset) = places[*t];
                addresses.push((arguments.pointer(0) as u32, from.code(), offset));
                continue;
            }
            let narrow = |v: i64| {
                Error::unsupported(format!(
                    "`{name}` of the Triton kernel `{}` is {v}: it was built for {ty}",
                    kernel.function
                ))
            };
            match (ty.as_str(), a) {
                ("fp32", Argument::Float(f)) => arguments.f32(*f as f32),
                ("fp32", _) => arguments.f32(self.number(a)? as f32),
                ("i1", _) => arguments.bool(self.number(a)? != 0),
                ("i64" | "u64", _) => arguments.i64(self.number(a)?),
                ("i32", _) => {
                    let v = self.number(a)?;
                    arguments.i32(i32::try_from(v).map_err(|_| narrow(v))?)
                }
                ("u32", _) => {
                    let v = self.number(a)?;
                    arguments.i32(u32::try_from(v).map_err(|_| narrow(v))? as i32)
                }
                (other, _) => {
                    return Err(Error::internal(format!("an argument of type `{other}`")));
                }
            };
        }
        let place = arguments.finish(0);
        addresses.extend(self.scratch(at, k.kernel, grid, place)?);
        self.ops.push(Op::Launch(Launch {
            kernel: k.kernel,
            grid,
            arguments: arguments.bytes().into(),
            addresses: addresses.as_slice().into(),
        }));
        Ok(())
    }

    fn number(&self, a: &Argument) -> Result<i64> {
        match a {
            Argument::Size(id) => self.size(*id),
            Argument::Int(i) => Ok(*i),
            Argument::Float(_) | Argument::Tensor(_) => {
                Err(Error::input("a stored graph is damaged: no integer"))
            }
        }
    }

    fn library(&mut self, at: usize, l: &Library) -> Result<()> {
        let mut inputs: SmallVec<[Option<Operand>; 4]> = SmallVec::new();
        for slot in &l.inputs {
            let Some(slot) = slot else {
                inputs.push(None);
                continue;
            };
            if self.layouts[*slot].is_none() {
                inputs.push(Some(Operand::Slot(*slot)));
                continue;
            }
            self.touch(*slot)?;
            let (root, from) = self.root(*slot);
            let operand = self.operand(*slot, At::Slot(root), from)?;
            inputs.push(Some(operand));
        }
        let mut out = None;
        if l.op.writes_out() {
            let slot = *(l.outs.first()).ok_or_else(|| Error::internal("no result"))?;
            let shape = self.shape(slot)?;
            self.define(slot, shape, at)?;
            out = Some(self.operand(slot, At::Slot(slot), 0)?);
        }
        let shapes = (l.outs.iter())
            .map(|s| match self.layouts[*s] {
                Some(_) => self.shape(*s).map(Some),
                None => Ok(None),
            })
            .collect::<Result<_>>()?;
        let gemm = match (&l.op, inputs.as_slice(), &out) {
            (
                LibraryOp::Mm | LibraryOp::Bmm,
                [
                    Some(Operand::Memory { shape: a, .. }),
                    Some(Operand::Memory { shape: b, .. }),
                ],
                Some(Operand::Memory { shape: out, .. }),
            ) => Gemm::of(a, b, out),
            _ => None,
        };
        let wanted = (l.outs.iter())
            .map(|s| self.homes.seen[*s] || self.homes.last[*s] > at)
            .collect();
        self.ops.push(Op::Library(Box::new(LibraryCall {
            step: at,
            inputs,
            gemm,
            out,
            wanted,
            shapes,
        })));
        Ok(())
    }

    fn operand(&mut self, slot: usize, at: At, offset: u64) -> Result<Operand> {
        self.operands += 1;
        Ok(Operand::Memory {
            kept: self.operands - 1,
            base: at.code(),
            offset,
            shape: self.shape(slot)?,
        })
    }
}

/// Values of a segment's symbols.
fn values(s: &Segment, symbols: &[Option<i64>]) -> Result<SmallVec<[i64; 4]>> {
    (s.symbols.iter())
        .map(|k| symbols[*k as usize].ok_or_else(|| Error::input("a size is not known yet")))
        .collect()
}
