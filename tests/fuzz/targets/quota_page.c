/* Any contents of the quota page: it is refused, or all values read from it are within bounds and
 * no more than its limit is reserved. */
#include "pages.h"

static void use(penstock_region *region) {
  unsigned count = penstock_region_device_count(region);
  NEED(count <= PENSTOCK_MAX_DEVICES);
  NEED(strnlen(region->quota->driver_path, sizeof region->quota->driver_path) <
       sizeof region->quota->driver_path);
  for (unsigned device = 0; device < PENSTOCK_MAX_DEVICES; device++) {
    penstock_device_limit limit;
    NEED(penstock_region_device_limit(region, device, &limit) == (device < count));
    uint64_t bytes = penstock_ledger_limit(region, device);
    NEED(device < count || bytes == 0);
    penstock_error error = penstock_ledger_reserve(region, device, bytes / 2 + 512);
    NEED(error != PENSTOCK_OK || penstock_ledger_total(region, device) <= bytes);
    penstock_ledger_reserve(region, device, bytes);
    NEED(penstock_ledger_total(region, device) <= bytes);
  }
  penstock_reap_all(region->usage, region->quota);
  penstock_slot_release(region);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (!quota_fd) make_pages();
  restore_pages();
  spoil(quota_fd, sizeof sound_quota, data, size);
  penstock_region region;
  penstock_error error = penstock_region_open(&region, directory);
  NEED(error <= PENSTOCK_E_OVER_LIMIT && penstock_error_text(error));
  if (error == PENSTOCK_OK) {
    struct stat file;
    NEED(!fstat(quota_fd, &file) && file.st_size >= (off_t)sizeof sound_quota);
    use(&region);
    penstock_region_close(&region);
  }
  return 0;
}
