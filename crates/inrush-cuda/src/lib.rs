//! NVIDIA GPUs. The compile half is data: presets and the strings of wrappers. The run half speaks with the driver.
//!
//! Does not know: the other devices, any compiler crate.

pub mod driver;
mod presets;

pub use presets::{Properties, caps};

use inrush_base::{CppStrings, Device, PythonStrings};

/// The device.
pub static CUDA: Device = Device {
    name: "cuda",
    torch_name: "cuda",
    backend: "cuda",
    binary: "cubin",
    presets: presets::ALL,
    python: PythonStrings {
        import_raw_stream: "from torch._C import _cuda_getCurrentRawStream as get_raw_stream",
        raw_stream: "get_raw_stream({})",
        guard: "torch.cuda._DeviceGuard({})",
        set_device: "torch.cuda.set_device({})",
        synchronize: "torch.cuda.synchronize()",
    },
    cpp: CppStrings {
        header: "#include <cuda.h>",
        stream_type: "CUstream",
        kernel_type: "CUfunction",
        device_pointer: "CUdeviceptr",
        guard: "AOTICudaGuard device_guard({});",
        stream_guard: "AOTICudaStreamGuard stream_guard(stream, {});",
        global_scratch: Some("CUdeviceptr global_scratch = 0;"),
    },
};
