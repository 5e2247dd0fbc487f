/* inrush.h: load a package of `inrush compile` and run it, from C and C++.
 *
 * Link with -linrush. Neither Python nor PyTorch nor a compiler is needed.
 *
 * Every function that can fail returns an InrushStatus; inrush_last_error() has the text. A model may be used from several
 * threads at once, except for inrush_model_free(). Tensors are DLPack's, version 1. A process may fork before its first call of
 * a model on the CPU; a call in a child after it is INRUSH_MACHINE, unless the model has one thread.
 *
 * A model is on the CPU, or on a GPU that `InrushOptions.device` names. On a GPU:
 * - Inputs are in memory of the GPU (kDLCUDA), where they are read, or of the host, from where each call copies them. What writes
 *   those of the GPU has to be done before a call, or to be work of the call's stream.
 * - inrush_model_run gives tensors of the GPU. inrush_model_run_into takes memory of the GPU or of the host. Kernels write directly
 *   into memory of the GPU that starts at a multiple of 16 bytes and is row-major, as the model's own outputs are.
 * - A call has a stream of its own and returns when the outputs are there. inrush_model_run_on_stream issues all work on the
 *   caller's stream (a CUstream or cudaStream_t; NULL is the default stream) and returns before it is done; inputs and
 *   outputs stay until then. A call with memory of the host waits for its work in any case.
 * - Deleters give memory to later calls: call them once all work that uses the tensor is done, or was issued on the stream of the
 *   call that gave it. A stream is idle when it is destroyed.
 */
#ifndef INRUSH_H
#define INRUSH_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* DLPack's structures, unless <dlpack/dlpack.h> was included first. */
#ifndef DLPACK_DLPACK_H_
#define DLPACK_DLPACK_H_
#define DLPACK_MAJOR_VERSION 1
#define DLPACK_MINOR_VERSION 1
typedef struct { uint32_t major, minor; } DLPackVersion;
typedef enum { kDLCPU = 1, kDLCUDA = 2, kDLCUDAHost = 3 } DLDeviceType;
typedef struct { DLDeviceType device_type; int32_t device_id; } DLDevice;
typedef enum { kDLInt = 0, kDLUInt = 1, kDLFloat = 2, kDLBfloat = 4, kDLComplex = 5, kDLBool = 6 } DLDataTypeCode;
typedef struct { uint8_t code, bits; uint16_t lanes; } DLDataType;
typedef struct {
  void *data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t *shape;
  int64_t *strides; /* in elements; NULL for row-major */
  uint64_t byte_offset;
} DLTensor;
typedef struct DLManagedTensorVersioned {
  DLPackVersion version;
  void *manager_ctx;
  void (*deleter)(struct DLManagedTensorVersioned *self);
  uint64_t flags;
  DLTensor dl_tensor;
} DLManagedTensorVersioned;
#endif

/* Changes when a function or structure changes in a way that compiled callers would notice. */
#define INRUSH_ABI 1

typedef enum InrushStatus {
  INRUSH_OK = 0,
  INRUSH_INPUT = 1,       /* the caller's file, tensors or arguments */
  INRUSH_UNSUPPORTED = 2, /* valid, but not done yet */
  INRUSH_MACHINE = 3,     /* memory, disk, another processor than the package was compiled for */
  INRUSH_INTERNAL = 4     /* a fault of inrush */
} InrushStatus;

typedef struct InrushModel InrushModel;

/* Set `size` to sizeof(InrushOptions) and the rest to zero for the defaults. */
typedef struct InrushOptions {
  size_t size;
  int64_t threads; /* of every call on the CPU; 0 for one per processor */
  int64_t seed;    /* of the first call's random numbers, if the model draws some */
  const char *device;  /* "cpu", "cuda", "cuda:1" or "rocm:0"; NULL for the CPU */
  int64_t cuda_graphs; /* on a GPU: not 0 to capture calls as CUDA graphs, from the second of the same sizes on */
  int64_t concurrent;  /* on a GPU: calls that run at once, each with memory of its own; more wait; 0 for 4 */
} InrushOptions;

typedef enum InrushKind {
  INRUSH_TENSOR = 0,
  INRUSH_INT = 1,      /* an integer, passed and returned as a tensor without dimensions */
  INRUSH_CONSTANT = 2, /* the number that the model was exported with; NULL stands for it */
  INRUSH_NOTHING = 3   /* a place for NULL */
} InrushKind;

