// Released memory of the device by its bytes, which later values of a call take again: all work is on one stream.
struct Pool {
    std::mutex mutex;
    std::map<i64, std::vector<Address>> released;

    void empty() {
        const std::lock_guard<std::mutex> lock(mutex);
        for (const auto &[bytes, all] : released)
            for (const Address one : all) release_memory(one);
        released.clear();
    }
};

// It is not taken down at the end of the program, when the driver may be gone.
inline Pool &pool() {
    static Pool *const one = new Pool;
    return *one;
}

// Returns memory of the device. The host does not read through the pointer.
inline std::shared_ptr<char> device_memory(Size bytes) {
    if (bytes.value < 0) throw InputError("a tensor would take " + std::to_string(bytes.value) + " bytes");
    const i64 size = (Size(bytes.value / 512 + 1) * 512).value;
    Address found = 0;
    {
        const std::lock_guard<std::mutex> lock(pool().mutex);
        std::vector<Address> &all = pool().released[size];
        if (!all.empty()) found = all.back(), all.pop_back();
    }
    if (found == 0 && take_memory(&found, static_cast<std::size_t>(size)) != 0) {
        drain();
        pool().empty();
        driver().allocate.expect(take_memory(&found, static_cast<std::size_t>(size)));
    }
    return std::shared_ptr<char>(pointer(found), [size](char *p) {
        const std::lock_guard<std::mutex> lock(pool().mutex);
        try {
            pool().released[size].push_back(address(p));
        } catch (const std::bad_alloc &) {
            release_memory(address(p));
        }
    });
}

// Makes the device of the process current on the calling thread. Memory and loaded kernels belong to one.
inline void enter(int device) {
    static const int first = device;
    if (device != first)
        throw InputError("this process computes on device " + std::to_string(first) + ": start another one for device " + std::to_string(device));
    use_device(device);
}

inline std::size_t bytes_of(const Tensor &t) { return static_cast<std::size_t>(extent(t.dtype, t.sizes, t.strides).value); }

// Returns the tensor in memory of the device: itself or a copy with the same strides.
inline Tensor on_device(const Tensor &t) {
    if (t.on_device) return t;
    const std::size_t bytes = bytes_of(t);
    const std::shared_ptr<char> memory = device_memory(static_cast<i64>(bytes));
    if (bytes > 0) {
        copy_to_device(address(memory.get()), t.data, bytes);
        drain();
    }
    return {t.dtype, t.sizes, t.strides, memory.get(), memory, true};
}

// Returns the tensor in memory of the host: itself or a copy with the same strides, once the work that gives it is done.
inline Tensor on_host(const Tensor &t) {
    if (!t.on_device) return t;
    const std::size_t bytes = bytes_of(t);
    const Tensor out = empty_tensor(t.dtype, t.sizes, t.strides);
    if (bytes > 0) copy_to_host(out.data, address(t.data), bytes);
    return out;
}

template <class Move>
inline Values moved(const Values &values, const Move &move) {
    Values out;
    for (const Value &value : values) {
        const Tensor *t = std::get_if<Tensor>(&value);
        out.push_back(t == nullptr ? value : Value(move(*t)));
    }
    return out;
}

// Inputs and outputs of `main` are read and written on the host.
inline Values placed(const Values &values) { return moved(values, on_device); }

inline Values fetched(const Values &values) { return moved(values, on_host); }

inline void finish() { drain(); }

const char *const PLACE = "--device";

inline i64 default_place() { return 0; }

inline void expect_place(i64 device) {
    if (device < 0 || device > 1023) throw InputError("--device must be 0 to 1023");
}

// Returns an input of these sizes on the device, with the strides that kernels read.
inline Tensor resident(const char *name, const Tensor &t, const Sizes &sizes, const Sizes &strides, Reads reads = Reads::elements) {
    if (text(t.sizes) != text(sizes)) throw InputError(std::string("input `") + name + "` must have sizes " + text(sizes) + ", got " + text(t.sizes));
    const bool is_same = lies_as(t, strides);
    return on_device(laid_out(name, is_same ? t : on_host(t), strides, reads));
}

// Gives a tensor the elements of another one of equal sizes.
inline void assign(const Tensor &to, const Tensor &from) {
    if (!to.on_device) {
        copy(to, on_host(from));
        return;
    }
    const std::size_t bytes = bytes_of(to);
    if (bytes == 0) return;
    const bool is_dense = bytes == static_cast<std::size_t>((elements(to.sizes) * to.dtype.bytes).value);
    if (is_dense && lies_as(from, to.strides)) {
        const Tensor there = on_device(from);
        copy_on_device(address(to.data), address(there.data), bytes);
        return;
    }
    // Elements between those of the tensor keep their values.
    const Tensor whole = on_host(to);
    copy(whole, on_host(from));
    copy_to_device(address(to.data), whole.data, bytes);
    drain();
}

