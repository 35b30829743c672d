/* Tables of contexts and streams, and each thread's cache of them. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "devices/grants.h"
#include "process/fork_wiped.h"
#include "hooks/launch_state.h"
#include "mechanism/lock.h"
#include "mechanism/random.h"

static uint32_t births; /* survives a fork, so that no two states have the same number */

/* A single pointer, because a library that may be opened late has little thread-local space. */
static __thread gate_thread *mine;
/* Its address identifies the thread; its value distinguishes threads that had this address one
 * after another. */
static __thread uint64_t thread_birth;

static uint64_t clock_ns(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

uint64_t gate_now_ns(void) { return clock_ns(CLOCK_MONOTONIC); }
uint64_t gate_tick_ns(void) { return clock_ns(CLOCK_MONOTONIC_COARSE); }

static bool launches_block(void) {
  const char *text = getenv("CUDA_LAUNCH_BLOCKING");
  return text && atoi(text);
}

/* Returns true if contexts have fewer hardware queues than the usual 8. Some programs set fewer, so
 * that work starts in the order in which it was queued. */
static bool has_few_queues(void) {
  enum { USUAL = 8 };
  const char *text = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  return text && atoi(text) >= 1 && atoi(text) < USUAL;
}

gate_state *gate_state_get(void) {
  static penstock_fork_wiped wiped;
  gate_state *state = penstock_fork_wiped_get(&wiped, sizeof *state);
  if (__builtin_expect(!state, 0)) return NULL;
  if (__builtin_expect(__atomic_load_n(&state->ready, __ATOMIC_ACQUIRE) == 0, 0)) {
    penstock_lock_acquire(&state->lock);
    if (!state->ready) {
      state->overlap = GATE_FULL_SCALE;
      state->launches_block = launches_block();
      state->few_queues = has_few_queues();
      state->random = (uint32_t)penstock_random();
      __atomic_store_n(&state->ready, ++births, __ATOMIC_RELEASE);
    }
    penstock_lock_release(&state->lock);
  }
  return state;
}

/* Returns an object of `bytes` zero bytes that will never be freed. */
static void *object(size_t bytes) {
  void *made = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return made == MAP_FAILED ? NULL : made;
}

/* Maps one page of objects and links them into the free list `head`. The caller holds
 * state->lock. */
#define REFILL(head, type)                          \
  do {                                              \
    enum { COUNT = 65536 / sizeof(type) };          \
    type *block = object(COUNT * sizeof(type));     \
    for (unsigned i = 0; block && i < COUNT; i++) { \
      block[i].next = (head);                       \
      (head) = &block[i];                           \
    }                                               \
  } while (0)

static uint64_t mix(uint64_t hash, uint64_t value) {
  hash ^= value;
  hash *= 0x9e3779b97f4a7c15u;
  return hash ^ hash >> 29;
}

/* Frees the block of a thread that ends, for another thread. Runs again if a later destructor
 * launches. */
static void thread_ends(void *block) {
  gate_state *state = gate_state_get();
  gate_thread *thread = block;
  mine = NULL;
  if (!state) return;
  penstock_lock_acquire(&state->lock);
  thread->next = state->free_threads;
  state->free_threads = thread;
  penstock_lock_release(&state->lock);
}

/* Returns a block for this thread. In a forked child the list of free blocks is empty, so blocks of
 * the parent's other threads stay unused. */
static gate_thread *thread_block(gate_state *state) {
  static pthread_key_t key;
  static bool has_key; /* survives a fork, as the key does */
  penstock_lock_acquire(&state->lock);
  if (!has_key) has_key = pthread_key_create(&key, thread_ends) == 0;
  if (!state->free_threads) REFILL(state->free_threads, gate_thread);
  gate_thread *thread = state->free_threads;
  if (thread) state->free_threads = thread->next;
  penstock_lock_release(&state->lock);
  if (thread && has_key) pthread_setspecific(key, thread);
  return thread;
}

static __attribute__((noinline)) gate_thread *thread_renew(gate_state *state) {
  if (!mine) mine = thread_block(state);
  if (!mine) return NULL;
  memset(mine, 0, sizeof *mine);
  mine->ready = state->ready;
  return mine;
}

gate_thread *gate_thread_get(gate_state *state) {
  return __builtin_expect(mine && mine->ready == state->ready, 1) ? mine : thread_renew(state);
}

/* Runs `call` with `context` current. */
#define WITH_CONTEXT(context, call)                                          \
  do {                                                                       \
    CUcontext current_ = NULL, popped_;                                      \
    REAL(cuCtxGetCurrent)(&current_);                                        \
    bool other_ = current_ != (context);                                     \
    if (other_ && REAL(cuCtxPushCurrent_v2)(context) != CUDA_SUCCESS) break; \
    call;                                                                    \
    if (other_) REAL(cuCtxPopCurrent_v2)(&popped_);                          \
  } while (0)

/* Returns the object of this context, or one that is free for reuse, or NULL if there is neither.
 * The caller holds state->lock. */
static gate_context *context_note(gate_state *state, CUcontext handle) {
  gate_context *one = state->contexts, *spare = NULL;
  for (; one && one->handle != handle; one = one->next) {
    if (!one->handle) spare = one;
  }
  return one ? one : spare;
}

/* Returns NULL also for a destroyed context, because a primary context keeps its handle, and no
 * state of the old context may remain. Makes driver calls, so no lock is held. */
static gate_context *context_get(gate_state *state, CUcontext handle) {
  penstock_lock_acquire(&state->lock);
  gate_context *context = context_note(state, handle);
  penstock_lock_release(&state->lock);
  if (context && context->handle == handle) return context;
  CUdevice device = 0;
  CUresult lives = CUDA_ERROR_INVALID_CONTEXT;
  WITH_CONTEXT(handle, lives = REAL(cuCtxGetDevice)(&device));
  if (lives != CUDA_SUCCESS) return NULL;
  const int grant = penstock_grant_of(device);
  penstock_lock_acquire(&state->lock);
  /* Searched again, because another thread may have taken the object. */
  context = context_note(state, handle);
  if (!context) {
    context = object(sizeof *context);
    if (context) {
      context->next = state->contexts;
      state->contexts = context;
    }
  }
  bool made = context && !context->handle;
  if (made) {
    static uint64_t contexts_born; /* guarded by state->lock */
    context->birth = ++contexts_born;
    context->handle = handle;
    context->grant = grant;
  }
  penstock_lock_release(&state->lock);
  if (made) WITH_CONTEXT(handle, gate_words_prepare(context); gate_clock_prepare(context));
  return context;
}

static uint64_t birth(void) {
  static uint64_t last;
  if (!thread_birth) thread_birth = __atomic_add_fetch(&last, 1, __ATOMIC_RELAXED);
  return thread_birth;
}

unsigned gate_stream_list(CUstream handle, const void *owner, uint64_t thread) {
  uint64_t hash = mix((uint64_t)(uintptr_t)handle, (uint64_t)(uintptr_t)owner);
  return mix(hash, thread) % GATE_BUCKETS;
}

/* The first version of cuStreamGetCtx does not support streams of green contexts. */
static CUresult context_of(CUstream handle, CUcontext *context) {
  CUgreenCtx green = NULL;
  CUstreamCaptureMode mode = gate_relax();
  CUresult result = REAL(cuStreamGetCtx)(handle, context);
  if (result == CUDA_ERROR_NOT_SUPPORTED) {
    result = REAL(cuStreamGetCtx_v2)(handle, context, &green);
    if (result == CUDA_SUCCESS && green) result = REAL(cuCtxFromGreenCtx)(context, green);
  }
  gate_restore(mode);
  return result;
}

CUresult gate_stream_missing(CUstream handle) {
  CUcontext context = NULL;
  bool is_default = (uintptr_t)handle <= (uintptr_t)CU_STREAM_PER_THREAD;
  CUdevice device;
  CUresult result = is_default ? REAL(cuCtxGetCurrent)(&context) : context_of(handle, &context);
  if (is_default && result == CUDA_SUCCESS && context) result = REAL(cuCtxGetDevice)(&device);
  switch (result) {
    case CUDA_SUCCESS:
      return is_default && !context ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
    case CUDA_ERROR_NOT_INITIALIZED:
    case CUDA_ERROR_DEINITIALIZED:
    case CUDA_ERROR_INVALID_CONTEXT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_INVALID_HANDLE:
      return CUDA_SUCCESS;
    default:
      return result;
  }
}

/* Finds a stream. `*generation` receives the stream's generation, read while the stream was
 * certainly in the tables. */
static gate_stream *stream_find(gate_state *state, CUstream handle, const void *owner,
                                uint64_t thread, uint32_t *generation) {
  gate_stream **bucket = &state->streams[gate_stream_list(handle, owner, thread)];
  penstock_lock_acquire(&state->lock);
  gate_stream *stream = *bucket;
  while (stream &&
         (stream->handle != handle || stream->owner != owner || stream->thread != thread)) {
    stream = stream->next;
  }
  if (stream) *generation = stream->generation;
  penstock_lock_release(&state->lock);
  bool reborn = stream && thread && stream->birth != birth();
  if (stream && !reborn) return stream;
  if (reborn) gate_stream_retire(state, stream);

  CUcontext of = (CUcontext)(uintptr_t)owner;
  if (!of && context_of(handle, &of) != CUDA_SUCCESS) return NULL;
  gate_context *context = of ? context_get(state, of) : NULL;
  if (!context) return NULL;
  unsigned flags = CU_STREAM_NON_BLOCKING;
  if (handle == CU_STREAM_PER_THREAD ||
      (!owner && REAL(cuStreamGetFlags)(handle, &flags) != CUDA_SUCCESS)) {
    flags = 0;
  }

  penstock_lock_acquire(&state->lock);
  for (stream = *bucket; stream; stream = stream->next) {
    if (stream->handle == handle && stream->owner == owner && stream->thread == thread) break;
  }
  if (!stream) {
    if (!state->free_streams) REFILL(state->free_streams, gate_stream);
    stream = state->free_streams;
    if (stream) {
      state->free_streams = stream->next;
      /* The word's last user may still write to it, so new numbers are higher. */
      uint64_t before = 0;
      uint32_t word = gate_word_take(context, &before);
      uint64_t launched = stream->launched;
      memset(stream, 0, offsetof(gate_stream, left));
      stream->next = *bucket;
      stream->handle = handle;
      stream->owner = owner;
      stream->thread = thread;
      stream->birth = thread ? birth() : 0;
      stream->context = context;
      stream->blocking = !(flags & CU_STREAM_NON_BLOCKING);
      stream->idle = true; /* nothing was ever queued on the stream */
      stream->prompt = reborn;
      stream->number = before + 100000;
      stream->word = word;
      stream->launched = launched;
      __atomic_store_n(bucket, stream,
                       __ATOMIC_RELEASE); /* readers skip empty lists without the lock */
    }
  }
  if (stream) *generation = stream->generation;
  penstock_lock_release(&state->lock);
  return stream;
}

static bool is_current(const gate_recent_stream *recent, CUstream handle, const void *owner) {
  return recent->stream && recent->handle == handle && recent->owner == owner &&
         __atomic_load_n(&recent->stream->generation, __ATOMIC_ACQUIRE) == recent->generation;
}

gate_stream *gate_stream_get(gate_state *state, CUstream handle, bool per_thread_default) {
  const void *owner = NULL;
  uint64_t thread = 0;
  uint32_t generation;
  if (__builtin_expect((uintptr_t)handle <= 2, 0)) {
    if (!handle) handle = per_thread_default ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
    if (handle == CU_STREAM_PER_THREAD) thread = (uint64_t)(uintptr_t)&thread_birth;
    CUcontext current = NULL;
    if (REAL(cuCtxGetCurrent)(&current) != CUDA_SUCCESS || !current) return NULL;
    owner = current;
  }
  gate_thread *own = gate_thread_get(state);
  if (__builtin_expect(!own, 0)) return stream_find(state, handle, owner, thread, &generation);
  uint64_t hash = mix((uint64_t)(uintptr_t)handle, (uint64_t)(uintptr_t)owner);
  gate_recent_stream *recent = &own->streams[(hash >> 32) % GATE_RECENT_STREAMS];
  if (__builtin_expect(is_current(recent, handle, owner), 1)) return recent->stream;
  gate_stream *stream = stream_find(state, handle, owner, thread, &generation);
  if (stream) *recent = (gate_recent_stream){handle, owner, stream, generation};
  return stream;
}

gate_window *gate_window_get(gate_state *state) {
  penstock_lock_acquire(&state->lock);
  if (!state->free_windows) REFILL(state->free_windows, gate_window);
  gate_window *window = state->free_windows;
  if (window) state->free_windows = window->next;
  penstock_lock_release(&state->lock);
  if (window) memset(window, 0, sizeof *window);
  return window;
}

void gate_window_put(gate_state *state, gate_window *window) {
  penstock_lock_acquire(&state->lock);
  window->next = state->free_windows;
  state->free_windows = window;
  penstock_lock_release(&state->lock);
}
