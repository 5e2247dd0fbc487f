//! A compiled graph as it runs in a PyTorch process: segments, called operators and views over
//! Python tensors.
//!
//! Values live in slots. A segment takes the addresses of its input tensors, allocates its outputs
//! through PyTorch, and runs without the interpreter's lock. Nothing is looked up by name.
//!
//! ```text
//! bind symbols -> for each step: segment | call | view | library -> bind new symbols -> free slots
//! ```
//!
//! A segment trusts the metadata of the trace only for what the call confirms. Sizes, strides and
//! dtype of each input are compared with the plan; a called operator may return other strides than
//! its metadata says, and then a copy in the expected layout is passed. The copy of an input that
//! the segment writes is copied back.

use super::call::{self, Frame};
use super::shim::{Shims, shims};
use super::{Engine, Todo};
use crate::errors::raise;
use inrush_base::{Error, ErrorKind, Scalar, same_strides};
use inrush_host::dtype_code;
use inrush_host::program::{HostProgram, ObjectId, Out, Read, Segment, StepKind, View};
use inrush_program::{Reads, Size, SizeId, evaluate_known, solve};
use inrush_runtime::{CallPlan, Model, OutputPlace, PlannedOutput};
use pyo3::exceptions::{PyMemoryError, PyRuntimeError, PyTypeError, PyValueError};
use pyo3::prelude::*;
use smallvec::SmallVec;
use std::sync::{Arc, Mutex};

/// A program with its objects and machine code.
pub struct Runner {
    pub program: HostProgram,
    pub objects: Vec<Py<PyAny>>,
    pub code: MachineCode,
    /// Values of the sizes of a graph without symbols, evaluated once.
    fixed: Option<Vec<Option<i64>>>,
}

/// Machine code of a program's segments.
pub enum MachineCode {
    /// By step; `None` for steps that are no segments.
    Cpu(Vec<Option<Loaded>>),
    Gpu(Box<Engine>),
}

impl MachineCode {
    pub fn engine(&self) -> Option<&Engine> {
        match self {
            MachineCode::Cpu(_) => None,
            MachineCode::Gpu(engine) => Some(engine),
        }
    }
}

/// A segment's machine code.
pub struct Loaded {
    model: Model,
    /// Plans for sizes seen, in the order of their making; the oldest goes first.
    plans: Mutex<Vec<Planned>>,
    /// By input: true if calls write it.
    writes_input: Vec<bool>,
}

/// Values of a segment's symbols and the plan for them.
type Planned = (SmallVec<[i64; 4]>, Arc<CallPlan>);

impl Loaded {
    pub fn new(model: Model) -> Loaded {
        Loaded {
            writes_input: model.program().written_inputs(),
            model,
            plans: Mutex::default(),
        }
    }
}

/// Plans kept for a segment. Each holds sizes and offsets of all buffers.
const MAX_PLANS: usize = 64;

/// The state of one call.
pub struct Call<'a> {
    pub py: Python<'a>,
    pub runner: &'a Runner,
    /// Values by slot; `None` before the defining step and after the last reader.
    pub slots: SmallVec<[Option<Py<PyAny>>; 32]>,
    /// Values by symbol; `None` for one that depends on data which is not there yet.
    pub symbols: SmallVec<[Option<i64>; 8]>,
    /// Values by line of the size arithmetic; empty if the runner's are fixed.
    sizes: Vec<Option<i64>>,
    /// Arguments that a GPU's steps write and that had another layout, each with the copy that was written.
    pub copies: Vec<(Py<PyAny>, Py<PyAny>)>,
    /// Copies of the host's scalars that a GPU's steps read.
    pub lent: Vec<Py<PyAny>>,
}

impl Frame for Call<'_> {
    fn slot(&self, slot: usize) -> Option<&Py<PyAny>> {
        self.slots[slot].as_ref()
    }
    fn size(&self, id: SizeId) -> PyResult<i64> {
        self.sizes()[id.0 as usize].ok_or_else(|| {
            PyRuntimeError::new_err("a size that depends on data is not known yet, or overflows")
        })
    }
    fn object(&self, id: ObjectId) -> &Py<PyAny> {
        &self.runner.objects[id]
    }
    fn set(&mut self, slot: usize, value: Py<PyAny>) {
        self.slots[slot] = Some(value);
    }
}

