/* Variables of modules and libraries: charged with the image as it declares them. What it did not
 * say is charged when the program asks for the variable. */
#pragma once

#include "charge.h"
#include "image.h"

#define PENSTOCK_CODE_MORE_BYTES 4096 /* code may grow by that as it is compiled and placed */

/* What an image is charged with: code, and variables. Managed ones share slabs with nothing. */
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

/* The largest variable that this charge covers for certain. */
static inline uint64_t penstock_image_covers(const penstock_image_size *size) {
  return size->is_hidden ? 0 : size->data_bytes + size->managed_bytes + size->code_bytes;
}

/* After the driver said where a variable of `owner` (module or library) lies: charges it, once, if
 * it is larger than what is covered. */
CUresult penstock_global_found(uint64_t owner, uint64_t covered, CUdeviceptr address,
                               uint64_t bytes);

/* Around unloading `owner`: what it has in the table, however much, is taken out before the driver
 * may give its handle to another. */
typedef struct penstock_belongings {
  uint64_t owner;
  penstock_object *all;
  uint64_t count, room;
} penstock_belongings;
/* Takes out what has the owner in `detail`; more of another kind. */
void penstock_belongings_take(penstock_belongings *belongings, penstock_kind kind);
/* Gives back what it cost, or puts it back if the driver refused. */
void penstock_belongings_left(penstock_belongings *belongings, CUresult result);
