//! The executor. A call reads its symbols, finds the plan that was prepared for them (or prepares one), and issues its steps.
//! For shapes that were seen it hashes nothing, handles no strings, and allocates only outputs.

use crate::arena::Arena;
use crate::bind;
use crate::contract::PlannedContraction;
use crate::library::PlannedLibrary;
use crate::model::{KernelFn, Model, root};
use crate::poison;
use crate::tensor::{Storage, Tensor, Value, extent};
use crate::together::Together;
use inrush_base::{Error, Result};
use inrush_cpu::Bytes;
use inrush_program::{BufferId, InputType, Launch, Output, Place, Program, Step};
use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// Work in bytes (or their equivalent) below which a second thread does not pay off.
pub(crate) const SERIAL_COST: i64 = 48 << 10;
/// A thread takes at least this much at a time.
pub(crate) const CHUNK_COST: i64 = 24 << 10;
/// Prepared plans kept per model; the oldest goes first.
const MAX_PREPARED: usize = 64;

/// Invariants of calls with the same symbol values.
pub(crate) struct Prepared {
    pub symbols: Vec<i64>,
    /// Threads that work is cut for; a host may change it between calls.
    pub threads: usize,
    pub sizes: Vec<i64>,
    pub arena_bytes: usize,
    steps: Vec<Ready>,
    /// How many of the program's steps each of `steps` is.
    spans: Vec<usize>,
    /// Extents of buffers in the arena, for poisoned calls.
    extents: Vec<Option<Extent>>,
    /// True if some step runs on several threads.
    shared: bool,
    /// Bytes of each output's storage; zero for outputs that are no tensors or share another's.
    pub output_bytes: Vec<usize>,
    /// Arena offset by buffer, for buffers in the arena.
    places: Vec<Where>,
}

/// A buffer's place in the arena.
#[derive(Copy, Clone)]
pub(crate) struct Extent {
    pub offset: usize,
    pub bytes: usize,
}

#[derive(Copy, Clone)]
enum Where {
    Fixed,
    Input(u32),
    Arena(usize),
    Output(u32),
    Alias(BufferId, isize),
}

enum Ready {
    Launch {
        f: KernelFn,
        kernel: u32,
        buffers: Vec<BufferId>,
        sizes: Vec<i64>,
        units: i64,
        grain: i64,
        serial: bool,
        scratch: usize,
    },
    /// Independent launches, fused into one parallel region.
    Together(Box<Together>),
    /// With its position, which is that of its packed operand.
    Contract(Box<PlannedContraction>, usize),
    Library(Box<PlannedLibrary>),
    Nothing,
}

/// Lists that one call at a time uses, kept so that calls do not allocate them.
#[derive(Default)]
pub(crate) struct Frame {
    /// By buffer.
    pointers: Vec<*mut u8>,
    /// Values of the call's symbols.
    symbols: Vec<i64>,
    /// Addresses by position.
    inputs: Vec<*mut u8>,
    pub outputs: Vec<*mut u8>,
}

// SAFETY: the pointers are rewritten at the start of each call.
unsafe impl Send for Frame {}

/// Memory and time that a call used, for reports.
#[derive(Copy, Clone, Debug, Default)]
pub struct CallStats {
    /// Arena, scratch and outputs together.
    pub bytes: usize,
}

impl Model {
    /// Runs the model. Inputs are in call order, flattened; outputs likewise.
    ///
    /// # Errors
    /// An input error for wrong inputs or an index out of range inside the model.
    pub fn run(&self, inputs: &[Value]) -> Result<Vec<Value>> {
        self.bound.pool.check_fork()?;
        if let Some(parts) = &self.parts {
            return self.run_parts(parts, inputs);
        }
        self.with_frame(|frame| {
            let prepared = self.bind(frame, inputs)?;
            let _guard = self.lock_state();
            self.call(&prepared, frame, inputs)
        })
    }

    /// Checks a call's inputs and finds what was prepared for their sizes.
    pub(crate) fn bind(&self, frame: &mut Frame, inputs: &[Value]) -> Result<Arc<Prepared>> {
        bind::symbols(self.program(), inputs, &mut frame.symbols)?;
        let prepared = self.prepared_for(&frame.symbols, inputs)?;
        bind::check(self.program(), &prepared.sizes, &frame.symbols, inputs)?;
        for (at, value) in inputs.iter().enumerate() {
            if let (Value::Tensor(t), true) = (value, self.bound.writes_input[at]) {
                bind::check_writes(&self.program().inputs[at].name, t)?;
            }
        }
        Ok(prepared)
    }

