/* This process's part in the tenant's shares (mechanism/share.h). Memory that is exported to other
 * processes is charged once, and a process that imports it from its own tenant is not charged
 * again.
 *
 * Imported memory that is in no share comes from another tenant, from outside, or from a process
 * that found no free slot for a share. In these cases the importer is charged. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "memory/objects.h"

/* Returns a hash of a handle's bytes, which is never 0. */
uint64_t penstock_shares_key(const void *handle, uint64_t bytes);

/* Moves the object's charge into a share with this key, unless the object is in a share or costs
 * nothing. A block in a slab costs nothing here, because the process that allocated it stays
 * charged for the slab. */
void penstock_shares_make(penstock_object *object, uint64_t key);

/* Moves the charge of an object that was exported as a shareable handle into a share, which
 * importers find by that handle. Memory that a file descriptor keeps stays charged until every copy
 * of the descriptor is closed, even after the object is freed and after this process has ended. */
void penstock_shares_hand_out(penstock_object *object, const void *shareable,
                              CUmemAllocationHandleType type);

/* Moves the charge of an object into a share for a descriptor that keeps the memory and is never
 * imported. */
void penstock_shares_keep_for(penstock_object *object, int descriptor);

/* Charges `bytes` of memory that has no object of its own and that a descriptor keeps, until the
 * descriptor is closed. Returns false if the quota has no room. */
bool penstock_shares_charge_for(int grant, uint64_t bytes, int descriptor);

/* Lets importers find the share of an exported pool by its handle. */
void penstock_shares_hand_out_pool(uint64_t share, const void *shareable,
                                   CUmemAllocationHandleType type);

/* Makes a share without a charge. Returns 0 if no slot is free. */
uint64_t penstock_shares_make_empty(int grant);

/* Joins the share with this key. Returns 0 if no process of this tenant exported memory with this
 * key. */
uint64_t penstock_shares_join(uint64_t key);

/* Joins the share of a handle that is being imported. Returns 0 if there is none. */
uint64_t penstock_shares_join_handle(const void *shareable, CUmemAllocationHandleType type);

/* Returns the bytes that the share is charged on a device. */
uint64_t penstock_shares_bytes(uint64_t share, int grant);

/* Return true if another living process holds the share; penstock_shares_is_held_elsewhere also
 * counts open descriptors. */
bool penstock_shares_has_other_holder(uint64_t share, int grant);
bool penstock_shares_is_held_elsewhere(uint64_t share, int grant);

/* Keeps the charge of a freed object while an open descriptor keeps its memory. Returns false if no
 * descriptor does. */
bool penstock_shares_keep_open(const penstock_object *object);

/* Uncharges memory that only descriptors kept and whose descriptors are all closed now. Returns
 * true if there was any. Cheap when there are no such descriptors. */
bool penstock_shares_look_after(void);

/* Add a holder to a share that this process has joined, or remove one. */
void penstock_shares_hold(uint64_t share);
void penstock_shares_drop(uint64_t share);
