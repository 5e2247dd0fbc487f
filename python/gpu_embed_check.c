/* Checks a package on a GPU from C: host and device memory, streams, threads, swaps of weights, CUDA graphs.
 *
 * usage: gpu_embed_check PACKAGE DEVICE INPUT EXPECT TOLERANCE
 *
 * PACKAGE takes float32 [n, 1, 8, 8] and gives float32 [n, 10] (examples/digits). INPUT and EXPECT are raw floats. NVIDIA's driver
 * is loaded for memory and streams of its own. One line a check; the exit status is 1 if one failed.
 */
#include "inrush.h"

#include <dlfcn.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef unsigned long long Ptr;
static int (*init)(unsigned), (*device_get)(int *, int), (*retain)(void **, int), (*set_current)(void *), (*alloc)(Ptr *, size_t),
    (*to_device)(Ptr, const void *, size_t), (*to_host)(void *, Ptr, size_t), (*stream_create)(void **, unsigned),
    (*stream_sync)(void *), (*ctx_sync)(void);

static int failures;
static void say(const char *name, int right, const char *why) {
  failures += !right;
  printf("%s  C: %s%s%s\n", right ? "PASS" : "FAIL", name, right ? "" : ": ", right ? "" : why);
  fflush(stdout);
}
static void must(int status, const char *what) {
  if (!status) return;
  printf("FAIL  C: %s: status %d, %s\n", what, status, inrush_last_error());
  exit(1);
}
static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

static void driver(int index) {
  void *lib = dlopen("libcuda.so.1", RTLD_NOW);
  if (!lib) { printf("FAIL  C: %s\n", dlerror()); exit(1); }
  struct { const char *name; void *to; } all[] = {
      {"cuInit", &init}, {"cuDeviceGet", &device_get}, {"cuDevicePrimaryCtxRetain", &retain}, {"cuCtxSetCurrent", &set_current},
      {"cuMemAlloc_v2", &alloc}, {"cuMemcpyHtoD_v2", &to_device}, {"cuMemcpyDtoH_v2", &to_host},
      {"cuStreamCreate", &stream_create}, {"cuStreamSynchronize", &stream_sync}, {"cuCtxSynchronize", &ctx_sync}};
  for (size_t k = 0; k < sizeof all / sizeof *all; k++) {
    void *f = dlsym(lib, all[k].name);
    if (!f) { printf("FAIL  C: no %s\n", all[k].name); exit(1); }
    memcpy(all[k].to, &f, sizeof f);
  }
  int device;
  void *context;
  must(init(0), "cuInit");
  must(device_get(&device, index), "cuDeviceGet");
  must(retain(&context, device), "cuDevicePrimaryCtxRetain");
  must(set_current(context), "cuCtxSetCurrent");
}

static float *data_of(const char *path, size_t *count) {
  FILE *f = fopen(path, "rb");
  if (!f) { perror(path); exit(1); }
  fseek(f, 0, SEEK_END);
  long bytes = ftell(f);
  rewind(f);
  float *data = malloc((size_t)bytes);
  if (fread(data, 1, (size_t)bytes, f) != (size_t)bytes) exit(1);
  fclose(f);
  *count = (size_t)bytes / sizeof(float);
  return data;
}

static DLTensor floats(void *data, DLDeviceType kind, int index, int32_t ndim, int64_t *shape) {
  DLTensor t = {0};
  t.data = data;
  t.device.device_type = kind;
  t.device.device_id = index;
  t.ndim = ndim;
  t.dtype.code = kDLFloat;
  t.dtype.bits = 32;
  t.dtype.lanes = 1;
  t.shape = shape;
  return t;
}

static InrushModel *model;
static const float *images, *expect;
static int64_t in_shape[4] = {0, 1, 8, 8}, out_shape[2] = {0, 10};
static size_t in_count, out_count;
static double tolerance;
static int gpu;

/* Norm of the difference over norm of the expected output. */
static int near(const float *got, const float *want) {
  double d = 0, n = 0;
  for (size_t i = 0; i < out_count; i++) {
    double e = (double)got[i] - want[i];
    d += e * e;
    n += (double)want[i] * want[i];
  }
  return isfinite(d) && sqrt(d) <= tolerance * sqrt(n);
}

