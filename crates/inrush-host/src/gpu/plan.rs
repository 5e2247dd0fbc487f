//! A program's steps at known sizes, flattened: addresses of the arena's values are offsets, arguments are packed.

mod batch;
mod calls;
mod segment;
#[cfg(test)]
mod tests;

use self::batch::{batches, recordables};
use super::arena::{self, Item};
use super::arguments::{Made, Map};
use super::cublas::Gemm;
use super::kernels::Kernels;
use super::placement::{Placement, Storage};
use crate::program::{HostProgram, Layout, Segment, StepKind};
use crate::shape::{Shape, dtype_code};
use inrush_base::{Error, Result};
use inrush_program::{Place, SizeId};
use inrush_runtime::{CallShape, OutputPlace, PlannedOutput};
use rustc_hash::FxHashMap;
use smallvec::SmallVec;
use std::sync::Arc;

/// The work of one region of a program, at known sizes.
pub struct Plan {
    pub arena_bytes: u64,
    pub ops: Vec<Op>,
    /// Launches that run once: the step of the segment, bytes of the block that is filled, launches.
    pub loads: Vec<(usize, u64, Vec<Launch>)>,
    /// Number of operands of library calls, whose tensors are cached between calls.
    pub operands: usize,
    pub batches: usize,
    pub recordables: usize,
}

/// Base addresses are numbered: slots first, then the arena, then the blocks that load steps filled, by step.
pub type BaseId = u32;

pub enum Op {
    /// Takes a tensor of the host's, and checks that it has the layout that was compiled for.
    CheckInput(Box<CheckInput>),
    /// Makes a tensor.
    Allocate(Box<Allocate>),
    Launch(Launch),
    /// Launches that follow one another.
    Batch(Batch),
    Library(Box<LibraryCall>),
    /// Launches, batches of them and products that follow one another, which can be recorded and replayed as one.
    Recordable(Recordable),
    /// Copies bytes of the device.
    Copy(Copy),
    /// Has the host call the operator of a step or do its work, which sees these slots.
    Call {
        step: usize,
        reads: Vec<usize>,
    },
    /// A tensor in another's memory, for the host.
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
    /// Returns true for a step that needs the host's values.
    pub fn is_host(&self) -> bool {
        matches!(
            self,
            Op::CheckInput(_) | Op::Call { .. } | Op::View(_) | Op::Set { .. }
        )
    }
}

#[derive(Clone, Debug)]
pub enum Plain {
    Int(i64),
    Scalar(inrush_base::Scalar),
    None,
}

pub struct CheckInput {
    pub slot: usize,
    pub shape: Shape,
    /// A step writes it.
    pub written: bool,
}

pub struct Allocate {
    pub slot: usize,
    pub shape: Shape,
}

/// A launch of a kernel. Small, since plans for new sizes are made while the caller waits.
pub struct Launch {
    /// Position among the program's kernels.
    pub kernel: usize,
    pub grid: [u32; 3],
    pub arguments: Box<[u8]>,
    /// Addresses to fill in: where among the arguments, base and bytes from it.
    pub addresses: Box<[(u32, BaseId, u64)]>,
    /// Tensor maps, to be written once their addresses stand in their places.
    pub maps: Box<[Map]>,
    /// Memory that it may write: base, bytes from it, length. Told of kernels that are chosen at their first launch only.
    pub writes: Box<[(BaseId, u64, u64)]>,
}

pub struct Batch {
    /// Position among the plan's batches.
    pub id: usize,
    pub launches: Vec<Launch>,
    /// Bases that any of them takes.
    pub bases: Vec<BaseId>,
}

pub struct Recordable {
    /// Position among the plan's recordable runs of steps.
    pub id: usize,
    pub ops: Vec<Op>,
    /// Bases that any of them takes.
    pub bases: Vec<BaseId>,
}

/// Addresses of a launch while it is packed.
type Addresses = SmallVec<[(u32, BaseId, u64); 16]>;

pub struct Copy {
    pub to: (BaseId, u64),
    pub from: (BaseId, u64),
    pub bytes: u64,
}

pub struct LibraryCall {
    pub step: usize,
    /// A product that cuBLAS takes in the layouts of its operands.
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
    /// A tensor over memory with a base; position among the cached tensors.
    Memory {
        cached: usize,
        base: BaseId,
        offset: u64,
        shape: Shape,
    },
    /// Whatever the host put there.
    Slot(usize),
}

