"""Triton kernels as users write them, and functions that launch them: for tests without a GPU and with one."""

import torch
import triton
import triton.language as tl
from torch.nn import functional as F
from torch.library import triton_op, wrap_triton

FACTOR = tl.constexpr(3)


@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)


@triton.jit
def twice(value):
    return value * 2


@triton.jit
def scale_kernel(x, n, by, BLOCK: tl.constexpr):
    """Changes its argument."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(x + at, twice(tl.load(x + at, mask=at < n)) * by * FACTOR, mask=at < n)


@triton.jit
def rows_kernel(x, out, bias, rows, columns, KIND: tl.constexpr, TO: tl.constexpr, SHAPE: tl.constexpr, negate):
    row, column = tl.program_id(0), tl.program_id(1) * SHAPE[1] + tl.arange(0, SHAPE[1])
    value = tl.load(x + row * columns + column, mask=column < columns)
    if bias is not None:
        value += tl.load(bias + column, mask=column < columns)
    if KIND == "square":
        value = value * value
    if negate:
        value = -value
    tl.store(out + row * columns + column, value.to(TO), mask=column < columns)


@triton.autotune(configs=[triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 64}, num_warps=2)], key=["n"])
@triton.jit
def tuned_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * 3, mask=at < n)


@triton.autotune(configs=[triton.Config({}, num_warps=2)], key=["n"])
@triton.heuristics({"BLOCK": lambda args: 32})
@triton.jit
def heuristic_kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * 5, mask=at < n)


@triton.heuristics({"BLOCK": lambda args: 16 if args["n"] < 1000 else 64, "EVEN": lambda args: args["n"] % 16 == 0})
@triton.jit
def lone_heuristic_kernel(x, out, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at) if EVEN and BLOCK == 16 else tl.load(x + at, mask=at < n)
    tl.store(out + at, value * 7, mask=at < n)


@triton.heuristics({"BLOCK": lambda args: 32, "num_warps": lambda args: 8, "num_stages": lambda args: 2})
@triton.jit
def heuristic_warps_kernel(x, out, n, BLOCK: tl.constexpr, num_warps: tl.constexpr, num_stages: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * num_warps + num_stages, mask=at < n)


@triton.autotune(configs=[triton.Config({"BLOCK": 32}, num_warps=2, num_stages=1)], key=["n"])
@triton.heuristics({"num_warps": lambda args: 8})
@triton.jit
def tuned_heuristic_warps_kernel(x, out, n, BLOCK: tl.constexpr, num_warps: tl.constexpr, num_ctas: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * num_warps + num_ctas, mask=at < n)


@triton.autotune(configs=[triton.Config({"BLOCK": 32}, num_warps=2, num_stages=5)], key=["n"])
@triton.jit
def tuned_warps_kernel(x, out, n, BLOCK: tl.constexpr, num_warps: tl.constexpr, num_stages: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * num_warps + num_stages, mask=at < n)


@triton.jit
def device_descriptor_kernel(x, out, rows, columns, BLOCK: tl.constexpr):
    """Descriptors that the kernel makes, in scratch memory."""
    source = tl.make_tensor_descriptor(x, shape=[rows, columns], strides=[columns, 1], block_shape=[BLOCK, BLOCK])
    target = tl.make_tensor_descriptor(out, shape=[rows, columns], strides=[columns, 1], block_shape=[BLOCK, BLOCK])
    y, x0 = tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK
    target.store([y, x0], source.load([y, x0]) * 2)


@triton.jit
def host_descriptor_kernel(source, target, BLOCK: tl.constexpr):
    """Descriptors that the host makes."""
    y, x = tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK
    target.store([y, x], source.load([y, x]) * 4)


@triton.autotune(configs=[triton.Config({}, num_warps=2), triton.Config({}, num_warps=4)], key=[])
@triton.jit
def tuned_descriptor_kernel(source, target, BLOCK: tl.constexpr):
    y, x = tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK
    target.store([y, x], source.load([y, x]) * 4)


@triton.jit
def mixed_descriptor_kernel(bias, by, source, negate, target, n, BLOCK: tl.constexpr):
    """Descriptors between arguments of other kinds."""
    y, x = tl.program_id(0) * BLOCK, tl.program_id(1) * BLOCK
    value = source.load([y, x]) * by + tl.load(bias)
    target.store([y, x], tl.where(negate, -value, value) + n)


@triton.jit
def deep_descriptor_kernel(source, target, DEEP: tl.constexpr, HIGH: tl.constexpr, WIDE: tl.constexpr):
    at = [tl.program_id(0) * DEEP, tl.program_id(1) * HIGH, tl.program_id(2) * WIDE]
    target.store(at, source.load(at) + 1)


@triton.jit
def line_descriptor_kernel(source, BLOCK: tl.constexpr):
    """Changes its argument."""
    at = [tl.program_id(0) * BLOCK]
    source.store(at, source.load(at) * 2)


def blocks(n):
    return lambda meta: (triton.cdiv(n, meta["BLOCK"]),)


def add(x, y, out=None, grid=None):
    out = torch.empty_like(x) if out is None else out
    add_kernel[grid or blocks(x.numel())](x, y, out, x.numel(), BLOCK=32)
    return out


def by_tuple(x, y):
    return add(x, y, grid=(triton.cdiv(x.numel(), 32),))


def by_lambda(x, y):
    return add(x, y)


def between_others(x, y):
    return add(torch.relu(x) * 2, y + 1).sin() + x


def warps(x, y):
    out = torch.empty_like(x)
    add_kernel[blocks(x.numel())](x, y, out, x.numel(), BLOCK=32, num_warps=8)
    return out


def writes_argument(x, y):
    scale_kernel[blocks(x.numel())](x, x.numel(), 0.5, BLOCK=32)
    return y + x


def in_order(x, y):
    out = torch.zeros_like(x)
    add(x, out, out)
    scale_kernel[blocks(x.numel())](out, x.numel(), 2.0, BLOCK=32)
    first = out + 1
    add(out, y, out)
    scale_kernel[blocks(x.numel())](out, x.numel(), 1.0, BLOCK=32)
    return first, out


def twice_read(x, y):
    """What a kernel overwrites is needed after it."""
    before = x * 2
    after = before.clone()
    scale_kernel[blocks(x.numel())](after, x.numel(), 1.0, BLOCK=32)
    return before - y, after, before.sum()


def part(x, y):
    """A view that begins in the middle."""
    out = torch.zeros_like(x)
    add(x.view(-1)[3:], y.view(-1)[3:], out.view(-1)[3:])
    return out


def rows(x, y):
    out = torch.empty(x.shape, dtype=torch.float64, device=x.device)
    more = torch.empty_like(x)
    grid = (x.shape[0], triton.cdiv(x.shape[1], 16))
    rows_kernel[grid](x, out, None, x.shape[0], x.shape[1], "square", tl.float64, (1, 16), True)
    rows_kernel[grid](x, more, y[0], 1, x.shape[1], KIND="none", TO=tl.float32, SHAPE=(1, 16), negate=False)
    return out, more


def tuned(x, y):
    out = torch.empty_like(x)
    tuned_kernel[blocks(x.numel())](x, out, x.numel())
    return out + y


def heuristic(x, y):
    out = torch.empty_like(x)
    heuristic_kernel[blocks(x.numel())](x, out, x.numel())
    return out + y


def lone_heuristic(x, y):
    out = torch.empty_like(x)
    lone_heuristic_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, out, x.numel())
    return out + y


def heuristic_warps(x, y):
    out = torch.empty_like(x)
    heuristic_warps_kernel[blocks(x.numel())](x, out, x.numel())
    return out + y


def tuned_heuristic_warps(x, y):
    out = torch.empty_like(x)
    tuned_heuristic_warps_kernel[blocks(x.numel())](x, out, x.numel())
    return out + y


def tuned_warps(x, y):
    out = torch.empty_like(x)
    tuned_warps_kernel[blocks(x.numel())](x, out, x.numel())
    return out + y


def padded(x):
    return F.pad(x, (0, -x.shape[1] % 4)).contiguous()


def device_descriptor(x, y):
    x = padded(x)
    out = torch.empty_like(x)
    grid = (triton.cdiv(x.shape[0], 16), triton.cdiv(x.shape[1], 16))
    device_descriptor_kernel[grid](x, out, x.shape[0], x.shape[1], BLOCK=16)
    return out[:, : y.shape[1]] + y


def host_descriptor(x, y):
    x = padded(x)
    out = torch.empty_like(x)
    host_descriptor_kernel[grid_of(x, 16, 16)](*tiles(x, out), BLOCK=16)
    return out[:, : y.shape[1]] + y


def tiles(*tensors, block=(16, 16)):
    from triton.tools.tensor_descriptor import TensorDescriptor

    return [TensorDescriptor.from_tensor(t, list(block)) for t in tensors]


def grid_of(x, *block):
    return tuple(triton.cdiv(n, b) for n, b in zip(x.shape, block))


def tuned_descriptor(x, y):
    x = padded(x)
    out = torch.empty_like(x)
    tuned_descriptor_kernel[grid_of(x, 16, 16)](*tiles(x, out), BLOCK=16)
    return out[:, : y.shape[1]] + y


def mixed_descriptors(x, y):
    """Two launches read one tensor by equal descriptors."""
    wide = padded(x) + 1
    out, more = torch.empty_like(wide), torch.empty_like(wide)
    (source, first), (again, second) = tiles(wide, out), tiles(wide, more)
    mixed_descriptor_kernel[grid_of(wide, 16, 16)](y, 0.5, source, True, first, x.shape[0], BLOCK=16)
    mixed_descriptor_kernel[grid_of(wide, 16, 16)](y, 2.0, again, False, second, 7, BLOCK=16)
    return out[:, : y.shape[1]] * 2, more[:, : y.shape[1]] - y


def deep_descriptors(x, y):
    """Three dimensions in another order than memory's, in halves."""
    wide = F.pad(x, (0, -x.shape[1] % 8)).half()
    source = torch.stack([wide, wide + 1]).transpose(0, 1)
    target = torch.empty_like(source)
    deep_descriptor_kernel[grid_of(source, 4, 2, 16)](*tiles(source, target, block=(4, 2, 16)), DEEP=4, HIGH=2, WIDE=16)
    return target.float()[:, :, : y.shape[1]]


