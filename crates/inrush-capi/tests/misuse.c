/* Makes every mistake once and prints the status and the text of each. Arguments: a package, and half a package. */
#include "inrush.h"

#include <stdio.h>
#include <string.h>

static void say(InrushStatus status) { printf("%d %s\n", (int)status, status ? inrush_last_error() : ""); }

static DLTensor floats(float *data, int32_t ndim, int64_t *shape) {
  DLTensor t = {0};
  t.data = data;
  t.device.device_type = kDLCPU;
  t.ndim = ndim;
  t.dtype.code = kDLFloat;
  t.dtype.bits = 32;
  t.dtype.lanes = 1;
  t.shape = shape;
  return t;
}

int main(int argc, char **argv) {
  if (argc != 3) return 2;
  InrushModel *m = NULL;
  InrushOptions empty = {0};
  say(inrush_model_open("/no/such/file", NULL, &m));
  say(inrush_model_open(argv[2], NULL, &m));
  say(inrush_model_open(argv[1], &empty, &m));
  say(inrush_model_open(NULL, NULL, &m));
  if (m != NULL) return 2;
  if (inrush_model_open(argv[1], NULL, &m)) return 2;

  static float data[2 * 64], out[20];
  int64_t shape[4] = {2, 1, 8, 8}, narrow[4] = {2, 1, 8, 7}, out_shape[2] = {2, 10}, wrong_shape[2] = {3, 10};
  DLTensor x = floats(data, 4, shape), y = floats(out, 2, out_shape);
  const DLTensor *in[2] = {&x, &x};
  DLManagedTensorVersioned *results[2];
  say(inrush_model_run(m, in, 1, results, 2));
  say(inrush_model_run(m, in, 2, results, 1));
  DLTensor ints = x;
  ints.dtype.code = kDLInt;
  const DLTensor *wrong[1] = {&ints};
  say(inrush_model_run(m, wrong, 1, results, 1));
  DLTensor thin = floats(data, 4, narrow);
  wrong[0] = &thin;
  say(inrush_model_run(m, wrong, 1, results, 1));
  wrong[0] = NULL;
  say(inrush_model_run(m, wrong, 1, results, 1));
  if (results[0] != NULL) return 2;
  DLTensor bad = floats(out, 2, wrong_shape);
  const DLTensor *into[1] = {&bad};
  say(inrush_model_run_into(m, in, 1, into, 1));
  const char *names[1] = {"nothing"};
  say(inrush_model_update_weights(m, names, in, 1, 0));
  say(inrush_model_swap_weights(m));
  say(inrush_model_set_seed(m, 1));
  into[0] = &y;
  say(inrush_model_run_into(m, in, 1, into, 1));

  inrush_model_discard_update(m);
  inrush_model_free(m);
  inrush_model_free(NULL);
  if (inrush_model_num_inputs(NULL) != 0 || inrush_model_input(NULL, 0) != NULL) return 2;
  return 0;
}
