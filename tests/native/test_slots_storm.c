/* builds: plain */
#include <unistd.h>

#include "harness.h"
#include "tenant.h"

#define CLAIMS 100000

TEST(a_hundred_thousand_claims_by_fork_without_exec_leak_neither_slots_nor_charges) {
  penstock_region region = tenant_open("t", 1, 64 * MIB);
  for (int i = 0; i < CLAIMS; i += 2) {
    pid_t children[2];
    for (int c = 0; c < 2; c++) {
      children[c] = fork();
      if (children[c] == 0) {
        _exit(penstock_ledger_reserve(&region, 0, 512) == PENSTOCK_OK ? 0 : 1);
      }
    }
    for (int c = 0; c < 2; c++) wait_for(children[c]);
  }
  /* Every claim looks for the dead, so what is left is a handful, however many came. */
  CHECK(region.usage->slots_high <= 16);
  CHECK(penstock_ledger_total(&region, 0) <= 16 * 512);
  penstock_reap_all(region.usage, region.quota);
  tenant_check_empty(&region);
  CHECK_EQUAL(tenant_slots_in_use(&region), 0);
}
