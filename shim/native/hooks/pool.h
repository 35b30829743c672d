/* Freeing memory of a pool: shared by cuMemFree and cuMemFreeAsync. */
#pragma once

#include "charge.h"
#include "reserve.h"

/* `stream`: its id, which the memory is free in at once; PENSTOCK_NO_STREAM when that is not so. */
/* Takes a pointer of a pool, this process's or an imported one, out of the table. */
penstock_freeing penstock_pool_free_begin(CUdeviceptr pointer);

CUresult penstock_pool_free_end(const penstock_freeing *freeing, uint64_t stream, CUresult result);

/* A name for the stream that no other ever has; PENSTOCK_NO_STREAM from drivers before CUDA 12. */
uint64_t penstock_pool_stream_id(CUstream stream, bool per_thread);
