/* A tenant's own log: launches without a pause, waits, allocates and frees, and keeps how long each
 * call took and what it answered. An error does not end it: it is counted, and it goes on.
 *
 * For each line on its standard input it says, as one line of JSON, what happened since the last
 * one; it ends with its input.
 *
 *   witness KERNEL_US
 */
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#define PROGRAM "witness"
#include "workload/program.h"

enum { LAUNCH, WAIT, ALLOC, FREE, KINDS, BUCKETS = 64, MOST_CODES = 1000, WAIT_EVERY = 64 };

static const char *const kind_names[KINDS] = {"launch", "wait", "alloc", "free"};
static const char ptx[] =
    ".version 7.0\n.target sm_52\n.address_size 64\n"
    ".visible .entry penstock_spin(.param .u64 duration) { ret; }\n";

typedef struct record {
  uint64_t calls, worst_ns;
  uint64_t octaves[BUCKETS]; /* by the highest bit of the call's nanoseconds */
} record;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static record records[KINDS];
static uint64_t codes[MOST_CODES]; /* answers other than CUDA_SUCCESS */
static atomic_bool stopping;

static struct {
  __typeof__(&cuModuleLoadData) module_load;
  __typeof__(&cuModuleGetFunction) function_get;
  __typeof__(&cuCtxSynchronize) synchronize;
  __typeof__(&cuLaunchKernel) launch;
  __typeof__(&cuMemAlloc_v2) alloc;
  __typeof__(&cuMemFree_v2) release;
} cu;

static bool note(int kind, uint64_t begun_ns, CUresult result) {
  uint64_t took_ns = now_ns() - begun_ns;
  pthread_mutex_lock(&lock);
  record *one = &records[kind];
  one->calls++;
  one->octaves[63 - __builtin_clzll(took_ns | 1)]++;
  if (took_ns > one->worst_ns) one->worst_ns = took_ns;
  if (result != CUDA_SUCCESS) codes[(unsigned)result % MOST_CODES]++;
  pthread_mutex_unlock(&lock);
  return result == CUDA_SUCCESS;
}

/* The least duration that `permille` of the calls did not exceed, rounded up to an octave. */
static uint64_t quantile_ns(const record *one, uint64_t permille) {
  uint64_t seen = 0;
  for (unsigned i = 0; i < BUCKETS - 1; i++) {
    seen += one->octaves[i];
    if (seen * 1000 >= one->calls * permille) {
      uint64_t end_ns = 1ull << (i + 1);
      return end_ns < one->worst_ns ? end_ns : one->worst_ns;
    }
  }
  return one->worst_ns;
}

static void tell(void) {
  pthread_mutex_lock(&lock);
  printf("{\"errors\": {");
  const char *comma = "";
  for (unsigned code = 0; code < MOST_CODES; code++) {
    if (!codes[code]) continue;
    printf("%s\"%u\": %llu", comma, code, (unsigned long long)codes[code]);
    comma = ", ";
  }
  printf("}");
  for (int kind = 0; kind < KINDS; kind++) {
    const record *one = &records[kind];
    printf(", \"%s\": {\"calls\": %llu, \"p50_ns\": %llu, \"p99_ns\": %llu, \"max_ns\": %llu}",
           kind_names[kind], (unsigned long long)one->calls,
           (unsigned long long)quantile_ns(one, 500), (unsigned long long)quantile_ns(one, 990),
           (unsigned long long)one->worst_ns);
  }
  printf("}\n");
  fflush(stdout);
  memset(records, 0, sizeof records);
  memset(codes, 0, sizeof codes);
  pthread_mutex_unlock(&lock);
}

typedef struct work {
  CUcontext context;
  CUfunction kernel;
  uint64_t duration_ns;
} work;

static void *keep_busy(void *argument) {
  work *self = argument;
  void *parameters[] = {&self->duration_ns};
  check(driver.context_set(self->context), "cuCtxSetCurrent");
  for (uint64_t i = 1; !stopping; i++) {
    uint64_t begun_ns = now_ns();
    CUresult result = cu.launch(self->kernel, 1, 1, 1, 32, 1, 1, 0, NULL, parameters, NULL);
    note(LAUNCH, begun_ns, result);
    if (i % WAIT_EVERY != 0) continue;
    CUdeviceptr memory;
    begun_ns = now_ns();
    if (note(ALLOC, begun_ns, cu.alloc(&memory, 3u << 20))) {
      begun_ns = now_ns();
      note(FREE, begun_ns, cu.release(memory));
    }
    begun_ns = now_ns();
    note(WAIT, begun_ns, cu.synchronize());
  }
  return NULL;
}

int main(int count, char **words) {
  static const wanted_function wanted[] = {
      {&cu.module_load, "cuModuleLoadData"},
      {&cu.function_get, "cuModuleGetFunction"},
      {&cu.synchronize, "cuCtxSynchronize"},
      {&cu.launch, "cuLaunchKernel"},
      {&cu.alloc, "cuMemAlloc"},
      {&cu.release, "cuMemFree"},
  };
  work self = {.duration_ns = count > 1 ? strtoull(words[1], NULL, 10) * 1000 : 200000};
  load_driver(wanted, sizeof wanted / sizeof *wanted, CU_GET_PROC_ADDRESS_LEGACY_STREAM);
  check(driver.init(0), "cuInit");
  self.context = enter_context(0);
  CUmodule module;
  check(cu.module_load(&module, ptx), "cuModuleLoadData");
  check(cu.function_get(&self.kernel, module, "penstock_spin"), "cuModuleGetFunction");
  pthread_t thread;
  if (pthread_create(&thread, NULL, keep_busy, &self) != 0) return 1;
  char line[64];
  while (fgets(line, sizeof line, stdin)) tell();
  stopping = true;
  pthread_join(thread, NULL);
  return 0;
}