// Copies the tensor on the device, including gaps between strided elements.
inline Tensor clone(const Tensor &t) {
    const std::size_t bytes = bytes_of(t);
    const std::shared_ptr<char> memory = device_memory(static_cast<i64>(bytes));
    if (bytes > 0) copy_on_device(address(memory.get()), address(on_device(t).data), bytes);
    return {t.dtype, t.sizes, t.strides, memory.get(), memory, true};
}

// Returns a tensor in the memory of another, `offset` elements of its own after the first.
inline Tensor view(const Tensor &base, const DType &dtype, Size offset, const Sizes &sizes, const Sizes &strides) {
    return {dtype, sizes, strides, at(base.data, offset * dtype.bytes), base.memory, base.on_device};
}

inline Tensor new_tensor(const DType &dtype, const Sizes &sizes, const Sizes &strides) {
    const std::shared_ptr<char> memory = device_memory(extent(dtype, sizes, strides));
    return {dtype, sizes, strides, memory.get(), memory, true};
}

// Returns the row-major tensor at an address of the device that something else keeps.
inline Tensor tensor_at(char *data, const DType &dtype, const Sizes &sizes) { return {dtype, sizes, row_major(sizes), data, nullptr, true}; }

// Returns where the host writes a tensor, and puts it to its place.
inline Tensor to_fill(const Tensor &t) { return empty_tensor(t.dtype, t.sizes, t.strides); }

inline void filled(const Tensor &t, const Tensor &written) { assign(t, written); }

// A kernel, whose code is loaded at the first launch.
class Kernel {
    Loaded loaded;
    bool is_loaded = false;

  public:
    const Code code;

    explicit Kernel(const Code &of) : code(of) {}

    const Loaded &load() {
        static std::mutex mutex;
        const std::lock_guard<std::mutex> lock(mutex);
        if (!is_loaded) loaded = load_kernel(code), is_loaded = true;
        return loaded;
    }
};

// A number that a kernel takes in 32 bits.
struct Int32 {
    std::int32_t value;
};

inline Int32 int32(const char *name, Size n) {
    if (n.value != static_cast<std::int32_t>(n.value))
        throw InputError(std::string("`") + name + "` is " + std::to_string(n.value) + ": the kernel counts in 32 bits");
    return {static_cast<std::int32_t>(n.value)};
}

// Arguments as a kernel reads them: each at a multiple of its bytes.
class Arguments {
    static constexpr unsigned MOST = 512;
    char bytes[8 * MOST];
    Span spans[MOST];
    std::size_t size = 0;
    unsigned count = 0;

    void put(const void *value, std::size_t width) {
        const std::size_t begin = (size + width - 1) / width * width;
        if (count == MOST || begin + width > sizeof bytes) throw MachineError("a kernel has too many arguments");
        std::memset(bytes + size, 0, begin - size);
        std::memcpy(bytes + begin, value, width);
        size = begin + width;
        spans[count++] = {static_cast<unsigned>(begin), static_cast<unsigned>(width)};
    }

  public:
    void add(const char *p) {
        const Address a = address(p);
        put(&a, sizeof a);
    }

    void add(Size n) { put(&n.value, sizeof n.value); }

    void add(Int32 n) { put(&n.value, sizeof n.value); }

    void launch(Kernel &kernel, unsigned programs) { issue(kernel.load(), programs, kernel.code.shared, bytes, size, spans, count); }
};

// Launches so many programs of a kernel.
template <class... A>
inline void launch(Kernel &kernel, Size programs, const A &...arguments) {
    if (programs.value <= 0) return;
    if (programs.value > 2147483647 || programs.value * kernel.code.warps * kernel.code.lanes > MAX_THREADS)
        throw InputError(std::string("`") + kernel.code.symbol + "` would have " + std::to_string(programs.value) + " programs, more than the device takes");
    Arguments all;
    (all.add(arguments), ...);
    // Triton's kernels take scratch space and that of a profiler last.
    all.add(static_cast<const char *>(nullptr));
    all.add(static_cast<const char *>(nullptr));
    all.launch(kernel, static_cast<unsigned>(programs.value));
}
