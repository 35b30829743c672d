/* Copies between two devices are the copy engines' work, on one device the SMs'. */
#include "gate.h"

enum { BYTES = 1 << 20, COUNT = 40 };

static CUdeviceptr here, there, also_here;
static CUcontext first, second;

static void prepare(void) {
  first = begin();
  OK(cuMemAlloc(&here, BYTES));
  OK(cuMemAlloc(&also_here, BYTES));
  OK(cuDevicePrimaryCtxRetain(&second, 1));
  OK(cuCtxSetCurrent(second));
  OK(cuMemAlloc(&there, BYTES));
  OK(cuCtxSetCurrent(first));
  OK(cuCtxEnablePeerAccess(second, 0));
}

static void all(CUdeviceptr to) {
  CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
  for (int i = 0; i < COUNT; i++) {
    CUDA_MEMCPY2D flat = {.srcMemoryType = CU_MEMORYTYPE_DEVICE,
                          .srcDevice = here,
                          .srcPitch = 1024,
                          .dstMemoryType = i % 2 ? CU_MEMORYTYPE_UNIFIED : CU_MEMORYTYPE_DEVICE,
                          .dstDevice = to,
                          .dstPitch = 1024,
                          .WidthInBytes = 1024,
                          .Height = BYTES / 1024};
    CUdeviceptr from = here;
    size_t bytes = BYTES;
    size_t attribute_at = 0;
    CUmemcpyAttributes attributes = {.srcAccessOrder = CU_MEMCPY_SRC_ACCESS_ORDER_STREAM};
    OK(cuMemcpyDtoD(to, here, BYTES));
    OK(cuMemcpyDtoDAsync(to, here, BYTES, stream));
    OK(cuMemcpyDtoDAsync(to + 512, here + 512, BYTES / 2, stream)); /* inside of allocations */
    OK(cuMemcpy(to, here, BYTES));
    OK(cuMemcpyAsync(to, here, BYTES, stream));
    OK(cuMemcpy2D(&flat));
    OK(cuMemcpy2DAsync(&flat, stream));
    OK(cuMemcpyBatchAsync(&to, &from, &bytes, 1, &attributes, &attribute_at, 1, stream));
    OK(cuCtxSynchronize());
  }
}

static void say(const char *word) {
  puts(word);
  fflush(stdout);
  getchar();
}

CASE(copies_to_another_device_and_inside_of_one) {
  prepare();
  say("ready");
  all(there);
  OK(cuMemcpyPeer(there, second, here, first, BYTES));
  say("between");
  all(also_here);
  OK(cuMemcpyPeer(also_here, first, here, first, BYTES));
  OK(cuCtxSynchronize());
  say("inside");
}
