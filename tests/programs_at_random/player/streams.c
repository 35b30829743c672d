/* Streams, events, host functions, and waiting for them. */
#include "player.h"

static CUstream stream_of(const thing *t) { return (CUstream)t->handle; }
static CUevent event_of(const thing *t) { return (CUevent)t->handle; }

static CUresult make_stream(call *c) {
  CUstream made = NULL;
  CUresult result = cuStreamCreateWithPriority(&made, (unsigned)c->n[2], (int)c->n[3]);
  *c->t[0] = (thing){.context = (int)c->n[1], .handle = (uint64_t)made};
  return result;
}

/* 1: the legacy stream, 2: the thread's own default stream. */
static CUresult name_stream(call *c) {
  *c->t[0] = (thing){.context = (int)c->n[1], .handle = (uint64_t)c->n[2]};
  return CUDA_SUCCESS;
}

static CUresult destroy_stream(call *c) { return cuStreamDestroy(stream_of(c->t[0])); }
static CUresult wait_for_stream(call *c) { return cuStreamSynchronize(stream_of(c->t[0])); }

static CUresult ask_until_idle(call *c) {
  CUresult result;
  while ((result = cuStreamQuery(stream_of(c->t[0]))) == CUDA_ERROR_NOT_READY) nap();
  return result;
}

/* Where it is known what it must be (1), the answer is a result. */
static CUresult ask_stream(call *c) {
  CUresult result = cuStreamQuery(stream_of(c->t[0]));
  return !c->n[1] && result == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : result;
}

static CUresult make_event(call *c) {
  CUevent made = NULL;
  CUresult result = cuEventCreate(&made, (unsigned)c->n[2]);
  *c->t[0] = (thing){.context = (int)c->n[1], .handle = (uint64_t)made};
  return result;
}

static CUresult destroy_event(call *c) { return cuEventDestroy(event_of(c->t[0])); }
static CUresult record(call *c) { return cuEventRecord(event_of(c->t[1]), stream_of(c->t[0])); }
static CUresult wait_in_stream(call *c) {
  return cuStreamWaitEvent(stream_of(c->t[0]), event_of(c->t[1]), 0);
}
static CUresult wait_for_event(call *c) { return cuEventSynchronize(event_of(c->t[0])); }

static CUresult ask_until_passed(call *c) {
  CUresult result;
  while ((result = cuEventQuery(event_of(c->t[0]))) == CUDA_ERROR_NOT_READY) nap();
  return result;
}

static CUresult ask_event(call *c) {
  CUresult result = cuEventQuery(event_of(c->t[0]));
  return !c->n[1] && result == CUDA_ERROR_NOT_READY ? CUDA_SUCCESS : result;
}

static CUresult elapsed(call *c) {
  float ms;
  CUresult result = cuEventElapsedTime(&ms, event_of(c->t[0]), event_of(c->t[1]));
  if (result == CUDA_SUCCESS && ms < 0) snprintf(c->note, sizeof c->note, "backwards");
  return result;
}

/* ---- host functions: each puts its number into a list ---- */

enum { MOST_IN_ORDER = 64 };
typedef struct order {
  uint32_t count;
  int ids[MOST_IN_ORDER];
} order;
static order orders[MOST_THINGS];

typedef struct entry {
  order *list;
  int id;
  CUfunction calls; /* a kernel that it tries to launch, which is not permitted */
  long awaits;      /* a flag that it waits for; -1: none */
} entry;

static void append(order *list, int id) {
  uint32_t at = __atomic_fetch_add(&list->count, 1, __ATOMIC_ACQ_REL);
  if (at < MOST_IN_ORDER) list->ids[at] = id;
}

void *order_entry(long list, long id) {
  entry *e = calloc(1, sizeof *e);
  *e = (entry){.list = &orders[list % MOST_THINGS], .id = (int)id, .awaits = -1};
  return e;
}

