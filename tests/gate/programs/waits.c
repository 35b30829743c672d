/* Ways in which work waits for other work. None may hang because a launch is held back: each runs
 * under a small quota, in overdraft. */
#include <sys/wait.h>

#include "gate.h"

#pragma GCC diagnostic ignored "-Wdeprecated-declarations" /* old launches are launches too */

static CUcontext context;

static void prepare(void) {
  context = begin();
  go_into_overdraft();
}

static void *on_a_thread(void *(*body)(void *), void *argument) {
  pthread_t *thread = malloc(sizeof *thread);
  CHECK(!pthread_create(thread, NULL, body, argument));
  return thread;
}

static void join(void *thread) { CHECK(!pthread_join(*(pthread_t *)thread, NULL)); }

CASE(a_kernel_waits_for_a_flag_that_a_later_launch_sets) {
  prepare();
  CUstream a = new_stream(CU_STREAM_NON_BLOCKING), b = new_stream(CU_STREAM_NON_BLOCKING);
  CUdeviceptr words = new_words(2);
  for (uint64_t round = 1; round <= 2; round++) {
    meet(a, words, round, 0, 0);
    for (int i = 0; i < 3; i++) busy(b, 5 * MS);
    meet(b, words + 8, 0, words, round);
    OK(cuStreamSynchronize(a));
  }
  CHECK(word_at(words) == 2);
}

CASE(a_stream_waits_for_a_value_that_a_blocked_launch_is_before) {
  prepare();
  CUstream a = new_stream(CU_STREAM_NON_BLOCKING), b = new_stream(CU_STREAM_NON_BLOCKING);
  CUdeviceptr words = new_words(1);
  OK(cuStreamWaitValue64(a, words, 1, CU_STREAM_WAIT_VALUE_GEQ));
  for (int i = 0; i < 8; i++) busy(a, 2 * MS);
  for (int i = 0; i < 8; i++) busy(b, 2 * MS);
  OK(cuStreamWriteValue64(b, words, 1, 0));
  OK(cuCtxSynchronize());
}

CASE(streams_wait_for_each_others_events) {
  prepare();
  enum { STREAMS = 6 };
  CUstream streams[STREAMS];
  CUevent events[STREAMS];
  for (int i = 0; i < STREAMS; i++) {
    streams[i] = new_stream(i % 2 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT);
    OK(cuEventCreate(&events[i], CU_EVENT_DISABLE_TIMING));
  }
  for (int step = 0; step < 4 * STREAMS; step++) {
    int now = step % STREAMS, before = (step + STREAMS - 1) % STREAMS;
    OK(cuStreamWaitEvent(streams[now], events[before], 0));
    busy(streams[now], 2 * MS);
    OK(cuEventRecord(events[now], streams[now]));
  }
  OK(cuEventSynchronize(events[STREAMS - 1]));
  OK(cuCtxSynchronize());
}

CASE(legacy_and_blocking_streams_wait_for_each_other) {
  prepare();
  CUstream blocking = new_stream(CU_STREAM_DEFAULT), second = new_stream(CU_STREAM_DEFAULT);
  for (int i = 0; i < 12; i++) {
    busy(blocking, MS);
    busy(NULL, MS);
    busy(second, MS);
    busy(CU_STREAM_PER_THREAD, MS);
  }
  OK(cuStreamSynchronize(NULL));
}

/* ---- several threads ---- */

typedef struct rank {
  CUdevice device;
  CUdeviceptr own, others;
} rank;
static pthread_barrier_t together;

static void *take_part(void *argument) {
  rank *r = argument;
  CUcontext mine;
  OK(cuDevicePrimaryCtxRetain(&mine, r->device));
  OK(cuCtxSetCurrent(mine));
  if (r->device == 0) go_into_overdraft();
  CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
  kernel_named("meet");
  pthread_barrier_wait(&together);
  for (uint64_t round = 1; round <= 6; round++) {
    busy(stream, 3 * MS);
    meet(stream, r->others, round, r->own, round);
  }
  OK(cuStreamSynchronize(stream));
  return NULL;
}

/* A kernel of each rank runs until the other's is there too. */
static void collective(int devices) {
  context = begin();
  CUdeviceptr words = new_words(2);
  rank ranks[2] = {{0, words, words + 8}, {devices - 1, words + 8, words}};
  CHECK(!pthread_barrier_init(&together, NULL, 2));
  void *first = on_a_thread(take_part, &ranks[0]), *second = on_a_thread(take_part, &ranks[1]);
  join(first);
  join(second);
  CHECK(word_at(words) == 6 && word_at(words + 8) == 6);
}

