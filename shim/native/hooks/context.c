/* Contexts. They use device memory: a reserve that depends on the device model is charged at the
 * first retain of a primary context and at each creation of another context. */
#include "memory/charge.h"
#include "contexts/contexts.h"
#include "common/log.h"
#include "hooks/hook.h"
#include "hooks/launch.h"
#include "contexts/primary.h"
#include "memory/reserve.h"

CUresult CUDAAPI HOOK_NAME(cuDevicePrimaryCtxRetain)(CUcontext *context, CUdevice device) {
  if (!context) return REAL(cuDevicePrimaryCtxRetain)(context, device);
  penstock_primary_retain retain;
  CUresult result = penstock_primary_admit(device, &retain);
  if (result != CUDA_SUCCESS) return result;
  result = REAL(cuDevicePrimaryCtxRetain)(context, device);
  result = penstock_primary_retained(&retain, *context, result);
  if (result == CUDA_ERROR_OUT_OF_MEMORY && retain.refused_late) {
    REAL(cuDevicePrimaryCtxRelease_v2)(device);
  }
  return result;
}

/* Returns true if the primary context is gone after a release or reset. Holders that the shim does
 * not see, like the CUDA runtime, may still retain it, or may already have retained a new one. */
static bool is_gone(CUdevice device, CUcontext context, unsigned long long id) {
  unsigned int flags;
  int active = 1;
  if (REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) != CUDA_SUCCESS) return false;
  return !active || penstock_primary_id_of(context) != id;
}

/* Releases or resets the primary context. If the context is gone afterwards, so are the objects in
 * it. */
static CUresult leave_primary(CUdevice device, CUresult (*leave)(CUdevice)) {
  uint64_t generation = penstock_primary_generation(device);
  unsigned long long id;
  CUcontext context = penstock_primary_context(device, &id);
  gate_hold hold = penstock_gate_context_hold(context, true);
  CUresult result = leave(device);
  bool gone = result == CUDA_SUCCESS && context && is_gone(device, context, id);
  penstock_gate_context_let_go(hold, gone);
  if (gone) {
    penstock_primary_gone(device, generation);
    penstock_reserves_settle();
  }
  return result;
}

#define LEAVE_PRIMARY(symbol)                           \
  CUresult CUDAAPI HOOK_NAME(symbol)(CUdevice device) { \
    return leave_primary(device, REAL(symbol));         \
  }
LEAVE_PRIMARY(cuDevicePrimaryCtxRelease)
LEAVE_PRIMARY(cuDevicePrimaryCtxRelease_v2)
LEAVE_PRIMARY(cuDevicePrimaryCtxReset)
LEAVE_PRIMARY(cuDevicePrimaryCtxReset_v2)

#define CREATE(context, device, call)                                 \
  do {                                                                \
    int grant;                                                        \
    uint64_t bytes;                                                   \
    CUresult result = penstock_context_admit(device, &grant, &bytes); \
    if (result != CUDA_SUCCESS) return result;                        \
    result = call;                                                    \
    if (result == CUDA_SUCCESS) {                                     \
      penstock_context_made(*(context), grant, bytes);                \
    } else {                                                          \
      penstock_uncharge(grant, bytes);                                \
    }                                                                 \
    return result;                                                    \
  } while (0)

CUresult CUDAAPI HOOK_NAME(cuCtxCreate)(CUcontext *context, unsigned int flags, CUdevice device) {
  CREATE(context, device, REAL(cuCtxCreate)(context, flags, device));
}

CUresult CUDAAPI HOOK_NAME(cuCtxCreate_v2)(CUcontext *context, unsigned int flags,
                                           CUdevice device) {
  CREATE(context, device, REAL(cuCtxCreate_v2)(context, flags, device));
}

#define CREATE_FOR_GRAPHICS(symbol, extra, arguments)                         \
  CUresult CUDAAPI HOOK_NAME(symbol)(CUcontext * context, unsigned int flags, \
                                     CUdevice device extra) {                 \
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
  CREATE(context, device, REAL(cuCtxCreate_v3)(context, affinity, count, flags, device));
}

CUresult CUDAAPI HOOK_NAME(cuCtxCreate_v4)(CUcontext *context, CUctxCreateParams *parameters,
                                           unsigned int flags, CUdevice device) {
  CREATE(context, device, REAL(cuCtxCreate_v4)(context, parameters, flags, device));
}

#define DESTROY(symbol)                                             \
  CUresult CUDAAPI HOOK_NAME(symbol)(CUcontext context) {           \
    gate_hold hold = penstock_gate_context_hold(context, true);     \
    penstock_departure departure = penstock_context_leave(context); \
    CUresult result = REAL(symbol)(context);                        \
    penstock_gate_context_let_go(hold, result == CUDA_SUCCESS);     \
    return penstock_context_left(&departure, result);               \
  }
DESTROY(cuCtxDestroy)
DESTROY(cuCtxDestroy_v2)

/* Changes the number of users of a context of the old API, in which a context ends with its last
 * user. `detail` counts the users beyond the first. */
static uint64_t add_user(CUcontext context, int64_t change) {
  penstock_object entry;
  if (!penstock_object_take(PENSTOCK_CONTEXT, (uint64_t)(uintptr_t)context, &entry)) return 0;
  uint64_t before = entry.detail;
  entry.detail = before == 0 && change < 0 ? 0 : before + (uint64_t)change;
  penstock_object_put(&entry);
  return before;
}

