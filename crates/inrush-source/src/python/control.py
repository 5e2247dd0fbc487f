def owned(results, given):
    """Returns results of control flow in memory of their own: what shares it with something given, or with an earlier result, is copied."""
    taken = {t.untyped_storage().data_ptr() for t in given if isinstance(t, torch.Tensor)}
    out = []
    for result in results:
        if isinstance(result, torch.Tensor) and result.numel() > 0:
            if result.untyped_storage().data_ptr() in taken:
                result = result.clone()
            taken.add(result.untyped_storage().data_ptr())
        out.append(result)
    return out


def conformed(tensor, sizes, strides):
    """Returns a tensor with the strides that the program says: a branch may give others."""
    same = all(n <= 1 or have == want for n, have, want in zip(sizes, tensor.stride(), strides))
    if same or tuple(tensor.shape) != sizes:
        return tensor
    return strided_memory(sizes, strides, tensor.dtype).copy_(tensor)


def turns(sliced, stacked):
    """Returns the number of slices along dimension 0, of which all tensors have as many."""
    lengths = {len(t) for t in sliced}
    if len(lengths) != 1:
        raise InputError(f"a scan over tensors of different lengths: {sorted(lengths)}")
    (length,) = lengths
    for t in stacked:
        if len(t) != length:
            raise InputError(f"a scan of {length} turns stacks a tensor of sizes {list(t.shape)}")
    return length


def put(result, stacked, at):
    """Copies the result of a turn to its place."""
    if result.shape != stacked.shape[1:]:
        raise InputError(f"a turn gives sizes {list(result.shape)}, the scan stacks {list(stacked.shape)}")
    stacked[at].copy_(result)
