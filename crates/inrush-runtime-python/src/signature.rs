//! Describes what a model takes and gives, as Python objects.

use inrush_base::Scalar;
use inrush_runtime::{Dim, InputKind, OutputSpec as RuntimeOutput, WeightSpec as RuntimeWeight};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

/// Inputs, outputs and weights of a model, each a tuple in order.
#[pyclass(frozen, get_all, module = "inrush_runtime")]
pub(crate) struct Signature {
    inputs: Py<PyTuple>,
    outputs: Py<PyTuple>,
    weights: Py<PyTuple>,
}

/// An input of a call.
#[pyclass(frozen, get_all, module = "inrush_runtime")]
pub(crate) struct InputSpec {
    name: String,
    /// ``tensor``, ``int``, ``constant`` (the number of the export and no other) or ``ignored``.
    kind: &'static str,
    /// Of a tensor, such as ``float32``.
    dtype: Option<&'static str>,
    /// Of a tensor: integers, and texts for sizes that a call decides.
    shape: Option<Py<PyTuple>>,
    /// Inclusive bounds of the sizes that are symbols, by their name.
    ranges: Py<PyDict>,
    /// Of a constant.
    value: Option<Py<PyAny>>,
    /// True if calls write into it.
    written: bool,
    text: String,
}

/// An output of a call.
#[pyclass(frozen, get_all, module = "inrush_runtime")]
pub(crate) struct OutputSpec {
    /// ``tensor``, ``int``, ``constant`` or ``none``.
    kind: &'static str,
    dtype: Option<&'static str>,
    shape: Option<Py<PyTuple>>,
    /// Of a constant.
    value: Option<Py<PyAny>>,
    text: String,
}

/// A weight or buffer of the model.
#[pyclass(frozen, get_all, module = "inrush_runtime")]
pub(crate) struct WeightSpec {
    name: String,
    dtype: &'static str,
    shape: Py<PyTuple>,
    /// True if calls write it, such as a cache or a running mean.
    written: bool,
    text: String,
}

impl Signature {
    pub(crate) fn new(
        py: Python<'_>,
        signature: &inrush_runtime::Signature,
        weights: &[RuntimeWeight],
    ) -> PyResult<Signature> {
        let inputs: Vec<InputSpec> = (signature.inputs.iter())
            .map(|i| input(py, i))
            .collect::<PyResult<_>>()?;
        let outputs: Vec<OutputSpec> = (signature.outputs.iter())
            .filter(|o| **o != RuntimeOutput::Mutation)
            .map(|o| output(py, o))
            .collect::<PyResult<_>>()?;
        let weights: Vec<WeightSpec> = (weights.iter())
            .map(|w| weight(py, w))
            .collect::<PyResult<_>>()?;
        Ok(Signature {
            inputs: PyTuple::new(py, inputs)?.unbind(),
            outputs: PyTuple::new(py, outputs)?.unbind(),
            weights: PyTuple::new(py, weights)?.unbind(),
        })
    }
}

#[pymethods]
impl Signature {
    /// One line for each input and output, and the number of weights.
    fn __repr__(&self, py: Python<'_>) -> PyResult<String> {
        let mut out = String::from("Signature(\n");
        for i in self.inputs.bind(py) {
            out += &format!("  {}\n", i.cast::<InputSpec>()?.get().text);
        }
        for o in self.outputs.bind(py) {
            out += &format!("  -> {}\n", o.cast::<OutputSpec>()?.get().text);
        }
        let (mut elements, mut written) = (0, 0);
        for w in self.weights.bind(py) {
            let w = w.cast::<WeightSpec>()?.get();
            elements += (w.shape.bind(py).iter())
                .map(|n| n.extract::<i64>())
                .product::<PyResult<i64>>()?;
            written += usize::from(w.written);
        }
        let weights = self.weights.bind(py).len();
        out += &format!("  {weights} weights, {elements} elements");
        if written > 0 {
            out += &format!(", {written} that calls write");
        }
        Ok(out + "\n)")
    }
}

