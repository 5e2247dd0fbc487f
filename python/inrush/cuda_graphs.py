"""Captures of CUDA graphs, with PyTorch's own means: its allocator must know what a graph holds."""

from __future__ import annotations

import contextlib
from typing import Iterator

import torch

# Graphs of one stream run one after the other and nothing in their pool outlives a replay: they share one.
# A pool is gone with its last graph: a first one that does next to nothing keeps it.
_pools: dict[tuple[int, int], torch.cuda.CUDAGraph] = {}
_streams: dict[tuple[int, int], torch.cuda.Stream] = {}


def _open(device: int, stream: int) -> torch.cuda.CUDAGraph:
    """A pool, and a stream to capture on: libraries' workspaces go with that, so that each pool has its own."""
    side = _streams[device, stream] = torch.cuda.Stream(device)
    side.wait_stream(torch.cuda.current_stream(device))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(side):
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            torch.zeros(1, device=side.device)
        finally:
            graph.capture_end()
    return graph


@contextlib.contextmanager
def capture(device: int, stream: int) -> Iterator[torch.cuda.CUDAGraph]:
    """Records what the current thread has its device do as a graph; nothing is done meanwhile."""
    if (device, stream) not in _pools:
        _pools[device, stream] = _open(device, stream)
    graph = torch.cuda.CUDAGraph()
    side, current = _streams[device, stream], torch.cuda.current_stream(device)
    side.wait_stream(current)
    with torch.cuda.stream(side):
        graph.capture_begin(pool=_pools[device, stream].pool(), capture_error_mode="thread_local")
        try:
            yield graph
        except BaseException:
            # The error that is under way says more than what ending the capture may raise.
            with contextlib.suppress(Exception):
                graph.capture_end()
            raise
        graph.capture_end()
    current.wait_stream(side)
