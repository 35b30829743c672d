/* Contexts cost device memory: a reserve by device model, charged at the first retain of a primary
 * context and at every creation of another one. */
#include "charge.h"
#include "contexts.h"
#include "fork_wiped.h"
#include "hooks/hook.h"
#include "reserve.h"

#define MOST_DEVICES 64

/* The primary context of each device while it is charged. */
static CUcontext *primary_contexts(void) {
  static penstock_fork_wiped memory;
  return penstock_fork_wiped_get(&memory, MOST_DEVICES * sizeof(CUcontext));
}

static CUcontext *primary_of(CUdevice device) {
  CUcontext *all = primary_contexts();
  return all && device >= 0 && device < MOST_DEVICES ? &all[device] : NULL;
}

CUresult CUDAAPI HOOK_NAME(cuDevicePrimaryCtxRetain)(CUcontext *context, CUdevice device) {
  PENSTOCK_PASS(cuDevicePrimaryCtxRetain, context, device);
  CUcontext *primary = primary_of(device);
  int grant = -1;
  uint64_t bytes = 0;
  bool first = !primary || !__atomic_load_n(primary, __ATOMIC_ACQUIRE);
  CUresult result;
  if (first) {
    result = penstock_context_admit(device, &grant, &bytes);
    if (result != CUDA_SUCCESS) return result;
  }
  result = PENSTOCK_BELOW(REAL(cuDevicePrimaryCtxRetain)(context, device));
  if (!first) return result;
  CUcontext none = NULL;
  bool mine =
      result == CUDA_SUCCESS && primary &&
      __atomic_compare_exchange_n(primary, &none, *context, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
  /* Charged already when somebody allocated in it after a retain that the shim did not see. */
  if (mine && !penstock_object_find(PENSTOCK_CONTEXT, (uint64_t)(uintptr_t)*context, NULL)) {
    penstock_context_made(*context, grant, bytes);
  } else {
    penstock_uncharge(grant, bytes); /* so too when the driver refused, or another was first */
  }
  return result;
}

/* After a release or reset: if the primary context is no more, neither is what was in it. */
static void look_after_primary(CUdevice device) {
  unsigned int flags;
  int active = 1;
  if (PENSTOCK_BELOW(REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active)) != CUDA_SUCCESS ||
      active) {
    return;
  }
  CUcontext *primary = primary_of(device);
  CUcontext gone = primary ? __atomic_exchange_n(primary, NULL, __ATOMIC_ACQ_REL) : NULL;
  if (gone) penstock_context_gone(gone);
  penstock_reserves_settle();
}

#define LEAVE_PRIMARY(device, call)                         \
  do {                                                      \
    CUresult result = PENSTOCK_BELOW(call);                 \
    if (result == CUDA_SUCCESS) look_after_primary(device); \
    return result;                                          \
  } while (0)

CUresult CUDAAPI HOOK_NAME(cuDevicePrimaryCtxRelease)(CUdevice device) {
  PENSTOCK_PASS(cuDevicePrimaryCtxRelease, device);
  LEAVE_PRIMARY(device, REAL(cuDevicePrimaryCtxRelease)(device));
}

CUresult CUDAAPI HOOK_NAME(cuDevicePrimaryCtxRelease_v2)(CUdevice device) {
  PENSTOCK_PASS(cuDevicePrimaryCtxRelease_v2, device);
  LEAVE_PRIMARY(device, REAL(cuDevicePrimaryCtxRelease_v2)(device));
}

CUresult CUDAAPI HOOK_NAME(cuDevicePrimaryCtxReset)(CUdevice device) {
  PENSTOCK_PASS(cuDevicePrimaryCtxReset, device);
  LEAVE_PRIMARY(device, REAL(cuDevicePrimaryCtxReset)(device));
}

CUresult CUDAAPI HOOK_NAME(cuDevicePrimaryCtxReset_v2)(CUdevice device) {
  PENSTOCK_PASS(cuDevicePrimaryCtxReset_v2, device);
  LEAVE_PRIMARY(device, REAL(cuDevicePrimaryCtxReset_v2)(device));
}

