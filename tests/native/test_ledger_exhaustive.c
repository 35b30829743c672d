/* builds: plain */
/* Walks through every interleaving of a few operations, one access to shared memory at a time, with
 * kills at every point. In every state reached, everybody is made to die at once and is reaped: the
 * total must come to exactly zero. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "harness.h"
#include "tenant.h"

#define SLOTS 3
#define REAPERS 2
#define MOVES 3
#define LIMIT_UNITS 4
#define TABLE_BITS 24

typedef struct scenario {
  int64_t script[SLOTS][MOVES]; /* units; 0 ends it */
  int kills;                    /* owners and reapers that may be killed on the way */
} scenario;

/* Everything that decides what can happen from here. */
typedef struct world {
  uint64_t total;
  uint64_t owner[SLOTS];
  penstock_ledger_slot words[SLOTS];
  uint64_t ack[SLOTS];
  penstock_ledger_op ops[SLOTS];
  penstock_reap_op reaps[REAPERS];
  uint8_t position[SLOTS];
  bool running[SLOTS];
  bool dead[SLOTS];
  bool reaping[REAPERS];
  uint8_t reaper_lives[REAPERS]; /* counts a reaper's successive processes */
  uint8_t kills_left;
  uint8_t padding[6];
} world;

static penstock_usage_page page;
static uint64_t (*seen)[2];
static uint64_t states, decided_from_ack;

static void put(const world *from) {
  page.ledger[0].total = from->total;
  for (int i = 0; i < SLOTS; i++) {
    page.slots[i].owner = from->owner[i];
    page.slots[i].ledger[0] = from->words[i];
    page.slots[i].ledger_ack[0] = from->ack[i];
  }
}

static void take(world *to) {
  to->total = page.ledger[0].total;
  for (int i = 0; i < SLOTS; i++) {
    to->owner[i] = page.slots[i].owner;
    to->words[i] = page.slots[i].ledger[0];
    to->ack[i] = page.slots[i].ledger_ack[0];
  }
}

/* FNV-like, twice; a collision would only hide a state, and 128 bits make it unlikely. */
static bool first_time(const world *now) {
  uint64_t a = 0xcbf29ce484222325, b = 0x9e3779b97f4a7c15;
  const uint64_t *words = (const uint64_t *)now;
  _Static_assert(sizeof *now % 8 == 0, "whole words");
  for (size_t i = 0; i < sizeof *now / 8; i++) {
    a = (a ^ words[i]) * 0x100000001b3;
    a ^= a >> 29;
    b = (b + words[i]) * 0xbf58476d1ce4e5b9;
    b ^= b >> 31;
  }
  a |= 1;
  for (uint64_t at = b >> (64 - TABLE_BITS);; at = (at + 1) & ((1 << TABLE_BITS) - 1)) {
    if (seen[at][0] == 0) {
      seen[at][0] = a;
      seen[at][1] = b;
      CHECK(++states < 1 << (TABLE_BITS - 1));
      return true;
    }
    if (seen[at][0] == a && seen[at][1] == b) return false;
  }
}

/* Devices other than the first are untouched: their steps disturb nobody and run in one go. */
static penstock_reap_state reap_step(penstock_reap_op *op) {
  penstock_reap_state state = penstock_reap_step(op);
  while (op->device > 0 && state < PENSTOCK_REAP_CLEAR) state = penstock_reap_step(op);
  return state;
}

/* Zero exactly, if everybody died in this state and were reaped one after the other. */
static void check_all_die(const world *now) {
  put(now);
  CHECK(penstock_ledger_units(now->total) <= LIMIT_UNITS);
  penstock_identity last = {.pid = 999, .pid_namespace = 1, .start_ticks = 999};
  for (uint32_t i = 0; i < SLOTS; i++) {
    if (penstock_owner_state(page.slots[i].owner) == PENSTOCK_SLOT_FREE) continue;
    penstock_reap_op op;
    penstock_reap_begin(&op, &page, &last, i, page.slots[i].owner);
    while (reap_step(&op) < PENSTOCK_REAP_DONE) {
      decided_from_ack +=
          op.state == PENSTOCK_REAP_FOLD && penstock_ledger_slot_of(page.ledger[0].total) != i;
    }
    CHECK(op.state == PENSTOCK_REAP_DONE);
    CHECK_EQUAL(penstock_ledger_units(page.slots[i].ledger[0].charged), 0);
  }
  CHECK_EQUAL(penstock_ledger_units(page.ledger[0].total), 0);
}

static void walk(const scenario *plan, const world *now);

