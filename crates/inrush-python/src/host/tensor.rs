//! Tensors of PyTorch's that a call owns.

use super::shim::{Handle, Shims};

/// An owned handle of a tensor.
pub struct Owned {
    pub handle: Handle,
    pub shims: &'static Shims,
}

// SAFETY: PyTorch's tensors may be used and released by any thread.
unsafe impl Send for Owned {}
// SAFETY: a shared reference reads the handle only.
unsafe impl Sync for Owned {}

impl Drop for Owned {
    fn drop(&mut self) {
        // SAFETY: the handle is ours and is forgotten.
        unsafe { self.shims.release(self.handle) };
    }
}
