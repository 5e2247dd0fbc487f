//! PyTorch's process as the host of compiled graphs.
//!
//! ```text
//! run           a call on the CPU: segments, called operators, views over Python tensors
//! call          called operators with their arguments
//! made          calls that a pass made, read from the graph
//! engine        a call on a GPU: the executor of `inrush-host`, and captured calls
//! torch         that executor's host, over libtorch's C functions
//! scalars       scalar tensors of the host, and their copies on the device
//! steps         its steps that need the interpreter, and exceptions
//! tensor        tensors that a call owns
//! device_graphs calls that were captured, and replays
//! aten_library  PyTorch's C functions for products, convolutions, attention
//! device        streams, guards, properties of devices
//! kinds         the kinds of GPUs that PyTorch is built for, and its names of devices
//! triton        the pool of Triton workers
//! shim          libtorch's stable C functions, looked up in the process
//! ```

mod aten_library;
pub mod call;
pub mod device;
mod device_graphs;
mod engine;
pub mod kinds;
mod made;
pub mod run;
mod scalars;
pub mod shim;
mod steps;
pub mod tensor;
mod torch;
pub mod triton;

pub use aten_library::of_call;
pub use device_graphs::Todo;
pub use engine::{Engine, tell_option};
