#define _GNU_SOURCE
#include "turns/tenant.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "mechanism/region.h"

#define ACTIVE_NS 250000000
#define AWAKE_NS 2000000000 /* who works now and then is not looked at the less for it */
/* A thread that waits at the gate says so anew at least every 20 ms, unless it finds no processor.
 */
#define FRESH_NS 60000000

static const penstock_limits *limits_of(const turn_tenant *tenant) {
  return &tenant->quota->copies[__atomic_load_n(&tenant->quota->current, __ATOMIC_ACQUIRE) & 1];
}

static uint32_t load(const uint32_t *word) { return __atomic_load_n(word, __ATOMIC_RELAXED); }

/* Follows the quota page: a changed share changes what is earned from now on. */
static void read_limits(turn_tenant *tenant) {
  const penstock_limits *limits = limits_of(tenant);
  uint32_t cores = load(&limits->devices[tenant->device].cores_permille);
  tenant->account.cores_permille = cores < 1 ? 1 : cores > 1000 ? 1000 : cores;
  tenant->account.elastic = load(&limits->mode) == PENSTOCK_MODE_ELASTIC;
  tenant->suspended = load(&limits->flags) & PENSTOCK_TENANT_SUSPENDED;
}

int turn_tenant_open(turn_tenant **out, uint64_t number, int quota_fd, int usage_fd,
                     unsigned device) {
  if (device >= PENSTOCK_MAX_DEVICES) return -EINVAL;
  if (penstock_page_check(quota_fd, PENSTOCK_QUOTA_MAGIC, sizeof(penstock_quota_page)) ||
      penstock_page_check(usage_fd, PENSTOCK_USAGE_MAGIC, sizeof(penstock_usage_page))) {
    return -EINVAL;
  }
  turn_tenant *tenant = calloc(1, sizeof *tenant);
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
      /* So that it need not wait for a whole turn to be earned. */
      tenant->account.credit_ns = (int64_t)penstock_account_turn_ns(tenant->account.cores_permille);
      penstock_turn_off(tenant->quota, device); /* of a giver that was killed */
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

void turn_tenant_close(turn_tenant *tenant) {
  turn_tenant_release(tenant);
  munmap(tenant->quota, sizeof *tenant->quota);
  close(tenant->usage_fd);
  free(tenant);
}

/* What was used before it is looked at for the first time is not its turns'. What a page that goes
 * backwards says is nothing. */
void turn_tenant_look(turn_tenant *tenant, uint64_t now_ns) {
  penstock_look look = penstock_look_device(tenant->usage_fd, tenant->device, now_ns);
  read_limits(tenant);
  if (tenant->looked_ns && !look.lost) {
    uint64_t before = tenant->look.spent_ns;
    uint64_t used = look.spent_ns > before ? look.spent_ns - before : 0;
    if (used || look.launches != tenant->look.launches) tenant->changed_ns = now_ns;
    penstock_account_spend(&tenant->account, used);
    tenant->figures.used_ns += used;
  }
  if (tenant->looked_ns) {
    penstock_account_earn(&tenant->account, now_ns - tenant->looked_ns,
                          turn_tenant_is_active(tenant, now_ns));
  }
  if (look.lost) { /* nothing can be said of it, so it gets nothing */
    look.spent_ns = tenant->look.spent_ns;
    look.waited_ns = look.until_ns = 0;
  }
  tenant->look = look;
  tenant->looked_ns = now_ns;
}

static bool worked_within(const turn_tenant *tenant, uint64_t now_ns, uint64_t span_ns) {
  if (tenant->suspended || tenant->look.lost) return false;
  return now_ns < tenant->look.waited_ns + span_ns ||
         (tenant->changed_ns && now_ns < tenant->changed_ns + span_ns);
}

bool turn_tenant_is_active(const turn_tenant *tenant, uint64_t now_ns) {
  return worked_within(tenant, now_ns, ACTIVE_NS);
}

bool turn_tenant_is_awake(const turn_tenant *tenant, uint64_t now_ns) {
  return worked_within(tenant, now_ns, AWAKE_NS);
}

bool turn_tenant_wants(const turn_tenant *tenant, uint64_t now_ns) {
  const penstock_look *look = &tenant->look;
  return !tenant->suspended && !look->lost && look->waited_ns &&
         now_ns < look->waited_ns + FRESH_NS &&
         (!tenant->ran_dry || look->waited_ns > tenant->account.finished_ns);
}

void turn_tenant_exclude(turn_tenant *tenant, uint64_t now_ns) {
  penstock_turn turn = {.begin_ns = PENSTOCK_TURN_NONE, .end_ns = 0, .alive_ns = now_ns};
  penstock_turn_begin(tenant->quota, tenant->device, &turn);
}

void turn_tenant_release(turn_tenant *tenant) {
  if (penstock_turn_any(tenant->quota, tenant->device)) {
    penstock_turn_off(tenant->quota, tenant->device);
  }
}
