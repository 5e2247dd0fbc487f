//! One call of a program in parts.

use super::{LoadedParts, Ready, dynamic, segment_integers};
use crate::bind;
use crate::exec::copy_inputs;
use crate::model::{Model, State};
use crate::poison;
use crate::tensor::{Storage, Tensor, Value, extent};
use inrush_base::{DType, Error, Result, Scalar};
use inrush_library::DynamicFunction;
use inrush_program::host::{Read, Segment, View};
use inrush_program::parts::{Dynamic, Out, Sequence, StepKind};
use inrush_program::{Output, Place, Program, SizeId, SymbolSource, evaluate_known, solve};
use std::sync::Arc;

/// The state of a call.
pub(super) struct Call<'a> {
    model: &'a Model,
    program: &'a Program,
    pub(super) parts: &'a Sequence,
    /// Values by slot; `None` before the step that makes one and after the last that reads it.
    pub(super) slots: Vec<Option<Value>>,
    /// By symbol; `None` for one that depends on data which is not there yet.
    symbols: Vec<Option<i64>>,
    /// Lines of the size arithmetic of the steps, and of the program that callers see.
    sizes: Vec<Option<i64>>,
    outer: Vec<Option<i64>>,
    /// Guards that were checked.
    checked: Vec<bool>,
}

impl Model {
    /// Runs a program in parts: see [`Model::run`].
    pub(crate) fn run_parts(&self, loaded: &LoadedParts, inputs: &[Value]) -> Result<Vec<Value>> {
        let program = self.program();
        let parts = (program.parts.as_deref())
            .ok_or_else(|| Error::internal("a program in parts has none"))?;
        let mut call = Call {
            model: self,
            program,
            parts,
            slots: vec![None; parts.slots],
            symbols: vec![None; parts.symbols.len()],
            sizes: Vec::new(),
            outer: Vec::new(),
            checked: vec![false; program.guards.len()],
        };
        let copies = call.enter(inputs)?;
        let _guard = self.lock_state();
        call.weights()?;
        for (at, (step, ready)) in parts.steps.iter().zip(&loaded.steps).enumerate() {
            match (&step.kind, ready) {
                (StepKind::Segment(s), Ready::Segment(model)) => call.segment(s, model)?,
                (StepKind::Dynamic(d), Ready::Dynamic(f)) => call.dynamic(d, f)?,
                (StepKind::Custom(c), Ready::Custom(f)) => call.custom(c, f, &step.frees)?,
                (StepKind::View(v), _) => call.view(v)?,
                (StepKind::Cond(c), Ready::Bodies(b)) => call.cond(c, b)?,
                (StepKind::While(w), Ready::Bodies(b)) => call.while_loop(w, b)?,
                (StepKind::Scan(s), Ready::Bodies(b)) => call.scan(s, b)?,
                (StepKind::Write(all), _) => call.write(all)?,
                _ => return Err(Error::internal("a step is not ready")),
            }
            call.learn(Some(at))?;
            for slot in &step.frees {
                call.slots[*slot] = None;
            }
        }
        let outputs = call.outputs()?;
        for (at, (copy, value)) in copies.iter().zip(inputs).enumerate() {
            if let (Some(copy), Value::Tensor(t), true) = (copy, value, self.bound.writes_input[at])
            {
                // SAFETY: both tensors hold every coordinate; the program writes this input, and the caller handed it over for that.
                unsafe { copy.copy_to(t) };
            }
        }
        Ok(outputs)
    }
}