CUresult CUDAAPI HOOK_NAME(cuCtxAttach)(CUcontext *context, unsigned int flags) {
  CUresult result = REAL(cuCtxAttach)(context, flags);
  if (result == CUDA_SUCCESS) add_user(*context, 1);
  return result;
}

CUresult CUDAAPI HOOK_NAME(cuCtxDetach)(CUcontext context) {
  if (add_user(context, -1) > 0) {
    CUresult result = REAL(cuCtxDetach)(context);
    if (result != CUDA_SUCCESS) add_user(context, 1);
    return result;
  }
  gate_hold hold = penstock_gate_context_hold(context, true);
  penstock_departure departure = penstock_context_leave(context);
  CUresult result = REAL(cuCtxDetach)(context);
  penstock_gate_context_let_go(hold, result == CUDA_SUCCESS);
  return penstock_context_left(&departure, result);
}

/* Retains the device's primary context for a green context. The driver's green context retains the
 * primary context too, and creates it if there is none; the shim's own retain makes sure that it is
 * charged like any other. */
static CUresult hold_primary(CUdevice device, uint64_t *held) {
  CUcontext primary;
  CUresult result = HOOK_NAME(cuDevicePrimaryCtxRetain)(&primary, device);
  *held = penstock_primary_generation(device) << 8 | (uint64_t)device;
  return result;
}

static void let_primary_go(uint64_t held) {
  CUdevice device = (CUdevice)(held & 255);
  /* The primary context was not reset since. */
  if (penstock_primary_generation(device) == held >> 8) {
    HOOK_NAME(cuDevicePrimaryCtxRelease_v2)(device);
  }
}

CUresult CUDAAPI HOOK_NAME(cuGreenCtxCreate)(CUgreenCtx *context, CUdevResourceDesc resources,
                                             CUdevice device, unsigned int flags) {
  int grant;
  uint64_t bytes, held;
  CUresult result = hold_primary(device, &held);
  if (result != CUDA_SUCCESS) return result;
  result = penstock_context_admit(device, &grant, &bytes);
  if (result == CUDA_SUCCESS) {
    result = REAL(cuGreenCtxCreate)(context, resources, device, flags);
    if (result != CUDA_SUCCESS) penstock_uncharge(grant, bytes);
  }
  if (result != CUDA_SUCCESS) {
    let_primary_go(held);
    return result;
  }
  penstock_object green = {.key = (uint64_t)(uintptr_t)*context,
                           .bytes = bytes,
                           .detail = held,
                           .grant = (int16_t)grant,
                           .kind = PENSTOCK_GREEN_CONTEXT};
  if (!penstock_object_put(&green)) penstock_log("no host memory left to record a green context");
  return result;
}

/* Leaves objects that were allocated in a green context to the primary context, because drivers may
 * keep that memory. */
static void leave_to(CUdevice device, penstock_departure *departure) {
  CUcontext primary = penstock_primary_context(device, NULL);
  size_t kept = 0;
  for (size_t i = 0; i < departure->count; i++) {
    penstock_object *object = &departure->all[i];
    int where;
    if (object->kind == PENSTOCK_DEVICE_MEMORY &&
        REAL(cuPointerGetAttribute)(&where, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, object->key) ==
            CUDA_SUCCESS) {
      object->context = primary;
      penstock_object_put(object);
    } else {
      departure->all[kept++] = *object;
    }
  }
  departure->count = kept;
}

/* The context that represents a green context is already charged. */
CUresult CUDAAPI HOOK_NAME(cuCtxFromGreenCtx)(CUcontext *context, CUgreenCtx green) {
  CUresult result = REAL(cuCtxFromGreenCtx)(context, green);
  penstock_object entry;
  if (result == CUDA_SUCCESS &&
      penstock_object_find(PENSTOCK_GREEN_CONTEXT, (uint64_t)(uintptr_t)green, &entry) &&
      !penstock_object_find(PENSTOCK_CONTEXT, (uint64_t)(uintptr_t)*context, NULL)) {
    penstock_context_made(*context, entry.grant, 0);
  }
  return result;
}

CUresult CUDAAPI HOOK_NAME(cuGreenCtxDestroy)(CUgreenCtx green) {
  CUcontext context = NULL;
  if (REAL(cuCtxFromGreenCtx)(&context, green) != CUDA_SUCCESS) context = NULL;
  gate_hold hold = penstock_gate_context_hold(context, true);
  penstock_departure departure = penstock_context_leave(context);
  penstock_freeing freeing =
      penstock_free_begin(PENSTOCK_GREEN_CONTEXT, (uint64_t)(uintptr_t)green);
  CUresult result = REAL(cuGreenCtxDestroy)(green);
  penstock_gate_context_let_go(hold, result == CUDA_SUCCESS);
  bool gone = freeing.found && result == CUDA_SUCCESS;
  if (gone) leave_to((CUdevice)(freeing.object.detail & 255), &departure);
  penstock_context_left(&departure, result);
  penstock_free_end(&freeing, result);
  if (gone) let_primary_go(freeing.object.detail);
  return result;
}

/* The CUDA runtime calls this function after it has retained a primary context through a private
 * table. The shim does not see that retain, so the context is charged here. If it does not fit, the
 * next allocation in it fails. */
CUresult CUDAAPI HOOK_NAME(cuCtxGetCurrent)(CUcontext *context) {
  CUresult result = REAL(cuCtxGetCurrent)(context);
  if (result == CUDA_SUCCESS && *context && !penstock_context_is_known(*context)) {
    CUcontext here;
    int grant;
    penstock_here(&here, &grant);
  }
  return result;
}
