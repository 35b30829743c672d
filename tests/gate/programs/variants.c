/* Launches of every variant and with every attribute, right ones and wrong ones. What they print
 * must be the same with the shim and without. */
#include "gate.h"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations" /* old launches are launches too */

#define SHOW(call) printf("%s: %d\n", #call, (int)(call))

/* The versions that the header gives other names to. */
#undef cuLaunch
CUresult cuLaunch(CUfunction f);
CUresult cuLaunchKernel_ptsz(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                             unsigned by, unsigned bz, unsigned shared, CUstream stream,
                             void **params, void **extra);
CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction f, void **params,
                               void **extra);

static CUstream stream;
static CUfunction spinning, plain;
static uint64_t ns = 200000;
static void *parameters[] = {&ns};

static void prepare(void) {
  begin();
  stream = new_stream(CU_STREAM_NON_BLOCKING);
  spinning = kernel_named("spin");
  plain = kernel_named("plain");
}

static CUresult launch(CUfunction f, unsigned grid, unsigned block, unsigned shared, CUstream to,
                       void **params, void **extra) {
  return cuLaunchKernel(f, grid, 1, 1, block, 1, 1, shared, to, params, extra);
}

CASE(kernels_with_all_sorts_of_arguments) {
  prepare();
  size_t bytes = sizeof ns;
  void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &ns, CU_LAUNCH_PARAM_BUFFER_SIZE, &bytes,
                   CU_LAUNCH_PARAM_END};
  SHOW(launch(spinning, 1, 32, 0, stream, parameters, NULL));
  SHOW(launch(spinning, 1, 32, 0, stream, NULL, extra));
  SHOW(launch(spinning, 1, 32, 0, stream, parameters, extra));
  SHOW(launch(spinning, 1, 32, 0, stream, NULL, NULL));
  SHOW(launch(plain, 1, 32, 0, stream, NULL, NULL));
  SHOW(launch(plain, 1, 32, 0, NULL, NULL, NULL));
  SHOW(launch(plain, 1, 32, 0, CU_STREAM_LEGACY, NULL, NULL));
  SHOW(launch(plain, 1, 32, 0, CU_STREAM_PER_THREAD, NULL, NULL));
  SHOW(launch(plain, 0, 32, 0, stream, NULL, NULL));
  SHOW(launch(plain, 1, 2048, 0, stream, NULL, NULL));
  SHOW(launch(plain, 1, 32, 1 << 20, stream, NULL, NULL));
  SHOW(launch(NULL, 1, 32, 0, stream, NULL, NULL));
  SHOW(launch((CUfunction)stream, 1, 32, 0, stream, NULL, NULL));
  SHOW(launch(plain, 1, 32, 0, (CUstream)plain, NULL, NULL));
  SHOW(cuLaunchKernel_ptsz(plain, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL));
  SHOW(cuLaunchCooperativeKernel(plain, 1, 1, 1, 32, 1, 1, 0, stream, NULL));
  SHOW(cuLaunchCooperativeKernel(plain, 1 << 20, 1, 1, 32, 1, 1, 0, stream, NULL));
  SHOW(cuCtxSynchronize());
}

CASE(launches_of_the_first_api) {
  prepare();
  SHOW(cuFuncSetBlockShape(spinning, 32, 1, 1));
  SHOW(cuParamSetSize(spinning, 8));
  SHOW(cuParamSetv(spinning, 0, &ns, 8));
  SHOW(cuLaunch(spinning));
  SHOW(cuLaunchGrid(spinning, 4, 2));
  SHOW(cuLaunchGridAsync(spinning, 4, 2, stream));
  SHOW(cuLaunchGrid(NULL, 4, 2));
  SHOW(cuLaunchGrid(spinning, 0, 2));
  SHOW(cuCtxSynchronize());
}

static CUlaunchConfig config_with(CUlaunchAttribute *attributes, unsigned count) {
  return (CUlaunchConfig){.gridDimX = 8,
                          .gridDimY = 1,
                          .gridDimZ = 1,
                          .blockDimX = 32,
                          .blockDimY = 1,
                          .blockDimZ = 1,
                          .hStream = stream,
                          .attrs = attributes,
                          .numAttrs = count};
}

