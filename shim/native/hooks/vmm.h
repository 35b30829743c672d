/* State that the parts of virtual memory management share (vmm_state.c). */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "memory/objects.h"

/* In a handle or a mapping, `detail` is the allocation's number. In an allocation, `detail` counts
 * its handles in the low half and its mappings in the high half. */
#define PENSTOCK_VMM_HANDLES(count) ((uint64_t)(count))
#define PENSTOCK_VMM_MAPPINGS(count) ((uint64_t)(count) << 32)

typedef struct penstock_vmm_state {
  uint32_t lock;        /* guards changes of a handle or mapping together with its allocation */
  uint64_t last_number; /* number of the last allocation; numbers are never reused, unlike addresses
                           and handles */
  struct penstock_vmm_hold *holds; /* list of the holds of arrays and multicast objects */
} penstock_vmm_state;
penstock_vmm_state *penstock_vmm_state_get(void);

/* Takes the state's lock, which is never held across driver calls. Returns false if there is no
 * memory; then nothing is recorded, and no charge ends. */
bool penstock_vmm_lock(void);
void penstock_vmm_unlock(void);

/* Adds or overwrites an entry. The caller holds the lock. */
void penstock_vmm_put(penstock_kind kind, uint64_t key, int grant, uint64_t bytes, uint64_t detail);

/* Adds an allocation with one handle and returns its number. An imported allocation has no size and
 * no charge until it is mapped. The caller holds the lock. */
uint64_t penstock_vmm_add(int grant, uint64_t bytes, bool imported);

/* Adds a reference to the allocation `number` under `handle`. The caller holds the lock. */
void penstock_vmm_add_handle(uint64_t handle, uint64_t number, int grant);

/* Changes an allocation's counts. If nothing holds the allocation any more, removes it and returns
 * true with the removed entry, with which penstock_vmm_gone must be called. The caller holds the
 * lock. */
bool penstock_vmm_count(uint64_t number, uint64_t add, uint64_t subtract, penstock_object *gone);

/* Add a reference to the allocation of a handle, or of the mapping that covers an address. Return
 * its number, or 0 if it is unknown. A driver call that maps or binds the memory needs such a
 * reference, because other threads can release everything else that holds the memory as soon as the
 * driver has done so. The reference counts as a mapping and ends like one. */
uint64_t penstock_vmm_refer_to_handle(uint64_t handle);
uint64_t penstock_vmm_refer_to_address(uint64_t address);

/* Ends a mapping of the allocation or a reference to it. */
void penstock_vmm_mapping_gone(uint64_t number);

bool penstock_vmm_on_device(const CUmemAllocationProp *properties);

/* Returns the grant of the memory's device, whatever context is current. Host memory is not
 * charged. */
int penstock_vmm_grant(const CUmemAllocationProp *properties);

/* Ends the charge of an allocation that nothing holds any more (see penstock_vmm_count), and
 * releases what was bound to it. */
void penstock_vmm_gone(const penstock_object *allocation);

/* Makes a descriptor another holder of the allocation `number`. */
void penstock_vmm_keep_for(uint64_t number, int descriptor);

/* Finds the mapping that covers an address. */
bool penstock_vmm_find_mapping(uint64_t address, penstock_object *mapping);

/* A place that holds memory and is not an address range: a box in a plane. A plane is a level and
 * layer of an array, or a device of a multicast object. */
typedef struct penstock_vmm_hold penstock_vmm_hold;
typedef struct penstock_vmm_place {
  uint64_t owner; /* array, or number of the multicast object's allocation */
  uint64_t plane;
  uint64_t from[3], to[3];
} penstock_vmm_place;
void penstock_vmm_hold_at(const penstock_vmm_place *place, uint64_t number);
/* Ends a driver call that should make `place` hold the allocation `number`. Returns `result`. */
CUresult penstock_vmm_bound(const penstock_vmm_place *place, uint64_t number, CUresult result);
void penstock_vmm_let_go_at(const penstock_vmm_place *place);
void penstock_vmm_let_go_all(uint64_t owner);
