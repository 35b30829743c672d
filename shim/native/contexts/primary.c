#include "contexts/primary.h"

#include <sched.h>

#include "common/log.h"
#include "contexts/contexts.h"
#include "devices/grants.h"
#include "hooks/launch.h"
#include "loading/driver.h"
#include "mechanism/lock.h"
#include "memory/charge.h"
#include "process/fork_wiped.h"

#define MOST_DEVICES 64

typedef struct primary_context {
  uint32_t lock;
  CUcontext context; /* the charged context, NULL if none */
  unsigned long long id;
  uint64_t generation; /* number of primary contexts that the device has had */
  uint32_t in_flight;  /* number of retains admitted and not yet finished */
  bool is_reserving;   /* one of the retains in flight is charging a context now */
  bool is_reserved; /* one of the retains in flight has charged the context that will be created */
  uint64_t bytes;   /* size of that charge */
} primary_context;

static primary_context *primary_of(CUdevice device) {
  static penstock_fork_wiped memory;
  primary_context *all = penstock_fork_wiped_get(&memory, MOST_DEVICES * sizeof(primary_context));
  return all && device >= 0 && device < MOST_DEVICES ? &all[device] : NULL;
}

unsigned long long penstock_primary_id_of(CUcontext context) {
  unsigned long long id = 0;
  return REAL(cuCtxGetId)(context, &id) == CUDA_SUCCESS ? id : 0;
}

CUresult penstock_primary_admit(CUdevice device, penstock_primary_retain *retain) {
  *retain = (penstock_primary_retain){.device = device, .grant = -1};
  primary_context *primary = primary_of(device);
  if (!primary) return CUDA_SUCCESS; /* there is no such device, so the driver returns the error */
  penstock_lock_acquire(&primary->lock);
  bool mine = !primary->context && primary->in_flight == 0;
  primary->in_flight++;
  primary->is_reserving |= mine;
  penstock_lock_release(&primary->lock);
  if (!mine) return CUDA_SUCCESS;
  uint64_t bytes = 0;
  CUresult result = penstock_context_admit(device, &retain->grant, &bytes);
  penstock_lock_acquire(&primary->lock);
  primary->is_reserving = false;
  if (result == CUDA_SUCCESS) {
    retain->reserved = primary->is_reserved = true;
    primary->bytes = bytes;
  } else if (result == CUDA_ERROR_OUT_OF_MEMORY && (primary->context || primary->in_flight > 1)) {
    /* Another thread's retain has charged the context, or will be refused as well. */
    result = CUDA_SUCCESS;
  } else {
    primary->in_flight--;
  }
  penstock_lock_release(&primary->lock);
  return result;
}

/* Drops a context that has ended, and uncharges everything in it before another thread can be
 * refused for lack of that memory. Makes no driver call. The caller holds the lock. */
static void drop_context(primary_context *primary) {
  if (!primary->context) return;
  penstock_departure departure = penstock_context_leave(primary->context);
  penstock_context_left(&departure, CUDA_SUCCESS);
  primary->context = NULL;
}

typedef struct retain_outcome {
  CUcontext ended; /* former context whose end the shim did not see, NULL if none */
  bool is_new;     /* the context was not in the table before */
  bool has_charge; /* a charge was reserved for the context */
  bool give_back;  /* a charge was reserved that is not needed */
  uint64_t bytes;
} retain_outcome;

/* Enters a retained context into the table, before another thread can discover the context and
 * allocate in it. */
static retain_outcome enter_retained(primary_context *primary,
                                     const penstock_primary_retain *retain, CUcontext context,
                                     unsigned long long id, int grant) {
  retain_outcome f = {.is_new = false};
  penstock_lock_acquire(&primary->lock);
  primary->in_flight--;
  f.bytes = primary->bytes;
  if (primary->context != context || primary->id != id) {
    f.ended = primary->context;
    drop_context(primary);
    primary->context = context;
    primary->id = id;
    primary->generation++;
    f.has_charge = primary->is_reserved;
    primary->is_reserved = false;
    /* The context is charged already if the program allocated in it after a retain that the shim
     * did not see. */
    f.is_new = penstock_context_try_made(context, grant, f.has_charge ? f.bytes : 0);
    if (!f.is_new) f.give_back = f.has_charge;
  } else if (retain->reserved && primary->is_reserved) {
    f.give_back = true;
    primary->is_reserved = false;
  }
  penstock_lock_release(&primary->lock);
  return f;
}

