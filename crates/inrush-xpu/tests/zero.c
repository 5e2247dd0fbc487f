/* Level Zero for tests: two GPUs whose memory is memory of this process. Work waits in its list until something waits for the
   list, as on a device. The kernel `twice` doubles floats; a further one takes local memory. `fake_fail` names a function whose
   calls fail from then on. Queues of SYCL are structures with a list, under the names that the oneAPI runtime exports. A list that
   does not tell its flags runs what is between two barriers from the last to the first. */

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint32_t Status;
typedef void *Handle;
#define API __attribute__((visibility("default")))
#define UNKNOWN 0x7ffffffe
#define INVALID 0x78000004

static char failing[64], seen[1 << 16];
API void fake_fail(const char *name) { strncpy(failing, name ? name : "", sizeof failing - 1); }
API const char *fake_seen(void) { return seen; }
API void fake_forget(void) { seen[0] = 0; }
static void note(const char *text) {
    if (strlen(seen) + strlen(text) + 2 < sizeof seen) strcat(strcat(seen, text), "\n");
}
#define MAY_FAIL if (!strcmp(failing, __func__)) return UNKNOWN;

struct head {
    uint32_t kind;
    const void *next;
};
struct event {
    int signalled;
};
struct kernel {
    char name[32];
    uint32_t group;
    unsigned char arguments[8][8];
    size_t sizes[8];
};
enum kind { COPY, FILL, LAUNCH, SIGNAL, WAIT, BARRIER };
struct work {
    enum kind kind;
    void *to;
    const void *from;
    size_t bytes;
    struct kernel kernel;
    uint32_t grid[3];
    struct event *event;
};
struct list {
    struct work *queue;
    long count, done;
    int any_order, runs;
    Handle context, device;
    struct list *next;
};
static struct list *lists;

static void run(struct list *l);
static void run_all(void) {
    for (struct list *l = lists; l; l = l->next) run(l);
}
static void turn(struct list *l) {
    for (long from = l->done, to; from < l->count; from = to + 1) {
        for (to = from; to < l->count && l->queue[to].kind != BARRIER; to++);
        for (long i = from, j = to - 1; i < j; i++, j--) {
            struct work w = l->queue[i];
            l->queue[i] = l->queue[j], l->queue[j] = w;
        }
    }
}
static void run(struct list *l) {
    if (l->runs) return;
    if (l->any_order) turn(l);
    l->runs = 1;
    while (l->done < l->count) {
        struct work w = l->queue[l->done++];
        char text[128];
        switch (w.kind) {
        case COPY: memmove(w.to, w.from, w.bytes); break;
        case FILL: memset(w.to, 0, w.bytes); break;
        case BARRIER: break;
        case SIGNAL: w.event->signalled = 1; break;
        case WAIT:
            if (!w.event->signalled) run_all();
            if (!w.event->signalled) abort();
            break;
        case LAUNCH:
            snprintf(text, sizeof text, "launch %s grid=%u,%u,%u group=%u shared=%zu", w.kernel.name, w.grid[0], w.grid[1], w.grid[2],
                     w.kernel.group, w.kernel.sizes[5]);
            note(text);
            float *from, *to;
            int32_t n;
            memcpy(&from, w.kernel.arguments[0], 8);
            memcpy(&to, w.kernel.arguments[1], 8);
            memcpy(&n, w.kernel.arguments[2], 4);
            for (int i = 0; i < n; i++) to[i] = 2 * from[i];
        }
    }
    l->runs = 0;
}
static Status append(Handle list, const struct work *w) {
    struct list *l = list;
    l->queue = realloc(l->queue, (l->count + 1) * sizeof *l->queue);
    l->queue[l->count++] = *w;
    return 0;
}