CASE(two_devices_in_a_collective) { collective(2); }
CASE(two_ranks_on_one_device_in_a_collective) { collective(1); }

/* The primary context of device `device`, with a stream, and the quota there used up. */
static CUstream on_device(CUdevice device) {
  CUcontext primary;
  OK(cuDevicePrimaryCtxRetain(&primary, device));
  OK(cuCtxSetCurrent(primary));
  go_into_overdraft();
  return new_stream(CU_STREAM_NON_BLOCKING);
}

CASE(streams_of_two_devices_wait_for_each_others_events) {
  context = begin();
  CUstream streams[2];
  CUcontext contexts[2];
  CUevent events[2];
  for (int i = 0; i < 2; i++) {
    streams[i] = on_device(i);
    OK(cuCtxGetCurrent(&contexts[i]));
    OK(cuEventCreate(&events[i], CU_EVENT_DISABLE_TIMING));
  }
  for (int step = 0; step < 20; step++) {
    int now = step % 2;
    OK(cuCtxSetCurrent(contexts[now]));
    OK(cuStreamWaitEvent(streams[now], events[1 - now], 0));
    busy(streams[now], 2 * MS);
    OK(cuEventRecord(events[now], streams[now]));
  }
  OK(cuStreamSynchronize(streams[1]));
}

CASE(a_cooperative_kernel_on_two_devices) {
  context = begin();
  uint64_t ns = 2 * MS;
  void *parameters[] = {&ns};
  CUDA_LAUNCH_PARAMS list[2];
  for (int i = 0; i < 2; i++) {
    CUstream stream = on_device(i);
    list[i] = (CUDA_LAUNCH_PARAMS){.function = kernel_named("spin"),
                                   .gridDimX = 2,
                                   .gridDimY = 1,
                                   .gridDimZ = 1,
                                   .blockDimX = 32,
                                   .blockDimY = 1,
                                   .blockDimZ = 1,
                                   .hStream = stream,
                                   .kernelParams = parameters};
  }
  for (int i = 0; i < 10; i++) OK(cuLaunchCooperativeKernelMultiDevice(list, 2, 0));
  for (int i = 0; i < 2; i++) OK(cuStreamSynchronize(list[i].hStream));
}

typedef struct errand {
  pthread_barrier_t asked, done;
  CUstream stream;
} errand;

static void *launch_when_asked(void *argument) {
  errand *e = argument;
  OK(cuCtxSetCurrent(context));
  pthread_barrier_wait(&e->asked);
  for (int i = 0; i < 5; i++) busy(e->stream, 2 * MS);
  pthread_barrier_wait(&e->done);
  return NULL;
}

static void CUDA_CB ask(void *argument) {
  errand *e = argument;
  pthread_barrier_wait(&e->asked);
  pthread_barrier_wait(&e->done);
}

CASE(a_host_function_waits_for_another_threads_launches) {
  prepare();
  errand e = {.stream = new_stream(CU_STREAM_NON_BLOCKING)};
  CHECK(!pthread_barrier_init(&e.asked, NULL, 2) && !pthread_barrier_init(&e.done, NULL, 2));
  CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
  void *thread = on_a_thread(launch_when_asked, &e);
  busy(stream, 5 * MS);
  OK(cuLaunchHostFunc(stream, ask, &e));
  busy(stream, 5 * MS);
  OK(cuStreamSynchronize(stream));
  join(thread);
}

static CUresult from_callback;
static void CUDA_CB launch_here(void *stream) {
  uint64_t ns = MS;
  void *parameters[] = {&ns};
  CUfunction spin = *(CUfunction *)stream;
  from_callback =
      cuLaunchKernel(spin, 1, 1, 1, 32, 1, 1, 0, ((CUstream *)stream)[1], parameters, NULL);
}

CASE(a_launch_inside_a_callback_is_answered_by_the_driver) {
  prepare();
  void *what[2] = {kernel_named("spin"), new_stream(CU_STREAM_NON_BLOCKING)};
  CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
  busy(what[1], MS);
  OK(cuLaunchHostFunc(stream, launch_here, what));
  OK(cuStreamSynchronize(stream));
  CHECK(from_callback == CUDA_ERROR_NOT_PERMITTED);
  busy(stream, MS);
  OK(cuCtxSynchronize());
}

static void *three_launches(void *argument) {
  (void)argument;
  OK(cuCtxSetCurrent(context));
  for (int i = 0; i < 3; i++) busy(CU_STREAM_PER_THREAD, 200000);
  OK(cuStreamSynchronize(CU_STREAM_PER_THREAD));
  return NULL;
}

