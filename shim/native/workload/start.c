/* penstock-start: measures what it costs to start a process, up to its first kernel, in
 * nanoseconds, and prints the result as one line of JSON.
 *
 * It is an ordinary CUDA program that knows nothing of the shim, so that running the same binary
 * with and without the shim shows the difference. With --hold, it keeps its context and memory
 * until standard input ends, to be another process of the tenant beside those that are measured
 * later. With --every-ms, it also fills its memory with this period and waits for each fill.
 *
 *   penstock-start [--hold [--every-ms N]]
 */
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL
#include <poll.h>
#include <string.h>
#include <unistd.h>

#define PROGRAM "penstock-start"
#include "workload/program.h"

enum { BYTES = 1 << 20 };

static struct {
  __typeof__(&cuMemAlloc_v2) alloc;
  __typeof__(&cuMemsetD8_v2) set;
  __typeof__(&cuStreamSynchronize) synchronize;
} cu;

static void find_functions(void) {
  static const wanted_function wanted[] = {
      {&cu.alloc, "cuMemAlloc"},
      {&cu.set, "cuMemsetD8"},
      {&cu.synchronize, "cuStreamSynchronize"},
  };
  load_driver(wanted, sizeof wanted / sizeof *wanted, CU_GET_PROC_ADDRESS_LEGACY_STREAM);
}

/* Returns the period of work in ms, -1 for no work, or -2 for other options. */
static int period_ms(int count, char **words) {
  if (count == 2 && strcmp(words[1], "--hold") == 0) return -1;
  if (count != 4 || strcmp(words[1], "--hold") != 0 || strcmp(words[2], "--every-ms") != 0)
    return -2;
  char *end;
  long period = strtol(words[3], &end, 10);
  return *end || period < 1 || period > 3600000 ? -2 : (int)period;
}

/* Waits until standard input ends, working with the given period. */
static void hold(CUdeviceptr pointer, int every_ms) {
  struct pollfd input = {.fd = STDIN_FILENO, .events = POLLIN};
  char byte;
  for (unsigned char value = 0;; value++) {
    int found = poll(&input, 1, every_ms);
    if (found > 0 && read(STDIN_FILENO, &byte, 1) <= 0) return;
    if (found != 0) continue;
    check(cu.set(pointer, value, BYTES), "cuMemsetD8");
    check(cu.synchronize(NULL), "cuStreamSynchronize");
  }
}

int main(int count, char **words) {
  const int every_ms = period_ms(count, words);
  if (count > 1 && every_ms == -2) {
    fprintf(stderr, PROGRAM ": options are --hold and, with it, --every-ms 1 to 3600000\n");
    return 2;
  }
  CUdeviceptr pointer;
  const uint64_t began = now_ns();
  find_functions();
  const uint64_t found = now_ns();
  check(driver.init(0), "cuInit");
  const uint64_t ready = now_ns();
  enter_context(0);
  const uint64_t current = now_ns();
  check(cu.alloc(&pointer, BYTES), "cuMemAlloc");
  const uint64_t allocated = now_ns();
  printf("{\"load_ns\": %llu, \"init_ns\": %llu, \"context_ns\": %llu, \"allocate_ns\": %llu}\n",
         (unsigned long long)(found - began), (unsigned long long)(ready - found),
         (unsigned long long)(current - ready), (unsigned long long)(allocated - current));
  fflush(stdout);
  if (count > 1) hold(pointer, every_ms);
  return 0;
}