macro_rules! printed {
    ($($class:ident)*) => {$(
        #[pymethods]
        impl $class {
            fn __repr__(&self) -> String {
                format!("{}({})", stringify!($class), self.text)
            }
        }
    )*};
}

printed! { InputSpec OutputSpec WeightSpec }

fn input(py: Python<'_>, i: &inrush_runtime::InputSpec) -> PyResult<InputSpec> {
    let ranges = PyDict::new(py);
    let (mut dtype, mut shape, mut value) = (None, None, None);
    let (kind, what) = match &i.kind {
        InputKind::Tensor { dtype: d, sizes } => {
            dtype = Some(d.torch_name());
            shape = Some(shape_of(py, sizes)?);
            let mut bounds = Vec::new();
            for s in sizes {
                if let Dim::Symbol { name, lower, upper } = s {
                    ranges.set_item(name, (lower, upper))?;
                    bounds.push(if *upper == i64::MAX {
                        format!("{name} from {lower}")
                    } else {
                        format!("{name} from {lower} to {upper}")
                    });
                }
            }
            bounds.dedup();
            let text = tensor_text(d.torch_name(), sizes);
            ("tensor", [vec![text], bounds].concat().join(", "))
        }
        InputKind::Int => ("int", "int".to_string()),
        InputKind::Constant(s) => {
            value = Some(scalar(py, *s)?);
            ("constant", format!("{s} and nothing else"))
        }
        InputKind::Ignored => ("ignored", "ignored".to_string()),
    };
    let written = if i.written { ", written" } else { "" };
    Ok(InputSpec {
        text: format!("{}: {what}{written}", i.name),
        name: i.name.clone(),
        kind,
        dtype,
        shape,
        ranges: ranges.unbind(),
        value,
        written: i.written,
    })
}

fn output(py: Python<'_>, o: &RuntimeOutput) -> PyResult<OutputSpec> {
    let plain = |kind, value, text| OutputSpec {
        kind,
        dtype: None,
        shape: None,
        value,
        text,
    };
    Ok(match o {
        RuntimeOutput::Tensor { dtype, sizes } => OutputSpec {
            kind: "tensor",
            dtype: Some(dtype.torch_name()),
            shape: Some(shape_of(py, sizes)?),
            value: None,
            text: tensor_text(dtype.torch_name(), sizes),
        },
        RuntimeOutput::Int => plain("int", None, "int".into()),
        RuntimeOutput::Scalar(s) => plain("constant", Some(scalar(py, *s)?), s.to_string()),
        RuntimeOutput::Mutation | RuntimeOutput::None => plain("none", None, "None".into()),
    })
}

fn weight(py: Python<'_>, w: &RuntimeWeight) -> PyResult<WeightSpec> {
    let written = if w.written { ", written" } else { "" };
    Ok(WeightSpec {
        text: format!("{}: {}{:?}{written}", w.name, w.dtype.torch_name(), w.sizes),
        name: w.name.clone(),
        dtype: w.dtype.torch_name(),
        shape: PyTuple::new(py, &w.sizes)?.unbind(),
        written: w.written,
    })
}

fn tensor_text(dtype: &str, sizes: &[Dim]) -> String {
    let sizes: Vec<String> = sizes.iter().map(Dim::to_string).collect();
    format!("{dtype}[{}]", sizes.join(", "))
}

fn shape_of(py: Python<'_>, sizes: &[Dim]) -> PyResult<Py<PyTuple>> {
    let mut items = Vec::with_capacity(sizes.len());
    for s in sizes {
        items.push(match s {
            Dim::Fixed(n) => n.into_pyobject(py)?.into_any(),
            other => other.to_string().into_pyobject(py)?.into_any(),
        });
    }
    Ok(PyTuple::new(py, items)?.unbind())
}

/// Makes a Python number.
pub(crate) fn scalar(py: Python<'_>, s: Scalar) -> PyResult<Py<PyAny>> {
    Ok(match s {
        Scalar::Bool(b) => b.into_pyobject(py)?.to_owned().into_any().unbind(),
        Scalar::Int(i) => i.into_pyobject(py)?.into_any().unbind(),
        Scalar::Float(f) => f.into_pyobject(py)?.into_any().unbind(),
    })
}
