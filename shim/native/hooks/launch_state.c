/* Tables of kinds, contexts and streams. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#include "fork_wiped.h"
#include "hooks/launch_state.h"
#include "mechanism/lock.h"

static uint32_t births; /* survives a fork: no two states have the same number */

/* What this thread looked up last, and in which state of the tables. */
typedef struct recent_kind {
  penstock_kind_key key;
  gate_kind *kind;
} recent_kind;
/* Few: thread-local room is scarce in a library that may be opened late. */
#define RECENT_KINDS 8
static __thread struct {
  uint64_t tables; /* ready | generation: anything older is stale */
  CUstream handle;
  const void *owner;
  gate_stream *stream;
  recent_kind kinds[RECENT_KINDS];
} recent;
static __thread uint64_t thread_birth; /* its address names the thread, and its value which one of
                                        * those that had this address one after the other */

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

gate_state *gate_state_get(void) {
  static penstock_fork_wiped wiped;
  gate_state *state = penstock_fork_wiped_get(&wiped, sizeof *state);
  if (__builtin_expect(!state, 0)) return NULL;
  if (__builtin_expect(__atomic_load_n(&state->ready, __ATOMIC_ACQUIRE) == 0, 0)) {
    penstock_lock_acquire(&state->lock);
    if (!state->ready) {
      state->overlap = GATE_FULL_SCALE;
      state->launches_block = launches_block();
      __atomic_store_n(&state->ready, ++births, __ATOMIC_RELEASE);
    }
    penstock_lock_release(&state->lock);
  }
  uint64_t tables =
      (uint64_t)state->ready << 32 | __atomic_load_n(&state->generation, __ATOMIC_ACQUIRE);
  if (__builtin_expect(recent.tables != tables, 0)) {
    memset(&recent, 0, sizeof recent);
    recent.tables = tables;
  }
  return state;
}

/* An object of `bytes` zero bytes that will never be freed. */
static void *object(size_t bytes) {
  void *made = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return made == MAP_FAILED ? NULL : made;
}

/* One page of objects at a time, linked into the free list `head` (state->lock held). */
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

static uint64_t kind_hash(const penstock_kind_key *key) {
  uint64_t hash = mix(0, (uint64_t)(uintptr_t)key->what);
  hash = mix(hash, key->grid ^ key->block << 40 ^ key->shape << 20);
  return mix(hash, key->shape + key->block);
}

static bool same_kind(const penstock_kind_key *a, const penstock_kind_key *b) {
  return a->what == b->what && a->grid == b->grid && a->block == b->block && a->shape == b->shape;
}

static gate_kind *kind_find(gate_state *state, const penstock_kind_key *key, uint64_t hash) {
  gate_kind **bucket = &state->kinds[hash % GATE_BUCKETS];
  penstock_lock_acquire(&state->lock);
  gate_kind *kind = *bucket;
  while (kind && !same_kind(&kind->key, key)) kind = kind->next;
  if (!kind) {
    if (!state->free_kinds) REFILL(state->free_kinds, gate_kind);
    kind = state->free_kinds;
    if (kind) {
      state->free_kinds = kind->next;
      kind->generation++;
      kind->key = *key;
      kind->unmeasured = 0;
      kind->changed = false;
      memset(&kind->cost, 0, sizeof kind->cost);
      kind->next = *bucket;
      *bucket = kind;
    }
  }
  penstock_lock_release(&state->lock);
  return kind;
}

gate_kind *gate_kind_get(gate_state *state, const penstock_kind_key *key) {
  uint64_t low = ((uint64_t)(uintptr_t)key->what >> 4) + key->grid + key->shape;
  recent_kind *slot = &recent.kinds[(low ^ low >> 5) % RECENT_KINDS];
  if (__builtin_expect(slot->kind && same_kind(&slot->key, key), 1)) return slot->kind;
  gate_kind *kind = kind_find(state, key, kind_hash(key));
  if (kind) {
    slot->key = *key;
    slot->kind = kind;
  }
  return kind;
}

static void forget_kinds(const void *what, bool all) {
  gate_state *state = gate_state_get();
  if (!state) return;
  penstock_lock_acquire(&state->lock);
  for (unsigned i = 0; i < GATE_BUCKETS; i++) {
    for (gate_kind **link = &state->kinds[i]; *link;) {
      gate_kind *kind = *link;
      if (all ? kind->key.what <= PENSTOCK_KIND_COPY : kind->key.what != what) {
        link = &kind->next;
        continue;
      }
      *link = kind->next;
      kind->generation++;
      kind->next = state->free_kinds;
      state->free_kinds = kind;
    }
  }
  __atomic_fetch_add(&state->generation, 1, __ATOMIC_RELEASE);
  penstock_lock_release(&state->lock);
}

void penstock_gate_forget_functions(void) { forget_kinds(NULL, true); }
void penstock_gate_forget_kind(const void *what) { forget_kinds(what, false); }