CASE(sixty_four_threads_with_default_streams_of_their_own) {
  prepare();
  enum { THREADS = 64 };
  void *threads[THREADS];
  for (int i = 0; i < THREADS; i++) threads[i] = on_a_thread(three_launches, NULL);
  for (int i = 0; i < THREADS; i++) join(threads[i]);
}

/* ---- threads launch a kernel for the first time, all at once ---- */

typedef struct start {
  pthread_barrier_t barrier;
  CUfunction kernel;
} start;

static void two_ms(CUfunction kernel, int count) {
  uint64_t ns = 2 * MS;
  void *parameters[] = {&ns};
  for (int i = 0; i < count; i++) {
    OK(cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, CU_STREAM_LEGACY, parameters, NULL));
  }
}

static void *at_once(void *argument) {
  start *s = argument;
  OK(cuCtxSetCurrent(context));
  pthread_barrier_wait(&s->barrier);
  two_ms(s->kernel, 1);
  return NULL;
}

/* What is recorded on the stream while a launch call is under way may lie before its kernel. */
CASE(what_threads_launch_at_once_is_not_taken_for_short) {
  enum { THREADS = 4, ROUNDS = 12, MORE = 20 };
  context = begin();
  for (int round = 0; round < ROUNDS; round++) {
    start s = {.kernel = kernel_anew("other_spin")}; /* nobody knows what it takes */
    void *threads[THREADS];
    CHECK(!pthread_barrier_init(&s.barrier, NULL, THREADS));
    for (int i = 0; i < THREADS; i++) threads[i] = on_a_thread(at_once, &s);
    for (int i = 0; i < THREADS; i++) join(threads[i]);
    OK(cuCtxSynchronize());
    uint64_t before = now_ns();
    two_ms(s.kernel, MORE); /* 40 ms: no quota that is tested lets so much through at once */
    CHECK(ms_since(before) > 40);
    OK(cuCtxSynchronize());
  }
}

typedef struct launches {
  CUfunction kernel;
  uint64_t ns;
  int count;
} launches;

static void *backlog(void *argument) {
  const launches *l = argument;
  uint64_t ns = l->ns;
  void *parameters[] = {&ns};
  OK(cuCtxSetCurrent(context));
  for (int i = 0; i < l->count; i++) {
    OK(cuLaunchKernel(l->kernel, 1, 1, 1, 32, 1, 1, 0, CU_STREAM_LEGACY, parameters, NULL));
  }
  return NULL;
}

/* Nearly always another thread is in a launch call, so hardly any event is behind all launches. */
CASE(what_threads_launch_is_known_to_take_longer_than_it_did) {
  context = begin();
  launches quick = {kernel_anew("other_spin"), 10000, 2000}, slow = {quick.kernel, 300000, 1000};
  void *first = on_a_thread(backlog, &quick), *second = on_a_thread(backlog, &quick);
  join(first);
  join(second);
  OK(cuCtxSynchronize());
  uint64_t before = now_ns();
  first = on_a_thread(backlog, &slow), second = on_a_thread(backlog, &slow);
  join(first);
  join(second);
  CHECK(ms_since(before) > 1200); /* 600 on the device alone, 3,000 by the quota */
}

/* ---- a stream or a context goes while a launch waits for its turn ---- */

typedef struct victim {
  CUcontext context;
  CUstream stream;
  CUfunction spin;
} victim;

static void *launch_into(void *argument) {
  victim *v = argument;
  OK(cuCtxSetCurrent(v->context));
  uint64_t ns = 30 * MS;
  void *parameters[] = {&ns};
  CUresult result = CUDA_SUCCESS;
  while (result == CUDA_SUCCESS)
    result = cuLaunchKernel(v->spin, 1, 1, 1, 32, 1, 1, 0, v->stream, parameters, NULL);
  CHECK(result == CUDA_ERROR_INVALID_HANDLE || result == CUDA_ERROR_CONTEXT_IS_DESTROYED ||
        result == CUDA_ERROR_INVALID_CONTEXT);
  return NULL;
}

/* The test says when the gate is closed: then the thread waits at it. */
static void take_away(bool whole_context) {
  context = begin();
  victim v = {.context = context};
  if (whole_context) OK(cuCtxCreate(&v.context, NULL, 0, 0));
  v.stream = new_stream(CU_STREAM_NON_BLOCKING);
  v.spin = kernel_named("spin");
  void *thread = on_a_thread(launch_into, &v);
  puts("launching");
  fflush(stdout);
  getchar();
  OK(whole_context ? cuCtxDestroy(v.context) : cuStreamDestroy(v.stream));
  join(thread);
  OK(cuCtxSetCurrent(context));
  CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
  for (int i = 0; i < 5; i++) busy(stream, MS);
  OK(cuCtxSynchronize());
  busy(stream, MS); /* settles what was left */
  OK(cuCtxSynchronize());
  puts("idle"); /* the test looks at what is still in flight */
  fflush(stdout);
  getchar();
}

