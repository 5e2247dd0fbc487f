//! Calls of PyTorch's C functions and of cuBLAS, and their operands.

use super::{Frame, Kept, Stop};
use crate::gpu::owned::Owned;
use crate::gpu::plan::{self, LibraryCall, Operand};
use crate::recipe::What;
use crate::shim::Handle;
use inrush_base::Error;
use smallvec::SmallVec;

impl Frame<'_> {
    pub(super) fn library(&mut self, l: &LibraryCall, kept: &mut Kept) -> Result<(), Stop> {
        let What::Library(step) = &self.recipe.steps[l.step].what else {
            return Err(Stop::Failed(Error::internal("no library call")));
        };
        if let (Some((blas, handle)), Some(gemm)) = (self.blas, &l.gemm)
            && let [Some(a), Some(b)] = l.inputs.as_slice()
            && let Some(out) = &l.out
        {
            let (a, b, out) = (self.at(a), self.at(b), self.at(out));
            // SAFETY: the handle is PyTorch's for this thread; memory lives as in a launch.
            if unsafe { blas.run(handle, gemm, a, b, out) } {
                return Ok(());
            }
        }
        if self.recording {
            return Err(Stop::Failed(Error::internal("a call that PyTorch makes")));
        }
        let mut inputs: SmallVec<[Handle; 4]> = SmallVec::new();
        for i in &l.inputs {
            inputs.push(match i {
                None => std::ptr::null_mut(),
                Some(o) => self.operand(o, kept)?,
            });
        }
        let out = match &l.out {
            Some(o) => self.operand(o, kept)?,
            None => std::ptr::null_mut(),
        };
        let mut results = [std::ptr::null_mut(); 9];
        // SAFETY: operands were just made; they and what they look at live through the call.
        let done = unsafe { (self.engine.library).call(&step.op, &inputs, out, &mut results) };
        let shims = self.shims;
        let mut made: SmallVec<[Owned; 9]> = (results.into_iter())
            .map(|handle| Owned { handle, shims })
            .collect();
        if !done {
            return Err(Stop::Library(l.step));
        }
        if l.out.is_some() {
            return Ok(());
        }
        for (k, slot) in step.outs.iter().enumerate() {
            // What nobody wants may be an undefined tensor.
            let Some(result) = made.get_mut(k).filter(|r| !r.is_none() && l.wanted[k]) else {
                continue;
            };
            let result = std::mem::replace(result, Owned::none(shims));
            let result = match &l.shapes[k] {
                Some(shape) => self.conform(result, shape)?,
                None => result,
            };
            // SAFETY: the tensor is owned here.
            self.bases[*slot] = unsafe { shims.address(result.handle) }.unwrap_or(0);
            self.own[*slot] = result;
        }
        Ok(())
    }

    /// The result itself if it lies as its metadata says, else a copy that does.
    fn conform(&self, result: Owned, shape: &plan::Shape) -> Result<Owned, Stop> {
        let failed = |_| Stop::Failed(Error::internal("a result tells no sizes"));
        // SAFETY: the tensor is owned by the caller.
        let (sizes, strides) = unsafe { self.shims.shape(result.handle) }.map_err(failed)?;
        let lies = sizes == shape.sizes.as_slice()
            && (sizes.iter().zip(strides.iter().zip(&shape.strides)))
                .all(|(n, (a, b))| *n <= 1 || a == b);
        if lies || sizes != shape.sizes.as_slice() {
            return Ok(result);
        }
        let copy = (self.shims).allocate(
            &shape.sizes,
            &shape.strides,
            shape.dtype,
            self.engine.device,
        );
        let (handle, _) = copy.ok_or_else(|| Stop::memory(shape))?;
        let copy = Owned {
            handle,
            shims: self.shims,
        };
        // SAFETY: both are owned.
        match unsafe { self.shims.copy(copy.handle, result.handle) } {
            true => Ok(copy),
            false => Err(Stop::Failed(Error::internal("a result cannot be copied"))),
        }
    }

    /// The address of an operand.
    fn at(&self, o: &Operand) -> u64 {
        match o {
            Operand::Memory { base, offset, .. } => self.bases[*base as usize] + offset,
            Operand::Slot(s) => self.bases[*s],
        }
    }

    /// The tensor of an operand.
    fn operand(&self, o: &Operand, kept: &mut Kept) -> Result<Handle, Stop> {
        match o {
            Operand::Slot(s) => match self.own[*s].handle {
                h if !h.is_null() => Ok(h),
                _ => Err(Stop::Failed(Error::internal("an operand is not there"))),
            },
            Operand::Memory {
                kept: k,
                base,
                offset,
                shape,
            } => {
                let address = self.bases[*base as usize] + offset;
                let (was, tensor) = &mut kept.tensors[*k];
                if *was != address || tensor.is_none() {
                    let made = (self.shims).blob(
                        address,
                        &shape.sizes,
                        &shape.strides,
                        shape.dtype,
                        self.engine.device,
                    );
                    let handle =
                        made.ok_or_else(|| Stop::Failed(Error::internal("no tensor over memory")))?;
                    *tensor = Owned {
                        handle,
                        shims: self.shims,
                    };
                    *was = address;
                }
                Ok(tensor.handle)
            }
        }
    }
}
