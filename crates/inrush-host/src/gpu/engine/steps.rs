//! Steps that need no interpreter.

use super::{BoundPlan, CachedTensors, Code, Frame, Stop};
use crate::devices;
use crate::gpu::choose::Trial;
use crate::gpu::driver::{Driver, Kernel};
use crate::gpu::plan::{self, Launch, Op, Plan};
use crate::host::Host;
use crate::program::Device;
use crate::shape::Shape;
use inrush_base::Error;
use smallvec::SmallVec;
use std::sync::{Arc, PoisonError};

impl<H: Host> Frame<'_, H> {
    /// Runs a region of the program by its plan.
    pub(super) fn region(
        &mut self,
        call: &mut H::Call<'_>,
        bound: &BoundPlan<H>,
    ) -> Result<(), H::Error> {
        let (plan, host) = (&bound.plan, self.host);
        let _arena = match plan.arena_bytes {
            0 => None,
            bytes => {
                let Some((arena, base)) = self.memory(bytes) else {
                    return Err(host.raise(call, self, Stop::Memory(bytes)));
                };
                self.bases[self.program.slots] = base;
                Some(arena)
            }
        };
        if !plan.loads.is_empty() {
            let loaded = self.loads(plan);
            loaded.map_err(|stop| host.raise(call, self, stop))?;
        }
        let mut cached = bound.take();
        let mut at = 0;
        while at < plan.ops.len() {
            let op = &plan.ops[at];
            if op.is_host() {
                host.step(call, self, op)?;
                at += 1;
                continue;
            }
            let run = plan.ops[at..].iter().take_while(|o| !o.is_host()).count();
            let ops = &plan.ops[at..at + run];
            let (me, tensors) = (&mut *self, &mut cached);
            let done = H::native(call, move || me.native(ops, bound, tensors));
            if let Err(stop) = done {
                return Err(host.raise(call, self, stop));
            }
            for s in self.released.drain(..) {
                H::release(call, s);
            }
            at += run;
        }
        bound.give(cached);
        Ok(())
    }

    /// Returns true if steps may be recorded: the first call that tunes issues them all.
    pub(in crate::gpu) fn may_record(&self) -> bool {
        matches!(self.code, Code::Device) && !self.recording && self.tuning.borrow().is_none()
    }

    /// Returns the kernels that are loaded.
    pub(in crate::gpu) fn kernels(&self) -> Vec<Arc<Kernel>> {
        self.engine.provided.all_loaded()
    }

    /// Returns the kernel of a launch, where a device runs it.
    pub(super) fn kernel(&self, l: &Launch) -> Result<&Arc<Kernel>, Error> {
        let gpu = self.program.gpu.as_ref();
        let gpu = gpu.ok_or_else(|| Error::internal("no kernels"))?;
        self.engine.provided.loaded(l.kernel, gpu)
    }

    /// Returns the kernel of its first launch, which is chosen among several where there are some.
    fn first(&self, l: &Launch, arguments: &[u8]) -> Result<&Arc<Kernel>, Error> {
        let provided = &self.engine.provided;
        let driver = self.driver()?;
        let (Some(gpu), true) = (&self.program.gpu, provided.is_chosen_later(l.kernel)) else {
            return self.kernel(l);
        };
        // Work that is recorded is not run.
        if self.recording || driver.is_capturing(self.stream)? {
            return self.kernel(l);
        }
        let memory = |w: &(plan::BaseId, u64, u64)| (self.bases[w.0 as usize] + w.1, w.2);
        let trial = Trial {
            driver,
            stream: self.stream,
            grid: l.grid,
            arguments,
            writes: l.writes.iter().map(memory).collect(),
        };
        provided.choose(l.kernel, gpu, &trial)
    }

    pub(in crate::gpu) fn device(&self) -> Device {
        self.engine.device
    }

    /// Returns the driver of the program's device.
    pub(in crate::gpu) fn driver(&self) -> Result<Driver, Error> {
        devices::driver(self.engine.device)
    }

    /// Returns memory of the device, from the host's allocator.
    pub(in crate::gpu) fn memory(&self, bytes: u64) -> Option<(H::Tensor, u64)> {
        self.host.allocate(&Shape::of_bytes(bytes))
    }

    /// Runs the load steps that no call ran before.
    fn loads(&mut self, plan: &Plan) -> Result<(), Stop<H::Error>> {
        let mut loaded = (self.engine.loaded)
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for (step, bytes, launches) in &plan.loads {
            let base = self.program.slots + 1 + *step;
            if let Some((_, address)) = loaded.get(step) {
                self.bases[base] = *address;
                continue;
            }
            let (owned, address) = (self.memory((*bytes).max(1))).ok_or(Stop::Memory(*bytes))?;
            self.bases[base] = address;
            for l in launches {
                self.launch(l)?;
            }
            // Other streams may read it.
            if let Code::Device = self.code {
                let driver = self.driver().map_err(Stop::Failed)?;
                driver.synchronize(self.stream).map_err(Stop::Failed)?;
            }
            loaded.insert(*step, (owned, address));
        }
        Ok(())
    }

    /// Issues steps that need no interpreter.
    pub(in crate::gpu) fn native(
        &mut self,
        ops: &[Op],
        bound: &BoundPlan<H>,
        cached: &mut CachedTensors<H>,
    ) -> Result<(), Stop<H::Error>> {
        for op in ops {
            match op {
                Op::Launch(l) => self.launch(l)?,
                Op::Batch(b) => self.batch(b, cached)?,
                Op::Recordable(r) => self.recordable(r, bound, cached)?,
                Op::Library(l) => self.library(l, cached)?,
                Op::Copy(c) => self.copy(c)?,
                Op::Allocate(a) => {
                    let made = self.allocate(a);
                    let (tensor, address) = made.ok_or_else(|| Stop::memory(&a.shape))?;
                    self.bases[a.slot] = address;
                    self.own[a.slot] = Some(tensor);
                }
                Op::Free { slot } => {
                    self.own[*slot] = None;
                    self.released.push(*slot);
                }
                Op::CheckInput(_) | Op::Call { .. } | Op::View(_) | Op::Set { .. } => {
                    return Err(Stop::Failed(Error::internal("a step of the host's")));
                }
            }
        }
        Ok(())
    }

    /// Returns the memory of an output: the caller's if that has the layout, else new memory.
    fn allocate(&self, a: &plan::Allocate) -> Option<(H::Tensor, u64)> {
        let given =
            (self.into.iter()).find(|(slot, _, shape)| *slot == a.slot && *shape == a.shape);
        match given {
            Some((_, address, shape)) => Some((self.host.over(*address, shape)?, *address)),
            None => self.host.allocate(&a.shape),
        }
    }

    /// Arguments of a launch with the addresses of this call.
    pub(super) fn packed(&self, l: &Launch) -> Result<SmallVec<[u8; 512]>, Error> {
        let mut bytes: SmallVec<[u8; 512]> = SmallVec::from_slice(&l.arguments);
        for (place, base, offset) in &l.addresses {
            let address = self.bases[*base as usize] + offset;
            let at = *place as usize;
            bytes[at..at + 8].copy_from_slice(&address.to_le_bytes());
        }
        for map in &l.maps {
            map.write(&mut bytes, self.engine.device)?;
        }
        Ok(bytes)
    }

    pub(super) fn launch(&self, l: &Launch) -> Result<(), Stop<H::Error>> {
        let failed = |e: Error| Stop::Failed(e.context(self.title(l)));
        let mut bytes = self.packed(l).map_err(failed)?;
        match self.code {
            Code::Device => {
                let kernel = match self.engine.provided.ready(l.kernel) {
                    Some(kernel) => kernel,
                    None => self.first(l, &bytes).map_err(failed)?,
                };
                if let (Some(t), Some(gpu)) = (self.tuning.borrow_mut().as_mut(), &self.program.gpu)
                {
                    let address = |a: &(u32, plan::BaseId, u64)| self.bases[a.1 as usize] + a.2;
                    let addresses = l.addresses.iter().map(address).collect();
                    t.before(&gpu.kernels[l.kernel].symbol, addresses, self.stream);
                }
                // SAFETY: arguments were packed by the kernel's signature; addresses are of memory that lives until the
                // work on this stream is done, since a host reuses it on the same stream only.
                let done = unsafe { kernel.launch(l.grid, &mut bytes, self.stream) };
                done.map_err(failed)
            }
            Code::Interpreter(code) => {
                (self.host.interpret(code, l.kernel, l.grid, &bytes)).map_err(Stop::Host)
            }
        }
    }

    fn copy(&self, c: &plan::Copy) -> Result<(), Stop<H::Error>> {
        let address = |(base, offset): (plan::BaseId, u64)| self.bases[base as usize] + offset;
        let (to, from, bytes) = (address(c.to), address(c.from), c.bytes as usize);
        match self.code {
            Code::Device => {
                let driver = self.driver().map_err(Stop::Failed)?;
                // SAFETY: both are tensors of these bytes, which live as the arguments of launches do.
                unsafe { driver.copy(to, from, bytes, self.stream) }.map_err(Stop::Failed)
            }
            // SAFETY: likewise, on the host; the values have memory of their own.
            Code::Interpreter(..) => unsafe {
                std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes);
                Ok(())
            },
        }
    }

    pub(super) fn title(&self, l: &Launch) -> String {
        let kernel = self.program.gpu.as_ref().map(|g| &g.kernels[l.kernel]);
        kernel.map_or_else(String::new, |k| format!("kernel `{}`", k.function))
    }
}