API Status zeInit(uint32_t flags) { MAY_FAIL return flags == 1 ? 0 : INVALID; }
static int the_driver, the_devices[2], the_context, other_context;
static Handle a_context = &the_context;
API Status zeDriverGet(uint32_t *n, Handle *all) { MAY_FAIL return *n = 1, all ? *all = &the_driver, 0 : 0; }
API Status zeDriverGetApiVersion(Handle driver, uint32_t *v) { MAY_FAIL return *v = 1 << 16 | 9, 0; }
API Status zeDeviceGet(Handle driver, uint32_t *n, Handle *all) {
    MAY_FAIL
    *n = 2;
    for (int i = 0; all && i < 2; i++) all[i] = &the_devices[i];
    return driver == &the_driver ? 0 : INVALID;
}
API Status zeDeviceGetProperties(Handle device, unsigned char *p) {
    MAY_FAIL
    if (((struct head *)p)->kind != 3) return INVALID;
    uint32_t values[] = {0x0bd5, 8, 16, 8, 8, 8};
    memcpy(p + 24, &values[0], 4);
    memcpy(p + 56, &values[1], 20);
    return 0;
}
API Status zeDeviceGetComputeProperties(Handle device, unsigned char *p) {
    MAY_FAIL
    uint32_t shared = 128 << 10;
    return ((struct head *)p)->kind == 4 ? memcpy(p + 44, &shared, 4), 0 : INVALID;
}
API Status zeDeviceGetCacheProperties(Handle device, uint32_t *n, unsigned char *p) {
    MAY_FAIL
    size_t bytes = 204 << 20;
    return *n = 1, ((struct head *)p)->kind == 9 ? memcpy(p + 24, &bytes, 8), 0 : INVALID;
}
API Status zeContextCreate(Handle driver, const struct head *desc, Handle *c) {
    MAY_FAIL return *c = &the_context, desc->kind == 0xd ? 0 : INVALID;
}
struct module {
    struct head head;
    uint32_t format;
    size_t bytes;
    const unsigned char *code;
};
API Status zeModuleCreate(Handle context, Handle device, const struct module *desc, Handle *m, Handle *log) {
    MAY_FAIL
    if (desc->head.kind != 0x1b || desc->format || context != a_context) return INVALID;
    *log = strdup(desc->bytes > 64 ? "error: too long a text" : "");
    return *m = malloc(1), desc->bytes > 64 ? 0x70000004 : 0;
}
API Status zeModuleDestroy(Handle m) { MAY_FAIL return free(m), 0; }
API Status zeModuleBuildLogGetString(Handle log, size_t *n, char *text) {
    MAY_FAIL
    *n = strlen(log) + 1;
    if (text) memcpy(text, log, *n);
    return 0;
}
API Status zeModuleBuildLogDestroy(Handle log) { MAY_FAIL return free(log), 0; }
struct kernel_desc {
    struct head head;
    uint32_t flags;
    const char *name;
};
API Status zeKernelCreate(Handle module, const struct kernel_desc *desc, Handle *k) {
    MAY_FAIL
    if (desc->head.kind != 0x1d) return INVALID;
    if (strncmp(desc->name, "twice", 5)) return 0x78000011;
    struct kernel *made = calloc(1, sizeof *made);
    strncpy(made->name, desc->name, sizeof made->name - 1);
    return *k = made, 0;
}
API Status zeKernelDestroy(Handle k) { MAY_FAIL return free(k), 0; }
API Status zeKernelGetProperties(Handle kernel, unsigned char *p) {
    MAY_FAIL
    uint32_t arguments = strcmp(((struct kernel *)kernel)->name, "twice_local") ? 5 : 6, spilled = 64;
    memcpy(p + 16, &arguments, 4);
    memcpy(p + 56, &spilled, 4);
    return ((struct head *)p)->kind == 0x1e ? 0 : INVALID;
}
API Status zeKernelSetGroupSize(Handle k, uint32_t x, uint32_t y, uint32_t z) {
    MAY_FAIL return ((struct kernel *)k)->group = x, y == 1 && z == 1 ? 0 : INVALID;
}
API Status zeKernelSetArgumentValue(Handle kernel, uint32_t at, size_t bytes, const void *value) {
    MAY_FAIL
    struct kernel *k = kernel;
    static const size_t sizes[] = {8, 8, 4, 8, 8};
    if (at > 5 || (at < 5) != (value != NULL) || (at < 5 && bytes != sizes[at])) return INVALID;
    k->sizes[at] = bytes;
    if (value) memcpy(k->arguments[at], value, bytes);
    return 0;
}
struct queue_desc {
    struct head head;
    uint32_t ordinal, index, flags, mode, priority;
};
API Status zeCommandListCreateImmediate(Handle context, Handle device, const struct queue_desc *desc, Handle *list) {
    MAY_FAIL
    if (desc->head.kind != 0xe || desc->flags != 2 || desc->mode != 2) return INVALID;
    struct list *l = calloc(1, sizeof *l);
    l->next = lists;
    lists = l;
    note(device == &the_devices[1] ? "list on 1" : "list on 0");
    return *list = l, 0;
}
API Status zeCommandListDestroy(Handle list) {
    MAY_FAIL
    struct list *l = list, **at = &lists;
    if (l->done < l->count) abort();
    while (*at != l) at = &(*at)->next;
    *at = l->next;
    return free(l->queue), free(l), 0;
}
API Status zeCommandListHostSynchronize(Handle list, uint64_t timeout) { MAY_FAIL return run(list), 0; }
API Status zeCommandListAppendLaunchKernel(Handle list, Handle k, const uint32_t *grid, Handle signal, uint32_t n, Handle *waits) {
    MAY_FAIL
    struct work w = {.kind = LAUNCH, .kernel = *(struct kernel *)k, .grid = {grid[0], grid[1], grid[2]}};
    return append(list, &w);
}
API Status zeCommandListAppendMemoryCopy(Handle list, void *to, const void *from, size_t n, Handle signal, uint32_t waits, Handle *all) {
    MAY_FAIL
    struct work w = {.kind = COPY, .to = to, .from = from, .bytes = n};
    return append(list, &w);
}
/* Called before a list is filled, where it is set. */
static void (*before_fill)(void *), *of_fill;
API void fake_before_fill(void (*call)(void *), void *with) { before_fill = call, of_fill = with; }
API Status zeCommandListAppendMemoryFill(Handle list, void *to, const unsigned char *pattern, size_t size, size_t n, Handle signal,
                                         uint32_t waits, Handle *all) {
    MAY_FAIL
    struct work w = {.kind = FILL, .to = to, .bytes = n};
    if (before_fill) before_fill(of_fill);
    return *pattern == 0 && size == 1 ? append(list, &w) : INVALID;
}
API Status zeCommandListAppendSignalEvent(Handle list, Handle event) {
    MAY_FAIL
    struct work w = {.kind = SIGNAL, .event = event};
    return append(list, &w);
}
API Status zeCommandListAppendWaitOnEvents(Handle list, uint32_t n, Handle *events) {
    MAY_FAIL
    struct work w = {.kind = WAIT, .event = events[0]};
    return n == 1 ? append(list, &w) : INVALID;
}
API Status zeMemAllocDevice(Handle context, const struct head *desc, size_t size, size_t alignment, Handle device, Handle *at) {
    MAY_FAIL
    if (desc->kind != 0x15) return INVALID;
    if (size > 1 << 20) return 0x70000003;
    return posix_memalign(at, alignment, size) ? 0x70000002 : (memset(*at, 0xff, size), 0);
}
API Status zeMemGetAllocProperties(Handle context, const void *at, unsigned char *p, Handle *device) {
    MAY_FAIL
    uint32_t type = (uintptr_t)at % 512 ? 0 : 2;
    memcpy(p + 16, &type, 4);
    return ((struct head *)p)->kind == 0x17 ? 0 : INVALID;
}
API Status zeMemFree(Handle context, Handle at) {
    MAY_FAIL
    for (struct list *l = lists; l; l = l->next)
        if (l->done < l->count) abort();
    return free(at), 0;
}
API Status zeEventPoolCreate(Handle context, const struct head *desc, uint32_t n, Handle *devices, Handle *pool) {
    MAY_FAIL return *pool = malloc(1), desc->kind == 0x10 && n == 1 ? 0 : INVALID;
}
API Status zeEventPoolDestroy(Handle pool) { MAY_FAIL return free(pool), 0; }
API Status zeEventCreate(Handle pool, const struct head *desc, Handle *event) {
    MAY_FAIL return *event = calloc(1, sizeof(struct event)), desc->kind == 0x11 ? 0 : INVALID;
}
API Status zeEventDestroy(Handle event) { MAY_FAIL return free(event), 0; }

