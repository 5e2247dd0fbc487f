//! Safetensors files: named tensors, mapped for reading.
