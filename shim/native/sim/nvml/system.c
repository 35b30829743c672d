/* Functions that concern no device: versions, error texts and process names. */
#include <cuda.h>
#include <stdio.h>
#include <string.h>

#include "state.h"

/* A program that has loaded the library can tell by this symbol that the figures are simulated. */
EXPORT const int penstock_sim_nvml = 1;

EXPORT nvmlReturn_t nvmlSystemGetDriverVersion(char *version, unsigned length) {
  CHECK_INITIALISED(version);
  char text[16];
  sim_device_info info;
  sim_machine_device(sim_nvml_machine(), 0, &info);
  snprintf(text, sizeof text, "%u.00", info.profile.driver_major);
  return sim_nvml_text(text, version, length);
}

EXPORT nvmlReturn_t nvmlSystemGetNVMLVersion(char *version, unsigned length) {
  return sim_nvml_text(SIM_NVML_VERSION, version, length); /* also works before initialisation */
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion(int *version) {
  if (!version) return NVML_ERROR_INVALID_ARGUMENT;
  *version = CUDA_VERSION;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlSystemGetCudaDriverVersion_v2(int *version) {
  return nvmlSystemGetCudaDriverVersion(version);
}

/* Returns the program's first argument, as the real library does. */
EXPORT nvmlReturn_t nvmlSystemGetProcessName(unsigned pid, char *name, unsigned length) {
  CHECK_INITIALISED(name);
  if (!length) return NVML_ERROR_INVALID_ARGUMENT;
  char path[64];
  snprintf(path, sizeof path, "/proc/%u/cmdline", pid);
  FILE *file = fopen(path, "re");
  if (!file) return NVML_ERROR_NOT_FOUND;
  char text[4096];
  size_t size = fread(text, 1, sizeof text - 1, file);
  fclose(file);
  text[size] = '\0';
  if (!size) return NVML_ERROR_NOT_FOUND;
  return sim_nvml_text(text, name, length);
}

static const struct {
  nvmlReturn_t code;
  const char *text;
} errors[] = {
    {NVML_SUCCESS, "Success"},
    {NVML_ERROR_UNINITIALIZED, "Uninitialized"},
    {NVML_ERROR_INVALID_ARGUMENT, "Invalid Argument"},
    {NVML_ERROR_NOT_SUPPORTED, "Not Supported"},
    {NVML_ERROR_NO_PERMISSION, "Insufficient Permissions"},
    {NVML_ERROR_ALREADY_INITIALIZED, "Already Initialized"},
    {NVML_ERROR_NOT_FOUND, "Not Found"},
    {NVML_ERROR_INSUFFICIENT_SIZE, "Insufficient Size"},
    {NVML_ERROR_INSUFFICIENT_POWER, "Insufficient External Power"},
    {NVML_ERROR_DRIVER_NOT_LOADED, "Driver Not Loaded"},
    {NVML_ERROR_TIMEOUT, "Timeout"},
    {NVML_ERROR_IRQ_ISSUE, "Interrupt Request Issue"},
    {NVML_ERROR_LIBRARY_NOT_FOUND, "NVML Shared Library Not Found"},
    {NVML_ERROR_FUNCTION_NOT_FOUND, "Function Not Found"},
    {NVML_ERROR_CORRUPTED_INFOROM, "Corrupted infoROM"},
    {NVML_ERROR_GPU_IS_LOST, "GPU is lost"},
    {NVML_ERROR_RESET_REQUIRED, "GPU requires reset"},
    {NVML_ERROR_OPERATING_SYSTEM, "Operating System Error"},
    {NVML_ERROR_LIB_RM_VERSION_MISMATCH, "Driver/library version mismatch"},
    {NVML_ERROR_IN_USE, "In use by another client"},
    {NVML_ERROR_MEMORY, "Insufficient Memory"},
    {NVML_ERROR_NO_DATA, "No data"},
    {NVML_ERROR_INSUFFICIENT_RESOURCES, "Insufficient Resources"},
    {NVML_ERROR_ARGUMENT_VERSION_MISMATCH, "Argument version mismatch"},
    {NVML_ERROR_DEPRECATED, "Deprecated"},
    {NVML_ERROR_NOT_READY, "Not ready"},
    {NVML_ERROR_GPU_NOT_FOUND, "No GPUs found"},
    {NVML_ERROR_INVALID_STATE, "Invalid state"},
};

EXPORT const char *nvmlErrorString(nvmlReturn_t result) {
  for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
    if (errors[i].code == result) return errors[i].text;
  }
  return "Unknown Error";
}
