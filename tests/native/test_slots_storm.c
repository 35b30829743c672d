/* builds: plain */
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "harness.h"
#include "tenant.h"

/* `make soak` asks for a million. */
static int claims(void) {
  const char *asked = getenv("PENSTOCK_SOAK_CLAIMS");
  return asked ? atoi(asked) : 20000;
}

TEST(claims_by_fork_without_exec_leak_neither_slots_nor_charges) {
  uint64_t began_ns = monotonic_ns();
  int wanted = claims();
  penstock_region region = tenant_open("t", 1, 64 * MIB);
  for (int i = 0; i < wanted; i += 2) {
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
  for (int i = 1; i < PENSTOCK_MAX_PID_NAMESPACES; i++) {
    CHECK_EQUAL(region.usage->pid_namespaces[i], 0);
  }
  if (getenv("PENSTOCK_SOAK_CLAIMS")) {
    printf("%d claims in %.0f s; slots ever used: %d; charged at the end, before reaping: %lu B\n",
           wanted, (double)(monotonic_ns() - began_ns) / 1e9, (int)region.usage->slots_high,
           (unsigned long)penstock_ledger_total(&region, 0));
  }
  penstock_reap_all(region.usage, region.quota);
  tenant_check_empty(&region);
  CHECK_EQUAL(tenant_slots_in_use(&region), 0);
}
