/* Freeing of a pool's memory, for cuMemFree and cuMemFreeAsync. */
#pragma once

#include "memory/charge.h"
#include "memory/reserve.h"

/* Removes a pointer of a pool from the table, whether the pool is this process's own or
 * imported. */
penstock_freeing penstock_pool_free_begin(CUdeviceptr pointer);

/* Ends a free. `stream` is the id of the stream in which the memory is free at once,
 * PENSTOCK_NO_STREAM if there is none. */
CUresult penstock_pool_free_end(const penstock_freeing *freeing, uint64_t stream, CUresult result);

/* Returns a unique id of the stream, or PENSTOCK_NO_STREAM with drivers before CUDA 12. */
uint64_t penstock_pool_stream_id(CUstream stream, bool per_thread);
