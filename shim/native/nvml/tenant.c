#include "tenant.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "driver.h"
#include "common/log.h"
#include "common/tenant_directory.h"
#include "mechanism/slots.h"

/* Logs only the first failure, because every NVML call may fail this way. */
static void log_once(const char *path, penstock_error error) {
  static bool logged;
  if (__atomic_exchange_n(&logged, true, __ATOMIC_RELAXED)) return;
  if (!path) {
    penstock_log("no tenant: PENSTOCK_TENANT_DIR is not set and " PENSTOCK_MOUNTED_DIRECTORY
                 " is not there; NVML is refused");
  } else {
    char why[384];
    penstock_region_explain(error, path, why, sizeof why);
    penstock_log("no quota, NVML is refused: %s", why);
  }
}

static const penstock_region *open_tenant(void) {
  static const penstock_region *attached;
  const penstock_region *known = __atomic_load_n(&attached, __ATOMIC_ACQUIRE);
  if (known) return known;
  const char *path = penstock_tenant_directory();
  penstock_region *region = path ? calloc(1, sizeof *region) : NULL;
  penstock_error error = region ? penstock_region_open_view(region, path) : PENSTOCK_E_MISSING;
  if (error != PENSTOCK_OK) {
    log_once(path, error);
    free(region);
    return NULL; /* the next call tries again */
  }
  if (!__atomic_compare_exchange_n(&attached, &known, region, false, __ATOMIC_ACQ_REL,
                                   __ATOMIC_ACQUIRE)) {
    penstock_region_close(region);
    free(region);
    return known; /* another thread was faster */
  }
  return region;
}

const penstock_region *penstock_nvml_tenant(void) {
  int saved_errno = errno;
  const penstock_region *region = open_tenant();
  errno = saved_errno;
  return region;
}

penstock_nvml_members penstock_nvml_members_of(const penstock_region *region) {
  struct stat self;
  bool known = stat("/proc/self/ns/pid", &self) == 0;
  return (penstock_nvml_members){region, known ? (uint32_t)self.st_ino : 0};
}

/* Returns the pid namespace of a slot's owner, or 0 if it is unknown (no /proc), as in
 * penstock_nvml_members_of. */
static uint32_t namespace_of(const penstock_usage_page *usage, uint64_t owner) {
  uint32_t index = penstock_owner_namespace(owner);
  if (index >= PENSTOCK_MAX_PID_NAMESPACES) return 0;
  /* the low half is the inode of the pid namespace (mechanism/slots.c) */
  return (uint32_t)__atomic_load_n(&usage->pid_namespaces[index], __ATOMIC_ACQUIRE);
}

bool penstock_nvml_is_member(const penstock_nvml_members *members, unsigned pid) {
  const penstock_usage_page *usage = members->region->usage;
  uint32_t high = penstock_slots_high(usage);
  for (uint32_t slot = 0; slot < high; slot++) {
    uint64_t owner = __atomic_load_n(&usage->slots[slot].owner, __ATOMIC_ACQUIRE);
    if (penstock_owner_state(owner) == PENSTOCK_SLOT_LIVE && penstock_owner_pid(owner) == pid &&
        namespace_of(usage, owner) == members->pid_namespace) {
      return true;
    }
  }
  return false;
}

static int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

/* Parses "GPU-xxxxxxxx-…" or "MIG-xxxxxxxx-…" into 16 bytes. Returns false for any other text. */
static bool parse_uuid(const char *text, uint8_t *uuid) {
  if (strncmp(text, "GPU-", 4) != 0 && strncmp(text, "MIG-", 4) != 0) return false;
  unsigned digits = 0;
  for (text += 4; *text; text++) {
    if (*text == '-') continue;
    int digit = hex_digit(*text);
    if (digit < 0 || digits >= 32) return false;
    uuid[digits / 2] = (uint8_t)(digits % 2 ? uuid[digits / 2] | digit : digit << 4);
    digits++;
  }
  return digits == 32;
}

int penstock_nvml_grant_of(const penstock_region *region, nvmlDevice_t device) {
  char text[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
  uint8_t uuid[16];
  if (REAL(nvmlDeviceGetUUID)(device, text, sizeof text) != NVML_SUCCESS) return -1;
  if (!parse_uuid(text, uuid)) return -1;
  const penstock_limits *limits = penstock_region_limits(region);
  for (unsigned grant = 0; grant < penstock_region_device_count(region); grant++) {
    if (memcmp(limits->devices[grant].uuid, uuid, sizeof uuid) == 0) return (int)grant;
  }
  return -1;
}

nvmlReturn_t penstock_nvml_granted(const penstock_region *region, unsigned grant,
                                   nvmlDevice_t *device) {
  unsigned count;
  nvmlReturn_t result = REAL(nvmlDeviceGetCount_v2)(&count);
  if (result != NVML_SUCCESS) return result;
  for (unsigned i = 0; i < count; i++) {
    nvmlDevice_t found;
    result = REAL(nvmlDeviceGetHandleByIndex_v2)(i, &found);
    if (result == NVML_SUCCESS && penstock_nvml_grant_of(region, found) == (int)grant) {
      *device = found;
      return NVML_SUCCESS;
    }
  }
  /* The granted device is no longer in the machine, or has no handle. */
  return result == NVML_SUCCESS ? NVML_ERROR_GPU_IS_LOST : result;
}

nvmlReturn_t penstock_nvml_refusal(nvmlDevice_t device) {
  char text[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
  nvmlReturn_t result = REAL(nvmlDeviceGetUUID)(device, text, sizeof text);
  return result == NVML_SUCCESS ? NVML_ERROR_NOT_FOUND : result;
}
