/* A driver in the place of NVIDIA's, and cuBLAS: device memory is memory of this process, launches are written down in the
   file $FAKE_LOG and run here where the kernel is known. Symbols and their arguments are those that inrush-cuda looks up. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef int Status;
typedef void *Handle;
typedef uint64_t Ptr;

#define API __attribute__((visibility("default")))
#define OK 0
#define OUT_OF_MEMORY 2
#define INVALID 1

static void note(const char *text) {
    const char *path = getenv("FAKE_LOG");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (file) {
        fputs(text, file);
        fputc('\n', file);
        fclose(file);
    }
}

struct function {
    char name[64];
};

/* What is issued: a launch of a known kernel, or a product. */
struct work {
    struct function *function;
    unsigned grid[3], threads, shared;
    unsigned char arguments[512];
    size_t bytes;
    int m, n, k, ta, tb, la, lb, lc;
    const float *a, *b;
    float *c;
};

struct graph {
    struct work work[64];
    int count;
};

static struct graph *capturing;
static Handle capture_stream;

static void launch(const struct work *w, const char *how) {
    char text[2048];
    if (!w->function) {
        sprintf(text, "%sgemm m=%d n=%d k=%d trans=%d%d ld=%d,%d,%d", how, w->m, w->n, w->k, w->ta, w->tb, w->la, w->lb,
                w->lc);
        note(text);
        for (int j = 0; j < w->n; j++)
            for (int i = 0; i < w->m; i++) {
                float sum = 0;
                for (int k = 0; k < w->k; k++)
                    sum += w->a[w->ta ? i * w->la + k : k * w->la + i] * w->b[w->tb ? k * w->lb + j : j * w->lb + k];
                w->c[j * w->lc + i] = sum;
            }
        return;
    }
    int at = sprintf(text, "%slaunch %s grid=%u,%u,%u threads=%u shared=%u args=%zu", how, w->function->name, w->grid[0],
                     w->grid[1], w->grid[2], w->threads, w->shared, w->bytes);
    if (!strcmp(w->function->name, "twice")) {
        float *from, *to;
        int32_t n;
        memcpy(&from, w->arguments, 8);
        memcpy(&to, w->arguments + 8, 8);
        memcpy(&n, w->arguments + 16, 4);
        sprintf(text + at, " n=%d", n);
        for (int i = 0; i < n; i++) to[i] = 2 * from[i];
    }
    note(text);
}

static Status issue(const struct work *w, Handle stream) {
    if (capturing && stream == capture_stream) {
        if (capturing->count == 64) return INVALID;
        capturing->work[capturing->count++] = *w;
        return OK;
    }
    launch(w, "");
    return OK;
}

/* Arguments in one piece, or one by one, of which the sizes are not told. */
static void take(struct work *w, Handle *each, Handle *all) {
    w->bytes = 0;
    if (each || !all) return;
    memcpy(&w->bytes, all[3], sizeof w->bytes);
    if (w->bytes > sizeof w->arguments) w->bytes = sizeof w->arguments;
    memcpy(w->arguments, all[1], w->bytes);
}

API Status cuInit(unsigned flags) { return flags ? INVALID : OK; }
API Status cuDriverGetVersion(int *v) { return *v = 12080, OK; }
API Status cuGetErrorName(Status s, const char **p) { return *p = s == OUT_OF_MEMORY ? "OUT_OF_MEMORY" : "INVALID", OK; }
API Status cuGetErrorString(Status s, const char **p) { return cuGetErrorName(s, p); }

