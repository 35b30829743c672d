/* The start of every call, which checks for initialisation, faults and a context. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "sim/cuda/core.h"

__thread sim_thread *sim_self_pointer;
__thread bool sim_next_per_thread;
sim_process sim_here;

static pthread_mutex_t big = PTHREAD_MUTEX_INITIALIZER;
/* cancellation state of the thread that holds the lock, which must not be cancelled meanwhile */
static int cancel_state;

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
  if (!t) abort(); /* no call can work without this memory */
  pthread_setspecific(thread_end, t);
  return sim_self_pointer = t;
}

/* A flag on a page that the kernel wipes in the child of a fork, because the child is not
 * initialised, as with the real driver. */
static uint32_t *initialized_here;

static uint32_t *mark(void) { return __atomic_load_n(&initialized_here, __ATOMIC_ACQUIRE); }

bool sim_initialized(void) {
  const uint32_t *page = mark();
  return page && __atomic_load_n(page, __ATOMIC_RELAXED);
}

bool sim_set_initialized(void) {
  void *page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED || madvise(page, 4096, MADV_WIPEONFORK)) return false;
  /* stored before other threads see the page, because 0 means the child of a fork */
  *(uint32_t *)page = 1;
  __atomic_store_n(&initialized_here, page, __ATOMIC_RELEASE);
  return true;
}

bool sim_is_forked_child(void) {
  const uint32_t *page = mark();
  return page && !__atomic_load_n(page, __ATOMIC_RELAXED);
}

/* Counts the call, and delays it for an injected fault. */
static void delay_call(const char *call) {
  sim_machine *m = sim_here.machine;
  for (int i = 0; i < sim_here.gpu_count; i++) {
    uint64_t served = __atomic_load_n(&sim_here.gpus[i].served, __ATOMIC_RELAXED);
    uint32_t device = (uint32_t)(served >> 32), client = (uint32_t)served;
    if (client != SIM_NONE)
      __atomic_fetch_add(&m->devices[device].clients[client].calls, 1, __ATOMIC_RELAXED);
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
  delay_call(call);
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
  bool entered = sim_initialized() && !sim_self.in_callback;
  CUresult result = entered ? sim_keeper_enter(call) : CUDA_SUCCESS;
  if (result == CUDA_SUCCESS) result = ctx ? sim_enter_context(call, ctx) : sim_enter(call);
  return (sim_call){sim_fail(result), entered};
}

void sim_call_end(sim_call *call) {
  if (call->entered) sim_keeper_leave();
  if (--sim_self.calls || !sim_self.failed) return;
  CUresult error = sim_self.failed;
  sim_self.failed = CUDA_SUCCESS;
  if (error != CUDA_ERROR_NOT_READY) sim_logs_tell(error);
}

void sim_spend(uint32_t ns) { sim_spin_until(sim_self.entered_ns + ns); }
