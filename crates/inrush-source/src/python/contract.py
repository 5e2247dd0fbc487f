def contract(dtype, a, a_offset, b, b_offset, batch, m, n, k):
    """Returns the sums of products of a matrix product or a convolution, [batch, m, n], over strided operands.

    Each of ``batch``, ``m``, ``n`` and ``k`` is a list of levels, outermost first: sizes with strides in elements, in ``a`` and
    ``b`` (of ``m`` in ``a`` only, of ``n`` in ``b`` only). The levels of an image and those of a filter's taps may overlap.
    """
    left = [(size, in_a) for size, in_a, _ in batch] + m + [(size, in_a) for size, in_a, _ in k]
    right = [(size, in_b) for size, _, in_b in batch] + [(size, in_b) for size, _, in_b in k] + n
    batches, rows, columns, sums = (math.prod(level[0] for level in levels) for levels in (batch, m, n, k))
    if 0 in (batches, rows, columns, sums):
        return torch.zeros((batches, rows, columns), dtype=dtype)
    views = []
    for operand, offset, levels in ((a, a_offset, left), (b, b_offset, right)):
        # Tensors have no negative strides: such a level is read from its end.
        reversed_dims = [dim for dim, (_, stride) in enumerate(levels) if stride < 0]
        offset += sum((size - 1) * stride for size, stride in levels if stride < 0)
        sizes, strides = [size for size, _ in levels], [abs(stride) for _, stride in levels]
        view = inside(operand, offset * operand.element_size(), operand.dtype, sizes, strides)
        views.append(view.flip(reversed_dims).to(dtype))
    return torch.bmm(views[0].reshape(batches, rows, sums), views[1].reshape(batches, sums, columns))


class Epilogue:
    """A loop nest over the sums of a product, which stores results. It may overwrite the sums."""

    def __init__(self, symbol):
        integers = [ctypes.c_int64] * 6
        signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, *integers)
        self.function = signature((symbol, LIBRARY))

    def __call__(self, sums, buffers, sizes):
        """Stores the results of ``sums``, [batch, m, n]."""
        if sums.numel() == 0:
            return
        numbers = array.array("q", sizes)
        arguments = addresses(buffers)
        batches, rows, columns = sums.shape

        def run(begin, end):
            for batch in range(batches):
                at = sums[batch, begin].data_ptr()
                self.function(arguments, numbers.buffer_info()[0], at, columns, batch, begin, end, 0, columns)

        in_parts(run, rows, sums.numel() * sums.element_size() <= SERIAL_COST)
