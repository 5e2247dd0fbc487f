"""What captures depend on besides plain values: enumerations, generated methods, decorated functions. A second process is played by
modules that are read anew, after their source has changed."""

import importlib
import re
import sys

import pytest
import torch
from torch._functorch._aot_autograd import autograd_cache

import inrush
from inrush.capture import bytecode, fingerprint, restore, session

NUMBERS = "BY = 2.5"
# The name of a gradient in the text of a tensor.
GRADIENT = r", grad_fn=<\w+>"
FORMS = """
import dataclasses, enum, functools, torch
from captured_numbers import BY

class Form(enum.Enum):
    WIDE = 2.0
    FLAT = 3.0

def making(cls):
    made = cls.__init__
    by = BY
    @functools.wraps(made)
    def init(self, *args, **named):
        made(self, *args, **named)
        self.by = by
    cls.__init__ = init
    return cls

@dataclasses.dataclass
class Out:
    x: object
    by: float = BY
    more: list = dataclasses.field(default_factory=lambda: [BY])

@making
@dataclasses.dataclass
class Made:
    x: object
    by: float = 0.0

def times(by):
    def decorate(f):
        @functools.wraps(f)
        def wrapper(x):
            return f(x) * by
        return wrapper
    return decorate

def shift(x):
    return x + 1

@functools.lru_cache
@torch._dynamo.assume_constant_result
def has(name, *, least=1.0):
    return BY > least and name

@torch._dynamo.assume_constant_result
def is_large():
    return BY > 2.0

@torch.library.custom_op("captured::shifted", mutates_args=())
def shifted(x: torch.Tensor) -> torch.Tensor:
    return x + 3

@shifted.register_fake
def _(x):
    return torch.empty_like(x)
"""
HEAD = "import types, torch\nimport captured_forms as forms\nfrom captured_forms import Form, Out, Made, times, shift, has, is_large\n"
NETS = {
    "enum": "def f(x, form=Form.WIDE):\n    return x * (form.value if form is Form.WIDE else 7.0)",
    "enum of a call": "def g(x, form=Form.WIDE):\n    return x * form.value\ndef f(x):\n    return g(x) + 1",
    "class of the interpreter": "def f(x):\n    return shift(x) if isinstance(shift, types.FunctionType) else x",
    "attribute of a function": "shift.by = 2.0\ndef f(x):\n    return shift(x) * shift.by",
    "dataclass": "def f(x):\n    out = Out(x + 1)\n    return out.x * out.by + out.more[0]",
    "dataclass as the result": "def f(x):\n    return Out(x + 1, more=[])",
    "dataclass with a decorator": "def f(x):\n    out = Made(x + 1)\n    return out.x * out.by",
    "decorated twice": "@times(2.0)\n@times(3.0)\ndef f(x):\n    return x + 1\ng = f\ndef f(x):\n    return g(x) - 1",
    "declared constant": "def f(x):\n    return x * 2 if has('a', least=2.0) else x * 3",
    "declared constant as the result": "def f(x):\n    return x * 2, is_large()",
    "operator": "def f(x):\n    return torch.ops.captured.shifted(x) * 2",
    "shared with an inner function": """
def f(x):
    n = 1.0
    def inner(y):
        nonlocal n
        n = n + 1
        return shift(y) * n
    z = inner(x)
    n = n * 2
    torch._dynamo.graph_break()
    z = inner(z) - n
    torch._dynamo.graph_break()
    return inner(z) + n
""",
}
# What changes, in which file, and what is told of it.
CHANGES = [
    ("enum", "captured_forms", "WIDE = 2.0", "WIDE = 4.0"),
    ("enum", "captured_forms", "WIDE = 2.0\n    FLAT = 3.0", "FLAT = 3.0\n    WIDE = 2.0\n    LONG = 5.0"),
    ("enum of a call", "captured_forms", "WIDE = 2.0", "WIDE = 4.0"),
    ("class of the interpreter", "captured_forms", "x + 1", "x + 2"),
    ("attribute of a function", "captured_net", "by = 2.0", "by = 5.0"),
    ("dataclass", "captured_forms", "by: float = BY", "by: float = 5.0"),
    ("dataclass", "captured_numbers", "BY = 2.5", "BY = 3.5"),
    ("dataclass", "captured_forms", "lambda: [BY]", "lambda: [BY + 1]"),
    ("dataclass with a decorator", "captured_numbers", "BY = 2.5", "BY = 3.5"),
    ("dataclass as the result", "captured_forms", "x: object", "by_name: int = 1\n    x: object = None"),
    ("decorated twice", "captured_net", "times(3.0)", "times(4.0)"),
    ("declared constant", "captured_numbers", "BY = 2.5", "BY = 1.5"),
    ("declared constant as the result", "captured_numbers", "BY = 2.5", "BY = 1.5"),
    ("operator", "captured_forms", "x + 3", "x + 4"),
    ("shared with an inner function", "captured_net", "n + 1", "n + 2"),
    ("shared with an inner function", "captured_forms", "x + 1", "x + 2"),
]


