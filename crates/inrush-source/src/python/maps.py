def tensor_map(base, offset, dtype, sizes, strides, block):
    """Returns a descriptor of a tensor in the memory of another, ``offset`` elements after its first, that is read in tiles of ``block``."""
    from triton.tools.tensor_descriptor import TensorDescriptor

    return TensorDescriptor(inside(base, offset * dtype.itemsize, dtype, sizes, strides), list(sizes), list(strides), block)
