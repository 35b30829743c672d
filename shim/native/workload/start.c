/* penstock-start: what a process pays before its first kernel, in nanoseconds, as one line of JSON.
 *
 * An ordinary CUDA program that knows nothing of the shim: the same binary run with and without it
 * gives the difference. With --hold it then stays, with its context and memory, until standard
 * input ends: a neighbour in the same tenant for the next one to meet.
 *
 *   penstock-start [--hold]
 */
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL
#include <string.h>
#include <unistd.h>

#define PROGRAM "penstock-start"
#include "workload/program.h"

static struct {
  __typeof__(&cuMemAlloc_v2) alloc;
} cu;

static void find_functions(void) {
  static const wanted_function wanted[] = {
      {&cu.alloc, "cuMemAlloc"},
  };
  load_driver(wanted, sizeof wanted / sizeof *wanted, CU_GET_PROC_ADDRESS_LEGACY_STREAM);
}

int main(int count, char **words) {
  const int hold = count == 2 && strcmp(words[1], "--hold") == 0;
  if (count > 1 + hold) {
    fprintf(stderr, PROGRAM ": the only option is --hold\n");
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
  check(cu.alloc(&pointer, 1 << 20), "cuMemAlloc");
  const uint64_t allocated = now_ns();
  printf("{\"load_ns\": %llu, \"init_ns\": %llu, \"context_ns\": %llu, \"allocate_ns\": %llu}\n",
         (unsigned long long)(found - began), (unsigned long long)(ready - found),
         (unsigned long long)(current - ready), (unsigned long long)(allocated - current));
  fflush(stdout);
  char byte;
  while (hold && read(STDIN_FILENO, &byte, 1) > 0) {
  }
  return 0;
}
