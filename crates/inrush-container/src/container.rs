//! A loaded package, as PyTorch's loader sees it: calls on tensors of PyTorch, and constants in two sets.

use crate::device::{Made, OnDevice};
use crate::error::c_text;
use crate::payload;
use crate::torch::{Handle, Owned, Torch};
use inrush_base::{DType, Error, Result, Scalar};
use inrush_host::native::Stream;
use inrush_runtime::{
    HostedOutput, InputKind, Model, Names, NewWeight, OutputSpec, Package, Session, Set, Signature,
    TREES, Tensor, Value, View, WeightSource, WeightView,
};
use std::ffi::{CStr, CString};

/// Constants of a blob begin at multiples of this many bytes.
const BLOB_ALIGN: usize = 64;

/// A container of `AOTInductorModelContainerCreate`.
pub(crate) struct Container {
    torch: &'static Torch,
    loaded: Loaded,
    signature: Signature,
    /// Positions of the inputs that are passed: all but constants of the export and those that are `None`.
    passed: Vec<usize>,
    input_names: Vec<CString>,
    output_names: Vec<CString>,
    constants: Vec<Constant>,
    /// PyTorch's tree specifications of inputs and outputs.
    trees: Option<(CString, CString)>,
}

/// A model on its device.
// There is one for each container.
#[allow(clippy::large_enum_variant)]
enum Loaded {
    Cpu(Session),
    Gpu(OnDevice),
}

/// A weight or buffer.
pub(crate) struct Constant {
    /// Its fully qualified name, which is its name in updates too.
    pub name: CString,
    /// PyTorch's number of its dtype.
    pub dtype: i32,
    kind: DType,
    sizes: Vec<i64>,
    pub bytes: usize,
}

/// An update of constants.
#[derive(Copy, Clone)]
pub(crate) struct Update {
    pub set: Set,
    /// Every constant must be named.
    pub all: bool,
    /// The set reads the tensors' memory, which stays the caller's.
    pub managed: bool,
}

impl Container {
    /// Loads the package that belongs to this library, for a device. Up to `models` calls run at once.
    ///
    /// # Errors
    /// An input error for an unknown device and for a damaged package, a machine error for one that was compiled for other
    /// processors, an unsupported one for a GPU that the package has no target for.
    pub(crate) fn open(device: &str, models: usize) -> Result<Container> {
        let torch = Torch::of_process()?;
        let path = payload::path()?;
        let load = || {
            let package = Package::open(&path)?;
            let trees = package.entry(TREES)?.map(trees).transpose()?;
            if device.split(':').next() != Some("cpu") {
                let model = OnDevice::open(&package, torch, device, models)?;
                return Container::of(Loaded::Gpu(model), &package, trees, torch);
            }
            let model = Model::from_package(package, torch.pool()?)?;
            let source = model.weights().clone();
            // Loading has used its pool. The process may fork before the first use of this one.
            let session = Session::new(model.on_pool(torch.pool()?));
            Container::of(Loaded::Cpu(session), &*source, trees, torch)
        };
        load().map_err(|e| e.in_file(path.display().to_string()))
    }

    fn of(
        loaded: Loaded,
        source: &dyn WeightSource,
        trees: Option<(CString, CString)>,
        torch: &'static Torch,
    ) -> Result<Container> {
        let (signature, weights) = match &loaded {
            Loaded::Cpu(s) => (Signature::of(s.model().program()), s.weights()),
            Loaded::Gpu(d) => (d.model().signature().clone(), d.model().weights()),
        };
        let mut constants = Vec::new();
        for spec in weights {
            // A complex weight is pairs of numbers in the program.
            let view = source.weight(&spec.name);
            let view = view.ok_or_else(|| Error::internal("a weight is missing"))?;
            let elements: i64 = view.sizes.iter().product();
            constants.push(Constant {
                name: c_text(&spec.name),
                dtype: torch.number(view.dtype)?,
                kind: view.dtype,
                sizes: view.sizes.to_vec(),
                bytes: elements as usize * view.dtype.size(),
            });
        }
        let passed = |k: &usize| {
            matches!(
                signature.inputs[*k].kind,
                InputKind::Tensor { .. } | InputKind::Int
            )
        };
        let passed: Vec<usize> = (0..signature.inputs.len()).filter(passed).collect();
        let outputs = (signature.outputs.iter())
            .filter(|o| **o != OutputSpec::Mutation)
            .count();
        Ok(Container {
            torch,
            loaded,
            input_names: (passed.iter())
                .map(|k| c_text(&signature.inputs[*k].name))
                .collect(),
            output_names: (0..outputs)
                .map(|k| c_text(&format!("output{k}")))
                .collect(),
            passed,
            signature,
            constants,
            trees,
        })
    }

