#define _GNU_SOURCE
#include "turns/giver.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

#include "turns/tenant.h"

#define SURVEY_NS 20000000      /* all tenants are looked at this often … */
#define SURVEY_MOST_NS 60000000 /* … up to this, where there are many */
#define SURVEY_TENANTS 50
#define ASLEEP_NS 100000000 /* the same while there are fewer than two */
/* While nothing is handed out nobody waits for a look: tenants that have done nothing for long are
 * looked at this often, and so are all where none does anything. */
#define IDLE_NS 200000000
#define AGAIN_NS 1000000  /* while nobody may have the device */
#define STAY_NS 250000000 /* turns go on for so long after only one tenant is at work */
#define DRY_NS 200000     /* a tenant without work for so long has run dry */
#define GRACE_NS 2000000  /* from a turn's begin to its first launch */
#define LOOK_LEAST_NS 500000
#define LOOK_MOST_NS 5000000
#define LATE_LOOK_NS 60000 /* while work runs on past its turn's end … */
#define LATE_MOST_NS 1000000
#define OVERRUN_NS 50000000 /* … which nobody waits for beyond this */
#define MOST_TENANTS 4096

struct penstock_turns {
  pthread_t thread;
  pthread_mutex_t lock; /* guards all that follows; never held across a sleep */
  bool stopping;
  bool on; /* turns are handed out */
  turn_tenant **tenants;
  uint8_t *wants; /* scratch, like `accounts` */
  penstock_account **accounts;
  uint32_t count;
  turn_tenant *owner;
  turn_tenant *late; /* its work ran on when the next turn began */
  uint64_t begin_ns; /* of the owner's turn … */
  uint64_t end_ns;
  uint64_t submitted;    /* … brackets of the owner as last seen … */
  bool launched;         /* … any since it began? */
  uint64_t dry_since_ns; /* 0: it has work */
  uint64_t survey_ns;    /* the next one */
  uint64_t company_ns;   /* when two tenants were last at work */
  penstock_turns_figures figures;
};

static uint64_t now_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

