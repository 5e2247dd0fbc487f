"""The table of functions of PyTorch that inrush replaces, and what modules of the package may know of PyTorch's internals."""

import ast
import importlib
import inspect
import os
from pathlib import Path

import pytest
import torch

import inrush
from inrush import patches
from inrush.patches import row, table
from inrush.patches.places import Attribute
from inrush.patches.row import Patch

# They read sources, which takes no time.
pytestmark = pytest.mark.every_case

PACKAGE = Path(inrush.__file__).parent
MODULES = sorted(p for p in PACKAGE.rglob("*.py"))
# Parts of PyTorch that are not meant for others, and where they are used all the same.
PRIVATE = ("torch._dynamo", "torch._functorch", "torch._C", "torch._inductor", "torch._guards", "torch._higher_order_ops", "torch._decomp")
MAY_USE_PRIVATE = ("torch_internals.py", "patches/", "capture/")
RELEASE = ".".join(torch.__version__.split(".")[:2])


def name_of(path):
    return str(path.relative_to(PACKAGE))


def module_of(path):
    parts = ("inrush", *path.relative_to(PACKAGE).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.mark.parametrize("patch", table.patches(), ids=lambda p: p.place.text)
def test_each_place_is_there_as_the_table_says(patch):
    assert patch.why and patch.releases
    assert patch.feature in table.COMPILER_FEATURES + table.CAPTURE_FEATURES
    module, _, function = patch.replacement.partition(":")
    assert len(inspect.signature(getattr(importlib.import_module(module), function)).parameters) == 1
    if RELEASE not in patch.releases.split(", "):
        return
    original = patch.place.read()
    # It may be replaced by now: the replacement tells what it stands for, or takes the same.
    assert row.missing_parameters(original, patch.parameters) == []


def test_no_place_is_in_the_table_twice():
    texts = [p.place.text for p in table.patches()]
    assert len(set(texts)) == len(texts) > 30


def test_gradients_of_the_table_are_those_with_formulas():
    from inrush.autograd.gradients import FORMULAS
    from inrush.patches.places import aten

    products = {aten(p.place.operator) for p in table.patches() if p.replacement == "inrush.patches.operators:product"}
    assert products == set(FORMULAS)


def test_all_features_are_on_and_shown():
    torch.compile(lambda x: x + 1, backend="inrush")(torch.ones(2))
    rows = inrush.torch_patches()
    assert len(rows) == len(table.patches())
    states = {r["feature"]: r["state"] for r in rows}
    assert {f: states[f] for f in table.COMPILER_FEATURES} == dict.fromkeys(table.COMPILER_FEATURES, "on")


class Target:
    """A class that is not as the table would have it."""

    def first(self, given):
        return given

    @staticmethod
    def second(given):
        return given


def replaced(original):
    return lambda *args: ("replaced", original(*args))


def line(path, *parameters, **named):
    return Patch(Attribute(f"{__name__}:Target.{path}"), f"{__name__}:replaced", "a feature", "a test", "all", parameters, **named)


def test_a_feature_is_installed_whole_or_not_at_all(monkeypatch, caplog):
    before = dict(vars(Target))
    monkeypatch.setattr(patches, "_features", {})
    for wrong, why in ((line("second", "other"), "has no parameter other"), (line("third"), "is not there")):
        monkeypatch.setattr(table, "patches", lambda wrong=wrong: (line("first", "given"), wrong))
        patches._features.clear()
        patches.install("a feature")
        assert not patches.is_on("a feature") and why in patches.why_off("a feature")
        assert why in caplog.text and why in str(patches.torch_patches())
        assert dict(vars(Target)) == before
    monkeypatch.setattr(table, "patches", lambda: (line("first", "given"), line("second", "given"), line("third", optional=True)))
    patches._features.clear()
    patches.install("a feature")
    patches.install("a feature")
    try:
        assert patches.is_on("a feature")
        assert Target().second(3) == Target.second(3) == ("replaced", 3)
        assert isinstance(vars(Target)["second"], staticmethod)
        assert Target().first(3) == ("replaced", 3)
    finally:
        for name in ("first", "second"):
            setattr(Target, name, before[name])


def test_a_compile_works_with_every_feature_off(tmp_path):
    """In a process of its own: PyTorch cannot be put back."""
    import subprocess
    import sys

    script = tmp_path / "off.py"
    script.write_text(
        "import torch, inrush\n"
        "from inrush import patches\n"
        "from inrush.patches import table\n"
        "for f in table.COMPILER_FEATURES + table.CAPTURE_FEATURES: patches._features[f] = 'not in this test'\n"
        "f = lambda x: (x * 2).relu().sum(-1)\n"
        "x = torch.randn(3, 4, requires_grad=True)\n"
        "out = torch.compile(f, backend=inrush.backend)(x)\n"
        "out.sum().backward()\n"
        "torch.testing.assert_close(out, f(x))\n"
        "torch.testing.assert_close(x.grad, 2.0 * (x > 0))\n"
        "print({r['state'] for r in inrush.torch_patches()}, inrush.captures())\n"
    )
    path = os.pathsep.join([str(PACKAGE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "PYTHONPATH": path, "INRUSH_WARM_START": "1"}
    done = subprocess.run([sys.executable, str(script)], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "{'not in this test'} {}"


def torch_names(tree):
    """Names of a module, and of its functions, that stand for parts of PyTorch: imported, or read from one that is."""
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "torch":
                    names[alias.asname or "torch"] = alias.name if alias.asname else "torch"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "torch":
            for alias in node.names:
                names[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute):
            path = path_of(node.value, names)
            for target in node.targets if path else []:
                if isinstance(target, ast.Name):
                    names[target.id] = path
    return names


def path_of(node, names):
    """The path of an expression such as `a.b[c].d` in PyTorch; None where it is not PyTorch's."""
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute):
        path = path_of(node.value, names)
        return path and f"{path}.{node.attr}"
    return path_of(node.value, names) if isinstance(node, ast.Subscript) else None


def written(tree):
    """Lines in which an attribute or an entry of PyTorch's is assigned."""
    names = torch_names(tree)
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, (ast.Assign, ast.Delete)) else [node.target] if isinstance(node, (ast.AugAssign, ast.AnnAssign)) else []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("setattr", "delattr"):
            targets = [ast.Attribute(node.args[0], "")]
        for target in targets:
            for part in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(part, (ast.Attribute, ast.Subscript)) and path_of(part.value, names):
                    yield node.lineno


# Tables of Dynamo's to which a restored capture adds itself, as Dynamo's own does, and a counter of Dynamo's.
TABLES = {"capture/restore.py": 2, "torch_internals.py": 1}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_only_the_table_replaces_what_is_pytorch_s(path):
    lines = list(written(ast.parse(path.read_text())))
    assert len(lines) == TABLES.get(name_of(path), 0), f"{name_of(path)} assigns to PyTorch in lines {lines}: write a row of patches/table.py"


def test_assignments_are_seen():
    text = """
import torch
from torch import nn
from torch._dynamo import guards as g
manager = g.CheckFunctionManager
torch.a = 1
nn.b, x = 1, 2
manager.c = 1
torch.d["e"] = 1
setattr(g, "f", 1)
x.y = torch.a
"""
    assert len(list(written(ast.parse(text)))) == 5


def internals(tree):
    """Private parts of PyTorch that a module imports or reads."""
    names = torch_names(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            paths = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            paths = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            paths = [path_of(node, names)] if isinstance(node, ast.Attribute) else []
        for path in filter(None, paths):
            if any(path == p or path.startswith(f"{p}.") for p in PRIVATE):
                yield f"line {node.lineno}: {path}"


@pytest.mark.parametrize("path", [p for p in MODULES if not name_of(p).startswith(MAY_USE_PRIVATE)], ids=name_of)
def test_internals_of_pytorch_are_used_in_few_places(path):
    used = sorted(set(internals(ast.parse(path.read_text()))))
    assert not used, f"{name_of(path)} uses internals of PyTorch; `torch_internals.py` may: {used}"


def imports(path):
    """Modules of the package that a module imports, in functions too."""
    known = {module_of(p) for p in MODULES}
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            found = [f"{node.module}.{a.name}" if f"{node.module}.{a.name}" in known else node.module for a in node.names]
        else:
            found = []
        yield from (f for f in found if f in known and f != "inrush")


def test_modules_import_each_other_in_one_direction():
    """Names of replacements in the table are text, which is read when they are installed."""
    graph = {module_of(p): sorted(set(imports(p)) - {module_of(p)}) for p in MODULES if module_of(p) != "inrush"}
    done, path = set(), []

    def visit(name):
        assert name not in path, f"a circle: {' -> '.join([*path[path.index(name):], name])}"
        if name not in done:
            path.append(name)
            for other in graph[name]:
                visit(other)
            path.pop()
            done.add(name)

    for name in graph:
        visit(name)
    assert len(done) == len(MODULES) - 1


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_files_are_short_and_say_what_they_are_for(path):
    text = path.read_text()
    assert len(text.splitlines()) <= 500
    assert ast.get_docstring(ast.parse(text))
