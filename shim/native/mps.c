#define _GNU_SOURCE /* secure_getenv */
#include "mps.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "common/log.h"
#include "driver.h"

#define WHOLE_PERMILLE 1000

/* What the driver looks for: the pipe of a control daemon. */
static bool has_control_pipe(void) {
  const char *directory = secure_getenv("CUDA_MPS_PIPE_DIRECTORY");
  char path[PATH_MAX];
  struct stat pipe;
  int saved_errno = errno;
  int length = snprintf(path, sizeof path, "%s/control",
                        directory && *directory ? directory : "/tmp/nvidia-mps");
  bool found = length < (int)sizeof path && stat(path, &pipe) == 0 &&
               (S_ISFIFO(pipe.st_mode) || S_ISSOCK(pipe.st_mode));
  errno = saved_errno;
  return found;
}

/* Drivers before CUDA 12.2 do not know the attribute. */
static bool is_client(CUdevice device) {
  int enabled = 0;
  if (REAL(cuDeviceGetAttribute)(&enabled, CU_DEVICE_ATTRIBUTE_MPS_ENABLED, device) ==
      CUDA_SUCCESS) {
    return enabled != 0;
  }
  return has_control_pipe();
}

CUresult penstock_mps_admit(const penstock_process *process) {
  const penstock_limits *limits = penstock_region_limits(&process->region);
  int count = 0;
  if (REAL(cuDeviceGetCount)(&count) != CUDA_SUCCESS) return CUDA_SUCCESS;
  for (CUdevice device = 0; device < count; device++) {
    int grant = penstock_grant_of(device);
    if (grant < 0 || limits->devices[grant].cores_permille >= WHOLE_PERMILLE) continue;
    if (!is_client(device)) continue;
    penstock_log(
        "CUDA device %d is shared through MPS: a share of its time (%u of 1000 granted) cannot be "
        "held there, cuInit is refused; end MPS, name an empty directory in "
        "CUDA_MPS_PIPE_DIRECTORY, or grant all of its time",
        device, limits->devices[grant].cores_permille);
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  return CUDA_SUCCESS;
}
