/* What every hook begins with. */
#pragma once

#include "driver.h"
#include "process.h"

/* A call from inside the driver, or from the shim itself: passed on, nothing else. */
#define PENSTOCK_PASS(function, ...) \
  if (penstock_depth) return REAL(function)(__VA_ARGS__)

/* A driver call by the shim: what comes back through the shim meanwhile is passed on. */
#define PENSTOCK_BELOW(call)          \
  ({                                  \
    penstock_depth++;                 \
    __typeof__(call) below_ = (call); \
    penstock_depth--;                 \
    below_;                           \
  })
