#include "contexts/contexts.h"

#include <stdlib.h>

#include "common/log.h"
#include "contexts/primary.h"
#include "devices/grants.h"
#include "hooks/library.h"
#include "loading/driver.h"
#include "memory/charge.h"
#include "process/process.h"
#include "process/release.h"

/* Number of contexts destroyed so far. A change invalidates each thread's cached context. */
static uint64_t contexts_ended;

typedef struct known_context {
  CUcontext context;
  int grant;
  uint64_t contexts_ended;
} known_context;
static __thread known_context known;

static uint64_t reserve_bytes(int grant) {
  const penstock_process *process = penstock_process_get();
  if (!process || grant < 0) return 0;
  return penstock_region_limits(&process->region)->devices[grant].context_reserve_bytes;
}

/* Returns the cost of a new context, including the code that eager loading puts into it. */
static uint64_t cost_bytes(int grant) {
  uint64_t bytes;
  bool over =
      __builtin_add_overflow(reserve_bytes(grant), penstock_libraries_eager_bytes(grant), &bytes);
  return over ? UINT64_MAX : bytes;
}

CUresult penstock_context_admit(CUdevice device, int *grant, uint64_t *bytes) {
  const penstock_process *process = penstock_process_get();
  if (!process) return CUDA_ERROR_SYSTEM_NOT_READY;
  penstock_release_wait(process);
  *grant = penstock_grant_of(device);
  if (*grant < 0) {
    penstock_log("no context is created because device %d was not granted to this tenant", device);
    return CUDA_ERROR_INVALID_DEVICE;
  }
  *bytes = cost_bytes(*grant);
  return penstock_charge(*grant, *bytes);
}

/* Moves the part of a context's charge that covers libraries to those libraries. */
static void give_to_libraries(CUcontext context, int grant, uint64_t bytes) {
  uint64_t own = reserve_bytes(grant);
  if (bytes <= own) return;
  own += penstock_libraries_enter(context, grant, bytes - own);
  penstock_object_remember(PENSTOCK_CONTEXT, (uint64_t)(uintptr_t)context, grant, own, context);
}

void penstock_context_made(CUcontext context, int grant, uint64_t bytes) {
  penstock_object_remember(PENSTOCK_CONTEXT, (uint64_t)(uintptr_t)context, grant, bytes, context);
  give_to_libraries(context, grant, bytes);
}

bool penstock_context_try_made(CUcontext context, int grant, uint64_t bytes) {
  penstock_object object = {.key = (uint64_t)(uintptr_t)context,
                            .bytes = bytes,
                            .context = context,
                            .grant = (int16_t)grant,
                            .kind = PENSTOCK_CONTEXT};
  if (!penstock_object_add(&object)) return false;
  give_to_libraries(context, grant, bytes);
  return true;
}

typedef struct gathering {
  CUcontext context;
  penstock_departure departure;
  size_t room;
} gathering;

static bool gather(penstock_object *object, void *argument) {
  gathering *g = argument;
  if (object->context != g->context) return false;
  if (g->departure.count == g->room) {
    size_t room = g->room ? g->room * 2 : 64;
    penstock_object *larger = realloc(g->departure.all, room * sizeof *larger);
    /* Without memory for a larger list, the rest stays charged until the process ends. */
    if (!larger) return false;
    g->departure.all = larger;
    g->room = room;
  }
  g->departure.all[g->departure.count++] = *object;
  return true;
}

penstock_departure penstock_context_leave(CUcontext context) {
  gathering g = {.context = context};
  if (context) penstock_object_each(0, gather, &g);
  __atomic_fetch_add(&contexts_ended, 1, __ATOMIC_ACQ_REL);
  return g.departure;
}

CUresult penstock_context_left(penstock_departure *departure, CUresult result) {
  for (size_t i = 0; i < departure->count; i++) {
    const penstock_object *object = &departure->all[i];
    if (result == CUDA_SUCCESS) {
      penstock_give_back(object);
    } else {
      penstock_object_put(object);
    }
  }
  free(departure->all);
  return result;
}

/* Charges a context whose creation the shim did not see. */
static CUresult adopt(CUcontext context, CUdevice device, int grant) {
  uint64_t bytes = cost_bytes(grant);
  CUresult result = penstock_charge(grant, bytes);
  if (result != CUDA_SUCCESS) return result;
  if (!penstock_context_try_made(context, grant, bytes)) {
    penstock_uncharge(grant, bytes); /* another thread has charged the context first */
  }
  penstock_primary_adopt(device, context);
  return CUDA_SUCCESS;
}

bool penstock_context_is_known(CUcontext context) {
  if (known.context == context &&
      known.contexts_ended == __atomic_load_n(&contexts_ended, __ATOMIC_ACQUIRE)) {
    return true;
  }
  return penstock_object_find(PENSTOCK_CONTEXT, (uint64_t)(uintptr_t)context, NULL);
}

CUresult penstock_here(CUcontext *context, int *grant) {
  CUresult result = REAL(cuCtxGetCurrent)(context);
  if (result != CUDA_SUCCESS) return result;
  uint64_t now = __atomic_load_n(&contexts_ended, __ATOMIC_ACQUIRE);
  if (__builtin_expect(*context && known.context == *context && known.contexts_ended == now, 1)) {
    *grant = known.grant;
    return CUDA_SUCCESS;
  }
  CUdevice device;
  /* There is no context, so the driver's own error is returned. */
  result = REAL(cuCtxGetDevice)(&device);
  if (result != CUDA_SUCCESS) return result;
  *grant = penstock_grant_of(device);
  if (!penstock_object_find(PENSTOCK_CONTEXT, (uint64_t)(uintptr_t)*context, NULL)) {
    result = adopt(*context, device, *grant);
    if (result != CUDA_SUCCESS) return result;
  }
  known = (known_context){.context = *context, .grant = *grant, .contexts_ended = now};
  return CUDA_SUCCESS;
}
