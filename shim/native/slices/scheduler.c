#define _GNU_SOURCE
#include "slices/scheduler.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

#include "slices/tenant.h"

#define SURVEY_NS 20000000      /* interval between surveys of all tenants when they are few */
#define SURVEY_MOST_NS 60000000 /* interval between surveys of all tenants when they are many */
#define SURVEY_TENANTS 50
#define ASLEEP_NS 100000000 /* interval between checks while there are fewer than two tenants */
/* Interval for sampling an idle tenant while there are no time slices, when nothing depends on
 * fresh samples; the interval for all tenants if every tenant is idle. */
#define IDLE_NS 200000000
#define AGAIN_NS 1000000  /* interval between checks while no tenant may have a slice */
#define STAY_NS 250000000 /* slices go on for this long once fewer than two tenants work */
#define DRY_NS 200000     /* a tenant without work for this long has run dry */
#define GRACE_NS 2000000  /* longest time from the start of a slice to its first launch */
#define SAMPLE_LEAST_NS 500000
#define SAMPLE_MOST_NS 5000000
#define LATE_LEAST_NS 60000 /* shortest interval between samples of overrunning work */
#define LATE_MOST_NS 1000000
#define OVERRUN_NS 50000000 /* longest time for which work past its slice delays the next slice */
#define MOST_TENANTS 4096

