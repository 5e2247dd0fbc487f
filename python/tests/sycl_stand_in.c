/* Queues of SYCL under the names that the oneAPI runtime exports: structures with an immediate command list. `description` is what is
   written to that of the handle, if it is not below 0: 1 for immediate queues, nothing for batched ones. The Unified Runtime has one
   adapter, for Level Zero, of the version `stand_in_adapter`. See `other_process.py`. */

#include <stddef.h>
#include <stdint.h>

struct queue {
    int32_t is_in_order, is_recorded, description;
    void *list;
};

#define API __attribute__((visibility("default")))
API char _ZNK4sycl3_V15queue11get_backendEv(const struct queue *q) { return q ? 2 : 0; }
API char _ZNK4sycl3_V15queue11is_in_orderEv(const struct queue *q) { return q->is_in_order; }
API int _ZNK4sycl3_V15queue20ext_oneapi_get_stateEv(const struct queue *q) { return q->is_recorded; }
API void *_ZNK4sycl3_V15queue9getNativeERi(const struct queue *q, int32_t *description) {
    if (q->description >= 0) *description = q->description;
    return q->list;
}

API uint32_t stand_in_adapter = 2;
API int urAdapterGet(uint32_t n, void **all, uint32_t *count) {
    if (count) *count = 1;
    if (all && n) *all = &stand_in_adapter;
    return 0;
}
API int urAdapterGetInfo(void *adapter, uint32_t name, size_t size, uint32_t *value, size_t *bytes) {
    *value = name == 0 ? 1 : *(uint32_t *)adapter;
    return size == 4 && (name == 0 || name == 2) ? 0 : 4;
}
API int urAdapterRelease(void *adapter) { return adapter == &stand_in_adapter ? 0 : 4; }
