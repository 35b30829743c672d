/* This process's part in the tenant's shares (mechanism/share.h): what is handed to other processes
 * is charged once, and who opens what another process of the tenant handed out does not pay again.
 *
 * What is opened and is in no share comes from another tenant, from outside, or from a process that
 * found no slot for a share: then the opener pays. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "objects.h"

/* A name for a handle's bytes; never 0. */
uint64_t penstock_shares_key(const void *handle, uint64_t bytes);

/* Moves the object's charge into a share known as `key`, unless it lies in one or costs nothing. A
 * block of a slab is shared free of charge: its slab stays with who made it. */
void penstock_shares_make(penstock_object *object, uint64_t key);

/* The object's memory was handed out as a handle of the driver's: its charge moves into a share
 * that importers find by that handle. What a descriptor holds stays charged until it is closed,
 * wherever it goes, also when the object is given back and when this process ends. */
void penstock_shares_hand_out(penstock_object *object, const void *shareable,
                              CUmemAllocationHandleType type);

/* The same for a descriptor that keeps the memory and that nobody imports. */
void penstock_shares_keep_for(penstock_object *object, int descriptor);

/* A descriptor keeps `bytes` of memory whose charge cannot be told from others': it is charged for
 * itself until it is closed. False: the quota has no room for that. */
bool penstock_shares_charge_for(int grant, uint64_t bytes, int descriptor);

/* From now on a share that this process made is found by that handle. */
void penstock_shares_hand_out_pool(uint64_t share, const void *shareable,
                                   CUmemAllocationHandleType type);

/* A share for what is yet to be charged; 0 when there is none to be had. */
uint64_t penstock_shares_make_empty(int grant);

/* Takes part in the share known as `key`. 0: nobody of this tenant handed that out. */
uint64_t penstock_shares_join(uint64_t key);

/* The same for a handle as an import takes it. */
uint64_t penstock_shares_join_handle(const void *shareable, CUmemAllocationHandleType type);

/* What the share is charged on a device. */
uint64_t penstock_shares_bytes(uint64_t share, int grant);

/* Whether it is held by another process that lives; by such a one or an open descriptor. */
bool penstock_shares_has_other_holder(uint64_t share, int grant);
bool penstock_shares_is_held_elsewhere(uint64_t share, int grant);

/* An object that is given back while a descriptor of its own keeps its memory stays charged until
 * that is closed. False: none does. */
bool penstock_shares_linger(const penstock_object *object);

/* Gives back what only descriptors held that are closed now, in shares and out of them. True if
 * something came back. Cheap when there are none. */
bool penstock_shares_look_after(void);

/* One more part in a share that this process takes part in; one less. */
void penstock_shares_hold(uint64_t share);
void penstock_shares_drop(uint64_t share);
