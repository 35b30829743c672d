/* State of virtual memory management: allocations, and counts of what holds them. */
#include "hooks/vmm.h"

#include "memory/charge.h"
#include "process/fork_wiped.h"
#include "hooks/hook.h"
#include "memory/location.h"
#include "common/log.h"
#include "mechanism/lock.h"

penstock_vmm_state *penstock_vmm_state_get(void) {
  static penstock_fork_wiped memory;
  return penstock_fork_wiped_get(&memory, sizeof(penstock_vmm_state));
}

bool penstock_vmm_lock(void) {
  penstock_vmm_state *s = penstock_vmm_state_get();
  if (s) penstock_lock_acquire(&s->lock);
  return s != NULL;
}

void penstock_vmm_unlock(void) { penstock_lock_release(&penstock_vmm_state_get()->lock); }

void penstock_vmm_put(penstock_kind kind, uint64_t key, int grant, uint64_t bytes,
                      uint64_t detail) {
  penstock_object object = {.key = key,
                            .bytes = bytes,
                            .detail = detail,
                            .changes = ++penstock_vmm_state_get()->last_number,
                            .grant = (int16_t)grant,
                            .kind = (uint8_t)kind};
  if (!penstock_object_put(&object)) penstock_log("no host memory left to record an allocation");
}

uint64_t penstock_vmm_add(int grant, uint64_t bytes, bool imported) {
  penstock_object object = {.key = ++penstock_vmm_state_get()->last_number,
                            .bytes = bytes,
                            .detail = PENSTOCK_VMM_HANDLES(1),
                            .grant = (int16_t)grant,
                            .kind = PENSTOCK_VMM_ALLOCATION,
                            .imported = imported};
  if (!penstock_object_put(&object)) penstock_log("no host memory left to record an allocation");
  return object.key;
}

bool penstock_vmm_count(uint64_t number, uint64_t add, uint64_t subtract, penstock_object *gone) {
  penstock_object allocation;
  if (!penstock_object_take(PENSTOCK_VMM_ALLOCATION, number, &allocation)) return false;
  allocation.detail = allocation.detail + add - subtract;
  if (allocation.detail == 0) {
    *gone = allocation;
    return true;
  }
  penstock_object_put(&allocation);
  return false;
}

bool penstock_vmm_on_device(const CUmemAllocationProp *properties) {
  return !penstock_location_is_host(&properties->location);
}

int penstock_vmm_grant(const CUmemAllocationProp *properties) {
  return penstock_grant_of(penstock_location_device(&properties->location));
}

void penstock_vmm_mapping_gone(uint64_t number) {
  penstock_object gone;
  bool give_back = false;
  if (penstock_vmm_lock()) {
    give_back = penstock_vmm_count(number, 0, PENSTOCK_VMM_MAPPINGS(1), &gone);
    penstock_vmm_unlock();
  }
  if (give_back) penstock_vmm_gone(&gone);
}

void penstock_vmm_add_handle(uint64_t handle, uint64_t number, int grant) {
  penstock_object entry, gone;
  if (penstock_object_take(PENSTOCK_VMM_HANDLE, handle, &entry) && entry.detail == number) {
    entry.bytes++;
    penstock_object_put(&entry);
  } else {
    penstock_vmm_put(PENSTOCK_VMM_HANDLE, handle, grant, 1, number);
  }
  penstock_vmm_count(number, PENSTOCK_VMM_HANDLES(1), 0, &gone);
}

/* Adds a reference to an allocation. Returns its number, or 0 if it is unknown. The caller holds
 * the lock. */
static uint64_t refer_to(uint64_t number) {
  penstock_object gone;
  if (!penstock_object_find(PENSTOCK_VMM_ALLOCATION, number, NULL)) return 0;
  penstock_vmm_count(number, PENSTOCK_VMM_MAPPINGS(1), 0, &gone);
  return number;
}

uint64_t penstock_vmm_refer_to_handle(uint64_t handle) {
  penstock_object entry;
  uint64_t number = 0;
  if (!penstock_vmm_lock()) return 0;
  if (penstock_object_find(PENSTOCK_VMM_HANDLE, handle, &entry)) number = refer_to(entry.detail);
  penstock_vmm_unlock();
  return number;
}

uint64_t penstock_vmm_refer_to_address(uint64_t address) {
  penstock_object mapping;
  uint64_t number = 0;
  if (!penstock_vmm_find_mapping(address, &mapping) || !penstock_vmm_lock()) return 0;
  number = refer_to(mapping.detail);
  penstock_vmm_unlock();
  return number;
}
