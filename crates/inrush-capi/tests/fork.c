/* Forks before the first call and after it, and prints the status and the text of each call in a child. Argument: a package. */
#define _POSIX_C_SOURCE 200809L
#include "inrush.h"

#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#define IMAGES 200

static InrushStatus classify(InrushModel *m) {
  static float data[IMAGES * 64];
  int64_t shape[4] = {IMAGES, 1, 8, 8};
  DLTensor x = {0};
  x.data = data;
  x.device.device_type = kDLCPU;
  x.ndim = 4;
  x.dtype.code = kDLFloat;
  x.dtype.bits = 32;
  x.dtype.lanes = 1;
  x.shape = shape;
  const DLTensor *in[1] = {&x};
  DLManagedTensorVersioned *out[1];
  InrushStatus status = inrush_model_run(m, in, 1, out, 1);
  if (out[0] != NULL) out[0]->deleter(out[0]);
  return status;
}

/* Classifies in a child, which a signal ends if it hangs. */
static int in_child(InrushModel *m) {
  fflush(stdout);
  pid_t child = fork();
  if (child == 0) {
    alarm(60);
    InrushStatus status = classify(m);
    printf("%d %s\n", (int)status, status ? inrush_last_error() : "");
    inrush_model_free(m);
    fflush(stdout);
    _exit(0);
  }
  int status = 0;
  return child < 0 || waitpid(child, &status, 0) != child || status != 0;
}

int main(int argc, char **argv) {
  InrushOptions options = {.size = sizeof options, .threads = 2};
  InrushModel *m = NULL;
  if (argc != 2 || inrush_model_open(argv[1], &options, &m)) return 2;
  if (in_child(m) || classify(m) || in_child(m) || classify(m)) return 2;
  inrush_model_free(m);
  return 0;
}
