"""PyTorch's own operator samples (op_db), compiled and compared with eager.

usage: op_db.py [--shard I/N] [--samples K] [--seconds S] [--json FILE] [NAME ...]

For each operator the first K samples (float32, forward) are compiled as one function; where that fails, one by one. Prints
a line for each operator: what was lowered, what was called, what failed. Exit code 1 when anything failed. With --seconds
no new operator is begun after that time, and what was left out is counted.
"""

from __future__ import annotations

import argparse
import copy
import json
import sys
import time
import warnings
from dataclasses import dataclass, field

import torch

import inrush

# Results are random or uninitialised memory: only their shapes, dtypes and strides can be compared.
UNDEFINED = (
    "bernoulli",
    "cauchy",
    "dropout",
    "empty",
    "exponential",
    "fractional_max_pool",
    "geometric",
    "log_normal",
    "multinomial",
    "new_empty",
    "normal",
    "pca_lowrank",
    "rand",
    "rrelu",
    "svd_lowrank",
    "uniform",
    "scaled_dot_product_attention",
    "multi_head_attention",
)


@dataclass
class Result:
    name: str
    samples: int = 0
    kernels: int = 0
    called: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)

    @property
    def lowered(self) -> bool:
        return not self.called and not self.failed

    def __str__(self) -> str:
        state = "FAILED" if self.failed else "called" if self.called else "lowered"
        lines = [f"{state:8}{self.name}: {self.samples} samples, {self.kernels} kernels" + "".join(f", {c}" for c in self.called)]
        return "\n".join(lines + [f"        {f}" for f in self.failed])


def operators():
    """Operators with float32 samples, by name and variant."""
    from torch.testing._internal.common_methods_invocations import op_db

    out = {}
    for op in op_db:
        if op.supports_dtype(torch.float32, "cpu"):
            name = op.name + (f".{op.variant_test_name}" if op.variant_test_name else "")
            out[name] = op
    return dict(sorted(out.items()))


def samples(op, count: int):
    """The first samples that eager accepts, with what it gives."""
    out = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for sample in op.sample_inputs("cpu", torch.float32, requires_grad=False):
            call = (sample.input, sample.args, sample.kwargs)
            try:
                out.append((call, run(op, [copy.deepcopy(call)])[0]))
            except Exception:
                continue
            if len(out) == count:
                break
    return out


def run(op, calls):
    return [op(value, *args, **kwargs) for value, args, kwargs in calls]


def plain(value):
    """Named tuples and other containers as tuples: comparing looks at their items."""
    if isinstance(value, (list, tuple)):
        return tuple(plain(v) for v in value)
    if isinstance(value, dict):
        return {k: plain(v) for k, v in value.items()}
    return value


def compare(got, wanted, defined: bool) -> None:
    if isinstance(wanted, (list, tuple)):
        assert len(got) == len(wanted), f"{len(got)} results, eager gives {len(wanted)}"
        for g, w in zip(got, wanted):
            compare(g, w, defined)
    elif isinstance(wanted, torch.Tensor):
        if defined:
            torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4, equal_nan=True)
        else:
            assert (got.shape, got.dtype) == (wanted.shape, wanted.dtype), f"{got.shape} {got.dtype}, eager gives {wanted.shape} {wanted.dtype}"
    elif defined:
        torch.testing.assert_close(got, wanted, equal_nan=True)


def attempt(op, chosen, defined: bool) -> tuple[int, list[str]]:
    """Compiles and compares; gives kernels and called operators."""
    torch._dynamo.reset()
    before = len(inrush.compilations())
    compiled = torch.compile(lambda calls: run(op, calls), backend="inrush", options={"strict": True, "cache": False})
    got = compiled([copy.deepcopy(call) for call, _ in chosen])
    compare(plain(got), plain([wanted for _, wanted in chosen]), defined)
    done = inrush.compilations()[before:]
    called = sorted({f"{c.op} ({c.reason})" for d in done for g in d.all_graphs() for c in g.calls})
    return sum(d.kernels for d in done), called


def check(name: str, op, count: int) -> Result:
    result = Result(name)
    defined = not any(part in name for part in UNDEFINED)
    chosen = samples(op, count)
    result.samples = len(chosen)
    if not chosen:
        return result
    torch.manual_seed(0)
    try:
        result.kernels, result.called = attempt(op, chosen, defined)
        return result
    except Exception as error:
        together = error
    for k, one in enumerate(chosen):
        try:
            kernels, called = attempt(op, [one], defined)
            result.kernels += kernels
            result.called = sorted({*result.called, *called})
        except Exception as error:
            result.failed.append(f"sample {k}: {summary(error)}")
    if not result.failed:
        result.failed.append(f"samples together: {summary(together)}")
    return result


def summary(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(lines)[:300]}"


def shard(names: list[str], text: str) -> list[str]:
    """Every N-th name, from the I-th on: `2/8` is the second of eight shares."""
    at, of = (int(part) for part in text.split("/"))
    if not 1 <= at <= of:
        raise ValueError(f"a shard is I/N with I from 1 to N, not {text}")
    return names[at - 1 :: of]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--shard", default="1/1", help="which share of all operators, `2/8`")
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--json", help="write the results there")
    options = parser.parse_args()
    known = operators()
    names = options.names or shard(list(known), options.shard)
    start, results = time.monotonic(), []
    for name in names:
        if time.monotonic() - start > options.seconds:
            break
        results.append(check(name, known[name], options.samples))
        print(results[-1], flush=True)
    failed = [r for r in results if r.failed]
    lowered = sum(r.lowered for r in results)
    print(
        f"{len(results)} operators: {lowered} lowered, {len(results) - lowered - len(failed)} called at least in part, "
        f"{len(failed)} failed; {len(names) - len(results)} not reached"
    )
    if options.json:
        with open(options.json, "w", encoding="utf-8") as out:
            json.dump([vars(r) for r in results], out, indent=1)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
