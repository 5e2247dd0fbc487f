/* A driver in the place of NVIDIA's, with cuBLAS, of AMD's and of Intel's: device memory is memory of this process, launches are written
   down in the file $FAKE_LOG and run here where the kernel is known. Symbols and their arguments are those that inrush-cuda,
   inrush-rocm and inrush-xpu look up. Functions are written once, by CUDA's names; most of HIP's are the same (PAIRS, at the end).
   Level Zero's are in zero.c. */

#include <pthread.h>
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
#define UNKNOWN 999

static void note(const char *text) {
    const char *path = getenv("FAKE_LOG");
    FILE *file = path ? fopen(path, "a") : NULL;
    if (file) {
        fputs(text, file);
        fputc('\n', file);
        fclose(file);
    }
}

/* Machine code that is text: tests whose kernels are interpreted build such. The interpreter gets the text, the grid and the
   arguments. */
typedef void (*Interpreter)(const char *text, const unsigned *grid, const unsigned char *arguments, size_t bytes);
static Interpreter interpreter;
API void fake_interpret(Interpreter f) { interpreter = f; }

struct function {
    char name[128];
    const char *text;
};

/* What is issued: a launch of a known kernel, a product, a copy, bytes that are set, a wait for a point of another stream. */
enum kind { LAUNCH, PRODUCT, COPY, SET, FROM_HOST, WAIT, GRAPH };
struct stream;
struct work {
    enum kind kind;
    struct function *function;
    unsigned grid[3], threads, shared;
    int overlaps; /* with the kernel before it */
    unsigned char arguments[4096];
    size_t bytes;
    int m, n, k, ta, tb, la, lb, lc;
    const float *a, *b;
    float *c;
    void *to;
    const void *from;
    struct stream *other;
    long point;
};

struct graph {
    struct work work[64];
    int count;
};

/* With $FAKE_LATE, work waits in its stream until something waits for the stream, as on a device: what is read too early is
   not there, and what is written too early is lost. */
struct stream {
    struct graph *capturing;
    struct work *queue;
    long count, room, done;
    Handle device; /* Level Zero's */
    struct stream *next;
};
struct event {
    struct stream *stream;
    long point; /* entries of the stream's queue that come before it */
};

static pthread_mutex_t mutex;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct stream *streams;
static int late;
static void start(void) {
    pthread_mutexattr_t a;
    pthread_mutexattr_init(&a);
    pthread_mutexattr_settype(&a, PTHREAD_MUTEX_RECURSIVE);
    pthread_mutex_init(&mutex, &a);
    late = getenv("FAKE_LATE") != NULL;
}
static void enter(void) {
    pthread_once(&once, start);
    pthread_mutex_lock(&mutex);
}
static Status leave(Status s) {
    pthread_mutex_unlock(&mutex);
    return s;
}

/* $FAKE_FAIL is the name of a function whose calls fail, with a number of calls that succeed before: `cuMemAlloc_v2:3`. */
static int is_named(const char *function, const char *text, size_t n);
static Status fails(const char *function) {
    static int calls;
    const char *text = getenv("FAKE_FAIL");
    if (!text || !is_named(function, text, strcspn(text, ":"))) return OK;
    const char *after = strchr(text, ':');
    if (__sync_fetch_and_add(&calls, 1) < (after ? atoi(after + 1) : 0)) return OK;
    char line[160];
    snprintf(line, sizeof line, "fails %s", function);
    return note(line), UNKNOWN;
}
#define MAY_FAIL if (fails(__func__)) return UNKNOWN;

static void run_until(struct stream *s, long point);
static void replay(struct graph *g);

