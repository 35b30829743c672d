/* Markers, which are timed events, and done words, which show completion without a driver call. */
#include <sys/mman.h>

#include "hooks/launch_state.h"
#include "mechanism/lock.h"

/* Budget of driver calls, out of the 8,000 that a device should get. The rest is for calls that
 * cannot wait and for calls that only read or set the thread's state. */
#define CALLS_A_SECOND 4600
#define CALLS_AT_ONCE 1024

CUstreamCaptureMode gate_relax(void) {
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  REAL(cuThreadExchangeStreamCaptureMode)(&mode);
  return mode;
}

void gate_restore(CUstreamCaptureMode mode) { REAL(cuThreadExchangeStreamCaptureMode)(&mode); }

/* Returns the budget that all processes of the tenant share. If there are other tenants, it is a
 * fair part of the device's budget. */
static uint64_t *budget(const gate_stream *stream, uint64_t *each_ns) {
  static uint64_t nobodys;
  penstock_process *process = penstock_process_get();
  int grant = stream->context->grant;
  *each_ns = 1000000000u / CALLS_A_SECOND;
  if (!process || grant < 0) return &nobodys;
  *each_ns *= 1 + gate_neighbours(process, grant);
  return &gate_device(process, grant)->calls_paid_ns;
}

bool gate_may_call(const gate_stream *stream, uint64_t now_ns, unsigned calls, unsigned spare) {
  uint64_t each;
  uint64_t *word = budget(stream, &each), paid = __atomic_load_n(word, __ATOMIC_RELAXED);
  if (now_ns > paid + CALLS_AT_ONCE * each) { /* limits how much budget idle time saves up */
    __atomic_store_n(word, now_ns - CALLS_AT_ONCE * each, __ATOMIC_RELAXED);
    return true;
  }
  if (paid > now_ns + CALLS_AT_ONCE * each) { /* limits how long overspending has an effect */
    __atomic_store_n(word, now_ns + CALLS_AT_ONCE * each, __ATOMIC_RELAXED);
    return false;
  }
  return paid + (calls + spare) * each <= now_ns;
}

void gate_called(const gate_stream *stream, unsigned calls) {
  uint64_t each;
  uint64_t *word = budget(stream, &each);
  __atomic_fetch_add(word, calls * each, __ATOMIC_RELAXED);
}

/* Publishes a context's words. Other threads can find the context before its words are there;
 * streams that they create then have no word. */
static void publish_words(gate_context *context, uint64_t *words, CUdeviceptr device) {
  penstock_lock_acquire(&context->lock);
  if (words) context->done = words;
  __atomic_store_n(&context->done_device, device, __ATOMIC_RELEASE);
  penstock_lock_release(&context->lock);
}

/* Returns the device address of the context's words, or 0 if there are none. Needs no lock. */
static CUdeviceptr words_on_device(const gate_context *context) {
  return __atomic_load_n(&context->done_device, __ATOMIC_ACQUIRE);
}

/* Registers a context's words. A destroyed context takes its registration with it; if a driver kept
 * the registration, the words are registered again. */
static bool words_register(gate_context *context) {
  const size_t bytes = GATE_DONE_WORDS * sizeof(uint64_t);
  const unsigned flags = CU_MEMHOSTREGISTER_DEVICEMAP;
  CUresult result = REAL(cuMemHostRegister_v2)(context->done, bytes, flags);
  if (result == CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED &&
      REAL(cuMemHostUnregister)(context->done) == CUDA_SUCCESS) {
    result = REAL(cuMemHostRegister_v2)(context->done, bytes, flags);
  }
  return result == CUDA_SUCCESS;
}

/* Prepares the words of the current context. They are in the shim's own memory, so that they
 * outlive the context, and in a shared mapping, so that after a fork the device still writes to the
 * parent's words. */
