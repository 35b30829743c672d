/* Freeing memory of a pool: shared by cuMemFree and cuMemFreeAsync. */
#pragma once

#include "charge.h"

CUresult penstock_pool_free_end(const penstock_freeing *freeing, CUresult result);