static void launch(const struct work *w, const char *how) {
    char text[2048];
    switch (w->kind) {
    case COPY: memmove(w->to, w->from, w->bytes); return;
    case FROM_HOST: memcpy(w->to, w->from, w->bytes); return;
    case SET: memset(w->to, w->n, w->bytes); return;
    case WAIT: run_until(w->other, w->point); return;
    case GRAPH: replay(w->to); return;
    default: break;
    }
    if (w->kind == PRODUCT) {
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
    if (w->overlaps) strcat(text, " overlaps");
    note(text);
    if (w->function->text && interpreter) interpreter(w->function->text, w->grid, w->arguments, w->bytes);
}

static void run_until(struct stream *s, long point) {
    while (s && s->done < point) {
        struct work w = s->queue[s->done++];
        launch(&w, "");
    }
}
static void replay(struct graph *g) {
    for (int i = 0; i < g->count; i++) launch(&g->work[i], "graph ");
    free(g);
}
static void run_all(void) {
    for (struct stream *s = streams; s; s = s->next) run_until(s, s->count);
}

/* Streams without memory of their own (0, 1 and 2) run at once. */
static struct stream *stream_of(Handle stream) { return (uintptr_t)stream > 2 ? stream : NULL; }

static Status issue(const struct work *w, Handle handle) {
    struct stream *s = stream_of(handle);
    if (s && s->capturing) {
        if (s->capturing->count == 64) return INVALID;
        s->capturing->work[s->capturing->count++] = *w;
        return OK;
    }
    if (!s || !late) {
        launch(w, "");
        return OK;
    }
    if (s->count == s->room) {
        s->room = s->room ? 2 * s->room : 64;
        s->queue = realloc(s->queue, s->room * sizeof *s->queue);
    }
    s->queue[s->count++] = *w;
    return OK;
}

/* HIP has a current device on each thread from the start, and another end of a launch's arguments. */
static int is_hip;

/* Arguments in one piece, or one by one. Sizes of the latter are told by machine code that is text, which begins with their
   places: {"places": [[offset, bytes], ...], */
static void take(struct work *w, Handle *each, Handle *all) {
    static const char begin[] = "{\"places\": [";
    w->bytes = 0;
    const char *text = w->function->text;
    if (each && text && !strncmp(text, begin, strlen(begin)))
        for (text += strlen(begin); *text != ']'; text += strspn(text, "], ")) {
            char *after;
            size_t at = strtoul(text + 1, &after, 10), bytes = strtoul(after + 1, &after, 10);
            if (at + bytes > sizeof w->arguments) abort();
            memset(w->arguments + w->bytes, 0, at - w->bytes);
            memcpy(w->arguments + at, *each++, bytes);
            w->bytes = at + bytes;
            text = after;
            if (!strncmp(text, "]]", 2)) break;
        }
    if (each || !all) return;
    if (all[0] != (Handle)1 || all[2] != (Handle)2 || all[4] != (Handle)(is_hip ? 3L : 0L)) abort();
    memcpy(&w->bytes, all[3], sizeof w->bytes);
    if (w->bytes > sizeof w->arguments) w->bytes = sizeof w->arguments;
    memcpy(w->arguments, all[1], w->bytes);
}

API Status hipInit(unsigned flags) { MAY_FAIL return is_hip = 1, flags ? INVALID : OK; }
API Status cuInit(unsigned flags) { MAY_FAIL return flags ? INVALID : OK; }
API Status cuDriverGetVersion(int *v) { MAY_FAIL return *v = is_hip ? 60342131 : 12080, OK; }
API Status cuDeviceGetCount(int *count) { MAY_FAIL return *count = 2, OK; }
API Status cuGetErrorName(Status s, const char **p) { MAY_FAIL return *p = s == OUT_OF_MEMORY ? "OUT_OF_MEMORY" : "INVALID", OK; }
API Status cuGetErrorString(Status s, const char **p) { MAY_FAIL return cuGetErrorName(s, p); }

static __thread Handle current;
static Handle contexts[2];
static Handle now(void) { return current || !is_hip ? current : &contexts[0]; }
/* Two devices. */
API Status cuDeviceGet(int *device, int index) { MAY_FAIL return *device = index, index == 0 || index == 1 ? OK : INVALID; }
/* $FAKE_CAPABILITY is 90 for compute capability 9.0. */
static int capability(void) {
    const char *text = getenv("FAKE_CAPABILITY");
    return text ? atoi(text) : 90;
}
API Status cuDeviceGetAttribute(int *value, int which, int device) {
    MAY_FAIL
    switch (which) {
    case 75: *value = capability() / 10; break;
    case 76: *value = capability() % 10; break;
    case 16: *value = getenv("FAKE_MULTIPROCESSORS") ? atoi(getenv("FAKE_MULTIPROCESSORS")) : 132; break;
    case 38: *value = 50 << 20; break;
    case 39: *value = 2048; break;
    case 82: *value = 65536; break;
    case 97: *value = 227 << 10; break;
    default: *value = 0;
    }
    return OK;
}
/* $FAKE_ARCH is the architecture with its features. */
API Status hipGetDevicePropertiesR0600(char *properties, int device) {
    MAY_FAIL
    const char *text = getenv("FAKE_ARCH");
    memset(properties, 0, 1472);
    strncpy(properties + 1160, text ? text : "gfx942:sramecc+:xnack-", 255);
    return OK;
}
API Status hipDeviceGetAttribute(int *value, int which, int device) {
    MAY_FAIL
    switch (which) {
    case 23: *value = 9; break;
    case 61: *value = 4; break;
    case 63: *value = 304; break;
    case 19: *value = 4 << 20; break;
    case 57: *value = 2048; break;
    case 72: *value = 131072; break;
    case 74: *value = 64 << 10; break;
    default: return INVALID;
    }
    return OK;
}
API Status cuCtxSynchronize(void) {
    MAY_FAIL
    enter();
    for (struct stream *s = streams; s; s = s->next)
        if (s->capturing) return leave(INVALID);
    run_all();
    return leave(OK);
}
API Status cuCtxGetCurrent(Handle *c) { MAY_FAIL return *c = current, OK; }
API Status hipGetDevice(int *device) { MAY_FAIL return *device = now() == &contexts[1], OK; }
API Status hipSetDevice(int device) {
    MAY_FAIL
    if (device != 0 && device != 1) return INVALID;
    return current = &contexts[device], OK;
}
API Status cuCtxGetDevice(int *device) { MAY_FAIL return *device = current == &contexts[1], current ? OK : INVALID; }
API Status cuCtxSetCurrent(Handle c) { MAY_FAIL return current = c, OK; }
API Status cuDevicePrimaryCtxRetain(Handle *c, int device) { MAY_FAIL return *c = &contexts[device], OK; }

API Status cuModuleLoadData(Handle *module, const void *code) {
    MAY_FAIL
    if (memcmp(code, "\177ELF", 4)) note(current == &contexts[1] ? "load ptx on 1" : "load ptx");
    int is_text = !memcmp(code, "\177ELF{", 5);
    return *module = is_text ? strdup((const char *)code + 4) : NULL, OK;
}
API Status cuModuleUnload(Handle module) { MAY_FAIL return OK; }
API Status cuModuleGetFunction(Handle *function, Handle module, const char *name) {
    MAY_FAIL
    struct function *f = calloc(1, sizeof *f);
    strncpy(f->name, name, sizeof f->name - 1);
    f->text = module;
    return *function = f, OK;
}
API Status cuFuncGetAttribute(int *value, int which, Handle f) { MAY_FAIL return *value = 0, OK; }
API Status cuFuncSetAttribute(Handle f, int which, int value) { MAY_FAIL return OK; }
/* A launch of $FAKE_REFUSED_THREADS threads is refused; one of $FAKE_FAST_THREADS takes half the time of others. */
static unsigned number(const char *name) {
    const char *text = getenv(name);
    return text ? atoi(text) : 0;
}
static unsigned last_threads;
API Status cuLaunchKernel(Handle f, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, Handle stream, Handle *each, Handle *all) {
    MAY_FAIL
    struct work w = {.kind = LAUNCH, .function = f, .grid = {x, y, z}, .threads = bx * by * bz, .shared = shared};
    take(&w, each, all);
    if (w.threads == number("FAKE_REFUSED_THREADS")) return 701; /* out of resources */
    enter();
    last_threads = w.threads;
    return leave(now() ? issue(&w, stream) : INVALID);
}

/* A map holds what it was made of: the address, sizes, strides, the tile, the rank and the type of elements. */
struct map {
    uint64_t at, sizes[5], strides[4];
    uint32_t tile[5], rank, element, rest[5];
};
API Status cuTensorMapEncodeTiled(struct map *map, int element, unsigned rank, void *at, const uint64_t *sizes,
                                  const uint64_t *strides, const uint32_t *tile, const uint32_t *steps, int interleave,
                                  int swizzle, int promotion, int fill) {
    MAY_FAIL
    char text[128];
    if (rank < 1 || rank > 5 || (uintptr_t)map % 64 || (uintptr_t)at % 16) return INVALID;
    struct map made = {.at = (uint64_t)at, .rank = rank, .element = element};
    for (unsigned i = 0; i < rank; i++) {
        made.sizes[i] = sizes[i];
        made.tile[i] = tile[i];
        if (i + 1 < rank) made.strides[i] = strides[i];
        if (!sizes[i] || !tile[i] || tile[i] > 256 || steps[i] != 1 || (i + 1 < rank && strides[i] % 16)) return INVALID;
    }
    sprintf(text, "tensor map rank=%u sizes=%llu,%llu tile=%u,%u", rank, (unsigned long long)sizes[0],
            (unsigned long long)sizes[1], tile[0], tile[1]);
    note(text);
    return *map = made, OK;
}

struct attribute {
    int id, padding, value[16];
};
struct config {
    unsigned grid[3], block[3], shared;
    Handle stream;
    const struct attribute *attributes;
    unsigned count;
};
API Status cuLaunchKernelEx(const struct config *c, Handle f, Handle *each, Handle *all) {
    MAY_FAIL
    struct work w = {.kind = LAUNCH, .function = f, .shared = c->shared};
    memcpy(w.grid, c->grid, sizeof w.grid);
    w.threads = c->block[0] * c->block[1] * c->block[2];
    for (unsigned i = 0; i < c->count; i++) w.overlaps |= c->attributes[i].id == 6 && c->attributes[i].value[0];
    take(&w, each, all);
    if (w.threads == number("FAKE_REFUSED_THREADS")) return 701;
    enter();
    last_threads = w.threads;
    return leave(now() ? issue(&w, c->stream) : INVALID);
}

/* $FAKE_MEMORY is the largest block that there is. */
API Status cuMemAlloc_v2(Ptr *at, size_t bytes) {
    MAY_FAIL
    const char *most = getenv("FAKE_MEMORY");
    if (!now()) return INVALID;
    if (most && bytes > strtoull(most, NULL, 10)) return OUT_OF_MEMORY;
    void *p = NULL;
    if (posix_memalign(&p, 512, bytes)) return OUT_OF_MEMORY;
    memset(p, 0xff, bytes);
    return *at = (Ptr)p, OK;
}
API Status cuMemFree_v2(Ptr at) { MAY_FAIL return now() ? free((void *)at), OK : INVALID; }
API Status cuMemcpyDtoDAsync_v2(Ptr to, Ptr from, size_t n, Handle stream) {
    MAY_FAIL
    struct work w = {.kind = COPY, .to = (void *)to, .from = (void *)from, .bytes = n};
    enter();
    return leave(issue(&w, stream));
}
API Status cuMemcpyHtoDAsync_v2(Ptr to, const void *from, size_t n, Handle stream) {
    MAY_FAIL
    struct work w = {.kind = FROM_HOST, .to = (void *)to, .from = from, .bytes = n};
    char text[64];
    sprintf(text, "to device %zu", n);
    note(text);
    enter();
    return leave(issue(&w, stream));
}
API Status cuMemcpyHtoD_v2(Ptr to, const void *from, size_t n) {
    MAY_FAIL
    char text[64];
    sprintf(text, "to device %zu", n);
    note(text);
    return memcpy((void *)to, from, n), OK;
}
API Status cuMemsetD8_v2(Ptr at, unsigned char v, size_t n) { MAY_FAIL return memset((void *)at, v, n), OK; }
API Status cuMemsetD8Async(Ptr at, unsigned char v, size_t n, Handle stream) {
    MAY_FAIL
    struct work w = {.kind = SET, .to = (void *)at, .n = v, .bytes = n};
    note("clear");
    enter();
    return leave(issue(&w, stream));
}
API Status cuMemcpyDtoH_v2(void *to, Ptr from, size_t n) {
    MAY_FAIL
    char text[64];
    sprintf(text, "to host %zu", n);
    note(text);
    return memcpy(to, (void *)from, n), OK;
}

API Status cuStreamSynchronize(Handle stream) {
    MAY_FAIL
    enter();
    struct stream *s = stream_of(stream);
    if (s && s->capturing) return leave(INVALID);
    if (s) run_until(s, s->count);
    return leave(OK);
}
API Status cuStreamIsCapturing(Handle stream, int *status) {
    MAY_FAIL
    struct stream *s = stream_of(stream);
    return *status = s && s->capturing, OK;
}
API Status cuStreamCreate(Handle *stream, unsigned flags) {
    MAY_FAIL
    if (current == &contexts[1]) note("stream on 1");
    struct stream *s = calloc(1, sizeof *s);
    enter();
    s->next = streams;
    streams = s;
    return *stream = s, leave(flags == 1 ? OK : INVALID);
}
/* Its work goes on. */
API Status cuStreamDestroy_v2(Handle stream) {
    MAY_FAIL
    enter();
    struct stream *s = stream_of(stream);
    if (s) run_until(s, s->count);
    return leave(OK);
}
API Status cuStreamWaitEvent(Handle stream, Handle event, unsigned flags) {
    MAY_FAIL
    struct event *e = event;
    struct work w = {.kind = WAIT, .other = e->stream, .point = e->point};
    enter();
    return leave(issue(&w, stream));
}
API Status cuStreamBeginCapture_v2(Handle stream, int mode) {
    MAY_FAIL
    enter();
    struct stream *s = stream_of(stream);
    if (!s || s->capturing) return leave(INVALID);
    s->capturing = calloc(1, sizeof *s->capturing);
    note("begin capture");
    return leave(OK);
}
/* Nothing that other threads do ends a capture here. */
API Status cuThreadExchangeStreamCaptureMode(int *mode) { MAY_FAIL return *mode = 0, OK; }
API Status cuStreamEndCapture(Handle stream, Handle *graph) {
    MAY_FAIL
    enter();
    struct stream *s = stream_of(stream);
    note("end capture");
    *graph = s->capturing;
    s->capturing = NULL;
    return leave(OK);
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
struct hip_node {
    unsigned block[3];
    Handle *extra, function;
    unsigned grid[3];
    Handle *parameters;
    unsigned shared;
};
static struct node of_hip(const struct hip_node *n) {
    struct node same = {.function = n->function, .shared = n->shared, .parameters = n->parameters, .extra = n->extra};
    memcpy(same.grid, n->grid, sizeof same.grid);
    memcpy(same.block, n->block, sizeof same.block);
    return same;
}
API Status cuGraphCreate(Handle *graph, unsigned flags) { MAY_FAIL return *graph = calloc(1, sizeof(struct graph)), OK; }
API Status cuGraphAddKernelNode(Handle *node, Handle graph, const Handle *before, size_t count, const void *parameters) {
    MAY_FAIL
    struct graph *g = graph;
    if (g->count == 64) return INVALID;
    describe(&g->work[g->count], parameters);
    *node = (Handle)(intptr_t)++g->count;
    return OK;
}
API Status hipGraphAddKernelNode(Handle *node, Handle graph, const Handle *before, size_t count, const void *parameters) {
    struct node same = of_hip(parameters);
    return cuGraphAddKernelNode(node, graph, before, count, &same);
}
struct edge {
    unsigned char from, to, kind, reserved[5];
};
API Status cuGraphAddDependencies_v2(Handle graph, const Handle *from, const Handle *to, const struct edge *edges, size_t n) {
    MAY_FAIL
    for (size_t i = 0; i < n; i++) {
        if ((intptr_t)to[i] != (intptr_t)from[i] + 1) return INVALID;
        ((struct graph *)graph)->work[(intptr_t)to[i] - 1].overlaps = edges[i].kind == 1 && edges[i].from == 1;
    }
    return OK;
}
API Status cuGraphInstantiateWithFlags(Handle *ready, Handle graph, uint64_t flags) {
    MAY_FAIL
    struct graph *copy = malloc(sizeof *copy);
    memcpy(copy, graph, sizeof *copy);
    note("instantiate");
    return *ready = copy, OK;
}
API Status cuGraphExecKernelNodeSetParams(Handle ready, Handle node, const void *parameters) {
    MAY_FAIL
    struct work *w = &((struct graph *)ready)->work[(intptr_t)node - 1];
    int overlaps = w->overlaps;
    describe(w, parameters);
    w->overlaps = overlaps;
    note("set");
    return OK;
}
API Status hipGraphExecKernelNodeSetParams(Handle ready, Handle node, const void *parameters) {
    struct node same = of_hip(parameters);
    return cuGraphExecKernelNodeSetParams(ready, node, &same);
}
API Status cuGraphLaunch(Handle ready, Handle stream) {
    MAY_FAIL
    struct graph *copy = malloc(sizeof *copy);
    struct work w = {.kind = GRAPH, .to = copy};
    memcpy(copy, ready, sizeof *copy);
    enter();
    return leave(issue(&w, stream));
}
API Status cuGraphDestroy(Handle graph) { MAY_FAIL return free(graph), OK; }
API Status cuGraphExecDestroy(Handle ready) { MAY_FAIL return free(ready), OK; }

API Status cuEventCreate(Handle *event, unsigned flags) { MAY_FAIL return *event = calloc(1, sizeof(struct event)), OK; }
API Status cuEventRecord(Handle event, Handle stream) {
    MAY_FAIL
    struct event *e = event;
    enter();
    e->stream = stream_of(stream);
    e->point = e->stream ? e->stream->count : 0;
    return leave(OK);
}
API Status cuEventSynchronize(Handle event) { MAY_FAIL return OK; }
API Status cuEventElapsedTime(float *ms, Handle start, Handle end) {
    MAY_FAIL
    return *ms = last_threads == number("FAKE_FAST_THREADS") ? 0.5f : 1, OK;
}
API Status cuEventDestroy_v2(Handle event) { MAY_FAIL return free(event), OK; }

/* cuBLAS: handles remember their stream. Products of float32, columns first. */
API Status cublasCreate_v2(Handle *handle) { return *handle = calloc(1, sizeof(Handle)), OK; }
API Status cublasDestroy_v2(Handle handle) { return free(handle), OK; }
API Status cublasSetStream_v2(Handle handle, Handle stream) { return *(Handle *)handle = stream, OK; }
API Status cublasSetWorkspace_v2(Handle handle, void *at, size_t bytes) { return at ? OK : INVALID; }
API Status cublasGetMathMode(Handle handle, int *mode) { return *mode = 0, OK; }
API Status cublasSetMathMode(Handle handle, int mode) { return OK; }
API Status cublasGemmEx(Handle handle, int ta, int tb, int m, int n, int k, const void *alpha, const void *a, int ka,
                        int la, const void *b, int kb, int lb, const void *beta, void *c, int kc, int lc, int compute,
                        int algorithm) {
    if (ka || kb || kc) return INVALID;
    struct work w = {.kind = PRODUCT, .m = m, .n = n, .k = k, .ta = ta, .tb = tb, .la = la, .lb = lb, .lc = lc, .a = a, .b = b, .c = c};
    enter();
    return leave(issue(&w, *(Handle *)handle));
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

/* Names of the two vendors for the same function; those of the second list have definitions of their own above. */
#define PAIRS(P)                                         \
    P(cuDriverGetVersion, hipDriverGetVersion)           \
    P(cuGetErrorName, hipDrvGetErrorName)                \
    P(cuGetErrorString, hipDrvGetErrorString)            \
    P(cuDeviceGetCount, hipGetDeviceCount)               \
    P(cuCtxSynchronize, hipDeviceSynchronize)            \
    P(cuModuleLoadData, hipModuleLoadData)               \
    P(cuModuleUnload, hipModuleUnload)                   \
    P(cuModuleGetFunction, hipModuleGetFunction)         \
    P(cuFuncGetAttribute, hipFuncGetAttribute)           \
    P(cuLaunchKernel, hipModuleLaunchKernel)             \
    P(cuMemAlloc_v2, hipMalloc)                          \
    P(cuMemFree_v2, hipFree)                             \
    P(cuMemcpyDtoDAsync_v2, hipMemcpyDtoDAsync)          \
    P(cuMemcpyHtoD_v2, hipMemcpyHtoD)                    \
    P(cuMemcpyHtoDAsync_v2, hipMemcpyHtoDAsync)          \
    P(cuMemsetD8_v2, hipMemsetD8)                        \
    P(cuMemsetD8Async, hipMemsetD8Async)                 \
    P(cuMemcpyDtoH_v2, hipMemcpyDtoH)                    \
    P(cuStreamCreate, hipStreamCreateWithFlags)          \
    P(cuStreamDestroy_v2, hipStreamDestroy)              \
    P(cuStreamSynchronize, hipStreamSynchronize)         \
    P(cuStreamWaitEvent, hipStreamWaitEvent)             \
    P(cuStreamIsCapturing, hipStreamIsCapturing)         \
    P(cuStreamBeginCapture_v2, hipStreamBeginCapture)    \
    P(cuStreamEndCapture, hipStreamEndCapture)           \
    P(cuThreadExchangeStreamCaptureMode, hipThreadExchangeStreamCaptureMode) \
    P(cuGraphCreate, hipGraphCreate)                     \
    P(cuGraphInstantiateWithFlags, hipGraphInstantiateWithFlags) \
    P(cuGraphLaunch, hipGraphLaunch)                     \
    P(cuGraphDestroy, hipGraphDestroy)                   \
    P(cuGraphExecDestroy, hipGraphExecDestroy)           \
    P(cuEventCreate, hipEventCreateWithFlags)            \
    P(cuEventRecord, hipEventRecord)                     \
    P(cuEventSynchronize, hipEventSynchronize)           \
    P(cuEventElapsedTime, hipEventElapsedTime)           \
    P(cuEventDestroy_v2, hipEventDestroy)
#define OTHER_PAIRS(P)                                   \
    P(cuGraphAddKernelNode, hipGraphAddKernelNode)       \
    P(cuGraphExecKernelNodeSetParams, hipGraphExecKernelNodeSetParams)

#define ALIAS(cuda, hip) API __typeof(cuda) hip __attribute__((alias(#cuda)));
PAIRS(ALIAS)

#define NAMES(cuda, hip) {#cuda, #hip},
static const char *const names[][2] = {PAIRS(NAMES) OTHER_PAIRS(NAMES)};
static int is_same(const char *name, const char *text, size_t n) { return strlen(name) == n && !strncmp(name, text, n); }
static int is_named(const char *function, const char *text, size_t n) {
    if (is_same(function, text, n)) return 1;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(names[i][0], function) && is_same(names[i][1], text, n)) return 1;
    return 0;
}

#include "zero.c"
