inline Status take_memory(Address *found, std::size_t bytes) { return driver().allocate.pointer(found, bytes); }

inline void release_memory(Address memory) { driver().free.pointer(memory); }

// Waits for the work of the stream.
inline void drain() { driver().stream_synchronize(stream); }

inline void copy_to_device(Address to, const void *from, std::size_t bytes) { driver().to_device(to, from, bytes, stream); }

// Copies what is there when the stream's work is done.
inline void copy_to_host(void *to, Address from, std::size_t bytes) {
    drain();
    driver().to_host(to, from, bytes);
}

inline void copy_on_device(Address to, Address from, std::size_t bytes) { driver().copy(to, from, bytes, stream); }

inline Loaded load_kernel(const Code &code) {
    Loaded out;
    Handle module = nullptr;
    driver().module_load(&module, code.bytes);
    driver().module_function(&out.function, module, code.symbol);
    permit_shared(out.function, code.shared);
    out.threads = code.warps * code.lanes;
    return out;
}

// Launches programs of a kernel, with arguments in one piece.
inline void issue(const Loaded &kernel, unsigned programs, unsigned shared, char *bytes, std::size_t size, const Span *, unsigned) {
    Handle all[] = {reinterpret_cast<Handle>(1), bytes, reinterpret_cast<Handle>(2), &size, reinterpret_cast<Handle>(ARGUMENTS_END)};
    driver().launch(kernel.function, programs, 1, 1, kernel.threads, 1, 1, shared, stream, nullptr, all);
}
