/* Holders of physical memory other than handles and mappings: sparse arrays and multicast
 * objects. */
#include <stdlib.h>

#include "memory/charge.h"
#include "hooks/vmm.h"

struct penstock_vmm_hold {
  penstock_vmm_place place;
  uint64_t number;
  penstock_vmm_hold *next;
};

void penstock_vmm_hold_at(const penstock_vmm_place *place, uint64_t number) {
  penstock_object gone;
  penstock_vmm_hold *hold = malloc(sizeof *hold);
  if (!penstock_vmm_lock()) {
    free(hold);
    return;
  }
  penstock_vmm_state *state = penstock_vmm_state_get();
  if (hold) { /* without memory for the hold, the allocation stays charged until the process ends */
    *hold = (penstock_vmm_hold){*place, number, state->holds};
    __atomic_store_n(&state->holds, hold, __ATOMIC_RELEASE);
  }
  penstock_vmm_count(number, PENSTOCK_VMM_MAPPINGS(1), 0, &gone);
  penstock_vmm_unlock();
}

CUresult penstock_vmm_bound(const penstock_vmm_place *place, uint64_t number, CUresult result) {
  if (number && result == CUDA_SUCCESS) penstock_vmm_hold_at(place, number);
  if (number) penstock_vmm_mapping_gone(number);
  return result;
}

static bool is_inside(const penstock_vmm_place *inner, const penstock_vmm_place *outer) {
  bool inside = inner->owner == outer->owner && inner->plane == outer->plane;
  for (int i = 0; i < 3; i++) {
    inside &= inner->from[i] >= outer->from[i] && inner->to[i] <= outer->to[i];
  }
  return inside;
}

/* Removes the first hold in `place`, or of `owner`. The caller holds the lock. */
static penstock_vmm_hold *take(const penstock_vmm_place *place, uint64_t owner) {
  penstock_vmm_hold **link = &penstock_vmm_state_get()->holds;
  while (*link && !(place ? is_inside(&(*link)->place, place) : (*link)->place.owner == owner)) {
    link = &(*link)->next;
  }
  penstock_vmm_hold *found = *link;
  if (found) *link = found->next;
  return found;
}

static void let_go(const penstock_vmm_place *place, uint64_t owner) {
  penstock_vmm_state *state = penstock_vmm_state_get();
  while (state && __atomic_load_n(&state->holds, __ATOMIC_ACQUIRE)) {
    penstock_vmm_lock();
    penstock_vmm_hold *hold = take(place, owner);
    penstock_vmm_unlock();
    if (!hold) return;
    penstock_vmm_mapping_gone(hold->number);
    free(hold);
  }
}

void penstock_vmm_let_go_at(const penstock_vmm_place *place) { let_go(place, 0); }

void penstock_vmm_let_go_all(uint64_t owner) { let_go(NULL, owner); }

void penstock_vmm_gone(const penstock_object *allocation) {
  penstock_give_back(allocation);
  penstock_vmm_let_go_all(allocation->key);
}
