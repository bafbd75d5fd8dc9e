/* A stand-in for libedgetpu: TFLite's external-delegate interface, and the custom operator of compiled files.
 *
 * The structs are those of tensorflow/lite/core/c/common.h, as far as this file goes into them; their layout has been
 * the same from TensorFlow 2.5 on. What the operator computes: output byte i is input byte i modulo the input's size.
 *
 * Options: "fail" (create | prepare | crash | hang | invoke-crash) says where to fail. The environment variable
 * STUB_DELEGATE_FAIL says the same; STUB_DELEGATE_LOG names a file that gets a line of options per creation.
 */
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
} Node;
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

static char where[32];

static bool fails(const char *at) { return strcmp(where, at) == 0; }

static void *init(Context *context, const char *buffer, size_t size) {
  (void)context, (void)buffer, (void)size;
  return NULL;
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
    if (registration->custom_name && strcmp(registration->custom_name, "edgetpu-custom-op") == 0)
      mine->data[mine->size++] = plan->data[i];
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
