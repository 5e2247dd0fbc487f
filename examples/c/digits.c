/* Classifies handwritten digits from C, and replaces the weights of the loaded model.
 *
 * usage: digits PACKAGE IMAGES [DEVICE]
 *
 * PACKAGE is made by `inrush compile examples/digits/digits.pt2 -o digits.inrush`. IMAGES holds 64 float32 an image, grey
 * values 0 to 16. One line an image: its class. Then the bias of the last layer is replaced so that every image is a 7, and
 * the lines are printed again. DEVICE is cpu, or cuda:0 for a package with a target that is a GPU; images and logits are in
 * memory of the host here in any case.
 */
#include "inrush.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void check(InrushStatus status) {
  if (status != INRUSH_OK) {
    fprintf(stderr, "inrush: %s\n", inrush_last_error());
    exit(2);
  }
}

static DLTensor floats(float *data, int32_t ndim, int64_t *shape) {
  DLTensor t = {0};
  t.data = data;
  t.device.device_type = kDLCPU;
  t.ndim = ndim;
  t.dtype.code = kDLFloat;
  t.dtype.bits = 32;
  t.dtype.lanes = 1;
  t.shape = shape; /* row-major: no strides */
  return t;
}

/* Prints the position of the largest of ten numbers, for each row. */
static void print_classes(const float *logits, int64_t rows) {
  for (int64_t i = 0; i < rows; i++) {
    int best = 0;
    for (int c = 1; c < 10; c++)
      if (logits[10 * i + c] > logits[10 * i + best]) best = c;
    printf("%d\n", best);
  }
}

static float *read_images(const char *path, int64_t *count) {
  FILE *f = fopen(path, "rb");
  if (!f) { perror(path); exit(2); }
  fseek(f, 0, SEEK_END);
  long bytes = ftell(f);
  rewind(f);
  *count = bytes / (64 * (long)sizeof(float));
  float *data = malloc(bytes > 0 ? (size_t)bytes : 1);
  if (!data || fread(data, 1, (size_t)bytes, f) != (size_t)bytes) { fprintf(stderr, "cannot read %s\n", path); exit(2); }
  fclose(f);
  return data;
}

/* Finds the weight of ten numbers: the bias of the last layer. */
static const InrushSpec *last_bias(const InrushModel *model) {
  for (size_t k = inrush_model_num_weights(model); k-- > 0;) {
    const InrushSpec *w = inrush_model_weight(model, k);
    if (w->ndim == 1 && w->shape[0] == 10) return w;
  }
  fprintf(stderr, "no weight of 10 numbers\n");
  exit(2);
}

int main(int argc, char **argv) {
  if (argc != 3 && argc != 4) { fprintf(stderr, "usage: digits PACKAGE IMAGES [DEVICE]\n"); return 2; }
  if (inrush_abi() != INRUSH_ABI) { fprintf(stderr, "another version of the library\n"); return 2; }

  InrushOptions options = {0};
  options.size = sizeof options;
  options.threads = 2;
  options.device = argc == 4 ? argv[3] : "cpu";
  InrushModel *model;
  check(inrush_model_open(argv[1], &options, &model));
  for (size_t k = 0; k < inrush_model_num_inputs(model); k++) {
    const InrushSpec *in = inrush_model_input(model, k);
    fprintf(stderr, "input %s:", in->name);
    for (int32_t d = 0; d < in->ndim; d++) fprintf(stderr, " %s", in->shape_symbols[d]);
    fprintf(stderr, "\n");
  }

  int64_t count;
  float *images = read_images(argv[2], &count);
  int64_t shape[4] = {count, 1, 8, 8};
  DLTensor input = floats(images, 4, shape);
  const DLTensor *inputs[1] = {&input};

  float *logits = malloc((size_t)(count > 0 ? count : 1) * 10 * sizeof(float));
  int64_t logits_shape[2] = {count, 10};
  DLTensor into = floats(logits, 2, logits_shape);
  const DLTensor *outputs[1] = {&into};

  /* A call that allocates its output, on the model's device. */
  DLManagedTensorVersioned *output = NULL;
  check(inrush_model_run(model, inputs, 1, &output, 1));
  if (output->dl_tensor.device.device_type == kDLCPU) {
    print_classes((const float *)((char *)output->dl_tensor.data + output->dl_tensor.byte_offset), count);
  } else { /* memory of a GPU is for its kernels: a call into memory of the host instead */
    check(inrush_model_run_into(model, inputs, 1, outputs, 1));
    print_classes(logits, count);
  }
  output->deleter(output);

  /* The next set of weights is built while the model could serve, then swapped in. */
  const InrushSpec *bias = last_bias(model);
  float all_sevens[10] = {0};
  all_sevens[7] = 1e6f;
  int64_t ten[1] = {10};
  DLTensor weight = floats(all_sevens, 1, ten);
  const DLTensor *weights[1] = {&weight};
  const char *names[1] = {bias->name};
  check(inrush_model_update_weights(model, names, weights, 1, 0));
  check(inrush_model_swap_weights(model));

  /* A call into memory of our own. */
  check(inrush_model_run_into(model, inputs, 1, outputs, 1));
  print_classes(logits, count);

  free(logits);
  free(images);
  inrush_model_free(model);
  return 0;
}
