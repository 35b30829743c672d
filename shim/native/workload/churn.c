/* penstock-churn: repeatedly allocates device memory until an allocation is refused, and prints the
 * result as one line of JSON.
 *
 * It is an ordinary CUDA program that knows nothing of the shim. It holds allocations of random
 * sizes until one is refused, frees half of them, and continues.
 *
 *   penstock-churn [SECONDS [MOST_BYTES [SEED]]]      default 1, 1 GiB, 1
 */
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL
#define PROGRAM "penstock-churn"
#include "workload/program.h"

enum { MOST_HELD = 4096 };

static struct {
  __typeof__(&cuMemAlloc_v2) alloc;
  __typeof__(&cuMemFree_v2) release;
} cu;

static void find_functions(void) {
  static const wanted_function wanted[] = {
      {&cu.alloc, "cuMemAlloc"},
      {&cu.release, "cuMemFree"},
  };
  load_driver(wanted, sizeof wanted / sizeof *wanted, CU_GET_PROC_ADDRESS_LEGACY_STREAM);
}

int main(int count, char **words) {
  const double seconds = count > 1 ? atof(words[1]) : 1;
  const uint64_t most_bytes = count > 2 ? strtoull(words[2], NULL, 10) : 1u << 30;
  unsigned seed = count > 3 ? (unsigned)strtoul(words[3], NULL, 10) : 1;
  if (!(seconds > 0) || !most_bytes) {
    fprintf(stderr, PROGRAM ": SECONDS and MOST_BYTES must be numbers above 0\n");
    return 2;
  }
  static CUdeviceptr held[MOST_HELD];
  find_functions();
  check(driver.init(0), "cuInit");
  enter_context(0);
  unsigned long long granted = 0, refused = 0;
  size_t have = 0;
  const uint64_t end_ns = now_ns() + (uint64_t)(seconds * 1e9);
  while (now_ns() < end_ns) {
    const uint64_t bytes = 1 + (uint64_t)(rand_r(&seed) / (double)RAND_MAX * (double)most_bytes);
    const CUresult result =
        have < MOST_HELD ? cu.alloc(&held[have], bytes) : CUDA_ERROR_OUT_OF_MEMORY;
    if (result == CUDA_SUCCESS) {
      have++;
      granted++;
      continue;
    }
    if (result != CUDA_ERROR_OUT_OF_MEMORY) check(result, "cuMemAlloc");
    refused++;
    for (size_t keep = have / 2; have > keep;) check(cu.release(held[--have]), "cuMemFree");
  }
  printf("{\"granted\": %llu, \"refused\": %llu}\n", granted, refused);
  return 0;
}
