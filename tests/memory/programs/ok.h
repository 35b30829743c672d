/* OK(call): ends the program with the driver's error, should the call not succeed. */
#pragma once

#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>

#define OK(call)                                              \
  do {                                                        \
    CUresult result_ = (call);                                \
    if (result_ != CUDA_SUCCESS) {                            \
      fprintf(stderr, "%s: CUDA error %d\n", #call, result_); \
      exit(1);                                                \
    }                                                         \
  } while (0)