/* Uncharges the reservation after the driver refused, unless another thread's context uses it. */
static void give_up(primary_context *primary, const penstock_primary_retain *retain) {
  penstock_lock_acquire(&primary->lock);
  primary->in_flight--;
  bool give_back = retain->reserved && primary->is_reserved;
  uint64_t bytes = primary->bytes;
  if (give_back) primary->is_reserved = false;
  penstock_lock_release(&primary->lock);
  if (give_back) penstock_uncharge(retain->grant, bytes);
}

/* Takes over the reservation of another thread. Returns false if there is none. `wait` receives
 * whether there may be one soon. */
static bool take_reservation(primary_context *primary, uint64_t *bytes, bool *wait) {
  penstock_lock_acquire(&primary->lock);
  bool taken = primary->is_reserved;
  *bytes = primary->bytes;
  *wait = primary->is_reserving;
  primary->is_reserved = false;
  penstock_lock_release(&primary->lock);
  return taken;
}

/* Charges a new context that has no charge because the former one ended while this thread retained
 * it. */
static CUresult charge_late(primary_context *primary, penstock_primary_retain *retain,
                            CUcontext context) {
  uint64_t bytes = 0;
  bool wait = true;
  CUresult result = CUDA_ERROR_OUT_OF_MEMORY;
  while (result == CUDA_ERROR_OUT_OF_MEMORY && wait) {
    result = penstock_context_admit(retain->device, &retain->grant, &bytes);
    if (result != CUDA_ERROR_OUT_OF_MEMORY) break;
    if (take_reservation(primary, &bytes, &wait)) result = CUDA_SUCCESS;
    if (wait) sched_yield();
  }
  if (result == CUDA_SUCCESS) {
    penstock_context_made(context, retain->grant, bytes);
  } else {
    retain->refused_late = true;
    penstock_primary_gone(retain->device, penstock_primary_generation(retain->device));
  }
  return result;
}

CUresult penstock_primary_retained(penstock_primary_retain *retain, CUcontext context,
                                   CUresult result) {
  primary_context *primary = primary_of(retain->device);
  if (!primary) return result;
  if (result != CUDA_SUCCESS) {
    give_up(primary, retain);
    return result;
  }
  int grant = penstock_grant_of(retain->device);
  retain_outcome f =
      enter_retained(primary, retain, context, penstock_primary_id_of(context), grant);
  if (f.give_back) penstock_uncharge(grant, f.bytes);
  if (f.ended) penstock_gate_context_let_go(penstock_gate_context_hold(f.ended, false), true);
  return f.is_new && !f.has_charge ? charge_late(primary, retain, context) : result;
}

CUcontext penstock_primary_context(CUdevice device, unsigned long long *id) {
  primary_context *primary = primary_of(device);
  if (!primary) return NULL;
  penstock_lock_acquire(&primary->lock);
  CUcontext context = primary->context;
  if (id) *id = primary->id;
  penstock_lock_release(&primary->lock);
  return context;
}

uint64_t penstock_primary_generation(CUdevice device) {
  primary_context *primary = primary_of(device);
  return primary ? __atomic_load_n(&primary->generation, __ATOMIC_ACQUIRE) : 0;
}

void penstock_primary_gone(CUdevice device, uint64_t generation) {
  primary_context *primary = primary_of(device);
  if (!primary) return;
  penstock_lock_acquire(&primary->lock);
  if (primary->generation == generation) drop_context(primary);
  penstock_lock_release(&primary->lock);
}

void penstock_primary_adopt(CUdevice device, CUcontext context) {
  primary_context *primary = primary_of(device);
  CUcontext retained = NULL;
  unsigned int flags;
  int active = 0;
  if (!primary || REAL(cuDevicePrimaryCtxGetState)(device, &flags, &active) != CUDA_SUCCESS ||
      !active || REAL(cuDevicePrimaryCtxRetain)(&retained, device) != CUDA_SUCCESS) {
    return;
  }
  REAL(cuDevicePrimaryCtxRelease_v2)(device);
  if (retained != context) return;
  unsigned long long id = penstock_primary_id_of(context);
  penstock_lock_acquire(&primary->lock);
  if (!primary->context) {
    primary->context = context;
    primary->id = id;
    primary->generation++;
  }
  penstock_lock_release(&primary->lock);
}