impl Call<'_> {
    /// Checks the inputs and puts them, or copies with the strides that the program expects, into their slots. Returns the copies.
    fn enter(&mut self, inputs: &[Value]) -> Result<Vec<Option<Tensor>>> {
        let program = self.program;
        bind::check_inputs(program, inputs)?;
        for (k, s) in program.symbols.iter().enumerate() {
            if s.source != SymbolSource::Data {
                self.symbols[k] = Some(bind::symbol_in_range(program, s, inputs)?);
            }
        }
        self.evaluate()?;
        // All sizes of inputs are known: their symbols are the inputs'.
        let known: Vec<i64> = self.outer.iter().map(|v| v.unwrap_or(-1)).collect();
        let symbols: Vec<i64> = self.symbols.iter().map(|v| v.unwrap_or(-1)).collect();
        bind::check_tensors(program, &known, &symbols, inputs)?;
        for (at, value) in inputs.iter().enumerate() {
            if let (Value::Tensor(t), true) = (value, self.model.bound.writes_input[at]) {
                bind::check_writes(&program.inputs[at].name, t)?;
            }
        }
        let copies = copy_inputs(program, &known, inputs)?;
        for (at, (slot, value)) in self.parts.inputs.iter().zip(inputs).enumerate() {
            let copy = copies.get(at).cloned().flatten();
            self.slots[*slot] = Some(copy.map_or_else(|| value.clone(), Value::Tensor));
        }
        Ok(copies)
    }

    /// Puts the weights that steps read or write into their slots.
    fn weights(&mut self) -> Result<()> {
        for (slot, name) in &self.parts.weights {
            let found = self.program.buffers.iter().enumerate().find_map(|(id, b)| {
                let Place::Weight(w) = &b.place else {
                    return None;
                };
                (w.name == *name).then_some((id, b, w))
            });
            let (id, b, w) = found.ok_or_else(|| Error::internal("a weight is not bound"))?;
            let bytes = extent(&w.sizes, &w.strides).map_or(0, |n| n * b.dtype.0.size());
            let state: Arc<State> = self.model.bound.state.clone();
            let address = state.base[id];
            // SAFETY: the weight has this extent (checked when it was bound) and lives as long as the state; calls that write it
            // exclude each other.
            let storage = unsafe { Storage::foreign(address, bytes, Box::new(state)) };
            self.slots[*slot] = Some(Value::Tensor(Tensor {
                dtype: b.dtype.0,
                sizes: w.sizes.clone(),
                strides: w.strides.clone(),
                offset: 0,
                storage: Arc::new(storage),
            }));
        }
        Ok(())
    }

    /// Reads the symbols that a step made known, evaluates sizes, and checks guards whose sides are known now.
    fn learn(&mut self, step: Option<usize>) -> Result<()> {
        let mut new = false;
        for (k, s) in self.parts.symbols.iter().enumerate() {
            if s.after != step {
                continue;
            }
            let spec = &self.program.symbols[k];
            let value = match (&s.read, &self.slots[s.slot]) {
                (Read::Int, Some(Value::Int(v))) => *v,
                (Read::Int, Some(Value::Scalar(Scalar::Int(v)))) => *v,
                (
                    Read::Dim {
                        dim,
                        factor,
                        offset,
                    },
                    Some(Value::Tensor(t)),
                ) => {
                    let size = t.sizes.get(*dim).copied();
                    let solved = size.and_then(|n| solve(n, *factor, *offset));
                    solved.ok_or_else(|| {
                        Error::input(format!(
                            "`{}` has no value: size {size:?} is not {factor}*{} + {offset}",
                            spec.name, spec.name
                        ))
                    })?
                }
                _ => return Err(Error::internal("a symbol is read from nothing")),
            };
            if value < spec.lower || value > spec.upper {
                return Err(bind::out_of_range(self.program, spec, value));
            }
            self.symbols[k] = Some(value);
            new = true;
        }
        if new { self.evaluate() } else { Ok(()) }
    }

    fn evaluate(&mut self) -> Result<()> {
        self.sizes = evaluate_known(&self.parts.sizes, &self.symbols);
        self.outer = evaluate_known(&self.program.sizes, &self.symbols);
        for (g, checked) in self.program.guards.iter().zip(&mut self.checked) {
            let sides = (
                self.outer[g.left.0 as usize],
                self.outer[g.right.0 as usize],
            );
            if let ((Some(l), Some(r)), false) = (sides, *checked) {
                bind::check_guard(g, l, r)?;
                *checked = true;
            }
        }
        Ok(())
    }

    /// Returns a size that is known by now.
    pub(super) fn known(&self, id: SizeId) -> Option<i64> {
        self.sizes[id.0 as usize]
    }

    pub(super) fn size(&self, id: SizeId) -> Result<i64> {
        self.known(id).ok_or_else(|| {
            Error::input("a size that depends on data is not known, overflows or divides by zero")
        })
    }

    pub(super) fn all_sizes(&self, ids: &[SizeId]) -> Result<Vec<i64>> {
        ids.iter().map(|id| self.size(*id)).collect()
    }

    pub(super) fn tensor(&self, slot: usize) -> Result<&Tensor> {
        match &self.slots[slot] {
            Some(Value::Tensor(t)) => Ok(t),
            _ => Err(Error::internal("a step reads what is no tensor")),
        }
    }

    pub(super) fn value(&self, slot: usize) -> Result<&Value> {
        (self.slots[slot].as_ref()).ok_or_else(|| Error::internal("a step reads what is not there"))
    }

    /// Allocates a tensor with unspecified contents; its sizes and strides are not negative.
    pub(super) fn allocate(
        &self,
        dtype: DType,
        sizes: Vec<i64>,
        strides: Vec<i64>,
    ) -> Result<Tensor> {
        let bytes = extent(&sizes, &strides)
            .and_then(|n| n.checked_mul(dtype.size()))
            .ok_or_else(|| Error::input(format!("a tensor of sizes {sizes:?} is too large")))?;
        let storage = self.model.recycler.take(bytes)?;
        if poison::enabled() {
            // SAFETY: storage of this size, which nothing else has.
            unsafe { poison::fill(storage.as_ptr(), bytes) };
        }
        Ok(Tensor {
            dtype,
            sizes,
            strides,
            offset: 0,
            storage: Arc::new(storage),
        })
    }

    /// Runs a compiled program.
    fn segment(&mut self, s: &Segment, model: &Model) -> Result<()> {
        let program = model.program();
        let mut inputs = Vec::with_capacity(program.inputs.len());
        for slot in &s.inputs {
            inputs.push(Value::Tensor(self.tensor(*slot)?.clone()));
        }
        inputs.extend(segment_integers(s, &self.symbols)?);
        let outputs = model.run(&inputs)?;
        for (slot, value) in s.outputs.iter().zip(outputs) {
            self.slots[*slot] = Some(value);
        }
        Ok(())
    }

    /// Makes a tensor over another's storage.
    fn view(&mut self, v: &View) -> Result<()> {
        let mut base = self.tensor(v.base)?.clone();
        if let Some((sizes, strides)) = &v.base_layout {
            let (sizes, strides) = (self.all_sizes(sizes)?, self.all_sizes(strides)?);
            if base.sizes != sizes {
                return Err(Error::input(format!(
                    "a tensor that depends on data has sizes {:?}, the program expects {sizes:?}",
                    base.sizes
                )));
            }
            if !base.lies_as(&strides) {
                base = base.with_strides(&strides)?;
            }
        }
        let dtype = v.dtype.map_or(base.dtype, |d| d.0);
        let (sizes, strides) = (self.all_sizes(&v.sizes)?, self.all_sizes(&v.strides)?);
        let offset =
            (usize::try_from(self.size(v.offset)?).ok()).and_then(|o| o.checked_add(base.offset));
        let fits =
            dtype.size() == base.dtype.size() && sizes.iter().chain(&strides).all(|n| *n >= 0);
        let end = (extent(&sizes, &strides).filter(|_| fits))
            .and_then(|n| n.checked_add(if n > 0 { offset? } else { 0 }))
            .and_then(|n| n.checked_mul(dtype.size()));
        let (Some(offset), true) = (offset, end.is_some_and(|n| n <= base.storage.len())) else {
            return Err(Error::input(format!(
                "a view of sizes {sizes:?} and strides {strides:?} leaves its tensor of sizes {:?}",
                base.sizes
            )));
        };
        let offset = if sizes.contains(&0) { 0 } else { offset };
        self.slots[v.value] = Some(Value::Tensor(Tensor {
            dtype,
            sizes,
            strides,
            offset,
            storage: base.storage,
        }));
        Ok(())
    }

    /// Calls a function of the library that allocates its results.
    fn dynamic(&mut self, d: &Dynamic, function: &DynamicFunction) -> Result<()> {
        let tensors = (d.inputs.iter())
            .map(|slot| slot.map(|s| self.tensor(s).cloned()).transpose())
            .collect::<Result<_>>()?;
        let on = (&*self.model.bound.pool, &self.model.recycler);
        let values = dynamic::call(d, function, tensors, &|id| self.size(id), on)?;
        for (slot, value) in d.outs.iter().zip(values) {
            self.slots[*slot] = Some(value);
        }
        Ok(())
    }

    /// Hands the outputs over.
    fn outputs(&self) -> Result<Vec<Value>> {
        let mut outputs = Vec::with_capacity(self.parts.outputs.len());
        for (o, outer) in self.parts.outputs.iter().zip(&self.program.outputs) {
            outputs.push(match o {
                Out::Slot(s) => self.as_promised(self.value(*s)?, outer)?,
                Out::Size(id) => Value::Int(self.size(*id)?),
                Out::Scalar(v) => Value::Scalar((*v).into()),
                Out::None => Value::None,
            });
        }
        Ok(outputs)
    }
}

impl Call<'_> {
    /// Returns an output with the strides that the program promises: branches of a choice may give others.
    fn as_promised(&self, value: &Value, outer: &Output) -> Result<Value> {
        let (Value::Tensor(t), Output::Tensor { dtype, strides, .. }) = (value, outer) else {
            return Ok(value.clone());
        };
        let known = |id: &SizeId| self.outer[id.0 as usize];
        let strides: Option<Vec<i64>> = strides.iter().map(known).collect();
        match strides {
            _ if t.dtype != dtype.0 => Err(Error::input(format!(
                "an output is {}, the program promises {}",
                t.dtype.torch_name(),
                dtype.0.torch_name()
            ))),
            Some(s) if s.len() == t.sizes.len() && !t.lies_as(&s) && s.iter().all(|s| *s >= 0) => {
                t.with_strides(&s).map(Value::Tensor)
            }
            _ => Ok(value.clone()),
        }
    }
}
