// Makes a device current on the calling thread.
inline void use_device(int index) {
    int device = 0;
    Handle context = nullptr;
    driver().device_get(&device, index);
    driver().context_retain(&context, device);
    driver().context_set(context);
}

// Permits a kernel more shared memory than 48 KiB.
inline void permit_shared(Handle function, unsigned bytes) {
    constexpr int max_dynamic_shared_size_bytes = 8;
    if (bytes > 48 * 1024) driver().function_set(function, max_dynamic_shared_size_bytes, static_cast<int>(bytes));
}
