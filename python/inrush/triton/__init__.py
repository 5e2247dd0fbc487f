"""Triton: builds kernels in worker processes, takes kernels of users, and interprets kernels without a GPU."""
