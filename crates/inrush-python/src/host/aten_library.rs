//! PyTorch's C functions for what libraries do best: products, convolutions, attention.
//!
//! They are those of the generated C shims; where one is missing, its operator is called
//! from Python. [`of_call`] recognizes a called operator while compiling, when its numbers are
//! constants. [`Functions::call`] makes the call later without the interpreter: handles of tensors
//! go in, and handles of new tensors come out.
//!
//! Results keep the positions of the operator's schema. Attention returns nine values, two of which
//! (4 and 5, the longest sequences) are integers that no graph reads: they are written to locals.

use super::shim::{Handle, library as find};
use inrush_host::devices;
use inrush_host::program::{Call, Device, Library, LibraryOp, Template};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;

/// A return code; 0 for success. The text of an error goes to stderr only.
type Rc = i32;
/// An optional tensor: null, or a pointer to its handle.
type Maybe = *const Handle;
/// Where a function stores the handle of a new tensor.
type Out = *mut Handle;
/// An optional number; null for the operator's own default.
type Scale = *const f64;

/// `out = product(a, b)`.
type Two = unsafe extern "C" fn(Handle, Handle, Handle) -> Rc;
/// `out = beta * bias + alpha * product(a, b)`.
type Three = unsafe extern "C" fn(Handle, Handle, Handle, Handle, f64, f64) -> Rc;
/// A new tensor: the activation of `beta * bias + alpha * product(a, b)`.
type Activation = unsafe extern "C" fn(Handle, Handle, Handle, f64, f64, i32, Out) -> Rc;
type Convolution = unsafe extern "C" fn(
    Handle,
    Handle,
    Maybe,
    *const i64,
    i64,
    *const i64,
    i64,
    *const i64,
    i64,
    i32,
    *const i64,
    i64,
    i64,
    Out,
) -> Rc;
type ConvolutionBackward = unsafe extern "C" fn(
    Handle,
    Handle,
    Handle,
    *const *const i64,
    i64,
    *const i64,
    i64,
    *const i64,
    i64,
    *const i64,
    i64,
    i32,
    *const i64,
    i64,
    i64,
    *const i32,
    i64,
    Out,
    Out,
    Out,
) -> Rc;
type Flash = unsafe extern "C" fn(
    Handle,
    Handle,
    Handle,
    f64,
    i32,
    i32,
    Scale,
    Out,
    Out,
    Out,
    Out,
    *mut i64,
    *mut i64,
    Out,
    Out,
    Out,
) -> Rc;
type Efficient = unsafe extern "C" fn(
    Handle,
    Handle,
    Handle,
    Maybe,
    i32,
    f64,
    i32,
    Scale,
    Out,
    Out,
    Out,
    Out,
) -> Rc;
type Cudnn = unsafe extern "C" fn(
    Handle,
    Handle,
    Handle,
    Maybe,
    i32,
    f64,
    i32,
    i32,
    Scale,
    Out,
    Out,
    Out,
    Out,
    *mut i64,
    *mut i64,
    Out,
    Out,
    Out,
) -> Rc;

/// The functions for one kind of device; `None` for what this PyTorch does not have.
pub struct Functions {
    mm: Option<Two>,
    bmm: Option<Two>,
    addmm: Option<Three>,
    baddbmm: Option<Three>,
    activation: Option<Activation>,
    convolution: Option<Convolution>,
    convolution_backward: Option<ConvolutionBackward>,
    flash: Option<Flash>,
    efficient: Option<Efficient>,
    cudnn: Option<Cudnn>,
    _library: libloading::os::unix::Library,
}

// SAFETY: addresses of functions that may be called from any thread.
unsafe impl Send for Functions {}
// SAFETY: likewise.
unsafe impl Sync for Functions {}

