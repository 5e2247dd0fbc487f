//! The library in packages of format `aoti`: the C functions that PyTorch's AOTInductor loader calls, on top of the runtime.
//!
//! ```text
//! loader of PyTorch -> interface -> container -> session of the runtime -> package in the same folder
//!                                      |-> device: the executor of GPUs
//!                                      '-> torch: functions of libtorch, looked up in the process
//! interface    the exported functions, their pointers and errors
//! container    a loaded package: calls, constants
//! device       a package on a GPU: calls on the caller's stream, constants in memory of the device
//! torch        libtorch's stable C functions, tensors of the runtime in memory of PyTorch
//! cuda         those for streams and memory of a GPU
//! map          reads the `std::unordered_map` that new constants come in
//! payload      the package that belongs to this library
//! error        the last error of a thread, and the border that no panic crosses
//! ```
//!
//! The library is built once. A package holds a copy of it next to an ordinary package, so that nothing is compiled or linked
//! when a model is packaged. Neither C++ nor libtorch is linked.
//!
//! Does not know: any compiler crate.

mod container;
mod cuda;
mod device;
mod error;
mod interface;
mod map;
mod payload;
mod torch;
