//! Calls of operators of the user's.

use super::call::Call;
use crate::operators::{
    OperatorCall, OperatorTensor, Registered, arguments, check_asked_for, declared_result, invoke,
};
use crate::tensor::{Tensor, Value, contiguous_strides};
use dlpark::ffi::{DLDevice, DLDeviceType};
use inrush_base::Result;
use inrush_program::host::Layout;
use inrush_program::parts::{Argument, Custom};
use std::sync::Arc;

impl Call<'_> {
    /// Calls the function of an operator of the user's. Nothing reads the slots in `frees` after it.
    pub(super) fn custom(
        &mut self,
        c: &Custom,
        function: &Registered,
        frees: &[usize],
    ) -> Result<()> {
        let schema = &function.operator.schema;
        let reads = c.reads();
        let mut written: Vec<Option<Tensor>> = vec![None; c.args.len()];
        for (at, a) in c.args.iter().enumerate() {
            if let (Argument::Tensor(slot), true) = (a, c.written(schema, at).is_some()) {
                let alone = reads.iter().filter(|s| *s == slot).count() == 1;
                written[at] = Some(self.to_write(*slot, alone && frees.contains(slot))?);
            }
        }
        let args = arguments(c, schema, &|id| self.size(id), |at, slot| {
            match &written[at] {
                Some(t) => Ok(operator_tensor(t)),
                None => self.tensor(slot).map(operator_tensor),
            }
        })?;
        let mut made: Vec<Option<Tensor>> = (c.results.iter())
            .map(|l| self.result(l))
            .collect::<Result<_>>()?;
        let results = (made.iter())
            .map(|t| t.as_ref().map(operator_tensor))
            .collect();
        let mut make = |at: usize, sizes: &[i64]| {
            let t = self.asked_for(&c.results[at], sizes)?;
            let given = operator_tensor(&t);
            made[at] = Some(t);
            Ok(given)
        };
        let mut call = OperatorCall::new(args, results, std::ptr::null_mut(), &mut make);
        invoke(function, &mut call, &c.origin)?;
        drop(call);
        let new = written.into_iter().flatten();
        for (slot, t) in c.outs.iter().zip(made.into_iter().flatten().chain(new)) {
            self.slots[*slot] = Some(Value::Tensor(t));
        }
        Ok(())
    }

    /// Returns a tensor with the contents of a slot that the function may write: a copy, unless nothing else has the memory. `last`: it is
    /// the slot's only use from here on.
    fn to_write(&self, slot: usize, last: bool) -> Result<Tensor> {
        let given = self.parts.inputs.contains(&slot)
            || self.parts.weights.iter().any(|(weight, _)| *weight == slot);
        let t = self.tensor(slot)?;
        if last && !given && Arc::strong_count(&t.storage) == 1 {
            return Ok(t.clone());
        }
        let copy = self.allocate(t.dtype, t.sizes.clone(), t.strides.clone())?;
        // SAFETY: fresh memory of the same dtype, sizes and strides.
        unsafe { t.copy_to(&copy) };
        Ok(copy)
    }

    /// Allocates a result; `None` if a size is not known before the call.
    fn result(&self, l: &Layout) -> Result<Option<Tensor>> {
        let layout = declared_result(l, &|id| self.known(id))?;
        layout
            .map(|(sizes, strides)| self.allocate(l.dtype.0, sizes, strides))
            .transpose()
    }

    /// Allocates a result of the sizes that a function asks for.
    fn asked_for(&self, l: &Layout, sizes: &[i64]) -> Result<Tensor> {
        check_asked_for(l, sizes, &|id| self.known(id))?;
        self.allocate(l.dtype.0, sizes.to_vec(), contiguous_strides(sizes))
    }
}

/// Returns a tensor as functions see it.
fn operator_tensor(t: &Tensor) -> OperatorTensor {
    OperatorTensor {
        dtype: t.dtype,
        sizes: t.sizes.clone(),
        strides: t.strides.clone(),
        data: t.data(),
        device: DLDevice {
            device_type: DLDeviceType::CPU,
            device_id: 0,
        },
        owner: t.storage.clone(),
    }
}
