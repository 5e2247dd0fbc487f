"""Writes torch_cases.txt: calls of library functions with the results of PyTorch's CPU operators.

    python torch_cases.py > torch_cases.txt

A case is a line `case NAME PARAMS...`, then one line for each tensor: `in` or `out`, dtype, sizes, values.
"""

import torch

NAMES = {torch.float32: "f32", torch.float64: "f64", torch.int64: "i64", torch.int32: "i32", torch.bfloat16: "bf16"}


def tensor(kind, t):
    values = " ".join(repr(v) for v in t.detach().reshape(-1).tolist())
    print(kind, NAMES[t.dtype], "x".join(map(str, t.shape)) or "-", values)


def case(name, params, inputs, outputs):
    print("case", name, *(str(p).lower() for p in params))
    for t in inputs:
        tensor("in", t)
    for t in outputs:
        tensor("out", t)


def draw(*sizes, dtype=torch.float64):
    return torch.randn(*sizes, dtype=torch.float64).mul(64).round().div(64).to(dtype)


def transforms():
    x = draw(3, 4) + 1j * draw(3, 4)
    for norm, name in [(0, "backward"), (1, "ortho"), (2, "forward")]:
        y = torch.fft.fft2(x, norm=name)
        case("fft.c2c", [norm, True, 0, 1], [x.real, x.imag], [y.real, y.imag])
    y = torch.fft.ifft(x, dim=0)
    case("fft.c2c", [2, False, 0], [x.real, x.imag], [y.real, y.imag])
    x = draw(2, 5, 3, dtype=torch.float32)
    y = torch.fft.rfft(x, dim=1)
    case("fft.r2c", [0, True, 1], [x], [y.real, y.imag])
    y = torch.fft.rfftn(draw(4, 6))
    case("fft.c2r", [2, 0, 1], [y.real, y.imag], [torch.fft.irfftn(y, s=(4, 6))])
    # A spectrum of no real signal.
    y = draw(3, 4) + 1j * draw(3, 4)
    case("fft.c2r", [2, 1], [y.real, y.imag], [torch.fft.irfft(y, n=6)])


def algebra():
    for a in [draw(4, 4), draw(2, 5, 3), draw(3, 5)]:
        lu, pivots, info = torch.linalg.lu_factor_ex(a)
        case("linalg.lu_factor", [], [a], [lu, pivots, info])
        p, l, u = torch.lu_unpack(lu, pivots)
        case("linalg.lu_unpack", [], [lu, pivots], [p, l, u])
        for mode in ["reduced", "complete"]:
            case("linalg.qr", [mode == "complete"], [a], list(torch.linalg.qr(a, mode=mode)))
        case("linalg.qr_r", [], [a], [torch.linalg.qr(a, mode="r")[1]])
        case("linalg.svdvals", [], [a], [torch.linalg.svdvals(a)])
        b = draw(*a.shape[:-1], 2)
        case("linalg.lstsq", [], [a, b], [torch.linalg.lstsq(a, b).solution])
    # Columns that are zero or multiples of others.
    a = torch.tensor([[1.0, 2, 0], [2, 4, 0], [-3, -6, 0]], dtype=torch.float64)
    case("linalg.lu_factor", [], [a], list(torch.linalg.lu_factor_ex(a)))
    case("linalg.det", [], [a], [torch.linalg.det(a)])
    a = torch.tensor([[0.0, 1, 2], [0, 3, 4], [0, 5, 7]], dtype=torch.float64)
    case("linalg.qr", [False], [a], list(torch.linalg.qr(a)))
    case("linalg.slogdet", [], [a], list(torch.linalg.slogdet(a)))
    a = draw(2, 4, 4)
    case("linalg.det", [], [a], [torch.linalg.det(a)])
    case("linalg.slogdet", [], [a], list(torch.linalg.slogdet(a)))
    inverse, info = torch.linalg.inv_ex(a)
    case("linalg.inv", [], [a], [inverse, info])
    b = draw(2, 3, 4)
    x, info = torch.linalg.solve_ex(a, b, left=False)
    case("linalg.solve", [False], [a, b], [x, info])
    for upper in [False, True]:
        x = torch.linalg.solve_triangular(a, b, upper=upper, left=False, unitriangular=upper)
        case("linalg.solve_triangular", [upper, False, upper], [a, b], [x])
        s = a @ a.mT + torch.eye(4)
        case("linalg.cholesky", [upper], [s], list(torch.linalg.cholesky_ex(s, upper=upper)))
        case("linalg.eigvalsh", [upper], [a], [torch.linalg.eigvalsh(a, UPLO="U" if upper else "L")])
    for scale in [0.01, 1, 8]:
        case("linalg.matrix_exp", [], [a * scale], [torch.linalg.matrix_exp(a * scale)])


def orders():
    nan, inf = float("nan"), float("inf")
    x = torch.tensor([[1.0, nan, 0.0, -0.0, inf, 1.0], [nan, -inf, nan, 2.0, 2.0, -1.0]])
    for descending in [False, True]:
        y = torch.sort(x, dim=1, stable=True, descending=descending)
        case("sort.stable", [1, descending], [x], list(y))
        y = torch.sort(x, dim=0, stable=True, descending=descending)
        case("sort.stable", [0, descending], [x], list(y))
    x = torch.tensor([5, -3, 9, 0, 7, -8])
    for largest in [False, True]:
        case("topk", [0, largest, True], [x], list(torch.topk(x, 3, largest=largest)))


def layers():
    x = draw(3, 2, 4, dtype=torch.float32)
    for projection in [0, 3]:
        layer = torch.nn.LSTM(4, 5, proj_size=projection)
        h, c = draw(1, 2, projection or 5).float(), draw(1, 2, 5).float()
        y, (h1, c1) = layer(x, (h, c))
        w = list(layer.parameters())
        case("rnn.lstm", [True, projection > 0, False], [x, h, c, *w], [y, h1, c1])
    # The second direction of a layer is the reversed one.
    layer = torch.nn.GRU(4, 5, bidirectional=True, bias=False)
    h = draw(2, 2, 5).float()
    y, h1 = layer(x, h)
    case("rnn.gru", [False, True], [x, h[1:], *list(layer.parameters())[2:]], [y[..., 5:], h1[1:]])
    layer = torch.nn.GRU(4, 5)
    y, h1 = layer(x, h[:1])
    case("rnn.gru", [True, False], [x, h[:1], *layer.parameters()], [y, h1])
    for name in ["tanh", "relu"]:
        layer = torch.nn.RNN(4, 5, nonlinearity=name)
        y, h1 = layer(x, h[:1])
        case("rnn.elman", [True, False, name == "relu"], [x, h[:1], *layer.parameters()], [y, h1])


def groups():
    x, w = draw(8, 16, dtype=torch.bfloat16), draw(2, 16, 8, dtype=torch.bfloat16)
    offs = torch.tensor([3, 8], dtype=torch.int32)
    case("grouped_mm", [], [x, w, offs], [torch._grouped_mm(x, w, offs=offs)])


torch.manual_seed(0)
transforms()
algebra()
orders()
layers()
groups()