/// Returns the functions for a kind of device; those of the CPU for kernels that are interpreted.
pub fn functions(py: Python<'_>, device: Device) -> PyResult<&'static Functions> {
    // The last one is the CPU's.
    const KINDS: usize = devices::KINDS + 1;
    static FUNCTIONS: [PyOnceLock<Functions>; KINDS] = [const { PyOnceLock::new() }; KINDS];
    let found = (devices::executed().enumerate()).find(|(_, d)| d.torch_number() == device.kind);
    let at = found.map_or(devices::KINDS, |(at, _)| at);
    FUNCTIONS[at].get_or_try_init(py, || {
        let (device, build) = found.map_or(("cpu", "cpu"), |(_, kind)| {
            (kind.device.torch_name, kind.device.torch_build)
        });
        let library = find(py, &format!("torch_{build}"))?;
        macro_rules! get {
            ($name:expr) => {
                // SAFETY: names and types are those of PyTorch's generated C shims.
                unsafe {
                    let name = format!("aoti_torch_{device}_{}\0", $name);
                    library.get(name.as_bytes()).ok().map(|f| *f)
                }
            };
        }
        Ok(Functions {
            mm: get!("mm_out"),
            bmm: get!("bmm_out"),
            addmm: get!("addmm_out"),
            baddbmm: get!("baddbmm_out"),
            activation: get!("_addmm_activation"),
            convolution: get!("convolution"),
            convolution_backward: get!("convolution_backward"),
            flash: get!("_scaled_dot_product_flash_attention"),
            efficient: get!("_scaled_dot_product_efficient_attention"),
            cudnn: get!("_scaled_dot_product_cudnn_attention"),
            _library: library,
        })
    })
}

impl Functions {
    /// Returns true if this PyTorch has the operator's function.
    pub fn has(&self, op: &LibraryOp) -> bool {
        match op {
            LibraryOp::Mm => self.mm.is_some(),
            LibraryOp::Bmm => self.bmm.is_some(),
            LibraryOp::Addmm { .. } => self.addmm.is_some(),
            LibraryOp::Baddbmm { .. } => self.baddbmm.is_some(),
            LibraryOp::AddmmActivation { .. } => self.activation.is_some(),
            LibraryOp::Convolution { .. } => self.convolution.is_some(),
            LibraryOp::ConvolutionBackward { .. } => self.convolution_backward.is_some(),
            LibraryOp::FlashAttention { .. } => self.flash.is_some(),
            LibraryOp::EfficientAttention { .. } => self.efficient.is_some(),
            LibraryOp::CudnnAttention { .. } => self.cudnn.is_some(),
        }
    }

    /// Calls an operator. New tensors are left in `results`, which start as null, in the order of the operator's results;
    /// numbers among those are dropped. False where PyTorch raised.
    ///
    /// # Safety
    /// Handles are of live tensors on the device; `out` is there for operators that write into it.
    pub unsafe fn call(
        &self,
        op: &LibraryOp,
        inputs: &[Handle],
        out: Handle,
        results: &mut [Handle; 9],
    ) -> bool {
        let tensors = Tensors {
            inputs,
            out,
            results: results.as_mut_ptr(),
        };
        // SAFETY: by the caller's promise.
        let rc = unsafe {
            match op {
                LibraryOp::Mm => tensors.product(self.mm),
                LibraryOp::Bmm => tensors.product(self.bmm),
                LibraryOp::Addmm { beta, alpha } => {
                    tensors.product_and_sum(self.addmm, *beta, *alpha)
                }
                LibraryOp::Baddbmm { beta, alpha } => {
                    tensors.product_and_sum(self.baddbmm, *beta, *alpha)
                }
                LibraryOp::AddmmActivation { beta, alpha, gelu } => {
                    tensors.activation(self.activation, *beta, *alpha, *gelu)
                }
                LibraryOp::Convolution { .. } => tensors.convolution(self.convolution, op),
                LibraryOp::ConvolutionBackward { .. } => {
                    tensors.convolution_backward(self.convolution_backward, op)
                }
                LibraryOp::FlashAttention { .. } => tensors.flash_attention(self.flash, op),
                LibraryOp::EfficientAttention { .. } => {
                    tensors.efficient_attention(self.efficient, op)
                }
                LibraryOp::CudnnAttention { .. } => tensors.cudnn_attention(self.cudnn, op),
            }
        };
        rc == Some(0)
    }
}

/// Returns a list of numbers as C takes it: a pointer and a length.
fn list<T>(l: &[T]) -> (*const T, i64) {
    (l.as_ptr(), l.len() as i64)
}

/// Returns an optional value as C takes it.
fn pointer<T>(value: &Option<T>) -> *const T {
    value.as_ref().map_or(std::ptr::null(), std::ptr::from_ref)
}

/// Tensors of a call. Each method calls one type of function with the constants of an operator, and
/// returns its code; `None` if there is no function.
///
/// All are unsafe for one reason: handles are of live tensors, as many as the operator takes.
/// Pointers to constants and results are valid during the call.
struct Tensors<'a> {
    inputs: &'a [Handle],
    out: Handle,
    /// Nine handles.
    results: *mut Handle,
}