#define CREATE(context, device, call)                                 \
  do {                                                                \
    int grant;                                                        \
    uint64_t bytes;                                                   \
    CUresult result = penstock_context_admit(device, &grant, &bytes); \
    if (result != CUDA_SUCCESS) return result;                        \
    result = PENSTOCK_BELOW(call);                                    \
    if (result == CUDA_SUCCESS) {                                     \
      penstock_context_made(*(context), grant, bytes);                \
    } else {                                                          \
      penstock_uncharge(grant, bytes);                                \
    }                                                                 \
    return result;                                                    \
  } while (0)

CUresult CUDAAPI HOOK_NAME(cuCtxCreate)(CUcontext *context, unsigned int flags, CUdevice device) {
  PENSTOCK_PASS(cuCtxCreate, context, flags, device);
  CREATE(context, device, REAL(cuCtxCreate)(context, flags, device));
}

CUresult CUDAAPI HOOK_NAME(cuCtxCreate_v2)(CUcontext *context, unsigned int flags,
                                           CUdevice device) {
  PENSTOCK_PASS(cuCtxCreate_v2, context, flags, device);
  CREATE(context, device, REAL(cuCtxCreate_v2)(context, flags, device));
}

CUresult CUDAAPI HOOK_NAME(cuCtxCreate_v3)(CUcontext *context, CUexecAffinityParam *affinity,
                                           int count, unsigned int flags, CUdevice device) {
  PENSTOCK_PASS(cuCtxCreate_v3, context, affinity, count, flags, device);
  CREATE(context, device, REAL(cuCtxCreate_v3)(context, affinity, count, flags, device));
}

CUresult CUDAAPI HOOK_NAME(cuCtxCreate_v4)(CUcontext *context, CUctxCreateParams *parameters,
                                           unsigned int flags, CUdevice device) {
  PENSTOCK_PASS(cuCtxCreate_v4, context, parameters, flags, device);
  CREATE(context, device, REAL(cuCtxCreate_v4)(context, parameters, flags, device));
}

/* The primary context in the role of another: destroying it is what the driver decides about. */
#define DESTROY(context, call)                                  \
  do {                                                          \
    CUresult result = PENSTOCK_BELOW(call);                     \
    if (result == CUDA_SUCCESS) penstock_context_gone(context); \
    return result;                                              \
  } while (0)

CUresult CUDAAPI HOOK_NAME(cuCtxDestroy)(CUcontext context) {
  PENSTOCK_PASS(cuCtxDestroy, context);
  DESTROY(context, REAL(cuCtxDestroy)(context));
}

CUresult CUDAAPI HOOK_NAME(cuCtxDestroy_v2)(CUcontext context) {
  PENSTOCK_PASS(cuCtxDestroy_v2, context);
  DESTROY(context, REAL(cuCtxDestroy_v2)(context));
}

CUresult CUDAAPI HOOK_NAME(cuGreenCtxCreate)(CUgreenCtx *context, CUdevResourceDesc resources,
                                             CUdevice device, unsigned int flags) {
  PENSTOCK_PASS(cuGreenCtxCreate, context, resources, device, flags);
  int grant;
  uint64_t bytes;
  CUresult result = penstock_context_admit(device, &grant, &bytes);
  if (result != CUDA_SUCCESS) return result;
  result = PENSTOCK_BELOW(REAL(cuGreenCtxCreate)(context, resources, device, flags));
  if (result == CUDA_SUCCESS) {
    penstock_object_remember(PENSTOCK_GREEN_CONTEXT, (uint64_t)(uintptr_t)*context, grant, bytes,
                             NULL);
  } else {
    penstock_uncharge(grant, bytes);
  }
  return result;
}

CUresult CUDAAPI HOOK_NAME(cuGreenCtxDestroy)(CUgreenCtx context) {
  PENSTOCK_PASS(cuGreenCtxDestroy, context);
  penstock_freeing freeing =
      penstock_free_begin(PENSTOCK_GREEN_CONTEXT, (uint64_t)(uintptr_t)context);
  return penstock_free_end(&freeing, PENSTOCK_BELOW(REAL(cuGreenCtxDestroy)(context)));
}