void penstock_gate_relearn_kind(const void *what) {
  gate_state *state = gate_state_get();
  penstock_kind_key key = {what, 0, 0, 0};
  gate_kind *kind = state ? gate_kind_get(state, &key) : NULL;
  if (!kind) return;
  penstock_lock_acquire(&state->lock);
  uint64_t mean_ns = kind->cost.mean_ns;
  penstock_cost_forget(&kind->cost);
  __atomic_fetch_add(&kind->version, 1, __ATOMIC_RELAXED); /* what is out has the old cost */
  __atomic_store_n(&kind->changed, mean_ns != 0, __ATOMIC_RELAXED);
  kind->unmeasured = 0;
  penstock_lock_release(&state->lock);
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

/* Driver calls; no lock held. Two threads may both make one: the loser's is left for reuse. */
static gate_context *context_get(gate_state *state, CUcontext handle) {
  penstock_lock_acquire(&state->lock);
  gate_context *context = state->contexts, *spare = NULL;
  for (; context && context->handle != handle; context = context->next) {
    if (!context->handle) spare = context;
  }
  penstock_lock_release(&state->lock);
  if (context) return context;
  int grant = -1;
  WITH_CONTEXT(handle, grant = penstock_current_grant());
  gate_context *fresh = spare ? NULL : object(sizeof *fresh);
  penstock_lock_acquire(&state->lock);
  for (context = state->contexts; context && context->handle != handle; context = context->next) {
  }
  if (!context && spare && !spare->handle) context = spare;
  if (!context && fresh) {
    context = fresh;
    context->next = state->contexts;
    state->contexts = context;
  }
  if (fresh && context != fresh) { /* another thread was first */
    fresh->next = state->contexts;
    state->contexts = fresh;
  }
  bool made = context && !context->handle;
  if (made) {
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

/* The first version of the question knows no streams of green contexts. */
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
  CUresult result = is_default ? REAL(cuCtxGetCurrent)(&context) : context_of(handle, &context);
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

static gate_stream *stream_find(gate_state *state, CUstream handle, const void *owner,
                                uint64_t thread) {
  uint64_t hash = mix(mix((uint64_t)(uintptr_t)handle, (uint64_t)(uintptr_t)owner), thread);
  gate_stream **bucket = &state->streams[hash % GATE_BUCKETS];
  penstock_lock_acquire(&state->lock);
  gate_stream *stream = *bucket;
  while (stream &&
         (stream->handle != handle || stream->owner != owner || stream->thread != thread)) {
    stream = stream->next;
  }
  penstock_lock_release(&state->lock);
  bool reborn = stream && thread && stream->birth != birth();
  if (stream && !reborn) return stream;
  if (reborn) gate_stream_retire(state, stream);

  CUcontext of = (CUcontext)(uintptr_t)owner;
  if (!of && context_of(handle, &of) != CUDA_SUCCESS) return NULL;
  gate_context *context = of ? context_get(state, of) : NULL;
  if (!context) return NULL;

  penstock_lock_acquire(&state->lock);
  for (stream = *bucket; stream; stream = stream->next) {
    if (stream->handle == handle && stream->owner == owner && stream->thread == thread) break;
  }
  if (!stream) {
    if (!state->free_streams) REFILL(state->free_streams, gate_stream);
    stream = state->free_streams;
    if (stream) {
      state->free_streams = stream->next;
      uint64_t before = 0; /* the word's last user may still write to it: its numbers stay old */
      uint32_t word = gate_word_take(context, &before);
      uint64_t launched = stream->launched;
      memset(stream, 0, offsetof(gate_stream, left));
      stream->next = *bucket;
      stream->handle = handle;
      stream->owner = owner;
      stream->thread = thread;
      stream->birth = thread ? birth() : 0;
      stream->context = context;
      stream->idle = true; /* nothing was ever queued on it */
      stream->prompt = reborn;
      stream->number = before + 100000;
      stream->word = word;
      stream->launched = launched;
      __atomic_store_n(bucket, stream, __ATOMIC_RELEASE); /* empty ones are passed by unlocked */
    }
  }
  penstock_lock_release(&state->lock);
  return stream;
}

gate_stream *gate_stream_get(gate_state *state, CUstream handle, bool per_thread_default) {
  const void *owner = NULL;
  uint64_t thread = 0;
  if (__builtin_expect((uintptr_t)handle <= 2, 0)) {
    if (!handle) handle = per_thread_default ? CU_STREAM_PER_THREAD : CU_STREAM_LEGACY;
    if (handle == CU_STREAM_PER_THREAD) thread = (uint64_t)(uintptr_t)&thread_birth;
    CUcontext current = NULL;
    if (REAL(cuCtxGetCurrent)(&current) != CUDA_SUCCESS || !current) return NULL;
    owner = current;
  }
  if (__builtin_expect(recent.stream && recent.handle == handle && recent.owner == owner, 1)) {
    return recent.stream;
  }
  gate_stream *stream = stream_find(state, handle, owner, thread);
  if (stream) {
    recent.handle = handle;
    recent.owner = owner;
    recent.stream = stream;
  }
  return stream;
}

gate_bracket *gate_bracket_get(gate_state *state) {
  penstock_lock_acquire(&state->lock);
  if (!state->free_brackets) REFILL(state->free_brackets, gate_bracket);
  gate_bracket *bracket = state->free_brackets;
  if (bracket) state->free_brackets = bracket->next;
  penstock_lock_release(&state->lock);
  if (bracket) memset(bracket, 0, sizeof *bracket);
  return bracket;
}

void gate_bracket_put(gate_state *state, gate_bracket *bracket) {
  penstock_lock_acquire(&state->lock);
  bracket->next = state->free_brackets;
  state->free_brackets = bracket;
  penstock_lock_release(&state->lock);
}
