/* One thread a device, started with the first context: it holds the process's place there (its end
 * is how the device notices that of the process) and runs what streams ask of the host.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>

#include "sim/cuda/core.h"

typedef struct start {
  sim_gpu *gpu;
  const char *tag;
  uint32_t client;
  bool ready;
  pthread_mutex_t lock;
  pthread_cond_t changed;
} start;

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

/* Writes the values whose turn has come. After a synchronisation they must be there; and a thread
 * that calls the driver anyway is quicker than waking ours. */
void sim_write_values(sim_gpu *gpu) {
  if (gpu->client != SIM_NONE) sim_deliver(sim_here.machine, gpu->device, gpu->client, run_errand);
}

static void *serve(void *argument) {
  start *s = argument;
  sim_gpu *gpu = s->gpu;
  prctl(PR_SET_NAME, "cuda-sim", 0, 0, 0);
  prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
  uint32_t client = sim_attach(sim_here.machine, gpu->device, s->tag);
  pthread_mutex_lock(&s->lock);
  s->client = client;
  s->ready = true;
  pthread_cond_signal(&s->changed);
  pthread_mutex_unlock(&s->lock);
  if (client == SIM_NONE) return NULL;
  sim_client *c = &sim_here.machine->devices[gpu->device].clients[client];
  for (;;) {
    uint32_t seen = __atomic_load_n(&c->bell, __ATOMIC_ACQUIRE);
    uint64_t next = sim_owner_run(sim_here.machine, gpu->device, client, run_errand);
    uint64_t now = sim_now_ns();
    if (next > now)
      sim_futex_wait(&c->bell, seen, next == UINT64_MAX ? 3600000000000ull : next - now);
  }
}

/* The place in the machine; SIM_NONE when none is left or no thread could be started. */
uint32_t sim_service_start(sim_gpu *gpu, const char *tag) {
  start s = {.gpu = gpu, .tag = tag, .client = SIM_NONE};
  pthread_mutex_init(&s.lock, NULL);
  pthread_cond_init(&s.changed, NULL);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, 1 << 20);
  sigset_t all, before;
  sigfillset(&all); /* the program's signals are for its own threads */
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  int failed = pthread_create(&thread, &attributes, serve, &s);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&attributes);
  if (!failed) {
    pthread_mutex_lock(&s.lock);
    while (!s.ready) pthread_cond_wait(&s.changed, &s.lock);
    pthread_mutex_unlock(&s.lock);
  }
  return s.client;
}
