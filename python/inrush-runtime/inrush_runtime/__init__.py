"""inrush_runtime: runs packages that inrush compiled, without PyTorch.

    model = inrush_runtime.load("model.inrush")     a file or its bytes
    y = model(x)                                    NumPy arrays, or anything with DLPack or a buffer; no copies
    model(x, out=[y])                               into arrays of the caller
    model = inrush_runtime.load(.., device="cuda:0")  on a GPU: results are `DeviceTensor`s
    model(x, stream=torch.cuda.current_stream())    tensors of the GPU by DLPack, on the caller's stream
    model.signature                                 names, dtypes and sizes of inputs, outputs and weights
    model.update_weights({"fc.weight": w})          new weights while calls run ...
    model.swap_weights()                            ... which later calls use
    inrush_runtime.register_operator(schema, f)     the function of an operator of your own, before models are loaded
"""

from inrush_runtime._native import (
    DeviceTensor,
    DivisionError,
    Error,
    InputError,
    InputSpec,
    InternalError,
    InvalidValueError,
    MachineError,
    Model,
    OutOfMemoryError,
    OutOfRangeError,
    OutputSpec,
    PackageError,
    Signature,
    Tensor,
    UnsupportedError,
    WeightSpec,
    __version__,
    load,
    load_operators,
    register_operator,
)

__all__ = [
    "DeviceTensor",
    "DivisionError",
    "Error",
    "InputError",
    "InputSpec",
    "InternalError",
    "InvalidValueError",
    "MachineError",
    "Model",
    "OutOfMemoryError",
    "OutOfRangeError",
    "OutputSpec",
    "PackageError",
    "Signature",
    "Tensor",
    "UnsupportedError",
    "WeightSpec",
    "__version__",
    "load",
    "load_operators",
    "register_operator",
]