pub struct View {
    pub slot: usize,
    pub base: usize,
    pub sizes: SmallVec<[i64; 6]>,
    pub strides: SmallVec<[i64; 6]>,
    /// In elements.
    pub offset: i64,
    /// PyTorch's number of what elements are read as, if not as the base's.
    pub dtype: Option<i32>,
    /// Sizes and strides of the base that the view relies on.
    pub base_layout: Option<(SmallVec<[i64; 6]>, SmallVec<[i64; 6]>)>,
}

/// The memory that an address is in, before the arena is laid out.
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
    /// Encodes the place of a base until the arena is laid out.
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
    program: &'a HostProgram,
    placement: &'a Placement,
    layouts: &'a [Option<Layout>],
    sizes: &'a [Option<i64>],
    kernels: &'a FxHashMap<String, usize>,
    provided: &'a Kernels,
    /// Arguments are looked at before anything runs.
    first: Vec<Op>,
    ops: Vec<Op>,
    items: Vec<Item>,
    item_of: FxHashMap<(bool, usize), usize>,
    checked: Vec<bool>,
    /// For slots inside of others: the slot with the memory, and bytes from its start.
    root: FxHashMap<usize, (usize, u64)>,
    loads: Vec<(usize, u64, Vec<Launch>)>,
    operands: usize,
    /// Tensor maps of users' kernels, by the place of the tensor.
    maps: Vec<(BaseId, u64, Arc<Made>)>,
    written: Vec<bool>,
    start: usize,
}

