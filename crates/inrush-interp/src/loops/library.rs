//! Library calls: the library's own functions on row-major copies, so that their loops' neighbours are what is checked.

use super::Run;
use crate::tensor::Tensor;
use inrush_base::{Error, Result};
use inrush_cpu::Pool;
use inrush_library::{Call, Input, Output};
use inrush_loops::LibraryCall;

impl Run<'_> {
    /// Runs a library call on one thread.
    pub(super) fn library(&mut self, c: &LibraryCall) -> Result<()> {
        let function = inrush_library::find(&c.function).ok_or_else(|| {
            Error::unsupported(format!("there is no library function `{}`", c.function))
        })?;
        let read = |b: &inrush_loops::BufId| self.memory.read_all(b.index());
        let inputs: Vec<Tensor> = c.inputs.iter().map(read).collect::<Result<_>>()?;
        let mut results: Vec<Tensor> = c.outputs.iter().map(read).collect::<Result<_>>()?;
        let given: Vec<Input> = (inputs.iter())
            .map(|t| Input {
                dtype: t.dtype,
                sizes: &t.sizes,
                bytes: &t.data,
            })
            .collect();
        let mut written: Vec<Output> = (results.iter_mut())
            .map(|t| Output {
                dtype: t.dtype,
                sizes: &t.sizes,
                bytes: &mut t.data,
            })
            .collect();
        (function.run)(&mut Call {
            inputs: &given,
            outputs: &mut written,
            params: &c.params,
            pool: &Pool::new(Some(1))?,
        })?;
        for (b, t) in c.outputs.iter().zip(&results) {
            self.memory.write_all(b.index(), t)?;
        }
        Ok(())
    }
}
