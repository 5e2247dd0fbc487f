class InputError(RuntimeError):
    """The inputs are at fault."""


class OutOfRange(IndexError, RuntimeError):
    """A size or an index is out of range. Some of PyTorch's operators raise the one, others the other."""


def expect(name, value, dtype, rank):
    """Checks the kind of an input."""
    if not isinstance(value, torch.Tensor):
        raise InputError(f"input `{name}` must be a tensor, got {value!r}")
    if value.dtype != dtype:
        raise InputError(f"input `{name}` must be {dtype}, got {value.dtype}")
    if value.dim() != rank:
        raise InputError(f"input `{name}` must have {rank} dimensions, got sizes {list(value.shape)}")


def expect_int(name, value):
    """Checks that an input is an integer."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise InputError(f"input `{name}` must be an integer, got {value!r}")
    return value


def expect_constant(name, value, wanted):
    """Checks an input that the model was exported with as a constant."""
    if value is not None and (type(value) is not type(wanted) or value != wanted):
        raise InputError(f"input `{name}` was exported as the constant {wanted!r}; the model is valid for no other value")


def solve(name, tensor, dim, factor=1, offset=0):
    """Returns the number of which size ``dim`` of a tensor is ``factor`` times plus ``offset``."""
    size = tensor.shape[dim]
    value, rest = divmod(size - offset, factor)
    if rest:
        raise InputError(f"input `{name}`: size {size} of dimension {dim} is not what the graph was compiled for")
    return value


def within(name, value, lower, upper):
    """Checks the range of a symbol."""
    if not lower <= value <= upper:
        raise OutOfRange(f"`{name}` is {value}, outside {lower}..={upper}")


def guard(holds, why, left, right):
    """Checks a relation of sizes."""
    if not holds:
        raise OutOfRange(f"{why} does not hold: the sides are {left} and {right}")


def laid_out(name, tensor, dtype, sizes, strides, reads="elements"):
    """Returns a tensor with the layout that kernels read: the tensor itself or a copy."""
    if tuple(tensor.shape) != sizes:
        raise InputError(f"input `{name}`: a tensor of sizes {list(tensor.shape)} where the graph was compiled for {list(sizes)}")
    if tensor.numel() == 0 and tensor.dtype == dtype and tensor.device == DEVICE:
        return tensor
    same = all(n <= 1 or have == want for n, have, want in zip(sizes, tensor.stride(), strides))
    if reads != "elements" and not same:
        raise InputError(
            f"input `{name}` must have strides {list(strides)}, got {list(tensor.stride())}: the program counts positions in its memory (`as_strided`)"
        )
    if reads == "storage" and tensor.storage_offset() != 0:
        raise InputError(
            f"input `{name}` must begin its storage, its offset is {tensor.storage_offset()}: "
            "the program counts positions in the storage (`as_strided`)"
        )
    plain = not (tensor.is_conj() or tensor.is_neg()) and tensor.data_ptr() % ALIGNMENT == 0
    if same and plain and tensor.dtype == dtype and tensor.device == DEVICE:
        return tensor
    copy = torch.empty_strided(sizes, strides, dtype=dtype, device=DEVICE)
    # Elements of a dimension with stride zero share memory: one of them stands for all.
    one = [1 if n > 1 and stride == 0 else n for n, stride in zip(sizes, strides)]
    for dim, n in enumerate(one):
        tensor = tensor.narrow(dim, 0, n)
    copy.as_strided(one, strides).copy_(tensor)
    return copy


def memory(elements, dtype):
    """Returns memory for the elements of a value."""
    return strided_memory((elements,), (1,), dtype)


def strided_memory(sizes, strides, dtype):
    """Returns memory for a tensor."""
    tensor = torch.empty_strided(sizes, strides, dtype=dtype, device=DEVICE)
    return tensor.zero_() if CHECK else tensor


def inside(base, offset, dtype, sizes, strides=(1,)):
    """Returns a tensor in the memory of another, ``offset`` bytes after its first element."""
    start = base.storage_offset() * base.element_size() + offset
    tensor = torch.empty(0, dtype=dtype, device=base.device)
    return tensor.set_(base.untyped_storage(), start // dtype.itemsize, sizes, strides)


def drawn(dtype, sizes, strides):
    """Returns a tensor of random elements. Integers are zeros and ones: they may be indices."""
    if dtype.is_floating_point or dtype.is_complex:
        values = torch.randn(sizes, dtype=torch.complex64 if dtype.is_complex else torch.float32)
    else:
        values = torch.randint(0, 2, sizes)
    tensor = torch.empty_strided(sizes, strides, dtype=dtype, device=DEVICE)
    one = [1 if n > 1 and stride == 0 else n for n, stride in zip(sizes, strides)]
    for dim, n in enumerate(one):
        values = values.narrow(dim, 0, min(n, values.shape[dim]))
    tensor.as_strided(one, strides).copy_(values)
    return tensor
