//! Algorithms: which kernels compute a product, in which blocks for the caches and parts for the threads.

pub(crate) mod blocking;
pub(crate) mod conv;
pub(crate) mod depthwise;
pub(crate) mod direct_nchw;
pub(crate) mod gemm;
pub(crate) mod gemv;
pub(crate) mod grouped;
pub(crate) mod split_k;
pub(crate) mod winograd;