impl Tensors<'_> {
    /// Returns an operand that may be left out.
    fn maybe(&self, k: usize) -> Maybe {
        match self.inputs.get(k) {
            Some(h) if !h.is_null() => std::ptr::from_ref(h),
            _ => std::ptr::null(),
        }
    }

    /// Returns where result `k` goes.
    fn result(&self, k: usize) -> Out {
        debug_assert!(k < 9);
        self.results.wrapping_add(k)
    }

    unsafe fn product(&self, f: Option<Two>) -> Option<Rc> {
        // SAFETY: by the caller's promise.
        f.map(|f| unsafe { f(self.out, self.inputs[0], self.inputs[1]) })
    }

    unsafe fn product_and_sum(&self, f: Option<Three>, beta: f64, alpha: f64) -> Option<Rc> {
        let i = self.inputs;
        // SAFETY: by the caller's promise.
        f.map(|f| unsafe { f(self.out, i[0], i[1], i[2], beta, alpha) })
    }

    unsafe fn activation(
        &self,
        f: Option<Activation>,
        beta: f64,
        alpha: f64,
        gelu: bool,
    ) -> Option<Rc> {
        let (i, gelu) = (self.inputs, i32::from(gelu));
        // SAFETY: by the caller's promise.
        f.map(|f| unsafe { f(i[0], i[1], i[2], beta, alpha, gelu, self.result(0)) })
    }

    unsafe fn convolution(&self, f: Option<Convolution>, op: &LibraryOp) -> Option<Rc> {
        let LibraryOp::Convolution {
            stride,
            padding,
            dilation,
            transposed,
            output_padding,
            groups,
        } = op
        else {
            return None;
        };
        let (stride, strides) = list(stride);
        let (padding, paddings) = list(padding);
        let (dilation, dilations) = list(dilation);
        let (output_padding, output_paddings) = list(output_padding);
        // SAFETY: by the caller's promise.
        f.map(|f| unsafe {
            f(
                self.inputs[0],
                self.inputs[1],
                self.maybe(2),
                stride,
                strides,
                padding,
                paddings,
                dilation,
                dilations,
                i32::from(*transposed),
                output_padding,
                output_paddings,
                *groups,
                self.result(0),
            )
        })
    }

    unsafe fn convolution_backward(
        &self,
        f: Option<ConvolutionBackward>,
        op: &LibraryOp,
    ) -> Option<Rc> {
        let LibraryOp::ConvolutionBackward {
            bias_sizes,
            stride,
            padding,
            dilation,
            transposed,
            output_padding,
            groups,
            wanted,
        } = op
        else {
            return None;
        };
        let bias = bias_sizes.as_ref().map(|b| b.as_ptr());
        let mask: Vec<i32> = wanted.iter().map(|w| i32::from(*w)).collect();
        let (stride, strides) = list(stride);
        let (padding, paddings) = list(padding);
        let (dilation, dilations) = list(dilation);
        let (output_padding, output_paddings) = list(output_padding);
        // SAFETY: by the caller's promise.
        f.map(|f| unsafe {
            f(
                self.inputs[0],
                self.inputs[1],
                self.inputs[2],
                pointer(&bias),
                bias_sizes.as_ref().map_or(0, |b| b.len() as i64),
                stride,
                strides,
                padding,
                paddings,
                dilation,
                dilations,
                i32::from(*transposed),
                output_padding,
                output_paddings,
                *groups,
                mask.as_ptr(),
                mask.len() as i64,
                self.result(0),
                self.result(1),
                self.result(2),
            )
        })
    }

    unsafe fn flash_attention(&self, f: Option<Flash>, op: &LibraryOp) -> Option<Rc> {
        let LibraryOp::FlashAttention {
            dropout,
            causal,
            debug_mask,
            scale,
        } = op
        else {
            return None;
        };
        let [mut longest_query, mut longest_key] = [0i64; 2];
        // SAFETY: by the caller's promise.
        f.map(|f| unsafe {
            f(
                self.inputs[0],
                self.inputs[1],
                self.inputs[2],
                *dropout,
                i32::from(*causal),
                i32::from(*debug_mask),
                pointer(scale),
                self.result(0),
                self.result(1),
                self.result(2),
                self.result(3),
                &mut longest_query,
                &mut longest_key,
                self.result(6),
                self.result(7),
                self.result(8),
            )
        })
    }

    unsafe fn efficient_attention(&self, f: Option<Efficient>, op: &LibraryOp) -> Option<Rc> {
        let LibraryOp::EfficientAttention {
            log_sum,
            dropout,
            causal,
            scale,
        } = op
        else {
            return None;
        };
        // SAFETY: by the caller's promise.
        f.map(|f| unsafe {
            f(
                self.inputs[0],
                self.inputs[1],
                self.inputs[2],
                self.maybe(3),
                i32::from(*log_sum),
                *dropout,
                i32::from(*causal),
                pointer(scale),
                self.result(0),
                self.result(1),
                self.result(2),
                self.result(3),
            )
        })
    }

    unsafe fn cudnn_attention(&self, f: Option<Cudnn>, op: &LibraryOp) -> Option<Rc> {
        let LibraryOp::CudnnAttention {
            log_sum,
            dropout,
            causal,
            debug_mask,
            scale,
        } = op
        else {
            return None;
        };
        let [mut longest_query, mut longest_key] = [0i64; 2];
        // SAFETY: by the caller's promise.
        f.map(|f| unsafe {
            f(
                self.inputs[0],
                self.inputs[1],
                self.inputs[2],
                self.maybe(3),
                i32::from(*log_sum),
                *dropout,
                i32::from(*causal),
                i32::from(*debug_mask),
                pointer(scale),
                self.result(0),
                self.result(1),
                self.result(2),
                self.result(3),
                &mut longest_query,
                &mut longest_key,
                self.result(6),
                self.result(7),
                self.result(8),
            )
        })
    }
}

