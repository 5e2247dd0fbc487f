"""A program for `test_warm_start.py`: functions that are compiled, each with something that may change about it.

usage: warm_program.py WHEN [NAME ...]. WHEN tells when it changes: `never`, `after` the first call, or `before` it. After each
call the result is compared with eager's. Prints what became of captures in each case.
"""

import contextlib
import json
import sys

import torch

import inrush

F = torch.nn.functional
FACTOR = 1.5
TABLE = {"act": torch.sin, "power": 2}
GIVEN = torch.linspace(-2, 2, 24).view(3, 8)


def scale(a):
    return a * FACTOR


def other_scale(a):
    return a * 7.0


def with_default(a, by=3.0):
    return a * by


class Config:
    depth = 4

    def __init__(self):
        self.width, self.act = 2, "gelu"


class Base(torch.nn.Module):
    def finish(self, x):
        return x + 1


class Block(Base):
    def __init__(self, act=F.gelu):
        super().__init__()
        self.inner, self.second, self.norm = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8), torch.nn.Dropout(1.0)
        self.act, self.config, self.layers = act, Config(), torch.nn.ModuleList([torch.nn.Linear(8, 8), torch.nn.GELU()])

    def forward(self, x):
        x = self.norm(self.act(scale(self.inner(x)))) * self.config.width
        for layer in self.layers:
            x = layer(x)
        return self.finish(self.second(x))


class Wide(Block):
    def finish(self, x):
        return x - 3


