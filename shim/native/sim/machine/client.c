/* Clients (processes on a device): how they attach, and how their end is noticed.
 *
 * A thread of the process holds the client's `alive` mutex for as long as the process lives. It is
 * a robust mutex, which the kernel marks when the holder ends, however that happens and in any pid
 * namespace. Checking it therefore takes no system call, and a reused pid makes no difference.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sim/machine/model.h"

#ifndef MADV_POPULATE_WRITE /* not defined in older headers */
#define MADV_POPULATE_WRITE 23
#endif

static uint64_t own_start_ticks(void) {
  char text[1024];
  int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  ssize_t got = read(fd, text, sizeof text - 1);
  close(fd);
  if (got <= 0) return 0;
  text[got] = 0;
  char *at = strrchr(text, ')'); /* the command may contain any characters */
  for (int field = 2; at && field < 22; field++) at = strchr(at + 1, ' ');
  return at ? strtoull(at + 1, NULL, 10) : 0;
}

/* Returns the inode of this process's pid namespace, by which readers in other pid namespaces find
 * the pid that the process has there, as a kernel driver would report it. */
uint64_t sim_own_pid_namespace(void) {
  struct stat found;
  return stat("/proc/self/ns/pid", &found) == 0 ? (uint64_t)found.st_ino : 0;
}

static void own_comm(char comm[16]) {
  memset(comm, 0, 16);
  int fd = open("/proc/self/comm", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  ssize_t got = read(fd, comm, 15);
  close(fd);
  if (got > 0 && comm[got - 1] == '\n') comm[got - 1] = 0;
}

/* Chooses an unused entry, or else the entry whose process ended longest ago. */
static uint32_t choose_place(sim_device *d) {
  if (d->clients_high < SIM_CLIENTS) return d->clients_high;
  uint32_t oldest = SIM_NONE;
  for (uint32_t i = 0; i < SIM_CLIENTS; i++) {
    sim_client *c = &d->clients[i];
    if (c->state == SIM_CLIENT_FREE) return i;
    if (c->state == SIM_CLIENT_ENDED &&
        (oldest == SIM_NONE || c->ended_ns < d->clients[oldest].ended_ns))
      oldest = i;
  }
  return oldest;
}

static void hold_alive(sim_client *c) {
  pthread_mutexattr_t shared;
  pthread_mutexattr_init(&shared);
  pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&shared, PTHREAD_MUTEX_ROBUST);
  memset(&c->alive, 0, sizeof c->alive);
  pthread_mutex_init(&c->alive, &shared);
  pthread_mutexattr_destroy(&shared);
  pthread_mutex_trylock(&c->alive); /* cannot fail, because the mutex is new */
}

/* Allocates an area's memory, so that a full file system is an error here and not a SIGBUS later.
 * Works through the mapping, because the file's descriptor and path may be gone. Kernels before
 * 5.14 cannot do this (EINVAL), so that the area stays sparse there. */
static bool back_area(sim_area *a) {
  while (madvise(a, sizeof *a, MADV_POPULATE_WRITE)) {
    if (errno == EFAULT || errno == ENOMEM) return false;
    if (errno != EINTR && errno != EAGAIN) break;
  }
  return true;
}

static void drop_area(sim_area *a) { madvise(a, sizeof *a, MADV_REMOVE); }

/* Chooses an entry, allocates its area and locks the device. The area is allocated without the
 * lock, because other processes wait for the lock. Sets `place` to SIM_NONE if there is no entry or
 * no room for its area. */
static sim_device *lock_with_place(sim_machine *m, uint32_t device, uint32_t *place) {
  bool backed = true;
  *place = SIM_NONE;
  for (;;) {
    sim_device *d = sim_lock(m, device);
    sim_reap(m, d);
    uint32_t next = choose_place(d);
    bool same = next == *place;
    if (!backed) {
      /* if not the same, another process has taken it */
      if (same) drop_area(sim_area_of(m, device, next));
      *place = SIM_NONE;
      return d;
    }
    if (same || next == SIM_NONE) {
      *place = next;
      return d;
    }
    sim_unlock(d);
    *place = next;
    backed = back_area(sim_area_of(m, device, next));
  }
}

