/* Detection of NVIDIA's Multi-Process Service (MPS). The contexts of MPS clients run on the device
 * at the same time, so a measurement of one client includes work of the others. A share of device
 * time therefore cannot be enforced under MPS (ADR 37). Memory quotas are not affected. */
#pragma once

#include <cuda.h>

#include "process/process.h"

/* Call after cuInit. Returns CUDA_ERROR_NOT_SUPPORTED if this process is an MPS client on a device
 * of which the tenant was granted less than the whole time. The log says what to do. */
CUresult penstock_mps_admit(const penstock_process *process);
