/* The devices of the machine: counts, handles, names and addresses. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "state.h"

EXPORT nvmlReturn_t nvmlDeviceGetCount_v2(unsigned *count) {
  CHECK_INITIALISED(count);
  *count = sim_nvml_device_count();
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCount(unsigned *count) { return nvmlDeviceGetCount_v2(count); }

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex_v2(unsigned index, nvmlDevice_t *device) {
  CHECK_INITIALISED(device);
  if (index >= sim_nvml_device_count()) return NVML_ERROR_INVALID_ARGUMENT;
  *device = sim_nvml_device(index);
  return sim_nvml_check(*device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByIndex(unsigned index, nvmlDevice_t *device) {
  return nvmlDeviceGetHandleByIndex_v2(index, device);
}

/* Formats a device's UUID. The UUID of a MIG instance differs from its device's in the last
 * byte. */
void sim_nvml_uuid_text(nvmlDevice_t device, char *text) {
  const uint8_t *b = device->info.uuid;
  snprintf(text, UUID_TEXT_BYTES,
           "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
           device->instance ? "MIG" : "GPU", b[0], b[1], b[2], b[3], b[4], b[5], b[6], b[7], b[8],
           b[9], b[10], b[11], b[12], b[13], b[14], (b[15] ^ device->instance) & 0xff);
}

