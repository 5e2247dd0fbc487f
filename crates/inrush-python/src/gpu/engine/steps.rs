//! Steps that need no interpreter.

use super::{Code, Copies, Frame, Kept, Ready, Stop, out_of_memory};
use crate::errors::raise;
use crate::gpu::owned::Owned;
use crate::gpu::plan::{self, Launch, Op, Plan};
use crate::run::Call;
use inrush_base::Error;
use inrush_cuda::driver::{Driver, Kernel};
use pyo3::prelude::*;
use smallvec::SmallVec;
use std::sync::{Arc, PoisonError};

impl Frame<'_> {
    pub(super) fn stretch(
        &mut self,
        py: Python<'_>,
        call: &mut Call<'_>,
        ready: &Ready,
        copies: &mut Copies,
    ) -> PyResult<()> {
        let plan = &ready.plan;
        let _arena = match plan.arena_bytes {
            0 => None,
            bytes => {
                let (arena, base) = (self.memory(bytes))
                    .ok_or_else(|| out_of_memory(py, self.engine.device, bytes))?;
                self.bases[self.recipe.slots] = base;
                Some(arena)
            }
        };
        if !plan.loads.is_empty() {
            self.loads(py, plan)?;
        }
        let mut kept = ready.take(self.shims);
        let mut at = 0;
        while at < plan.ops.len() {
            let op = &plan.ops[at];
            if op.is_python() {
                self.python(py, call, op, copies)?;
                at += 1;
                continue;
            }
            let run = plan.ops[at..].iter().take_while(|o| !o.is_python()).count();
            let ops = &plan.ops[at..at + run];
            let (me, tensors) = (&mut *self, &mut kept);
            let done = py.detach(move || me.native(ops, ready, tensors));
            if let Err(stop) = done {
                return Err(self.raise(py, call, stop));
            }
            for s in self.dropped.drain(..) {
                call.slots[s] = None;
            }
            at += run;
        }
        ready.give(kept);
        Ok(())
    }

    /// Whether steps may be recorded: the first call that tunes issues them all.
    pub(in crate::gpu) fn may_record(&self) -> bool {
        matches!(self.code, Code::Device(_)) && !self.recording && self.tuning.borrow().is_none()
    }

    /// The kernels, where a device runs them.
    pub(in crate::gpu) fn kernels(&self) -> Vec<Arc<Kernel>> {
        match self.code {
            Code::Device(kernels) => kernels.clone(),
            Code::Interpreter(..) => Vec::new(),
        }
    }

    pub(in crate::gpu) fn device_index(&self) -> i32 {
        self.engine.device.index
    }

    /// Memory of the device, from PyTorch's allocator.
    pub(in crate::gpu) fn memory(&self, bytes: u64) -> Option<(Owned, u64)> {
        const U8: i32 = 0;
        let (handle, base) =
            (self.shims).allocate(&[bytes as i64], &[1], U8, self.engine.device)?;
        let owned = Owned {
            handle,
            shims: self.shims,
        };
        Some((owned, base))
    }

    /// Runs the load steps that no call ran before.
    fn loads(&mut self, py: Python<'_>, plan: &Plan) -> PyResult<()> {
        let mut loaded = (self.engine.loaded)
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        for (step, bytes, launches) in &plan.loads {
            let base = self.recipe.slots + 1 + *step;
            if let Some((_, address)) = loaded.get(step) {
                self.bases[base] = *address;
                continue;
            }
            let (owned, address) = (self.memory((*bytes).max(1)))
                .ok_or_else(|| out_of_memory(py, self.engine.device, *bytes))?;
            self.bases[base] = address;
            for l in launches {
                self.launch(l).map_err(|e| self.stop(py, e))?;
            }
            // Other streams may read it.
            if let Code::Device(_) = self.code {
                let driver = Driver::get().map_err(raise)?;
                driver.synchronize(self.stream).map_err(raise)?;
            }
            loaded.insert(*step, (owned, address));
        }
        Ok(())
    }

    pub(in crate::gpu) fn native(
        &mut self,
        ops: &[Op],
        ready: &Ready,
        kept: &mut Kept,
    ) -> Result<(), Stop> {
        for op in ops {
            match op {
                Op::Launch(l) => self.launch(l)?,
                Op::List(l) => self.list(l, kept)?,
                Op::Run(r) => self.run(r, ready, kept)?,
                Op::Library(l) => self.library(l, kept)?,
                Op::Copy(c) => self.copy(c)?,
                Op::Allocate(a) => {
                    let s = &a.shape;
                    let made =
                        (self.shims).allocate(&s.sizes, &s.strides, s.dtype, self.engine.device);
                    let (handle, address) = made.ok_or_else(|| Stop::memory(s))?;
                    self.bases[a.slot] = address;
                    self.own[a.slot] = Owned {
                        handle,
                        shims: self.shims,
                    };
                }
                Op::Free { slot } => {
                    self.own[*slot] = Owned::none(self.shims);
                    self.dropped.push(*slot);
                }
                Op::Take(_) | Op::Python { .. } | Op::View(_) | Op::Set { .. } => {
                    return Err(Stop::Failed(Error::internal("a step of Python's")));
                }
            }
        }
        Ok(())
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
            map.write(&mut bytes)?;
        }
        Ok(bytes)
    }
    pub(super) fn launch(&self, l: &Launch) -> Result<(), Stop> {
        let failed = |e: Error| Stop::Failed(e.context(self.title(l)));
        let mut bytes = self.packed(l).map_err(failed)?;
        match self.code {
            Code::Device(kernels) => {
                if let (Some(t), Some(gpu)) = (self.tuning.borrow_mut().as_mut(), &self.recipe.gpu)
                {
                    let address = |a: &(u32, plan::BaseId, u64)| self.bases[a.1 as usize] + a.2;
                    let addresses = l.addresses.iter().map(address).collect();
                    t.before(&gpu.kernels[l.kernel].symbol, addresses, self.stream);
                }
                // SAFETY: arguments were packed by the kernel's signature; addresses are of memory that lives until the
                // work on this stream is done, since PyTorch's allocator reuses it on the same stream only.
                let done = unsafe { kernels[l.kernel].launch(l.grid, &mut bytes, self.stream) };
                done.map_err(failed)
            }
            Code::Interpreter(launch, kernels) => Python::attach(|py| {
                let args = (&kernels[l.kernel], l.grid, bytes.as_slice());
                launch.call1(py, args).map(drop)
            })
            .map_err(Stop::Python),
        }
    }

    fn copy(&self, c: &plan::Copy) -> Result<(), Stop> {
        let address = |(base, offset): (plan::BaseId, u64)| self.bases[base as usize] + offset;
        let (to, from, bytes) = (address(c.to), address(c.from), c.bytes as usize);
        match self.code {
            Code::Device(_) => {
                let driver = Driver::get().map_err(Stop::Failed)?;
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
        let kernel = self.recipe.gpu.as_ref().map(|g| &g.kernels[l.kernel]);
        kernel.map_or_else(String::new, |k| format!("kernel `{}`", k.function))
    }
}