    /// Lends a frame of an earlier call, or a fresh one.
    pub(crate) fn with_frame<T>(&self, f: impl FnOnce(&mut Frame) -> T) -> T {
        let lock = || self.frames.lock().unwrap_or_else(|e| e.into_inner());
        let mut frame = lock().pop().unwrap_or_default();
        let result = f(&mut frame);
        let mut frames = lock();
        if frames.len() < 8 {
            frames.push(frame);
        }
        result
    }

    /// Memory that a call with these inputs takes, weights aside.
    ///
    /// # Errors
    /// An input error for wrong inputs. Of a program in parts nothing is known before the call: zero.
    pub fn stats(&self, inputs: &[Value]) -> Result<CallStats> {
        if self.parts.is_some() {
            return Ok(CallStats::default());
        }
        let mut symbols = Vec::new();
        bind::symbols(self.program(), inputs, &mut symbols)?;
        let p = self.prepared_for(&symbols, inputs)?;
        Ok(CallStats {
            bytes: p.arena_bytes + p.output_bytes.iter().sum::<usize>(),
        })
    }

    fn prepared_for(&self, symbols: &[i64], inputs: &[Value]) -> Result<Arc<Prepared>> {
        let mut known = self.prepared.lock().unwrap_or_else(|e| e.into_inner());
        let threads = self.bound.pool.threads();
        if let Some(p) = known
            .iter()
            .find(|p| p.symbols == symbols && p.threads == threads)
        {
            return Ok(p.clone());
        }
        let sizes = bind::sizes(&self.bound.program, symbols)?;
        // Checked before anything is sized by them.
        bind::check(&self.bound.program, &sizes, symbols, inputs)?;
        let prepared = Arc::new(self.prepare(symbols.to_vec(), sizes)?);
        if known.len() == MAX_PREPARED {
            known.remove(0);
        }
        known.push(prepared.clone());
        Ok(prepared)
    }

    pub(crate) fn prepare(&self, symbols: Vec<i64>, sizes: Vec<i64>) -> Result<Prepared> {
        let p = &self.bound.program;
        let bytes = |v: i64, what: &str| {
            usize::try_from(v).map_err(|_| Error::input(format!("{what} would take {v} bytes")))
        };
        let places = p
            .buffers
            .iter()
            .map(|b| {
                Ok(match &b.place {
                    Place::Input { input } => Where::Input(*input),
                    Place::Weight(_) | Place::Persistent { .. } => Where::Fixed,
                    Place::Arena { offset } => {
                        Where::Arena(bytes(sizes[offset.0 as usize], &b.name)?)
                    }
                    Place::Output { output } => Where::Output(*output),
                    Place::Alias { of, offset } => {
                        Where::Alias(*of, sizes[offset.0 as usize] as isize)
                    }
                })
            })
            .collect::<Result<Vec<_>>>()?;
        let arena_bytes = bytes(sizes[p.arena_bytes.0 as usize], "the arena")?;
        let mut output_bytes = vec![0; p.outputs.len()];
        for b in &p.buffers {
            if let Place::Output { output } = b.place {
                // The largest of its buffers: a damaged program may have several.
                let own = bytes(sizes[b.bytes.0 as usize], &b.name)?;
                let most: &mut usize = &mut output_bytes[output as usize];
                *most = own.max(*most);
            }
        }
        let mut steps = Vec::with_capacity(p.steps.len());
        let mut spans = Vec::with_capacity(p.steps.len());
        let mut at = 0;
        while at < p.steps.len() {
            let beside = (p.steps[at + 1..].iter())
                .take_while(|s| matches!(s, Step::Launch(l) if l.beside))
                .count();
            steps.push(match beside {
                0 => self.ready(&p.steps[at], at, &sizes)?,
                n => self.ready_together(&p.steps[at..=at + n], &sizes),
            });
            spans.push(1 + beside);
            at += 1 + beside;
        }
        let in_arena = |w: &Where| match w {
            Where::Arena(offset) => Some(*offset),
            _ => None,
        };
        let offsets: Vec<Option<usize>> = places.iter().map(in_arena).collect();
        let extents = extents(p, &offsets, &sizes);
        let alone = |s: &Ready| match s {
            Ready::Nothing | Ready::Launch { serial: true, .. } => true,
            Ready::Together(t) => t.serial,
            _ => false,
        };
        Ok(Prepared {
            shared: !steps.iter().all(alone),
            symbols,
            threads: self.bound.pool.threads(),
            sizes,
            arena_bytes,
            steps,
            spans,
            extents,
            output_bytes,
            places,
        })
    }