impl Runner {
    /// Makes a runner of a program that was checked against the number of objects.
    pub fn new(program: HostProgram, objects: Vec<Py<PyAny>>, code: MachineCode) -> Runner {
        let symbolic = program.sizes.iter().any(|l| matches!(l, Size::Sym(_)));
        let fixed =
            (!symbolic && program.symbols.is_empty()).then(|| evaluate_known(&program.sizes, &[]));
        Runner {
            program,
            objects,
            code,
            fixed,
        }
    }

    /// Runs the graph on its flat arguments.
    pub fn run<'py>(
        &self,
        py: Python<'py>,
        args: impl ExactSizeIterator<Item = Bound<'py, PyAny>>,
    ) -> PyResult<SmallVec<[Py<PyAny>; 8]>> {
        let program = &self.program;
        if args.len() != program.inputs.len() {
            return Err(PyTypeError::new_err(format!(
                "a compiled graph takes {} arguments, got {}",
                program.inputs.len(),
                args.len()
            )));
        }
        let mut call = Call {
            py,
            runner: self,
            slots: SmallVec::new(),
            symbols: SmallVec::new(),
            sizes: Vec::new(),
            copies: Vec::new(),
            lent: Vec::new(),
        };
        call.slots.resize_with(program.slots, || None);
        for (a, slot) in args.zip(&program.inputs) {
            call.slots[*slot] = Some(a.unbind());
        }
        for (slot, object) in &program.constants {
            call.slots[*slot] = Some(self.objects[*object].clone_ref(py));
        }
        let shims = shims(py)?;
        if self.fixed.is_none() {
            call.symbols.resize(program.symbols.len(), None);
            call.bind_symbols(py, shims, None)?;
        }
        match &self.code {
            MachineCode::Cpu(segments) => call.steps(py, shims, segments)?,
            MachineCode::Gpu(engine) => match engine.replay(py, shims, &mut call)? {
                Todo::Done(outputs) => return Ok(outputs),
                Todo::Run => engine.run(py, shims, &mut call)?,
            },
        }
        program
            .outputs
            .iter()
            .map(|o| {
                Ok(match o {
                    Out::Slot(s) => match &call.slots[*s] {
                        Some(v) => v.clone_ref(py),
                        None => py.None(),
                    },
                    Out::Size(id) => call.size(*id)?.into_pyobject(py)?.into_any().unbind(),
                    Out::Constant(c) => self.objects[*c].clone_ref(py),
                    Out::Mutation { .. } => {
                        return Err(raise(inrush_base::Error::internal(
                            "new contents of an argument, which packages have",
                        )));
                    }
                })
            })
            .collect()
    }
}

