#include "contexts.h"

#include "charge.h"
#include "driver.h"
#include "hooks/hook.h"
#include "log.h"
#include "process.h"

/* Grows with every context that goes: what a thread knows of its context may be old then. */
static uint64_t departures;

typedef struct known_context {
  CUcontext context;
  int grant;
  uint64_t departures;
} known_context;
static __thread known_context known;

static uint64_t reserve_bytes(int grant) {
  const penstock_process *process = penstock_process_get();
  if (!process || grant < 0) return 0;
  return penstock_region_limits(&process->region)->devices[grant].context_reserve_bytes;
}

CUresult penstock_context_admit(CUdevice device, int *grant, uint64_t *bytes) {
  if (!penstock_process_get()) return CUDA_ERROR_SYSTEM_NOT_READY;
  *grant = PENSTOCK_BELOW(penstock_grant_of(device));
  if (*grant < 0) {
    penstock_log("no context: device %d was not granted to this tenant", device);
    return CUDA_ERROR_INVALID_DEVICE;
  }
  *bytes = reserve_bytes(*grant);
  return penstock_charge(*grant, *bytes);
}

void penstock_context_made(CUcontext context, int grant, uint64_t bytes) {
  penstock_object_remember(PENSTOCK_CONTEXT, (uint64_t)(uintptr_t)context, grant, bytes, context);
}

static bool lies_in(penstock_object *object, void *argument) {
  if (object->context != argument) return false;
  penstock_uncharge(object->grant,
                    object->bytes); /* a few atomic operations: no driver, no table */
  return true;
}

void penstock_context_gone(CUcontext context) {
  __atomic_fetch_add(&departures, 1, __ATOMIC_ACQ_REL);
  penstock_object_each(0, lies_in, context);
}

/* Charges a context that came about unseen. */
static CUresult adopt(CUcontext context, int grant) {
  uint64_t bytes = reserve_bytes(grant);
  CUresult result = penstock_charge(grant, bytes);
  if (result == CUDA_SUCCESS) penstock_context_made(context, grant, bytes);
  return result;
}

CUresult penstock_here(CUcontext *context, int *grant) {
  CUresult result = REAL(cuCtxGetCurrent)(context);
  if (result != CUDA_SUCCESS) return result;
  uint64_t now = __atomic_load_n(&departures, __ATOMIC_ACQUIRE);
  if (__builtin_expect(*context && known.context == *context && known.departures == now, 1)) {
    *grant = known.grant;
    return CUDA_SUCCESS;
  }
  CUdevice device;
  result = REAL(cuCtxGetDevice)(&device); /* without a context: the driver's own error */
  if (result != CUDA_SUCCESS) return result;
  *grant = penstock_grant_of(device);
  if (!penstock_object_find(PENSTOCK_CONTEXT, (uint64_t)(uintptr_t)*context, NULL)) {
    result = adopt(*context, *grant);
    if (result != CUDA_SUCCESS) return result;
  }
  known = (known_context){.context = *context, .grant = *grant, .departures = now};
  return CUDA_SUCCESS;
}
