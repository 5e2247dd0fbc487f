/* The same machine under the names of Level Zero, whose functions have another shape: `fake.c` includes this file. Lists are its
   streams, and kernels take their arguments one by one. */

typedef uint32_t ZeStatus;
#define ZE_UNKNOWN 0x7ffffffe
#define ZE_INVALID 0x78000004
#define ZE_OUT_OF_MEMORY 0x70000003
#define ZE_MAY_FAIL if (fails(__func__)) return ZE_UNKNOWN;

struct ze_head {
    uint32_t kind;
    const void *next;
};

/* Memory of the devices: copies from and to elsewhere are noted. */
struct block {
    char *at;
    size_t bytes;
    struct block *next;
};
static struct block *blocks;
static int is_device(const void *p) {
    enter();
    struct block *b = blocks;
    while (b && !((const char *)p >= b->at && (const char *)p < b->at + b->bytes)) b = b->next;
    return leave(b != NULL);
}

static int ze_driver;
API ZeStatus zeInit(uint32_t flags) { ZE_MAY_FAIL return flags == 1 ? 0 : ZE_INVALID; }
API ZeStatus zeDriverGet(uint32_t *n, Handle *all) { ZE_MAY_FAIL return *n = 1, all ? *all = &ze_driver, 0 : 0; }
API ZeStatus zeDriverGetApiVersion(Handle driver, uint32_t *v) { ZE_MAY_FAIL return *v = 1 << 16 | 9, 0; }
API ZeStatus zeDeviceGet(Handle driver, uint32_t *n, Handle *all) {
    ZE_MAY_FAIL
    *n = 2;
    for (int i = 0; all && i < 2; i++) all[i] = &contexts[i];
    return driver == &ze_driver ? 0 : ZE_INVALID;
}
/* $FAKE_ARCH is the number of the product. */
API ZeStatus zeDeviceGetProperties(Handle device, unsigned char *p) {
    ZE_MAY_FAIL
    const char *text = getenv("FAKE_ARCH");
    uint32_t product = text && !strncmp(text, "0x", 2) ? strtoul(text, NULL, 16) : 0x0bd5;
    uint32_t rest[] = {8, 16, 8, 8, 8};
    memcpy(p + 24, &product, 4);
    memcpy(p + 56, rest, sizeof rest);
    return ((struct ze_head *)p)->kind == 3 ? 0 : ZE_INVALID;
}
API ZeStatus zeDeviceGetComputeProperties(Handle device, unsigned char *p) {
    ZE_MAY_FAIL
    uint32_t shared = 128 << 10;
    return memcpy(p + 44, &shared, 4), ((struct ze_head *)p)->kind == 4 ? 0 : ZE_INVALID;
}
API ZeStatus zeDeviceGetCacheProperties(Handle device, uint32_t *n, unsigned char *p) {
    ZE_MAY_FAIL
    size_t bytes = 204 << 20;
    return *n = 1, memcpy(p + 24, &bytes, 8), ((struct ze_head *)p)->kind == 9 ? 0 : ZE_INVALID;
}
API ZeStatus zeContextCreate(Handle driver, const struct ze_head *desc, Handle *c) {
    ZE_MAY_FAIL return *c = contexts, desc->kind == 0xd ? 0 : ZE_INVALID;
}

/* SPIR-V: four bytes, then text or nothing that is looked at. */
struct ze_module_desc {
    struct ze_head head;
    uint32_t format;
    size_t bytes;
    const char *code;
};
API ZeStatus zeModuleCreate(Handle context, Handle device, const struct ze_module_desc *desc, Handle *module, Handle *log) {
    ZE_MAY_FAIL
    if (desc->head.kind != 0x1b || desc->format || desc->bytes % 4) return ZE_INVALID;
    *log = NULL;
    return *module = desc->code[4] == '{' ? strndup(desc->code + 4, desc->bytes - 4) : strdup(""), 0;
}
API ZeStatus zeModuleDestroy(Handle module) { ZE_MAY_FAIL return 0; }
API ZeStatus zeModuleBuildLogGetString(Handle log, size_t *bytes, char *text) { return *bytes = 0, 0; }
API ZeStatus zeModuleBuildLogDestroy(Handle log) { return 0; }

