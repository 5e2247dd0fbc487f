//! Calls into memory that the caller brings: a steady call allocates nothing.

use crate::bind;
use crate::exec::{Prepared, copy_inputs};
use crate::model::{Model, root};
use crate::poison;
use crate::tensor::{ALIGN, Tensor, Value};
use inrush_base::{Error, Result};
use inrush_program::{Output, Place, SymbolSource, evaluate_known};

impl Model {
    /// Runs the model and writes its outputs into `outputs`, by position. A position whose output is not a tensor takes any
    /// value and is left alone. Kernels write straight into a tensor that has the program's strides, starts at a multiple of
    /// 64 bytes and shares no memory with an input; others are copied to.
    ///
    /// # Errors
    /// Those of [`Model::run`]; an input error for an output that is missing or has another dtype or other sizes. Nothing was
    /// written then, unless the error comes from within the model.
    ///
    /// # Safety
    /// Elements of each output have memory of their own, and nothing else reads or writes it during the call.
    pub unsafe fn run_into(&self, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        self.bound.pool.check_fork()?;
        if self.parts.is_some() {
            // SAFETY: the caller's promise.
            return unsafe { self.run_parts_into(inputs, outputs) };
        }
        self.with_frame(|frame| {
            let p = self.bind(frame, inputs)?;
            self.check_outputs(&p, outputs)?;
            let direct = !poison::enabled() && self.is_direct(&p, inputs, outputs);
            let _guard = self.lock_state();
            if direct {
                frame.outputs.clear();
                frame.outputs.extend(outputs.iter().map(address));
                let copies = copy_inputs(self.program(), &p.sizes, inputs)?;
                return self.issue_on(&p, frame, inputs, &copies, &[]);
            }
            let results = self.call(&p, frame, inputs)?;
            for (result, to) in results.iter().zip(outputs) {
                if let (Value::Tensor(result), Value::Tensor(to)) = (result, to) {
                    // SAFETY: of the result's dtype and sizes (checked), and given to be written.
                    unsafe { result.copy_to(to) };
                }
            }
            Ok(())
        })
    }

    /// Runs a program in parts, and copies its outputs to where the caller wants them.
    ///
    /// # Safety
    /// As for [`Model::run_into`].
    unsafe fn run_parts_into(&self, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let program = self.program();
        if program.outputs.len() != outputs.len() {
            return Err(Error::input(format!(
                "the model gives {} outputs, memory is given for {}",
                program.outputs.len(),
                outputs.len()
            )));
        }
        let data = |k: &u32| program.symbols[*k as usize].source == SymbolSource::Data;
        let mut symbols: Vec<u32> = Vec::new();
        for (k, o) in program.outputs.iter().enumerate() {
            if let Output::Tensor { sizes, .. } = o {
                symbols.clear();
                program.symbols_of(sizes, &mut symbols);
                if let Some(s) = symbols.iter().find(|k| data(k)) {
                    return Err(Error::unsupported(format!(
                        "output {k} has a size that depends on data, `{}`: no memory can be given for it ahead of the call",
                        program.symbols[*s as usize].name
                    )));
                }
            }
        }
        let sizes = self.sizes_of_inputs(inputs)?;
        self.check_output_sizes(&sizes, outputs)?;
        let results = self.run(inputs)?;
        for (result, to) in results.iter().zip(outputs) {
            if let (Value::Tensor(result), Value::Tensor(to)) = (result, to) {
                if (result.dtype, &result.sizes) != (to.dtype, &to.sizes) {
                    return Err(Error::input(format!(
                        "the program is damaged: it gives sizes {:?}, and promises {:?}",
                        result.sizes, to.sizes
                    )));
                }
                // SAFETY: of the result's dtype and sizes (checked), and given to be written.
                unsafe { result.copy_to(to) };
            }
        }
        Ok(())
    }

    /// Evaluates the sizes that inputs decide; those that data decide are -1.
    fn sizes_of_inputs(&self, inputs: &[Value]) -> Result<Vec<i64>> {
        let program = self.program();
        bind::check_inputs(program, inputs)?;
        let symbols = (program.symbols.iter())
            .map(|s| match s.source {
                SymbolSource::Data => Ok(None),
                _ => bind::symbol_in_range(program, s, inputs).map(Some),
            })
            .collect::<Result<Vec<_>>>()?;
        let known = evaluate_known(&program.sizes, &symbols);
        Ok(known.into_iter().map(|v| v.unwrap_or(-1)).collect())
    }

    /// Checks that every output of the call has a tensor of its dtype and sizes.
    fn check_outputs(&self, p: &Prepared, outputs: &[Value]) -> Result<()> {
        self.check_output_sizes(&p.sizes, outputs)
    }

    fn check_output_sizes(&self, values: &[i64], outputs: &[Value]) -> Result<()> {
        let wanted = &self.program().outputs;
        if wanted.len() != outputs.len() {
            return Err(Error::input(format!(
                "the model gives {} outputs, memory is given for {}",
                wanted.len(),
                outputs.len()
            )));
        }
        for (k, (want, given)) in wanted.iter().zip(outputs).enumerate() {
            let Output::Tensor { dtype, sizes, .. } = want else {
                continue;
            };
            let want = || sizes.iter().map(|s| values[s.0 as usize]);
            let Value::Tensor(t) = given else {
                return Err(Error::input(format!(
                    "output {k} is a tensor, which must be given"
                )));
            };
            if t.dtype != dtype.0 || !want().eq(t.sizes.iter().copied()) {
                return Err(Error::input(format!(
                    "output {k} is {} of sizes {:?}, the memory given for it is {} of sizes {:?}",
                    dtype.0.torch_name(),
                    want().collect::<Vec<i64>>(),
                    t.dtype.torch_name(),
                    t.sizes
                )));
            }
            bind::check_writes(&format_args!("output {k}"), t)?;
        }
        Ok(())
    }

    /// Returns true if kernels can write all outputs where the caller wants them.
    fn is_direct(&self, p: &Prepared, inputs: &[Value], outputs: &[Value]) -> bool {
        let program = self.program();
        (program.outputs.iter().enumerate()).all(|(k, o)| {
            let (
                Output::Tensor {
                    buffer, strides, ..
                },
                Value::Tensor(t),
            ) = (o, &outputs[k])
            else {
                return true;
            };
            let own = matches!(
                program.buffers[*buffer as usize].place,
                Place::Output { output } if output as usize == k
            );
            let mut layout = t.sizes.iter().zip(t.strides.iter().zip(strides));
            own && matches!(root(program, *buffer).1, Place::Output { .. })
                && layout.all(|(n, (a, b))| *n <= 1 || *a == p.sizes[b.0 as usize])
                && (t.data() as usize).is_multiple_of(ALIGN)
                && t.offset * t.dtype.size() + p.output_bytes[k] <= t.storage.len()
                && inputs.iter().all(|i| !overlaps(t, i))
        })
    }
}

/// Returns the address of an output's first element; null where it is no tensor.
fn address(v: &Value) -> *mut u8 {
    match v {
        Value::Tensor(t) => t.data(),
        _ => std::ptr::null_mut(),
    }
}

/// Returns true if the storages of a tensor and an input share bytes.
fn overlaps(t: &Tensor, input: &Value) -> bool {
    let Value::Tensor(i) = input else {
        return false;
    };
    let (a, b) = (t.storage.as_ptr() as usize, i.storage.as_ptr() as usize);
    a < b + i.storage.len() && b < a + t.storage.len()
}