/* Attaches this process to a device. Call it on a thread that lives as long as the process. */
uint32_t sim_attach(sim_machine *m, uint32_t device, const char *tag) {
  uint32_t place;
  sim_device *d = lock_with_place(m, device, &place);
  if (place != SIM_NONE) {
    sim_client *c = &d->clients[place];
    /* never reset, so that no old reference matches a new operation */
    uint64_t next_seq = c->next_seq;
    memset(c, 0, sizeof *c);
    c->next_seq = next_seq + 1;
    c->pid = (int32_t)getpid();
    c->start_ticks = own_start_ticks();
    c->pid_namespace = sim_own_pid_namespace();
    own_comm(c->comm);
    snprintf(c->tag, sizeof c->tag, "%s", tag && *tag ? tag : c->comm);
    c->began_ns = d->t_ns;
    c->free_head = c->deliver_head = c->deliver_tail = SIM_NONE;
    hold_alive(c);
    sim_bit_set(d->live, place);
    if (place >= d->clients_high) __atomic_store_n(&d->clients_high, place + 1, __ATOMIC_RELAXED);
    __atomic_store_n(&c->state, SIM_CLIENT_LIVE, __ATOMIC_RELEASE);
  }
  sim_unlock(d);
  return place;
}

void sim_forget_ops(sim_machine *m, sim_device *d, uint32_t client) {
  sim_client *c = &d->clients[client];
  sim_area *a = sim_area_of(m, (uint32_t)(d - m->devices), client);
  for (uint16_t slot = 0; slot < c->op_high; slot++)
    __atomic_store_n(&a->ops[slot].seq, 0, __ATOMIC_RELEASE);
  c->op_high = 0;
  c->op_count = c->owner_count = c->lane_count = c->running_count = c->width_used = 0;
  c->queued_behind = 0;
  memset(c->queue_lanes, 0, sizeof c->queue_lanes);
  c->free_head = c->deliver_tail = SIM_NONE;
  __atomic_store_n(&c->deliver_head, SIM_NONE, __ATOMIC_RELAXED);
  for (int k = 0; k < SIM_ENGINES; k++) {
    if (d->engines[k].client == client) d->engines[k] = (sim_engine){SIM_NONE, 0};
    sim_bit_clear(d->want_copy[k], client);
  }
  sim_bit_clear(d->want_compute, client);
  sim_bit_clear(d->active, client);
}

static void bury(sim_machine *m, sim_device *d, uint32_t client) {
  sim_client *c = &d->clients[client];
  sim_forget_ops(m, d, client);
  sim_shared_forget(d, client);
  d->memory_used -= c->memory_bytes < d->memory_used ? c->memory_bytes : d->memory_used;
  c->memory_bytes = 0;
  c->ended_ns = d->t_ns;
  sim_bit_clear(d->live, client);
  c->state = SIM_CLIENT_ENDED;
  /* the area then reads as zero */
  drop_area(sim_area_of(m, (uint32_t)(d - m->devices), client));
}

void sim_detach(sim_machine *m, uint32_t device, uint32_t client) {
  sim_device *d = sim_lock(m, device);
  pthread_mutex_unlock(&d->clients[client].alive);
  bury(m, d, client);
  sim_unlock(d);
}

void sim_reap(sim_machine *m, sim_device *d) {
  d->reaped_ns = sim_now_ns();
  for (uint32_t word = 0; word * 64 < d->clients_high; word++) {
    for (uint64_t bits = d->live[word]; bits; bits &= bits - 1) {
      uint32_t client = word * 64 + (uint32_t)__builtin_ctzll(bits);
      int answer = pthread_mutex_trylock(&d->clients[client].alive);
      if (answer == EBUSY) continue;
      if (answer == EOWNERDEAD) pthread_mutex_consistent(&d->clients[client].alive);
      pthread_mutex_unlock(&d->clients[client].alive);
      bury(m, d, client);
    }
  }
}
