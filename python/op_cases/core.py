"""What a case is, and how it becomes an archive with inputs and expected outputs.

A *group* is many small functions of tensors in one archive, one or more outputs each, named: few archives, and a wrong
output still names its operator. A *model* is one module with its own inputs, for what needs a whole program: state,
call trees, symbolic sizes. Both are written by `write_case`.
"""

import copy
import dataclasses
import os
import zlib

import torch
from safetensors.torch import save_file
from torch.utils import _pytree as pytree

# How far a result may be from PyTorch's (or from the float64 reference): relative and absolute for elementwise functions,
# relative to the output's norm for sums of products. A half type may be one unit in the last place off.
CLOSE = {
    torch.float64: (1e-12, 1e-13),
    torch.float32: (4e-6, 2e-7),
    torch.float16: (2e-3, 1e-4),
    torch.bfloat16: (1.6e-2, 1e-5),
}
NORM = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
EXACT = {"kind": "exact"}


def dtype_name(dtype):
    return str(dtype).removeprefix("torch.")


def tolerance(kind, dtype):
    """`kind` is a word of the suite, or a finished tolerance."""
    if isinstance(kind, dict):
        return kind
    if kind == "exact" or not dtype.is_floating_point:
        return EXACT
    if kind == "norm":
        return {"kind": "norm", "max": NORM[dtype]}
    rtol, atol = CLOSE[dtype]
    return {"kind": "close", "rtol": rtol, "atol": atol}


@dataclasses.dataclass
class Sub:
    name: str
    fn: object
    args: tuple
    tol: object


@dataclasses.dataclass
class Case:
    name: str
    module: object
    args: tuple
    family: str
    tags: list
    kwargs: dict = dataclasses.field(default_factory=dict)
    dynamic: object = None
    # Further positional arguments to run on; `args` is the first run. With `stateful` they happen in order on one model.
    runs: list = dataclasses.field(default_factory=list)
    # Each is (why, args): inputs that must be refused.
    reject: list = dataclasses.field(default_factory=list)
    stateful: bool = False
    decompose: bool = False
    # One tolerance kind for all outputs, or one for each sub-case (with the names) in a group.
    tol: object = "close"
    labels: list = None


class Group(torch.nn.Module):
    """Runs each sub-case on its share of the inputs; tensors that sub-cases have in common are one input."""

    def __init__(self, subs):
        super().__init__()
        self.fns, self.picks, self.inputs = [], [], []
        seen = {}
        for sub in subs:
            pick = []
            for tensor in sub.args:
                if id(tensor) not in seen:
                    seen[id(tensor)] = len(self.inputs)
                    self.inputs.append(tensor)
                pick.append(seen[id(tensor)])
            self.fns.append(sub.fn)
            self.picks.append(pick)

    def forward(self, *inputs):
        results = (fn(*(inputs[i] for i in pick)) for fn, pick in zip(self.fns, self.picks))
        return tuple(leaf for result in results for leaf in pytree.tree_leaves(result))


class Suite:
    """Collects cases; `group` and `model` are what the family files call."""

    def __init__(self):
        self.cases, self.family = [], None

    def group(self, name, *tags, tol="close"):
        """A builder: `add(name, fn, *tensors)` for each sub-case, `with` closes it."""
        return Builder(self, name, list(tags), tol)

    def model(self, name, module, args, *tags, **options):
        self.cases.append(Case(name, module, tuple(args), self.family, list(tags), **options))


class Builder:
    def __init__(self, suite, name, tags, tol):
        self.suite, self.name, self.tags, self.tol, self.subs = suite, name, tags, tol, []

    def add(self, name, fn, *args, tol=None):
        self.subs.append(Sub(name, fn, args, tol or self.tol))

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is None:
            self.suite.cases.append(as_case(self.name, self.suite.family, self.tags, self.subs))


def as_case(name, family, tags, subs):
    module = Group(subs)
    labels = []
    for sub in subs:
        try:
            leaves = pytree.tree_leaves(sub.fn(*map(clone_strided, sub.args)))
        except Exception as error:
            raise RuntimeError(f"case {family}/{name}, sub-case {sub.name}") from error
        labels += [(sub.name if len(leaves) == 1 else f"{sub.name}.{i}", sub.tol) for i in range(len(leaves))]
    case = Case(name, module, tuple(module.inputs), family, tags, labels=labels)
    case.subs = subs
    return case


def split(case):
    """The same sub-cases, an archive each: to see which one breaks a whole group."""
    subs = getattr(case, "subs", None)
    return [as_case(f"{case.name}.{sub.name}", case.family, case.tags, [sub]) for sub in subs] if subs else [case]


def generator(name):
    """A random generator that depends on the name alone, so that adding cases changes no other."""
    return torch.Generator().manual_seed(zlib.crc32(name.encode()))


def clone_strided(tensor):
    """A copy with the same sizes and strides, overlapping ones (`expand`) too."""
    if not isinstance(tensor, torch.Tensor):
        return tensor
    extent = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride())) if tensor.numel() else 0
    flat = torch.empty(extent, dtype=tensor.dtype)
    flat.copy_(torch.as_strided(tensor.detach(), (extent,), (1,), tensor.storage_offset()))
    return torch.as_strided(flat, tensor.shape, tensor.stride())


def upcast(tree):
    def one(leaf):
        return leaf.double() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf

    return pytree.tree_map(one, tree)