impl Call<'_> {
    /// Runs all steps in order.
    fn steps(
        &mut self,
        py: Python<'_>,
        shims: &Shims,
        segments: &[Option<Loaded>],
    ) -> PyResult<()> {
        for (at, (step, loaded)) in self.runner.program.steps.iter().zip(segments).enumerate() {
            match (&step.kind, loaded) {
                (StepKind::Segment(s), Some(l)) => self.segment(py, shims, s, l)?,
                (StepKind::Segment(_), None) => {
                    return Err(PyRuntimeError::new_err("a segment was not loaded"));
                }
                (StepKind::Call(c), _) => call::run(c, py, self)?,
                (StepKind::View(v), _) => self.view(py, shims, v)?,
                (StepKind::Library(l), _) => match &l.call {
                    Some(c) => call::run(c, py, self)?,
                    None => {
                        return Err(PyRuntimeError::new_err(
                            "a library call without an operator",
                        ));
                    }
                },
                (StepKind::Work(_), _) => {
                    return Err(PyRuntimeError::new_err(
                        "work of packages in a graph of PyTorch",
                    ));
                }
                (StepKind::Kernel(_), _) => {
                    return Err(PyRuntimeError::new_err(
                        "a GPU's kernel in a graph of the CPU",
                    ));
                }
            }
            // Symbols first: they may be read from a value that nothing else reads.
            if step.binds_symbols {
                self.bind_symbols(py, shims, Some(at))?;
            }
            for slot in &step.frees {
                self.slots[*slot] = None;
            }
        }
        Ok(())
    }

    /// Returns the sizes as far as they are known.
    pub fn sizes(&self) -> &[Option<i64>] {
        self.runner.fixed.as_ref().unwrap_or(&self.sizes)
    }

    /// Returns the value of a slot.
    pub fn value(&self, slot: usize) -> PyResult<&Py<PyAny>> {
        self.slots[slot]
            .as_ref()
            .ok_or_else(|| PyRuntimeError::new_err("a value is read before it is there"))
    }

    /// Reads the symbols that become known now, and evaluates the sizes again.
    pub fn bind_symbols(
        &mut self,
        py: Python<'_>,
        shims: &Shims,
        after: Option<usize>,
    ) -> PyResult<()> {
        for (k, s) in self.runner.program.symbols.iter().enumerate() {
            if s.after != after {
                continue;
            }
            let object = self.value(s.slot)?.bind(py);
            let value = match s.read {
                Read::Int => object.extract::<i64>()?,
                Read::Dim {
                    dim,
                    factor,
                    offset,
                } => {
                    // SAFETY: the tensor is held by its slot.
                    let (sizes, _) = unsafe { shims.shape(shims.tensor(object)?)? };
                    let size = sizes.get(dim).copied().unwrap_or(0);
                    solve(size, factor, offset).ok_or_else(|| {
                        PyValueError::new_err(format!(
                            "size {size} is not what the graph was compiled for"
                        ))
                    })?
                }
            };
            self.symbols[k] = Some(value);
        }
        self.sizes = evaluate_known(&self.runner.program.sizes, &self.symbols);
        Ok(())
    }

    /// Makes a tensor over the storage of another.
    fn view(&mut self, py: Python<'_>, shims: &Shims, v: &View) -> PyResult<()> {
        let all = |ids: &[SizeId]| {
            ids.iter()
                .map(|i| self.size(*i))
                .collect::<PyResult<SmallVec<[i64; 8]>>>()
        };
        let (sizes, strides) = (all(&v.sizes)?, all(&v.strides)?);
        let object = self.value(v.base)?.bind(py);
        let held = match &v.base_layout {
            Some((from, by)) => laid_out(shims, object, &all(from)?, &all(by)?)?,
            None => None,
        };
        let base = shims.tensor(held.as_ref().unwrap_or(object))?;
        let dtype = v.dtype.map(|d| dtype_code(d.0));
        let view = shims.view(py, base, &sizes, &strides, self.size(v.offset)?, dtype)?;
        self.slots[v.value] = Some(view);
        Ok(())
    }

    /// Runs a segment: checks or copies inputs, allocates outputs, runs, writes back, stores the
    /// results.
    fn segment(&mut self, py: Python<'_>, shims: &Shims, s: &Segment, l: &Loaded) -> PyResult<()> {
        let plan = self.plan(s, l)?;
        let mut copies: SmallVec<[(usize, Py<PyAny>); 2]> = SmallVec::new();
        // Copies that no call writes.
        let mut lent: SmallVec<[Py<PyAny>; 2]> = SmallVec::new();
        let mut inputs: SmallVec<[*mut u8; 32]> = SmallVec::new();
        for (k, (slot, want)) in s.inputs.iter().zip(plan.inputs()).enumerate() {
            let Some(want) = want else {
                inputs.push(std::ptr::null_mut());
                continue;
            };
            let object = self.value(*slot)?.bind(py);
            let h = shims.tensor(object)?;
            let code = dtype_code(want.dtype);
            // SAFETY: the tensor is held by its slot.
            let ((address, dtype), (sizes, strides)) = unsafe { (shims.data(h)?, shims.shape(h)?) };
            if sizes != want.sizes {
                return Err(PyRuntimeError::new_err(format!(
                    "a tensor of sizes {sizes:?} where the graph was compiled for {:?}",
                    want.sizes
                )));
            }
            // A called operator may give other strides, and for some even another dtype, than its
            // metadata says. Strides of dimensions of one element address nothing, so they may
            // differ.
            let lies = same_strides(sizes, strides, &want.strides);
            if !lies && want.reads != Reads::Elements {
                let name = &s.program.inputs[k].name;
                return Err(raise(inrush_runtime::other_strides(
                    name,
                    &want.strides,
                    strides,
                )));
            }
            // SAFETY: as above.
            let plain =
                sizes.contains(&0) || (lies && unsafe { shims.is_materialized(h, address) });
            if dtype == code && plain {
                inputs.push(address);
                continue;
            }
            let whole = want.sizes.iter().zip(&want.strides);
            // An expanded tensor: elements of a dimension with stride zero share memory.
            let shared = lies && whole.clone().any(|(n, s)| *n > 1 && *s == 0);
            if !shared {
                let (copy, address) = shims.empty(py, &want.sizes, &want.strides, code)?;
                copy.bind(py).call_method1("copy_", (object,))?;
                if l.writes_input[k] {
                    copies.push((*slot, copy));
                } else {
                    lent.push(copy);
                }
                inputs.push(address);
                continue;
            }
            // Nothing can be written through a stride of zero: one element of each such dimension is copied, which stands for all.
            let one: SmallVec<[i64; 8]> =
                whole.map(|(n, s)| if *s == 0 { 1 } else { *n }).collect();
            let (copy, address) = shims.empty(py, &one, &want.strides, code)?;
            let mut seen = object.clone();
            for (d, n) in one.iter().enumerate() {
                if *n != want.sizes[d] {
                    seen = seen.call_method1("narrow", (d, 0, *n))?;
                }
            }
            copy.bind(py).call_method1("copy_", (seen,))?;
            lent.push(copy);
            inputs.push(address);
        }
        // Integers are symbols by now.
        inputs.resize(plan.inputs().len(), std::ptr::null_mut());
        let mut outputs: SmallVec<[*mut u8; 16]> = SmallVec::new();
        let mut made: SmallVec<[Option<Py<PyAny>>; 8]> = SmallVec::new();
        for o in plan.outputs() {
            match o {
                PlannedOutput::Tensor {
                    dtype,
                    sizes,
                    strides,
                    place: OutputPlace::Own,
                } => {
                    let (t, p) = shims.empty(py, sizes, strides, dtype_code(*dtype))?;
                    made.push(Some(t));
                    outputs.push(p);
                }
                _ => {
                    made.push(None);
                    outputs.push(std::ptr::null_mut());
                }
            }
        }
        let addresses = Addresses(inputs, outputs);
        py.detach(|| {
            let a = &addresses;
            // SAFETY: sizes, strides and dtypes of inputs were just compared, outputs just allocated; slots and `made` hold
            // the tensors until the call returns.
            unsafe { l.model.run_planned(&plan, &a.0, &a.1) }
        })
        .map_err(|e| run_error(&e))?;
        drop(lent);
        for (slot, copy) in &copies {
            let original = self.value(*slot)?.bind(py);
            original.call_method1("copy_", (copy,))?;
        }
        for (k, slot) in s.outputs.iter().enumerate() {
            let value = match &plan.outputs()[k] {
                PlannedOutput::Int(i) => i.into_pyobject(py)?.into_any().unbind(),
                PlannedOutput::Scalar(v) => scalar(py, *v)?,
                PlannedOutput::Mutation | PlannedOutput::None => py.None(),
                PlannedOutput::Tensor {
                    sizes,
                    strides,
                    place,
                    ..
                } => match *place {
                    OutputPlace::Own => made[k].take().unwrap_or_else(|| py.None()),
                    OutputPlace::Input { input, offset } => {
                        let base = self.value(s.inputs[input])?;
                        share(shims, base.bind(py), sizes, strides, offset)?
                    }
                    OutputPlace::Output { output, offset } => {
                        let base = match (&made[output], s.outputs.get(output)) {
                            (Some(t), _) => t,
                            (None, Some(slot)) => self.value(*slot)?,
                            _ => return Err(PyRuntimeError::new_err("an output is missing")),
                        };
                        share(shims, base.bind(py), sizes, strides, offset)?
                    }
                },
            };
            self.slots[*slot] = Some(value);
        }
        Ok(())
    }

    /// Returns the plan for the present values of a segment's symbols.
    fn plan(&self, s: &Segment, l: &Loaded) -> PyResult<Arc<CallPlan>> {
        let symbols = s
            .symbols
            .iter()
            .map(|k| {
                self.symbols[*k as usize]
                    .ok_or_else(|| PyRuntimeError::new_err("a size is not known yet"))
            })
            .collect::<PyResult<SmallVec<[i64; 4]>>>()?;
        let mut plans = l.plans.lock().unwrap_or_else(|e| e.into_inner());
        let threads = l.model.threads();
        if let Some(at) = plans.iter().rposition(|(v, _)| *v == symbols) {
            if plans[at].1.threads() == threads {
                return Ok(plans[at].1.clone());
            }
            // The user has changed the number of threads since.
            plans.remove(at);
        }
        let plan = Arc::new(
            l.model
                .plan(&symbols)
                .map_err(|e| PyRuntimeError::new_err(e.to_string()))?,
        );
        if plans.len() == MAX_PLANS {
            plans.remove(0);
        }
        plans.push((symbols, plan.clone()));
        Ok(plan)
    }
}

