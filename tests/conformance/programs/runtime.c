/* An ordinary CUDA runtime program: prints what each call answers.
 *
 * The runtime's header needs others that its package does not hold. What is used of it is the same
 * from 11.8 to 13.x, so it is declared here.
 */
#include <stddef.h>
#include <stdio.h>

typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
typedef struct CUgraph_st *cudaGraph_t;
typedef struct CUgraphExec_st *cudaGraphExec_t;

enum { cudaMemcpyHostToDevice = 1, cudaMemAttachGlobal = 1, cudaStreamCaptureModeThreadLocal = 1 };

int cudaRuntimeGetVersion(int *version);
int cudaDriverGetVersion(int *version);
int cudaGetDeviceCount(int *count);
int cudaSetDevice(int device);
int cudaDeviceSynchronize(void);
int cudaDeviceReset(void);
int cudaMemGetInfo(size_t *free_bytes, size_t *total_bytes);
int cudaMalloc(void **pointer, size_t bytes);
int cudaMallocManaged(void **pointer, size_t bytes, unsigned flags);
int cudaMallocHost(void **pointer, size_t bytes);
int cudaMallocAsync(void **pointer, size_t bytes, cudaStream_t stream);
int cudaFree(void *pointer);
int cudaFreeHost(void *pointer);
int cudaFreeAsync(void *pointer, cudaStream_t stream);
int cudaMemcpy(void *to, const void *from, size_t bytes, int kind);
int cudaMemset(void *pointer, int value, size_t bytes);
int cudaMemsetAsync(void *pointer, int value, size_t bytes, cudaStream_t stream);
int cudaStreamCreate(cudaStream_t *stream);
int cudaStreamDestroy(cudaStream_t stream);
int cudaStreamSynchronize(cudaStream_t stream);
int cudaStreamBeginCapture(cudaStream_t stream, int mode);
int cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *graph);
int cudaEventCreate(cudaEvent_t *event);
int cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
int cudaGraphInstantiateWithFlags(cudaGraphExec_t *executable, cudaGraph_t graph,
                                  unsigned long long flags);
int cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream);

#define SAY(call) printf("%s %d\n", #call, call)

static void memory(void) {
  void *pointer = NULL;
  char bytes[4096] = {0};
  size_t free_bytes, total_bytes;
  SAY(cudaMemGetInfo(&free_bytes, &total_bytes));
  SAY(cudaMalloc(&pointer, sizeof bytes));
  SAY(cudaMemcpy(pointer, bytes, sizeof bytes, cudaMemcpyHostToDevice));
  SAY(cudaMemset(pointer, 0, sizeof bytes));
  SAY(cudaFree(pointer));
  SAY(cudaMallocManaged(&pointer, sizeof bytes, cudaMemAttachGlobal));
  SAY(cudaFree(pointer));
  SAY(cudaMallocHost(&pointer, sizeof bytes));
  SAY(cudaFreeHost(pointer));
}

static void streams(void) {
  cudaStream_t stream = NULL;
  cudaEvent_t event = NULL;
  cudaGraph_t graph = NULL;
  cudaGraphExec_t executable = NULL;
  void *pointer = NULL;
  SAY(cudaStreamCreate(&stream));
  SAY(cudaEventCreate(&event));
  SAY(cudaMallocAsync(&pointer, 4096, stream));
  SAY(cudaMemsetAsync(pointer, 0, 4096, stream));
  SAY(cudaEventRecord(event, stream));
  SAY(cudaStreamSynchronize(stream));
  SAY(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
  SAY(cudaMemsetAsync(pointer, 0, 4096, stream));
  SAY(cudaStreamEndCapture(stream, &graph));
  SAY(cudaGraphInstantiateWithFlags(&executable, graph, 0));
  SAY(cudaGraphLaunch(executable, stream));
  SAY(cudaFreeAsync(pointer, stream));
  SAY(cudaStreamDestroy(stream));
}

int main(void) {
  int version = 0, count = -1;
  SAY(cudaRuntimeGetVersion(&version));
  printf("runtime %d\n", version);
  SAY(cudaDriverGetVersion(&version));
  printf("driver %d\n", version);
  SAY(cudaGetDeviceCount(&count));
  printf("devices %d\n", count);
  SAY(cudaSetDevice(0));
  memory();
  streams();
  SAY(cudaDeviceSynchronize());
  SAY(cudaDeviceReset());
  return 0;
}