static bool is_called(nvmlDevice_t device, const char *uuid) {
  char text[UUID_TEXT_BYTES];
  sim_nvml_uuid_text(device, text);
  return strcasecmp(text, uuid) == 0;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUID(const char *uuid, nvmlDevice_t *device) {
  CHECK_INITIALISED(device);
  if (!uuid) return NVML_ERROR_INVALID_ARGUMENT;
  for (unsigned i = 0; i < sim_nvml_device_count(); i++) {
    for (unsigned k = 0; k <= SIM_MIG_INSTANCES; k++) {
      nvmlDevice_t one = k ? sim_nvml_instance(i, k) : sim_nvml_device(i);
      if (!is_called(one, uuid)) continue;
      *device = one;
      return sim_nvml_check_any(one, NULL);
    }
  }
  return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByUUIDV(const nvmlUUID_t *uuid, nvmlDevice_t *device) {
  CHECK_INITIALISED(device);
  if (!uuid) return NVML_ERROR_INVALID_ARGUMENT;
  if (uuid->version != nvmlUUID_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  if (uuid->type == NVML_UUID_TYPE_ASCII) return nvmlDeviceGetHandleByUUID(uuid->value.str, device);
  if (uuid->type != NVML_UUID_TYPE_BINARY) return NVML_ERROR_INVALID_ARGUMENT;
  struct nvmlDevice_st named = {0};
  memcpy(named.info.uuid, uuid->value.bytes, sizeof named.info.uuid);
  char text[UUID_TEXT_BYTES];
  sim_nvml_uuid_text(&named, text);
  return nvmlDeviceGetHandleByUUID(text, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, nvmlDevice_t *device) {
  CHECK_INITIALISED(device);
  unsigned domain = 0, bus, number, function = 0;
  if (!bus_id) return NVML_ERROR_INVALID_ARGUMENT;
  if (sscanf(bus_id, "%x:%x:%x.%x", &domain, &bus, &number, &function) < 3) {
    domain = 0;
    if (sscanf(bus_id, "%x:%x.%x", &bus, &number, &function) < 2)
      return NVML_ERROR_INVALID_ARGUMENT;
  }
  for (unsigned i = 0; i < sim_nvml_device_count(); i++) {
    const sim_profile *profile = &sim_nvml_device(i)->info.profile;
    if (profile->pci_domain == domain && profile->pci_bus == bus && profile->pci_device == number &&
        function == 0) {
      *device = sim_nvml_device(i);
      return sim_nvml_check(*device);
    }
  }
  return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleByPciBusId(const char *bus_id, nvmlDevice_t *device) {
  return nvmlDeviceGetHandleByPciBusId_v2(bus_id, device);
}

EXPORT nvmlReturn_t nvmlDeviceGetName(nvmlDevice_t device, char *name, unsigned length) {
  sim_device_info now;
  nvmlReturn_t result = sim_nvml_check_any(device, &now);
  if (result != NVML_SUCCESS) return result;
  if (!device->instance) return sim_nvml_text(now.profile.name, name, length);
  char text[SIM_NAME_BYTES + SIM_MIG_NAME_BYTES + 8];
  snprintf(text, sizeof text, "%s MIG %s", now.profile.name, now.mig[device->instance - 1].profile);
  return sim_nvml_text(text, name, length);
}

EXPORT nvmlReturn_t nvmlDeviceGetBrand(nvmlDevice_t device, nvmlBrandType_t *brand) {
  CHECK_DEVICE(device, brand);
  *brand = strncmp(device->info.profile.name, "Tesla", 5) ? NVML_BRAND_NVIDIA : NVML_BRAND_TESLA;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetUUID(nvmlDevice_t device, char *uuid, unsigned length) {
  nvmlReturn_t result = sim_nvml_check_any(device, NULL);
  if (result != NVML_SUCCESS) return result;
  char text[UUID_TEXT_BYTES];
  sim_nvml_uuid_text(device, text);
  return sim_nvml_text(text, uuid, length);
}

/* Makes a serial number of thirteen digits, as on real boards. */
static void serial_text(const uint8_t *uuid, char *text) {
  uint64_t number;
  memcpy(&number, uuid, sizeof number);
  snprintf(text, NVML_DEVICE_SERIAL_BUFFER_SIZE, "%013llu",
           (unsigned long long)(number % 10000000000000u));
}

EXPORT nvmlReturn_t nvmlDeviceGetSerial(nvmlDevice_t device, char *serial, unsigned length) {
  CHECK_DEVICE(device, serial);
  char text[NVML_DEVICE_SERIAL_BUFFER_SIZE];
  serial_text(device->info.uuid, text);
  return sim_nvml_text(text, serial, length);
}

EXPORT nvmlReturn_t nvmlDeviceGetHandleBySerial(const char *serial, nvmlDevice_t *device) {
  CHECK_INITIALISED(device);
  if (!serial) return NVML_ERROR_INVALID_ARGUMENT;
  for (unsigned i = 0; i < sim_nvml_device_count(); i++) {
    char text[NVML_DEVICE_SERIAL_BUFFER_SIZE];
    serial_text(sim_nvml_device(i)->info.uuid, text);
    if (strcmp(text, serial) == 0) {
      *device = sim_nvml_device(i);
      return sim_nvml_check(*device);
    }
  }
  return NVML_ERROR_NOT_FOUND;
}

EXPORT nvmlReturn_t nvmlDeviceGetIndex(nvmlDevice_t device, unsigned *index) {
  CHECK_DEVICE(device, index);
  *index = device->index;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetMinorNumber(nvmlDevice_t device, unsigned *minor) {
  CHECK_DEVICE(device, minor);
  *minor = device->index;
  return NVML_SUCCESS;
}

/* Returns the vendor's PCI device number of a board for which there is a profile, 0 for others. */
static uint32_t pci_device_number(const char *name) {
  static const struct {
    const char *name;
    uint32_t number;
  } boards[] = {{"NVIDIA H200", 0x2335},
                {"NVIDIA H100 80GB HBM3", 0x2330},
                {"NVIDIA A100-SXM4-80GB", 0x20b2},
                {"NVIDIA L4", 0x27b8},
                {"Tesla T4", 0x1eb8}};
  for (size_t i = 0; i < sizeof boards / sizeof *boards; i++) {
    if (strcmp(boards[i].name, name) == 0) return boards[i].number;
  }
  return 0;
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v3(nvmlDevice_t device, nvmlPciInfo_t *pci) {
  CHECK_DEVICE(device, pci);
  const sim_profile *profile = &device->info.profile;
  memset(pci, 0, sizeof *pci);
  pci->domain = profile->pci_domain;
  pci->bus = profile->pci_bus;
  pci->device = profile->pci_device;
  pci->pciDeviceId = pci_device_number(profile->name) << 16 | 0x10de;
  snprintf(pci->busId, sizeof pci->busId, NVML_DEVICE_PCI_BUS_ID_FMT,
           NVML_DEVICE_PCI_BUS_ID_FMT_ARGS(pci));
  snprintf(pci->busIdLegacy, sizeof pci->busIdLegacy, NVML_DEVICE_PCI_BUS_ID_LEGACY_FMT,
           pci->domain & 0xffff, pci->bus & 0xff, pci->device & 0xff);
  return NVML_SUCCESS;
}

/* The first version of the struct ends before pciSubSystemId, the second before the long bus ID. */
EXPORT nvmlReturn_t nvmlDeviceGetPciInfo_v2(nvmlDevice_t device, nvmlPciInfo_t *pci) {
  CHECK_DEVICE(device, pci);
  nvmlPciInfo_t full;
  nvmlReturn_t result = nvmlDeviceGetPciInfo_v3(device, &full);
  if (result == NVML_SUCCESS) memcpy(pci, &full, offsetof(nvmlPciInfo_t, busId));
  return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfo(nvmlDevice_t device, nvmlPciInfo_t *pci) {
  CHECK_DEVICE(device, pci);
  nvmlPciInfo_t full;
  nvmlReturn_t result = nvmlDeviceGetPciInfo_v3(device, &full);
  if (result == NVML_SUCCESS) memcpy(pci, &full, offsetof(nvmlPciInfo_t, pciSubSystemId));
  return result;
}

EXPORT nvmlReturn_t nvmlDeviceGetPciInfoExt(nvmlDevice_t device, nvmlPciInfoExt_t *pci) {
  CHECK_DEVICE(device, pci);
  if (pci->version != nvmlPciInfoExt_v1) return NVML_ERROR_ARGUMENT_VERSION_MISMATCH;
  nvmlPciInfo_t plain;
  nvmlReturn_t result = nvmlDeviceGetPciInfo_v3(device, &plain);
  if (result != NVML_SUCCESS) return result;
  memset(pci, 0, sizeof *pci);
  pci->version = nvmlPciInfoExt_v1;
  pci->domain = plain.domain;
  pci->bus = plain.bus;
  pci->device = plain.device;
  pci->pciDeviceId = plain.pciDeviceId;
  pci->baseClass = 3; /* display controller */
  pci->subClass = 2;  /* 3D */
  memcpy(pci->busId, plain.busId, sizeof pci->busId);
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetCudaComputeCapability(nvmlDevice_t device, int *major,
                                                       int *minor) {
  CHECK_DEVICE(device, major && minor);
  *major = (int)device->info.profile.compute_major;
  *minor = (int)device->info.profile.compute_minor;
  return NVML_SUCCESS;
}

EXPORT nvmlReturn_t nvmlDeviceGetArchitecture(nvmlDevice_t device, nvmlDeviceArchitecture_t *arch) {
  CHECK_DEVICE(device, arch);
  unsigned version = device->info.profile.compute_major * 10 + device->info.profile.compute_minor;
  *arch = version >= 100  ? NVML_DEVICE_ARCH_BLACKWELL
          : version >= 90 ? NVML_DEVICE_ARCH_HOPPER
          : version == 89 ? NVML_DEVICE_ARCH_ADA
          : version >= 80 ? NVML_DEVICE_ARCH_AMPERE
          : version >= 75 ? NVML_DEVICE_ARCH_TURING
          : version >= 70 ? NVML_DEVICE_ARCH_VOLTA
                          : NVML_DEVICE_ARCH_UNKNOWN;
  return NVML_SUCCESS;
}

/* Counts FP32 lanes, which is what "CUDA cores" means. */
EXPORT nvmlReturn_t nvmlDeviceGetNumGpuCores(nvmlDevice_t device, unsigned *cores) {
  CHECK_DEVICE(device, cores);
  const sim_profile *profile = &device->info.profile;
  unsigned version = profile->compute_major * 10 + profile->compute_minor;
  *cores = profile->sm_count * (version >= 86 ? 128 : 64);
  return NVML_SUCCESS;
}