/// Copies a tensor whose strides are not those that a view of it was made from; `None` where they are. A called operator may
/// return other strides than its metadata says.
pub fn laid_out<'py>(
    shims: &Shims,
    tensor: &Bound<'py, PyAny>,
    sizes: &[i64],
    strides: &[i64],
) -> PyResult<Option<Bound<'py, PyAny>>> {
    // SAFETY: the caller holds the tensor.
    let (have, by) = unsafe { shims.shape(shims.tensor(tensor)?)? };
    if same_strides(have, by, strides) {
        return Ok(None);
    }
    let copy = tensor.call_method1("new_empty_strided", (sizes, strides))?;
    copy.call_method1("copy_", (tensor,))?;
    Ok(Some(copy))
}

/// Returns a view of a tensor, or the tensor itself if sizes and strides are the same.
pub fn share(
    shims: &Shims,
    base: &Bound<'_, PyAny>,
    sizes: &[i64],
    strides: &[i64],
    offset: i64,
) -> PyResult<Py<PyAny>> {
    let h = shims.tensor(base)?;
    // SAFETY: the caller holds the tensor.
    let (s, t) = unsafe { shims.shape(h)? };
    if offset == 0 && s == sizes && t == strides {
        return Ok(base.clone().unbind());
    }
    shims.view(base.py(), h, sizes, strides, offset, None)
}

