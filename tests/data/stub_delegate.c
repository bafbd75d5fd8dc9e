/* A stand-in for libedgetpu: TFLite's external-delegate interface, and the custom operator of compiled files.
 *
 * The structs are those of tensorflow/lite/core/c/common.h, as far as this file goes into them; their layout has been
 * the same from TensorFlow 2.5 on. What the operator computes: where its options are "STUB" and dense layers (see
 * `compiled` in stub_delegate.py), these; else output byte i is input byte i modulo the input's size.
 *
 * Options: "fail" (create | prepare | crash | hang | invoke-crash) says where to fail. The environment variable
 * STUB_DELEGATE_FAIL says the same; STUB_DELEGATE_LOG names a file that gets a line of options per creation.
 */
#include <math.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef enum { kOk = 0, kError = 1 } Status;
typedef struct { int size; int data[]; } IntArray;
typedef struct { float scale; int32_t zero_point; } Quantization;
typedef struct Tensor {
  int type;
  void *data;
  IntArray *dims;
  Quantization params;
  int allocation_type;
  size_t bytes;
  const void *allocation;
  const char *name;
  void *delegate;
  int buffer_handle;
  bool data_is_stale, is_variable;
  struct { int type; void *params; } quantization;
  void *sparsity;
  const IntArray *dims_signature;
} Tensor;
typedef struct Node {
  IntArray *inputs, *outputs, *intermediates, *temporaries;
  void *user_data, *builtin_data;
  const void *custom_initial_data;
  int custom_initial_data_size;
} Node; /* goes on */
struct Context;
typedef struct Registration {
  void *(*init)(struct Context *, const char *, size_t);
  void (*free)(struct Context *, void *);
  Status (*prepare)(struct Context *, Node *);
  Status (*invoke)(struct Context *, Node *);
  const char *(*profiling_string)(const struct Context *, const Node *);
  int32_t builtin_code;
  const char *custom_name;
  int version;
  void *external, *async_kernel;
  uint64_t inplace_operator;
} Registration;
struct Delegate;
typedef struct Context {
  size_t tensors_size;
  Status (*GetExecutionPlan)(struct Context *, IntArray **);
  Tensor *tensors;
  void *impl;
  Status (*ResizeTensor)(struct Context *, Tensor *, IntArray *);
  void (*ReportError)(struct Context *, const char *, ...);
  Status (*AddTensors)(struct Context *, int, int *);
  Status (*GetNodeAndRegistration)(struct Context *, int, Node **, Registration **);
  Status (*ReplaceNodeSubsetsWithDelegateKernels)(struct Context *, Registration, const IntArray *, struct Delegate *);
} Context; /* goes on */
typedef struct Delegate {
  void *data;
  Status (*Prepare)(Context *, struct Delegate *);
  void *CopyFromBufferHandle, *CopyToBufferHandle, *FreeBufferHandle;
  int64_t flags;
  void *opaque_delegate_builder;
} Delegate;

typedef struct {
  Delegate *delegate;
} Params; /* goes on */

enum { kWidest = 4096 };
static char where[32];

static bool fails(const char *at) { return strcmp(where, at) == 0; }

static void *init(Context *context, const char *buffer, size_t size) {
  (void)context, (void)size;
  return ((const Params *)buffer)->delegate->data;
}

/* int32 inputs, outputs, zero points of both, least and largest output; then per output double multiplier, int32 bias;
 * then int8 weights, a row per output. Returns where the next layer begins. */
static const char *dense(const char *at, const int8_t *source, int8_t *sink) {
  int32_t n[6];
  memcpy(n, at, sizeof n);
  const char *multipliers = at + sizeof n, *biases = multipliers + 8 * n[1];
  const int8_t *weights = (const int8_t *)(biases + 4 * n[1]);
  for (int o = 0; o < n[1]; o++) {
    double multiplier;
    int32_t sum;
    memcpy(&multiplier, multipliers + 8 * o, 8);
    memcpy(&sum, biases + 4 * o, 4);
    for (int i = 0; i < n[0]; i++) sum += weights[o * n[0] + i] * (source[i] - n[2]);
    double value = floor(sum * multiplier + 0.5) + n[3];
    sink[o] = (int8_t)(value < n[4] ? n[4] : value > n[5] ? n[5] : value);
  }
  return (const char *)weights + n[0] * n[1];
}

