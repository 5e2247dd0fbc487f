"""Host time a launch in printed Python on a GPU, and in the wrapper that PyTorch's default backend writes.

usage: gpu_wrapper.py

A function whose kernels nothing fuses is compiled by both. Calls are issued without waiting for the device; the median time of a
call is divided by its launches. Exit code 1 where the printed file's result is off.
"""

import importlib.util
import re
import statistics
import sys
import tempfile
import time

import torch
from torch._inductor.output_code import CompiledFxGraph

import inrush


def chain(x, y):
    for _ in range(10):
        x = torch.softmax(x + y, 0) + torch.softmax(y, 1)
    return x


def host(call, calls=8, rounds=40):
    """Median of the time in which the host issues a call, us. Few enough calls that no queue of the driver fills."""
    for _ in range(5):
        call()
    times = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        times.append((time.perf_counter() - start) / calls)
    torch.cuda.synchronize()
    return statistics.median(times) * 1e6


def printed(f, args):
    """The printed file of a function as a module."""
    compiled = torch.compile(f, backend="inrush", options={"strict": True, "cache": False})
    compiled(*args)
    (text,) = inrush.output_code(compiled)
    with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False) as file:
        file.write(text)
    spec = importlib.util.spec_from_file_location("printed", file.name)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def wrapper(f, args):
    """What the default backend calls, and the launches in it."""
    seen, call = [], CompiledFxGraph.__call__

    def note(graph, inputs):
        seen.append(graph)
        return call(graph, inputs)

    CompiledFxGraph.__call__ = note
    try:
        torch._dynamo.reset()
        torch.compile(f)(*args)
    finally:
        CompiledFxGraph.__call__ = call
    return seen[-1].current_callable, len(re.findall(r"\.run\(", seen[-1].source_code))


def main():
    args = [torch.randn(256, 256, device="cuda") for _ in range(2)]
    with torch.no_grad():
        module = printed(chain, args)
        launches, launch = 0, module.Kernel.launch

        def count(*given):
            nonlocal launches
            launches += 1
            launch(*given)

        module.Kernel.launch = count
        (got,) = module.call(*args)
        module.Kernel.launch = launch
        right = torch.allclose(got, chain(*args), rtol=1e-4, atol=1e-5)
        call, others = wrapper(chain, args)
        # In turns: the host's speed changes.
        pairs = [(host(lambda: module.call(*args)) / launches, host(lambda: call(list(args))) / others) for _ in range(3)]
    ours, theirs = (statistics.median(t) for t in zip(*pairs))
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, host time a launch, us")
    print(f"printed {ours:.1f} ({launches} launches), default {theirs:.1f} ({others} launches), quotient {ours / theirs:.2f}{'' if right else '  WRONG'}")
    return int(not right)


if __name__ == "__main__":
    sys.exit(main())