static void *calls(void *unused) {
  (void)unused;
  long wrong = 0;
  float *out = malloc(out_count * sizeof *out);
  DLTensor x = floats((void *)images, kDLCPU, 0, 4, in_shape), y = floats(out, kDLCPU, 0, 2, out_shape);
  const DLTensor *in[1] = {&x}, *into[1] = {&y};
  for (int k = 0; k < 200; k++) {
    memset(out, 0, out_count * sizeof *out);
    wrong += inrush_model_run_into(model, in, 1, into, 1) != 0 || !near(out, expect);
  }
  free(out);
  return (void *)wrong;
}

static const char *bias_name(void) {
  for (size_t k = inrush_model_num_weights(model); k-- > 0;) {
    const InrushSpec *w = inrush_model_weight(model, k);
    if (w->ndim == 1 && w->shape[0] == 10) return w->name;
  }
  return NULL;
}

static int classes_are(const float *logits, int which) {
  for (int64_t i = 0; i < out_shape[0]; i++)
    for (int c = 0; c < 10; c++)
      if (logits[10 * i + c] > logits[10 * i + which]) return 0;
  return 1;
}

static void check(const char *title, int graphs) {
  char name[128];
  size_t in_bytes = in_count * sizeof(float), out_bytes = out_count * sizeof(float);
  float *out = malloc(out_bytes), *first = malloc(out_bytes);
  DLTensor x = floats((void *)images, kDLCPU, 0, 4, in_shape), y = floats(out, kDLCPU, 0, 2, out_shape);
  const DLTensor *in[1] = {&x}, *into[1] = {&y};
  for (int k = 0; k < 5; k++) must(inrush_model_run_into(model, in, 1, into, 1), "a call on the host's memory");
  snprintf(name, sizeof name, "%s, host to host", title);
  say(name, near(out, expect), "results are off");
  memcpy(first, out, out_bytes);

  Ptr dx, dy;
  must(alloc(&dx, in_bytes), "cuMemAlloc");
  must(alloc(&dy, out_bytes), "cuMemAlloc");
  must(to_device(dx, images, in_bytes), "cuMemcpyHtoD");
  must(ctx_sync(), "cuCtxSynchronize");
  x = floats((void *)(size_t)dx, kDLCUDA, gpu, 4, in_shape);
  DLManagedTensorVersioned *made = NULL;
  int same = 1;
  for (int k = 0; k < 5; k++) {
    must(inrush_model_run(model, in, 1, &made, 1), "a call on the device's memory");
    memset(out, 0, out_bytes);
    same &= made->dl_tensor.device.device_type == kDLCUDA && made->dl_tensor.device.device_id == gpu;
    must(to_host(out, (Ptr)(size_t)made->dl_tensor.data + made->dl_tensor.byte_offset, out_bytes), "cuMemcpyDtoH");
    same &= !memcmp(out, first, out_bytes);
    made->deleter(made);
  }
  snprintf(name, sizeof name, "%s, device to device", title);
  say(name, same, "results are not those of the host's memory");

  void *stream;
  must(stream_create(&stream, 1), "cuStreamCreate");
  y = floats((void *)(size_t)dy, kDLCUDA, gpu, 2, out_shape);
  same = 1;
  for (int k = 0; k < 20; k++) {
    must(inrush_model_run_into_on_stream(model, stream, in, 1, into, 1), "a call on a stream");
    must(stream_sync(stream), "cuStreamSynchronize");
    memset(out, 0, out_bytes);
    must(to_host(out, dy, out_bytes), "cuMemcpyDtoH");
    same &= !memcmp(out, first, out_bytes);
  }
  for (int k = 0; k < 20; k++) {
    must(inrush_model_run_on_stream(model, stream, in, 1, &made, 1), "a call on a stream");
    must(stream_sync(stream), "cuStreamSynchronize");
    must(to_host(out, (Ptr)(size_t)made->dl_tensor.data, out_bytes), "cuMemcpyDtoH");
    same &= !memcmp(out, first, out_bytes);
    made->deleter(made);
  }
  snprintf(name, sizeof name, "%s, a stream of the caller's", title);
  say(name, same, "results are not those of the host's memory");

  double best = 1e9;
  for (int round = 0; round < 20; round++) {
    double start = now();
    for (int k = 0; k < 50; k++) must(inrush_model_run_into_on_stream(model, stream, in, 1, into, 1), "a call");
    must(stream_sync(stream), "cuStreamSynchronize");
    double ms = (now() - start) / 50;
    if (ms < best) best = ms;
  }
  printf("TIME  C: %s, device to device on a stream: %.4f ms a call\n", title, best);

  pthread_t threads[4];
  long wrong = 0;
  for (int k = 0; k < 4; k++) must(pthread_create(&threads[k], NULL, calls, NULL), "a thread");
  for (int k = 0; k < 4; k++) {
    void *result;
    pthread_join(threads[k], &result);
    wrong += (long)result;
  }
  snprintf(name, sizeof name, "%s, 4 threads of 200 calls", title);
  say(name, wrong == 0, "results are off");

  const char *names[1] = {bias_name()};
  float bias[10] = {0};
  int64_t ten[1] = {10};
  DLTensor w = floats(bias, kDLCPU, 0, 1, ten);
  const DLTensor *weights[1] = {&w};
  y = floats(out, kDLCPU, 0, 2, out_shape);
  same = 1;
  for (int k = 0; k < 10; k++) {
    memset(bias, 0, sizeof bias);
    bias[k] = 1e6f;
    if (k % 2) {
      must(to_device(dy, bias, sizeof bias), "cuMemcpyHtoD");
      must(ctx_sync(), "cuCtxSynchronize");
      w = floats((void *)(size_t)dy, kDLCUDA, gpu, 1, ten);
    } else {
      w = floats(bias, kDLCPU, 0, 1, ten);
    }
    must(inrush_model_update_weights(model, names, weights, 1, 0), "an update of weights");
    must(inrush_model_swap_weights(model), "a swap of weights");
    for (int j = 0; j < 4; j++) {
      must(inrush_model_run_into(model, in, 1, into, 1), "a call");
      same &= classes_are(out, k);
    }
  }
  snprintf(name, sizeof name, "%s, weights from host and device", title);
  say(name, same, "the classes are not those of the new weights");
  names[0] = "nothing";
  snprintf(name, sizeof name, "%s, a wrong name of a weight", title);
  say(name, inrush_model_update_weights(model, names, weights, 1, 0) == INRUSH_INPUT, "no error");
  (void)graphs;
  free(out);
  free(first);
}

