//! Library calls, and their operands.

use super::{CachedTensors, Frame, Stop};
use crate::gpu::plan::{LibraryCall, Operand};
use crate::host::{Host, Results};
use crate::program::{LibraryOp, StepKind};
use inrush_base::Error;
use smallvec::SmallVec;

impl<H: Host> Frame<'_, H> {
    /// Issues a library call: by cuBLAS itself if it takes the operands as they are, else by the host.
    pub(super) fn library(
        &mut self,
        l: &LibraryCall,
        cached: &mut CachedTensors<H>,
    ) -> Result<(), Stop<H::Error>> {
        let StepKind::Library(step) = &self.program.steps[l.step].kind else {
            return Err(Stop::Failed(Error::internal("no library call")));
        };
        if let (Some((blas, handle)), Some(gemm)) = (self.blas, &l.gemm)
            && let [Some(a), Some(b)] = l.inputs.as_slice()
            && let Some(out) = &l.out
        {
            let (a, b, out) = (self.at(a), self.at(b), self.at(out));
            // SAFETY: the handle is the host's for this stream; memory lives as in a launch.
            if unsafe { blas.run(handle, gemm, a, b, out) } {
                return Ok(());
            }
        }
        if self.recording {
            return Err(Stop::Failed(Error::internal("a call that the host makes")));
        }
        let mut results: Results<H::Tensor> = Default::default();
        self.ask(l, &step.op, cached, &mut results)?;
        if l.out.is_some() {
            return Ok(());
        }
        for (k, slot) in step.outs.iter().enumerate() {
            // What nothing reads may be an undefined tensor.
            let result = results.get_mut(k).filter(|_| l.wanted[k]);
            let Some(result) = result.and_then(Option::take) else {
                continue;
            };
            let result = match &l.shapes[k] {
                Some(shape) => self.host.conform(result, shape)?,
                None => result,
            };
            self.bases[*slot] = self.host.address(&result).unwrap_or(0);
            self.own[*slot] = Some(result);
        }
        Ok(())
    }

    /// Has the host make a library call.
    fn ask(
        &self,
        l: &LibraryCall,
        op: &LibraryOp,
        cached: &mut CachedTensors<H>,
        results: &mut Results<H::Tensor>,
    ) -> Result<(), Stop<H::Error>> {
        for o in l.inputs.iter().flatten().chain(&l.out) {
            self.refresh(o, cached)?;
        }
        let cached = &*cached;
        let mut inputs: SmallVec<[Option<&H::Tensor>; 4]> = SmallVec::new();
        for i in &l.inputs {
            inputs.push(i.as_ref().map(|o| self.operand(o, cached)).transpose()?);
        }
        let out = (l.out.as_ref())
            .map(|o| self.operand(o, cached))
            .transpose()?;
        match (self.host).library(op, &inputs, out, results) {
            true => Ok(()),
            false => Err(Stop::Library(l.step)),
        }
    }

    /// Returns the address of an operand.
    fn at(&self, o: &Operand) -> u64 {
        match o {
            Operand::Memory { base, offset, .. } => self.bases[*base as usize] + offset,
            Operand::Slot(s) => self.bases[*s],
        }
    }

    /// Has the cached tensor of an operand be over this call's memory.
    fn refresh(&self, o: &Operand, cached: &mut CachedTensors<H>) -> Result<(), Stop<H::Error>> {
        let Operand::Memory {
            cached: k, shape, ..
        } = o
        else {
            return Ok(());
        };
        let address = self.at(o);
        let (was, tensor) = &mut cached.tensors[*k];
        if *was != address || tensor.is_none() {
            let made = self.host.over(address, shape);
            let missing = || Stop::Failed(Error::internal("no tensor over memory"));
            *tensor = Some(made.ok_or_else(missing)?);
            *was = address;
        }
        Ok(())
    }

    /// Returns the tensor of an operand.
    fn operand<'a>(
        &'a self,
        o: &Operand,
        cached: &'a CachedTensors<H>,
    ) -> Result<&'a H::Tensor, Stop<H::Error>> {
        let tensor = match o {
            Operand::Slot(s) => &self.own[*s],
            Operand::Memory { cached: k, .. } => &cached.tensors[*k].1,
        };
        let missing = || Stop::Failed(Error::internal("an operand is not there"));
        tensor.as_ref().ok_or_else(missing)
    }
}