    fn ready(&self, step: &Step, at: usize, sizes: &[i64]) -> Result<Ready> {
        Ok(match step {
            Step::Launch(l) => self.ready_launch(l, sizes),
            Step::Contract(c) => {
                let packed = self.bound.state.packed.get(at).and_then(Option::as_ref);
                match PlannedContraction::new(
                    &self.bound.program,
                    c,
                    sizes,
                    packed,
                    &self.code.symbols,
                    self.bound.pool.threads(),
                )? {
                    Some(c) => Ready::Contract(Box::new(c), at),
                    None => Ready::Nothing,
                }
            }
            Step::Library(c) => Ready::Library(Box::new(PlannedLibrary::new(
                &self.bound.program,
                c,
                sizes,
            )?)),
        })
    }

    fn ready_together(&self, steps: &[Step], sizes: &[i64]) -> Ready {
        let launches: Vec<&Launch> = (steps.iter())
            .filter_map(|s| match s {
                Step::Launch(l) => Some(l),
                Step::Contract(_) | Step::Library(_) => None,
            })
            .collect();
        let threads = self.bound.pool.threads();
        match Together::new(&launches, sizes, &self.code.symbols, threads) {
            Some(t) => Ready::Together(Box::new(t)),
            None => Ready::Nothing,
        }
    }

    fn ready_launch(&self, l: &Launch, sizes: &[i64]) -> Ready {
        let units = sizes[l.units.0 as usize];
        if units <= 0 {
            return Ready::Nothing;
        }
        let unit_cost = sizes[l.unit_cost.0 as usize].max(1);
        let total = unit_cost.saturating_mul(units);
        let serial = l.serial || total <= SERIAL_COST || self.bound.pool.threads() == 1;
        // A few chunks for each thread balance threads of different speed.
        let up = |a: i64, b: i64| (a - 1) / b + 1;
        let even = up(units, 4 * self.bound.pool.threads() as i64);
        let grain = even.max(up(CHUNK_COST, unit_cost)).clamp(1, units);
        // SAFETY: the symbol was emitted with this signature; its address comes from the model's own object.
        let f = unsafe {
            std::mem::transmute::<crate::model::Symbol, KernelFn>(
                self.code.symbols[l.kernel as usize],
            )
        };
        Ready::Launch {
            f,
            kernel: l.kernel,
            buffers: l.buffers.clone(),
            sizes: l.sizes.iter().map(|i| sizes[i.0 as usize]).collect(),
            units,
            grain,
            serial,
            scratch: sizes[l.scratch_bytes.0 as usize].max(0) as usize,
        }
    }

    pub(crate) fn call(
        &self,
        p: &Prepared,
        frame: &mut Frame,
        inputs: &[Value],
    ) -> Result<Vec<Value>> {
        let copies = copy_inputs(self.program(), &p.sizes, inputs)?;
        let mut outputs: Vec<Option<Arc<Storage>>> = vec![None; p.output_bytes.len()];
        for (slot, bytes) in outputs.iter_mut().zip(&p.output_bytes) {
            if *bytes > 0 {
                *slot = Some(Arc::new(self.output_storage(*bytes)?));
            }
        }
        let address =
            |o: &Option<Arc<Storage>>| o.as_ref().map_or(std::ptr::null_mut(), |s| s.as_ptr());
        frame.outputs.clear();
        frame.outputs.extend(outputs.iter().map(address));
        let fences = if poison::enabled() {
            poison::fences(self.program(), inputs, &copies, &outputs)
        } else {
            Vec::new()
        };
        self.issue_on(p, frame, inputs, &copies, &fences)?;
        self.collect(p, &outputs, inputs, &copies, &frame.pointers)
    }