void gate_words_prepare(gate_context *context) {
  if (!context->done) {
    void *words = mmap(NULL, GATE_DONE_WORDS * sizeof(uint64_t), PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (words == MAP_FAILED) return;
    publish_words(context, words, 0);
  }
  CUstreamCaptureMode mode = gate_relax();
  CUdevice device = 0;
  int able = 0;
  publish_words(context, NULL, 0);
  if (REAL(cuCtxGetDevice)(&device) == CUDA_SUCCESS &&
      REAL(cuDeviceGetAttribute)(&able, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS,
                                 device) == CUDA_SUCCESS &&
      able && words_register(context)) {
    CUdeviceptr words = 0;
    if (REAL(cuMemHostGetDevicePointer_v2)(&words, context->done, 0) == CUDA_SUCCESS) {
      publish_words(context, NULL, words);
    }
  }
  gate_restore(mode);
}

/* Returns a free marker, which may have no event yet, or NULL if there is no memory. */
static gate_marker *marker_take(gate_context *context) {
  enum { BLOCK_BYTES = 4096, BLOCK = BLOCK_BYTES / sizeof(gate_marker) };
  gate_marker *block = NULL;
  penstock_lock_acquire(&context->lock);
  gate_marker **list = context->markers ? &context->markers : &context->blanks;
  if (!*list) {
    block = mmap(NULL, BLOCK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (unsigned i = 0; block != MAP_FAILED && i < BLOCK; i++) {
      block[i].next = *list;
      *list = &block[i];
    }
  }
  gate_marker *marker = *list;
  if (marker) *list = marker->next;
  penstock_lock_release(&context->lock);
  return marker;
}

/* Creates an event in the stream's context, whichever context is current. */
static CUevent event_create(gate_context *context) {
  CUcontext current = NULL, popped;
  CUevent event = NULL;
  CUstreamCaptureMode mode = gate_relax();
  REAL(cuCtxGetCurrent)(&current);
  bool other = current != context->handle;
  if (!other || REAL(cuCtxPushCurrent_v2)(context->handle) == CUDA_SUCCESS) {
    if (REAL(cuEventCreate)(&event, CU_EVENT_DEFAULT) != CUDA_SUCCESS) event = NULL;
    if (other) REAL(cuCtxPopCurrent_v2)(&popped);
  }
  gate_restore(mode);
  return event;
}

gate_marker *gate_marker_record(gate_context *context, CUstream stream) {
  gate_marker *marker = marker_take(context);
  if (!marker) return NULL;
  if (!marker->event) marker->event = event_create(context);
  marker->references = 1;
  marker->recorded_ns = gate_now_ns();
  CUresult result =
      marker->event ? REAL(cuEventRecord)(marker->event, stream) : CUDA_ERROR_OUT_OF_MEMORY;
  if (result == CUDA_SUCCESS) {
    marker->took_ns = gate_now_ns() - marker->recorded_ns;
    return marker;
  }
  if (result == CUDA_ERROR_CONTEXT_IS_DESTROYED)
    marker->event = NULL; /* the event was destroyed as well */
  gate_marker_put(context, marker);
  return NULL;
}

bool gate_marker_is_slow(const gate_marker *marker) { return marker->took_ns > GATE_HELD_UP_NS; }

uint64_t gate_marker_told_ns(const gate_marker *marker) {
  return marker->recorded_ns + (gate_marker_is_slow(marker) ? marker->took_ns : 0);
}

gate_marker *gate_marker_record_promptly(const gate_stream *stream, CUstream handle) {
  gate_marker *marker = gate_marker_record(stream->context, handle);
  gate_called(stream, 1);
  if (!marker || !gate_marker_is_slow(marker)) return marker;
  gate_marker_put(stream->context, marker);
  gate_called(stream, 1);
  return gate_marker_record(stream->context, handle);
}

void gate_marker_put(gate_context *context, gate_marker *marker) {
  if (!marker || __atomic_sub_fetch(&marker->references, 1, __ATOMIC_ACQ_REL)) return;
  penstock_lock_acquire(&context->lock);
  gate_marker **list = marker->event ? &context->markers : &context->blanks;
  marker->next = *list;
  *list = marker;
  penstock_lock_release(&context->lock);
}

bool gate_marker_is_passed(const gate_marker *marker) {
  CUstreamCaptureMode mode = gate_relax();
  CUresult result = REAL(cuEventQuery)(marker->event);
  gate_restore(mode);
  return result != CUDA_ERROR_NOT_READY;
}

bool gate_elapsed_ns(const gate_marker *from, const gate_marker *to, int64_t *ns) {
  float milliseconds = 0;
  if (!gate_are_comparable(from, to)) return false;
  CUresult result = REAL(cuEventElapsedTime)(&milliseconds, from->event, to->event);
  if (result == CUDA_ERROR_NOT_SUPPORTED) {
    result = REAL(cuEventElapsedTime_v2)(&milliseconds, from->event, to->event);
  }
  *ns = (int64_t)((double)milliseconds * 1e6);
  return result == CUDA_SUCCESS;
}

void gate_word_write(gate_stream *stream, gate_window *window) {
  gate_context *context = stream->context;
  CUdeviceptr words = words_on_device(context);
  if (!words || stream->word == UINT32_MAX) return;
  CUdeviceptr word = words + stream->word * sizeof(uint64_t);
  if (REAL(cuStreamWriteValue64_v2)(stream->handle, word, window->number, 0) != CUDA_SUCCESS) {
    stream->word = UINT32_MAX; /* completion is queried by event from now on */
  }
}

bool gate_asks_driver(const gate_stream *stream, const gate_window *window) {
  return window->end &&
         (window->by_event || stream->word == UINT32_MAX || !words_on_device(stream->context));
}

bool gate_is_through(const gate_stream *stream, const gate_window *window) {
  if (!window->end) return true;
  if (gate_asks_driver(stream, window)) {
    gate_called(stream, 1);
    return gate_marker_is_passed(window->end);
  }
  uint64_t word = __atomic_load_n(&stream->context->done[stream->word], __ATOMIC_ACQUIRE);
  return (int64_t)(word - window->number) >= 0;
}

uint32_t gate_word_take(gate_context *context, uint64_t *value) {
  uint32_t taken = UINT32_MAX;
  penstock_lock_acquire(&context->lock);
  for (unsigned i = 0; words_on_device(context) && i < GATE_DONE_WORDS / 64; i++) {
    if (context->words_used[i] == UINT64_MAX) continue;
    unsigned bit = (unsigned)__builtin_ctzll(~context->words_used[i]);
    context->words_used[i] |= 1ULL << bit;
    taken = i * 64 + bit;
    *value = __atomic_load_n(&context->done[taken], __ATOMIC_RELAXED);
    break;
  }
  penstock_lock_release(&context->lock);
  return taken;
}

void gate_word_put(gate_context *context, uint32_t word) {
  if (word == UINT32_MAX) return;
  penstock_lock_acquire(&context->lock);
  context->words_used[word / 64] &= ~(1ULL << word % 64);
  penstock_lock_release(&context->lock);
}

/* The context's events are gone with it, so its markers become blanks. */
void gate_context_clear(gate_context *context) {
  gate_clock_clear(context);
  publish_words(context, NULL, 0);
  penstock_lock_acquire(&context->lock);
  for (gate_marker *marker; (marker = context->markers);) {
    context->markers = marker->next;
    marker->event = NULL;
    marker->next = context->blanks;
    context->blanks = marker;
  }
  penstock_lock_release(&context->lock);
}
