#include "unknown.h"

#include <string.h>

#include "driver.h"
#include "common/log.h"
#include "process.h"

static penstock_unknown_counts counts;

/* Parts of names that take device memory or device time. */
static const char *const risky_parts[] = {
    "Alloc",   "Launch",    "Graph",     "MemCreate",      "MemMap",        "Pool",
    "Array",   "CtxCreate", "CtxRetain", "Memset",         "Memcpy",        "Module",
    "Library", "Import",    "IpcOpen",   "GetProcAddress", "GetExportTable"};

static bool looks_risky(const char *symbol) {
  for (unsigned i = 0; i < sizeof risky_parts / sizeof *risky_parts; i++) {
    if (strstr(symbol, risky_parts[i])) return true;
  }
  return false;
}

static bool allowed_by_policy(void) {
  const penstock_process *process = penstock_process_get();
  return process &&
         (penstock_region_limits(&process->region)->flags & PENSTOCK_TENANT_ALLOW_UNKNOWN);
}

bool penstock_unknown_is_let_through(const char *symbol) {
  bool known_base = penstock_cuda_index(symbol) >= 0;
  if (!looks_risky(symbol) || allowed_by_policy()) {
    __atomic_fetch_add(&counts.forwarded, 1, __ATOMIC_RELAXED);
    penstock_log("cuGetProcAddress: %s%s is not known to the shim and only passed on", symbol,
                 known_base ? " (a newer version)" : "");
    return true;
  }
  __atomic_fetch_add(&counts.refused, 1, __ATOMIC_RELAXED);
  penstock_log(
      "cuGetProcAddress: %s%s may allocate or launch and is not known to the shim: not found",
      symbol, known_base ? " (a newer version)" : "");
  return false;
}

penstock_unknown_counts penstock_unknown_counted(void) { return counts; }
