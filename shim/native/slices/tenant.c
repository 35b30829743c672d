#define _GNU_SOURCE
#include "slices/tenant.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "mechanism/region.h"

#define ACTIVE_NS 250000000
/* A tenant that has worked within this time is sampled as often as a busy one. */
#define AWAKE_NS 2000000000
/* A thread that waits at the gate updates its time at least every 20 ms, unless it gets no
 * processor time. */
#define FRESH_NS 60000000

static const penstock_limits *limits_of(const slice_tenant *tenant) {
  return &tenant->quota->copies[__atomic_load_n(&tenant->quota->current, __ATOMIC_ACQUIRE) & 1];
}

static uint32_t load(const uint32_t *word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }

/* Reads the tenant's limits from its quota page. A changed share affects what is earned from now
 * on. */
static void read_limits(slice_tenant *tenant) {
  const penstock_limits *limits = limits_of(tenant);
  uint32_t cores = load(&limits->devices[tenant->device].cores_permille);
  tenant->account.cores_permille = cores < 1 ? 1 : cores > 1000 ? 1000 : cores;
  tenant->account.elastic = load(&limits->mode) == PENSTOCK_MODE_ELASTIC;
  tenant->suspended = load(&limits->flags) & PENSTOCK_TENANT_SUSPENDED;
}

int slice_tenant_open(slice_tenant **out, uint64_t number, int quota_fd, int usage_fd,
                      unsigned device) {
  if (device >= PENSTOCK_MAX_DEVICES) return -EINVAL;
  if (penstock_page_check(quota_fd, PENSTOCK_QUOTA_MAGIC, sizeof(penstock_quota_page)) ||
      penstock_page_check(usage_fd, PENSTOCK_USAGE_MAGIC, sizeof(penstock_usage_page))) {
    return -EINVAL;
  }
  slice_tenant *tenant = calloc(1, sizeof *tenant);
  if (!tenant) return -ENOMEM;
  void *page = mmap(NULL, sizeof *tenant->quota, PROT_READ | PROT_WRITE, MAP_SHARED, quota_fd, 0);
  int error = page == MAP_FAILED ? errno : 0;
  tenant->usage_fd = error ? -1 : fcntl(usage_fd, F_DUPFD_CLOEXEC, 0);
  if (!error && tenant->usage_fd < 0) {
    error = errno;
    munmap(page, sizeof *tenant->quota);
  }
  if (!error) {
    tenant->quota = page;
    tenant->number = number;
    tenant->device = device;
    if (device < limits_of(tenant)->device_count) {
      penstock_account_init(&tenant->account, 1, 0);
      read_limits(tenant);
      /* This credit lets the first slice start without waiting until it is earned. */
      tenant->account.credit_ns =
          (int64_t)penstock_account_slice_ns(tenant->account.cores_permille);
      /* Removes what a scheduler that was killed left there. */
      penstock_slice_off(tenant->quota, device);
      *out = tenant;
      return 0;
    }
    munmap(page, sizeof *tenant->quota);
    close(tenant->usage_fd);
    error = EINVAL;
  }
  free(tenant);
  return -error;
}

void slice_tenant_close(slice_tenant *tenant) {
  slice_tenant_release(tenant);
  munmap(tenant->quota, sizeof *tenant->quota);
  close(tenant->usage_fd);
  free(tenant);
}

/* Device time used before the first sample is not charged to the tenant's slices. A page whose
 * counters go backwards is ignored. */
void slice_tenant_sample(slice_tenant *tenant, uint64_t now_ns) {
  penstock_sample sample = penstock_sample_device(tenant->usage_fd, tenant->device, now_ns);
  read_limits(tenant);
  if (tenant->sampled_ns && !sample.lost) {
    uint64_t before = tenant->sample.spent_ns;
    uint64_t used = sample.spent_ns > before ? sample.spent_ns - before : 0;
    if (used || sample.launches != tenant->sample.launches) tenant->changed_ns = now_ns;
    penstock_account_spend(&tenant->account, used);
    tenant->figures.used_ns += used;
  }
  if (tenant->sampled_ns) {
    penstock_account_earn(&tenant->account, now_ns - tenant->sampled_ns,
                          slice_tenant_is_active(tenant, now_ns));
  }
  if (sample.lost) { /* the tenant's work is unknown, so it gets no slices */
    sample.spent_ns = tenant->sample.spent_ns;
    sample.waited_ns = sample.until_ns = 0;
  }
  tenant->sample = sample;
  tenant->sampled_ns = now_ns;
}

static bool worked_within(const slice_tenant *tenant, uint64_t now_ns, uint64_t span_ns) {
  if (tenant->suspended || tenant->sample.lost) return false;
  return now_ns < tenant->sample.waited_ns + span_ns ||
         (tenant->changed_ns && now_ns < tenant->changed_ns + span_ns);
}

bool slice_tenant_is_active(const slice_tenant *tenant, uint64_t now_ns) {
  return worked_within(tenant, now_ns, ACTIVE_NS);
}

bool slice_tenant_is_awake(const slice_tenant *tenant, uint64_t now_ns) {
  return worked_within(tenant, now_ns, AWAKE_NS);
}

bool slice_tenant_wants(const slice_tenant *tenant, uint64_t now_ns) {
  const penstock_sample *sample = &tenant->sample;
  return !tenant->suspended && !sample->lost && sample->waited_ns &&
         now_ns < sample->waited_ns + FRESH_NS &&
         (!tenant->ran_dry || sample->waited_ns > tenant->account.finished_ns);
}

void slice_tenant_exclude(slice_tenant *tenant, uint64_t now_ns) {
  penstock_slice slice = {.begin_ns = PENSTOCK_SLICE_NONE, .end_ns = 0, .alive_ns = now_ns};
  penstock_slice_begin(tenant->quota, tenant->device, &slice);
}

void slice_tenant_release(slice_tenant *tenant) {
  if (penstock_slice_any(tenant->quota, tenant->device)) {
    penstock_slice_off(tenant->quota, tenant->device);
  }
}