static Handle current;
/* Two devices. */
API Status cuDeviceGet(int *device, int index) { return *device = index, index == 0 || index == 1 ? OK : INVALID; }
/* $FAKE_CAPABILITY is 90 for compute capability 9.0. */
static int capability(void) {
    const char *text = getenv("FAKE_CAPABILITY");
    return text ? atoi(text) : 90;
}
API Status cuDeviceGetAttribute(int *value, int which, int device) {
    switch (which) {
    case 75: *value = capability() / 10; break;
    case 76: *value = capability() % 10; break;
    case 16: *value = 132; break;
    case 38: *value = 50 << 20; break;
    case 39: *value = 2048; break;
    case 82: *value = 65536; break;
    case 97: *value = 227 << 10; break;
    default: *value = 0;
    }
    return OK;
}
API Status cuCtxGetCurrent(Handle *c) { return *c = current, OK; }
static Handle contexts[2];
API Status cuCtxGetDevice(int *device) { return *device = current == &contexts[1], current ? OK : INVALID; }
API Status cuCtxSetCurrent(Handle c) { return current = c, OK; }
API Status cuDevicePrimaryCtxRetain(Handle *c, int device) { return *c = &contexts[device], OK; }

API Status cuModuleLoadData(Handle *module, const void *code) {
    if (memcmp(code, "\177ELF", 4)) note(current == &contexts[1] ? "load ptx on 1" : "load ptx");
    return *module = (Handle)code, OK;
}
API Status cuModuleUnload(Handle module) { return OK; }
API Status cuModuleGetFunction(Handle *function, Handle module, const char *name) {
    struct function *f = calloc(1, sizeof *f);
    strncpy(f->name, name, sizeof f->name - 1);
    return *function = f, OK;
}
API Status cuFuncGetAttribute(int *value, int which, Handle f) { return *value = 0, OK; }
API Status cuFuncSetAttribute(Handle f, int which, int value) { return OK; }
API Status cuLaunchKernel(Handle f, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, Handle stream, Handle *each, Handle *all) {
    struct work w = {.function = f, .grid = {x, y, z}, .threads = bx * by * bz, .shared = shared};
    take(&w, each, all);
    return issue(&w, stream);
}

/* $FAKE_MEMORY is the largest block that there is. */
API Status cuMemAlloc_v2(Ptr *at, size_t bytes) {
    const char *most = getenv("FAKE_MEMORY");
    if (most && bytes > strtoull(most, NULL, 10)) return OUT_OF_MEMORY;
    void *p = NULL;
    if (posix_memalign(&p, 512, bytes)) return OUT_OF_MEMORY;
    memset(p, 0xff, bytes);
    return *at = (Ptr)p, OK;
}
API Status cuMemFree_v2(Ptr at) { return free((void *)at), OK; }
API Status cuMemcpyDtoDAsync_v2(Ptr to, Ptr from, size_t n, Handle stream) { return memcpy((void *)to, (void *)from, n), OK; }
API Status cuMemcpyHtoD_v2(Ptr to, const void *from, size_t n) {
    char text[64];
    sprintf(text, "to device %zu", n);
    note(text);
    return memcpy((void *)to, from, n), OK;
}
API Status cuMemsetD8_v2(Ptr at, unsigned char v, size_t n) { return memset((void *)at, v, n), OK; }
API Status cuMemsetD8Async(Ptr at, unsigned char v, size_t n, Handle stream) {
    note("clear");
    return memset((void *)at, v, n), OK;
}
API Status cuMemcpyDtoH_v2(void *to, Ptr from, size_t n) {
    char text[64];
    sprintf(text, "to host %zu", n);
    note(text);
    return memcpy(to, (void *)from, n), OK;
}

API Status cuStreamSynchronize(Handle stream) { return OK; }
API Status cuStreamIsCapturing(Handle stream, int *status) { return *status = capturing && stream == capture_stream, OK; }
API Status cuStreamCreate(Handle *stream, unsigned flags) {
    if (current == &contexts[1]) note("stream on 1");
    return *stream = malloc(8), flags == 1 ? OK : INVALID;
}
API Status cuStreamBeginCapture_v2(Handle stream, int mode) {
    capturing = calloc(1, sizeof *capturing);
    capture_stream = stream;
    note("begin capture");
    return OK;
}
API Status cuStreamEndCapture(Handle stream, Handle *graph) {
    note("end capture");
    *graph = capturing;
    capturing = NULL;
    return OK;
}