    pub(crate) fn input_names(&self) -> &[CString] {
        &self.input_names
    }

    pub(crate) fn output_names(&self) -> &[CString] {
        &self.output_names
    }

    pub(crate) fn constants(&self) -> &[Constant] {
        &self.constants
    }

    /// Returns the tree specifications of inputs and outputs.
    ///
    /// # Errors
    /// An input error where the package has none.
    pub(crate) fn trees(&self) -> Result<(&CStr, &CStr)> {
        let (inputs, outputs) = self.trees.as_ref().ok_or_else(|| {
            Error::input("the package does not say how its inputs and outputs are nested")
        })?;
        Ok((inputs, outputs))
    }

    /// Runs the model on tensors, and returns its outputs. On a GPU all work is issued on the stream.
    ///
    /// # Errors
    /// An input error that names the input, for other tensors than the model takes.
    ///
    /// # Safety
    /// Handles are null or live tensors of PyTorch, whose memory no other thread writes during the call. The stream is one of the
    /// model's device.
    pub(crate) unsafe fn run(&self, given: &[Owned], stream: Stream) -> Result<Vec<Owned>> {
        let names = || -> Vec<&str> {
            let name = |k: &usize| self.signature.inputs[*k].name.as_str();
            self.passed.iter().map(name).collect()
        };
        if given.len() != self.passed.len() {
            return Err(Error::input(format!(
                "the model takes {} tensors ({}), got {}",
                self.passed.len(),
                names().join(", "),
                given.len()
            )));
        }
        let device = match &self.loaded {
            // SAFETY: the caller's promise.
            Loaded::Cpu(session) => return unsafe { self.run_on_cpu(session, given) },
            Loaded::Gpu(device) => device,
        };
        // SAFETY: as above.
        let results = unsafe { device.run(&self.passed, given, stream) }?;
        (results.into_iter())
            .map(|r| match r {
                Made::Tensor(t) => Ok(t),
                Made::Value(Value::Int(v)) => self.number(DType::I64, &v.to_ne_bytes()),
                Made::Value(Value::Scalar(s)) => self.scalar(s),
                Made::Value(_) => Ok(Owned::new(std::ptr::null_mut())),
            })
            .collect()
    }

    /// Runs the model on tensors of the CPU, which are as many as it takes.
    ///
    /// # Safety
    /// As for [`Container::run`].
    unsafe fn run_on_cpu(&self, session: &Session, given: &[Owned]) -> Result<Vec<Owned>> {
        // By position of the program's inputs.
        let mut values: Vec<Value> = vec![Value::None; self.signature.inputs.len()];
        let mut handles: Vec<Handle> = vec![std::ptr::null_mut(); values.len()];
        for (tensor, at) in given.iter().zip(&self.passed) {
            let spec = &self.signature.inputs[*at];
            // SAFETY: the caller's promise; the list outlives the call.
            let value = unsafe { self.torch.tensor(tensor.handle(), Box::new(())) };
            let value = value.and_then(|t| match spec.kind {
                InputKind::Int => integer(&t).map(Value::Int),
                _ => Ok(Value::Tensor(t)),
            });
            values[*at] = value.map_err(|e| e.context(format!("input `{}`", spec.name)))?;
            handles[*at] = tensor.handle();
        }
        let mut made: Vec<Option<Owned>> = Vec::new();
        made.resize_with(self.signature.outputs.len(), || None);
        let mut memory = |k: usize, dtype: DType, sizes: &[i64], strides: &[i64]| {
            let (tensor, address) = self.torch.empty(dtype, sizes, strides)?;
            made[k] = Some(tensor);
            Ok(address)
        };
        // SAFETY: outputs are fresh tensors of the sizes and strides that are asked for.
        let placed = unsafe { session.run_hosted(&values, &mut memory) }?;
        // Views come first, while what they are views of is still in the list.
        let mut outputs: Vec<Option<Owned>> = Vec::with_capacity(placed.len());
        for o in &placed {
            outputs.push(match o {
                HostedOutput::Input { input, view } => {
                    // SAFETY: the tensor lives, and the model's output is inside its storage.
                    Some(unsafe { self.torch.view(handles[*input], view, 0) }?)
                }
                HostedOutput::Output { output, view } => {
                    // SAFETY: as above.
                    Some(unsafe { self.view_of_output(&made, *output, view) }?)
                }
                HostedOutput::Int(v) => Some(self.number(DType::I64, &v.to_ne_bytes())?),
                HostedOutput::Scalar(s) => Some(self.scalar(*s)?),
                HostedOutput::Own | HostedOutput::Mutation | HostedOutput::None => None,
            });
        }
        let mut result = Vec::with_capacity(self.output_names.len());
        for (k, (o, view)) in placed.iter().zip(outputs).enumerate() {
            match o {
                HostedOutput::Mutation => {}
                HostedOutput::None => result.push(Owned::new(std::ptr::null_mut())),
                _ => {
                    let tensor = view.or_else(|| made[k].take());
                    result.push(tensor.ok_or_else(|| Error::internal("an output is missing"))?);
                }
            }
        }
        Ok(result)
    }

