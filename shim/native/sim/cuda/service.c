/* The service threads: one for each device, started with the process's first context there. It does
 * the host work of the process's streams. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>

#include "sim/cuda/core.h"

static bool value_is_there(const sim_errand *e) {
  uint64_t now = e->width == 4 ? __atomic_load_n((uint32_t *)e->address, __ATOMIC_ACQUIRE)
                               : __atomic_load_n((uint64_t *)e->address, __ATOMIC_ACQUIRE);
  int64_t ahead =
      e->width == 4 ? (int32_t)((uint32_t)now - (uint32_t)e->value) : (int64_t)(now - e->value);
  switch (e->flags & 3) {
    case CU_STREAM_WAIT_VALUE_EQ:
      return ahead == 0;
    case CU_STREAM_WAIT_VALUE_AND:
      return (now & e->value) != 0;
    case CU_STREAM_WAIT_VALUE_NOR:
      return ~(now | e->value) << (e->width == 4 ? 32 : 0) != 0;
    default:
      return ahead >= 0;
  }
}

static void write_value(const sim_errand *e) {
  if (e->width == 4)
    __atomic_store_n((uint32_t *)e->address, (uint32_t)e->value, __ATOMIC_RELEASE);
  else
    __atomic_store_n((uint64_t *)e->address, e->value, __ATOMIC_RELEASE);
  sim_ring_watchers(sim_here.machine);
}

static bool run_errand(const sim_op *op) {
  sim_errand *e = (sim_errand *)op->owner_data;
  if (op->kind == SIM_KERNEL && e->store_address) {
    if (e->adds)
      __atomic_add_fetch((uint64_t *)e->store_address, e->store_value, __ATOMIC_ACQ_REL);
    else
      __atomic_store_n((uint64_t *)e->store_address, e->store_value, __ATOMIC_RELEASE);
    e->store_address = 0;
    sim_ring_watchers(sim_here.machine);
  }
  if (op->kind == SIM_KERNEL && !value_is_there(e)) return false;
  if (op->kind == SIM_WAIT_VALUE && !value_is_there(e)) return false;
  sim_self.in_callback = true;
  if (e->write)
    write_value(e);
  else if (e->function)
    e->function(e->user_data);
  else if (e->callback)
    e->callback(e->stream, CUDA_SUCCESS, e->user_data);
  sim_self.in_callback = false;
  free(e);
  return true;
}

/* Writes the values that are due. They must be visible after a synchronisation, and a thread that
 * is in the driver anyway writes them sooner than the service thread. */
void sim_write_values(sim_gpu *gpu) {
  if (gpu->client != SIM_NONE) sim_deliver(sim_here.machine, gpu->device, gpu->client, run_errand);
}

/* A restore may have moved the process to another device; the work of its streams is there then. */
static void *serve(void *argument) {
  sim_gpu *gpu = argument;
  prctl(PR_SET_NAME, "cuda-sim", 0, 0, 0);
  prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
  for (;;) {
    uint64_t served = __atomic_load_n(&gpu->served, __ATOMIC_ACQUIRE);
    uint32_t device = (uint32_t)(served >> 32), client = (uint32_t)served;
    sim_client *c = &sim_here.machine->devices[device].clients[client];
    uint32_t seen = __atomic_load_n(&c->bell, __ATOMIC_ACQUIRE);
    if (__atomic_load_n(&gpu->served, __ATOMIC_ACQUIRE) != served) continue;
    uint64_t next = sim_owner_run(sim_here.machine, device, client, run_errand);
    uint64_t now = sim_now_ns();
    if (next > now)
      sim_futex_wait(&c->bell, seen, next == UINT64_MAX ? 3600000000000ull : next - now);
  }
  return NULL;
}

/* Starts the service thread. Returns false if no thread could be started. */
bool sim_service_start(sim_gpu *gpu) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, 1 << 20);
  sigset_t all, before;
  sigfillset(&all); /* signals are left to the program's own threads */
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  int failed = pthread_create(&thread, &attributes, serve, gpu);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&attributes);
  return !failed;
}
