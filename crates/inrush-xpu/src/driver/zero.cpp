// Structures of Level Zero: each begins with its number and a pointer to extensions.
namespace zero {

struct Head {
    unsigned kind;
    const void *next = nullptr;
};

struct ContextDesc {
    Head head{0xd};
    unsigned flags = 0;
};

// Work runs in order, and the host does not wait for it.
struct ListDesc {
    Head head{0xe};
    unsigned ordinal = 0, index = 0, flags = 2, mode = 2, priority = 0;
};

struct MemoryDesc {
    Head head{0x15};
    unsigned flags = 0, ordinal = 0;
};

struct ModuleDesc {
    Head head{0x1b};
    unsigned format = 0;
    std::size_t count = 0;
    const unsigned char *bytes = nullptr;
    const char *flags = nullptr;
    const void *constants = nullptr;
};

struct KernelDesc {
    Head head{0x1d};
    unsigned flags = 0;
    const char *name = nullptr;
};

struct KernelProperties {
    Head head{0x1e};
    unsigned arguments = 0, group[3] = {}, sub_groups = 0, lanes = 0, max_lanes = 0, max_sub_groups = 0, local = 0, own = 0, spilled = 0;
    unsigned char id[32] = {};
};

static_assert(sizeof(ListDesc) == 40 && sizeof(ModuleDesc) == 56 && sizeof(KernelDesc) == 32 && sizeof(KernelProperties) == 96, "the layouts of the header");

// The device of the process, and the context of its memory and kernels.
struct Place {
    Handle context = nullptr, device = nullptr;
};

inline Place &place() {
    static Place one;
    return one;
}

constexpr unsigned long long FOREVER = ~0ull;

// Returns what a command list of the caller's was made with.
inline Handle of_list(const char *symbol) {
    Driver::Function<Handle, Handle *> get{&driver(), symbol, nullptr};
    driver().find(get);
    Handle out = nullptr;
    get(stream, &out);
    return out;
}

// Reads and destroys the text of a build.
inline std::string log_of(Handle log) {
    std::string text;
    std::size_t count = 0;
    if (log == nullptr) return text;
    if (driver().log_text.pointer(log, &count, nullptr) == 0) {
        text.resize(count);
        if (count > 0 && driver().log_text.pointer(log, &count, &text[0]) != 0) text.clear();
    }
    driver().log_destroy.pointer(log);
    return text.c_str();
}

}  // namespace zero

// Makes the device of the process ready: a context, and an immediate command list unless `stream` is one.
inline void use_device(int index) {
    static std::mutex mutex;
    const std::lock_guard<std::mutex> lock(mutex);
    zero::Place &place = zero::place();
    if (place.context != nullptr) return;
    if (stream != nullptr) {
        place.device = zero::of_list("zeCommandListGetDeviceHandle");
        place.context = zero::of_list("zeCommandListGetContextHandle");
        return;
    }
    unsigned count = 1;
    Handle found = nullptr;
    driver().driver_get(&count, &found);
    if (count == 0) throw MachineError("Level Zero has no driver for a GPU");
    count = 0;
    driver().device_get(found, &count, nullptr);
    std::vector<Handle> devices(count);
    if (count > 0) driver().device_get(found, &count, devices.data());
    if (index < 0 || static_cast<std::size_t>(index) >= devices.size())
        throw MachineError("Level Zero has " + std::to_string(devices.size()) + " devices, which are counted from 0");
    place.device = devices[static_cast<std::size_t>(index)];
    const zero::ContextDesc of_context;
    Handle context = nullptr;
    driver().context_create(found, &of_context, &context);
    const zero::ListDesc of_list;
    driver().list_create(context, place.device, &of_list, &stream);
    place.context = context;
}

inline Status take_memory(Address *found, std::size_t bytes) {
    const zero::MemoryDesc desc;
    Handle memory = nullptr;
    const Status status = driver().allocate.pointer(zero::place().context, &desc, bytes, 512, zero::place().device, &memory);
    *found = address(static_cast<char *>(memory));
    return status;
}

// Memory is freed at once: it stays where work may still use it.
inline void release_memory(Address memory) {
    if (driver().list_synchronize.pointer(stream, zero::FOREVER) == 0) driver().free.pointer(zero::place().context, pointer(memory));
}

// Waits for the work of the stream.
inline void drain() { driver().list_synchronize(stream, zero::FOREVER); }

inline void copy_to_device(Address to, const void *from, std::size_t bytes) {
    driver().append_copy(stream, pointer(to), from, bytes, nullptr, 0, nullptr);
}

// Copies what is there when the stream's work is done.
inline void copy_to_host(void *to, Address from, std::size_t bytes) {
    driver().append_copy(stream, to, pointer(from), bytes, nullptr, 0, nullptr);
    drain();
}

inline void copy_on_device(Address to, Address from, std::size_t bytes) {
    driver().append_copy(stream, pointer(to), pointer(from), bytes, nullptr, 0, nullptr);
}

inline Loaded load_kernel(const Code &code) {
    zero::ModuleDesc of_module;
    of_module.bytes = code.bytes;
    of_module.count = code.count;
    Handle module = nullptr, log = nullptr;
    const Status status = driver().module_create.pointer(zero::place().context, zero::place().device, &of_module, &module, &log);
    const std::string text = zero::log_of(log);
    if (status != 0 && !text.empty()) throw MachineError(std::string("`") + code.symbol + "` is not built: " + text);
    driver().module_create.expect(status);
    zero::KernelDesc of_kernel;
    of_kernel.name = code.symbol;
    Loaded out;
    driver().kernel_create(module, &of_kernel, &out.function);
    zero::KernelProperties properties;
    driver().kernel_properties(out.function, &properties);
    // Kernels have sub-groups of as many threads as they were built for, where that is told.
    out.threads = code.warps * (properties.lanes > 0 ? properties.lanes : code.lanes);
    out.arguments = properties.arguments;
    return out;
}

// Launches programs of a kernel, which takes its arguments one by one, and shared memory last.
inline void issue(const Loaded &kernel, unsigned programs, unsigned shared, char *bytes, std::size_t, const Span *spans, unsigned count) {
    const bool takes_shared = shared > 0 && kernel.arguments == count + 1;
    if (kernel.arguments != count + (takes_shared ? 1 : 0))
        throw MachineError("a kernel of " + std::to_string(kernel.arguments) + " arguments gets " + std::to_string(count));
    // Arguments are state of the kernel until it is appended.
    static std::mutex mutex;
    const std::lock_guard<std::mutex> lock(mutex);
    driver().group_size(kernel.function, kernel.threads, 1, 1);
    for (unsigned k = 0; k < count; k++) driver().set_argument(kernel.function, k, spans[k].bytes, bytes + spans[k].begin);
    if (takes_shared) driver().set_argument(kernel.function, count, shared, nullptr);
    const unsigned groups[3] = {programs, 1, 1};
    driver().append_launch(stream, kernel.function, groups, nullptr, 0, nullptr);
}