    /// Returns a view of an output that was allocated.
    ///
    /// # Safety
    /// The view is inside that output's storage.
    unsafe fn view_of_output(
        &self,
        made: &[Option<Owned>],
        output: usize,
        view: &View,
    ) -> Result<Owned> {
        let base = made.get(output).and_then(Option::as_ref);
        let base = base.ok_or_else(|| Error::internal("an output is a view of no tensor"))?;
        // SAFETY: the caller's promise.
        unsafe {
            let from = self.torch.offset(base.handle())?;
            self.torch.view(base.handle(), view, from)
        }
    }

    /// Returns a number as a tensor without dimensions.
    fn scalar(&self, s: Scalar) -> Result<Owned> {
        match s {
            Scalar::Int(v) => self.number(DType::I64, &v.to_ne_bytes()),
            Scalar::Float(v) => self.number(DType::F64, &v.to_ne_bytes()),
            Scalar::Bool(v) => self.number(DType::Bool, &[u8::from(v)]),
        }
    }

    fn number(&self, dtype: DType, bytes: &[u8]) -> Result<Owned> {
        let (tensor, address) = self.torch.empty(dtype, &[], &[])?;
        // SAFETY: a fresh tensor of one element, which has these bytes.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), address, bytes.len()) };
        Ok(tensor)
    }

    /// Replaces constants of a set.
    ///
    /// # Errors
    /// An input error that names the constant, for another dtype or other sizes, for a name that the model does not have, and
    /// for a missing one if all must be named. Nothing has changed then.
    ///
    /// # Safety
    /// Handles are null or live tensors of PyTorch. Those of a managed update keep their values during calls.
    pub(crate) unsafe fn update(&self, new: &[(String, Handle)], update: Update) -> Result<()> {
        let session = match &self.loaded {
            Loaded::Cpu(session) => session,
            Loaded::Gpu(device) => {
                let how = (update.set, names(update.all), update.managed);
                // SAFETY: the caller's promise.
                return unsafe { device.update(new, how) };
            }
        };
        let mut tensors: Vec<(&str, Tensor)> = Vec::with_capacity(new.len());
        for (name, handle) in new {
            let read = || {
                if handle.is_null() {
                    return Err(Error::input("there is no tensor"));
                }
                // SAFETY: the caller's promise; the handle that is kept holds the memory.
                unsafe {
                    let kept = self.torch.keep(*handle)?;
                    self.torch.tensor(*handle, Box::new(kept))
                }
            };
            let tensor = read().map_err(|e| e.context(format!("constant `{name}`")))?;
            tensors.push((name, tensor));
        }
        let new: Vec<(&str, NewWeight)> = (tensors.iter())
            .map(|(name, t)| {
                let weight = if update.managed {
                    NewWeight::Shared(t.clone())
                } else {
                    NewWeight::Copied(t.view())
                };
                (*name, weight)
            })
            .collect();
        session.update(update.set, &new, names(update.all))
    }

    /// Replaces all constants of the active set by those of a blob.
    ///
    /// # Safety
    /// The blob has [`Container::blob_bytes`] bytes.
    pub(crate) unsafe fn update_from_blob(&self, blob: *const u8) -> Result<()> {
        if blob.is_null() {
            return Err(Error::input("the blob is NULL"));
        }
        let mut new: Vec<(&str, WeightView)> = Vec::with_capacity(self.constants.len());
        let strides: Vec<Vec<i64>> = (self.constants.iter())
            .map(|c| inrush_runtime::tensor::contiguous_strides(&c.sizes))
            .collect();
        for ((c, strides), at) in self.constants.iter().zip(&strides).zip(self.blob_offsets()) {
            let view = WeightView {
                dtype: c.kind,
                sizes: &c.sizes,
                strides,
                // SAFETY: the caller's promise.
                bytes: unsafe { std::slice::from_raw_parts(blob.add(at), c.bytes) },
            };
            let name = c.name.to_str();
            let name = name.map_err(|_| Error::internal("a name is not UTF-8"))?;
            new.push((name, view));
        }
        let session = match &self.loaded {
            Loaded::Cpu(session) => session,
            Loaded::Gpu(device) => return device.update_from_views(&new),
        };
        let new: Vec<(&str, NewWeight)> = (new.into_iter())
            .map(|(name, view)| (name, NewWeight::Copied(view)))
            .collect();
        session.update(Set::Active, &new, Names::All)
    }