struct penstock_scheduler {
  pthread_t thread;
  pthread_mutex_t lock; /* guards all fields below; never held across a sleep */
  bool stopping;
  bool on; /* time slices are being given */
  slice_tenant **tenants;
  uint8_t *wants; /* scratch memory, like `accounts` */
  penstock_account **accounts;
  uint32_t count;
  slice_tenant *owner;
  slice_tenant *late; /* tenant whose work was still running when the next slice started */
  uint64_t begin_ns;  /* start of the owner's slice */
  uint64_t end_ns;
  uint64_t submitted;    /* number of timing windows that the owner had opened at the last sample */
  bool launched;         /* the owner has opened a timing window since its slice started */
  uint64_t dry_since_ns; /* time since which the owner has had no work, 0 if it has some */
  uint64_t survey_ns;    /* time of the next survey */
  uint64_t contended_ns; /* time at which two tenants last had work */
  penstock_scheduler_figures figures;
};

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static uint64_t earlier(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Starts or stops giving time slices. */
static void switch_on(penstock_scheduler *scheduler, bool on, uint64_t now) {
  scheduler->on = on;
  scheduler->owner = scheduler->late = NULL;
  for (uint32_t i = 0; i < scheduler->count; i++) {
    slice_tenant *tenant = scheduler->tenants[i];
    on ? slice_tenant_exclude(tenant, now) : slice_tenant_release(tenant);
  }
}

static uint64_t pause_ns(const penstock_scheduler *scheduler, bool awake) {
  if (!scheduler->on && !awake) return IDLE_NS;
  uint64_t pause = (uint64_t)SURVEY_NS * (SURVEY_TENANTS + scheduler->count) / SURVEY_TENANTS;
  return earlier(pause, SURVEY_MOST_NS);
}

static void survey(penstock_scheduler *scheduler, uint64_t now) {
  uint32_t active = 0;
  bool awake = false;
  for (uint32_t i = 0; i < scheduler->count; i++) {
    slice_tenant *tenant = scheduler->tenants[i];
    if (scheduler->on || slice_tenant_is_awake(tenant, now) || now >= tenant->sampled_ns + IDLE_NS)
      slice_tenant_sample(tenant, now);
    if (scheduler->on) penstock_slice_alive(tenant->quota, tenant->device, now);
    active += slice_tenant_is_active(tenant, now);
    awake = awake || slice_tenant_is_awake(tenant, now);
  }
  scheduler->survey_ns = now + pause_ns(scheduler, awake);
  if (active >= 2) {
    scheduler->contended_ns = now;
    if (!scheduler->on) switch_on(scheduler, true, now);
  } else if (scheduler->on && now > scheduler->contended_ns + STAY_NS) {
    switch_on(scheduler, false, now);
  }
}

/* Returns true if the tenant's work keeps the device busy according to the tenant's usage page. */
static bool is_busy(penstock_scheduler *scheduler, slice_tenant *tenant, uint64_t now) {
  penstock_work work = penstock_sample_work(tenant->usage_fd, tenant->device, now);
  if (tenant == scheduler->owner && work.submitted != scheduler->submitted) {
    scheduler->submitted = work.submitted;
    scheduler->launched = true;
    scheduler->dry_since_ns = 0;
  }
  if (!work.unsettled) return false;
  penstock_sample sample = penstock_sample_device(tenant->usage_fd, tenant->device, now);
  tenant->sample.until_ns = sample.until_ns;
  return work.attended || sample.until_ns > now;
}

static void finish_slice(penstock_scheduler *scheduler, uint64_t now, bool busy) {
  bool in_time = now < scheduler->end_ns;
  slice_tenant *owner = scheduler->owner;
  uint64_t overrun = now > scheduler->end_ns ? now - scheduler->end_ns : 0;
  uint64_t length = now - scheduler->begin_ns;
  if (!overrun) penstock_slice_end(owner->quota, owner->device, now);
  slice_tenant_sample(owner, now);
  penstock_account_finish(&owner->account, length, overrun, now);
  bool late = overrun > DRY_NS;
  penstock_scheduler_figures *both[] = {&scheduler->figures, &owner->figures};
  for (int i = 0; i < 2; i++) {
    both[i]->slices++;
    both[i]->held_ns += length;
    both[i]->overruns += late;
    both[i]->overrun_ns += overrun;
  }
  owner->ran_dry = in_time; /* a tenant that had work until the end of its slice has more of it */
  if (busy) scheduler->late = owner;
  scheduler->owner = NULL;
}

/* Returns when to sample a tenant whose work runs past the end of its slice. The next sample is
 * taken when the work should be done; later samples become less frequent. */
static uint64_t next_late_sample_ns(const penstock_scheduler *scheduler, uint64_t now) {
  enum { PARTS = 16 };
  uint64_t until = scheduler->owner->sample.until_ns, pause = (now - scheduler->end_ns) / PARTS;
  if (pause < LATE_LEAST_NS) pause = LATE_LEAST_NS;
  if (until > now + pause) pause = until - now;
  return now + earlier(pause, LATE_MOST_NS);
}

/* Returns when to sample the owner again, or 0 if its slice is over. */
static uint64_t watch_slice(penstock_scheduler *scheduler, uint64_t now) {
  slice_tenant *owner = scheduler->owner;
  bool busy = is_busy(scheduler, owner, now);
  if (now >= scheduler->end_ns) {
    if (busy && now < scheduler->end_ns + OVERRUN_NS) return next_late_sample_ns(scheduler, now);
    finish_slice(scheduler, now, busy);
    return 0;
  }
  if (busy) {
    uint64_t until = owner->sample.until_ns, next = now + SAMPLE_LEAST_NS;
    if (until > next) next = earlier(until, now + SAMPLE_MOST_NS);
    scheduler->dry_since_ns = 0;
    return earlier(next, scheduler->end_ns);
  }
  uint64_t grace = scheduler->begin_ns + GRACE_NS;
  if (!scheduler->launched && now < grace) return earlier(now + DRY_NS, scheduler->end_ns);
  if (!scheduler->dry_since_ns) scheduler->dry_since_ns = now;
  if (!scheduler->launched || now - scheduler->dry_since_ns >= DRY_NS) {
    finish_slice(scheduler, now, false);
    return 0;
  }
  return earlier(scheduler->dry_since_ns + DRY_NS, scheduler->end_ns);
}

static void begin_slice(penstock_scheduler *scheduler, slice_tenant *next, uint32_t wanted_permille,
                        uint64_t now) {
  if (scheduler->late && (scheduler->late == next || !is_busy(scheduler, scheduler->late, now)))
    scheduler->late = NULL;
  uint64_t length = penstock_account_length_ns(&next->account, wanted_permille);
  penstock_slice slice = {now, now + length, now, scheduler->late ? PENSTOCK_SLICE_SHARED : 0};
  scheduler->owner = next;
  scheduler->begin_ns = slice.begin_ns;
  scheduler->end_ns = slice.end_ns;
  scheduler->submitted = penstock_sample_work(next->usage_fd, next->device, now).submitted;
  scheduler->launched = false;
  scheduler->dry_since_ns = 0;
  penstock_slice_begin(next->quota, next->device, &slice);
}

/* Gives the next slice to the tenant that is owed most. Returns when the thread must look again:
 * soon if a slice was given, otherwise when a tenant may have one. */
static uint64_t choose(penstock_scheduler *scheduler, uint64_t now) {
  uint64_t ready = AGAIN_NS;
  uint32_t wanted_permille = 0;
  for (uint32_t i = 0; i < scheduler->count; i++) {
    slice_tenant *tenant = scheduler->tenants[i];
    if (slice_tenant_is_active(tenant, now)) slice_tenant_sample(tenant, now);
    scheduler->accounts[i] = &tenant->account;
    scheduler->wants[i] = slice_tenant_wants(tenant, now);
    if (!scheduler->wants[i]) continue;
    wanted_permille += tenant->account.cores_permille;
    ready = earlier(ready, penstock_account_ready_ns(&tenant->account));
  }
  int next = penstock_account_choose(scheduler->accounts, scheduler->wants, (int)scheduler->count);
  if (next < 0) return now + (ready ? ready : AGAIN_NS);
  begin_slice(scheduler, scheduler->tenants[next], wanted_permille, now);
  return now + DRY_NS;
}

static uint64_t step(penstock_scheduler *scheduler, uint64_t now) {
  scheduler->figures.steps++;
  if (scheduler->count < 2) {
    if (scheduler->on) switch_on(scheduler, false, now);
    return now + ASLEEP_NS;
  }
  if (now >= scheduler->survey_ns) survey(scheduler, now);
  if (!scheduler->on) return scheduler->survey_ns;
  uint64_t next = scheduler->owner ? watch_slice(scheduler, now) : 0;
  if (!scheduler->owner) next = choose(scheduler, now);
  return earlier(next, scheduler->survey_ns);
}

static void *run(void *argument) {
  penstock_scheduler *scheduler = argument;
  /* Administrators see this name, so it keeps its older form. */
  prctl(PR_SET_NAME, "penstock-turns");
  /* The default slack of 50 us for each sleep adds up. */
  prctl(PR_SET_TIMERSLACK, 1000ul, 0ul, 0ul, 0ul);
  for (;;) {
    pthread_mutex_lock(&scheduler->lock);
    bool stopping = scheduler->stopping;
    uint64_t next = stopping ? 0 : step(scheduler, now_ns());
    pthread_mutex_unlock(&scheduler->lock);
    if (stopping) return NULL;
    struct timespec until = {(time_t)(next / 1000000000), (long)(next % 1000000000)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
  }
}

penstock_scheduler *penstock_scheduler_start(void) {
  penstock_scheduler *scheduler = calloc(1, sizeof *scheduler);
  if (!scheduler) return NULL;
  pthread_mutex_init(&scheduler->lock, NULL);
  int error = pthread_create(&scheduler->thread, NULL, run, scheduler);
  if (!error) return scheduler;
  free(scheduler);
  errno = error;
  return NULL;
}

static int grow(penstock_scheduler *scheduler) {
  if (scheduler->count >= MOST_TENANTS) return -ENOSPC;
  size_t room = scheduler->count + 1;
  void *tenants = realloc(scheduler->tenants, room * sizeof *scheduler->tenants);
  if (tenants) scheduler->tenants = tenants;
  void *accounts = realloc(scheduler->accounts, room * sizeof *scheduler->accounts);
  if (accounts) scheduler->accounts = accounts;
  void *wants = realloc(scheduler->wants, room * sizeof *scheduler->wants);
  if (wants) scheduler->wants = wants;
  return tenants && accounts && wants ? 0 : -ENOMEM;
}

static uint32_t find(const penstock_scheduler *scheduler, uint64_t number) {
  uint32_t i = 0;
  while (i < scheduler->count && scheduler->tenants[i]->number != number) i++;
  return i;
}

int penstock_scheduler_add(penstock_scheduler *scheduler, uint64_t number, int quota_fd,
                           int usage_fd, unsigned device) {
  slice_tenant *tenant = NULL;
  int error = slice_tenant_open(&tenant, number, quota_fd, usage_fd, device);
  if (error) return error;
  pthread_mutex_lock(&scheduler->lock);
  error = find(scheduler, number) < scheduler->count ? -EEXIST : grow(scheduler);
  if (!error) {
    uint64_t now = now_ns();
    slice_tenant_sample(tenant, now);
    scheduler->tenants[scheduler->count++] = tenant;
    if (scheduler->on) slice_tenant_exclude(tenant, now);
  }
  pthread_mutex_unlock(&scheduler->lock);
  if (error) slice_tenant_close(tenant);
  return error;
}

static void take_out(penstock_scheduler *scheduler, uint32_t i) {
  slice_tenant *tenant = scheduler->tenants[i];
  if (scheduler->owner == tenant) scheduler->owner = NULL;
  if (scheduler->late == tenant) scheduler->late = NULL;
  scheduler->tenants[i] = scheduler->tenants[--scheduler->count];
  slice_tenant_close(tenant);
}

int penstock_scheduler_remove(penstock_scheduler *scheduler, uint64_t number) {
  pthread_mutex_lock(&scheduler->lock);
  uint32_t i = find(scheduler, number);
  bool there = i < scheduler->count;
  if (there) take_out(scheduler, i);
  pthread_mutex_unlock(&scheduler->lock);
  return there ? 0 : -ENOENT;
}

void penstock_scheduler_count(penstock_scheduler *scheduler, penstock_scheduler_figures *out) {
  clockid_t clock;
  struct timespec used = {0};
  pthread_mutex_lock(&scheduler->lock);
  *out = scheduler->figures;
  out->tenants = scheduler->count;
  out->handed_out = scheduler->on;
  for (uint32_t i = 0; i < scheduler->count; i++)
    out->used_ns += scheduler->tenants[i]->figures.used_ns;
  pthread_mutex_unlock(&scheduler->lock);
  if (pthread_getcpuclockid(scheduler->thread, &clock) == 0) clock_gettime(clock, &used);
  out->thread_ns = (uint64_t)used.tv_sec * 1000000000 + (uint64_t)used.tv_nsec;
}

int penstock_scheduler_count_of(penstock_scheduler *scheduler, uint64_t number,
                                penstock_scheduler_figures *out) {
  pthread_mutex_lock(&scheduler->lock);
  uint32_t i = find(scheduler, number);
  bool there = i < scheduler->count;
  if (there) *out = scheduler->tenants[i]->figures;
  pthread_mutex_unlock(&scheduler->lock);
  return there ? 0 : -ENOENT;
}

void penstock_scheduler_stop(penstock_scheduler *scheduler) {
  pthread_mutex_lock(&scheduler->lock);
  scheduler->stopping = true;
  pthread_mutex_unlock(&scheduler->lock);
  pthread_join(scheduler->thread, NULL);
  while (scheduler->count) take_out(scheduler, scheduler->count - 1);
  free(scheduler->tenants);
  free(scheduler->accounts);
  free(scheduler->wants);
  pthread_mutex_destroy(&scheduler->lock);
  free(scheduler);
}