/* A graph may run it again, so an entry stays. */
void CUDA_CB append_to_order(void *what) {
  entry *e = what;
  append(e->list, e->id);
  if (e->calls) {
    uint64_t ns = 1000;
    void *parameters[] = {&ns};
    append(e->list, (int)cuLaunchKernel(e->calls, 1, 1, 1, 32, 1, 1, 0, CU_STREAM_PER_THREAD,
                                        parameters, NULL));
    size_t free_bytes, total_bytes;
    append(e->list, (int)cuMemGetInfo(&free_bytes, &total_bytes));
  }
  while (e->awaits >= 0 && !__atomic_load_n(&shared->flags[e->awaits], __ATOMIC_ACQUIRE)) nap();
}

static void CUDA_CB append_from_callback(CUstream stream, CUresult status, void *what) {
  (void)stream;
  append_to_order(what);
  if (status != CUDA_SUCCESS) append(((entry *)what)->list, (int)status);
}

static CUresult host_function(call *c) {
  return cuLaunchHostFunc(stream_of(c->t[0]), append_to_order, order_entry(c->n[1], c->n[2]));
}
static CUresult callback(call *c) {
  return cuStreamAddCallback(stream_of(c->t[0]), append_from_callback,
                             order_entry(c->n[1], c->n[2]), 0);
}
static CUresult host_function_that_calls(call *c) {
  entry *e = order_entry(c->n[1], c->n[2]);
  e->calls = spin_of(c->t[0]->context, 0);
  return cuLaunchHostFunc(stream_of(c->t[0]), append_to_order, e);
}
static CUresult host_function_that_waits(call *c) {
  entry *e = order_entry(c->n[1], c->n[2]);
  e->awaits = c->n[3];
  return cuLaunchHostFunc(stream_of(c->t[0]), append_to_order, e);
}

static CUresult tell_order(call *c) {
  const order *list = &orders[c->n[0] % MOST_THINGS];
  uint32_t count = __atomic_load_n(&list->count, __ATOMIC_ACQUIRE);
  size_t used = 0;
  for (uint32_t i = 0; i < count && i < MOST_IN_ORDER && used + 12 < sizeof c->note; i++)
    used += (size_t)snprintf(c->note + used, sizeof c->note - used, "%d,", list->ids[i]);
  return CUDA_SUCCESS;
}

/* ---- the threads themselves ---- */

static CUresult post(call *c) {
  __atomic_store_n(&shared->flags[c->n[0] % MOST_FLAGS], 1, __ATOMIC_RELEASE);
  return CUDA_SUCCESS;
}
static CUresult await(call *c) {
  while (!__atomic_load_n(&shared->flags[c->n[0] % MOST_FLAGS], __ATOMIC_ACQUIRE)) nap();
  return CUDA_SUCCESS;
}
static CUresult barrier(call *c) {
  (void)c;
  barrier_of_this_process();
  return CUDA_SUCCESS;
}
static CUresult rest(call *c) {
  usleep((useconds_t)c->n[0]);
  return CUDA_SUCCESS;
}

const operation stream_operations[] = {{"stream", "Scnn", make_stream},
                                       {"default", "Scn", name_stream},
                                       {"sdestroy", "!s", destroy_stream},
                                       {"ssync", "s", wait_for_stream},
                                       {"sloop", "s", ask_until_idle},
                                       {"squery", "sn", ask_stream},
                                       {"event", "Ecn", make_event},
                                       {"edestroy", "!e", destroy_event},
                                       {"record", "se", record},
                                       {"wait", "se", wait_in_stream},
                                       {"esync", "e", wait_for_event},
                                       {"eloop", "e", ask_until_passed},
                                       {"equery", "en", ask_event},
                                       {"elapsed", "ee", elapsed},
                                       {"host", "snn", host_function},
                                       {"callback", "snn", callback},
                                       {"hostcalls", "snn", host_function_that_calls},
                                       {"hostwaits", "snnn", host_function_that_waits},
                                       {"order", "n", tell_order},
                                       {"post", "n", post},
                                       {"await", "n", await},
                                       {"barrier", "", barrier},
                                       {"rest", "n", rest},
                                       {0}};
