/* What the parts of virtual memory management share. See vmm_state.c. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "objects.h"

/* `detail` of a handle or a mapping: the allocation's number. `detail` of an allocation: */
#define PENSTOCK_VMM_HANDLES(count) ((uint64_t)(count))
#define PENSTOCK_VMM_MAPPINGS(count) ((uint64_t)(count) << 32)

typedef struct penstock_vmm_state {
  uint32_t lock;        /* makes changes of a handle or mapping and its allocation one */
  uint64_t last_number; /* also tells apart what follows each other at one address or handle */
  struct penstock_vmm_hold *holds; /* of arrays and multicast objects */
} penstock_vmm_state;
penstock_vmm_state *penstock_vmm_state_get(void);

/* False without memory: nothing is known then, and nothing given back. Not held across driver
 * calls. Functions marked (locked) expect it. */
bool penstock_vmm_lock(void);
void penstock_vmm_unlock(void);

/* (locked) */
void penstock_vmm_put(penstock_kind kind, uint64_t key, int grant, uint64_t bytes, uint64_t detail);

/* A new allocation with one handle; its number. Imported ones have no size, and no charge, before
 * they are mapped. (locked) */
uint64_t penstock_vmm_add(int grant, uint64_t bytes, bool imported);

/* Another reference to the allocation `number` under `handle`. (locked) */
void penstock_vmm_add_handle(uint64_t handle, uint64_t number, int grant);

/* Changes an allocation's counts. When nothing holds it any more it is taken out, and true is
 * returned with what it was: the charge is to be given back. (locked) */
bool penstock_vmm_count(uint64_t number, uint64_t add, uint64_t subtract, penstock_object *gone);

/* One more reference to the allocation of a handle, or of the mapping that covers an address: its
 * number; 0: none is known. Around a driver call that makes it last, for another thread may give up
 * everything else that holds the memory as soon as the driver has done its part. Becomes a
 * mapping's or ends as one does. */
uint64_t penstock_vmm_refer_to_handle(uint64_t handle);
uint64_t penstock_vmm_refer_to_address(uint64_t address);

/* One mapping of the allocation, or such a reference, is no more. */
void penstock_vmm_mapping_gone(uint64_t number);

bool penstock_vmm_on_device(const CUmemAllocationProp *properties);

/* By its location, whatever context is current. Host memory is free of charge. */
int penstock_vmm_grant(const CUmemAllocationProp *properties);

/* Nothing holds the allocation any more (as penstock_vmm_count said): its charge goes back, and so
 * does what was bound to it. */
void penstock_vmm_gone(const penstock_object *allocation);

/* A descriptor keeps the allocation `number`, beside what else holds it. */
void penstock_vmm_keep_for(uint64_t number, int descriptor);

/* The mapping that covers an address. */
bool penstock_vmm_find_mapping(uint64_t address, penstock_object *mapping);

/* Where something that is not an address range holds memory: a box in a plane (array: level and
 * layer; multicast object: device). */
typedef struct penstock_vmm_hold penstock_vmm_hold;
typedef struct penstock_vmm_place {
  uint64_t owner; /* array, or number of the multicast object's allocation */
  uint64_t plane;
  uint64_t from[3], to[3];
} penstock_vmm_place;
void penstock_vmm_hold_at(const penstock_vmm_place *place, uint64_t number);
/* After a call that was to make `place` hold what `number` refers to. Returns `result`. */
CUresult penstock_vmm_bound(const penstock_vmm_place *place, uint64_t number, CUresult result);
void penstock_vmm_let_go_at(const penstock_vmm_place *place);
void penstock_vmm_let_go_all(uint64_t owner);
