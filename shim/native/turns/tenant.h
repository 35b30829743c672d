/* A tenant as the giver of turns sees it: its pages, what it is owed, what it does. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "mechanism/turn.h"
#include "turns/account.h"
#include "turns/giver.h"
#include "turns/look.h"

typedef struct turn_tenant {
  uint64_t number;
  penstock_quota_page *quota; /* mapped: it is written by whoever runs this */
  int usage_fd;
  unsigned device;
  bool suspended;
  bool ran_dry;        /* in its last turn */
  uint64_t looked_ns;  /* when it was last looked at; 0: never */
  uint64_t changed_ns; /* when work of it was last seen to be through */
  penstock_look look;
  penstock_account account;
  penstock_turns_figures figures;
} turn_tenant;

/* 0 or a negative errno; see penstock_turns_add. */
int turn_tenant_open(turn_tenant **out, uint64_t number, int quota_fd, int usage_fd,
                     unsigned device);
/* Goes on as without turns. */
void turn_tenant_close(turn_tenant *tenant);

/* Takes in what the pages say. */
void turn_tenant_look(turn_tenant *tenant, uint64_t now_ns);
/* Has it been at work of late? */
bool turn_tenant_is_active(const turn_tenant *tenant, uint64_t now_ns);
/* Has it been so within seconds? */
bool turn_tenant_is_awake(const turn_tenant *tenant, uint64_t now_ns);
/* Has a thread of it waited at the gate of late, and since its last turn if it ran dry there? */
bool turn_tenant_wants(const turn_tenant *tenant, uint64_t now_ns);

/* Turns are handed out, and it has none. */
void turn_tenant_exclude(turn_tenant *tenant, uint64_t now_ns);
/* No turns are handed out. */
void turn_tenant_release(turn_tenant *tenant);