struct ze_kernel {
    struct function function;
    struct work next;
    unsigned given, expected;
};
struct ze_kernel_desc {
    struct ze_head head;
    uint32_t flags;
    const char *name;
};
API ZeStatus zeKernelCreate(Handle module, const struct ze_kernel_desc *desc, Handle *kernel) {
    ZE_MAY_FAIL
    struct ze_kernel *k = calloc(1, sizeof *k);
    strncpy(k->function.name, desc->name, sizeof k->function.name - 1);
    /* Without text it is `twice`: five arguments and local memory. */
    k->expected = 6;
    if (*(char *)module) {
        const char *end = strstr(k->function.text = module, "]]");
        k->expected = 0;
        for (const char *p = module; p < end; p++) k->expected += p[0] == '[' && p[1] != '[';
    }
    return *kernel = k, desc->head.kind == 0x1d ? 0 : ZE_INVALID;
}
API ZeStatus zeKernelDestroy(Handle kernel) { ZE_MAY_FAIL return 0; }
/* $FAKE_LANES are the threads of a sub-group that kernels were built for. */
API ZeStatus zeKernelGetProperties(Handle kernel, unsigned char *p) {
    ZE_MAY_FAIL
    const char *text = getenv("FAKE_LANES");
    uint32_t arguments = ((struct ze_kernel *)kernel)->expected, lanes = text ? atoi(text) : 0, spilled = 0;
    memcpy(p + 16, &arguments, 4);
    memcpy(p + 36, &lanes, 4);
    memcpy(p + 56, &spilled, 4);
    return ((struct ze_head *)p)->kind == 0x1e ? 0 : ZE_INVALID;
}
API ZeStatus zeKernelSetGroupSize(Handle kernel, uint32_t x, uint32_t y, uint32_t z) {
    ZE_MAY_FAIL
    struct ze_kernel *k = kernel;
    memset(&k->next, 0, sizeof k->next);
    k->given = 0;
    return k->next.threads = x, y == 1 && z == 1 ? 0 : ZE_INVALID;
}
API ZeStatus zeKernelSetArgumentValue(Handle kernel, uint32_t at, size_t bytes, const void *value) {
    ZE_MAY_FAIL
    struct ze_kernel *k = kernel;
    struct work *w = &k->next;
    if (at != k->given || at >= k->expected) return ZE_INVALID;
    k->given++;
    if (!value) return w->shared = bytes, 0;
    while (w->bytes % bytes) w->arguments[w->bytes++] = 0;
    if (w->bytes + bytes > sizeof w->arguments) abort();
    memcpy(w->arguments + w->bytes, value, bytes);
    return w->bytes += bytes, 0;
}

struct ze_queue_desc {
    struct ze_head head;
    uint32_t ordinal, index, flags, mode, priority;
};
API ZeStatus zeCommandListCreateImmediate(Handle context, Handle device, const struct ze_queue_desc *desc, Handle *list) {
    ZE_MAY_FAIL
    if (desc->head.kind != 0xe || desc->flags != 2 || desc->mode != 2) return ZE_INVALID;
    if (device == &contexts[1]) note("stream on 1");
    struct stream *s = calloc(1, sizeof *s);
    s->device = device;
    enter();
    s->next = streams;
    streams = s;
    return *list = s, leave(0);
}
/* What a queue of SYCL is asked for: see python/tests/sycl_stand_in.c. */
API ZeStatus zeCommandListIsImmediate(Handle list, unsigned char *is) { ZE_MAY_FAIL return *is = 1, 0; }
API ZeStatus zeCommandListGetContextHandle(Handle list, Handle *c) { ZE_MAY_FAIL return *c = contexts, 0; }
API ZeStatus zeCommandListGetDeviceHandle(Handle list, Handle *d) { ZE_MAY_FAIL return *d = ((struct stream *)list)->device, 0; }
API ZeStatus zeCommandListImmediateGetFlags(Handle list, uint32_t *flags) { ZE_MAY_FAIL return *flags = 2, 0; }
API ZeStatus zeCommandListAppendBarrier(Handle list, Handle signal, uint32_t n, Handle *waits) { ZE_MAY_FAIL return 0; }
/* It must have no work any more. */
API ZeStatus zeCommandListDestroy(Handle list) {
    ZE_MAY_FAIL
    struct stream *s = list;
    return s->done < s->count ? abort(), 0 : 0;
}
API ZeStatus zeCommandListHostSynchronize(Handle list, uint64_t timeout) {
    ZE_MAY_FAIL
    struct stream *s = list;
    enter();
    run_until(s, s->count);
    return leave(0);
}
static ZeStatus ze_append(const struct work *w, Handle list) {
    enter();
    return leave(issue(w, list)) ? ZE_INVALID : 0;
}
API ZeStatus zeCommandListAppendLaunchKernel(Handle list, Handle kernel, const uint32_t *grid, Handle signal, uint32_t n, Handle *waits) {
    ZE_MAY_FAIL
    struct ze_kernel *k = kernel;
    k->next.kind = LAUNCH;
    k->next.function = &k->function;
    memcpy(k->next.grid, grid, sizeof k->next.grid);
    return k->given == k->expected ? ze_append(&k->next, list) : ZE_INVALID;
}
API ZeStatus zeCommandListAppendMemoryCopy(Handle list, void *to, const void *from, size_t n, Handle signal, uint32_t count, Handle *waits) {
    ZE_MAY_FAIL
    struct work w = {.kind = COPY, .to = to, .from = from, .bytes = n};
    char text[64];
    sprintf(text, "to %s %zu", is_device(to) ? "device" : "host", n);
    if (!is_device(to) || !is_device(from)) note(text);
    return ze_append(&w, list);
}
API ZeStatus zeCommandListAppendMemoryFill(Handle list, void *to, const unsigned char *pattern, size_t size, size_t n, Handle signal,
                                           uint32_t count, Handle *waits) {
    ZE_MAY_FAIL
    struct work w = {.kind = SET, .to = to, .n = *pattern, .bytes = n};
    note("clear");
    return size == 1 ? ze_append(&w, list) : ZE_INVALID;
}

