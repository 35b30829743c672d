#include "primary.h"

#include <sched.h>

#include "charge.h"
#include "common/log.h"
#include "fork_wiped.h"
#include "hooks/hook.h"
#include "hooks/launch.h"
#include "mechanism/lock.h"

#define MOST_DEVICES 64

typedef struct primary_context {
  uint32_t lock;
  CUcontext context; /* that is charged; NULL: none */
  unsigned long long id;
  uint64_t generation; /* counts the contexts that there were */
  uint32_t under_way;  /* retains between admission and their end */
  bool is_reserving;   /* one of them is charging it just now */
  bool is_reserved;    /* a charge waits for the context that one of them makes */
  uint64_t bytes;      /* of that charge */
} primary_context;

static primary_context *primary_of(CUdevice device) {
  static penstock_fork_wiped memory;
  primary_context *all = penstock_fork_wiped_get(&memory, MOST_DEVICES * sizeof(primary_context));
  return all && device >= 0 && device < MOST_DEVICES ? &all[device] : NULL;
}

/* 0: then the address has to do. */
unsigned long long penstock_primary_id_of(CUcontext context) {
  unsigned long long id = 0;
  return REAL(cuCtxGetId)(context, &id) == CUDA_SUCCESS ? id : 0;
}

CUresult penstock_primary_admit(CUdevice device, penstock_primary_retain *retain) {
  *retain = (penstock_primary_retain){.device = device, .grant = -1};
  primary_context *primary = primary_of(device);
  if (!primary) return CUDA_SUCCESS; /* the driver says what is wrong with it */
  penstock_lock_acquire(&primary->lock);
  bool mine = !primary->context && primary->under_way == 0;
  primary->under_way++;
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
  } else if (result == CUDA_ERROR_OUT_OF_MEMORY && (primary->context || primary->under_way > 1)) {
    result = CUDA_SUCCESS; /* another thread's retain has charged it, or will be refused as well */
  } else {
    primary->under_way--;
  }
  penstock_lock_release(&primary->lock);
  return result;
}

/* The context is no more: what was in it is given back before anybody can be refused for want of
 * it. No driver call; (locked). */
static void leave(primary_context *primary) {
  if (!primary->context) return;
  penstock_departure departure = penstock_context_leave(primary->context);
  penstock_context_left(&departure, CUDA_SUCCESS);
  primary->context = NULL;
}

typedef struct finding {
  CUcontext went;  /* ended unseen, before this one was made; NULL: none */
  bool is_new;     /* in the table from now on */
  bool has_charge; /* a reservation for it was there */
  bool give_back;  /* a reservation that nobody needs */
  uint64_t bytes;
} finding;

/* What a retained context is to the ledger. It is in the table before any other thread can find
 * that it is retained already, and allocate in it. */
static finding find(primary_context *primary, const penstock_primary_retain *retain,
                    CUcontext context, unsigned long long id, int grant) {
  finding f = {.is_new = false};
  penstock_lock_acquire(&primary->lock);
  primary->under_way--;
  f.bytes = primary->bytes;
  if (primary->context != context || primary->id != id) {
    f.went = primary->context;
    leave(primary);
    primary->context = context;
    primary->id = id;
    primary->generation++;
    f.has_charge = primary->is_reserved;
    primary->is_reserved = false;
    /* Charged already when somebody allocated in it after a retain that the shim did not see. */
    f.is_new = penstock_context_try_made(context, grant, f.has_charge ? f.bytes : 0);
    if (!f.is_new) f.give_back = f.has_charge;
  } else if (retain->reserved && primary->is_reserved) {
    f.give_back = true;
    primary->is_reserved = false;
  }
  penstock_lock_release(&primary->lock);
  return f;
}

/* The driver refused: what was reserved goes back, unless another thread's context has it. */
static void give_up(primary_context *primary, const penstock_primary_retain *retain) {
  penstock_lock_acquire(&primary->lock);
  primary->under_way--;
  bool give_back = retain->reserved && primary->is_reserved;
  uint64_t bytes = primary->bytes;
  if (give_back) primary->is_reserved = false;
  penstock_lock_release(&primary->lock);
  if (give_back) penstock_uncharge(retain->grant, bytes);
}

/* What another thread has charged for a context that it would not make any more. False: there is
 * none; `wait`: not yet. */
static bool take_reservation(primary_context *primary, uint64_t *bytes, bool *wait) {
  penstock_lock_acquire(&primary->lock);
  bool taken = primary->is_reserved;
  *bytes = primary->bytes;
  *wait = primary->is_reserving;
  primary->is_reserved = false;
  penstock_lock_release(&primary->lock);
  return taken;
}

/* A new context without a charge: the one that there was ended while this thread retained. */
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
  finding f = find(primary, retain, context, penstock_primary_id_of(context), grant);
  if (f.give_back) penstock_uncharge(grant, f.bytes);
  if (f.went) penstock_gate_context_let_go(penstock_gate_context_hold(f.went, false), true);
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
  if (primary->generation == generation) leave(primary);
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
