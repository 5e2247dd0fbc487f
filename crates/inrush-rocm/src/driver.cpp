// Makes a device current on the calling thread.
inline void use_device(int index) { driver().set_device(index); }

// Permits a kernel shared memory: HIP asks for nothing.
inline void permit_shared(Handle, unsigned) {}
