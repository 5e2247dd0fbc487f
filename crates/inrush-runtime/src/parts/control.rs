//! Control flow: choices, loops and scans over programs.
//!
//! ```text
//! cond    run one of two programs
//! while   while condition(carried): carried = body(carried)
//! scan    for each slice: (carried, slice of the results) = body(carried, slice); the results are stacked as they come
//! ```
//!
//! A turn writes what its body gives into the blocks of an earlier turn, which come back from the recycler of the body. It allocates
//! where a size that data decide is new, and short lists.

use super::call::Call;
use crate::model::Model;
use crate::tensor::{Tensor, Value, contiguous_strides, extent};
use inrush_base::{DType, Error, Result, Scalar};
use inrush_program::parts::{Body, Cond, Operand, Scan, While};
use std::sync::Arc;

/// Values that a loop hands to its body.
#[derive(Default)]
struct Turn<'a> {
    carried: &'a [Value],
    slices: &'a [Tensor],
}

impl Call<'_> {
    /// Runs one of two programs.
    pub(super) fn cond(&mut self, c: &Cond, [then, otherwise]: [&Model; 2]) -> Result<()> {
        let predicate = self.value(c.predicate)?;
        let (body, model) = if truth(predicate)? {
            (&c.then, then)
        } else {
            (&c.otherwise, otherwise)
        };
        let results = self.body(body, model, &Turn::default());
        let results = results.map_err(|e| e.context(&c.origin))?;
        self.hand_over(&c.outs, results)
    }

    /// Runs a program as long as another one says so.
    pub(super) fn while_loop(&mut self, w: &While, [condition, body]: [&Model; 2]) -> Result<()> {
        let mut carried = self.carried(&w.carried)?;
        loop {
            let turn = Turn {
                carried: &carried,
                slices: &[],
            };
            let more = self.body(&w.condition, condition, &turn);
            let more = more.map_err(|e| e.context(&w.origin))?;
            match &more[..] {
                [v] if truth(v)? => {}
                [_] => break,
                _ => return Err(Error::internal("a condition gives several values")),
            }
            let next = self.body(&w.body, body, &turn);
            carried = next.map_err(|e| e.context(&w.origin))?;
        }
        self.hand_over(&w.outs, carried)
    }

    /// Runs a program for each slice of tensors, and stacks the slices of its results.
    pub(super) fn scan(&mut self, s: &Scan, model: &Model) -> Result<()> {
        let sliced: Vec<Tensor> = (s.sliced.iter())
            .map(|slot| self.tensor(*slot).cloned())
            .collect::<Result<_>>()?;
        let turns = turns(&sliced)?;
        let mut stacked = Vec::with_capacity(s.stacked.len());
        for l in &s.stacked {
            let (sizes, strides) = (self.all_sizes(&l.sizes)?, self.all_sizes(&l.strides)?);
            let negative = sizes.iter().chain(&strides).any(|n| *n < 0);
            if sizes.first() != Some(&turns) || negative {
                return Err(Error::input(format!(
                    "a scan of {turns} turns stacks a tensor of sizes {sizes:?}"
                )));
            }
            stacked.push(self.allocate(l.dtype.0, sizes, strides)?);
        }
        let mut carried = self.carried(&s.carried)?;
        for at in 0..turns {
            let slices: Vec<Tensor> = sliced.iter().map(|t| slice(t, at)).collect();
            let turn = Turn {
                carried: &carried,
                slices: &slices,
            };
            let results = self.body(&s.body, model, &turn);
            let mut results = results.map_err(|e| e.context(&s.origin))?;
            for (to, from) in stacked.iter().zip(results.drain(s.carried.len()..)) {
                put(&from, &slice(to, at)).map_err(|e| e.context(&s.origin))?;
            }
            carried = results;
        }
        carried.extend(stacked.into_iter().map(Value::Tensor));
        self.hand_over(&s.outs, carried)
    }

    /// Runs a body.
    fn body(&self, body: &Body, model: &Model, turn: &Turn<'_>) -> Result<Vec<Value>> {
        let argument = |o: &Operand| {
            let missing = || Error::internal("a loop hands over too few values");
            Ok(match o {
                Operand::Slot(slot) => self.value(*slot)?.clone(),
                Operand::Size(id) => Value::Int(self.size(*id)?),
                Operand::Carried(k) => turn.carried.get(*k).ok_or_else(missing)?.clone(),
                Operand::Slice(k) => {
                    Value::Tensor(turn.slices.get(*k).ok_or_else(missing)?.clone())
                }
            })
        };
        let inputs = body
            .inputs
            .iter()
            .map(argument)
            .collect::<Result<Vec<_>>>()?;
        model.run(&inputs)
    }

    /// Returns what a loop carries at first.
    fn carried(&self, operands: &[Operand]) -> Result<Vec<Value>> {
        (operands.iter())
            .map(|o| match o {
                Operand::Slot(slot) => self.value(*slot).cloned(),
                Operand::Size(id) => self.size(*id).map(Value::Int),
                Operand::Carried(_) | Operand::Slice(_) => {
                    Err(Error::internal("a loop begins with a turn"))
                }
            })
            .collect()
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

/// Returns the truth of a bool of one element.
fn truth(v: &Value) -> Result<bool> {
    match v {
        Value::Scalar(Scalar::Bool(b)) => Ok(*b),
        Value::Int(v) | Value::Scalar(Scalar::Int(v)) => Ok(*v != 0),
        Value::Tensor(t) if t.dtype == DType::Bool && t.numel() == 1 => {
            let byte = t.storage.bytes().get(t.offset);
            byte.map(|b| *b != 0)
                .ok_or_else(|| Error::internal("a condition has no element"))
        }
        Value::Tensor(t) => Err(Error::input(format!(
            "a condition is {} of sizes {:?}, not a bool of one element",
            t.dtype.torch_name(),
            t.sizes
        ))),
        Value::Scalar(Scalar::Float(_)) | Value::None => {
            Err(Error::input("a condition is no bool"))
        }
    }
}

/// Returns the number of slices of tensors, which all have as many.
fn turns(sliced: &[Tensor]) -> Result<i64> {
    let mut count = None;
    for t in sliced {
        let n = t.sizes.first().copied();
        let n = n.ok_or_else(|| Error::input("a scan over a tensor without dimensions"))?;
        if *count.get_or_insert(n) != n {
            return Err(Error::input("a scan over tensors of different lengths"));
        }
    }
    count.ok_or_else(|| Error::internal("a scan over nothing"))
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