class Own(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        out = super().__torch_function__(func, types, args, kwargs or {})
        return out * 5 if func is torch.sin else out


@contextlib.contextmanager
def replaced(owner, name, value):
    items = isinstance(owner, dict)
    missing = object()
    old = owner[name] if items else vars(owner).get(name, getattr(owner, name) if name.startswith("__") else missing)
    put = owner.__setitem__ if items else lambda k, v: setattr(owner, k, v)
    put(name, value)
    try:
        yield
    finally:
        if old is missing:
            delattr(owner, name)
        else:
            put(name, old)


ME = sys.modules[__name__]
CASES = {}


def case(*whens):
    def add(make):
        CASES[make.__name__] = (make, whens or ("after", "before"))
        return make

    return add


def block(**named):
    torch.manual_seed(0)
    return Block(**named).eval()


@case()
def function_of_module():
    return block(), (GIVEN,), lambda f, a: replaced(ME, "scale", other_scale)


@case()
def number_of_module():
    return block(), (GIVEN,), lambda f, a: replaced(ME, "FACTOR", 2.5)


@case()
def value_in_dict():
    return lambda a: TABLE["act"](a) ** TABLE["power"], (GIVEN,), lambda f, a: replaced(TABLE, "act", torch.cos)


@case()
def function_of_torch():
    return (lambda a: torch.sin(a) + 1), (GIVEN,), lambda f, a: replaced(torch, "sin", torch.cos)


@case()
def function_of_functional():
    return block(), (GIVEN,), lambda f, a: replaced(F, "linear", lambda x, w, b: x @ w)


@case("before")
def function_inside_torch():
    # Where only PyTorch's own Python code calls it nothing guards it, within a process neither.
    patched = lambda *a, **k: original(*a, **k) + 1  # noqa: E731
    original = torch.layer_norm
    return (lambda a: F.layer_norm(a, (8,))), (GIVEN,), lambda f, a: replaced(torch, "layer_norm", patched)


@case("before")
def method_of_torch():
    return block(), (GIVEN,), lambda f, a: replaced(torch.nn.Linear, "forward", lambda self, x: x * 2)


@case("before")
def method_of_class():
    return block(), (GIVEN,), lambda f, a: replaced(Base, "finish", lambda self, x: x * 2)


@case("before")
def method_that_was_inherited():
    return block(), (GIVEN,), lambda f, a: replaced(Block, "finish", lambda self, x: x * 3)


@case()
def method_of_instance():
    return (m := block()), (GIVEN,), lambda f, a: replaced(m.layers[0], "forward", lambda x: x * 2)


@case()
def function_in_attribute():
    return (m := block()), (GIVEN,), lambda f, a: replaced(m, "act", F.relu)


@case()
def attribute_of_attribute():
    return (m := block()), (GIVEN,), lambda f, a: replaced(m.config, "width", 3)


@case()
def module_in_list():
    def change(f, a):
        return replaced(f.layers._modules, "1", torch.nn.ReLU())

    return block(), (GIVEN,), change


@case("before")
def hook():
    # Dynamo itself does not notice one that is added later.
    def change(f, a):
        return contextlib.closing(type("", (), {"close": f.inner.register_forward_hook(lambda m, i, o: o * 4).remove})())

    return block(), (GIVEN,), change


@case("before")
def hook_of_module_in_closure():
    m = block()

    def change(f, a):
        return contextlib.closing(type("", (), {"close": m.inner.register_forward_hook(lambda m, i, o: o * 4).remove})())

    return (lambda a: m(a) + 1), (GIVEN,), change


@case("before")
def hook_everywhere():
    def change(f, a):
        handle = torch.nn.modules.module.register_module_forward_hook(lambda m, i, o: o * 2)
        return contextlib.closing(type("", (), {"close": handle.remove})())

    m = block()
    return (lambda a: m(a) + 1), (GIVEN,), change


@case()
def training_flag():
    @contextlib.contextmanager
    def change(f, a):
        # All is dropped.
        f.train()
        yield
        f.eval()

    return block(), (GIVEN,), change


@case()
def class_of_model():
    m = block()
    return m, (GIVEN,), lambda f, a: replaced(m, "__class__", Wide)


@case()
def tied_weights():
    m = block()
    m.second.weight = m.inner.weight
    new = torch.nn.Parameter(torch.ones(8, 8))

    @contextlib.contextmanager
    def change(f, a):
        old, m.second.weight = m.second.weight, new
        yield
        m.second.weight = old

    return m, (GIVEN,), change


@case()
def shape_of_weights():
    m = torch.nn.Linear(8, 4, bias=False)
    old, wide = m.weight, torch.nn.Parameter(torch.ones(1, 8))

    @contextlib.contextmanager
    def change(f, a):
        m.weight = wide
        yield
        m.weight = old

    return m, (GIVEN,), change


@case()
def dtype_of_weights():
    m = torch.nn.Linear(8, 4)

    @contextlib.contextmanager
    def change(f, a):
        m.double()
        a[0].data = a[0].double()
        yield
        a[0].data = a[0].float()
        m.float()

    return m, (GIVEN.clone(),), change


@case()
def closure():
    def make(by):
        def change_to(new):
            nonlocal by
            by = new

        return (lambda a: a * by + 1), change_to

    f, change_to = make(2.0)

    @contextlib.contextmanager
    def change(f, a):
        change_to(9.0)
        yield
        change_to(2.0)

    return f, (GIVEN,), change


@case()
def marked_size():
    a = GIVEN.clone()
    torch._dynamo.mark_dynamic(a, 0)

    @contextlib.contextmanager
    def change(f, args):
        torch._dynamo.mark_dynamic(a, 1)
        yield
        a._dynamo_dynamic_indices = {0}

    return (lambda a: a.reshape(-1, 4) * a.shape[0]), (a,), change


@case("before")
def default_of_argument():
    # Dynamo itself does not notice one that is replaced later. The same holds for constants that are read from classes.
    f = lambda a: with_default(a)  # noqa: E731
    return f, (GIVEN,), lambda f, a: replaced(with_default, "__defaults__", (8.0,))


@case("before")
def constant_of_class():
    return (lambda a: a * Config.depth), (GIVEN,), lambda f, a: replaced(Config, "depth", 5)


@case()
def constant_of_class_by_instance():
    c = Config()
    return (lambda a: a * c.depth), (GIVEN,), lambda f, a: replaced(Config, "depth", 5)


@case()
def code_of_function():
    f = lambda a: with_default(a)  # noqa: E731
    return f, (GIVEN,), lambda f, a: replaced(with_default, "__code__", (lambda a, by=3.0: a - by).__code__)


@case()
def branch_on_data():
    def f(a):
        if a.sum() > 0:
            return a * 2
        return a * 3

    @contextlib.contextmanager
    def change(f, a):
        a[0].neg_()
        yield
        a[0].neg_()

    return f, (GIVEN.clone() + 1,), change


@case()
def graph_break():
    def f(a):
        b = torch.sin(a) + 1
        print("between", file=sys.stderr)
        return torch.cat([scale(b), a * 2])

    return f, (GIVEN,), lambda f, a: replaced(ME, "scale", other_scale)


@case("before")
def subclass_with_own_functions():
    a = GIVEN.as_subclass(Own)

    def plain(cls, func, types, args=(), kwargs=None):
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    change = classmethod(plain)
    return (lambda a: torch.sin(a) + 1), (a,), lambda f, a: replaced(Own, "__torch_function__", change)


@case()
def gradients():
    f = lambda a: (a * torch.tensor(2.0)).requires_grad  # noqa: E731
    return f, (GIVEN.clone().requires_grad_(),), lambda f, a: torch.no_grad()


@case()
def autocast():
    return (lambda a: a @ a.T), (GIVEN,), lambda f, a: torch.autocast("cpu", dtype=torch.bfloat16)


@case()
def default_dtype():
    @contextlib.contextmanager
    def change(f, a):
        torch.set_default_dtype(torch.float64)
        yield
        torch.set_default_dtype(torch.float32)

    return (lambda a: torch.ones(8) + a), (GIVEN,), change


@case()
def default_device():
    return (lambda: torch.ones(3) * 2), (), lambda f, a: torch.device("meta")


@case()
def deterministic_algorithms():
    @contextlib.contextmanager
    def change(f, a):
        torch.use_deterministic_algorithms(True)
        yield
        torch.use_deterministic_algorithms(False)

    f = lambda a: a + torch.are_deterministic_algorithms_enabled()  # noqa: E731
    return f, (GIVEN,), change


@case("before")
def declared_constant():
    g = torch._dynamo.assume_constant_result(lambda: FACTOR)
    return (lambda a: a * g()), (GIVEN,), lambda f, a: replaced(ME, "FACTOR", 6.0)


@case()
def training_step():
    return block().train(), (GIVEN,), lambda f, a: replaced(ME, "scale", other_scale)


def results(f, args, model):
    if not isinstance(model, Block) or not model.training:
        with torch.set_grad_enabled(torch.is_grad_enabled() and any(a.requires_grad for a in args)):
            out = f(*args)
        return out.as_subclass(torch.Tensor) if isinstance(out, torch.Tensor) else out
    out = f(*args)
    grads = torch.autograd.grad(out.square().sum(), list(model.parameters()), allow_unused=True)
    return [out, *(g for g in grads if g is not None)]


def main(when, names):
    out = {}
    for name in names or CASES:
        make, whens = CASES[name]
        torch._dynamo.reset()
        f, args, change = make()
        compiled = torch.compile(f, backend="inrush")

        def check():
            want, got = results(f, args, f), results(compiled, args, f)
            if isinstance(want, torch.Tensor) and want.device.type == "meta":
                assert got.device == want.device
            else:
                torch.testing.assert_close(got, want, msg=lambda m: f"{name} {when}: {m}")  # noqa: B023

        before = inrush.captures()
        if when != "before":
            check()
        elif "before" in whens:
            with change(f, args):
                check()
        after = inrush.captures()
        out[name] = {w: {k: n - before.get(w, {}).get(k, 0) for k, n in r.items() if n - before.get(w, {}).get(k, 0)} for w, r in after.items()}
        if when == "after" and "after" in whens:
            with change(f, args):
                check()
            check()
    print(json.dumps(out))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