struct node {
    Handle function;
    unsigned grid[3], block[3], shared;
    Handle *parameters, *extra;
};
static void describe(struct work *w, const struct node *n) {
    memset(w, 0, sizeof *w);
    w->function = n->function;
    memcpy(w->grid, n->grid, sizeof w->grid);
    w->threads = n->block[0] * n->block[1] * n->block[2];
    w->shared = n->shared;
    take(w, n->parameters, n->extra);
}
API Status cuGraphCreate(Handle *graph, unsigned flags) { return *graph = calloc(1, sizeof(struct graph)), OK; }
API Status cuGraphAddKernelNode(Handle *node, Handle graph, const Handle *before, size_t count, const void *parameters) {
    struct graph *g = graph;
    if (g->count == 64) return INVALID;
    describe(&g->work[g->count], parameters);
    *node = (Handle)(intptr_t)++g->count;
    return OK;
}
API Status cuGraphInstantiateWithFlags(Handle *ready, Handle graph, uint64_t flags) {
    struct graph *copy = malloc(sizeof *copy);
    memcpy(copy, graph, sizeof *copy);
    note("instantiate");
    return *ready = copy, OK;
}
API Status cuGraphExecKernelNodeSetParams(Handle ready, Handle node, const void *parameters) {
    describe(&((struct graph *)ready)->work[(intptr_t)node - 1], parameters);
    note("set");
    return OK;
}
API Status cuGraphLaunch(Handle ready, Handle stream) {
    struct graph *g = ready;
    for (int i = 0; i < g->count; i++) launch(&g->work[i], "graph ");
    return OK;
}
API Status cuGraphDestroy(Handle graph) { return free(graph), OK; }
API Status cuGraphExecDestroy(Handle ready) { return free(ready), OK; }

API Status cuEventCreate(Handle *event, unsigned flags) { return *event = malloc(8), OK; }
API Status cuEventRecord(Handle event, Handle stream) { return OK; }
API Status cuEventSynchronize(Handle event) { return OK; }
API Status cuEventElapsedTime(float *ms, Handle start, Handle end) { return *ms = 1, OK; }
API Status cuEventDestroy_v2(Handle event) { return free(event), OK; }

/* cuBLAS: handles remember their stream. Products of float32, columns first. */
API Status cublasCreate_v2(Handle *handle) { return *handle = calloc(1, sizeof(Handle)), OK; }
API Status cublasSetStream_v2(Handle handle, Handle stream) { return *(Handle *)handle = stream, OK; }
API Status cublasSetWorkspace_v2(Handle handle, void *at, size_t bytes) { return at ? OK : INVALID; }
API Status cublasGetMathMode(Handle handle, int *mode) { return *mode = 0, OK; }
API Status cublasSetMathMode(Handle handle, int mode) { return OK; }
API Status cublasGemmEx(Handle handle, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int ka,
                        int la, const void *b, int kb, int lb, const void *beta, void *c, int kc, int lc, int compute,
                        int algorithm) {
    if (ka || kb || kc) return INVALID;
    struct work w = {.m = m, .n = n, .k = k, .ta = ta, .tb = tb, .la = la, .lb = lb, .lc = lc, .a = a, .b = b, .c = c};
    return issue(&w, *(Handle *)handle);
}
API Status cublasGemmStridedBatchedEx(Handle handle, int ta, int tb, int m, int n, int k, const void *alpha,
                                      const void *a, int ka, int la, int64_t sa, const void *b, int kb, int lb,
                                      int64_t sb, const void *beta, void *c, int kc, int lc, int64_t sc, int count,
                                      int compute, int algorithm) {
    Status status = OK;
    for (int i = 0; i < count && status == OK; i++)
        status = cublasGemmEx(handle, ta, tb, m, n, k, alpha, (const float *)a + i * sa, ka, la,
                              (const float *)b + i * sb, kb, lb, beta, (float *)c + i * sc, kc, lc, compute, algorithm);
    return status;
}