static CUresult launch_with(CUlaunchAttribute attribute) {
  CUlaunchConfig config = config_with(&attribute, 1);
  return cuLaunchKernelEx(&config, spinning, parameters, NULL);
}

CASE(attributes_of_every_kind) {
  prepare();
  CUevent timed, untimed;
  OK(cuEventCreate(&timed, CU_EVENT_DEFAULT));
  OK(cuEventCreate(&untimed, CU_EVENT_DISABLE_TIMING));
  CUlaunchConfig none = config_with(NULL, 0), wrong = config_with(NULL, 1);
  SHOW(cuLaunchKernelEx(&none, spinning, parameters, NULL));
  SHOW(cuLaunchKernelEx(&wrong, spinning, parameters, NULL));
  SHOW(cuLaunchKernelEx(NULL, spinning, parameters, NULL));
  SHOW(cuLaunchKernelEx_ptsz(&none, spinning, parameters, NULL));
#define WITH(kind, ...) \
  printf("%s ", #kind); \
  SHOW(launch_with((CUlaunchAttribute){.id = CU_LAUNCH_ATTRIBUTE_##kind, .value = {__VA_ARGS__}}))
  WITH(IGNORE, .cooperative = 0);
  WITH(COOPERATIVE, .cooperative = 1);
  WITH(PRIORITY, .priority = -1);
  WITH(CLUSTER_DIMENSION, .clusterDim = {2, 1, 1});
  WITH(CLUSTER_DIMENSION, .clusterDim = {3, 1, 1});
  WITH(CLUSTER_DIMENSION, .clusterDim = {32, 1, 1});
  WITH(CLUSTER_SCHEDULING_POLICY_PREFERENCE, .clusterSchedulingPolicyPreference = 1);
  WITH(PROGRAMMATIC_STREAM_SERIALIZATION, .programmaticStreamSerializationAllowed = 1);
  WITH(PROGRAMMATIC_EVENT, .programmaticEvent = {.event = untimed});
  WITH(PROGRAMMATIC_EVENT, .programmaticEvent = {.event = timed});
  SHOW(cuEventSynchronize(untimed));
  WITH(LAUNCH_COMPLETION_EVENT, .launchCompletionEvent = {.event = untimed});
  WITH(LAUNCH_COMPLETION_EVENT, .launchCompletionEvent = {.event = NULL});
  WITH(MEM_SYNC_DOMAIN, .memSyncDomain = CU_LAUNCH_MEM_SYNC_DOMAIN_REMOTE);
  WITH(MEM_SYNC_DOMAIN_MAP, .memSyncDomainMap = {0, 1});
  WITH(ACCESS_POLICY_WINDOW, .accessPolicyWindow = {0});
  WITH(PREFERRED_SHARED_MEMORY_CARVEOUT, .sharedMemCarveout = 50);
  SHOW(launch_with((CUlaunchAttribute){.id = (CUlaunchAttributeID)9999}));
  SHOW(cuCtxSynchronize());
}

CASE(a_kernel_of_a_library_stands_for_its_function) {
  static const char image[] =
      ".version 8.0\n.target sm_80\n.address_size 64\n"
      ".visible .entry spin(.param .u64 nanoseconds)\n{ ret; }\n";
  prepare();
  CUlibrary library;
  CUkernel kernel;
  CUfunction function;
  OK(cuLibraryLoadData(&library, image, NULL, NULL, 0, NULL, NULL, 0));
  OK(cuLibraryGetKernel(&kernel, library, "spin"));
  OK(cuKernelGetFunction(&function, kernel));
  for (int i = 0; i < 20; i++) {
    SHOW(launch((CUfunction)kernel, 1, 32, 0, stream, parameters, NULL));
    SHOW(launch(function, 1, 32, 0, stream, parameters, NULL));
  }
  SHOW(cuStreamSynchronize(stream));
  SHOW(cuLibraryUnload(library));
  SHOW(launch((CUfunction)kernel, 1, 32, 0, stream, parameters, NULL));
}

CASE(one_kernel_on_two_devices) {
  CUcontext contexts[2];
  CUstream streams[2], second;
  CUDA_LAUNCH_PARAMS list[2];
  OK(cuInit(0));
  for (int i = 0; i < 2; i++) {
    OK(cuDevicePrimaryCtxRetain(&contexts[i], i));
    OK(cuCtxSetCurrent(contexts[i]));
    streams[i] = new_stream(CU_STREAM_NON_BLOCKING);
    list[i] = (CUDA_LAUNCH_PARAMS){.function = kernel_named("spin"),
                                   .gridDimX = 2,
                                   .gridDimY = 1,
                                   .gridDimZ = 1,
                                   .blockDimX = 32,
                                   .blockDimY = 1,
                                   .blockDimZ = 1,
                                   .hStream = streams[i],
                                   .kernelParams = parameters};
  }
  for (int i = 0; i < 10; i++) SHOW(cuLaunchCooperativeKernelMultiDevice(list, 2, 0));
  SHOW(cuLaunchCooperativeKernelMultiDevice(list, 2, 3));
  SHOW(cuLaunchCooperativeKernelMultiDevice(list, 2, 4));
  SHOW(cuLaunchCooperativeKernelMultiDevice(list, 0, 0));
  SHOW(cuLaunchCooperativeKernelMultiDevice(NULL, 2, 0));
  SHOW(cuLaunchCooperativeKernelMultiDevice(list, 3, 0));
  second = new_stream(CU_STREAM_NON_BLOCKING);
  list[0].hStream = second; /* twice the same device */
  SHOW(cuLaunchCooperativeKernelMultiDevice(list, 2, 0));
  list[0].hStream = NULL;
  SHOW(cuLaunchCooperativeKernelMultiDevice(list, 2, 0));
  list[0].hStream = streams[0];
  list[0].gridDimX = 3;
  SHOW(cuLaunchCooperativeKernelMultiDevice(list, 2, 0));
  SHOW(cuStreamSynchronize(streams[0]));
  SHOW(cuStreamSynchronize(streams[1]));
}

/* ---- green contexts ---- */

CASE(streams_of_green_contexts) {
  prepare();
  CUdevResource all, parts[2], rest;
  CUdevResourceDesc descriptions[2];
  CUgreenCtx greens[2], of;
  CUcontext context, seen;
  CUstream streams[2];
  CUevent event;
  unsigned count = 0;
  CUfunction spin = kernel_named("spin"), other = kernel_named("plain");
  OK(cuDeviceGetDevResource(0, &all, CU_DEV_RESOURCE_TYPE_SM));
  SHOW(cuDevSmResourceSplitByCount(NULL, &count, &all, NULL, 0, 32));
  printf("%u multiprocessors, %u groups\n", all.sm.smCount, count);
  count = 2;
  SHOW(cuDevSmResourceSplitByCount(parts, &count, &all, &rest, 0, 32));
  printf("%u, %u, %u left\n", parts[0].sm.smCount, parts[1].sm.smCount, rest.sm.smCount);
  SHOW(cuDevSmResourceSplitByCount(parts, &count, &all, &rest, 0, 100000));
  for (int i = 0; i < 2; i++) {
    SHOW(cuDevResourceGenerateDesc(&descriptions[i], &parts[i], 1));
    SHOW(cuGreenCtxCreate(&greens[i], descriptions[i], 0, CU_GREEN_CTX_DEFAULT_STREAM));
    SHOW(cuGreenCtxStreamCreate(&streams[i], greens[i], 0, 0));
    SHOW(cuGreenCtxStreamCreate(&streams[i], greens[i], CU_STREAM_NON_BLOCKING, 0));
    SHOW(cuStreamGetGreenCtx(streams[i], &of));
    CHECK(of == greens[i]);
  }
  for (int i = 0; i < 20; i++) {
    SHOW(launch(spin, 1000, 32, 0, streams[i % 2], parameters, NULL));
    SHOW(launch(other, 1000, 32, 0, streams[i % 2], NULL, NULL));
  }
  OK(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  SHOW(cuGreenCtxRecordEvent(greens[0], event));
  SHOW(cuGreenCtxWaitEvent(greens[1], event));
  SHOW(launch(spin, 1, 32, 0, streams[1], parameters, NULL));
  OK(cuCtxFromGreenCtx(&context, greens[0]));
  OK(cuStreamGetCtx(streams[0], &seen));
  CHECK(seen == context);
  OK(cuCtxPushCurrent(context));
  SHOW(launch(spin, 1, 32, 0, NULL, parameters, NULL));
  SHOW(launch(spin, 1, 32, 0, streams[0], parameters, NULL));
  SHOW(cuCtxSynchronize());
  OK(cuCtxPopCurrent(NULL));
  SHOW(cuStreamSynchronize(streams[1]));
  SHOW(cuCtxDestroy(context));
  for (int i = 0; i < 2; i++) SHOW(cuGreenCtxDestroy(greens[i]));
  SHOW(cuGreenCtxDestroy(greens[0]));
  SHOW(launch(spin, 1, 32, 0, stream, parameters, NULL));
  SHOW(cuCtxSynchronize());
}

/* ---- what is counted, and what is gated ---- */

static void CUDA_CB nothing(void *data) { (void)data; }
static void CUDA_CB nothing_either(CUstream of, CUresult status, void *data) {
  (void)of, (void)status, (void)data;
}

static CUDA_FABRIC_COPY_BATCH_OP fabric_copy(CUdeviceptr to, CUdeviceptr from) {
  return (CUDA_FABRIC_COPY_BATCH_OP){
      .dst = {.type = CU_FABRIC_COPY_OPERAND_TYPE_POINTER, .op.ptr.ptr = to},
      .src = {.type = CU_FABRIC_COPY_OPERAND_TYPE_POINTER, .op.ptr.ptr = from},
      .size = 65536};
}

CASE(copies_and_host_functions) {
  CUcontext primary = begin(), made;
  CUdeviceptr first, second, managed;
  static char bytes[4096];
  stream = new_stream(CU_STREAM_NON_BLOCKING);
  OK(cuMemAlloc(&first, 1 << 20));
  OK(cuMemAllocManaged(&managed, 1 << 20, CU_MEM_ATTACH_GLOBAL));
  OK(cuCtxCreate(&made, NULL, 0, 0));
  OK(cuMemAlloc(&second, 1 << 20));
  OK(cuCtxPopCurrent(NULL));
  for (int i = 0; i < 4; i++) SHOW(cuMemcpyHtoDAsync(first, bytes, sizeof bytes, stream));
  for (int i = 0; i < 2; i++) SHOW(cuMemcpyDtoH(bytes, first, sizeof bytes));
  CUmemLocation here = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = 0};
  SHOW(cuMemPrefetchAsync(managed, 8192, here, 0, stream)); /* 7 copies, 32 KiB */
  for (int i = 0; i < 3; i++) SHOW(cuLaunchHostFunc(stream, nothing, NULL));
  SHOW(cuStreamAddCallback(stream, nothing_either, NULL, 0)); /* 4 host functions */
  SHOW(cuMemcpyDtoDAsync(first, first + 65536, 65536, stream));
  SHOW(cuMemcpyPeerAsync(first, primary, second, made, 65536, stream));
  SHOW(cuMemcpyPeerAsync(first, primary, first + 65536, primary, 65536, stream));
  SHOW(cuMemsetD32Async(first, 7, 65536, stream)); /* 4 launches */
  CUDA_FABRIC_COPY_BATCH_OP through_fabric[] = {fabric_copy(second, first),
                                                fabric_copy(first, first + 65536)};
  SHOW(cuFabricCpyBatchAsync(2, through_fabric, 0, stream)); /* one launch more */
  SHOW(cuFabricCpyBatchAsync(2, NULL, 0, stream));
  SHOW(cuStreamSynchronize(stream));
}