static void layers(const char *options, const int8_t *source, int8_t *sink, size_t bytes) {
  static int8_t values[2][kWidest];
  int32_t count;
  memcpy(&count, options + 4, 4);
  options += 8;
  const int8_t *from = source;
  for (int i = 0; i < count; i++) {
    options = dense(options, from, values[i % 2]);
    from = values[i % 2];
  }
  memcpy(sink, from, bytes);
}

static void nothing(Context *context, void *data) { (void)context, (void)data; }

static Status ready(Context *context, Node *node) {
  (void)context, (void)node;
  return kOk;
}

static Status invoke(Context *context, Node *node) {
  if (fails("invoke-crash")) raise(SIGSEGV);
  /* The inputs of a delegate's node count constants too; the first is the one that changes. */
  const Tensor *source = &context->tensors[node->inputs->data[0]];
  Tensor *sink = &context->tensors[node->outputs->data[0]];
  const char *options = node->user_data;
  if (options) return layers(options, source->data, sink->data, sink->bytes), kOk;
  for (size_t i = 0; i < sink->bytes; i++) ((int8_t *)sink->data)[i] = ((const int8_t *)source->data)[i % source->bytes];
  return kOk;
}

static Status prepare(Context *context, Delegate *delegate) {
  if (fails("prepare")) {
    context->ReportError(context, "stub: no device answers");
    return kError;
  }
  if (fails("crash")) raise(SIGSEGV);
  IntArray *plan;
  if (context->GetExecutionPlan(context, &plan) != kOk) return kError;
  IntArray *mine = malloc(sizeof(int) * (1 + (size_t)plan->size));
  mine->size = 0;
  for (int i = 0; i < plan->size; i++) {
    Node *node;
    Registration *registration;
    if (context->GetNodeAndRegistration(context, plan->data[i], &node, &registration) != kOk) continue;
    if (registration->custom_name && strcmp(registration->custom_name, "edgetpu-custom-op") == 0) {
      mine->data[mine->size++] = plan->data[i];
      if (node->custom_initial_data_size > 8 && memcmp(node->custom_initial_data, "STUB", 4) == 0)
        delegate->data = (void *)node->custom_initial_data;
    }
  }
  Status status = kOk;
  if (mine->size) {
    Registration kernel;
    memset(&kernel, 0, sizeof kernel);
    kernel.init = init, kernel.free = nothing, kernel.prepare = ready, kernel.invoke = invoke;
    kernel.custom_name = "StubDelegate";
    kernel.version = 1;
    status = context->ReplaceNodeSubsetsWithDelegateKernels(context, kernel, mine, delegate);
  }
  free(mine);
  return status;
}

Delegate *tflite_plugin_create_delegate(char **keys, char **values, size_t count, void (*report)(const char *)) {
  const char *told = getenv("STUB_DELEGATE_FAIL");
  snprintf(where, sizeof where, "%s", told ? told : "");
  const char *path = getenv("STUB_DELEGATE_LOG");
  FILE *log = path ? fopen(path, "a") : NULL;
  for (size_t i = 0; i < count; i++) {
    if (strcmp(keys[i], "fail") == 0) snprintf(where, sizeof where, "%s", values[i]);
    if (log) fprintf(log, "%s=%s;", keys[i], values[i]);
  }
  if (log) fprintf(log, "\n"), fclose(log);
  if (fails("create")) {
    report("stub: no device of that kind is here");
    return NULL;
  }
  if (fails("hang")) for (;;) pause();
  Delegate *delegate = calloc(1, sizeof *delegate);
  delegate->Prepare = prepare;
  /* kTfLiteDelegateFlagsAllowDynamicTensors: else TFLite prepares the custom operator itself before it asks us. */
  delegate->flags = 1;
  return delegate;
}

void tflite_plugin_destroy_delegate(Delegate *delegate) { free(delegate); }
