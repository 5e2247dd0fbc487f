//! Weights on a device: sets of them, each in one block of memory.

use super::memory::{Memory, Owner};
use super::tensor::DeviceTensor;
use crate::gpu::POINTER_ALIGNMENT;
use crate::gpu::driver::{Context, DevicePtr, Driver, Stream};
use crate::program::{HostProgram, Layout, Lowered, Object, Out, StepKind};
use crate::shape::{Shape, dtype_code};
use inrush_base::{DType, Error, Result, same_strides};
use inrush_program::{Reads, SEED, SizeId, evaluate_known};
use inrush_runtime::tensor::{copy_strided, extent};
use inrush_runtime::{Pairs, WeightSource, WeightSpec, WeightView};
use std::collections::BTreeMap;

/// Weights begin at multiples of this.
const ALIGNMENT: u64 = 512;

/// A new value of a weight.
#[derive(Clone, Copy)]
pub enum NewWeight<'a> {
    Host(WeightView<'a>),
    /// In memory of the model's device, which is copied.
    Device(&'a DeviceTensor),
    /// In memory of the model's device. Calls read it where it is, and its owner may write it while no work of a call runs.
    Shared(&'a DeviceTensor),
}

/// Where the weights of a program are in the memory of a set.
pub(super) struct WeightPlan {
    pub(super) entries: Vec<Entry>,
    /// By slot: the entry of a weight that something reads.
    by_slot: Vec<Option<usize>>,
    bytes: u64,
}

/// A weight in the memory of a set.
pub(super) struct Entry {
    pub(super) name: String,
    pub(super) dtype: DType,
    pub(super) shape: Shape,
    offset: u64,
    /// Calls write it.
    pub(super) written: bool,
}

/// A set of weights on the device.
pub(super) struct WeightSet {
    driver: Driver,
    context: Context,
    /// Taken when the set is dropped.
    memory: Option<Owner>,
    base: DevicePtr,
    /// Weights in memory of others, by the offset of their entries.
    shared: BTreeMap<u64, DeviceTensor>,
}

/// Returns the layout of a slot's tensor, if it is one of the device.
pub(super) fn layout(program: &HostProgram, slot: usize) -> Option<&Layout> {
    program.gpu.as_ref()?.layouts.get(slot)?.as_ref()
}

/// Returns by slot if a call writes the argument or weight: kernels do in place, or new contents are copied there at its end.
pub(super) fn written(program: &HostProgram) -> Vec<bool> {
    let mut written = crate::gpu::plan::written(program);
    for o in &program.outputs {
        if let Out::Mutation { into, .. } = o {
            written[*into] = true;
        }
    }
    written
}

/// Returns by slot what segments assume about the memory of the tensor.
pub(super) fn reads(program: &HostProgram) -> Vec<Reads> {
    let mut reads = vec![Reads::Elements; program.slots];
    for step in &program.steps {
        if let StepKind::Segment(s) = &step.kind {
            for (slot, input) in s.inputs.iter().zip(&s.program.inputs) {
                reads[*slot] = reads[*slot].max(input.reads);
            }
        }
    }
    reads
}

/// Returns the shape that a layout has at known sizes.
pub(super) fn shape(layout: &Layout, sizes: &[Option<i64>]) -> Result<Shape> {
    let all = |ids: &[SizeId]| {
        (ids.iter())
            .map(|i| sizes[i.0 as usize].ok_or_else(|| Error::input("a size overflows")))
            .collect::<Result<_>>()
    };
    Ok(Shape {
        dtype: dtype_code(layout.dtype.0),
        element: layout.dtype.0.size() as u64,
        sizes: all(&layout.sizes)?,
        strides: all(&layout.strides)?,
    })
}

impl WeightPlan {
    /// Places the weights of a program.
    ///
    /// # Errors
    /// An input error for a program whose weights have no fixed sizes.
    pub(super) fn of(lowered: &Lowered) -> Result<WeightPlan> {
        let program = &lowered.program;
        let sizes = evaluate_known(&program.sizes, &vec![None; program.symbols.len()]);
        let mut plan = WeightPlan {
            entries: Vec::new(),
            by_slot: vec![None; program.slots],
            bytes: 0,
        };
        let written = written(program);
        let mut by_name: BTreeMap<&str, usize> = BTreeMap::new();
        for (slot, object) in &program.constants {
            let (Some(layout), Object::Weight(name)) =
                (layout(program, *slot), &lowered.objects[*object])
            else {
                continue;
            };
            let shape = shape(layout, &sizes)?;
            let known = by_name.get(name.as_str()).copied();
            if let Some(at) = known.filter(|at| plan.entries[*at].shape == shape) {
                plan.by_slot[*slot] = Some(at);
                plan.entries[at].written |= written[*slot];
                continue;
            }
            let bytes = shape.bytes()?;
            let written = written[*slot];
            by_name.insert(name, plan.entries.len());
            plan.by_slot[*slot] = Some(plan.entries.len());
            plan.entries.push(Entry {
                name: name.clone(),
                dtype: layout.dtype.0,
                offset: plan.bytes,
                shape,
                written,
            });
            let end = plan.bytes.checked_add(bytes);
            plan.bytes = end
                .and_then(|n| n.checked_next_multiple_of(ALIGNMENT))
                .ok_or_else(|| Error::input("weights beyond 64 bits"))?;
        }
        Ok(plan)
    }

    /// Lists the weights, in the program's order.
    pub(super) fn specs(&self) -> Vec<WeightSpec> {
        let named = self.entries.iter().filter(|e| e.name != SEED);
        let spec = |e: &Entry| WeightSpec {
            name: e.name.clone(),
            dtype: e.dtype,
            sizes: e.shape.sizes.to_vec(),
            written: e.written,
        };
        named.map(spec).collect()
    }

    /// Returns true if calls write a weight.
    pub(super) fn writes_state(&self) -> bool {
        self.entries.iter().any(|e| e.written)
    }

    pub(super) fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|e| e.name == name)
    }

    /// Returns the weight of a slot.
    pub(super) fn of_slot(&self, slot: usize) -> Option<&Entry> {
        self.by_slot[slot].map(|at| &self.entries[at])
    }
}