    /// Runs the steps on inputs or their copies, into `frame.outputs`. Copies of mutated inputs are copied back.
    pub(crate) fn issue_on(
        &self,
        p: &Prepared,
        frame: &mut Frame,
        inputs: &[Value],
        copies: &[Option<Tensor>],
        fences: &[poison::Fence],
    ) -> Result<()> {
        let mut given = std::mem::take(&mut frame.inputs);
        given.clear();
        given.extend(
            (inputs.iter().enumerate()).map(|(k, value)| match (copies.get(k), value) {
                (Some(Some(t)), _) | (_, Value::Tensor(t)) => t.data(),
                _ => std::ptr::null_mut(),
            }),
        );
        let made = std::mem::take(&mut frame.outputs);
        let result = self.issue(p, frame, &given, &made, fences);
        (frame.inputs, frame.outputs) = (given, made);
        result?;
        for (at, (copy, value)) in copies.iter().zip(inputs).enumerate() {
            if let (Some(copy), Value::Tensor(t), true) = (copy, value, self.bound.writes_input[at])
            {
                // SAFETY: both tensors hold every coordinate; the program writes this input, and the caller handed it over for that.
                unsafe { copy.copy_to(t) };
            }
        }
        Ok(())
    }

    /// Memory of an output, recycled where it is large.
    pub(crate) fn output_storage(&self, bytes: usize) -> Result<Storage> {
        let storage = self.recycler.take(bytes)?;
        if poison::enabled() {
            // SAFETY: storage of this size, which nothing else has.
            unsafe { poison::fill(storage.as_ptr(), bytes) };
        }
        Ok(storage)
    }

    /// Finds the address of every buffer and runs the steps. `inputs` and `outputs` are addresses by position; those of integers
    /// and of outputs without storage of their own are ignored. Poisoned calls check `fences`.
    pub(crate) fn issue(
        &self,
        p: &Prepared,
        frame: &mut Frame,
        inputs: &[*mut u8],
        outputs: &[*mut u8],
        fences: &[poison::Fence],
    ) -> Result<()> {
        let guarded = poison::enabled();
        let guard = if guarded { poison::GUARD } else { 0 };
        let lent = Arena::lend(p.arena_bytes + 2 * guard)?;
        let arena = lent.as_ptr().wrapping_add(guard);
        let pointers = &mut frame.pointers;
        pointers.clear();
        for (id, place) in p.places.iter().enumerate() {
            pointers.push(match *place {
                Where::Fixed => self.bound.state.base[id],
                Where::Arena(offset) => arena.wrapping_add(offset),
                Where::Output(k) => outputs[k as usize],
                Where::Alias(of, offset) => pointers[of as usize].wrapping_offset(offset),
                Where::Input(k) => inputs[k as usize],
            });
        }
        if p.shared {
            self.bound.pool.wake();
        }
        if !guarded {
            return p.steps.iter().try_for_each(|s| self.step(s, pointers));
        }
        let block = (lent.as_ptr(), p.arena_bytes + 2 * guard);
        let program = &self.bound.program;
        // SAFETY: the block has this many bytes and belongs to this call; steps are over when they return.
        let mut watch = unsafe { poison::Watch::new(program, &p.extents, fences, block) };
        let mut at = 0;
        for (step, span) in p.steps.iter().zip(&p.spans) {
            let own = &program.steps[at..at + span];
            watch.begin(own);
            self.step(step, pointers)?;
            watch.end(own)?;
            at += span;
        }
        Ok(())
    }

