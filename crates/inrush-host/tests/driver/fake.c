/* A driver in the place of NVIDIA's, and cuBLAS: device memory is memory of this process, launches are written down in the
   file $FAKE_LOG and run here where the kernel is known. Symbols and their arguments are those that inrush-cuda looks up. */

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
static Status fails(const char *name) {
    static int calls;
    const char *text = getenv("FAKE_FAIL");
    size_t n = strlen(name);
    if (!text || strncmp(text, name, n) || (text[n] && text[n] != ':')) return OK;
    return calls++ >= (text[n] ? atoi(text + n + 1) : 0) ? UNKNOWN : OK;
}

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

static __thread Handle current;
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
API Status cuCtxSynchronize(void) {
    enter();
    for (struct stream *s = streams; s; s = s->next)
        if (s->capturing) return leave(INVALID);
    run_all();
    return leave(OK);
}
API Status cuCtxGetCurrent(Handle *c) { return *c = current, OK; }
static Handle contexts[2];
API Status cuCtxGetDevice(int *device) { return *device = current == &contexts[1], current ? OK : INVALID; }
API Status cuCtxSetCurrent(Handle c) { return current = c, OK; }
API Status cuDevicePrimaryCtxRetain(Handle *c, int device) { return *c = &contexts[device], OK; }

API Status cuModuleLoadData(Handle *module, const void *code) {
    if (memcmp(code, "\177ELF", 4)) note(current == &contexts[1] ? "load ptx on 1" : "load ptx");
    int is_text = !memcmp(code, "\177ELF{", 5);
    return *module = is_text ? strdup((const char *)code + 4) : NULL, OK;
}
API Status cuModuleUnload(Handle module) { return OK; }
API Status cuModuleGetFunction(Handle *function, Handle module, const char *name) {
    struct function *f = calloc(1, sizeof *f);
    strncpy(f->name, name, sizeof f->name - 1);
    f->text = module;
    return *function = f, OK;
}
API Status cuFuncGetAttribute(int *value, int which, Handle f) { return *value = 0, OK; }
API Status cuFuncSetAttribute(Handle f, int which, int value) { return OK; }
API Status cuLaunchKernel(Handle f, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz,
                          unsigned shared, Handle stream, Handle *each, Handle *all) {
    struct work w = {.kind = LAUNCH, .function = f, .grid = {x, y, z}, .threads = bx * by * bz, .shared = shared};
    take(&w, each, all);
    enter();
    return leave(current ? fails("cuLaunchKernel") == OK ? issue(&w, stream) : UNKNOWN : INVALID);
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
    struct work w = {.kind = LAUNCH, .function = f, .shared = c->shared};
    memcpy(w.grid, c->grid, sizeof w.grid);
    w.threads = c->block[0] * c->block[1] * c->block[2];
    for (unsigned i = 0; i < c->count; i++) w.overlaps |= c->attributes[i].id == 6 && c->attributes[i].value[0];
    take(&w, each, all);
    enter();
    return leave(current ? fails("cuLaunchKernelEx") == OK ? issue(&w, c->stream) : UNKNOWN : INVALID);
}

/* $FAKE_MEMORY is the largest block that there is. */
API Status cuMemAlloc_v2(Ptr *at, size_t bytes) {
    const char *most = getenv("FAKE_MEMORY");
    if (!current) return INVALID;
    if (most && bytes > strtoull(most, NULL, 10)) return OUT_OF_MEMORY;
    void *p = NULL;
    if (posix_memalign(&p, 512, bytes)) return OUT_OF_MEMORY;
    memset(p, 0xff, bytes);
    return *at = (Ptr)p, OK;
}
API Status cuMemFree_v2(Ptr at) { return current ? free((void *)at), OK : INVALID; }
API Status cuMemcpyDtoDAsync_v2(Ptr to, Ptr from, size_t n, Handle stream) {
    struct work w = {.kind = COPY, .to = (void *)to, .from = (void *)from, .bytes = n};
    enter();
    return leave(fails("cuMemcpyDtoDAsync_v2") == OK ? issue(&w, stream) : UNKNOWN);
}
API Status cuMemcpyHtoDAsync_v2(Ptr to, const void *from, size_t n, Handle stream) {
    struct work w = {.kind = FROM_HOST, .to = (void *)to, .from = from, .bytes = n};
    char text[64];
    sprintf(text, "to device %zu", n);
    note(text);
    enter();
    return leave(issue(&w, stream));
}
API Status cuMemcpyHtoD_v2(Ptr to, const void *from, size_t n) {
    char text[64];
    sprintf(text, "to device %zu", n);
    note(text);
    return memcpy((void *)to, from, n), OK;
}
API Status cuMemsetD8_v2(Ptr at, unsigned char v, size_t n) { return memset((void *)at, v, n), OK; }
API Status cuMemsetD8Async(Ptr at, unsigned char v, size_t n, Handle stream) {
    struct work w = {.kind = SET, .to = (void *)at, .n = v, .bytes = n};
    note("clear");
    enter();
    return leave(issue(&w, stream));
}
API Status cuMemcpyDtoH_v2(void *to, Ptr from, size_t n) {
    char text[64];
    sprintf(text, "to host %zu", n);
    note(text);
    return memcpy(to, (void *)from, n), OK;
}

