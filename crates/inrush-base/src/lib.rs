//! Types that every layer shares: dtypes, scalar values, device properties, errors, decimal numbers, index sets, the text scanner,
//! schemas of operators, threads.
//!
//! Does not know: tensors.

mod caps;
mod decimal;
mod device;
mod dtype;
mod error;
mod float8;
mod index_set;
mod scalar;
pub mod schema;
mod strides;
pub mod tally;
pub mod text;
mod threads;

pub use caps::{Caps, Gpu, Isa, PersistentProducts};
pub use decimal::{Digits, digits};
pub use device::{Device, Preset, Properties, Runs};
pub use dtype::{DType, DTypeClass, promote};
pub use error::{CheckKind, Error, ErrorKind, Result};
pub use float8::Float8;
pub use index_set::{Lookup, Vacant};
pub use scalar::Scalar;
pub use strides::{same_strides, strides_nest};
pub use threads::{both, shares, side_by_side, with_helpers};

/// Declares a typed index into an arena: `Copy`, four bytes, printed as `prefix` + number.
#[macro_export]
macro_rules! id_type {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Copy, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);
        impl $name {
            /// Position in its arena.
            #[inline]
            pub fn index(self) -> usize {
                self.0 as usize
            }
            /// The id of position `i`; arenas stay far below 2^32 entries.
            #[inline]
            pub fn from_index(i: usize) -> Self {
                Self(i as u32)
            }
        }
        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
        impl std::fmt::Debug for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}
