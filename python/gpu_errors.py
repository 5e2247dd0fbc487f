"""What goes wrong on a GPU, each thing in a process of its own: the exception must say what it is about, and the process must
go on where CUDA allows it.

usage: gpu_errors.py [NAME]

Without a name all of them run, side by side as far as the device's memory allows, and a table is printed.
"""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from typing import Any, Callable

import torch

import installed  # noqa: F401


def compiled(f: Any, **options: Any) -> Any:
    return torch.compile(f, backend="inrush", options={"cache": False, **options})


def told(f: Callable[[], Any], *words: str, kind: type[BaseException] = BaseException) -> str:
    """The exception of a call, which must hold these words."""
    try:
        f()
        torch.cuda.synchronize()
    except kind as error:
        text = f"{type(error).__name__}: {error}"
        missing = [w for w in words if w not in text]
        assert not missing, f"{missing} are not in {text}"
        return text
    raise AssertionError("nothing was raised")


def works() -> None:
    """The process and the device go on."""
    x = torch.randn(100, device="cuda")
    torch.testing.assert_close(compiled(lambda x: x * 2 + 1)(x), x * 2 + 1)


def index() -> None:
    """An index out of range: the device cannot be used after it, the process can."""
    x = torch.randn(64, 8, device="cuda")
    rows = torch.tensor([1, 70, 3], device="cuda")
    f = compiled(lambda x, rows: x[rows] * 2)
    print(told(lambda: f(x, rows), "assert"))
    print(told(lambda: f(x, rows), "stderr"))


def memory() -> None:
    """More memory than there is."""
    free, _ = torch.cuda.mem_get_info()
    keep = torch.empty(int(free * 0.9), dtype=torch.uint8, device="cuda")
    n = int(free * 0.2) // 4
    f = compiled(lambda x: torch.softmax(x.expand(n), 0) + 1)
    x = torch.ones(1, device="cuda")
    print(told(lambda: f(x), "out of memory", kind=torch.OutOfMemoryError)[:300])
    works()
    del keep
    torch.cuda.empty_cache()
    assert f(x).shape == (n,)


def memory_of_a_graph() -> None:
    """Too little memory for a capture: calls run as usual as long as these have enough."""
    f = compiled(lambda x: (x @ x).relu() + 1, cudagraphs=True)
    x = torch.randn(4096, 4096, device="cuda")
    first = f(x)
    for _ in range(2):
        f(x)
    torch.testing.assert_close(f(x), first)


def bad_kernel() -> None:
    """A Triton kernel that does not compile."""
    import triton
    import triton.language as tl

    path = "/tmp/inrush_bad_kernel.py"
    with open(path, "w") as out:
        out.write(
            "import triton\nimport triton.language as tl\n\n@triton.jit\ndef bad_kernel(x, n, BLOCK: tl.constexpr):\n"
            "    at = tl.arange(0, BLOCK)\n    tl.store(x + at, tl.no_such_function(at), mask=at < n)\n"
        )
    sys.path.insert(0, "/tmp")
    from inrush_bad_kernel import bad_kernel as kernel

    assert triton and tl

    def f(x):
        y = x * 2
        kernel[(1,)](y, y.numel(), BLOCK=64)
        return y

    x = torch.randn(64, device="cuda")
    print(told(lambda: compiled(f, strict=True)(x), "bad_kernel", "no_such_function", "inrush_bad_kernel.py")[:600])
    torch._dynamo.reset()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        told(lambda: compiled(f)(x), "no_such_function")
    assert any("bad_kernel" in str(w.message) for w in caught), caught
    works()


def no_triton() -> None:
    """Triton is not installed: a warning that says so, and eager's results."""
    import importlib.metadata

    version = importlib.metadata.version

    def without(name: str) -> str:
        if name == "triton":
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    importlib.metadata.version = without
    x = torch.randn(100, device="cuda")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.testing.assert_close(compiled(lambda x: x.sin() * 2)(x), x.sin() * 2)
    assert any("triton" in str(w.message) for w in caught), [str(w.message) for w in caught]
    print(caught[0].message)


def unsupported_gpu() -> None:
    """A GPU that Triton does not build for."""
    import types

    real = torch.cuda.get_device_properties(0)
    old = types.SimpleNamespace(**{k: getattr(real, k) for k in dir(real) if not k.startswith("_")})
    old.major, old.minor = 6, 1
    torch.cuda.get_device_properties = lambda index=None: old
    x = torch.randn(100, device="cuda")
    print(told(lambda: compiled(lambda x: x.sin() * 2, strict=True)(x), "6.1", "7.0"))
    torch._dynamo.reset()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.testing.assert_close(compiled(lambda x: x.sin() * 2)(x), x.sin() * 2)
    assert any("6.1" in str(w.message) for w in caught)


CASES = [index, memory_of_a_graph, bad_kernel, no_triton, unsupported_gpu, memory]


def main() -> int:
    if len(sys.argv) > 1:
        {c.__name__: c for c in CASES}[sys.argv[1]]()
        return 0
    run = lambda c: subprocess.Popen([sys.executable, __file__, c.__name__], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)  # noqa: E731
    # What fills the device is alone there.
    groups = [[c for c in CASES if c is not memory], [memory]]
    failed = 0
    for group in groups:
        for case, process in [(c, run(c)) for c in group]:
            try:
                out, err = process.communicate(timeout=120)
            except subprocess.TimeoutExpired:
                process.kill()
                out, err = process.communicate()
            good = process.returncode == 0
            if case is index:
                # What the device writes names the operator and the line.
                good = good and "gpu_errors.py" in err
            failed += not good
            print(f"errors {case.__name__:20} {'right' if good else 'WRONG'}: {' | '.join(out.split(chr(10)))[:700]}", flush=True)
            if not good:
                print(err[-1500:], flush=True)
            elif case is index:
                print("       the device wrote:", next((line for line in err.splitlines() if "ssert" in line), "")[:300], flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
