"""Several devices in one process and several processes: compiled functions beside eager ones.

usage: gpu_several.py [--device cpu] [NAME ...]

Each case runs in a process of its own; without names all of them run and a table is printed. On a machine with two GPUs all of
them are about these, `threads` needs one only; with ``--device cpu`` those of several processes run there, over PyTorch's gloo. Exit code 1 when one
fails.
"""

from __future__ import annotations

import argparse
import copy
import os
import subprocess
import sys
import tempfile
import threading
from typing import Any, Callable

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

import installed  # noqa: F401

RANKS = 2
CUDA = True


def compiled(f: Any, **options: Any) -> Any:
    return torch.compile(f, backend="inrush", options={"strict": True, **options})


class Net(torch.nn.Module):
    """Blocks with a norm, products and a residual."""

    def __init__(self, width: int = 64, depth: int = 4) -> None:
        super().__init__()
        block = lambda: torch.nn.Sequential(  # noqa: E731
            torch.nn.LayerNorm(width), torch.nn.Linear(width, 2 * width), torch.nn.GELU(), torch.nn.Linear(2 * width, width)
        )
        self.blocks = torch.nn.ModuleList(block() for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for b in self.blocks:
            x = x + b(x)
        return x


def close(got: Any, wanted: Any) -> None:
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def second_device() -> None:
    """All on a device that is not the current one, training too."""
    net = Net().to("cuda:1")
    x = torch.randn(8, 64, device="cuda:1")
    y = compiled(net)(x)
    assert y.device == x.device and torch.cuda.current_device() == 0
    close(y, net(x))
    y.square().mean().backward()
    grads = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    net(x).square().mean().backward()
    close(grads, [p.grad for p in net.parameters()])


def each_device() -> None:
    """One function, called on one device and then the other, and back."""
    f = compiled(lambda x, w: torch.softmax(x @ w, -1) * 2)
    for device in ("cuda:0", "cuda:1", "cuda:0", "cuda:1"):
        x, w = torch.randn(16, 32, device=device), torch.randn(32, 48, device=device)
        y = f(x, w)
        assert y.device == x.device
        close(y, torch.softmax(x @ w, -1) * 2)


def between_devices() -> None:
    """A graph that moves values from device to device, and to the host."""

    def f(x: torch.Tensor, y: torch.Tensor) -> Any:
        a = (x * 2).sin()
        b = a.to("cuda:1") + y
        return b.relu(), (b * 3).to("cuda:0") + a, b.sum().cpu()

    x, y = torch.randn(33, 7, device="cuda:0"), torch.randn(33, 7, device="cuda:1")
    got = torch.compile(f, backend="inrush")(x, y)
    wanted = f(x, y)
    assert [g.device for g in got] == [w.device for w in wanted]
    close(got, wanted)


def graphs_on_each() -> None:
    """CUDA graphs on both devices."""
    for device in ("cuda:1", "cuda:0"):
        net = Net().to(device).eval()
        f = compiled(net, cudagraphs=True)
        with torch.no_grad():
            for _ in range(5):
                x = torch.randn(8, 64, device=device)
                close(f(x), net(x))


def threads() -> None:
    """Two threads, each with a model on a device of its own, where there are two, and a stream of its own."""
    failures: list[BaseException] = []

    def work(device: str) -> None:
        try:
            torch.cuda.set_device(device)
            net = Net().to(device).eval()
            f = compiled(net)
            stream = torch.cuda.Stream(device)
            with torch.no_grad(), torch.cuda.stream(stream):
                for n in (8, 8, 9, 8, 9, 17):
                    x = torch.randn(n, 64, device=device)
                    close(f(x), net(x))
            stream.synchronize()
        except BaseException as error:
            failures.append(error)

    # PyTorch looks names of backends up without a lock, and may register one twice.
    torch._dynamo.lookup_backend("inrush")
    both = [threading.Thread(target=work, args=(f"cuda:{i % torch.cuda.device_count()}",)) for i in range(2)]
    [t.start() for t in both]
    [t.join() for t in both]
    if failures:
        raise failures[0]


def rank_device(rank: int) -> torch.device:
    if CUDA:
        torch.cuda.set_device(rank)
        return torch.device("cuda", rank)
    torch.set_num_threads(1)
    return torch.device("cpu")


def steps(net: Any, x: torch.Tensor, module: torch.nn.Module) -> list[torch.Tensor]:
    """Three steps of training; the parameters after them."""
    optimiser = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
    for k in range(3):
        net(x + k).square().mean().backward()
        optimiser.step()
        optimiser.zero_grad()
    return [p.detach() for p in module.parameters()]


def data_parallel(rank: int, bucket: int, width: int) -> None:
    """DistributedDataParallel around the compiled module, whose buckets (in MiB) cut the graph."""
    device = rank_device(rank)
    torch.manual_seed(0)
    plain = Net(width).to(device)
    ours = copy.deepcopy(plain)
    ids = [rank] if CUDA else None
    wrap = lambda m: torch.nn.parallel.DistributedDataParallel(m, device_ids=ids, bucket_cap_mb=bucket)  # noqa: E731
    torch.manual_seed(rank + 1)
    x = torch.randn(8, width, device=device)
    close(steps(compiled(wrap(ours)), x, ours), steps(wrap(plain), x, plain))


def one_bucket(rank: int) -> None:
    data_parallel(rank, bucket=25, width=64)


def several_buckets(rank: int) -> None:
    data_parallel(rank, bucket=1, width=256)


def sharded(rank: int) -> None:
    """Parameters sharded over the processes (`fully_shard`)."""
    from torch.distributed.fsdp import fully_shard

    device = rank_device(rank)
    torch.manual_seed(0)
    plain = Net().to(device)
    ours = copy.deepcopy(plain)
    for net in (plain, ours):
        for b in net.blocks:
            fully_shard(b)
        fully_shard(net)
    torch.manual_seed(rank + 1)
    x = torch.randn(8, 64, device=device)
    f = torch.compile(ours, backend="inrush")
    full = lambda all: [p.full_tensor() for p in all]  # noqa: E731
    close(full(steps(f, x, ours)), full(steps(plain, x, plain)))


def collectives(rank: int) -> None:
    """Functional collectives inside a compiled function, with fused work around them."""
    import torch.distributed._functional_collectives as functional

    device = rank_device(rank)
    group = dist.group.WORLD

    def f(x: torch.Tensor) -> Any:
        a = functional.all_reduce(x.sin() * 2, "sum", group)
        b = functional.all_gather_tensor(a + x, 0, group)
        c = functional.reduce_scatter_tensor(b.relu(), "sum", 0, group)
        return a - 1, b * 2, c + 1

    torch.manual_seed(rank)
    x = torch.randn(6, 10, device=device)
    close([*compiled(f)(x)], [*f(x)])


def tensor_parallel(rank: int) -> None:
    """Linear layers split over the processes (DTensor)."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    device = rank_device(rank)
    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 32)).to(device)
    x = torch.randn(8, 32, device=device)
    wanted = net(x)
    mesh = init_device_mesh(device.type, (RANKS,))
    net = parallelize_module(net, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
    close(torch.compile(net, backend="inrush")(x), wanted)


ONE_PROCESS: list[Callable[[], None]] = [second_device, each_device, between_devices, graphs_on_each, threads]
PROCESSES: list[Callable[[int], None]] = [one_bucket, several_buckets, collectives, sharded, tensor_parallel]


def rank_main(rank: int, name: str, store: str, cuda: bool) -> None:
    global CUDA
    CUDA = cuda
    where: dict[str, Any] = {"device_id": torch.device("cuda", rank)} if cuda else {}
    dist.init_process_group("nccl" if cuda else "gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS, **where)
    try:
        next(f for f in PROCESSES if f.__name__ == name)(rank)
    finally:
        dist.destroy_process_group()


def one(name: str) -> None:
    alone = [f for f in ONE_PROCESS if f.__name__ == name]
    if alone:
        return alone[0]()
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(rank_main, (name, os.path.join(folder, "store"), CUDA), nprocs=RANKS)


def main() -> int:
    global CUDA
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--one", action="store_true", help="the named case, in this process")
    args = parser.parse_args()
    CUDA = args.device == "cuda"
    if args.one:
        one(args.names[0])
        return 0
    cases = [f.__name__ for f in ([*ONE_PROCESS, *PROCESSES] if CUDA else PROCESSES)]
    unknown = [n for n in args.names if n not in cases]
    if unknown:
        parser.error(f"no case {', '.join(unknown)}; there are {', '.join(cases)}")
    failed = 0
    for name in args.names or cases:
        command = [sys.executable, __file__, "--one", "--device", args.device, name]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=300)
            problem = done.stderr.strip()[-2000:] if done.returncode else ""
        except subprocess.TimeoutExpired:
            problem = "it did not end"
        failed += bool(problem)
        print(f"{name:16} {'wrong: ' + problem if problem else 'right'}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
