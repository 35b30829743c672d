/* Variables of modules and libraries: charged with the image as it declares them. What it did not
 * say is charged when the program asks for the variable. */
#pragma once

#include "charge.h"
#include "image.h"

#define PENSTOCK_CODE_MORE_BYTES 4096 /* code may grow by that as it is compiled and placed */

/* What an image is charged with: code and data are one piece each. */
static inline uint64_t penstock_image_charge(penstock_image_size size) {
  uint64_t code = size.code_bytes;
  if (code && code <= PENSTOCK_SMALL_BYTES - PENSTOCK_CODE_MORE_BYTES) {
    code += PENSTOCK_CODE_MORE_BYTES;
  }
  code = penstock_whole_slabs(code);
  uint64_t data = penstock_whole_slabs(size.data_bytes), all;
  return __builtin_add_overflow(code, data, &all) ? UINT64_MAX : all;
}

/* The largest variable that this charge covers for certain. */
static inline uint64_t penstock_image_covers(penstock_image_size size) {
  return size.is_hidden ? 0 : size.data_bytes + size.code_bytes;
}

/* After the driver said where a variable of `owner` (module or library) lies: charges it, once, if
 * it is larger than what is covered. */
CUresult penstock_global_found(uint64_t owner, uint64_t covered, CUdeviceptr address,
                               uint64_t bytes);

/* Around unloading `owner`. */
typedef struct penstock_globals {
  uint64_t owner;
  penstock_object *all;
  uint64_t count, room;
} penstock_globals;
penstock_globals penstock_globals_leave(uint64_t owner);
void penstock_globals_left(penstock_globals *globals, CUresult result);
