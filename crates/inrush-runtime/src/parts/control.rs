//! Control flow over programs of the CPU; see [`flow`] for the walk.
//!
//! A turn writes what its body gives into the blocks of an earlier turn, which come back from the recycler of the body. It allocates
//! where a size that data decide is new, and short lists.

use super::call::Call;
use super::flow::{self, Flow};
use crate::model::Model;
use crate::tensor::{Tensor, Value, contiguous_strides, extent};
use inrush_base::{Error, Result};
use inrush_program::SizeId;
use inrush_program::host::Layout;
use inrush_program::parts::{Cond, Scan, While};
use std::sync::Arc;

/// A step of control flow in a call.
struct Control<'c, 'a> {
    call: &'c Call<'a>,
    models: &'c [Model],
}

impl Flow for Control<'_, '_> {
    type Value = Value;

    fn slot(&mut self, slot: usize) -> Result<Value> {
        self.call.value(slot).cloned()
    }

    fn size(&mut self, id: SizeId) -> Result<Value> {
        self.call.size(id).map(Value::Int)
    }

    fn run(&mut self, program: usize, inputs: Vec<Value>) -> Result<Vec<Value>> {
        let model = self.models.get(program);
        let model = model.ok_or_else(|| Error::internal("control flow has no bodies"))?;
        model.run(&inputs)
    }

    fn truth(&mut self, value: &Value) -> Result<bool> {
        flow::truth(value)
    }

    fn length(&mut self, value: &Value) -> Result<i64> {
        let n = match value {
            Value::Tensor(t) => t.sizes.first().copied(),
            _ => None,
        };
        n.ok_or_else(|| Error::input("a scan over a tensor without dimensions"))
    }

    fn slice(&mut self, value: &Value, at: i64) -> Result<Value> {
        match value {
            Value::Tensor(t) if !t.sizes.is_empty() => Ok(Value::Tensor(slice(t, at))),
            _ => Err(Error::internal("a slice of no tensor")),
        }
    }

    fn stacked(&mut self, l: &Layout, turns: i64) -> Result<Value> {
        let (sizes, strides) = (
            self.call.all_sizes(&l.sizes)?,
            self.call.all_sizes(&l.strides)?,
        );
        let negative = sizes.iter().chain(&strides).any(|n| *n < 0);
        if sizes.first() != Some(&turns) || negative {
            return Err(Error::input(format!(
                "a scan of {turns} turns stacks a tensor of sizes {sizes:?}"
            )));
        }
        let made = self.call.allocate(l.dtype.0, sizes, strides)?;
        Ok(Value::Tensor(made))
    }

    fn put(&mut self, from: &Value, to: &Value) -> Result<()> {
        match to {
            Value::Tensor(to) => put(from, to),
            _ => Err(Error::internal("a scan stacks what is no tensor")),
        }
    }
}

impl Call<'_> {
    /// Runs one of two programs.
    pub(super) fn cond(&mut self, c: &Cond, models: &[Model]) -> Result<()> {
        let results = flow::cond(&mut Control { call: self, models }, c)?;
        self.hand_over(&c.outs, results)
    }

    /// Runs a program as long as another one says so.
    pub(super) fn while_loop(&mut self, w: &While, models: &[Model]) -> Result<()> {
        let results = flow::while_loop(&mut Control { call: self, models }, w)?;
        self.hand_over(&w.outs, results)
    }

    /// Runs a program for each slice of tensors, and stacks the slices of its results.
    pub(super) fn scan(&mut self, s: &Scan, models: &[Model]) -> Result<()> {
        let results = flow::scan(&mut Control { call: self, models }, s)?;
        self.hand_over(&s.outs, results)
    }

    /// Puts results into slots. One that shares the memory of another value is copied: operators of control flow give new tensors.
    fn hand_over(&mut self, outs: &[usize], results: Vec<Value>) -> Result<()> {
        if outs.len() != results.len() {
            return Err(Error::internal("control flow gives other results"));
        }
        let mut made: Vec<Value> = Vec::with_capacity(results.len());
        for value in results {
            made.push(match value {
                Value::Tensor(t) if made.iter().chain(self.values()).any(|v| shares(v, &t)) => {
                    let strides = if dense(&t) {
                        t.strides.clone()
                    } else {
                        contiguous_strides(&t.sizes)
                    };
                    let copy = self.allocate(t.dtype, t.sizes.clone(), strides)?;
                    // SAFETY: of one dtype and sizes, and nothing else has the copy.
                    unsafe { t.copy_to(&copy) };
                    Value::Tensor(copy)
                }
                other => other,
            });
        }
        for (slot, value) in outs.iter().zip(made) {
            self.slots[*slot] = Some(value);
        }
        Ok(())
    }

    fn values(&self) -> impl Iterator<Item = &Value> {
        self.slots.iter().flatten()
    }
}

/// Returns a slice along dimension 0, which the tensor has.
fn slice(t: &Tensor, at: i64) -> Tensor {
    Tensor {
        dtype: t.dtype,
        sizes: t.sizes[1..].to_vec(),
        strides: t.strides[1..].to_vec(),
        offset: t.offset + (at * t.strides[0]) as usize,
        storage: t.storage.clone(),
    }
}

/// Copies a value to its place in a stacked tensor.
fn put(from: &Value, to: &Tensor) -> Result<()> {
    match from {
        Value::Tensor(t) if t.dtype == to.dtype && t.sizes == to.sizes => {
            // SAFETY: of one dtype and sizes; the target is a part of a tensor that this call allocated.
            unsafe { t.copy_to(to) };
            Ok(())
        }
        Value::Tensor(t) => Err(Error::input(format!(
            "a turn gives {} of sizes {:?}, the scan stacks {} of {:?}",
            t.dtype.torch_name(),
            t.sizes,
            to.dtype.torch_name(),
            to.sizes
        ))),
        _ => Err(Error::internal("a scan stacks what is no tensor")),
    }
}

/// Returns true if a tensor has a value's storage.
fn shares(v: &Value, t: &Tensor) -> bool {
    matches!(v, Value::Tensor(v) if Arc::ptr_eq(&v.storage, &t.storage))
}

/// Returns true if the elements of a tensor fill the memory that they span.
fn dense(t: &Tensor) -> bool {
    extent(&t.sizes, &t.strides) == Some(t.numel())
}