    fn step(&self, step: &Ready, pointers: &[*mut u8]) -> Result<()> {
        match step {
            Ready::Nothing => Ok(()),
            Ready::Launch {
                f,
                kernel,
                buffers,
                sizes,
                units,
                grain,
                serial,
                scratch,
            } => {
                let mut args = [std::ptr::null_mut(); 64];
                let mut heap;
                let args: &mut [*mut u8] = if buffers.len() < args.len() {
                    &mut args[..buffers.len() + 1]
                } else {
                    heap = vec![std::ptr::null_mut(); buffers.len() + 1];
                    &mut heap
                };
                for (a, b) in args.iter_mut().zip(buffers) {
                    *a = pointers[*b as usize];
                }
                let last = buffers.len();
                if *serial {
                    // SAFETY: arguments follow the emitted signature; buffers hold what the program promises.
                    let code = with_scratch(*scratch, |scratch| unsafe {
                        args[last] = scratch;
                        f(args.as_ptr(), sizes.as_ptr(), 0, *units)
                    });
                    return self.check(*kernel, code as i64);
                }
                let failed = AtomicI64::new(0);
                let shared = Shared(args.as_ptr(), args.len());
                self.bound
                    .pool
                    .parallel_for(*units as usize, *grain as usize, &|range| {
                        let shared = &shared;
                        let (begin, end) = (range.start as i64, range.end as i64);
                        // SAFETY: as above; ranges are disjoint, and each thread has its own scratch.
                        let code = unsafe {
                            if *scratch == 0 {
                                f(shared.0, sizes.as_ptr(), begin, end)
                            } else {
                                with_scratch(*scratch, |scratch| {
                                    let mut own =
                                        std::slice::from_raw_parts(shared.0, shared.1).to_vec();
                                    own[last] = scratch;
                                    f(own.as_ptr(), sizes.as_ptr(), begin, end)
                                })
                            }
                        };
                        if code != 0 {
                            failed.store(code as i64, Ordering::Relaxed);
                        }
                    })?;
                self.check(*kernel, failed.into_inner())
            }
            Ready::Together(t) => t.run(self, pointers),
            Ready::Library(c) => c.run(pointers, &self.bound.pool),
            Ready::Contract(c, at) => c.run(
                pointers,
                self.bound.state.packed.get(*at).and_then(Option::as_ref),
                &self.bound.pool,
            ),
        }
    }

    pub(crate) fn check(&self, kernel: u32, code: i64) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        if code == NO_SCRATCH as i64 {
            return Err(Error::out_of_memory("out of memory for a kernel's scratch"));
        }
        let k = &self.bound.program.kernels[kernel as usize];
        Err(match k.checks.get(code as usize - 1) {
            Some(check) => Error::new(check.kind.error(), check.message.clone()),
            None => Error::internal(format!("`{}` has no check {code}", k.symbol)),
        })
    }

    fn collect(
        &self,
        p: &Prepared,
        outputs: &[Option<Arc<Storage>>],
        inputs: &[Value],
        copies: &[Option<Tensor>],
        pointers: &[*mut u8],
    ) -> Result<Vec<Value>> {
        let value = |id: inrush_program::SizeId| p.sizes[id.0 as usize];
        self.bound
            .program
            .outputs
            .iter()
            .map(|o| {
                Ok(match o {
                    Output::Int { value: v } => Value::Int(value(*v)),
                    Output::Scalar { value } => Value::Scalar((*value).into()),
                    Output::None | Output::Mutation => Value::None,
                    Output::Tensor {
                        buffer,
                        dtype,
                        sizes,
                        strides,
                    } => {
                        let sizes: Vec<i64> = sizes.iter().map(|s| value(*s)).collect();
                        let strides: Vec<i64> = strides.iter().map(|s| value(*s)).collect();
                        let (owner, place) = root(&self.bound.program, *buffer);
                        let at = pointers[*buffer as usize] as usize;
                        let start = pointers[owner as usize] as usize;
                        let mut offset = at.wrapping_sub(start) / dtype.0.size();
                        let storage = match place {
                            Place::Output { output } => outputs[*output as usize].clone(),
                            // The output shares the memory that the kernels read: the input's, or that of its copy.
                            Place::Input { input } => {
                                let k = *input as usize;
                                let read = match (copies.get(k), &inputs[k]) {
                                    (Some(Some(t)), _) | (_, Value::Tensor(t)) => Some(t),
                                    _ => None,
                                };
                                offset += read.map_or(0, |t| t.offset);
                                read.map(|t| t.storage.clone())
                            }
                            _ => {
                                return Err(Error::internal(format!(
                                    "output buffer `{}` has no storage of its own",
                                    self.bound.program.buffers[*buffer as usize].name
                                )));
                            }
                        };
                        let storage = match storage {
                            Some(s) => s,
                            None => Arc::new(Storage::uninit(0)?),
                        };
                        let need = extent(&sizes, &strides)
                            .and_then(|n| (n + offset).checked_mul(dtype.0.size()));
                        if need.is_none_or(|n| n > storage.len() && !sizes.contains(&0)) {
                            return Err(Error::internal("an output is larger than its storage"));
                        }
                        Value::Tensor(Tensor {
                            dtype: dtype.0,
                            sizes,
                            strides,
                            offset,
                            storage,
                        })
                    }
                })
            })
            .collect()
    }

    /// Runs the steps that depend on weights only.
    pub(crate) fn run_load_steps(&self) -> Result<()> {
        if self.bound.program.load_steps.is_empty() {
            return Ok(());
        }
        let sizes: Vec<i64> = bind::constant_sizes(&self.bound.program)
            .into_iter()
            .map(Option::unwrap_or_default)
            .collect();
        let steps = self
            .bound
            .program
            .load_steps
            .iter()
            .map(|s| self.ready(s, usize::MAX, &sizes))
            .collect::<Result<Vec<_>>>()?;
        let base = &self.bound.state.base;
        let guarded = self.bound.state.load_block().and_then(Bytes::guarded);
        let Some(block) = guarded.filter(|_| poison::enabled()) else {
            return steps.iter().try_for_each(|s| self.step(s, base));
        };
        let program = &self.bound.program;
        let offsets: Vec<Option<usize>> = (program.buffers.iter())
            .map(|b| match b.place {
                Place::Persistent { offset } => usize::try_from(sizes[offset.0 as usize]).ok(),
                _ => None,
            })
            .collect();
        let extents = extents(program, &offsets, &sizes);
        // SAFETY: the block with its guards, which nothing but these steps uses before the model is loaded.
        let mut watch = unsafe { poison::Watch::new(program, &extents, &[], block) };
        for (ready, step) in steps.iter().zip(&program.load_steps) {
            let own = std::slice::from_ref(step);
            watch.begin(own);
            self.step(ready, base)?;
            watch.end(own)?;
        }
        Ok(())
    }
}