int main(int argc, char **argv) {
  if (argc != 6) { fprintf(stderr, "usage: gpu_embed_check PACKAGE DEVICE INPUT EXPECT TOLERANCE\n"); return 2; }
  if (inrush_abi() != INRUSH_ABI) { printf("FAIL  C: another version of the library\n"); return 1; }
  const char *number = strchr(argv[2], ':');
  gpu = number ? atoi(number + 1) : 0;
  driver(gpu);
  images = data_of(argv[3], &in_count);
  expect = data_of(argv[4], &out_count);
  in_shape[0] = out_shape[0] = (int64_t)(in_count / 64);
  tolerance = atof(argv[5]);
  for (int graphs = 0; graphs < 2; graphs++) {
    InrushOptions options = {0};
    options.size = sizeof options;
    options.device = argv[2];
    options.cuda_graphs = graphs;
    must(inrush_model_open(argv[1], &options, &model), "opening the package");
    check(graphs ? "CUDA graphs" : "plain", graphs);
    inrush_model_free(model);
  }
  InrushOptions wrong = {0};
  wrong.size = sizeof wrong;
  wrong.device = "cuda:99";
  int status = inrush_model_open(argv[1], &wrong, &model);
  say("a device that is not there", status == INRUSH_MACHINE && strstr(inrush_last_error(), "99"), inrush_last_error());
  printf("%d failures\n", failures);
  return failures != 0;
}