/// Returns a number as a Python object.
pub fn scalar(py: Python<'_>, v: Scalar) -> PyResult<Py<PyAny>> {
    Ok(match v {
        Scalar::Bool(b) => b.into_pyobject(py)?.to_owned().into_any().unbind(),
        Scalar::Int(i) => i.into_pyobject(py)?.into_any().unbind(),
        Scalar::Float(f) => f.into_pyobject(py)?.into_any().unbind(),
    })
}

/// Addresses of a segment's tensors, which code without the interpreter's lock reads.
struct Addresses(SmallVec<[*mut u8; 32]>, SmallVec<[*mut u8; 16]>);
// SAFETY: what they point to is held by the call for as long as they are used.
unsafe impl Send for Addresses {}
unsafe impl Sync for Addresses {}

/// Returns the exception for an error inside a call: the class that eager would raise, for an index
/// out of range or an integer divided by zero.
pub fn run_error(e: &Error) -> PyErr {
    match e.kind() {
        // Sizes that a guard refuses are mostly those of an index.
        ErrorKind::OutOfRange | ErrorKind::Input => crate::errors::out_of_range(e.to_string()),
        ErrorKind::OutOfMemory => PyMemoryError::new_err(e.to_string()),
        _ => PyRuntimeError::new_err(e.to_string()),
    }
}