/* Describes an input, an output or a weight. It belongs to the model. */
typedef struct InrushSpec {
  const char *name; /* NULL for outputs */
  InrushKind kind;
  DLDataType dtype;
  int32_t ndim;
  const int64_t *shape;             /* -1 where a call decides */
  const char *const *shape_symbols; /* text of each size, such as "batch" or "(2 * seq)" */
  const int64_t *shape_min;         /* inclusive bounds of each size that a call decides; 0 and INT64_MAX where unknown */
  const int64_t *shape_max;
} InrushSpec;

/* The library's INRUSH_ABI. */
uint32_t inrush_abi(void);
/* Its version, such as "0.1.0". */
const char *inrush_version(void);
/* The last error of this thread; empty if there was none. Valid until this thread's next call. */
const char *inrush_last_error(void);

/* Operators that users define.
 *
 * A package may call operators of the exported model's own, such as mylib::scale. Their functions are the host's: register them
 * before the package is opened, or opening it is INRUSH_INPUT and the text names those that are missing.
 *
 *   static int32_t scale(void *context, InrushOperatorCall *call) {
 *     const DLTensor *x = call->args[0].value.tensor, *y = call->results[0];
 *     for (int64_t i = 0; i < x->shape[0]; i++)
 *       ((float *)y->data)[i] = ((const float *)x->data)[i] * (float)call->args[1].value.real;
 *     return INRUSH_OK;
 *   }
 *   InrushOperator operators[] = {{"mylib::scale(Tensor x, float by=2.0) -> Tensor", "cpu", scale, NULL}};
 *   inrush_register_operators(operators, 1);
 */
typedef enum InrushArgKind {
  INRUSH_ARG_NONE = 0,
  INRUSH_ARG_TENSOR = 1,
  INRUSH_ARG_TENSORS = 2, /* NULL for one that is left out */
  INRUSH_ARG_INT = 3,
  INRUSH_ARG_INTS = 4,
  INRUSH_ARG_REAL = 5,
  INRUSH_ARG_REALS = 6,
  INRUSH_ARG_BOOL = 7,  /* value.integer is 0 or 1 */
  INRUSH_ARG_BOOLS = 8, /* value.integers are 0 or 1 */
  INRUSH_ARG_STRING = 9,
  INRUSH_ARG_DTYPE = 10
} InrushArgKind;

typedef struct InrushArg {
  int32_t kind;  /* an InrushArgKind */
  int64_t count; /* entries of a list */
  union {
    const DLTensor *tensor;
    const DLTensor *const *tensors;
    int64_t integer;
    const int64_t *integers;
    double real;
    const double *reals;
    const char *string;
    DLDataType dtype;
  } value;
} InrushArg;

/* One call of an operator. Pointers are valid until the function returns. Tensors have strides, in elements; row-major ones where
 * the model's are. An argument that the schema says is written, Tensor(a!), may be written, others may not. */
typedef struct InrushOperatorCall {
  size_t size; /* of this structure */
  const InrushArg *args; /* one for each parameter of the schema, defaults filled in */
  size_t num_args;
  const DLTensor *const *results; /* to be filled, lists flattened; NULL for one whose sizes the function decides */
  size_t num_results;
  void *stream; /* on a GPU: the stream (a CUstream or cudaStream_t) that all work goes to */
  /* Allocates the result at `index` that is NULL. NULL where the model declares other sizes, or without memory: return an
   * error then. */
  const DLTensor *(*allocate)(struct InrushOperatorCall *call, size_t index, int32_t ndim, const int64_t *shape);
  /* Says why the function returns an error. */
  void (*fail)(struct InrushOperatorCall *call, const char *message);
  void *state;
} InrushOperatorCall;

typedef struct InrushOperator {
  const char *schema; /* as PyTorch has it: "mylib::scale(Tensor x, float by=2.0) -> Tensor" */
  const char *device; /* "cpu" or "cuda"; NULL for "cpu" */
  int32_t (*run)(void *context, InrushOperatorCall *call); /* gives an InrushStatus; called from any thread, several at once */
  void *context;
} InrushOperator;

/* Registers functions of operators, for as long as the process lives; a later one takes the place of an earlier one for models
 * that are opened afterwards. */
InrushStatus inrush_register_operators(const InrushOperator *operators, size_t count);
/* Registers those of a shared library, which exports
 *   const InrushOperator *inrush_operators(size_t *count);
 * as `inrush run --operators LIBRARY` does. */
InrushStatus inrush_load_operators(const char *path);

