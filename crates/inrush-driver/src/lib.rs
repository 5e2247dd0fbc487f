//! Drivers of GPUs as one trait, and what an executor holds of them.
//!
//! ```text
//! api        the trait that a kind of device implements, and the values that its methods take
//! calls      drivers whose C functions have one shape, which vendors share: an implementation of the trait
//! cpp        the same functions in printed programs
//! handles    the driver of a process; kernels, memory, events and arguments of launches
//! streams    streams, their order among each other, the context of the calling thread
//! list       launches that are issued as one
//! recording  work of a stream that is recorded and issued as one
//! map        tensor maps
//! ```
//!
//! Does not know: any kind of device, any compiler crate.

mod api;
pub mod calls;
pub mod cpp;
mod handles;
mod list;
mod map;
mod recording;
mod streams;

pub use api::{Api, Code, Context, DevicePtr, Handle, Launch, Loaded, Stream, Symbols};
pub use handles::{Arguments, Driver, Event, Kernel, Memory};
pub use list::List;
pub use map::{MAX_RANK, Tensor, TensorMap};
pub use recording::Recording;
pub use streams::{Entered, Marker, OwnedStream};
