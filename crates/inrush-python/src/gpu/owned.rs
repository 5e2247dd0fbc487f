//! Tensors of PyTorch's that belong to a call.

use crate::shim::{Handle, Shims};

/// A tensor of ours, or none.
pub(super) struct Owned {
    pub handle: Handle,
    pub shims: &'static Shims,
}

// SAFETY: PyTorch's tensors may be used and released by any thread.
unsafe impl Send for Owned {}
// SAFETY: a shared reference reads the handle only.
unsafe impl Sync for Owned {}

impl Owned {
    pub fn none(shims: &'static Shims) -> Owned {
        Owned {
            handle: std::ptr::null_mut(),
            shims,
        }
    }
    pub fn is_none(&self) -> bool {
        self.handle.is_null()
    }
}

impl Drop for Owned {
    fn drop(&mut self) {
        if !self.handle.is_null() {
            // SAFETY: the handle is ours and is forgotten.
            unsafe { self.shims.release(self.handle) };
        }
    }
}
