/* What every call does first: is the driver initialised, does a fault hit, is there a context. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "sim/cuda/core.h"

__thread sim_thread *sim_self_pointer;
__thread bool sim_next_per_thread;
sim_process sim_here;

static pthread_mutex_t big = PTHREAD_MUTEX_INITIALIZER;
static int cancel_state; /* of who has it: a thread is not cancelled while it does */

void sim_big_lock(void) {
  int state;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
  pthread_mutex_lock(&big);
  cancel_state = state;
}

void sim_big_unlock(void) {
  int state = cancel_state;
  pthread_mutex_unlock(&big);
  pthread_setcancelstate(state, &state);
}

static pthread_key_t thread_end;
static pthread_once_t thread_end_made = PTHREAD_ONCE_INIT;

static void free_thread(void *pointer) {
  sim_thread *t = pointer;
  free(t->param_bytes);
  free(t->param_list);
  free(t);
  sim_self_pointer = NULL;
}

static void make_thread_end(void) { pthread_key_create(&thread_end, free_thread); }

sim_thread *sim_thread_new(void) {
  pthread_once(&thread_end_made, make_thread_end);
  sim_thread *t = calloc(1, sizeof *t);
  if (!t) abort(); /* nothing can be answered without it */
  pthread_setspecific(thread_end, t);
  return sim_self_pointer = t;
}

/* A page that the kernel wipes in the child of a fork: a forked child is not initialised, as with
 * the real driver, and nobody has to compare pids. */
static uint32_t *initialized_here;

static uint32_t *mark(void) { return __atomic_load_n(&initialized_here, __ATOMIC_ACQUIRE); }

bool sim_initialized(void) {
  const uint32_t *page = mark();
  return page && __atomic_load_n(page, __ATOMIC_RELAXED);
}

bool sim_set_initialized(void) {
  void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED || madvise(page, 4096, MADV_WIPEONFORK)) return false;
  *(uint32_t *)page = 1; /* before others see the page: empty it means a child of a fork */
  __atomic_store_n(&initialized_here, page, __ATOMIC_RELEASE);
  return true;
}

bool sim_is_forked_child(void) {
  const uint32_t *page = mark();
  return page && !__atomic_load_n(page, __ATOMIC_RELAXED);
}

/* Counts the call, and lets it suffer what keeps it from going on: a lock by
 * cuCheckpointProcessLock, an injected fault. */
static void suffer(const char *call) {
  sim_machine *m = sim_here.machine;
  for (int i = 0; i < sim_here.gpu_count; i++) {
    uint32_t device = sim_here.gpus[i].device,
             client = __atomic_load_n(&sim_here.gpus[i].client, __ATOMIC_RELAXED);
    if (client != SIM_NONE) {
      __atomic_fetch_add(&m->devices[device].clients[client].calls, 1, __ATOMIC_RELAXED);
      while (__atomic_load_n(&m->devices[device].clients[client].frozen, __ATOMIC_ACQUIRE))
        sim_wait_thaw(m, device, client);
    }
    if (!__atomic_load_n(&m->devices[device].fault_count, __ATOMIC_ACQUIRE)) continue;
    uint64_t value_ns;
    if (sim_fault_hits(m, device, SIM_FAULT_SLOW, call, &value_ns))
      sim_sleep_until(sim_now_ns() + value_ns);
    if (sim_fault_hits(m, device, SIM_FAULT_HANG, call, NULL))
      while (__atomic_load_n(&m->devices[device].fault_count, __ATOMIC_ACQUIRE))
        sim_sleep_until(sim_now_ns() + 5000000);
  }
}

CUresult sim_enter(const char *call) {
  sim_self.per_thread = sim_next_per_thread;
  sim_next_per_thread = false;
  if (!sim_initialized()) return CUDA_ERROR_NOT_INITIALIZED;
  if (sim_self.in_callback) return CUDA_ERROR_NOT_PERMITTED;
  sim_self.call = call;
  sim_self.entered_ns = sim_now_ns();
  suffer(call);
  return CUDA_SUCCESS;
}

CUresult sim_enter_context(const char *call, sim_context **ctx) {
  TRY(sim_enter(call));
  *ctx = sim_current();
  if (!*ctx) return CUDA_ERROR_INVALID_CONTEXT;
  if (!(*ctx)->alive) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
  return sim_context_error(*ctx);
}

sim_call sim_call_begin(const char *call, sim_context **ctx) {
  if (sim_self.calls++ == 0) sim_self.failed = CUDA_SUCCESS;
  CUresult result = ctx ? sim_enter_context(call, ctx) : sim_enter(call);
  return (sim_call){sim_fail(result)};
}

void sim_call_end(sim_call *call) {
  (void)call;
  if (--sim_self.calls || !sim_self.failed) return;
  CUresult error = sim_self.failed;
  sim_self.failed = CUDA_SUCCESS;
  if (error != CUDA_ERROR_NOT_READY) sim_logs_tell(error);
}

void sim_spend(uint32_t ns) { sim_spin_until(sim_self.entered_ns + ns); }