@pytest.fixture
def process(tmp_path, monkeypatch):
    """Imports the modules, compiles `f` and compares it with eager: what became of the captures."""
    monkeypatch.setenv("INRUSH_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    # Files of processes that begin after they were written are trusted.
    monkeypatch.setattr(fingerprint, "_start", float("inf"))

    def run(net, **files):
        for name, text in {"captured_numbers": NUMBERS, "captured_forms": FORMS, "captured_net": HEAD + net, **files}.items():
            (tmp_path / f"{name}.py").write_text(text)
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
        torch._dynamo.reset()
        module = importlib.import_module("captured_net")
        before = inrush.captures()
        x = torch.arange(5.0)
        got, want = torch.compile(module.f, backend="inrush", options={"strict": True})(x), module.f(x)
        assert re.sub(GRADIENT, "", str(got)) == re.sub(GRADIENT, "", str(want))
        return {(what, why) for what, reasons in inrush.captures().items() for why, n in reasons.items() if n > before.get(what, {}).get(why, 0)}

    inrush.warm_start()
    yield run
    inrush.warm_start(False)
    for name in ("captured_numbers", "captured_forms", "captured_net"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("name, file, old, new", CHANGES)
def test_another_process_finds_it_and_notices_what_changes(process, name, file, old, new):
    assert process(NETS[name]) == {("kept", "")}
    assert process(NETS[name]) == {("restored", "")}
    text = {"captured_numbers": NUMBERS, "captured_forms": FORMS, "captured_net": HEAD + NETS[name]}[file]
    assert old in text
    became = process(NETS[name], **{file: text.replace(old, new)})
    assert ("restored", "") not in became and ("kept", "") in became, became


def test_what_cannot_be_named_is_told_with_its_place(process):
    # The module does not have the class under its name.
    parts = """
import enum
Kind = enum.Enum("Other", "A B")
class Part(torch.nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind
    def forward(self, x):
        return x + self.kind.value
model = torch.nn.Sequential(torch.nn.ReLU(), Part(Kind.A))
def f(x):
    return model(x)
"""
    assert process(parts) == {("not kept", "A, a captured_net.Other, at model[1].kind")}


def test_a_constant_that_cannot_be_asked_for_again_is_told_with_its_place(process):
    net = "g = torch._dynamo.assume_constant_result(lambda x: 2.0)\ndef f(x):\n    return x * g(3.0)"
    assert {(what, why.rpartition("/")[2]) for what, why in process(net)} == {("not kept", "captured_net.py:6")}
    made = "g = torch._dynamo.assume_constant_result(lambda: torch.ones(5))\ndef f(x):\n    return x * g()"
    assert "whose result is declared constant, at " in str(process(made))


def test_generated_code_that_nothing_tells_is_named_with_its_caller(process):
    holding = "@dataclasses.dataclass\nclass Holding:\n    x: object\n    by: object = object()\n"
    became = process("import dataclasses\n" + holding + "def f(x):\n    return Holding(x + 1).x")
    assert {(what, why.rpartition("/")[2]) for what, why in became} == {("not kept", "captured_net.py:10")}, became
    assert "captured_net.Holding.__init__, which holds a builtins.object, at " in str(became)


def test_names_of_graphs_are_no_addresses():
    assert bytecode.is_by_address("___builtins_dict_140032197616192_c0")
    assert not bytecode.is_by_address("__compiled_fn_20_81121455_c373_4355_9b80_1bb0e3267502")


TRAINED = "w = torch.ones(5, requires_grad=True)\ndef f(x):\n    return x * w"


def first_words(became):
    """What became of captures; the reasons without the names of graphs."""
    return {(what, re.sub(r"__compiled_fn_\w+", "GRAPH", why)) for what, why in became}


def test_a_graph_that_has_no_entry_is_told_with_the_reason(process, monkeypatch):
    def refuse(gm):
        raise autograd_cache.BypassAOTAutogradCache("a graph of Tuesdays")

    monkeypatch.setattr(autograd_cache, "check_cacheable", refuse)
    assert first_words(process(TRAINED)) == {("not kept", "AOTAutograd kept no entry of GRAPH: a graph of Tuesdays")}


def test_a_capture_whose_graph_is_never_compiled_is_told(process):
    before = list(session._waiting)
    assert process(TRAINED) == set()
    told = inrush.captures()
    session.give_up([p for p in session._waiting if p not in before])
    became = {(what, why) for what, reasons in inrush.captures().items() for why in reasons if why not in told.get(what, {})}
    assert first_words(became) == {("not kept", "GRAPH was not compiled, or AOTAutograd kept no entry of it")}


def test_a_capture_that_fails_is_told(process, monkeypatch):
    def fail(*args, **named):
        raise RuntimeError("no guards\nat all")

    monkeypatch.setattr(restore.guards.CheckFunctionManager, "__init__", fail)
    with pytest.raises(RuntimeError):
        process("def f(x):\n    return x + 7")
    assert any("RuntimeError: no guards" in why for why in inrush.captures()["not captured"]), inrush.captures()