impl WeightSet {
    /// Allocates a set with unspecified contents. The context is current.
    ///
    /// # Errors
    /// Too little memory.
    pub(super) fn new(
        plan: &WeightPlan,
        (driver, context): (&Driver, Context),
        memory: &Memory,
    ) -> Result<WeightSet> {
        let (owner, base) = memory.allocate_block(driver, plan.bytes)?;
        Ok(WeightSet {
            memory: Some(owner),
            base,
            shared: BTreeMap::new(),
            driver: driver.clone(),
            context,
        })
    }

    /// Returns the addresses of the set: its own, which no other set has at the same time, and those of shared weights.
    pub(super) fn addresses(&self) -> Vec<DevicePtr> {
        let shared = self.shared.values().map(DeviceTensor::address);
        std::iter::once(self.base).chain(shared).collect()
    }

    pub(super) fn address(&self, e: &Entry) -> DevicePtr {
        match self.shared.get(&e.offset) {
            Some(t) => t.address(),
            None => self.base + e.offset,
        }
    }

    /// Forgets the weights in memory of others.
    pub(super) fn clear_shared(&mut self) {
        self.shared.clear();
    }

    /// Has calls read a weight where it is. Its dtype and sizes were checked.
    ///
    /// # Errors
    /// An input error for strides, an alignment or read-only memory that kernels do not support.
    pub(super) fn share(&mut self, e: &Entry, w: &DeviceTensor) -> Result<()> {
        if e.bytes() == 0 {
            return Ok(());
        }
        if !same_strides(&w.sizes, &w.strides, &e.shape.strides) {
            return Err(Error::input(format!(
                "the weight `{}` has the strides {:?}; one that calls read where it is needs {:?}",
                e.name, w.strides, e.shape.strides
            )));
        }
        if !w.address().is_multiple_of(POINTER_ALIGNMENT) {
            return Err(Error::input(format!(
                "the weight `{}` does not begin at a multiple of {POINTER_ALIGNMENT} bytes, as one that calls read where it is has to",
                e.name
            )));
        }
        if e.written && w.read_only {
            return Err(Error::input(format!(
                "calls write the weight `{}`, and its memory is read-only",
                e.name
            )));
        }
        self.shared.insert(e.offset, w.clone());
        Ok(())
    }

    /// Copies all weights from a source.
    ///
    /// # Errors
    /// A weight that is missing or not what the program says; those of the driver.
    pub(super) fn fill(&self, plan: &WeightPlan, weights: &dyn WeightSource) -> Result<()> {
        for e in &plan.entries {
            if e.name == SEED {
                self.write_seed(e, 0)?;
                continue;
            }
            let w = (weights.weight(&e.name))
                .ok_or_else(|| Error::input(format!("the weight `{}` is missing", e.name)))?;
            let pairs = Pairs::of(&w);
            let w = pairs.as_ref().map_or(w, |p| p.view(w.bytes));
            if w.dtype != e.dtype || w.sizes != e.shape.sizes.as_slice() {
                return Err(Error::input(format!(
                    "the weight `{}` has other sizes, strides or dtype than its model says",
                    e.name
                )));
            }
            self.write_host(e, &w)?;
        }
        Ok(())
    }

