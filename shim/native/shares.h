/* This process's part in the tenant's shares (mechanism/share.h): what is handed to other processes
 * is charged once, and who opens what another process of the tenant handed out does not pay again.
 *
 * What is opened and is in no share comes from another tenant, from outside, or from a process
 * whose share no name could be found for: then the opener pays. */
#pragma once

#include <stdint.h>

#include "objects.h"

/* A name for a handle's bytes; never 0. */
uint64_t penstock_shares_key(const void *handle, uint64_t bytes);

/* A name for an open file. 0 when the file does not tell: a device's node stands for many files. */
uint64_t penstock_shares_key_of_file(int descriptor);

/* The same for a shareable handle as an export gives it, and as an import takes it. */
uint64_t penstock_shares_key_of_handle(const void *shareable, CUmemAllocationHandleType type);
uint64_t penstock_shares_key_of_import(const void *shareable, CUmemAllocationHandleType type);

/* Moves the object's charge into a share known as `key`, unless it lies in one or costs nothing. A
 * block of a slab is shared free of charge: its slab stays with who made it. */
void penstock_shares_make(penstock_object *object, uint64_t key);

/* A share for what is yet to be charged; 0 when there is none to be had. */
uint64_t penstock_shares_make_empty(int grant);

/* From now on a share that this process made is known as `key`. */
void penstock_shares_rename(uint64_t share, uint64_t key);

/* Takes part in the share known as `key`. 0: nobody of this tenant handed that out. */
uint64_t penstock_shares_join(uint64_t key);

/* One more part in a share that this process takes part in; one less. */
void penstock_shares_hold(uint64_t share);
void penstock_shares_drop(uint64_t share);
