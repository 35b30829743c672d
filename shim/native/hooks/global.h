/* Variables of modules and libraries. Those that an image declares are charged with the image, and
 * the others when the program looks them up. */
#pragma once

#include "memory/charge.h"
#include "images/image.h"

#define PENSTOCK_CODE_MORE_BYTES 4096 /* most that compiling and placing code may add */

/* Charges of an image for its code and for its variables. Managed variables do not share slabs. */
static inline uint64_t penstock_code_charge(const penstock_image_size *size) {
  uint64_t code = size->code_bytes;
  if (code && code <= PENSTOCK_SMALL_BYTES - PENSTOCK_CODE_MORE_BYTES) {
    code += PENSTOCK_CODE_MORE_BYTES;
  }
  return penstock_whole_slabs(code);
}

static inline uint64_t penstock_data_charge(const penstock_image_size *size) {
  uint64_t managed = size->managed_bytes, all;
  if (managed && managed <= PENSTOCK_SMALL_BYTES) managed = PENSTOCK_SLAB_BYTES;
  managed = penstock_whole_slabs(managed);
  return __builtin_add_overflow(penstock_whole_slabs(size->data_bytes), managed, &all) ? UINT64_MAX
                                                                                       : all;
}

static inline uint64_t penstock_image_charge(const penstock_image_size *size) {
  uint64_t all;
  return __builtin_add_overflow(penstock_code_charge(size), penstock_data_charge(size), &all)
             ? UINT64_MAX
             : all;
}

/* Returns the size of the largest variable that this charge certainly covers. */
static inline uint64_t penstock_image_covers(const penstock_image_size *size) {
  return size->is_hidden ? 0 : size->data_bytes + size->managed_bytes + size->code_bytes;
}

/* Charges a variable of `owner` (a module or library) once, if it is larger than `covered`; call
 * after the driver returned the variable's address. */
CUresult penstock_global_found(uint64_t owner, uint64_t covered, CUdeviceptr address,
                               uint64_t bytes);

/* Entries of `owner` while it is unloaded. All of them are removed from the table before the driver
 * can reuse the owner's handle. */
typedef struct penstock_belongings {
  uint64_t owner;
  penstock_object *all;
  uint64_t count, room;
} penstock_belongings;
/* Removes the entries of one kind whose `detail` is the owner; call once for each kind. */
void penstock_belongings_take(penstock_belongings *belongings, penstock_kind kind);
/* Uncharges the entries, or restores them if the driver refused. */
void penstock_belongings_left(penstock_belongings *belongings, CUresult result);