static void step_owner(const scenario *plan, const world *now, int i) {
  world next = *now;
  put(now);
  if (!next.running[i]) {
    if (next.position[i] == MOVES || plan->script[i][next.position[i]] == 0) return;
    int64_t delta = plan->script[i][next.position[i]++];
    /* What was refused cannot be given back. */
    int64_t held = (int64_t)penstock_ledger_units(next.words[i].charged);
    if (delta < 0 && held < -delta) return;
    memset(&next.ops[i], 0, sizeof next.ops[i]);
    penstock_ledger_begin(&next.ops[i], &page, 0, (uint32_t)i, delta, LIMIT_UNITS);
    next.running[i] = true;
  }
  if (penstock_ledger_step(&next.ops[i]) >= PENSTOCK_LEDGER_DONE) {
    memset(&next.ops[i], 0, sizeof next.ops[i]);
    next.running[i] = false;
  }
  take(&next);
  walk(plan, &next);
}

static uint64_t reaper_word(const world *now, int reaper) {
  return penstock_owner_pack(PENSTOCK_SLOT_REAPING, 1, 500u + (uint32_t)reaper, 0,
                             now->reaper_lives[reaper] + 1u);
}

static bool held_by_living_reaper(const world *now, int slot) {
  for (int r = 0; r < REAPERS; r++) {
    if (now->owner[slot] == reaper_word(now, r)) return true;
  }
  return false;
}

static void step_reaper(const scenario *plan, const world *now, int reaper) {
  if (now->reaping[reaper]) {
    world next = *now;
    put(now);
    if (reap_step(&next.reaps[reaper]) >= PENSTOCK_REAP_DONE) {
      memset(&next.reaps[reaper], 0, sizeof next.reaps[reaper]);
      next.reaping[reaper] = false;
    }
    take(&next);
    walk(plan, &next);
    return;
  }
  for (int i = 0; i < SLOTS; i++) {
    if (!now->dead[i] || penstock_owner_state(now->owner[i]) == PENSTOCK_SLOT_FREE) continue;
    if (held_by_living_reaper(now, i)) continue;
    world next = *now;
    penstock_identity nobody = {0};
    penstock_reap_begin(&next.reaps[reaper], &page, &nobody, (uint32_t)i, now->owner[i]);
    next.reaps[reaper].owner = reaper_word(now, reaper);
    next.reaping[reaper] = true;
    walk(plan, &next);
  }
}

static void kill_one(const scenario *plan, const world *now, int i) {
  world next = *now;
  next.kills_left--;
  if (i < SLOTS) {
    if (now->dead[i]) return;
    next.dead[i] = true;
    next.running[i] = false;
    next.position[i] = MOVES;
    memset(&next.ops[i], 0, sizeof next.ops[i]);
  } else {
    if (!now->reaping[i - SLOTS]) return;
    next.reaping[i - SLOTS] = false;
    next.reaper_lives[i - SLOTS]++;
    memset(&next.reaps[i - SLOTS], 0, sizeof next.reaps[0]);
  }
  walk(plan, &next);
}

static void walk(const scenario *plan, const world *now) {
  if (!first_time(now)) return;
  check_all_die(now);
  for (int i = 0; i < SLOTS; i++) step_owner(plan, now, i);
  for (int r = 0; r < REAPERS; r++) step_reaper(plan, now, r);
  if (now->kills_left == 0) return;
  for (int i = 0; i < SLOTS + REAPERS; i++) kill_one(plan, now, i);
}

static void explore(const scenario *plan) {
  seen = calloc((size_t)1 << TABLE_BITS, sizeof *seen);
  CHECK(seen);
  world begin;
  memset(&begin, 0, sizeof begin);
  begin.kills_left = (uint8_t)plan->kills;
  for (int i = 0; i < SLOTS; i++) {
    begin.owner[i] = penstock_owner_pack(PENSTOCK_SLOT_LIVE, 1, 100u + (uint32_t)i, 0, 1);
  }
  walk(plan, &begin);
  free(seen);
  printf("%llu states\n", (unsigned long long)states);
  CHECK(states > 1000);
  CHECK(decided_from_ack > 0); /* else the hard case was never met */
}

TEST(three_processes_in_every_interleaving_can_die_in_every_state) {
  explore(&(scenario){.script = {{2, 1, -1}, {1, 1}, {1, -1}}});
}

TEST(releases_and_refusals_in_every_interleaving_can_die_in_every_state) {
  explore(&(scenario){.script = {{3, -3, 4}, {2, -2}, {1, 3}}});
}

TEST(two_reapers_that_race_and_are_killed_anywhere_finish_what_a_killed_process_began) {
  explore(&(scenario){.script = {{2, -1}, {1}}, .kills = 2});
}
