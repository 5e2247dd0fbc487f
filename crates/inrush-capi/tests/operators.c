/* A host in C with functions of operators: opens a package without and with them, runs it, prints the outputs. */
#include "inrush.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of examples/operators/operators.c. */
const InrushOperator *inrush_operators(size_t *count);

static int32_t fails(void *context, InrushOperatorCall *call) {
  call->fail(call, context);
  return INRUSH_UNSUPPORTED;
}

static int32_t runs_wild(void *context, InrushOperatorCall *call) {
  (void)context;
  int64_t shape[1] = {-3};
  /* Of a result that is there, of one that is not, of sizes that are none. */
  if (call->allocate(call, 0, 1, shape) || call->allocate(call, 7, 1, shape) || call->allocate(call, 0, -1, NULL))
    return INRUSH_OK;
  return INRUSH_INPUT;
}

static void say(const char *what, InrushStatus status) { printf("%d %s: %s\n", status, what, inrush_last_error()); }

static InrushStatus run(InrushModel *model, float *data, DLManagedTensorVersioned **outputs) {
  int64_t shape[2] = {5, 6};
  DLTensor x = {data, {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, shape, NULL, 0};
  const DLTensor *inputs[1] = {&x};
  /* The last one is the new contents of the counter. */
  return inrush_model_run(model, inputs, 1, outputs, 5);
}

int main(int argc, char **argv) {
  InrushModel *model = NULL;
  float data[30];
  FILE *f = argc == 3 ? fopen(argv[2], "rb") : NULL;
  if (!f || fread(data, sizeof(float), 30, f) != 30)
    return 2;
  fclose(f);
  say("without", inrush_model_open(argv[1], NULL, &model));
  say("null", inrush_register_operators(NULL, 1));
  InrushOperator bad[] = {{"scale(Tensor x) -> Tensor", "cpu", fails, NULL}, {NULL, NULL, fails, NULL},
                          {"a::b(Tensor x) -> Tensor", "tpu", fails, NULL}, {"a::b(Tensor x) -> Tensor", "cpu", NULL, NULL}};
  for (int k = 0; k < 4; k++)
    say("bad", inrush_register_operators(&bad[k], 1));
  say("library", inrush_load_operators("/nowhere/liboperators.so"));
  size_t count = 0;
  const InrushOperator *all = inrush_operators(&count);
  if (inrush_register_operators(all, count) || inrush_model_open(argv[1], NULL, &model))
    return 3;
  DLManagedTensorVersioned *outputs[5];
  if (run(model, data, outputs)) {
    say("run", INRUSH_INTERNAL);
    return 4;
  }
  for (int k = 0; k < 3; k++) {
    const DLTensor *t = &outputs[k]->dl_tensor;
    int64_t n = 1;
    for (int d = 0; d < t->ndim; d++)
      n *= t->shape[d];
    printf("output %d", k);
    for (int64_t e = 0; e < n; e++)
      printf(" %.9g", ((const float *)((const char *)t->data + t->byte_offset))[e]);
    printf("\n");
  }
  for (int k = 0; k < 4; k++)
    outputs[k]->deleter(outputs[k]);
  inrush_model_free(model);
  InrushOperator failing = {all[0].schema, "cpu", fails, "it is Sunday"};
  if (inrush_register_operators(&failing, 1) || inrush_model_open(argv[1], NULL, &model))
    return 5;
  say("failing", run(model, data, outputs));
  inrush_model_free(model);
  failing.run = runs_wild;
  if (inrush_register_operators(&failing, 1) || inrush_model_open(argv[1], NULL, &model))
    return 6;
  say("wild", run(model, data, outputs));
  inrush_model_free(model);
  return 0;
}
