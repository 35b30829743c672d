#define _GNU_SOURCE /* for secure_getenv */
#include "devices/mps.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include "common/log.h"
#include "devices/grants.h"
#include "loading/driver.h"

#define WHOLE_PERMILLE 1000

/* Returns true if a control daemon has its pipe where the driver looks for it. */
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

/* Returns true if this process is an MPS client on the device. Drivers before CUDA 12.2 do not have
 * the attribute, so with them the control daemon's pipe decides. */
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
        "enforced there, so cuInit is refused; end MPS, set CUDA_MPS_PIPE_DIRECTORY to an empty "
        "directory, or grant all of the device's time",
        device, limits->devices[grant].cores_permille);
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  return CUDA_SUCCESS;
}
