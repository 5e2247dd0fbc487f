/* Runs a package on a GPU from C over a driver whose device memory is memory of this process. Arguments: the package, which
 * multiplies float32 [n] by 4. Prints a line for each step. */
#include "inrush.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void say(const char *what, InrushStatus status) {
  printf("%d %s%s%s\n", (int)status, what, status ? ": " : "", status ? inrush_last_error() : "");
}

static DLTensor floats(void *data, DLDeviceType kind, int index, int64_t *shape) {
  DLTensor t = {0};
  t.data = data;
  t.device.device_type = kind;
  t.device.device_id = index;
  t.ndim = 1;
  t.dtype.code = kDLFloat;
  t.dtype.bits = 32;
  t.dtype.lanes = 1;
  t.shape = shape;
  return t;
}

static InrushModel *m;
static int64_t three[1] = {3};

static void *calls(void *unused) {
  (void)unused;
  for (int k = 0; k < 50; k++) {
    float x[3] = {1, 2, (float)k}, y[3] = {0};
    DLTensor in = floats(x, kDLCPU, 0, three), out = floats(y, kDLCPU, 0, three);
    const DLTensor *inputs[1] = {&in}, *outputs[2] = {&out, NULL};
    if (inrush_model_run_into(m, inputs, 1, outputs, 2)) return "a call fails";
    if (y[0] != 4 || y[1] != 8 || y[2] != 4 * (float)k) return "a result is off";
  }
  return NULL;
}

int main(int argc, char **argv) {
  if (argc != 2) return 2;
  InrushOptions options = {0};
  options.size = sizeof options;
  options.device = "cuda:7";
  say("open on a device that is not there", inrush_model_open(argv[1], &options, &m));
  options.device = "gpu";
  say("open on an unknown device", inrush_model_open(argv[1], &options, &m));
  options.device = NULL;
  say("open on the CPU", inrush_model_open(argv[1], &options, &m));
  options.device = "cuda";
  for (int graphs = 0; graphs < 2; graphs++) {
    options.cuda_graphs = graphs;
    say("open", inrush_model_open(argv[1], &options, &m));
    if (!m) return 2;

    float *x = aligned_alloc(512, 512), *y = aligned_alloc(512, 512);
    DLTensor in = floats(x, kDLCUDA, 0, three), out = floats(y, kDLCUDA, 0, three);
    const DLTensor *inputs[1] = {&in}, *outputs[2] = {&out, NULL};
    DLManagedTensorVersioned *made[2];
    for (int k = 0; k < 5; k++) {
      x[0] = 1, x[1] = (float)k, x[2] = -3;
      if (inrush_model_run(m, inputs, 1, made, 2)) say("run", INRUSH_INTERNAL);
      const DLTensor *t = &made[0]->dl_tensor;
      const float *got = t->data; /* memory of the device is memory of this process here */
      if (t->device.device_type != kDLCUDA || got[0] != 4 || got[1] != 4 * (float)k || got[2] != -12) puts("a result is off");
      if (made[1]->dl_tensor.device.device_type != kDLCPU) puts("a number is not on the host");
      made[0]->deleter(made[0]);
      made[1]->deleter(made[1]);
      memset(y, 0, 12);
      if (inrush_model_run_into_on_stream(m, NULL, inputs, 1, outputs, 2)) say("run on a stream", INRUSH_INTERNAL);
      if (y[0] != 4 || y[1] != 4 * (float)k || y[2] != -12) puts("a result on a stream is off");
    }
    pthread_t threads[4];
    for (int k = 0; k < 4; k++)
      if (pthread_create(&threads[k], NULL, calls, NULL)) return 2;
    for (int k = 0; k < 4; k++) {
      void *why;
      pthread_join(threads[k], &why);
      if (why) puts(why);
    }
    out = floats(y, kDLCUDA, 1, three);
    say("an output on another device", inrush_model_run_into(m, inputs, 1, outputs, 2));
    in = floats(x, kDLCUDA, 1, three);
    say("an input on another device", inrush_model_run(m, inputs, 1, made, 2));
    if (made[0] || made[1]) return 2;
    inrush_model_free(m);
    free(x);
    free(y);
  }
  puts("end");
  return 0;
}
