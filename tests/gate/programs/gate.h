/* What the gate's test programs share, beside tests/sim/programs/check.h: kernels that wait. */
#pragma once
#include <pthread.h>

#include "check.h"

#define MS 1000000ull

CUfunction kernel_named(const char *name); /* of the module below, in the current context */
CUfunction kernel_anew(const char *name);  /* the same of a module that is loaded for it */
/* A kernel that stores `store` at `store_at` (0: nowhere) as it begins, and runs until the word at
 * `until_at` is at least `until`. */
void meet(CUstream stream, CUdeviceptr until_at, uint64_t until, CUdeviceptr store_at,
          uint64_t store);
void busy(CUstream stream, uint64_t ns); /* a kernel of one small block */
CUstream new_stream(unsigned flags);
CUdeviceptr new_words(unsigned count); /* 64-bit words of device memory, zero */
uint64_t word_at(CUdeviceptr address);
/* Uses up the quota for some hundred milliseconds at 20 percent: what follows waits at the gate. */
void go_into_overdraft(void);
