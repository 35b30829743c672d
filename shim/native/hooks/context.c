/* Contexts cost device memory: a reserve by device model, charged at the first retain of a primary
 * context and at every creation of another one. */
#include "charge.h"
#include "contexts.h"
#include "fork_wiped.h"
#include "hooks/hook.h"
#include "hooks/launch.h"
#include "reserve.h"

#define MOST_DEVICES 64

/* The primary context of a device. */
typedef struct primary_context {
  CUcontext context; /* while it is charged */
  uint32_t retained; /* by the program; what the CUDA runtime does privately is not seen */
} primary_context;

static primary_context *primary_of(CUdevice device) {
  static penstock_fork_wiped memory;
  primary_context *all = penstock_fork_wiped_get(&memory, MOST_DEVICES * sizeof(primary_context));
  return all && device >= 0 && device < MOST_DEVICES ? &all[device] : NULL;
}

CUresult CUDAAPI HOOK_NAME(cuDevicePrimaryCtxRetain)(CUcontext *context, CUdevice device) {
  PENSTOCK_PASS(cuDevicePrimaryCtxRetain, context, device);
  primary_context *primary = primary_of(device);
  int grant = -1;
  uint64_t bytes = 0;
  bool first = !primary || !__atomic_load_n(&primary->context, __ATOMIC_ACQUIRE);
  CUresult result;
  if (first) {
    result = penstock_context_admit(device, &grant, &bytes);
    if (result != CUDA_SUCCESS) return result;
  }
  result = PENSTOCK_BELOW(REAL(cuDevicePrimaryCtxRetain)(context, device));
  if (primary && result == CUDA_SUCCESS) {
    __atomic_fetch_add(&primary->retained, 1, __ATOMIC_RELAXED);
  }
  if (!first) return result;
  CUcontext none = NULL;
  bool mine = result == CUDA_SUCCESS && primary &&
              __atomic_compare_exchange_n(&primary->context, &none, *context, 0, __ATOMIC_ACQ_REL,
                                          __ATOMIC_RELAXED);
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
  primary_context *primary = primary_of(device);
  if (!primary) return;
  __atomic_store_n(&primary->retained, 0, __ATOMIC_RELAXED);
  CUcontext gone = __atomic_exchange_n(&primary->context, NULL, __ATOMIC_ACQ_REL);
  if (gone) penstock_context_gone(gone);
  penstock_reserves_settle();
}