def descriptor_of_part(x, y):
    """Changes a part of an argument that begins in its middle, at a multiple of 16 bytes."""
    part = x.view(-1)[4:52]
    line_descriptor_kernel[(3,)](*tiles(part, block=(16,)), BLOCK=16)
    return x + y


def broken_descriptor(x, y):
    """Rows begin at multiples of 8 bytes: no device takes such a descriptor, nor does `TensorDescriptor`."""
    out = torch.empty_like(x)
    host_descriptor_kernel[grid_of(x, 16, 16)](*tiles(x, out), BLOCK=16)
    return out + y


def doubled_part(x, y):
    x.view(-1)[4:52].mul_(2)
    return x + y


@triton_op("inrush_tests::add", mutates_args={})
def add_operator(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    wrap_triton(add_kernel)[(triton.cdiv(x.numel(), 32),)](x, y, out, x.numel(), BLOCK=32)
    return out


def operator(x, y):
    return add_operator(x, y) * 2


CASES = {
    by_tuple: lambda x, y: x + y,
    by_lambda: lambda x, y: x + y,
    between_others: lambda x, y: (torch.relu(x) * 2 + y + 1).sin() + x,
    warps: lambda x, y: x + y,
    writes_argument: lambda x, y: y + x.mul_(3),
    in_order: lambda x, y: (x * 12 + 1, (x * 12 + y) * 6),
    twice_read: lambda x, y: (x * 2 - y, x * 12, (x * 2).sum()),
    part: lambda x, y: torch.cat([torch.zeros(3, device=x.device), (x + y).view(-1)[3:]]).view_as(x),
    rows: lambda x, y: (-(x * x).double(), x + y[0]),
    tuned: lambda x, y: x * 3 + y,
    heuristic: lambda x, y: x * 5 + y,
    operator: lambda x, y: (x + y) * 2,
    lone_heuristic: lambda x, y: x * 7 + y,
    heuristic_warps: lambda x, y: x * 8 + 2 + y,
    tuned_heuristic_warps: lambda x, y: x * 8 + 1 + y,
    tuned_warps: lambda x, y: x * 2 + 5 + y,
    device_descriptor: lambda x, y: x * 2 + y,
    host_descriptor: lambda x, y: x * 4 + y,
    tuned_descriptor: lambda x, y: x * 4 + y,
    mixed_descriptors: lambda x, y: ((-((x + 1) * 0.5 + y[0, 0]) + x.shape[0]) * 2, (x + 1) * 2 + y[0, 0] + 7 - y),
    deep_descriptors: lambda x, y: torch.stack([x.half() + 1, x.half() + 1 + 1]).transpose(0, 1).float(),
    descriptor_of_part: doubled_part,
}
