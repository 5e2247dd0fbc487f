"""inrush: a compiler backend for PyTorch, in Rust."""
