def contract(dtype, a, a_offset, b, b_offset, batch, m, n, k):
    """Returns the sums of products of a matrix product or a convolution, [batch, m, n], over strided operands.

    Each of ``batch``, ``m``, ``n`` and ``k`` is a list of levels, outermost first: sizes with strides in elements, in ``a`` and
    ``b`` (of ``m`` in ``a`` only, of ``n`` in ``b`` only). Levels of an image overlap those of a filter's taps.
    """
    batches, rows, columns, sums = (math.prod(level[0] for level in levels) for levels in (batch, m, n, k))
    if 0 in (batches, rows, columns, sums):
        return torch.zeros((batches, rows, columns), dtype=dtype)
    taps = overlaps(m, k)
    if taps:
        # One convolution for each group.
        places = itertools.product(*[[(i * in_a, i * in_b) for i in range(size)] for size, in_a, in_b in batch])
        groups = [(sum(p[0] for p in place), sum(p[1] for p in place)) for place in places]
        parts = [convolve(dtype, a, a_offset + in_a, b, b_offset + in_b, m, n, k, taps) for in_a, in_b in groups]
        return torch.stack(parts)
    left = strided(a, a_offset, [(size, in_a) for size, in_a, _ in batch] + m + [(size, in_a) for size, in_a, _ in k])
    right = strided(b, b_offset, [(size, in_b) for size, _, in_b in batch + k] + n)
    return torch.bmm(left.to(dtype).reshape(batches, rows, sums), right.to(dtype).reshape(batches, sums, columns))


def strided(operand, offset, levels):
    """Returns a view of an operand. Tensors have no negative strides: such a level is read from its end."""
    reversed_dims = [dim for dim, (_, stride) in enumerate(levels) if stride < 0]
    offset += sum((size - 1) * stride for size, stride in levels if stride < 0)
    sizes, strides = [size for size, _ in levels], [abs(stride) for _, stride in levels]
    view = inside(operand, offset * operand.element_size(), operand.dtype, sizes, strides)
    return view.flip(reversed_dims) if reversed_dims else view


def overlaps(m, k):
    """Returns which level of ``k`` is the tap of which level of ``m``: pairs of positions. None for a matrix product."""
    pairs = {}
    for at, (size, stride) in enumerate(m):
        for tap, (taps, step, _) in enumerate(k):
            if 0 < step < size * stride and stride < taps * step and tap not in pairs.values():
                pairs[at] = tap
                break
    last = range(len(m) - len(pairs), len(m))
    return pairs if len(pairs) <= 3 and list(pairs) == list(last) else {}


def convolve(dtype, a, a_offset, b, b_offset, m, n, k, taps):
    """Returns the sums of a convolution, [m, n], as PyTorch computes them."""
    images, channels = m[: len(m) - len(taps)], [level for at, level in enumerate(k) if at not in taps.values()]
    image, steps, dilations = [], [], []
    for at, tap in taps.items():
        (size, stride), (count, step, _) = m[at], k[tap]
        unit = math.gcd(stride, step)
        steps.append(stride // unit)
        dilations.append(step // unit)
        image.append(((size - 1) * steps[-1] + (count - 1) * dilations[-1] + 1, unit))
    filters = [k[tap] for tap in taps.values()]
    x = strided(a, a_offset, images + [(size, in_a) for size, in_a, _ in channels] + image)
    w = strided(b, b_offset, n + [(size, in_b) for size, _, in_b in channels + filters])
    count, width, columns = (math.prod(level[0] for level in levels) for levels in (images, channels, n))
    x = x.to(dtype).reshape(count, width, *[size for size, _ in image])
    w = w.to(dtype).reshape(columns, width, *[size for size, _, _ in filters])
    function = (torch.conv1d, torch.conv2d, torch.conv3d)[len(taps) - 1]
    return function(x, w, stride=steps, dilation=dilations).movedim(1, -1).reshape(-1, columns).contiguous()


class Epilogue(Launched):
    """A loop nest over the sums of a product, which stores results. It may overwrite the sums."""

    def __init__(self, symbol):
        integers = [ctypes.c_int64] * 6
        signature = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, *integers)
        self.function = signature((symbol, LIBRARY))

    def launch(self, sums, buffers, sizes):
        """Stores the results of ``sums``, [batch, m, n]."""
        if sums.numel() == 0:
            return
        numbers = array.array("q", sizes)
        arguments = addresses(buffers)
        batches, rows, columns = sums.shape

        first, row = sums.data_ptr(), columns * sums.element_size()

        def run(begin, end):
            for batch in range(batches):
                at = first + (batch * rows + begin) * row
                self.function(arguments, numbers.buffer_info()[0], at, columns, batch, begin, end, 0, columns)

        if batches * rows * row <= SERIAL_COST or torch.get_num_threads() == 1:
            run(0, rows)
        else:
            in_parts(run, rows)
