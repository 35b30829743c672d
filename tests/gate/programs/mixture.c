/* Threads that make random calls on shared streams. Nothing may hang, fail or stay in flight. The
 * variable SEED decides the order of calls. */
#include "gate.h"

enum { THREADS = 5, STREAMS = 4, STEPS = 150, GRAPH_NODES = 3, BYTES = 4096 };

static CUcontext context;
static CUstream shared[STREAMS + 1]; /* the last one: the default stream */
static pthread_barrier_t captured;

typedef struct actor {
  pthread_t thread;
  unsigned seed;
  CUstream own;
  CUevent event;
  CUgraphExec graph;
  CUdeviceptr memory;
  char host[BYTES];
} actor;

static unsigned draw(actor *self, unsigned below) {
  return (unsigned)rand_r(&self->seed) / 7 % below;
}

static CUstream any_stream(actor *self) {
  unsigned which = draw(self, STREAMS + 2);
  return which > STREAMS ? self->own : shared[which];
}

static void nothing(void *unused) { (void)unused; }

static void make_graph(actor *self) {
  CUgraph graph;
  OK(cuStreamBeginCapture(self->own, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
  for (int i = 0; i < GRAPH_NODES; i++) busy(self->own, 20000);
  OK(cuStreamEndCapture(self->own, &graph));
  OK(cuGraphInstantiate(&self->graph, graph, 0));
}

static void come_and_go(actor *self) {
  CUstream stream = new_stream(draw(self, 2) ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT);
  busy(stream, 1000u * (1 + draw(self, 300)));
  OK(cuStreamDestroy(stream)); /* its work runs on */
}

static void allocate(CUstream stream) {
  CUdeviceptr memory;
  OK(cuMemAllocAsync(&memory, BYTES, stream));
  OK(cuMemFreeAsync(memory, stream));
}

static void wait_for_event(actor *self, CUstream stream) {
  CUresult answer;
  OK(cuEventRecord(self->event, stream));
  switch (draw(self, 3)) {
    case 0:
      OK(cuEventSynchronize(self->event));
      break;
    case 1:
      OK(cuStreamWaitEvent(any_stream(self), self->event, 0));
      break;
    default:
      answer = cuEventQuery(self->event);
      CHECK(answer == CUDA_SUCCESS || answer == CUDA_ERROR_NOT_READY);
  }
}

static void step(actor *self) {
  CUstream stream = any_stream(self);
  switch (draw(self, 16)) {
    case 0:
      OK(cuStreamSynchronize(stream));
      break;
    case 1:
      if (!draw(self, 4)) OK(cuCtxSynchronize());
      break;
    case 2:
    case 3:
      wait_for_event(self, stream);
      break;
    case 4:
      come_and_go(self);
      break;
    case 5:
      OK(cuMemcpyDtoHAsync(self->host, self->memory, BYTES, stream));
      break;
    case 6:
      OK(cuLaunchHostFunc(stream, nothing, NULL));
      break;
    case 7:
      OK(cuGraphLaunch(self->graph, stream));
      break;
    case 8:
      allocate(stream);
      break;
    default:
      busy(stream, 1000u * (1 + draw(self, draw(self, 20) ? 100 : 3000)));
  }
}

static void *act(void *argument) {
  actor *self = argument;
  OK(cuCtxSetCurrent(context));
  self->own = new_stream(CU_STREAM_NON_BLOCKING);
  OK(cuEventCreate(&self->event, CU_EVENT_DISABLE_TIMING));
  OK(cuMemAlloc(&self->memory, BYTES));
  busy(self->own, 1000); /* its module is there: none may be loaded during a capture */
  make_graph(self);
  pthread_barrier_wait(&captured);
  for (int i = 0; i < STEPS; i++) step(self);
  return NULL;
}

CASE(threads_do_what_they_like_with_shared_streams) {
  static actor actors[THREADS];
  const char *seed = getenv("SEED");
  context = begin();
  for (int i = 0; i < STREAMS; i++) {
    shared[i] = new_stream(i % 2 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT);
  }
  CHECK(!pthread_barrier_init(&captured, NULL, THREADS));
  for (unsigned i = 0; i < THREADS; i++) {
    actors[i].seed = (seed ? (unsigned)atoi(seed) : 1) * THREADS + i;
    CHECK(!pthread_create(&actors[i].thread, NULL, act, &actors[i]));
  }
  for (int i = 0; i < THREADS; i++) CHECK(!pthread_join(actors[i].thread, NULL));
  OK(cuCtxSynchronize());
  puts("idle");
  fflush(stdout);
  getchar();
}

static void *launch_on_own_default_stream(void *unused) {
  (void)unused;
  OK(cuCtxSetCurrent(context));
  for (int i = 0; i < 20; i++) busy(CU_STREAM_PER_THREAD, 20000);
  return NULL;
}

/* Nobody but the context can be waited for then. */
CASE(threads_end_with_work_on_their_default_streams) {
  pthread_t threads[4];
  context = begin();
  for (int i = 0; i < 4; i++) {
    CHECK(!pthread_create(&threads[i], NULL, launch_on_own_default_stream, NULL));
  }
  for (int i = 0; i < 4; i++) CHECK(!pthread_join(threads[i], NULL));
  OK(cuCtxSynchronize());
  puts("idle");
  fflush(stdout);
  getchar();
}
