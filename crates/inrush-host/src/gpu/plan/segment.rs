//! Fused segments of a program: places of their buffers, packed launches.

use super::{Addresses, At, BaseId, Launch, Op, Plain, Planner, View, values};
use crate::gpu::arena::Item;
use crate::gpu::arguments::pack;
use crate::gpu::placement::Storage;
use crate::program::Segment;
use crate::shape::{Shape, dtype_code};
use inrush_base::{Error, Result};
use inrush_program::{BufferId, Place, Step};
use inrush_runtime::{CallShape, OutputPlace, PlannedOutput};
use smallvec::SmallVec;

impl Planner<'_> {
    pub(super) fn segment(
        &mut self,
        at: usize,
        s: &Segment,
        symbols: &[Option<i64>],
    ) -> Result<()> {
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
                            if let Storage::Inside(base) = self.placement.storage[*slot]
                                && self.placement.seen[*slot]
                            {
                                self.ops.push(Op::View(Box::new(View {
                                    slot: *slot,
                                    base,
                                    sizes: shape.sizes,
                                    strides: shape.strides,
                                    offset: *offset,
                                    dtype: None,
                                    base_layout: None,
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
                let addresses = launch.addresses.iter_mut().map(|(_, base, at)| (base, at));
                let writes = launch.writes.iter_mut().map(|(base, at, _)| (base, at));
                for (base, offset) in addresses.chain(writes) {
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
        let gpu = (self.program.gpu.as_ref()).ok_or_else(|| Error::internal("no kernels"))?;
        let signature = &gpu.kernels[kernel].signature;
        let values: SmallVec<[i64; 8]> = l.sizes.iter().map(|id| sizes[id.0 as usize]).collect();
        let binary = self.provided.info(kernel)?;
        let packed = pack(signature, binary, l.buffers.len(), &values)?;
        let mut addresses: Addresses = SmallVec::new();
        for (b, (place, begin)) in l.buffers.iter().zip(&packed.places) {
            let (from, offset) = self.buffer(at, s, sizes, *b)?;
            addresses.push((*place, from.code(), offset + begin));
        }
        let grid = [programs as u32, 1, 1];
        addresses.extend(self.scratch(at, kernel, grid, packed.scratch)?);
        Ok(Some(Launch {
            kernel,
            grid,
            arguments: packed.arguments.bytes().into(),
            addresses: addresses.as_slice().into(),
            maps: packed.maps.into(),
            writes: match self.provided.is_chosen_later(kernel) {
                true => self.writes(at, s, &l.buffers, sizes)?,
                false => Box::default(),
            },
        }))
    }

    /// Returns the memory that a launch may write: all of its buffers that are not the caller's to read only.
    fn writes(
        &self,
        at: usize,
        s: &Segment,
        buffers: &[BufferId],
        sizes: &[i64],
    ) -> Result<Box<[(BaseId, u64, u64)]>> {
        let mut out = Vec::new();
        for b in buffers {
            let (buffer, mut root) = (&s.program.buffers[*b as usize], *b as usize);
            let mut written = buffer.written;
            while let Place::Alias { of, .. } = s.program.buffers[root].place {
                root = of as usize;
                written |= s.program.buffers[root].written;
            }
            let place = &s.program.buffers[root].place;
            if written || !matches!(place, Place::Input { .. }) {
                let (from, offset) = self.buffer(at, s, sizes, *b)?;
                let bytes = sizes[buffer.bytes.0 as usize].max(0) as u64;
                out.push((from.code(), offset, bytes));
            }
        }
        out.sort_unstable();
        out.dedup();
        Ok(out.into())
    }

    /// Scratch space of a launch, if its kernel asks for any: it lives through the step.
    pub(super) fn scratch(
        &mut self,
        at: usize,
        kernel: usize,
        grid: [u32; 3],
        place: u32,
    ) -> Result<Option<(u32, BaseId, u64)>> {
        let each = self.provided.info(kernel)?.map_or(0, |b| b.scratch);
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
        Ok(Some((place, self.temporary(at, bytes).code(), 0)))
    }

    /// Places memory in the arena that one step needs.
    pub(super) fn temporary(&mut self, at: usize, bytes: u64) -> At {
        self.items.push(Item {
            from: at,
            to: at,
            bytes,
            offset: 0,
        });
        At::Scratch(self.items.len() - 1)
    }
}