API Status zeCommandListIsImmediate(Handle list, unsigned char *is) { MAY_FAIL return *is = ((struct list *)list)->context != NULL, 0; }
API Status zeCommandListGetContextHandle(Handle list, Handle *c) { MAY_FAIL return *c = ((struct list *)list)->context, 0; }
API Status zeCommandListGetDeviceHandle(Handle list, Handle *d) { MAY_FAIL return *d = ((struct list *)list)->device, 0; }
API Status zeCommandListImmediateGetFlags(Handle list, uint32_t *flags) {
    return *flags = 2, ((struct list *)list)->any_order ? 0x78000003 : 0;
}
API Status zeCommandListAppendBarrier(Handle list, Handle signal, uint32_t n, Handle *waits) {
    MAY_FAIL
    struct work w = {.kind = BARRIER};
    return n || signal ? INVALID : append(list, &w);
}

/* `description` is what is written to that of the handle, if it is not below 0. */
struct queue {
    int32_t backend, is_in_order, state, is_batched, description, any_order, device, context;
    struct list *list;
};
API unsigned char _ZNK4sycl3_V15queue11get_backendEv(const struct queue *q) { return q->backend; }
API unsigned char _ZNK4sycl3_V15queue11is_in_orderEv(const struct queue *q) { return q->is_in_order; }
API int _ZNK4sycl3_V15queue20ext_oneapi_get_stateEv(const struct queue *q) { return q->state; }
API unsigned char
_ZNK4sycl3_V15queue12has_propertyINS0_3ext5intel8property5queue25no_immediate_command_listEEEbv(const struct queue *q) {
    return q->is_batched;
}
API Handle _ZNK4sycl3_V15queue9getNativeERi(struct queue *q, int32_t *description) {
    if (q->description >= 0) *description = q->description;
    if (!q->list) {
        q->list = calloc(1, sizeof *q->list);
        q->list->any_order = q->any_order;
        q->list->device = &the_devices[q->device];
        q->list->context = q->context == 2 ? NULL : q->context ? &other_context : &the_context;
        a_context = q->list->context;
        q->list->next = lists;
        lists = q->list;
    }
    return q->list;
}
/* The Unified Runtime's adapters: one for OpenCL and one for Level Zero. */
static uint32_t backends[] = {3, 1}, version = 2;
static int held;
API void fake_adapter(uint32_t backend, uint32_t number) { backends[1] = backend, version = number; }
API int fake_adapters_held(void) { return held; }
API Status urAdapterGet(uint32_t n, Handle *all, uint32_t *count) {
    MAY_FAIL
    if (count) *count = 2;
    for (uint32_t i = 0; all && i < n && i < 2; i++) all[i] = &backends[i], held++;
    return 0;
}
API Status urAdapterGetInfo(Handle adapter, uint32_t name, size_t size, void *value, size_t *bytes) {
    MAY_FAIL
    uint32_t found = name == 0 ? *(uint32_t *)adapter : adapter == &backends[1] ? version : 1;
    if (size != 4 || (name != 0 && name != 2)) return 4;
    return memcpy(value, &found, 4), 0;
}
API Status urAdapterRelease(Handle adapter) { return held--, 0; }
/* Work of the queue's own: a copy. */
API void fake_queue_copy(struct queue *q, void *to, const void *from, size_t n) {
    struct work w = {.kind = COPY, .to = to, .from = from, .bytes = n};
    append(q->list, &w);
}