/// Slots of arguments that segments write.
pub fn written(program: &HostProgram) -> Vec<bool> {
    let mut written = vec![false; program.slots];
    for step in &program.steps {
        if let StepKind::Segment(s) = &step.kind {
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

/// Plans the steps `range` of a program. `symbols` and `sizes` are those that are known when it starts.
pub fn plan(
    program: &HostProgram,
    placement: &Placement,
    range: std::ops::Range<usize>,
    symbols: &[Option<i64>],
    sizes: &[Option<i64>],
    kernels: &FxHashMap<String, usize>,
    provided: &Kernels,
) -> Result<Plan> {
    let gpu = (program.gpu.as_ref()).ok_or_else(|| Error::internal("no graph for a GPU"))?;
    let mut p = Planner {
        program,
        placement,
        layouts: &gpu.layouts,
        sizes,
        kernels,
        provided,
        first: Vec::new(),
        ops: Vec::new(),
        items: Vec::new(),
        item_of: FxHashMap::default(),
        checked: vec![false; program.slots],
        root: FxHashMap::default(),
        loads: Vec::new(),
        operands: 0,
        maps: Vec::new(),
        written: written(program),
        start: range.start,
    };
    // Views and aliases that earlier regions made.
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
    let (ops, batches) = batches(std::mem::take(&mut p.first).into_iter().chain(ops));
    // A view that goes releases nothing: what it looks at goes by itself.
    let bytes = |slot: usize| match placement.storage[slot] {
        Storage::Own | Storage::Host => p.shape(slot).and_then(|s| s.bytes()).unwrap_or(0),
        _ => 0,
    };
    let (ops, recordables) = recordables(ops, bytes);
    Ok(Plan {
        arena_bytes,
        ops,
        loads: p.loads,
        operands: p.operands,
        batches,
        recordables,
    })
}

impl Planner<'_> {
    fn from_before(&self, slot: usize) -> bool {
        let args = self.program.inputs.contains(&slot);
        let constant = || self.program.constants.iter().any(|c| c.0 == slot);
        let earlier = || {
            (self.program.steps[..self.start].iter()).any(|s| match &s.kind {
                StepKind::Call(c) => c.outs.contains(&slot),
                StepKind::Work(w) => w.fills().contains(&slot),
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
        match &self.program.steps[at].kind {
            StepKind::View(v) => {
                let (root, from) = self.root(v.base);
                let element = match &self.layouts[v.base] {
                    Some(l) => l.dtype.0.size() as u64,
                    // A view for the host alone.
                    None => return Ok(()),
                };
                let offset = u64::try_from(self.size(v.offset)?).ok();
                let at = (offset.and_then(|o| o.checked_mul(element)))
                    .and_then(|o| o.checked_add(from))
                    .ok_or_else(|| Error::input("a view begins outside of its tensor"))?;
                self.root.insert(v.value, (root, at));
            }
            StepKind::Kernel(k) => {
                for (w, out) in k.written.iter().zip(&k.outs) {
                    if let Storage::Inside(base) = self.placement.storage[*out] {
                        debug_assert_eq!(Some(base), k.tensors[*w]);
                        self.root.insert(*out, self.root(base));
                    }
                }
            }
            StepKind::Segment(s) => {
                let inner = |h: &Storage| matches!(h, Storage::Inside(_));
                if s.outputs.iter().any(|o| inner(&self.placement.storage[*o])) {
                    let shape = CallShape::of(&s.program, &values(s, symbols)?)?;
                    for (k, slot) in s.outputs.iter().enumerate() {
                        let (
                            Storage::Inside(base),
                            Some(PlannedOutput::Tensor { dtype, place, .. }),
                        ) = (self.placement.storage[*slot], shape.outputs.get(k))
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
        if self.placement.storage[root] == Storage::Host && !self.checked[root] {
            self.checked[root] = true;
            let shape = self.shape(root)?;
            let check = Op::CheckInput(Box::new(CheckInput {
                slot: root,
                shape,
                written: self.written[root],
            }));
            match self.from_before(root) {
                true => self.first.push(check),
                false => self.ops.push(check),
            }
        }
        Ok(())
    }

    /// Memory for a slot that a native step defines.
    fn define(&mut self, slot: usize, shape: Shape, at: usize) -> Result<()> {
        match self.placement.storage[slot] {
            Storage::Arena => {
                self.item_of.insert((false, slot), self.items.len());
                self.items.push(Item {
                    from: at,
                    to: self.placement.last[slot],
                    bytes: shape.bytes()?,
                    offset: 0,
                });
            }
            Storage::Own => (self.ops).push(Op::Allocate(Box::new(Allocate { slot, shape }))),
            _ => {}
        }
        Ok(())
    }

    fn base(&self, at: At, offset: u64) -> (BaseId, u64) {
        let slots = self.program.slots as BaseId;
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
                (l.addresses.iter_mut()).for_each(|(_, base, offset)| fix(base, offset));
                (l.writes.iter_mut()).for_each(|(base, offset, _)| fix(base, offset));
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
        let program = self.program;
        let step = &program.steps[at];
        match &step.kind {
            StepKind::Segment(s) => self.segment(at, s, symbols)?,
            StepKind::Call(c) => {
                let reads = c.reads();
                self.ops.push(Op::Call { step: at, reads });
                // Results are looked at when a native step wants them.
                c.outs.iter().for_each(|s| self.checked[*s] = false);
            }
            StepKind::Work(w) => {
                let reads = w.reads();
                self.ops.push(Op::Call { step: at, reads });
                w.fills().iter().for_each(|s| self.checked[*s] = false);
            }
            StepKind::View(v) => {
                if self.placement.seen[v.value] {
                    let base_layout = match &v.base_layout {
                        Some((sizes, strides)) => Some((self.all(sizes)?, self.all(strides)?)),
                        None => None,
                    };
                    let view = View {
                        slot: v.value,
                        base: v.base,
                        sizes: self.all(&v.sizes)?,
                        strides: self.all(&v.strides)?,
                        offset: self.size(v.offset)?,
                        dtype: v.dtype.map(|d| dtype_code(d.0)),
                        base_layout,
                    };
                    self.ops.push(Op::View(Box::new(view)));
                }
            }
            StepKind::Library(l) => self.library(at, l)?,
            StepKind::Kernel(k) => self.kernel(at, k)?,
        }
        // Memory whose last reader this was; of views nothing is freed but the object.
        for slot in &self.placement.frees[at] {
            self.ops.push(Op::Free { slot: *slot });
        }
        Ok(())
    }
}

/// Values of a segment's symbols.
fn values(s: &Segment, symbols: &[Option<i64>]) -> Result<SmallVec<[i64; 4]>> {
    (s.symbols.iter())
        .map(|k| symbols[*k as usize].ok_or_else(|| Error::input("a size is not known yet")))
        .collect()
}
