"""PyTorch's own operator samples, compiled and compared with eager; `__main__.py` is the command."""
