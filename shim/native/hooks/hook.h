/* What every hook needs. The driver never calls back through its exports (it is linked with
 * -Bsymbolic), so a call that arrives here is the program's, wherever it comes from: also out of a
 * callback that the driver runs inside another call. */
#pragma once

#include "driver.h"
#include "process.h"
