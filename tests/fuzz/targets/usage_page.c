/* Any contents of the usage page: every operation ends, stays within the page, and grants nothing
 * above the current limit. */
#include "pages.h"

static void use(penstock_region *region, const uint8_t *data, size_t size) {
  for (size_t i = 0; i < size && i < 24; i++) {
    unsigned device = data[i] >> 7;
    uint64_t bytes = (uint64_t)(data[i] & 31) << 14;
    switch (data[i] >> 5 & 3) {
      case 0:
        penstock_ledger_release(region, device, bytes);
        break;
      case 1:
        penstock_reap_all(region->usage, region->quota);
        break;
      default: {
        penstock_error error = penstock_ledger_reserve(region, device, bytes);
        NEED(error <= PENSTOCK_E_OVER_LIMIT);
        if (error == PENSTOCK_OK && bytes) NEED(penstock_ledger_total(region, device) <= MIB);
      }
    }
    NEED(penstock_slot_owned(region) < PENSTOCK_MAX_SLOTS);
  }
  for (unsigned slot = 0; slot < PENSTOCK_MAX_SLOTS; slot++) {
    penstock_ledger_charged(region, 0, slot);
  }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  if (!quota_fd) make_pages();
  restore_pages();
  size_t acts = size < 24 ? size : 24;
  spoil(usage_fd, sizeof(penstock_usage_page), data + acts, size - acts);
  penstock_region region;
  if (penstock_region_open(&region, directory) != PENSTOCK_OK) return 0;
  use(&region, data, acts);
  penstock_region_close(&region);
  return 0;
}
