/* A test program is a list of cases; each runs in a process of its own, named on the command line.
 *
 * CASE(name) { … } registers one. CHECK(condition) ends it with the place of the failure.
 */
#pragma once
#include <cuda.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MIB (1ull << 20)

typedef struct test_case {
  const char *name;
  void (*run)(void);
  struct test_case *next;
} test_case;
extern test_case *test_cases;

#define CASE(label)                                            \
  static void label(void);                                     \
  static test_case case_##label = {#label, label, NULL};       \
  __attribute__((constructor)) static void add_##label(void) { \
    case_##label.next = test_cases;                            \
    test_cases = &case_##label;                                \
  }                                                            \
  static void label(void)

#define CHECK(condition)                                                      \
  do {                                                                        \
    if (!(condition)) {                                                       \
      fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                                \
    }                                                                         \
  } while (0)
#define GIVES(expected, call)                                                                      \
  do {                                                                                             \
    CUresult got_ = (call);                                                                        \
    if (got_ != (expected)) {                                                                      \
      const char *name_ = "?";                                                                     \
      cuGetErrorName(got_, &name_);                                                                \
      fprintf(stderr, "%s:%d: %s gave %s, not %s\n", __FILE__, __LINE__, #call, name_, #expected); \
      exit(1);                                                                                     \
    }                                                                                              \
  } while (0)
#define OK(call) GIVES(CUDA_SUCCESS, call)

CUcontext begin(void); /* cuInit, primary context of device 0, current */
uint64_t now_ns(void);
size_t free_bytes(void);
CUfunction spin_kernel(void); /* runs for as long as its parameter says */
/* One kernel of `ns` nanoseconds, in `blocks` blocks of 1024 threads (200 fill the test device). */
void spin(CUstream stream, uint64_t ns, unsigned blocks);
double ms_since(uint64_t begun_ns);