/* An event stands for the work before its signal, once. What waits for a destroyed one is a fault. */
struct ze_event {
    struct event point;
    int is_signalled, is_destroyed;
};
API ZeStatus zeEventPoolCreate(Handle context, const struct ze_head *desc, uint32_t n, Handle *devices, Handle *pool) {
    ZE_MAY_FAIL return *pool = malloc(1), desc->kind == 0x10 && n == 1 ? 0 : ZE_INVALID;
}
API ZeStatus zeEventPoolDestroy(Handle pool) { ZE_MAY_FAIL return free(pool), 0; }
API ZeStatus zeEventCreate(Handle pool, const struct ze_head *desc, Handle *event) {
    ZE_MAY_FAIL return *event = calloc(1, sizeof(struct ze_event)), desc->kind == 0x11 ? 0 : ZE_INVALID;
}
API ZeStatus zeEventDestroy(Handle event) {
    ZE_MAY_FAIL
    struct ze_event *e = event;
    enter();
    for (struct stream *s = streams; s; s = s->next)
        for (long i = s->done; i < s->count; i++)
            if (s->queue[i].kind == WAIT && s->queue[i].function == event) abort();
    if (e->is_signalled && late && e->point.stream->done < e->point.point) abort();
    e->is_destroyed = 1;
    return leave(0);
}
API ZeStatus zeCommandListAppendSignalEvent(Handle list, Handle event) {
    ZE_MAY_FAIL
    struct ze_event *e = event;
    struct stream *s = list;
    enter();
    if (e->is_signalled || e->is_destroyed) abort();
    e->is_signalled = 1;
    e->point = (struct event){.stream = s, .point = s->count};
    return leave(0);
}
API ZeStatus zeCommandListAppendWaitOnEvents(Handle list, uint32_t n, Handle *events) {
    ZE_MAY_FAIL
    struct ze_event *e = events[0];
    if (n != 1 || !e->is_signalled || e->is_destroyed) abort();
    /* The event is kept with the work in the place of a kernel. */
    struct work w = {.kind = WAIT, .function = (struct function *)e, .other = e->point.stream, .point = e->point.point};
    return ze_append(&w, list);
}

API ZeStatus zeMemAllocDevice(Handle context, const struct ze_head *desc, size_t size, size_t alignment, Handle device, Handle *at) {
    ZE_MAY_FAIL
    const char *most = getenv("FAKE_MEMORY");
    if (desc->kind != 0x15) return ZE_INVALID;
    if (most && size > strtoull(most, NULL, 10)) return ZE_OUT_OF_MEMORY;
    if (posix_memalign(at, alignment, size)) return ZE_OUT_OF_MEMORY;
    memset(*at, 0xff, size);
    struct block *b = malloc(sizeof *b);
    enter();
    *b = (struct block){.at = *at, .bytes = size, .next = blocks};
    blocks = b;
    return leave(0);
}
API ZeStatus zeMemGetAllocProperties(Handle context, const void *at, unsigned char *p, Handle *device) {
    ZE_MAY_FAIL
    uint32_t type = is_device(at) ? 2 : 0;
    memcpy(p + 16, &type, 4);
    return ((struct ze_head *)p)->kind == 0x17 ? 0 : ZE_INVALID;
}
/* No work must use it. */
API ZeStatus zeMemFree(Handle context, Handle at) {
    ZE_MAY_FAIL
    enter();
    for (struct block **b = &blocks; *b; b = &(*b)->next)
        if ((*b)->at == at) {
            struct block *old = *b;
            *b = old->next;
            free(old);
            return free(at), leave(0);
        }
    return leave(ZE_INVALID);
}