/// The arguments of a called operator, by its schema's order.
struct Arguments<'a, 'py> {
    py: Python<'py>,
    call: &'a Call,
    objects: &'a [Py<PyAny>],
}

/// Readers of arguments. `k` is the position in the schema and `name` the keyword. Each returns
/// `None` if the argument is no constant of the type: then the operator is called from Python.
impl Arguments<'_, '_> {
    /// Returns an argument by position, else by name; `None` where it was left out.
    fn get(&self, k: usize, name: &str) -> Option<&Template> {
        (self.call.args.get(k)).or_else(|| {
            let named = self.call.kwargs.iter().find(|(n, _)| n == name);
            named.map(|(_, t)| t)
        })
    }

    fn constant(&self, t: &Template) -> Option<Bound<'_, PyAny>> {
        match t {
            Template::Constant(o) => Some(self.objects[*o].bind(self.py).clone()),
            _ => None,
        }
    }

    /// Returns the slot of a tensor that must be there.
    fn tensor(&self, k: usize, name: &str) -> Option<Option<usize>> {
        match self.get(k, name)? {
            Template::Slot(s) => Some(Some(*s)),
            _ => None,
        }
    }

    /// A tensor or nothing; the outer `None` where it is neither.
    fn maybe(&self, k: usize, name: &str) -> Option<Option<usize>> {
        match self.get(k, name) {
            None => Some(None),
            Some(Template::Slot(s)) => Some(Some(*s)),
            Some(t) => self.constant(t)?.is_none().then_some(None),
        }
    }

    fn number(&self, k: usize, name: &str, default: f64) -> Option<f64> {
        match self.get(k, name) {
            None => Some(default),
            Some(t) => self.constant(t)?.extract().ok(),
        }
    }

    fn flag(&self, k: usize, name: &str) -> Option<bool> {
        match self.get(k, name) {
            None => Some(false),
            Some(t) => self.constant(t)?.extract().ok(),
        }
    }

    fn optional(&self, k: usize, name: &str) -> Option<Option<f64>> {
        match self.get(k, name) {
            None => Some(None),
            Some(t) => self.constant(t)?.extract().ok(),
        }
    }

    fn flags(&self, k: usize) -> Option<Vec<bool>> {
        match self.call.args.get(k)? {
            Template::List(l) | Template::Tuple(l) => (l.iter())
                .map(|t| self.constant(t)?.extract().ok())
                .collect(),
            Template::Constant(o) => self.objects[*o].bind(self.py).extract().ok(),
            _ => None,
        }
    }

    fn ints(&self, k: usize) -> Option<Vec<i64>> {
        match self.call.args.get(k)? {
            Template::List(l) | Template::Tuple(l) => (l.iter())
                .map(|t| self.constant(t)?.extract().ok())
                .collect(),
            Template::Constant(o) => self.objects[*o].bind(self.py).extract().ok(),
            _ => None,
        }
    }
}

