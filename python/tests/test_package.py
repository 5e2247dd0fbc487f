"""Packages: compiled ahead of time, loaded as callables."""

import pytest
import torch

import inrush


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 3)
        self.register_buffer("scale", torch.tensor(2.0))

    def forward(self, pair, *, bias=None):
        a, b = pair
        out = torch.relu(self.linear(a * self.scale + b))
        return {"out": out if bias is None else out + bias, "sum": (out.sum(), a.shape[0])}


@pytest.fixture(scope="module")
def exported():
    torch.manual_seed(0)
    model = Model().eval()
    n = torch.export.Dim("n", min=2, max=64)
    args, kwargs = ((torch.randn(5, 4), torch.randn(5, 4)),), {"bias": torch.randn(3)}
    shapes = {"pair": ({0: n}, {0: n}), "bias": None}
    return model, torch.export.export(model, args, kwargs, dynamic_shapes=shapes)


def test_a_package_is_called_like_the_module(exported, tmp_path):
    model, program = exported
    path = inrush.aot_compile(program, tmp_path / "model.inrush")
    loaded = inrush.load(path)
    for n in (2, 5, 17):
        pair, bias = (torch.randn(n, 4), torch.randn(n, 4)), torch.randn(3)
        with torch.no_grad():
            wanted = model(pair, bias=bias)
        got = loaded(pair, bias=bias)
        assert got["sum"][1] == n
        torch.testing.assert_close(got, wanted)


def test_bad_inputs_are_refused(exported, tmp_path):
    _, program = exported
    loaded = inrush.load(inrush.aot_compile(program, tmp_path / "model.inrush"))
    a, bias = torch.randn(5, 4), torch.randn(3)
    with pytest.raises(inrush.InputError, match="nested as"):
        loaded(a, bias=bias)
    with pytest.raises(inrush.InputError, match="2 dimensions of torch.float32"):
        loaded((a, a.double()), bias=bias)
    with pytest.raises(inrush.InputError, match="takes 3 inputs"):
        loaded.flat(a)
    with pytest.raises((inrush.Error, RuntimeError, IndexError)):
        loaded((torch.randn(65, 4), torch.randn(65, 4)), bias=bias)
    with pytest.raises((inrush.Error, RuntimeError, IndexError)):
        loaded((a, torch.randn(6, 4)), bias=bias)
    assert loaded((a, a), bias=bias)["out"].shape == (5, 3)


def test_errors_name_what_is_wrong(tmp_path):
    with pytest.raises(inrush.InputError, match="ExportedProgram"):
        inrush.aot_compile(Model(), tmp_path / "x.inrush")
    program = torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
    with pytest.raises(inrush.InputError, match="unknown target `z80`"):
        inrush.aot_compile(program, tmp_path / "x.inrush", target="z80")
    (tmp_path / "bad.inrush").write_bytes(b"nothing")
    with pytest.raises(inrush.Error):
        inrush.load(tmp_path / "bad.inrush")


class Positions(torch.nn.Module):
    """Counts positions in the storage of an input and of a buffer that begins later, and from the first element of an input."""

    def __init__(self):
        super().__init__()
        self.register_buffer("kept", torch.arange(12.0)[2:])

    def forward(self, x, y):
        return x.as_strided((2,), (1,), 3) + self.kept.as_strided((2,), (1,), 3), y.as_strided((2,), (1,)) * 2


def test_memory_in_which_positions_are_counted_is_the_callers(tmp_path):
    model, x, y = Positions(), torch.arange(10.0), torch.arange(12.0).reshape(3, 4)
    loaded = inrush.load(inrush.aot_compile(torch.export.export(model, (x, y)), tmp_path / "m.inrush"))
    for args in ((x, y), (x, torch.arange(24.0).reshape(6, 4)[3:])):
        for got, wanted in zip(loaded(*args), model(*args)):
            assert torch.equal(got, wanted)
    later = torch.arange(12.0)[2:]
    with pytest.raises(inrush.InputError, match="`x` must begin its storage, its offset is 2"):
        loaded(later, y)
    assert torch.equal(loaded(later.clone(), y)[0], model(later.clone(), y)[0])
    with pytest.raises(inrush.InputError, match=r"`y` must have strides \[4, 1\], got \[1, 3\]"):
        loaded(x, torch.arange(12.0).reshape(4, 3).t())


def test_a_weight_before_whose_first_element_positions_are_counted_is_refused(tmp_path):
    model = Positions()
    model.forward = lambda x: model.kept.as_strided((2,), (1,), 1) + x
    program = torch.export.export(model, (torch.zeros(2),))
    with pytest.raises(inrush.Error, match="before a weight's first element"):
        inrush.aot_compile(program, tmp_path / "m.inrush")