/// Copies the inputs whose strides are not those that the kernels expect. Empty where there are none.
pub(crate) fn copy_inputs(
    program: &Program,
    values: &[i64],
    inputs: &[Value],
) -> Result<Vec<Option<Tensor>>> {
    let mut copies: Vec<Option<Tensor>> = Vec::new();
    for (at, (spec, value)) in program.inputs.iter().zip(inputs).enumerate() {
        if let (InputType::Tensor { strides, .. }, Value::Tensor(t)) = (&spec.ty, value) {
            let matches = t
                .sizes
                .iter()
                .zip(t.strides.iter().zip(strides))
                .all(|(s, (a, b))| *s <= 1 || *a == values[b.0 as usize]);
            if !matches && t.numel() > 0 {
                let want: Vec<i64> = strides.iter().map(|s| values[s.0 as usize]).collect();
                copies.resize(inputs.len(), None);
                copies[at] = Some(t.with_strides(&want)?);
            }
        }
    }
    Ok(copies)
}

/// Returns the extent of each buffer in a block, by the offset of its owner; `None` for owners outside the block.
fn extents(
    p: &inrush_program::Program,
    offsets: &[Option<usize>],
    sizes: &[i64],
) -> Vec<Option<Extent>> {
    (0..offsets.len() as BufferId)
        .map(|b| {
            let (owner, _) = root(p, b);
            let offset = offsets[owner as usize]?;
            let bytes = sizes[p.buffers[owner as usize].bytes.0 as usize];
            let bytes = usize::try_from(bytes).unwrap_or(0);
            Some(Extent { offset, bytes })
        })
        .collect()
}

/// The return code of a kernel that did not run for lack of scratch memory.
const NO_SCRATCH: i32 = -1;

/// Calls `f` with `bytes` of scratch that belong to this thread; null for none. Kept between calls.
pub(crate) fn with_scratch(bytes: usize, f: impl FnOnce(*mut u8) -> i32) -> i32 {
    thread_local! {
        static SCRATCH: RefCell<Option<Storage>> = const { RefCell::new(None) };
    }
    if bytes == 0 {
        return f(std::ptr::null_mut());
    }
    if poison::enabled() {
        return match Bytes::new(bytes) {
            Some(block) => {
                let code = f(block.ptr());
                block.inspect("the kernel", &"its scratch");
                code
            }
            None => NO_SCRATCH,
        };
    }
    SCRATCH.with_borrow_mut(|slot| {
        if slot.as_ref().is_none_or(|s| s.len() < bytes) {
            match Storage::uninit(bytes) {
                Ok(s) => *slot = Some(s),
                Err(_) => return NO_SCRATCH,
            }
        }
        f(slot.as_ref().map_or(std::ptr::null_mut(), Storage::as_ptr))
    })
}

/// An address shared with worker threads for the length of one launch.
struct Shared(*const *mut u8, usize);
// SAFETY: the launch outlives the workers' use, and each worker writes its own range only.
unsafe impl Sync for Shared {}
