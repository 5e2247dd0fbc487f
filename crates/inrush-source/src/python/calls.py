def flat(value):
    """Returns the results of an operator that gives several, nested ones too."""
    if not isinstance(value, (tuple, list)):
        return [value]
    return [leaf for item in value for leaf in flat(item)]


def as_base(tensor, sizes, strides):
    """Returns a tensor with the strides that a view of it relies on: an operator may have given others."""
    if all(n <= 1 or have == want for n, have, want in zip(sizes, tensor.stride(), strides)):
        return tensor
    return tensor.new_empty_strided(sizes, strides).copy_(tensor)


def view(base, offset, sizes, strides):
    """Returns a tensor in the memory of another, ``offset`` elements after its first."""
    return base.as_strided(sizes, strides, base.storage_offset() + offset)


def constant(dtype, sizes, strides, packed):
    """Returns a constant of the graph, whose memory is written as text."""
    data = bytearray(zlib.decompress(base64.b64decode(packed)))
    if not data:
        return torch.empty_strided(sizes, strides, dtype=dtype, device=DEVICE)
    return torch.frombuffer(data, dtype=torch.uint8).view(dtype).as_strided(sizes, strides)