CASE(a_stream_is_destroyed_while_a_launch_waits_for_its_turn) { take_away(false); }
CASE(a_context_is_destroyed_while_a_launch_waits_for_its_turn) { take_away(true); }

/* ---- host and device ---- */

/* Without a driver call. */
static void await(const uint64_t *word, uint64_t value) {
  while (__atomic_load_n(word, __ATOMIC_ACQUIRE) < value) continue;
}

CASE(the_host_polls_memory_that_a_kernel_writes) {
  prepare();
  uint64_t *words;
  CUdeviceptr device;
  OK(cuMemHostAlloc((void **)&words, 16, CU_MEMHOSTALLOC_DEVICEMAP));
  OK(cuMemHostGetDevicePointer(&device, (void *)words, 0));
  words[0] = words[1] = 0;
  CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
  for (uint64_t round = 1; round <= 4; round++) {
    busy(stream, 4 * MS);
    meet(stream, device, round, device + 8, round);
    await(&words[1], round);
    __atomic_store_n(&words[0], round, __ATOMIC_RELEASE);
  }
  OK(cuStreamSynchronize(stream));
}

CASE(work_waits_for_a_launch_blocked_by_the_overdraft_of_a_long_kernel) {
  context = begin();
  CUstream a = new_stream(CU_STREAM_NON_BLOCKING), b = new_stream(CU_STREAM_NON_BLOCKING);
  uint64_t *words;
  CUdeviceptr device;
  OK(cuMemHostAlloc((void **)&words, 16, CU_MEMHOSTALLOC_DEVICEMAP));
  OK(cuMemHostGetDevicePointer(&device, words, 0));
  words[0] = words[1] = 0;
  busy(b, 150 * MS); /* of a cost that nobody knows yet */
  meet(a, device, 1, device + 8, 1);
  await(&words[1], 1);
  OK(cuStreamSynchronize(b));
  meet(b, device + 8, 0, device, 1);
  OK(cuCtxSynchronize());
}

/* ---- two processes ---- */

static void give(int to, const void *bytes, size_t count) {
  CHECK(write(to, bytes, count) == (ssize_t)count);
}
static void take(int from, void *bytes, size_t count) {
  CHECK(read(from, bytes, count) == (ssize_t)count);
}

/* Each waits in turn for an event that the other recorded. */
static void exchange(int from, int to) {
  prepare();
  CUevent own, others;
  CUipcEventHandle handle;
  OK(cuEventCreate(&own, CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS));
  OK(cuIpcGetEventHandle(&handle, own));
  give(to, &handle, sizeof handle);
  take(from, &handle, sizeof handle);
  OK(cuIpcOpenEventHandle(&others, handle));
  CUstream stream = new_stream(CU_STREAM_NON_BLOCKING);
  for (char round = 0; round < 6; round++) {
    char seen;
    busy(stream, 2 * MS);
    OK(cuEventRecord(own, stream));
    give(to, &round, 1);
    take(from, &seen, 1);
    CHECK(seen == round);
    OK(cuStreamWaitEvent(stream, others, 0));
    busy(stream, 2 * MS);
  }
  OK(cuStreamSynchronize(stream));
  give(to, "", 1); /* the other's event must live until here */
  take(from, &(char){0}, 1);
}

CASE(two_processes_wait_for_each_others_events) {
  int there[2], back[2], status;
  CHECK(!pipe(there) && !pipe(back));
  pid_t child = fork();
  if (!child) {
    exchange(there[0], back[1]);
    exit(0);
  }
  exchange(back[0], there[1]);
  CHECK(waitpid(child, &status, 0) == child && status == 0);
}

/* An event on the legacy stream waits for all blocking streams, and they for it. */
CASE(a_blocking_stream_waits_for_what_comes_after_work_on_the_legacy_one) {
  prepare();
  CUstream waits = new_stream(CU_STREAM_DEFAULT), writes = new_stream(CU_STREAM_DEFAULT);
  CUdeviceptr word = new_words(1);
  for (int i = 0; i < 10; i++) {
    busy(NULL, MS);
    busy(writes, MS);
    OK(cuCtxSynchronize());
  }
  for (int i = 0; i < 5; i++) busy(NULL, MS);
  OK(cuStreamWaitValue64(waits, word, 1, CU_STREAM_WAIT_VALUE_GEQ));
  for (int i = 0; i < 30; i++) busy(writes, MS);
  OK(cuStreamWriteValue64(writes, word, 1, 0));
  OK(cuStreamSynchronize(waits));
}
