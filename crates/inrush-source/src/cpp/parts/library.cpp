// Functions of inrush's library, by their names, on the host.

// A row-major tensor of a call.
struct Dense {
    char *data;
    DType dtype;
    Sizes sizes;
};

inline DLDataType type_of(const DType &dtype) {
    const std::string name = dtype.in_files;
    const int code = name == "BOOL"      ? kDLBool
                     : name == "BF16"    ? kDLBfloat
                     : name == "F8_E4M3" ? 10
                     : name == "F8_E5M2" ? 12
                     : dtype.is_float    ? kDLFloat
                     : name[0] == 'U'    ? kDLUInt
                                         : kDLInt;
    return {static_cast<std::uint8_t>(code), static_cast<std::uint8_t>(8 * dtype.bytes), 1};
}

// Tensors as the library takes them.
class Described {
    std::vector<std::vector<int64_t>> numbers;
    std::vector<DLTensor> tensors;
    std::vector<const DLTensor *> pointers;

    int64_t *kept(const Sizes &sizes) {
        std::vector<int64_t> own;
        for (const Size &n : sizes) own.push_back(n.value);
        numbers.push_back(std::move(own));
        return numbers.back().data();
    }

    void add(const Tensor &of) {
        DLTensor t{};
        t.data = of.data;
        t.device.device_type = kDLCPU;
        t.ndim = static_cast<std::int32_t>(of.sizes.size());
        t.dtype = type_of(of.dtype);
        t.shape = kept(of.sizes);
        t.strides = kept(of.strides);
        tensors.push_back(t);
        pointers.push_back(&tensors.back());
    }

  public:
    // Entries without sizes and dtype stand for tensors that are left out.
    explicit Described(const std::vector<Tensor> &all) {
        // Pointers to entries stay valid.
        numbers.reserve(2 * all.size());
        tensors.reserve(all.size());
        for (const Tensor &t : all)
            if (t.dtype.bytes == 0)
                pointers.push_back(nullptr);
            else
                add(t);
    }

    const DLTensor *const *data() const { return pointers.data(); }

    std::size_t size() const { return pointers.size(); }
};

inline InrushArg parameter() { return {}; }

inline InrushArg parameter(bool value) {
    InrushArg out{};
    out.kind = INRUSH_ARG_BOOL;
    out.value.integer = value;
    return out;
}

inline InrushArg parameter(i64 value) {
    InrushArg out{};
    out.kind = INRUSH_ARG_INT;
    out.value.integer = value;
    return out;
}

inline InrushArg parameter(double value) {
    InrushArg out{};
    out.kind = INRUSH_ARG_REAL;
    out.value.real = value;
    return out;
}

inline void expect_done(InrushStatus status) {
    if (status == INRUSH_INPUT) throw InputError(inrush_last_error());
    if (status != INRUSH_OK) throw MachineError(inrush_last_error());
}

inline void expect_library() {
    if (inrush_abi() != INRUSH_ABI) throw MachineError(std::string("libinrush ") + inrush_version() + " has another interface than the header `inrush.h`");
}

// Runs a function, which writes `outputs`. `operators` are those of the graph, for errors.
inline void library(const char *function, const char *operators, i64 threads, const std::vector<Dense> &inputs, const std::vector<Dense> &outputs,
                    const std::vector<InrushArg> &parameters) {
    expect_library();
    std::vector<Tensor> read, places, written;
    for (const Dense &t : inputs) read.push_back(on_host(tensor_at(t.data, t.dtype, t.sizes)));
    for (const Dense &t : outputs) places.push_back(tensor_at(t.data, t.dtype, t.sizes)), written.push_back(to_fill(places.back()));
    const Described from(read), to(written);
    try {
        expect_done(inrush_library_run(function, threads, from.data(), from.size(), parameters.data(), parameters.size(), to.data(), to.size()));
    } catch (const InputError &error) {
        throw InputError(std::string(error.what()) + " (" + operators + ")");
    }
    for (std::size_t k = 0; k < places.size(); k++) filled(places[k], written[k]);
}

// Runs a function whose data decide the sizes of its results.
inline Values library_results(const char *function, i64 threads, const std::vector<const Tensor *> &inputs, const std::vector<InrushArg> &parameters,
                              std::size_t count) {
    expect_library();
    std::vector<Tensor> read;
    for (const Tensor *t : inputs) read.push_back(t == nullptr ? Tensor{} : on_host(*t));
    const Described from(read);
    std::vector<DLManagedTensorVersioned *> made(count, nullptr);
    expect_done(inrush_library_results(function, threads, from.data(), from.size(), parameters.data(), parameters.size(), made.data(), count));
    Values out;
    for (DLManagedTensorVersioned *one : made) {
        if (one == nullptr) throw MachineError(std::string("`") + function + "` gives no tensor");
        const DLTensor &t = one->dl_tensor;
        Tensor own;
        for (const DType &dtype : dtypes::ALL) {
            const DLDataType type = type_of(dtype);
            if (type.code == t.dtype.code && type.bits == t.dtype.bits) own.dtype = dtype;
        }
        for (std::int32_t d = 0; d < t.ndim; d++) own.sizes.push_back(t.shape[d]);
        own.strides = row_major(own.sizes);
        for (std::int32_t d = 0; t.strides != nullptr && d < t.ndim; d++) own.strides[static_cast<std::size_t>(d)] = t.strides[d];
        own.data = static_cast<char *>(t.data) + t.byte_offset;
        own.memory = std::shared_ptr<char>(own.data, [one](char *) { one->deleter(one); });
        out.push_back(on_device(own));
    }
    return out;
}
