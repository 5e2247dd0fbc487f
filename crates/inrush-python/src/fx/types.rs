//! Metadata of values (fake tensors, symbolic numbers) as types.
//!
//! A tensor is the graph's if it is strided, real, of a known dtype, and on the graph's device.
//! Every other one is [`Type::Opaque`] with a description for messages: calls pass it on, kernels
//! never see it.

use super::{Importer, key, what};
use inrush_base::{DType, DTypeClass};
use inrush_expr::Expr;
use inrush_graph::{MemoryFormat, TensorType, Type};
use inrush_host::devices::by_torch_number;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyInt, PyString, PyTuple};
use rustc_hash::FxHashMap;

/// PyTorch's classes and singletons, looked up once. The maps are by identity ([`key`]): dtypes and
/// memory formats are singletons, which is faster than a comparison by name.
pub struct Names {
    /// `torch.fx.Node`.
    pub node: Py<PyAny>,
    pub tensor: Py<PyAny>,
    /// `FakeTensor`, the metadata of nearly all values. Tested by exact class first.
    pub fake: Py<PyAny>,
    pub sym_int: Py<PyAny>,
    pub sym_float: Py<PyAny>,
    pub sym_bool: Py<PyAny>,
    pub overload: Py<PyAny>,
    pub higher_order: Py<PyAny>,
    /// The layout `torch.strided`; sparse tensors have others.
    strided: Py<PyAny>,
    pub device: Py<PyAny>,
    pub layout: Py<PyAny>,
    pub dtypes: FxHashMap<usize, DType>,
    pub formats: FxHashMap<usize, MemoryFormat>,
}

impl Names {
    pub fn get(py: Python<'_>) -> PyResult<&'static Names> {
        static NAMES: PyOnceLock<Names> = PyOnceLock::new();
        NAMES.get_or_try_init(py, || Names::load(py))
    }

    fn load(py: Python<'_>) -> PyResult<Names> {
        let torch = py.import("torch")?;
        let from = |module: &str, name: &str| -> PyResult<Py<PyAny>> {
            Ok(py.import(module)?.getattr(name)?.unbind())
        };
        let mut dtypes = FxHashMap::default();
        for d in DType::all() {
            // Releases differ in which of the narrow floats they have.
            if let Some(object) = torch.getattr_opt(d.torch_name())? {
                dtypes.insert(key(&object), d);
            }
        }
        let mut formats = FxHashMap::default();
        for (name, f) in [
            ("contiguous_format", MemoryFormat::Contiguous),
            ("channels_last", MemoryFormat::ChannelsLast),
            ("channels_last_3d", MemoryFormat::ChannelsLast3d),
            ("preserve_format", MemoryFormat::Preserve),
        ] {
            formats.insert(key(&torch.getattr(name)?), f);
        }
        Ok(Names {
            node: from("torch.fx", "Node")?,
            tensor: from("torch", "Tensor")?,
            fake: from("torch._subclasses.fake_tensor", "FakeTensor")?,
            sym_int: from("torch", "SymInt")?,
            sym_float: from("torch", "SymFloat")?,
            sym_bool: from("torch", "SymBool")?,
            overload: from("torch._ops", "OpOverload")?,
            higher_order: from("torch._ops", "HigherOrderOperator")?,
            strided: from("torch", "strided")?,
            device: from("torch", "device")?,
            layout: from("torch", "layout")?,
            dtypes,
            formats,
        })
    }

    pub fn is_node(&self, object: &Bound<'_, PyAny>) -> bool {
        object.get_type_ptr() as usize == self.node.as_ptr() as usize
    }

    /// Returns the device of a tensor, as PyTorch has it.
    pub fn device<'py>(&self, tensor: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyAny>> {
        let py = tensor.py();
        // C++ would ask Python for the device of a fake tensor; the attribute is the answer.
        match is_exactly(tensor, &self.fake) {
            true => tensor.getattr(intern!(py, "fake_device")),
            false => tensor.getattr(intern!(py, "device")),
        }
    }

    /// Returns true for tensors, fake, real or of a subclass.
    pub fn is_tensor(&self, object: &Bound<'_, PyAny>) -> PyResult<bool> {
        Ok(is_exactly(object, &self.fake) || object.is_instance(self.tensor.bind(object.py()))?)
    }
}

/// Returns true for a tensor without dimensions.
pub fn is_scalar(tensor: &Bound<'_, PyAny>) -> PyResult<bool> {
    Ok(tensor.getattr(intern!(tensor.py(), "shape"))?.len()? == 0)
}

/// Returns true if `object` is an instance of `class` itself, not of a subclass.
pub fn is_exactly(object: &Bound<'_, PyAny>, class: &Py<PyAny>) -> bool {
    object.get_type_ptr() as usize == class.as_ptr() as usize
}

impl<'py> Importer<'py> {
    /// The type of a tensor, fake or real.
    pub(super) fn tensor(&mut self, val: &Bound<'py, PyAny>) -> PyResult<Type> {
        let py = val.py();
        let torch_dtype = val.getattr(intern!(py, "dtype"))?;
        let dtype = self.names.dtypes.get(&key(&torch_dtype)).copied();
        let device = self.names.device(val)?;
        let kind = device.getattr(intern!(py, "type"))?;
        let kind = kind.cast::<PyString>()?;
        let here = match self.device {
            None => kind.to_str()? == "cpu",
            Some(on) => {
                by_torch_number(on.kind).is_some_and(|k| k.device.torch_name == kind) && {
                    let of: Option<i32> = device.getattr(intern!(py, "index"))?.extract()?;
                    of.is_none_or(|i| i == on.index)
                }
            }
        };
        let here = here
            || self.device.is_some() && self.joins && kind.to_str()? == "cpu" && is_scalar(val)?;
        let layout = val.getattr(intern!(py, "layout"))?;
        let strided = layout.is(&self.names.strided);
        match dtype {
            Some(dtype) if here && strided && dtype.class() != DTypeClass::Complex => {
                let shape = val.getattr(intern!(py, "shape"))?;
                let strides = val.call_method0(intern!(py, "stride"))?;
                let (Some(sizes), Some(strides)) = (self.extents(&shape)?, self.extents(&strides)?)
                else {
                    return Ok(Type::Opaque("a nested tensor".into()));
                };
                Ok(Type::Tensor(TensorType {
                    dtype,
                    sizes,
                    strides,
                }))
            }
            _ => {
                let mut text = torch_dtype.str()?.to_str()?.replace("torch.", "");
                if !strided {
                    text = format!("{} {text}", layout.str()?.to_str()?.replace("torch.", ""));
                }
                if !here {
                    text = format!("{text} on {}", device.str()?);
                }
                Ok(Type::Opaque(text))
            }
        }
    }

    /// Sizes or strides; `None` when one of them is no integer (nested tensors).
    fn extents(&mut self, tuple: &Bound<'py, PyAny>) -> PyResult<Option<Vec<Expr>>> {
        let tuple = tuple.cast::<PyTuple>()?;
        let mut out = Vec::with_capacity(tuple.len());
        for e in tuple.iter_borrowed() {
            if e.is_exact_instance_of::<PyInt>() {
                out.push(self.out.graph.exprs.int(e.extract()?));
                continue;
            }
            match self.symbols.int(&self.out.graph.exprs, &e)? {
                Some(e) => out.push(e),
                None => return Ok(None),
            }
        }
        Ok(Some(out))
    }

    /// A value that the graph passes on without looking at it.
    pub(super) fn opaque(&self, val: &Bound<'py, PyAny>) -> Type {
        Type::Opaque(what(val))
    }
}
