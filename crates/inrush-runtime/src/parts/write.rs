//! New contents of inputs and weights, at the end of a call.

use super::call::Call;
use crate::tensor::{Tensor, contiguous_strides};
use inrush_base::{Error, Result};
use inrush_program::parts::Write;
use std::sync::Arc;

impl Call<'_> {
    /// Writes new contents. A source that shares memory with a target is copied before any target is written.
    pub(super) fn write(&mut self, all: &[Write]) -> Result<()> {
        let mut pairs: Vec<(Tensor, Tensor)> = Vec::with_capacity(all.len());
        for w in all {
            let (from, to) = (self.tensor(w.from)?, self.tensor(w.to)?);
            if from.dtype != to.dtype || from.sizes != to.sizes {
                return Err(Error::internal(format!(
                    "new contents are {} of sizes {:?}, not {} of {:?}",
                    from.dtype, from.sizes, to.dtype, to.sizes
                )));
            }
            pairs.push((from.clone(), to.clone()));
        }
        let targets: Vec<Tensor> = pairs.iter().map(|(_, to)| to.clone()).collect();
        for (from, _) in &mut pairs {
            if targets.iter().any(|t| share(from, t)) {
                *from = from.with_strides(&contiguous_strides(&from.sizes))?;
            }
        }
        for (from, to) in &pairs {
            // SAFETY: of one dtype and sizes (checked); the target is an input that the caller lets the program write (checked), or a
            // buffer of the model's under its lock.
            unsafe { from.copy_to(to) };
        }
        Ok(())
    }
}

/// Returns true if two tensors have memory in common.
fn share(a: &Tensor, b: &Tensor) -> bool {
    let range = |t: &Tensor| {
        let start = t.storage.as_ptr() as usize;
        start..start + t.storage.len()
    };
    let (x, y) = (range(a), range(b));
    Arc::ptr_eq(&a.storage, &b.storage) || x.start < y.end && y.start < x.end
}
