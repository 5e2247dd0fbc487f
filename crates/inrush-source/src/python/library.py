def fft_c2c(sizes, re, im, norm, forward, *dims):
    """A transform of real and imaginary parts."""
    y = torch.ops.aten._fft_c2c(torch.complex(re, im), dims, norm, forward)
    return y.real, y.imag


def fft_r2c(sizes, x, norm, onesided, *dims):
    """A transform of a real tensor."""
    y = torch.ops.aten._fft_r2c(x, dims, norm, onesided)
    return y.real, y.imag


def fft_c2r(sizes, re, im, norm, *dims):
    """The inverse transform of a symmetric tensor, of which half is given along the last dimension."""
    return [torch.ops.aten._fft_c2r(torch.complex(re, im), dims, norm, sizes[dims[-1]])]


def topk(sizes, x, dim, largest, is_sorted):
    """The first elements of a dimension, those of lower index among equal ones."""
    return [part.narrow(dim, 0, sizes[dim]) for part in torch.sort(x, dim=dim, descending=largest, stable=True)]


def grouped_mm(sizes, x, w, offs=None):
    """Products of groups of rows, of columns or of sums, which end at ``offs``. Sums are of 32 bits."""
    x, w = x.float(), w.float()
    if offs is None:
        return [x @ w]
    y = x.new_zeros(sizes)
    begin = 0
    for group, end in enumerate(offs.tolist()):
        if w.dim() == 3:
            y[begin:end] = x[begin:end] @ w[group]
        elif x.dim() == 3:
            y[:, begin:end] = x[group] @ w[:, begin:end]
        else:
            y[group] = x[:, begin:end] @ w[begin:end]
        begin = end
    return [y]


def eig(sizes, a):
    """Eigenvalues and eigenvectors, real and imaginary parts of each."""
    values, vectors = torch.linalg.eig(a)
    return values.real, values.imag, vectors.real, vectors.imag


def eigvals(sizes, a):
    """Eigenvalues, real and imaginary parts."""
    values = torch.linalg.eigvals(a)
    return values.real, values.imag


def lstsq(sizes, a, b):
    """The solution of least norm. PyTorch has the driver for it on CPUs."""
    return [torch.linalg.lstsq(a.cpu(), b.cpu(), driver="gelsd").solution]


def in_order(x, reverse):
    """Returns a sequence, backwards if asked for."""
    return x.flip(0) if reverse else x


def lstm(sizes, x, h, c, *rest):
    """A layer of long short-term memory."""
    *weights, has_bias, _, reverse = rest
    y, h, c = torch.lstm(in_order(x, reverse), (h, c), weights, has_bias, 1, 0.0, False, False, False)
    return in_order(y, reverse), h, c


def recurrent(function, x, h, weights, has_bias, reverse):
    """A layer of recurrent units."""
    y, h = function(in_order(x, reverse), h, weights, has_bias, 1, 0.0, False, False, False)
    return in_order(y, reverse), h


def gru(sizes, x, h, *rest):
    """A layer of gated recurrent units."""
    *weights, has_bias, reverse = rest
    return recurrent(torch.gru, x, h, weights, has_bias, reverse)


def elman(sizes, x, h, *rest):
    """A layer of plain recurrent units."""
    *weights, has_bias, reverse, relu = rest
    return recurrent(torch.rnn_relu if relu else torch.rnn_tanh, x, h, weights, has_bias, reverse)


# PyTorch's functions for those of the library: of the sizes of the first result, tensors, parameters.
FUNCTIONS = {
    "fft.c2c": fft_c2c,
    "fft.c2r": fft_c2r,
    "fft.r2c": fft_r2c,
    "grouped_mm": grouped_mm,
    "linalg.cholesky": lambda sizes, a, upper: torch.linalg.cholesky_ex(a, upper=upper),
    "linalg.det": lambda sizes, a: [torch.linalg.det(a)],
    "linalg.eig": eig,
    "linalg.eigh": lambda sizes, a, upper: torch.linalg.eigh(a, UPLO="U" if upper else "L"),
    "linalg.eigvals": eigvals,
    "linalg.eigvalsh": lambda sizes, a, upper: [torch.linalg.eigvalsh(a, UPLO="U" if upper else "L")],
    "linalg.inv": lambda sizes, a: torch.linalg.inv_ex(a),
    "linalg.lstsq": lstsq,
    "linalg.lu_factor": lambda sizes, a: torch.linalg.lu_factor_ex(a),
    "linalg.lu_unpack": lambda sizes, lu, pivots: torch.lu_unpack(lu, pivots),
    "linalg.matrix_exp": lambda sizes, a: [torch.linalg.matrix_exp(a)],
    "linalg.qr": lambda sizes, a, complete: torch.linalg.qr(a, mode="complete" if complete else "reduced"),
    "linalg.qr_r": lambda sizes, a: [torch.linalg.qr(a, mode="r")[1]],
    "linalg.slogdet": lambda sizes, a: torch.linalg.slogdet(a),
    "linalg.solve": lambda sizes, a, b, left: torch.linalg.solve_ex(a, b, left=left),
    "linalg.solve_triangular": lambda sizes, a, b, upper, left, unitriangular: [
        torch.linalg.solve_triangular(a, b, upper=upper, left=left, unitriangular=unitriangular)
    ],
    "linalg.svd": lambda sizes, a, full_matrices: torch.linalg.svd(a, full_matrices=full_matrices),
    "linalg.svdvals": lambda sizes, a: [torch.linalg.svdvals(a)],
    "rnn.elman": elman,
    "rnn.gru": gru,
    "rnn.lstm": lstm,
    "sort.stable": lambda sizes, x, dim, descending: torch.sort(x, dim=dim, descending=descending, stable=True),
    "topk": topk,
}


def row_major(buffer, sizes):
    """Returns the tensor of these sizes in a buffer, row-major."""
    strides = [math.prod(sizes[dim + 1 :]) for dim in range(len(sizes))]
    return inside(buffer, 0, buffer.dtype, sizes, strides)


def library(name, inputs, outputs, *params):
    """Calls a function over whole tensors: buffers with sizes. Parameters follow the tensors."""
    tensors = [row_major(buffer, sizes) for buffer, sizes in inputs]
    results = FUNCTIONS[name](outputs[0][1], *tensors, *params)
    for (buffer, sizes), result in zip(outputs, results, strict=True):
        row_major(buffer, sizes).copy_(result)