/* Functions of the library, by the names that programs have: "linalg.inv", "fft.r2c", "sort", ..; docs/library.md lists their
 * families. They are what `inrush compile --emit cpp` prints calls of. Tensors are in memory of the host; inputs have any layout.
 * `params` are INRUSH_ARG_INT, INRUSH_ARG_REAL or INRUSH_ARG_BOOL; INRUSH_ARG_NONE where the function has a parameter that may be
 * left out. `threads` share the work, 0 for one per processor; they stay until the process ends. INRUSH_UNSUPPORTED for a name that
 * the library does not have, INRUSH_INPUT for counts, dtypes, sizes and numbers that the function does not take.
 *
 * inrush_library_run writes into `outputs`, which are row-major, start at a multiple of their elements' bytes and share no memory
 * with other tensors of the call; after an error they may be partly written. */
InrushStatus inrush_library_run(const char *function, int64_t threads, const DLTensor *const *inputs, size_t num_inputs,
                                const InrushArg *params, size_t num_params, const DLTensor *const *outputs, size_t num_outputs);
/* Likewise for functions whose data decide the sizes of their results: "bincount", "nonzero", "unique", .. `inputs` are NULL where
 * one is left out. Each of `outputs` is set to a new tensor, numbers to one without dimensions; the caller calls its deleter. After
 * an error all are NULL. */
InrushStatus inrush_library_results(const char *function, int64_t threads, const DLTensor *const *inputs, size_t num_inputs,
                                    const InrushArg *params, size_t num_params, DLManagedTensorVersioned **outputs,
                                    size_t num_outputs);

/* Loads a package from a file or from memory (which is copied). `options` may be NULL. */
InrushStatus inrush_model_open(const char *path, const InrushOptions *options, InrushModel **model);
InrushStatus inrush_model_open_memory(const void *bytes, size_t size, const InrushOptions *options, InrushModel **model);
/* Frees a model that no thread uses. NULL is allowed. */
void inrush_model_free(InrushModel *model);

size_t inrush_model_num_inputs(const InrushModel *model);
size_t inrush_model_num_outputs(const InrushModel *model);
size_t inrush_model_num_weights(const InrushModel *model);
/* NULL if `index` is out of range. */
const InrushSpec *inrush_model_input(const InrushModel *model, size_t index);
const InrushSpec *inrush_model_output(const InrushModel *model, size_t index);
const InrushSpec *inrush_model_weight(const InrushModel *model, size_t index);

/* Runs a model. `inputs` are in order; they are read during the call, and written where the model mutates them. Each of
 * `outputs` is set to a new tensor, or to NULL for an output that is nothing; the caller calls its deleter. After an error all
 * are NULL. */
InrushStatus inrush_model_run(InrushModel *model, const DLTensor *const *inputs, size_t num_inputs,
                              DLManagedTensorVersioned **outputs, size_t num_outputs);
/* Likewise into memory of the caller, of the right dtypes and sizes. It is written directly where it starts at a multiple of
 * 64 bytes (on the CPU) and is row-major, as the model's own outputs are. NULL for an output that is not a tensor. */
InrushStatus inrush_model_run_into(InrushModel *model, const DLTensor *const *inputs, size_t num_inputs,
                                   const DLTensor *const *outputs, size_t num_outputs);

/* Likewise on a GPU, with all work on `stream`. INRUSH_INPUT for a model on the CPU. */
InrushStatus inrush_model_run_on_stream(InrushModel *model, void *stream, const DLTensor *const *inputs, size_t num_inputs,
                                        DLManagedTensorVersioned **outputs, size_t num_outputs);
InrushStatus inrush_model_run_into_on_stream(InrushModel *model, void *stream, const DLTensor *const *inputs,
                                             size_t num_inputs, const DLTensor *const *outputs, size_t num_outputs);

/* Replaces weights of the inactive set by copies, from the host or from the model's GPU, where they are there; several calls add up. Names, dtypes and shapes are checked before anything
 * changes. With `all`, every weight must be named. Calls on other threads go on. */
InrushStatus inrush_model_update_weights(InrushModel *model, const char *const *names, const DLTensor *const *tensors,
                                         size_t count, int all);
/* Makes the inactive set the active one. Calls that have begun finish on the old set. */
InrushStatus inrush_model_swap_weights(InrushModel *model);
/* Forgets the inactive set. */
void inrush_model_discard_update(InrushModel *model);
/* Sets the seed of the next call's random numbers. INRUSH_INPUT if the model draws none. */
InrushStatus inrush_model_set_seed(InrushModel *model, int64_t seed);

#ifdef __cplusplus
}
#endif
#endif
