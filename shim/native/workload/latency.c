/* penstock-latency: measures what single driver calls cost the caller, in nanoseconds, and prints
 * the result as JSON.
 *
 * It is an ordinary CUDA program that knows nothing of the shim, so that running the same binary
 * with and without the shim shows the difference. Every call is timed separately. The queue is
 * drained before it can fill, which is not timed.
 *
 *   penstock-latency [CALLS]      default 20000
 */
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL
#define PROGRAM "penstock-latency"
#include "workload/program.h"
#include "workload/statistics.h"

enum { DRAIN_EVERY = 256, ALLOCATION_BYTES = 1 << 20 };

/* An empty kernel. The simulated device gives it a duration by its name. */
static const char ptx[] =
    ".version 7.0\n.target sm_52\n.address_size 64\n"
    ".visible .entry penstock_tiny()\n{\nret;\n}\n";

static struct {
  CUresult (*module_load)(CUmodule *, const void *);
  CUresult (*module_function)(CUfunction *, CUmodule, const char *);
  CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                     unsigned, CUstream, void **, void **);
  CUresult (*synchronize)(void);
  CUresult (*alloc)(CUdeviceptr *, size_t);
  CUresult (*release)(CUdeviceptr);
  CUresult (*info)(size_t *, size_t *);
} cu;

static void find_functions(void) {
  static const wanted_function wanted[] = {
      {&cu.module_load, "cuModuleLoadData"},
      {&cu.module_function, "cuModuleGetFunction"},
      {&cu.launch, "cuLaunchKernel"},
      {&cu.synchronize, "cuCtxSynchronize"},
      {&cu.alloc, "cuMemAlloc"},
      {&cu.release, "cuMemFree"},
      {&cu.info, "cuMemGetInfo"},
  };
  load_driver(wanted, sizeof wanted / sizeof *wanted, CU_GET_PROC_ADDRESS_LEGACY_STREAM);
}

static void time_launches(CUfunction kernel, uint64_t *samples, size_t calls) {
  for (size_t i = 0; i < calls; i++) {
    if (i % DRAIN_EVERY == 0) check(cu.synchronize(), "cuCtxSynchronize");
    const uint64_t begin = now_ns();
    check(cu.launch(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), "cuLaunchKernel");
    samples[i] = now_ns() - begin;
  }
  check(cu.synchronize(), "cuCtxSynchronize");
}

static void time_allocations(uint64_t *allocs, uint64_t *frees, size_t calls) {
  for (size_t i = 0; i < calls; i++) {
    CUdeviceptr pointer;
    const uint64_t begin = now_ns();
    check(cu.alloc(&pointer, ALLOCATION_BYTES), "cuMemAlloc");
    const uint64_t middle = now_ns();
    check(cu.release(pointer), "cuMemFree");
    allocs[i] = middle - begin;
    frees[i] = now_ns() - middle;
  }
}

static void time_refusals(uint64_t *samples, size_t calls) {
  size_t available, total;
  check(cu.info(&available, &total), "cuMemGetInfo");
  for (size_t i = 0; i < calls; i++) {
    CUdeviceptr pointer;
    const uint64_t begin = now_ns();
    const CUresult result = cu.alloc(&pointer, total + ALLOCATION_BYTES);
    samples[i] = now_ns() - begin;
    if (result != CUDA_ERROR_OUT_OF_MEMORY) check(CUDA_ERROR_UNKNOWN, "refusing cuMemAlloc");
  }
}

int main(int argc, char **argv) {
  const size_t calls = argc > 1 ? strtoul(argv[1], NULL, 10) : 20000;
  uint64_t *launches = calloc(calls, sizeof *launches), *allocs = calloc(calls, sizeof *allocs),
           *frees = calloc(calls, sizeof *frees), *refusals = calloc(calls, sizeof *refusals);
  if (calls < 100 || !launches || !allocs || !frees || !refusals) {
    fprintf(stderr, PROGRAM ": CALLS must be a number from 100 on that fits in memory\n");
    return 2;
  }
  find_functions();
  CUmodule module;
  CUfunction kernel;
  check(driver.init(0), "cuInit");
  enter_context(0);
  check(cu.module_load(&module, ptx), "cuModuleLoadData");
  check(cu.module_function(&kernel, module, "penstock_tiny"), "cuModuleGetFunction");
  time_launches(kernel, launches, calls / 4); /* warm up */
  time_launches(kernel, launches, calls);
  time_allocations(allocs, frees, calls);
  time_refusals(refusals, calls);
  printf("{\n");
  report_samples("launch", launches, calls, ",");
  report_samples("allocate", allocs, calls, ",");
  report_samples("free", frees, calls, ",");
  report_samples("refuse", refusals, calls, "");
  printf("}\n");
  return 0;
}