/// Returns a called operator as a library call, if there is a function for it and its arguments are
/// constants but for tensors. The call itself is kept for a PyTorch without the function, and for
/// the exception that a failure raises. The caller has checked that all tensors have layouts.
pub fn of_call(py: Python<'_>, op: &str, call: &Call, objects: &[Py<PyAny>]) -> Option<Library> {
    let a = Arguments { py, call, objects };
    let (op, inputs) = match op {
        "aten.mm.default" => (
            LibraryOp::Mm,
            vec![a.tensor(0, "self")?, a.tensor(1, "mat2")?],
        ),
        "aten.bmm.default" => (
            LibraryOp::Bmm,
            vec![a.tensor(0, "self")?, a.tensor(1, "mat2")?],
        ),
        "aten.addmm.default" | "aten.baddbmm.default" => {
            let (beta, alpha) = (a.number(3, "beta", 1.0)?, a.number(4, "alpha", 1.0)?);
            let inputs = (0..3).map(|k| a.tensor(k, "")).collect::<Option<_>>()?;
            match op {
                "aten.addmm.default" => (LibraryOp::Addmm { beta, alpha }, inputs),
                _ => (LibraryOp::Baddbmm { beta, alpha }, inputs),
            }
        }
        "aten._addmm_activation.default" => (
            LibraryOp::AddmmActivation {
                beta: a.number(3, "beta", 1.0)?,
                alpha: a.number(4, "alpha", 1.0)?,
                gelu: a.flag(5, "use_gelu")?,
            },
            (0..3).map(|k| a.tensor(k, "")).collect::<Option<_>>()?,
        ),
        "aten.convolution.default" => (
            LibraryOp::Convolution {
                stride: a.ints(3)?,
                padding: a.ints(4)?,
                dilation: a.ints(5)?,
                transposed: a.flag(6, "transposed")?,
                output_padding: a.ints(7)?,
                groups: a.number(8, "groups", 1.0)? as i64,
            },
            vec![a.tensor(0, "")?, a.tensor(1, "")?, a.maybe(2, "bias")?],
        ),
        "aten.convolution_backward.default" => (
            LibraryOp::ConvolutionBackward {
                bias_sizes: match a.get(3, "bias_sizes")? {
                    Template::Constant(o) if objects[*o].is_none(py) => None,
                    _ => Some(a.ints(3)?),
                },
                stride: a.ints(4)?,
                padding: a.ints(5)?,
                dilation: a.ints(6)?,
                transposed: a.flag(7, "transposed")?,
                output_padding: a.ints(8)?,
                groups: a.number(9, "groups", 1.0)? as i64,
                wanted: a.flags(10)?,
            },
            (0..3).map(|k| a.tensor(k, "")).collect::<Option<_>>()?,
        ),
        "aten._scaled_dot_product_flash_attention.default" => (
            LibraryOp::FlashAttention {
                dropout: a.number(3, "dropout_p", 0.0)?,
                causal: a.flag(4, "is_causal")?,
                debug_mask: a.flag(5, "return_debug_mask")?,
                scale: a.optional(usize::MAX, "scale")?,
            },
            (0..3).map(|k| a.tensor(k, "")).collect::<Option<_>>()?,
        ),
        "aten._scaled_dot_product_efficient_attention.default" => {
            let mut inputs: Vec<Option<usize>> =
                (0..3).map(|k| a.tensor(k, "")).collect::<Option<_>>()?;
            inputs.push(a.maybe(3, "attn_bias")?);
            let op = LibraryOp::EfficientAttention {
                log_sum: a.flag(4, "compute_log_sumexp")?,
                dropout: a.number(5, "dropout_p", 0.0)?,
                causal: a.flag(6, "is_causal")?,
                scale: a.optional(usize::MAX, "scale")?,
            };
            (op, inputs)
        }
        "aten._scaled_dot_product_cudnn_attention.default" => {
            let mut inputs: Vec<Option<usize>> =
                (0..3).map(|k| a.tensor(k, "")).collect::<Option<_>>()?;
            inputs.push(a.maybe(3, "attn_bias")?);
            let op = LibraryOp::CudnnAttention {
                log_sum: a.flag(4, "compute_log_sumexp")?,
                dropout: a.number(5, "dropout_p", 0.0)?,
                causal: a.flag(6, "is_causal")?,
                debug_mask: a.flag(7, "return_debug_mask")?,
                scale: a.optional(usize::MAX, "scale")?,
            };
            (op, inputs)
        }
        _ => return None,
    };
    Some(Library {
        op,
        inputs,
        outs: call.outs.clone(),
        call: Some(call.clone()),
    })
}
