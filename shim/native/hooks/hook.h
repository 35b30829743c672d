/* Includes that every hook needs. The driver is linked with -Bsymbolic, so it never calls its own
 * exports through the loader. A call that arrives in a hook is therefore always the program's, even
 * if it comes from a callback that the driver runs inside another call. */
#pragma once

#include "devices/grants.h"
#include "loading/driver.h"
#include "process/process.h"
