/* A tenant as the time-slice scheduler sees it: its pages, its credit, its work. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "mechanism/turn.h"
#include "turns/account.h"
#include "turns/giver.h"
#include "turns/look.h"

typedef struct turn_tenant {
  uint64_t number;
  penstock_quota_page *quota; /* mapped: the process of this thread writes it */
  int usage_fd;
  unsigned device;
  bool suspended;
  bool ran_dry;        /* in its last slice */
  uint64_t looked_ns;  /* time of the last sample; 0: never */
  uint64_t changed_ns; /* when work of it was last seen to have ended */
  penstock_look look;
  penstock_account account;
  penstock_turns_figures figures;
} turn_tenant;

/* 0 or a negative errno; see penstock_turns_add. */
int turn_tenant_open(turn_tenant **out, uint64_t number, int quota_fd, int usage_fd,
                     unsigned device);
/* The tenant continues without time slices. */
void turn_tenant_close(turn_tenant *tenant);

/* Takes a sample of both pages. */
void turn_tenant_look(turn_tenant *tenant, uint64_t now_ns);
/* Has it been at work recently? */
bool turn_tenant_is_active(const turn_tenant *tenant, uint64_t now_ns);
/* Has it been at work within seconds? */
bool turn_tenant_is_awake(const turn_tenant *tenant, uint64_t now_ns);
/* Has a thread of it waited at the gate recently, and since its last slice if it ran dry there? */
bool turn_tenant_wants(const turn_tenant *tenant, uint64_t now_ns);

/* There are time slices, and the current one is not this tenant's. */
void turn_tenant_exclude(turn_tenant *tenant, uint64_t now_ns);
/* There are no time slices. */
void turn_tenant_release(turn_tenant *tenant);
