#include "loading/unknown.h"

#include <stdio.h>
#include <string.h>

#include "common/log.h"
#include "loading/driver.h"
#include "process/process.h"

#define RISKY(part) part,
static const char *const risky_parts[] = {
#include "risky.def"
};

/* Returns true for another version of a hooked function, which may do more than the hook
 * handles. */
static bool is_version_of_hooked(const char *base) {
  static const char *const versions[] = {"", "_v2", "_v3", "_v4"};
  for (unsigned i = 0; i < sizeof versions / sizeof *versions; i++) {
    char name[160];
    snprintf(name, sizeof name, "%s%s", base, versions[i]);
    int index = penstock_cuda_index(name);
    if (index >= 0 && penstock_cuda_is_hooked[index]) return true;
  }
  return false;
}

/* Applies the same rule as shim/codegen/coverage.py. */
static bool looks_risky(const char *symbol) {
  bool is_query = strstr(symbol, "Get");
  for (unsigned i = 0; i < sizeof risky_parts / sizeof *risky_parts; i++) {
    if (strstr(symbol, risky_parts[i]) && (!is_query || strstr(risky_parts[i], "Get"))) return true;
  }
  return is_version_of_hooked(symbol);
}

static uint32_t flags(void) {
  const penstock_process *process = penstock_process_get();
  return process ? penstock_region_limits(&process->region)->flags : 0;
}

bool penstock_names_are_recorded(void) { return flags() & PENSTOCK_TENANT_RECORD; }

void penstock_name_count(unsigned kind, const char *symbol, penstock_asked_how how) {
  const penstock_process *process = penstock_process_get();
  if (process) penstock_asked_count(process->region.usage, kind, symbol, how);
}

bool penstock_unknown_is_let_through(const char *symbol) {
  const char *newer = penstock_cuda_index(symbol) >= 0 ? " (a newer version)" : "";
  if (!looks_risky(symbol) || (flags() & PENSTOCK_TENANT_ALLOW_UNKNOWN)) {
    penstock_name_count(PENSTOCK_ASKED_UNKNOWN, symbol, PENSTOCK_ASKED_REQUEST);
    penstock_log("cuGetProcAddress: %s%s is not known to the shim and is only forwarded", symbol,
                 newer);
    return true;
  }
  penstock_name_count(PENSTOCK_ASKED_REFUSED, symbol, PENSTOCK_ASKED_REQUEST);
  penstock_log(
      "cuGetProcAddress: %s%s is reported as not found, because the shim does not know it and it "
      "may take memory or time; use a newer release, or set `allowUnknown` in the policy",
      symbol, newer);
  return false;
}
