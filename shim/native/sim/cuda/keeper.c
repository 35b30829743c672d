/* The keeper: a thread that is started by cuInit. It keeps the process attached to its devices, so
 * that they notice the end of the process by the end of the thread, and it carries out checkpoints,
 * as the restore thread of a real driver does. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>

#include "sim/cuda/core.h"

#define POLL_NS 100000
#define IDLE_NS 3600000000000ull

/* Calls that depend on no device. NVIDIA's documentation says that calls block that launch work,
 * manage resources or otherwise affect the state of a GPU, and that others may block; here all
 * others do. */
static const char *const passing[] = {"cuDeviceGet", "cuDeviceGetCount", "cuCtxGetCurrent"};

static sim_process_entry *entry;
static uint32_t locked;    /* futex: nonzero while calls wait */
static uint32_t under_way; /* number of threads inside a call that a lock stops */

static struct {
  pthread_mutex_t lock;
  pthread_cond_t changed;
  enum { NOTHING, REGISTER, ATTACH } job;
  uint32_t device, client;
  char tag[SIM_TAG_BYTES];
} job = {.lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

static bool passes(const char *call) {
  for (size_t i = 0; i < sizeof passing / sizeof *passing; i++)
    if (!strcmp(call, passing[i])) return true;
  return false;
}

bool sim_calls_are_under_way(void) { return __atomic_load_n(&under_way, __ATOMIC_SEQ_CST) != 0; }

CUresult sim_keeper_enter(const char *call) {
  if (sim_self.inside++ || passes(call)) return CUDA_SUCCESS;
  for (;;) {
    __atomic_add_fetch(&under_way, 1, __ATOMIC_SEQ_CST);
    uint32_t seen = __atomic_load_n(&locked, __ATOMIC_SEQ_CST);
    if (!seen) break;
    __atomic_sub_fetch(&under_way, 1, __ATOMIC_SEQ_CST);
    sim_futex_wait(&locked, seen, 100000000);
  }
  sim_self.counted = true;
  /* What a process can do whose checkpoint has failed is not documented. */
  return __atomic_load_n(&entry->state, __ATOMIC_ACQUIRE) == CU_PROCESS_STATE_FAILED
             ? CUDA_ERROR_ILLEGAL_STATE
             : CUDA_SUCCESS;
}

void sim_keeper_leave(void) {
  if (--sim_self.inside || !sim_self.counted) return;
  sim_self.counted = false;
  __atomic_sub_fetch(&under_way, 1, __ATOMIC_SEQ_CST);
}

static void set_locked(bool on) {
  if (!__atomic_exchange_n(&locked, on, __ATOMIC_SEQ_CST) || on) return;
  for (int i = 0; i < 64; i++) sim_futex_wake(&locked); /* it wakes 64 threads at a time */
}

static void set_state(CUprocessState state) {
  __atomic_store_n(&entry->state, (uint32_t)state, __ATOMIC_RELEASE);
}

/* Does what other threads of this process ask for. */
static void do_job(void) {
  pthread_mutex_lock(&job.lock);
  if (job.job == ATTACH) {
    job.client = sim_attach(sim_here.machine, job.device, job.tag);
    job.job = NOTHING;
    pthread_cond_broadcast(&job.changed);
  }
  pthread_mutex_unlock(&job.lock);
}

/* ---- requests ---- */

static bool has_work(void) {
  for (int i = 0; i < sim_here.gpu_count; i++) {
    uint32_t client = __atomic_load_n(&sim_here.gpus[i].client, __ATOMIC_ACQUIRE);
    if (client != SIM_NONE && sim_client_busy(sim_here.machine, sim_here.gpus[i].device, client))
      return true;
  }
  return false;
}

/* Returns whether the caller still waits for the lock. */
static bool is_wanted(void) {
  if (__atomic_load_n(&entry->request, __ATOMIC_ACQUIRE) & SIM_ABANDONED) return false;
  int answer = pthread_mutex_trylock(&entry->caller);
  if (answer == EOWNERDEAD) pthread_mutex_consistent(&entry->caller);
  if (answer == 0 || answer == EOWNERDEAD) pthread_mutex_unlock(&entry->caller);
  return answer == EBUSY;
}

static CUresult lock(void) {
  uint64_t until = entry->timeout_ns ? sim_now_ns() + entry->timeout_ns : UINT64_MAX;
  set_locked(true);
  while (sim_calls_are_under_way() || has_work()) {
    do_job(); /* a call under way may wait for it */
    if (sim_now_ns() > until || !is_wanted()) return CUDA_ERROR_NOT_READY;
    sim_futex_sleep(&locked, 1, sim_now_ns() + POLL_NS);
  }
  set_state(CU_PROCESS_STATE_LOCKED);
  return CUDA_SUCCESS;
}

/* Before r580, NVIDIA documents that a process is not kept in a good state if an error is
 * encountered during its checkpoint or restore. Later versions do not say so. */
static CUresult failed(CUresult result) {
  if (sim_here.machine->devices[0].profile.driver_major >= 580) return result;
  set_state(CU_PROCESS_STATE_FAILED);
  return result;
}

static CUresult carry_out(enum sim_request request) {
  static const CUprocessState needs[] = {
      [SIM_LOCK] = CU_PROCESS_STATE_RUNNING,
      [SIM_CHECKPOINT] = CU_PROCESS_STATE_LOCKED,
      [SIM_RESTORE] = CU_PROCESS_STATE_CHECKPOINTED,
      [SIM_UNLOCK] = CU_PROCESS_STATE_LOCKED,
  };
  if (entry->state != (uint32_t)needs[request]) return CUDA_ERROR_ILLEGAL_STATE;
  CUresult result = CUDA_SUCCESS;
  switch (request) {
    case SIM_LOCK:
      return lock();
    case SIM_CHECKPOINT:
      result = sim_suspend_save();
      if (result) return failed(result);
      set_state(CU_PROCESS_STATE_CHECKPOINTED);
      break;
    case SIM_RESTORE:
      result = sim_suspend_restore(entry->pairs, entry->pair_count);
      /* a caller's mistake changes nothing */
      if (result) return result == CUDA_ERROR_OUT_OF_MEMORY ? failed(result) : result;
      set_state(CU_PROCESS_STATE_LOCKED);
      break;
    case SIM_UNLOCK:
      set_state(CU_PROCESS_STATE_RUNNING);
      break;
    case SIM_NO_REQUEST:
      break;
  }
  return result;
}

static void answer_requests(void) {
  uint32_t word = __atomic_load_n(&entry->request, __ATOMIC_ACQUIRE);
  if (!(word & SIM_POSTED)) return;
  uint32_t request = word & 0xff, taken = request | SIM_TAKEN;
  if (!__atomic_compare_exchange_n(&entry->request, &word, taken, false, __ATOMIC_ACQ_REL,
                                   __ATOMIC_ACQUIRE))
    return; /* its caller has withdrawn it */
  entry->result = (uint32_t)carry_out((enum sim_request)request);
  uint32_t expected = taken;
  if (!__atomic_compare_exchange_n(&entry->request, &expected, SIM_NO_REQUEST, false,
                                   __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
    /* The caller gave up meanwhile, which only a caller of lock does, and has reported a timeout.
     */
    if (entry->result == CUDA_SUCCESS) set_state(CU_PROCESS_STATE_RUNNING);
    __atomic_store_n(&entry->request, SIM_NO_REQUEST, __ATOMIC_RELEASE);
  }
  __atomic_add_fetch(&entry->done, 1, __ATOMIC_RELEASE);
  sim_futex_wake(&entry->done);
  /* only now, because the program may end as soon as its calls go on */
  if (entry->state == CU_PROCESS_STATE_RUNNING || entry->state == CU_PROCESS_STATE_FAILED)
    set_locked(false);
}

static void *keep(void *unused) {
  (void)unused;
  prctl(PR_SET_NAME, "cuda-sim", 0, 0, 0);
  prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0);
  pthread_mutex_lock(&job.lock);
  entry = sim_process_register(sim_here.machine);
  job.job = NOTHING;
  pthread_cond_broadcast(&job.changed);
  pthread_mutex_unlock(&job.lock);
  while (entry) {
    uint32_t seen = __atomic_load_n(&entry->bell, __ATOMIC_ACQUIRE);
    do_job();
    answer_requests();
    sim_futex_wait(&entry->bell, seen, IDLE_NS);
  }
  return NULL;
}

static void wait_for_job(void) {
  while (job.job != NOTHING) pthread_cond_wait(&job.changed, &job.lock);
}

/* Starts the keeper. The caller holds the big lock. */
bool sim_keeper_start(void) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
  pthread_attr_setstacksize(&attributes, 1 << 20);
  sigset_t all, before;
  sigfillset(&all); /* signals are left to the program's own threads */
  pthread_sigmask(SIG_SETMASK, &all, &before);
  pthread_t thread;
  pthread_mutex_lock(&job.lock);
  job.job = REGISTER;
  bool started = !pthread_create(&thread, &attributes, keep, NULL);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  pthread_attr_destroy(&attributes);
  if (started) wait_for_job();
  pthread_mutex_unlock(&job.lock);
  return started && entry;
}

/* Attaches the process to a device. The caller holds the big lock. */
uint32_t sim_keeper_attach(uint32_t device, const char *tag) {
  pthread_mutex_lock(&job.lock);
  job.device = device;
  snprintf(job.tag, sizeof job.tag, "%s", tag ? tag : "");
  job.job = ATTACH;
  __atomic_add_fetch(&entry->bell, 1, __ATOMIC_RELEASE);
  sim_futex_wake(&entry->bell);
  wait_for_job();
  uint32_t client = job.client;
  pthread_mutex_unlock(&job.lock);
  return client;
}