static uint64_t earlier(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* Turns begin or end being handed out. */
static void switch_on(penstock_turns *turns, bool on, uint64_t now) {
  turns->on = on;
  turns->owner = turns->late = NULL;
  for (uint32_t i = 0; i < turns->count; i++) {
    turn_tenant *tenant = turns->tenants[i];
    on ? turn_tenant_exclude(tenant, now) : turn_tenant_release(tenant);
  }
}

static uint64_t pause_ns(const penstock_turns *turns, bool awake) {
  if (!turns->on && !awake) return IDLE_NS;
  uint64_t pause = (uint64_t)SURVEY_NS * (SURVEY_TENANTS + turns->count) / SURVEY_TENANTS;
  return earlier(pause, SURVEY_MOST_NS);
}

static void survey(penstock_turns *turns, uint64_t now) {
  uint32_t active = 0;
  bool awake = false;
  for (uint32_t i = 0; i < turns->count; i++) {
    turn_tenant *tenant = turns->tenants[i];
    if (turns->on || turn_tenant_is_awake(tenant, now) || now >= tenant->looked_ns + IDLE_NS)
      turn_tenant_look(tenant, now);
    if (turns->on) penstock_turn_alive(tenant->quota, tenant->device, now);
    active += turn_tenant_is_active(tenant, now);
    awake = awake || turn_tenant_is_awake(tenant, now);
  }
  turns->survey_ns = now + pause_ns(turns, awake);
  if (active >= 2) {
    turns->company_ns = now;
    if (!turns->on) switch_on(turns, true, now);
  } else if (turns->on && now > turns->company_ns + STAY_NS) {
    switch_on(turns, false, now);
  }
}

/* Does the tenant's work keep the device busy, as far as one can tell? */
static bool is_busy(penstock_turns *turns, turn_tenant *tenant, uint64_t now) {
  penstock_work work = penstock_look_work(tenant->usage_fd, tenant->device, now);
  if (tenant == turns->owner && work.submitted != turns->submitted) {
    turns->submitted = work.submitted;
    turns->launched = true;
    turns->dry_since_ns = 0;
  }
  if (!work.unsettled) return false;
  penstock_look look = penstock_look_device(tenant->usage_fd, tenant->device, now);
  tenant->look.until_ns = look.until_ns;
  return work.attended || look.until_ns > now;
}

static void finish_turn(penstock_turns *turns, uint64_t now, bool busy) {
  bool in_time = now < turns->end_ns;
  turn_tenant *owner = turns->owner;
  uint64_t overrun = now > turns->end_ns ? now - turns->end_ns : 0;
  uint64_t length = now - turns->begin_ns;
  if (!overrun) penstock_turn_end(owner->quota, owner->device, now);
  turn_tenant_look(owner, now);
  penstock_account_finish(&owner->account, length, overrun, now);
  bool late = overrun > DRY_NS;
  penstock_turns_figures *both[] = {&turns->figures, &owner->figures};
  for (int i = 0; i < 2; i++) {
    both[i]->turns++;
    both[i]->held_ns += length;
    both[i]->overruns += late;
    both[i]->overrun_ns += overrun;
  }
  owner->ran_dry = in_time; /* who had work to the end has more of it */
  if (busy) turns->late = owner;
  turns->owner = NULL;
}

/* Work runs on past the turn's end: when it should be through, then ever more seldom. */
static uint64_t late_look(const penstock_turns *turns, uint64_t now) {
  enum { PARTS = 16 };
  uint64_t until = turns->owner->look.until_ns, pause = (now - turns->end_ns) / PARTS;
  if (pause < LATE_LOOK_NS) pause = LATE_LOOK_NS;
  if (until > now + pause) pause = until - now;
  return now + earlier(pause, LATE_MOST_NS);
}

/* When to look at the owner's turn again; 0: it is over. */
static uint64_t watch_turn(penstock_turns *turns, uint64_t now) {
  turn_tenant *owner = turns->owner;
  bool busy = is_busy(turns, owner, now);
  if (now >= turns->end_ns) {
    if (busy && now < turns->end_ns + OVERRUN_NS) return late_look(turns, now);
    finish_turn(turns, now, busy);
    return 0;
  }
  if (busy) {
    uint64_t until = owner->look.until_ns, next = now + LOOK_LEAST_NS;
    if (until > next) next = earlier(until, now + LOOK_MOST_NS);
    turns->dry_since_ns = 0;
    return earlier(next, turns->end_ns);
  }
  uint64_t grace = turns->begin_ns + GRACE_NS;
  if (!turns->launched && now < grace) return earlier(now + DRY_NS, turns->end_ns);
  if (!turns->dry_since_ns) turns->dry_since_ns = now;
  if (!turns->launched || now - turns->dry_since_ns >= DRY_NS) {
    finish_turn(turns, now, false);
    return 0;
  }
  return earlier(turns->dry_since_ns + DRY_NS, turns->end_ns);
}

static void begin_turn(penstock_turns *turns, turn_tenant *next, uint32_t wanted_permille,
                       uint64_t now) {
  if (turns->late && (turns->late == next || !is_busy(turns, turns->late, now))) turns->late = NULL;
  uint64_t length = penstock_account_length_ns(&next->account, wanted_permille);
  penstock_turn turn = {now, now + length, now, turns->late ? PENSTOCK_TURN_SHARED : 0};
  turns->owner = next;
  turns->begin_ns = turn.begin_ns;
  turns->end_ns = turn.end_ns;
  turns->submitted = penstock_look_work(next->usage_fd, next->device, now).submitted;
  turns->launched = false;
  turns->dry_since_ns = 0;
  penstock_turn_begin(next->quota, next->device, &turn);
}

/* Hands the device to who is owed most. When to try again if there is nobody. */
static uint64_t choose(penstock_turns *turns, uint64_t now) {
  uint64_t ready = AGAIN_NS;
  uint32_t wanted_permille = 0;
  for (uint32_t i = 0; i < turns->count; i++) {
    turn_tenant *tenant = turns->tenants[i];
    if (turn_tenant_is_active(tenant, now)) turn_tenant_look(tenant, now);
    turns->accounts[i] = &tenant->account;
    turns->wants[i] = turn_tenant_wants(tenant, now);
    if (!turns->wants[i]) continue;
    wanted_permille += tenant->account.cores_permille;
    ready = earlier(ready, penstock_account_ready_ns(&tenant->account));
  }
  int next = penstock_account_choose(turns->accounts, turns->wants, (int)turns->count);
  if (next < 0) return now + (ready ? ready : AGAIN_NS);
  begin_turn(turns, turns->tenants[next], wanted_permille, now);
  return now + DRY_NS;
}

static uint64_t step(penstock_turns *turns, uint64_t now) {
  turns->figures.steps++;
  if (turns->count < 2) {
    if (turns->on) switch_on(turns, false, now);
    return now + ASLEEP_NS;
  }
  if (now >= turns->survey_ns) survey(turns, now);
  if (!turns->on) return turns->survey_ns;
  uint64_t next = turns->owner ? watch_turn(turns, now) : 0;
  if (!turns->owner) next = choose(turns, now);
  return earlier(next, turns->survey_ns);
}

static void *run(void *argument) {
  penstock_turns *turns = argument;
  prctl(PR_SET_NAME, "penstock-turns");
  prctl(PR_SET_TIMERSLACK, 1000ul, 0ul, 0ul, 0ul); /* 50 us late at each hand-over add up */
  for (;;) {
    pthread_mutex_lock(&turns->lock);
    bool stopping = turns->stopping;
    uint64_t next = stopping ? 0 : step(turns, now_ns());
    pthread_mutex_unlock(&turns->lock);
    if (stopping) return NULL;
    struct timespec until = {(time_t)(next / 1000000000), (long)(next % 1000000000)};
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
  }
}

penstock_turns *penstock_turns_start(void) {
  penstock_turns *turns = calloc(1, sizeof *turns);
  if (!turns) return NULL;
  pthread_mutex_init(&turns->lock, NULL);
  int error = pthread_create(&turns->thread, NULL, run, turns);
  if (!error) return turns;
  free(turns);
  errno = error;
  return NULL;
}

static int grow(penstock_turns *turns) {
  if (turns->count >= MOST_TENANTS) return -ENOSPC;
  size_t room = turns->count + 1;
  void *tenants = realloc(turns->tenants, room * sizeof *turns->tenants);
  if (tenants) turns->tenants = tenants;
  void *accounts = realloc(turns->accounts, room * sizeof *turns->accounts);
  if (accounts) turns->accounts = accounts;
  void *wants = realloc(turns->wants, room * sizeof *turns->wants);
  if (wants) turns->wants = wants;
  return tenants && accounts && wants ? 0 : -ENOMEM;
}

static uint32_t find(const penstock_turns *turns, uint64_t number) {
  uint32_t i = 0;
  while (i < turns->count && turns->tenants[i]->number != number) i++;
  return i;
}

int penstock_turns_add(penstock_turns *turns, uint64_t number, int quota_fd, int usage_fd,
                       unsigned device) {
  turn_tenant *tenant = NULL;
  int error = turn_tenant_open(&tenant, number, quota_fd, usage_fd, device);
  if (error) return error;
  pthread_mutex_lock(&turns->lock);
  error = find(turns, number) < turns->count ? -EEXIST : grow(turns);
  if (!error) {
    uint64_t now = now_ns();
    turn_tenant_look(tenant, now);
    turns->tenants[turns->count++] = tenant;
    if (turns->on) turn_tenant_exclude(tenant, now);
  }
  pthread_mutex_unlock(&turns->lock);
  if (error) turn_tenant_close(tenant);
  return error;
}

static void take_out(penstock_turns *turns, uint32_t i) {
  turn_tenant *tenant = turns->tenants[i];
  if (turns->owner == tenant) turns->owner = NULL;
  if (turns->late == tenant) turns->late = NULL;
  turns->tenants[i] = turns->tenants[--turns->count];
  turn_tenant_close(tenant);
}

int penstock_turns_remove(penstock_turns *turns, uint64_t number) {
  pthread_mutex_lock(&turns->lock);
  uint32_t i = find(turns, number);
  bool there = i < turns->count;
  if (there) take_out(turns, i);
  pthread_mutex_unlock(&turns->lock);
  return there ? 0 : -ENOENT;
}

void penstock_turns_count(penstock_turns *turns, penstock_turns_figures *out) {
  clockid_t clock;
  struct timespec used = {0};
  pthread_mutex_lock(&turns->lock);
  *out = turns->figures;
  out->tenants = turns->count;
  out->handed_out = turns->on;
  for (uint32_t i = 0; i < turns->count; i++) out->used_ns += turns->tenants[i]->figures.used_ns;
  pthread_mutex_unlock(&turns->lock);
  if (pthread_getcpuclockid(turns->thread, &clock) == 0) clock_gettime(clock, &used);
  out->thread_ns = (uint64_t)used.tv_sec * 1000000000 + (uint64_t)used.tv_nsec;
}

int penstock_turns_count_of(penstock_turns *turns, uint64_t number, penstock_turns_figures *out) {
  pthread_mutex_lock(&turns->lock);
  uint32_t i = find(turns, number);
  bool there = i < turns->count;
  if (there) *out = turns->tenants[i]->figures;
  pthread_mutex_unlock(&turns->lock);
  return there ? 0 : -ENOENT;
}

void penstock_turns_stop(penstock_turns *turns) {
  pthread_mutex_lock(&turns->lock);
  turns->stopping = true;
  pthread_mutex_unlock(&turns->lock);
  pthread_join(turns->thread, NULL);
  while (turns->count) take_out(turns, turns->count - 1);
  free(turns->tenants);
  free(turns->accounts);
  free(turns->wants);
  pthread_mutex_destroy(&turns->lock);
  free(turns);
}
