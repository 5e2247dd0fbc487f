/* Functions of the operators that model.py calls, as a shared library for `--operators`:
 *
 *   cc -shared -fPIC -O2 -I crates/inrush-capi/include -o liboperators.so examples/operators/operators.c
 *
 * With -DDEVICE='"cuda"' the same functions serve GPUs whose memory the processor reads, such as that of the tests: they wait for the
 * stream instead of giving it work.
 */
#include "inrush.h"

#include <math.h>
#include <string.h>

#ifndef DEVICE
#define DEVICE "cpu"
static void wait(InrushOperatorCall *call) { (void)call; }
#else
int cuStreamSynchronize(void *stream);
static void wait(InrushOperatorCall *call) { cuStreamSynchronize(call->stream); }
#endif

static int32_t refuse(InrushOperatorCall *call, const char *why) {
  call->fail(call, why);
  return INRUSH_INPUT;
}

static int is_float(const DLTensor *t) { return t->dtype.code == kDLFloat && t->dtype.bits == 32; }

static int64_t numel(const DLTensor *t) {
  int64_t n = 1;
  for (int d = 0; d < t->ndim; d++)
    n *= t->shape[d];
  return n;
}

/* Elements are in order without gaps. */
static int is_dense(const DLTensor *t) {
  int64_t stride = 1;
  for (int d = t->ndim - 1; d >= 0; d--) {
    if (t->shape[d] != 1 && t->strides[d] != stride)
      return 0;
    stride *= t->shape[d];
  }
  return 1;
}

/* example::scale(Tensor x, float by=2.0, str rounding="none", int[]? dims=None) -> Tensor */
static int32_t scale(void *context, InrushOperatorCall *call) {
  (void)context;
  wait(call);
  const DLTensor *x = call->args[0].value.tensor, *y = call->results[0];
  double by = call->args[1].value.real;
  int even = strcmp(call->args[2].value.string, "even") == 0;
  const InrushArg *dims = &call->args[3];
  if (x->ndim != 2 || !is_float(x) || !is_dense(x))
    return refuse(call, "a dense matrix of float32 is needed");
  const float *from = x->data;
  float *to = y->data;
  for (int64_t r = 0; r < x->shape[0]; r++) {
    int scaled = dims->kind == INRUSH_ARG_NONE;
    for (int64_t k = 0; !scaled && k < dims->count; k++)
      scaled = dims->value.integers[k] == r;
    for (int64_t c = 0; c < x->shape[1]; c++) {
      float v = from[r * x->shape[1] + c] * (scaled ? (float)by : 1.0f);
      to[r * x->shape[1] + c] = even ? rintf(v) : v;
    }
  }
  return INRUSH_OK;
}

/* example::count(Tensor(a!) seen, Tensor x, int by=1) -> () */
static int32_t count(void *context, InrushOperatorCall *call) {
  (void)context;
  wait(call);
  int64_t *seen = call->args[0].value.tensor->data;
  const DLTensor *x = call->args[1].value.tensor;
  for (int64_t r = 0; r < x->shape[0]; r++) {
    float sum = 0;
    for (int64_t c = 0; c < x->shape[1]; c++)
      sum += ((const float *)x->data)[r * x->strides[0] + c * x->strides[1]];
    *seen += sum > 0 ? call->args[2].value.integer : 0;
  }
  return INRUSH_OK;
}

/* example::above(Tensor x, float limit) -> Tensor */
static int32_t above(void *context, InrushOperatorCall *call) {
  (void)context;
  wait(call);
  const DLTensor *x = call->args[0].value.tensor;
  double limit = call->args[1].value.real;
  if (!is_float(x) || !is_dense(x))
    return refuse(call, "dense float32 is needed");
  const float *from = x->data;
  int64_t found = 0;
  for (int64_t k = 0; k < numel(x); k++)
    found += from[k] > limit;
  const DLTensor *y = call->allocate(call, 0, 1, &found);
  if (!y)
    return INRUSH_INPUT;
  float *to = y->data;
  for (int64_t k = 0; k < numel(x); k++)
    if (from[k] > limit)
      *to++ = from[k];
  return INRUSH_OK;
}

/* example::blend(Tensor[] items, float[] weights, bool flip) -> (Tensor, Tensor[]) */
static int32_t blend(void *context, InrushOperatorCall *call) {
  (void)context;
  wait(call);
  const InrushArg *items = &call->args[0], *weights = &call->args[1];
  if (items->count != weights->count || call->num_results != (size_t)items->count + 1)
    return refuse(call, "a weight for each tensor is needed");
  int64_t n = numel(call->results[0]);
  float *total = call->results[0]->data;
  memset(total, 0, (size_t)n * sizeof(float));
  for (int64_t k = 0; k < items->count; k++) {
    const DLTensor *x = items->value.tensors[k];
    int64_t at = call->args[2].value.integer ? items->count - 1 - k : k;
    float *part = call->results[1 + at]->data;
    if (!is_float(x) || !is_dense(x) || numel(x) != n)
      return refuse(call, "dense float32 of one shape is needed");
    for (int64_t e = 0; e < n; e++) {
      part[e] = ((const float *)x->data)[e] * (float)weights->value.reals[k];
      total[e] += part[e];
    }
  }
  return INRUSH_OK;
}

const InrushOperator *inrush_operators(size_t *count_of) {
  static const InrushOperator all[] = {
      {"example::scale(Tensor x, float by=2.0, str rounding=\"none\", int[]? dims=None) -> Tensor", DEVICE, scale, NULL},
      {"example::count(Tensor(a!) seen, Tensor x, int by=1) -> ()", DEVICE, count, NULL},
      {"example::above(Tensor x, float limit) -> Tensor", DEVICE, above, NULL},
      {"example::blend(Tensor[] items, float[] weights, bool flip) -> (Tensor, Tensor[])", DEVICE, blend, NULL},
  };
  *count_of = sizeof all / sizeof all[0];
  return all;
}