    /// Returns the offset of each constant in a blob.
    fn blob_offsets(&self) -> Vec<usize> {
        let mut at = 0;
        let mut next = |c: &Constant| {
            let start = at;
            at += c.bytes.next_multiple_of(BLOB_ALIGN);
            start
        };
        self.constants.iter().map(&mut next).collect()
    }

    /// Returns the bytes of a blob with all constants: row-major, in order, each at a multiple of 64 bytes.
    pub(crate) fn blob_bytes(&self) -> usize {
        let padded = |c: &Constant| c.bytes.next_multiple_of(BLOB_ALIGN);
        self.constants.iter().map(padded).sum()
    }

    /// Computes what depends on constants only again.
    pub(crate) fn fold(&self, set: Set) -> Result<()> {
        match &self.loaded {
            Loaded::Cpu(session) => session.recompute(set),
            Loaded::Gpu(device) => device.model().recompute(set),
        }
    }

    /// Makes the inactive set the active one.
    pub(crate) fn swap(&self) -> Result<()> {
        match &self.loaded {
            Loaded::Cpu(session) => session.swap_weights(),
            Loaded::Gpu(device) => device.model().swap_weights(),
        }
    }

    /// Forgets the inactive set.
    pub(crate) fn free_inactive(&self) {
        match &self.loaded {
            Loaded::Cpu(session) => session.discard_update(),
            Loaded::Gpu(device) => device.model().discard_update(),
        }
    }
}

fn names(all: bool) -> Names {
    if all { Names::All } else { Names::Some }
}

/// Reads an integer from a tensor of one element.
pub(crate) fn integer(t: &Tensor) -> Result<i64> {
    let bytes = t.to_bytes();
    match (
        t.dtype,
        bytes.as_slice().try_into(),
        bytes.as_slice().try_into(),
    ) {
        (DType::I64, Ok(word), _) => Ok(i64::from_ne_bytes(word)),
        (DType::I32, _, Ok(word)) => Ok(i32::from_ne_bytes(word).into()),
        _ => Err(Error::input(
            "an integer is passed as a tensor of one int64 or int32",
        )),
    }
}

/// Reads how inputs and outputs are nested.
fn trees(json: &[u8]) -> Result<(CString, CString)> {
    let json: serde_json::Value = serde_json::from_slice(json)
        .map_err(|e| Error::input(format!("damaged `{TREES}`: {e}")))?;
    let text = |key: &str| {
        let text = json.get(key).and_then(serde_json::Value::as_str);
        text.map(c_text)
            .ok_or_else(|| Error::input(format!("damaged `{TREES}`: no `{key}`")))
    };
    Ok((text("inputs")?, text("outputs")?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tensor(dtype: DType, sizes: Vec<i64>, bytes: &[u8]) -> Tensor {
        Tensor::from_bytes(dtype, sizes, bytes).unwrap()
    }

    #[test]
    fn integers_are_tensors_of_one_element() {
        assert_eq!(
            integer(&tensor(DType::I64, vec![], &7i64.to_ne_bytes())).unwrap(),
            7
        );
        assert_eq!(
            integer(&tensor(DType::I32, vec![1], &(-7i32).to_ne_bytes())).unwrap(),
            -7
        );
        assert!(integer(&tensor(DType::F32, vec![], &1f32.to_ne_bytes())).is_err());
        assert!(integer(&tensor(DType::I32, vec![2], &[0; 8])).is_err());
    }

    #[test]
    fn damaged_nesting_is_an_error() {
        let good = trees(br#"{"inputs": "[1]", "outputs": "x"}"#).unwrap();
        assert_eq!((good.0.to_str(), good.1.to_str()), (Ok("[1]"), Ok("x")));
        for bad in [
            &b"{"[..],
            b"{}",
            br#"{"inputs": 1, "outputs": ""}"#,
            b"[]",
            b"\xff",
        ] {
            assert!(
                trees(bad)
                    .unwrap_err()
                    .to_string()
                    .contains("damaged `python.json`")
            );
        }
    }

    #[test]
    fn a_process_without_pytorch_loads_nothing() {
        for device in ["cpu", "cuda:0"] {
            let error = Container::open(device, 1).err().unwrap().to_string();
            assert!(error.contains("has not loaded PyTorch"), "{error}");
        }
    }
}