    /// Writes the seed of a model that draws random numbers.
    pub(super) fn write_seed(&self, e: &Entry, seed: i64) -> Result<()> {
        // SAFETY: the seed is eight bytes of this set (checked when the program was lowered); who calls has the set to itself.
        unsafe {
            self.driver
                .write(self.address(e), &seed.to_le_bytes()[..e.bytes().min(8)])
        }
    }

    /// Writes a weight of the host's, whose dtype and sizes were checked.
    pub(super) fn write_host(&self, e: &Entry, w: &WeightView) -> Result<()> {
        let (need, bytes) = (
            extent(w.sizes, w.strides).and_then(|n| n.checked_mul(w.dtype.size())),
            e.bytes(),
        );
        let whole = w.strides.len() == w.sizes.len()
            && w.strides.iter().all(|s| *s >= 0)
            && need.is_some_and(|n| n <= w.bytes.len());
        if !whole {
            return Err(Error::input(format!(
                "the weight `{}` has too few bytes",
                e.name
            )));
        }
        if bytes == 0 {
            return Ok(());
        }
        if same_strides(w.sizes, w.strides, &e.shape.strides) {
            // SAFETY: the bytes of the weight in this set, which its writer has to itself.
            return unsafe { self.driver.write(self.address(e), &w.bytes[..bytes]) };
        }
        let mut laid_out = vec![0u8; bytes];
        // SAFETY: both blocks hold every coordinate: the first was checked, the second has the extent of the entry.
        unsafe {
            copy_strided(
                w.bytes.as_ptr(),
                w.strides,
                laid_out.as_mut_ptr(),
                &e.shape.strides,
                w.sizes,
                w.dtype.size(),
            );
            self.driver.write(self.address(e), &laid_out)
        }
    }

    /// Writes a weight of the device's, whose dtype and sizes were checked.
    pub(super) fn write_device(&self, e: &Entry, w: &DeviceTensor, stream: Stream) -> Result<()> {
        if !same_strides(&w.sizes, &w.strides, &e.shape.strides) {
            let mut bytes = vec![0u8; w.bytes()];
            // SAFETY: the tensor's elements are valid, and its contents are there.
            unsafe { self.driver.read(w.address, &mut bytes)? };
            let view = WeightView {
                dtype: w.dtype,
                sizes: &w.sizes,
                strides: &w.strides,
                bytes: &bytes,
            };
            return self.write_host(e, &view);
        }
        if e.bytes() > 0 {
            // SAFETY: both have the extent of the entry; the caller waits for the stream.
            unsafe { (self.driver).copy(self.address(e), w.address, e.bytes(), stream)? };
        }
        Ok(())
    }

    /// Copies the entries that `wanted` names from another set, in the order of the stream's work. Weights in memory of others are
    /// shared with it.
    pub(super) fn copy_from(
        &mut self,
        plan: &WeightPlan,
        from: &WeightSet,
        stream: Stream,
        wanted: &dyn Fn(&Entry) -> bool,
    ) -> Result<()> {
        for e in plan.entries.iter().filter(|e| wanted(e) && e.bytes() > 0) {
            if let Some(t) = from.shared.get(&e.offset) {
                self.shared.insert(e.offset, t.clone());
                continue;
            }
            // SAFETY: an entry has the same extent in every set; the caller keeps both until the work is done.
            unsafe { (self.driver).copy(self.address(e), from.address(e), e.bytes(), stream)? };
        }
        Ok(())
    }
}

impl Entry {
    /// Returns the bytes from the first to the last element.
    pub(super) fn bytes(&self) -> usize {
        self.shape.bytes().unwrap_or(0) as usize
    }
}

impl Drop for WeightSet {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take() {
            // Without the context the process is at its end.
            match self.driver.enter(self.context) {
                Ok(_entered) => {
                    // Work that calls issued may still read it. After a failure of the device nothing does.
                    _ = self.driver.synchronize_all();
                    drop(memory);
                }
                Err(_) => std::mem::forget(memory),
            }
        }
    }
}
