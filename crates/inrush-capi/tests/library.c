/* Calls functions of the library by their names, rightly and wrongly, and prints the status and the text of each. */
#include "inrush.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void say(InrushStatus status) { printf("%d %s\n", (int)status, status ? inrush_last_error() : ""); }

static DLTensor tensor(void *data, DLDataTypeCode code, int bits, int32_t ndim, int64_t *shape, int64_t *strides) {
  DLTensor t;
  memset(&t, 0, sizeof t);
  t.data = data;
  t.device.device_type = kDLCPU;
  t.ndim = ndim;
  t.dtype.code = (uint8_t)code;
  t.dtype.bits = (uint8_t)bits;
  t.dtype.lanes = 1;
  t.shape = shape;
  t.strides = strides;
  return t;
}

int main(void) {
  int64_t square[2] = {2, 2}, columns[2] = {1, 2}, one[1] = {1};
  /* Of a matrix stored by columns: [[2, 1], [0, 4]]. */
  float a[4] = {2, 0, 1, 4}, inverse[4];
  int32_t info[1];
  DLTensor x = tensor(a, kDLFloat, 32, 2, square, columns), y = tensor(inverse, kDLFloat, 32, 2, square, NULL);
  DLTensor code = tensor(info, kDLInt, 32, 0, one, NULL);
  const DLTensor *in[1] = {&x}, *out[2] = {&y, &code};
  say(inrush_library_run("linalg.inv", 2, in, 1, NULL, 0, out, 2));
  const float wanted[4] = {0.5f, -0.125f, 0, 0.25f};
  for (int k = 0; k < 4; k++)
    if (fabsf(inverse[k] - wanted[k]) > 1e-6f) return printf("%d: %f\n", k, inverse[k]), 2;
  if (info[0] != 0) return 2;

  /* Mistakes. */
  say(inrush_library_run("no.such", 1, in, 1, NULL, 0, out, 2));
  say(inrush_library_run(NULL, 1, in, 1, NULL, 0, out, 2));
  say(inrush_library_run("linalg.inv", -1, in, 1, NULL, 0, out, 2));
  say(inrush_library_run("linalg.inv", 1, in, 1, NULL, 0, out, 1));
  say(inrush_library_run("linalg.inv", 1, NULL, 1, NULL, 0, out, 2));
  const DLTensor *none[1] = {NULL};
  say(inrush_library_run("linalg.inv", 1, none, 1, NULL, 0, out, 2));
  const DLTensor *same[2] = {&x, &code};
  say(inrush_library_run("linalg.inv", 1, in, 1, NULL, 0, same, 2));
  x.strides = NULL;
  say(inrush_library_run("linalg.inv", 1, in, 1, NULL, 0, same, 2));
  DLTensor turned = y;
  turned.strides = columns;
  const DLTensor *by_columns[2] = {&turned, &code};
  say(inrush_library_run("linalg.inv", 1, in, 1, NULL, 0, by_columns, 2));
  InrushArg text;
  memset(&text, 0, sizeof text);
  text.kind = INRUSH_ARG_STRING;
  text.value.string = "x";
  say(inrush_library_run("linalg.inv", 1, in, 1, &text, 1, out, 2));
  text.kind = INRUSH_ARG_NONE;
  say(inrush_library_run("linalg.inv", 1, in, 1, &text, 1, out, 2));

  /* Results whose sizes data decide. */
  float values[5] = {0, 3, 0, 4, 5};
  int64_t five[1] = {5};
  DLTensor list = tensor(values, kDLFloat, 32, 1, five, NULL);
  in[0] = &list;
  DLManagedTensorVersioned *made[2] = {NULL, NULL};
  say(inrush_library_results("nonzero", 1, in, 1, NULL, 0, made, 1));
  const DLTensor *found = &made[0]->dl_tensor;
  if (found->ndim != 2 || found->shape[0] != 3 || found->shape[1] != 1) return 2;
  for (int k = 0; k < 3; k++)
    if (((const int64_t *)found->data)[k * found->strides[0]] != (int64_t[]){1, 3, 4}[k]) return 2;
  made[0]->deleter(made[0]);
  say(inrush_library_results("nonzero", 1, in, 1, NULL, 0, made, 2));
  if (made[0] || made[1]) return 2;
  say(inrush_library_results("nonzero", 1, none, 1, NULL, 0, made, 1));
  say(inrush_library_results("linalg.inv", 1, in, 1, NULL, 0, made, 1));
  say(inrush_library_results("nonzero", 1, in, 1, NULL, 0, NULL, 1));
  return made[0] != NULL;
}
