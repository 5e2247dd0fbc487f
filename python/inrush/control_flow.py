"""Control-flow operators: their subgraphs are compiled, and a small runner in Python executes the operator.

The native executor calls ``resolver(...)(node)`` for each node that it does not compile, and what this gives at run time
with the arguments of the node.
"""

from __future__ import annotations

from typing import Any, Callable, Sequence

import torch

Runner = Callable[..., Any]
# Compiles a subgraph; None when it has to run eagerly.
CompileSubgraph = Callable[[Any], "Runner | None"]


def resolver(gm: Any, compile_subgraph: CompileSubgraph) -> Callable[[Any], Runner]:
    """Returns what to call for an FX node of ``gm``: a runner for control flow, else the node's own target."""
    compiled: dict[str, Runner] = {}

    def subgraph(node: Any) -> Runner:
        """The subgraph that a ``get_attr`` node stands for, compiled."""
        if node.target not in compiled:
            module = gm
            for part in node.target.split("."):
                module = getattr(module, part)
            compiled[node.target] = Subgraph(module, compile_subgraph(module))
        return compiled[node.target]

    def resolve(node: Any) -> Runner:
        build = _RUNNERS.get(getattr(node.target, "_name", None)) if isinstance(node.target, _HIGHER) else None
        if build is None:
            return node.target
        found = build(node, subgraph)
        return node.target if found is None else found

    return resolve


_HIGHER = torch._ops.HigherOrderOperator


class Subgraph:
    """A compiled subgraph that is given inputs with the strides that it was traced with.

    Dynamo's guards hold for the inputs of whole graphs only: a slice of a scanned tensor, or what a loop's body returns, may
    lie in memory in another way.
    """

    def __init__(self, module: Any, compiled: Runner | None) -> None:
        self.module = module
        self.compiled = compiled
        self.wanted = [_strides(n.meta.get("val")) for n in module.graph.nodes if n.op == "placeholder"]

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        if self.compiled is None:
            out = self.module(*inputs)
        else:
            out = self.compiled(*[conform(x, want) for x, want in zip(inputs, self.wanted, strict=True)])
        return tuple(out) if isinstance(out, (tuple, list)) else (out,)


def _strides(value: Any) -> tuple[int, ...] | str | None:
    """Strides that an input has to have: numbers, ``"contiguous"``, or None where any will do."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided:
        return None
    strides = tuple(value.stride())
    if all(isinstance(n, int) for n in (*strides, *value.shape)):
        return strides
    return "contiguous" if value.is_contiguous() else None


def conform(value: Any, strides: tuple[int, ...] | str | None) -> Any:
    """``value`` with these strides."""
    if strides is None or not isinstance(value, torch.Tensor):
        return value
    if strides == "contiguous":
        return value.contiguous()
    if value.stride() == strides:
        return value
    return torch.empty_strided(value.shape, strides, dtype=value.dtype, device=value.device).copy_(value)


def _truth(value: Any) -> bool:
    return bool(value[0] if isinstance(value, tuple) else value)


def _copy(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _cond(node: Any, subgraph: Callable[[Any], Runner]) -> Runner:
    true, false = subgraph(node.args[1]), subgraph(node.args[2])

    def cond(predicate: Any, _true: Any, _false: Any, operands: Sequence[Any] = ()) -> Any:
        return (true if predicate else false)(*operands)

    return cond


def _while_loop(node: Any, subgraph: Callable[[Any], Runner]) -> Runner:
    test, body = subgraph(node.args[0]), subgraph(node.args[1])

    def while_loop(_test: Any, _body: Any, carried: Sequence[Any], more: Sequence[Any] = ()) -> Any:
        carried, ran = tuple(carried), False
        while _truth(test(*carried, *more)):
            carried, ran = body(*carried, *more), True
        # Results never alias the operands.
        return carried if ran else tuple(map(_copy, carried))

    return while_loop


def _scan(node: Any, subgraph: Callable[[Any], Runner]) -> Runner:
    combine = subgraph(node.args[0])

    def scan(_combine: Any, init: Sequence[Any], xs: Sequence[Any], more: Sequence[Any] = ()) -> Any:
        carry, rows = tuple(init), []
        for k in range(xs[0].shape[0]):
            out = combine(*carry, *(x[k] for x in xs), *more)
            carry, row = out[: len(init)], out[len(init) :]
            rows.append(row)
        columns = (None if column[0] is None else torch.stack(column) for column in zip(*rows))
        return (*carry, *columns)

    return scan


def _map(node: Any, subgraph: Callable[[Any], Runner]) -> Runner:
    function = subgraph(node.args[0])

    def map_impl(_function: Any, xs: Sequence[Any], more: Sequence[Any] = ()) -> Any:
        rows = [function(*(x[k] for x in xs), *more) for k in range(xs[0].shape[0])]
        return tuple(None if column[0] is None else torch.stack(column) for column in zip(*rows))

    return map_impl


def _invoke_subgraph(node: Any, subgraph: Callable[[Any], Runner]) -> Runner:
    function = subgraph(node.args[0])

    def invoke_subgraph(_subgraph: Any, _identifier: Any, *operands: Any) -> Any:
        return function(*operands)

    return invoke_subgraph


# By the operator's name. What is not here (`auto_functionalized`, a scan whose combining function is
# applied to many elements at once) is called as it is.
_RUNNERS: dict[str | None, Callable[[Any, Callable[[Any], Runner]], Runner | None]] = {
    "cond": _cond,
    "while_loop": _while_loop,
    "scan": _scan,
    "map_impl": _map,
    "invoke_subgraph": _invoke_subgraph,
}
