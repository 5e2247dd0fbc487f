// Steps between segments.

// Returns a tensor with the sizes and strides that kernels read: itself or a copy.
inline Tensor resident(const char *name, const Tensor &t, const Sizes &sizes, const Sizes &strides, Reads reads = Reads::elements) {
    for (std::size_t d = 0; d < std::max(sizes.size(), t.sizes.size()); d++)
        if (sizes.size() != t.sizes.size() || sizes[d] != t.sizes[d])
            throw InputError(std::string("input `") + name + "` must have sizes " + text(sizes) + ", got " + text(t.sizes));
    return laid_out(name, t, strides, reads);
}

inline void assign(const Tensor &to, const Tensor &from) { copy(to, from); }

inline Tensor clone(const Tensor &t) {
    const Tensor out = empty_tensor(t.dtype, t.sizes, t.strides);
    copy(out, t);
    return out;
}

// Returns a tensor in the memory of another, `offset` elements after its first.
inline Tensor view(const Tensor &base, const DType &dtype, Size offset, const Sizes &sizes, const Sizes &strides) {
    return {dtype, sizes, strides, at(base.data, offset * dtype.bytes), base.memory};
}
