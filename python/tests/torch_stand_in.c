/* Functions of libtorch as a build of PyTorch for ROCm or for Intel GPUs has them, over a build for CPUs: tensors say that they are on
   the first device of type NAME, whose number is TYPE, and are in memory of this process. Float64 scalars are the host's. It stands in the place of `libtorch_cpu.so`
   and of the library for the device; all other functions are the real library's, which it is linked with. See `other_process.py`. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>

#define API __attribute__((visibility("default")))
#define CPU 0
#define FLOAT64 7
#define JOIN(a, b, c) a##b##c
#define JOINED(a, b, c) JOIN(a, b, c)
#define OF(before, after) JOINED(before, NAME, after)

static void *stream;
static long streams_asked, guards;
API void stand_in_stream(void *s) { stream = s; }
API long stand_in_asked(void) { return streams_asked; }
API long stand_in_guards(void) { return guards; }

static void *real(const char *name) {
    static void *library;
    if (!library) library = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    void *found = library ? dlsym(library, name) : NULL;
    if (!found) abort();
    return found;
}

API int aoti_torch_get_device_type(void *tensor, int32_t *type) {
    int (*dim_of)(void *, int64_t *) = real("aoti_torch_get_dim");
    int (*dtype_of)(void *, int32_t *) = real("aoti_torch_get_dtype");
    int64_t dim = 0;
    int32_t dtype = 0;
    if (dim_of(tensor, &dim) || dtype_of(tensor, &dtype)) return 1;
    return *type = dim == 0 && dtype == FLOAT64 ? CPU : TYPE, 0;
}
API int aoti_torch_get_device_index(void *tensor, int32_t *index) { return *index = 0, 0; }

API int aoti_torch_empty_strided(int64_t rank, const int64_t *sizes, const int64_t *strides, int32_t dtype, int32_t type, int32_t index,
                                 void **made) {
    int (*f)(int64_t, const int64_t *, const int64_t *, int32_t, int32_t, int32_t, void **) = real("aoti_torch_empty_strided");
    return type == TYPE ? f(rank, sizes, strides, dtype, CPU, 0, made) : 1;
}

API int aoti_torch_create_tensor_from_blob(void *at, int64_t rank, const int64_t *sizes, const int64_t *strides, int64_t offset,
                                           int32_t dtype, int32_t type, int32_t index, void **made) {
    int (*f)(void *, int64_t, const int64_t *, const int64_t *, int64_t, int32_t, int32_t, int32_t, void **) =
        real("aoti_torch_create_tensor_from_blob");
    return type == TYPE ? f(at, rank, sizes, strides, offset, dtype, CPU, 0, made) : 1;
}

/* PyTorch's allocator gives freed memory to later work of the stream only; here it stays until the work is done. */
static void *freed[1 << 16];
static int pending;
API int aoti_torch_delete_tensor_object(void *tensor) {
    if (pending == sizeof freed / sizeof *freed) abort();
    return freed[pending++] = tensor, 0;
}
API void stand_in_collect(void) {
    int (*f)(void *) = real("aoti_torch_delete_tensor_object");
    while (pending) f(freed[--pending]);
}

API int OF(aoti_torch_create_, _guard)(int32_t index, void **guard) { return guards++, *guard = &stream, index; }
API int OF(aoti_torch_delete_, _guard)(void *guard) { return guards--, guard != &stream; }
API int OF(aoti_torch_get_current_, _stream)(int32_t index, void **s) { return streams_asked++, *s = stream, index; }
API int OF(aoti_torch_create_, _stream_guard)(void *s, int32_t index, void **guard) { return guards++, *guard = &stream, index; }
API int OF(aoti_torch_delete_, _stream_guard)(void *guard) { return guards--, guard != &stream; }

/* PyTorch's products; a device that is late has done what comes before them. */
static void (*wait_for)(void *);
static void *waited;
API void stand_in_wait(void (*f)(void *), void *object) { wait_for = f, waited = object; }
API int OF(aoti_torch_, _mm_out)(void *out, void *a, void *b) {
    int (*f)(void *, void *, void *) = real("aoti_torch_cpu_mm_out");
    return wait_for ? (wait_for(waited), f(out, a, b)) : f(out, a, b);
}

/* Work of PyTorch's own after that of others, which its events do not know before. Operators that are called then see all results. */
static long told;
API long stand_in_told(void) { return told; }
API int aoti_torch_zero_(void *tensor) {
    told++;
    if (wait_for) wait_for(waited);
    return tensor ? 0 : 1;
}
