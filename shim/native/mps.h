/* NVIDIA's Multi-Process Service. Contexts of its clients share the device at the same time, so a
 * bracket of one client measures time in which others worked, too: a share of device time has no
 * meaning there (ADR 37). Memory quotas hold as ever.
 */
#pragma once

#include <cuda.h>

#include "process.h"

/* After cuInit: CUDA_ERROR_NOT_SUPPORTED when this process is a client on a device of which the
 * tenant has less than all time; the log says what to do. */
CUresult penstock_mps_admit(const penstock_process *process);
