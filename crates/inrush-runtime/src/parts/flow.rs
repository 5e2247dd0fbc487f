//! Walks control flow: choices, loops and scans over programs, for executors on any device.
//!
//! ```text
//! cond    run one of two programs
//! while   while condition(carried): carried = body(carried)
//! scan    for each slice: (carried, slice of the results) = body(carried, slice); the results are stacked as they come
//! ```

use crate::tensor::Value;
use inrush_base::{DType, Error, Result, Scalar};
use inrush_program::SizeId;
use inrush_program::host::Layout;
use inrush_program::parts::{Cond, Operand, Scan, While};

/// The executor of a step of control flow: what its values are, and how the step's programs run.
pub trait Flow {
    /// A value of a call: a tensor or a number.
    type Value: Clone;

    /// Returns the value in a slot.
    ///
    /// # Errors
    /// An internal error for a slot without one.
    fn slot(&mut self, slot: usize) -> Result<Self::Value>;

    /// Returns a size as an integer.
    ///
    /// # Errors
    /// An input error for a size that is not known or overflows.
    fn size(&mut self, id: SizeId) -> Result<Self::Value>;

    /// Runs the program at a position among the step's.
    ///
    /// # Errors
    /// Those of the call.
    fn run(&mut self, program: usize, inputs: Vec<Self::Value>) -> Result<Vec<Self::Value>>;

    /// Returns the truth of a bool of one element.
    ///
    /// # Errors
    /// An input error for other values, and those of reading it.
    fn truth(&mut self, value: &Self::Value) -> Result<bool>;

    /// Returns the extent of a tensor's dimension 0.
    ///
    /// # Errors
    /// An input error for a value without dimensions.
    fn length(&mut self, value: &Self::Value) -> Result<i64>;

    /// Returns a slice along dimension 0, in the tensor's memory. `at` is within the tensor.
    ///
    /// # Errors
    /// An internal error for a value without dimensions.
    fn slice(&mut self, value: &Self::Value, at: i64) -> Result<Self::Value>;

    /// Allocates a tensor whose dimension 0 has the extent `turns`.
    ///
    /// # Errors
    /// An input error for another extent; too little memory.
    fn stacked(&mut self, layout: &Layout, turns: i64) -> Result<Self::Value>;

    /// Copies a value to its place in a stacked tensor.
    ///
    /// # Errors
    /// An input error for another dtype or other sizes.
    fn put(&mut self, from: &Self::Value, to: &Self::Value) -> Result<()>;
}

/// Values that a loop hands to its body.
struct Turn<'a, V> {
    carried: &'a [V],
    slices: &'a [V],
}

/// Runs one of two programs. Returns its results.
///
/// # Errors
/// Those of the executor, with the operator.
pub fn cond<F: Flow, P>(f: &mut F, c: &Cond<P>) -> Result<Vec<F::Value>> {
    let none = Turn {
        carried: &[],
        slices: &[],
    };
    let mut run = || {
        let predicate = f.slot(c.predicate)?;
        if f.truth(&predicate)? {
            body(f, 0, &c.then.inputs, &none)
        } else {
            body(f, 1, &c.otherwise.inputs, &none)
        }
    };
    run().map_err(|e| e.context(&c.origin))
}

/// Runs a program as long as another one says so. Returns what the loop carries at last.
///
/// # Errors
/// Those of the executor, with the operator.
pub fn while_loop<F: Flow, P>(f: &mut F, w: &While<P>) -> Result<Vec<F::Value>> {
    let mut run = || {
        let mut carried = first(f, &w.carried)?;
        loop {
            let turn = Turn {
                carried: &carried,
                slices: &[],
            };
            match &body(f, 0, &w.condition.inputs, &turn)?[..] {
                [more] if f.truth(more)? => {}
                [_] => return Ok(carried),
                _ => return Err(Error::internal("a condition gives several values")),
            }
            carried = body(f, 1, &w.body.inputs, &turn)?;
        }
    };
    run().map_err(|e| e.context(&w.origin))
}

/// Runs a program for each slice of tensors, and stacks the slices of its results. Returns what the scan carries at last, then the
/// stacked results.
///
/// # Errors
/// Those of the executor, with the operator.
pub fn scan<F: Flow, P>(f: &mut F, s: &Scan<P>) -> Result<Vec<F::Value>> {
    let mut run = || {
        let sliced: Vec<F::Value> = (s.sliced.iter())
            .map(|slot| f.slot(*slot))
            .collect::<Result<_>>()?;
        let turns = turns(f, &sliced)?;
        let stacked: Vec<F::Value> = (s.stacked.iter())
            .map(|l| f.stacked(l, turns))
            .collect::<Result<_>>()?;
        let mut carried = first(f, &s.carried)?;
        for at in 0..turns {
            let slices: Vec<F::Value> = (sliced.iter())
                .map(|t| f.slice(t, at))
                .collect::<Result<_>>()?;
            let turn = Turn {
                carried: &carried,
                slices: &slices,
            };
            let mut results = body(f, 0, &s.body.inputs, &turn)?;
            if results.len() != s.carried.len() + stacked.len() {
                return Err(Error::internal("a turn gives other values"));
            }
            for (to, from) in stacked.iter().zip(results.drain(s.carried.len()..)) {
                let place = f.slice(to, at)?;
                f.put(&from, &place)?;
            }
            carried = results;
        }
        carried.extend(stacked);
        Ok(carried)
    };
    run().map_err(|e| e.context(&s.origin))
}

/// Runs a program on its operands.
fn body<F: Flow>(
    f: &mut F,
    program: usize,
    operands: &[Operand],
    turn: &Turn<'_, F::Value>,
) -> Result<Vec<F::Value>> {
    let missing = || Error::internal("a loop hands over too few values");
    let inputs = (operands.iter())
        .map(|o| match o {
            Operand::Slot(slot) => f.slot(*slot),
            Operand::Size(id) => f.size(*id),
            Operand::Carried(k) => turn.carried.get(*k).cloned().ok_or_else(missing),
            Operand::Slice(k) => turn.slices.get(*k).cloned().ok_or_else(missing),
        })
        .collect::<Result<_>>()?;
    f.run(program, inputs)
}

/// Returns what a loop carries at first.
fn first<F: Flow>(f: &mut F, operands: &[Operand]) -> Result<Vec<F::Value>> {
    (operands.iter())
        .map(|o| match o {
            Operand::Slot(slot) => f.slot(*slot),
            Operand::Size(id) => f.size(*id),
            Operand::Carried(_) | Operand::Slice(_) => {
                Err(Error::internal("a loop begins with a turn"))
            }
        })
        .collect()
}

/// Returns the number of slices of tensors, which all have as many.
fn turns<F: Flow>(f: &mut F, sliced: &[F::Value]) -> Result<i64> {
    let mut count = None;
    for t in sliced {
        let n = f.length(t)?;
        if *count.get_or_insert(n) != n {
            return Err(Error::input("a scan over tensors of different lengths"));
        }
    }
    count.ok_or_else(|| Error::internal("a scan over nothing"))
}

/// Returns the truth of a bool of one element, in memory of the host.
///
/// # Errors
/// An input error for other values.
pub fn truth(v: &Value) -> Result<bool> {
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