def tensors(tree, key="{}"):
    """Flat leaves that are tensors, by position; positions of other leaves stay empty."""
    return {key.format(i): leaf for i, leaf in enumerate(pytree.tree_leaves(tree, lambda x: x is None)) if isinstance(leaf, torch.Tensor)}


def stored(named):
    """safetensors holds contiguous tensors that share nothing."""
    return {key: value.detach().clone(memory_format=torch.contiguous_format) for key, value in named.items()}


def describe(leaf):
    if isinstance(leaf, torch.Tensor):
        return {"kind": "tensor", "dtype": dtype_name(leaf.dtype), "sizes": list(leaf.shape), "strides": list(leaf.stride())}
    if leaf is None:
        return {"kind": "none"}
    return {"kind": type(leaf).__name__, "value": leaf}


def leaves_of(tree):
    return pytree.tree_leaves(tree, lambda x: x is None)


def reference(module, args, kwargs, result):
    """float64 results where the computation can be carried out in float64 and PyTorch's own were rounded."""
    try:
        with torch.no_grad():
            exact = leaves_of(copy.deepcopy(module).double()(*upcast(args), **upcast(kwargs)))
    except Exception:  # an operator that refuses float64 here, or mixes it with a constant: no reference for this case
        return {}
    pairs = enumerate(zip(leaves_of(result), exact))
    return {
        f"ref{i}": b
        for i, (a, b) in pairs
        if isinstance(a, torch.Tensor) and a.is_floating_point() and a.dtype != torch.float64 and b.dtype == torch.float64
    }


def relative_traces(program):
    """Keeps the source lines that error messages show, without the directories of this machine."""
    roots = [os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))), os.path.dirname(os.path.dirname(torch.__file__))]
    for node in program.graph.nodes:
        for root in roots:
            if node.meta.get("stack_trace"):
                node.meta["stack_trace"] = node.meta["stack_trace"].replace(root + os.sep, "")
    return program


def write_case(case, out):
    """Writes the archive and its runs; gives the case's entry of index.json."""
    path = os.path.join(out, case.name)
    samples = pytree.tree_map(clone_strided, (case.args, case.kwargs))
    exported = copy.deepcopy(case.module)
    with torch.no_grad():
        program = torch.export.export(exported, *samples, dynamic_shapes=case.dynamic)
        if case.decompose:
            program = program.run_decompositions({})
    torch.export.save(relative_traces(program), path + ".pt2")

    runs = [(args, case.kwargs) for args in [case.args, *case.runs]]
    entry = {"name": case.name, "family": case.family, "tags": case.tags, "archive": case.name + ".pt2"}
    entry["ops"] = sorted({str(node.target) for node in program.graph.nodes if node.op == "call_function" and "getitem" not in str(node.target)})
    entry["inputs"] = [describe(leaf) for leaf in leaves_of((case.args, case.kwargs))]
    entry["stateful"] = case.stateful
    entry["runs"] = []
    live = copy.deepcopy(case.module)
    for k, (args, kwargs) in enumerate(runs):
        live = live if case.stateful else copy.deepcopy(case.module)
        args, kwargs = pytree.tree_map(clone_strided, (args, kwargs))
        before = stored(tensors((args, kwargs)))
        twin = copy.deepcopy(live)
        with torch.no_grad():
            result = live(*args, **kwargs)
        expect = stored(tensors(result))
        after = tensors((args, kwargs))
        expect |= stored({f"input{i}": t for i, t in after.items() if not torch.equal(t.nan_to_num(), before[i].nan_to_num())})
        expect |= stored({f"buffer:{n}": b for n, b in live.named_buffers() if not torch.equal(b, dict(twin.named_buffers())[n])})
        outputs = leaves_of(result)
        kinds = case.labels or [(str(i), case.tol) for i in range(len(outputs))]
        if any(tolerance(kind, leaf.dtype) != EXACT for (_, kind), leaf in zip(kinds, outputs) if isinstance(leaf, torch.Tensor)):
            clean = pytree.tree_unflatten(
                [before.get(str(i), leaf) for i, leaf in enumerate(leaves_of((args, kwargs)))],
                pytree.tree_structure((args, kwargs), lambda x: x is None),
            )
            expect |= stored(reference(twin, *clean, result))
        tag = "" if len(runs) == 1 else f".r{k}"
        save_file(before, f"{path}{tag}.inputs.safetensors")
        save_file(expect, f"{path}{tag}.expect.safetensors")
        run = {"inputs": f"{case.name}{tag}.inputs.safetensors", "expect": f"{case.name}{tag}.expect.safetensors"}
        scalars = {str(i): leaf for i, leaf in enumerate(leaves_of((args, kwargs))) if not isinstance(leaf, torch.Tensor)}
        if scalars:
            run["scalars"] = scalars
        run["outputs"] = [
            {"name": name, **describe(leaf), **({"tol": tolerance(kind, leaf.dtype)} if isinstance(leaf, torch.Tensor) else {})}
            for (name, kind), leaf in zip(kinds, outputs)
        ]
        entry["runs"].append(run)
    entry["reject"] = []
    for k, (why, args) in enumerate(case.reject):
        save_file(stored(tensors((args, {}))), f"{path}.bad{k}.inputs.safetensors")
        entry["reject"].append({"inputs": f"{case.name}.bad{k}.inputs.safetensors", "why": why})
    return entry
