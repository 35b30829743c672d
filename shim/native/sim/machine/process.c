/* Processes that have initialised the driver, and the requests of checkpoint calls to them. A
 * request is carried out by a thread of the process itself, its keeper, as the restore thread of a
 * real driver does it. So a caller that is killed leaves a request that is carried out to its end,
 * and a process that is stopped (SIGSTOP) answers nobody. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "sim/machine/model.h"

#define LOOK_NS 5000000    /* period of checks whether the other side lives */
#define ANSWER_NS 20000000 /* time that a keeper gets to answer a lock that timed out */
#define NOT_READY 600      /* CUDA_ERROR_NOT_READY */
#define NO_PROCESS 1       /* CUDA_ERROR_INVALID_VALUE: the process has ended */

bool sim_process_lives(sim_process_entry *p) {
  int answer = pthread_mutex_trylock(&p->alive);
  if (answer == EBUSY) return true;
  if (answer == EOWNERDEAD) pthread_mutex_consistent(&p->alive);
  pthread_mutex_unlock(&p->alive);
  return false;
}

/* Fills an entry. The caller holds the lock of device 0, which guards the choice of entries. */
static bool take(sim_process_entry *p) {
  int answer = pthread_mutex_trylock(&p->alive);
  if (answer == EBUSY) return false;
  if (answer == EOWNERDEAD) pthread_mutex_consistent(&p->alive);
  p->pid = (int32_t)getpid();
  p->pid_namespace = sim_own_pid_namespace();
  p->keeper = (int32_t)syscall(SYS_gettid);
  p->result = p->pair_count = 0;
  __atomic_store_n(&p->state, 0, __ATOMIC_RELEASE);
  __atomic_store_n(&p->request, SIM_NO_REQUEST, __ATOMIC_RELEASE);
  __atomic_store_n(&p->used, 1, __ATOMIC_RELEASE);
  return true;
}

sim_process_entry *sim_process_register(sim_machine *m) {
  sim_device *d = sim_lock_bare(m, 0);
  sim_process_entry *found = NULL;
  for (int i = 0; i < SIM_PROCESSES && !found; i++)
    if (take(&m->processes[i])) found = &m->processes[i];
  sim_unlock(d);
  return found;
}

/* Reads the pid of a process in its innermost pid namespace, and that namespace. Returns 0 if there
 * is no such process, or /proc does not show it. */
static int32_t inner_pid(int32_t pid, uint64_t *pid_namespace) {
  char path[64], line[256];
  struct stat found;
  snprintf(path, sizeof path, "/proc/%d/ns/pid", pid);
  if (stat(path, &found)) return 0;
  *pid_namespace = (uint64_t)found.st_ino;
  snprintf(path, sizeof path, "/proc/%d/status", pid);
  FILE *file = fopen(path, "re");
  int32_t inner = 0;
  while (file && !inner && fgets(line, sizeof line, file)) {
    char *last = strncmp(line, "NSpid:", 6) ? NULL : strrchr(line, '\t');
    if (last) inner = (int32_t)strtol(last, NULL, 10);
  }
  if (file) fclose(file);
  return inner;
}

sim_process_entry *sim_process_find(sim_machine *m, int32_t pid) {
  uint64_t pid_namespace = sim_own_pid_namespace();
  int32_t inner = inner_pid(pid, &pid_namespace);
  if (!inner) inner = pid;
  for (int i = 0; i < SIM_PROCESSES; i++) {
    sim_process_entry *p = &m->processes[i];
    if (__atomic_load_n(&p->used, __ATOMIC_ACQUIRE) && p->pid == inner &&
        p->pid_namespace == pid_namespace && sim_process_lives(p))
      return p;
  }
  return NULL;
}

static uint32_t request_of(sim_process_entry *p) {
  return __atomic_load_n(&p->request, __ATOMIC_ACQUIRE);
}

static bool change(uint32_t *word, uint32_t from, uint32_t to) {
  return __atomic_compare_exchange_n(word, &from, to, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

/* Waits until the keeper has answered. Returns false if the process has ended, or at `until`. */
static bool wait_for_answer(sim_process_entry *p, uint64_t until) {
  while (request_of(p) != SIM_NO_REQUEST) {
    uint32_t seen = __atomic_load_n(&p->done, __ATOMIC_ACQUIRE);
    if (request_of(p) == SIM_NO_REQUEST) break;
    if (sim_now_ns() > until || !sim_process_lives(p)) return false;
    sim_futex_wait(&p->done, seen, LOOK_NS);
  }
  return true;
}

/* Takes back a lock that was not answered in time. Returns false if it has been answered after
 * all. */
static bool give_up(sim_process_entry *p) {
  for (;;) {
    uint32_t word = request_of(p);
    if (word == SIM_NO_REQUEST) return false;
    uint32_t to = word & SIM_POSTED ? SIM_NO_REQUEST : (word & 0xff) | SIM_ABANDONED;
    if (change(&p->request, word, to)) return true;
  }
}

static bool own_the_call(sim_process_entry *p, uint64_t until) {
  for (;;) {
    int answer = pthread_mutex_trylock(&p->caller);
    if (answer == EOWNERDEAD) pthread_mutex_consistent(&p->caller);
    if (answer == 0 || answer == EOWNERDEAD) return true;
    if (sim_now_ns() > until || !sim_process_lives(p)) return false;
    sim_sleep_until(sim_now_ns() + 200000);
  }
}

uint32_t sim_process_ask(sim_process_entry *p, enum sim_request request, uint64_t wait_ns,
                         const sim_pair *pairs, uint32_t pair_count) {
  uint64_t until = wait_ns ? sim_now_ns() + wait_ns + ANSWER_NS : UINT64_MAX;
  if (!own_the_call(p, until)) return sim_process_lives(p) ? NOT_READY : NO_PROCESS;
  uint32_t result = NO_PROCESS;
  /* what a caller that was killed has asked for is carried out first */
  if (wait_for_answer(p, until)) {
    p->timeout_ns = wait_ns;
    p->pair_count = pair_count;
    if (pair_count) memcpy(p->pairs, pairs, pair_count * sizeof *pairs);
    __atomic_store_n(&p->request, request | SIM_POSTED, __ATOMIC_RELEASE);
    __atomic_add_fetch(&p->bell, 1, __ATOMIC_RELEASE);
    sim_futex_wake(&p->bell);
    if (wait_for_answer(p, until) || (sim_process_lives(p) && !give_up(p)))
      result = p->result;
    else if (sim_process_lives(p))
      result = NOT_READY;
  } else if (sim_process_lives(p)) {
    result = NOT_READY;
  }
  pthread_mutex_unlock(&p->caller);
  return result;
}
