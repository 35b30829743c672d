/* Kernel launches. */
#include "hooks/launch.h"

#include "hooks/hook.h"
#include "hooks/launch_pass.h"

#define THREE(x, y, z) ((uint64_t)(x) | (uint64_t)(y) << 32 | (uint64_t)(z) << 48)

#define KERNEL_PARAMETERS                                                           \
  CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz, unsigned int bx, \
      unsigned int by, unsigned int bz, unsigned int shared_bytes, CUstream stream
#define KERNEL_ARGUMENTS f, gx, gy, gz, bx, by, bz, shared_bytes, stream
#define KERNEL_KEY ((penstock_kind_key){f, THREE(gx, gy, gz), THREE(bx, by, bz), shared_bytes})

#define KERNEL_HOOKS(symbol, per_thread)                                               \
  CUresult CUDAAPI HOOK_NAME(symbol)(KERNEL_PARAMETERS, void **params, void **extra) { \
    PENSTOCK_GATED(stream, per_thread, false, KERNEL_KEY,                              \
                   REAL(symbol)(KERNEL_ARGUMENTS, params, extra));                     \
  }
KERNEL_HOOKS(cuLaunchKernel, false)
KERNEL_HOOKS(cuLaunchKernel_ptsz, true)

/* A cooperative launch is admitted or held back as a whole. */
#define COOPERATIVE_HOOKS(symbol, per_thread)                                                      \
  CUresult CUDAAPI HOOK_NAME(symbol)(KERNEL_PARAMETERS, void **params) {                           \
    PENSTOCK_GATED(stream, per_thread, false, KERNEL_KEY, REAL(symbol)(KERNEL_ARGUMENTS, params)); \
  }
COOPERATIVE_HOOKS(cuLaunchCooperativeKernel, false)
COOPERATIVE_HOOKS(cuLaunchCooperativeKernel_ptsz, true)

/* Returns true if the kernel may start before the previous one has ended. A marker between them
 * would prevent that. */
static bool overlaps(const CUlaunchConfig *config) {
  for (unsigned i = 0; config->attrs && i < config->numAttrs; i++) {
    const CUlaunchAttribute *attribute = &config->attrs[i];
    if (attribute->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION) {
      return attribute->value.programmaticStreamSerializationAllowed != 0;
    }
  }
  return false;
}

#define EX_HOOKS(symbol, per_thread)                                                            \
  CUresult CUDAAPI HOOK_NAME(symbol)(const CUlaunchConfig *config, CUfunction f, void **params, \
                                     void **extra) {                                            \
    if (!config) return REAL(symbol)(config, f, params, extra);                                 \
    penstock_kind_key key = {f, THREE(config->gridDimX, config->gridDimY, config->gridDimZ),    \
                             THREE(config->blockDimX, config->blockDimY, config->blockDimZ),    \
                             config->sharedMemBytes};                                           \
    PENSTOCK_GATED(config->hStream, per_thread, overlaps(config), key,                          \
                   REAL(symbol)(config, f, params, extra));                                     \
  }
EX_HOOKS(cuLaunchKernelEx, false)
EX_HOOKS(cuLaunchKernelEx_ptsz, true)

/* In the first launch API, block shape and shared memory are the function's own state. */
CUresult CUDAAPI HOOK_NAME(cuLaunch)(CUfunction f) {
  PENSTOCK_GATED(NULL, false, false, ((penstock_kind_key){f, 1, 0, 0}), REAL(cuLaunch)(f));
}

CUresult CUDAAPI HOOK_NAME(cuLaunchGrid)(CUfunction f, int width, int height) {
  PENSTOCK_GATED(NULL, false, false, ((penstock_kind_key){f, THREE(width, height, 1), 0, 0}),
                 REAL(cuLaunchGrid)(f, width, height));
}

CUresult CUDAAPI HOOK_NAME(cuLaunchGridAsync)(CUfunction f, int width, int height,
                                              CUstream stream) {
  PENSTOCK_GATED(stream, false, false, ((penstock_kind_key){f, THREE(width, height, 1), 0, 0}),
                 REAL(cuLaunchGridAsync)(f, width, height, stream));
}

/* Launches one kernel on each device, together. Each launch first passes its own device's gate. */
CUresult CUDAAPI HOOK_NAME(cuLaunchCooperativeKernelMultiDevice)(CUDA_LAUNCH_PARAMS *list,
                                                                 unsigned int count,
                                                                 unsigned int flags) {
  enum { MOST = 64 };
  penstock_pass passes[MOST];
  CUresult result = CUDA_SUCCESS;
  unsigned entered = 0;
  /* Number of devices. If `count` is higher, the driver refuses the call, and the list may be
   * shorter than `count`. */
  int devices = 0;
  REAL(cuDeviceGetCount)(&devices);
  bool fits = list && count <= MOST && count <= (unsigned)devices;
  for (; fits && entered < count; entered++) {
    const CUDA_LAUNCH_PARAMS *one = &list[entered];
    penstock_kind_key key = {one->function, THREE(one->gridDimX, one->gridDimY, one->gridDimZ),
                             THREE(one->blockDimX, one->blockDimY, one->blockDimZ),
                             one->sharedMemBytes};
    passes[entered].overlapping = false;
    result = penstock_gate_enter(&passes[entered], one->hStream, false, &key);
    if (result != CUDA_SUCCESS) break;
  }
  if (result == CUDA_SUCCESS) {
    result = REAL(cuLaunchCooperativeKernelMultiDevice)(list, count, flags);
  }
  for (unsigned i = 0; i < entered; i++) {
    penstock_gate_leave(&passes[i], result);
  }
  return result;
}