API Status cuStreamSynchronize(Handle stream) {
    enter();
    struct stream *s = stream_of(stream);
    if (s && s->capturing) return leave(INVALID);
    if (s) run_until(s, s->count);
    return leave(fails("cuStreamSynchronize"));
}
API Status cuStreamIsCapturing(Handle stream, int *status) {
    struct stream *s = stream_of(stream);
    return *status = s && s->capturing, OK;
}
API Status cuStreamCreate(Handle *stream, unsigned flags) {
    if (current == &contexts[1]) note("stream on 1");
    struct stream *s = calloc(1, sizeof *s);
    enter();
    s->next = streams;
    streams = s;
    return *stream = s, leave(flags == 1 ? OK : INVALID);
}
/* Its work goes on. */
API Status cuStreamDestroy_v2(Handle stream) {
    enter();
    struct stream *s = stream_of(stream);
    if (s) run_until(s, s->count);
    return leave(OK);
}
API Status cuStreamWaitEvent(Handle stream, Handle event, unsigned flags) {
    struct event *e = event;
    struct work w = {.kind = WAIT, .other = e->stream, .point = e->point};
    enter();
    return leave(issue(&w, stream));
}
API Status cuStreamBeginCapture_v2(Handle stream, int mode) {
    enter();
    struct stream *s = stream_of(stream);
    if (!s || s->capturing) return leave(INVALID);
    s->capturing = calloc(1, sizeof *s->capturing);
    note("begin capture");
    return leave(OK);
}
API Status cuStreamEndCapture(Handle stream, Handle *graph) {
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
API Status cuGraphCreate(Handle *graph, unsigned flags) { return *graph = calloc(1, sizeof(struct graph)), OK; }
API Status cuGraphAddKernelNode(Handle *node, Handle graph, const Handle *before, size_t count, const void *parameters) {
    struct graph *g = graph;
    if (g->count == 64) return INVALID;
    describe(&g->work[g->count], parameters);
    *node = (Handle)(intptr_t)++g->count;
    return OK;
}
struct edge {
    unsigned char from, to, kind, reserved[5];
};
API Status cuGraphAddDependencies_v2(Handle graph, const Handle *from, const Handle *to, const struct edge *edges, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if ((intptr_t)to[i] != (intptr_t)from[i] + 1) return INVALID;
        ((struct graph *)graph)->work[(intptr_t)to[i] - 1].overlaps = edges[i].kind == 1 && edges[i].from == 1;
    }
    return OK;
}
API Status cuGraphInstantiateWithFlags(Handle *ready, Handle graph, uint64_t flags) {
    if (fails("cuGraphInstantiateWithFlags")) return UNKNOWN;
    struct graph *copy = malloc(sizeof *copy);
    memcpy(copy, graph, sizeof *copy);
    note("instantiate");
    return *ready = copy, OK;
}
API Status cuGraphExecKernelNodeSetParams(Handle ready, Handle node, const void *parameters) {
    struct work *w = &((struct graph *)ready)->work[(intptr_t)node - 1];
    int overlaps = w->overlaps;
    describe(w, parameters);
    w->overlaps = overlaps;
    note("set");
    return OK;
}
API Status cuGraphLaunch(Handle ready, Handle stream) {
    struct graph *copy = malloc(sizeof *copy);
    struct work w = {.kind = GRAPH, .to = copy};
    memcpy(copy, ready, sizeof *copy);
    enter();
    return leave(issue(&w, stream));
}
API Status cuGraphDestroy(Handle graph) { return free(graph), OK; }
API Status cuGraphExecDestroy(Handle ready) { return free(ready), OK; }

API Status cuEventCreate(Handle *event, unsigned flags) { return *event = calloc(1, sizeof(struct event)), OK; }
API Status cuEventRecord(Handle event, Handle stream) {
    struct event *e = event;
    enter();
    e->stream = stream_of(stream);
    e->point = e->stream ? e->stream->count : 0;
    return leave(OK);
}
API Status cuEventSynchronize(Handle event) { return OK; }
API Status cuEventElapsedTime(float *ms, Handle start, Handle end) { return *ms = 1, OK; }
API Status cuEventDestroy_v2(Handle event) { return free(event), OK; }

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
