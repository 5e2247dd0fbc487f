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