/* The gate lets go of its events and streams while the context still lives. */
static void before_leaving(CUdevice device, bool for_good) {
  primary_context *primary = primary_of(device);
  if (!primary) return;
  uint32_t count = __atomic_load_n(&primary->retained, __ATOMIC_RELAXED);
  while (count && !__atomic_compare_exchange_n(&primary->retained, &count, count - 1, true,
                                               __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
  }
  if (count > 1 && !for_good) return;
  penstock_gate_forget_context(__atomic_load_n(&primary->context, __ATOMIC_ACQUIRE));
}

#define LEAVE_PRIMARY(symbol, for_good)                     \
  CUresult CUDAAPI HOOK_NAME(symbol)(CUdevice device) {     \
    PENSTOCK_PASS(symbol, device);                          \
    before_leaving(device, for_good);                       \
    CUresult result = PENSTOCK_BELOW(REAL(symbol)(device)); \
    if (result == CUDA_SUCCESS) look_after_primary(device); \
    return result;                                          \
  }
LEAVE_PRIMARY(cuDevicePrimaryCtxRelease, false)
LEAVE_PRIMARY(cuDevicePrimaryCtxRelease_v2, false)
LEAVE_PRIMARY(cuDevicePrimaryCtxReset, true)
LEAVE_PRIMARY(cuDevicePrimaryCtxReset_v2, true)

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

#define CREATE_FOR_GRAPHICS(symbol, extra, arguments)                         \
  CUresult CUDAAPI HOOK_NAME(symbol)(CUcontext * context, unsigned int flags, \
                                     CUdevice device extra) {                 \
    PENSTOCK_PASS(symbol, context, flags, device arguments);                  \
    CREATE(context, device, REAL(symbol)(context, flags, device arguments));  \
  }
#define NOTHING
#define VDPAU_EXTRA , VdpDevice vdpau, VdpGetProcAddress *lookup
#define VDPAU_ARGUMENTS , vdpau, lookup
CREATE_FOR_GRAPHICS(cuGLCtxCreate, NOTHING, NOTHING)
CREATE_FOR_GRAPHICS(cuGLCtxCreate_v2, NOTHING, NOTHING)
CREATE_FOR_GRAPHICS(cuVDPAUCtxCreate, VDPAU_EXTRA, VDPAU_ARGUMENTS)
CREATE_FOR_GRAPHICS(cuVDPAUCtxCreate_v2, VDPAU_EXTRA, VDPAU_ARGUMENTS)

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

#define DESTROY(symbol)                                                              \
  CUresult CUDAAPI HOOK_NAME(symbol)(CUcontext context) {                            \
    PENSTOCK_PASS(symbol, context);                                                  \
    penstock_gate_forget_context(context);                                           \
    penstock_departure departure = penstock_context_leave(context);                  \
    return penstock_context_left(&departure, PENSTOCK_BELOW(REAL(symbol)(context))); \
  }
DESTROY(cuCtxDestroy)
DESTROY(cuCtxDestroy_v2)

/* The old way: a context goes with the last of its users. `detail` counts those beyond the first.
 */
static uint64_t add_user(CUcontext context, int64_t change) {
  penstock_object entry;
  if (!penstock_object_take(PENSTOCK_CONTEXT, (uint64_t)(uintptr_t)context, &entry)) return 0;
  uint64_t before = entry.detail;
  entry.detail = before == 0 && change < 0 ? 0 : before + (uint64_t)change;
  penstock_object_put(&entry);
  return before;
}

CUresult CUDAAPI HOOK_NAME(cuCtxAttach)(CUcontext *context, unsigned int flags) {
  PENSTOCK_PASS(cuCtxAttach, context, flags);
  CUresult result = PENSTOCK_BELOW(REAL(cuCtxAttach)(context, flags));
  if (result == CUDA_SUCCESS) add_user(*context, 1);
  return result;
}

CUresult CUDAAPI HOOK_NAME(cuCtxDetach)(CUcontext context) {
  PENSTOCK_PASS(cuCtxDetach, context);
  bool last = add_user(context, -1) == 0;
  if (last) penstock_gate_forget_context(context);
  CUresult result = PENSTOCK_BELOW(REAL(cuCtxDetach)(context));
  if (result == CUDA_SUCCESS && last) penstock_context_gone(context);
  if (result != CUDA_SUCCESS && !last) add_user(context, 1);
  return result;
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

/* The context that a green one appears as: paid for already. */
CUresult CUDAAPI HOOK_NAME(cuCtxFromGreenCtx)(CUcontext *context, CUgreenCtx green) {
  PENSTOCK_PASS(cuCtxFromGreenCtx, context, green);
  CUresult result = PENSTOCK_BELOW(REAL(cuCtxFromGreenCtx)(context, green));
  penstock_object entry;
  if (result == CUDA_SUCCESS &&
      penstock_object_find(PENSTOCK_GREEN_CONTEXT, (uint64_t)(uintptr_t)green, &entry) &&
      !penstock_object_find(PENSTOCK_CONTEXT, (uint64_t)(uintptr_t)*context, NULL)) {
    penstock_context_made(*context, entry.grant, 0);
  }
  return result;
}

CUresult CUDAAPI HOOK_NAME(cuGreenCtxDestroy)(CUgreenCtx green) {
  PENSTOCK_PASS(cuGreenCtxDestroy, green);
  CUcontext context = NULL;
  if (PENSTOCK_BELOW(REAL(cuCtxFromGreenCtx)(&context, green)) == CUDA_SUCCESS) {
    penstock_gate_forget_context(context);
  }
  penstock_departure departure = penstock_context_leave(context);
  penstock_freeing freeing =
      penstock_free_begin(PENSTOCK_GREEN_CONTEXT, (uint64_t)(uintptr_t)green);
  CUresult result = PENSTOCK_BELOW(REAL(cuGreenCtxDestroy)(green));
  penstock_context_left(&departure, result);
  return penstock_free_end(&freeing, result);
}
