/* The table behind the simulated driver's cuGetProcAddress; generated, sorted by base name. */
#pragma once

typedef struct penstock_variant {
  const char *base;   /* name as asked for */
  int version;        /* CUDA version that introduced this variant, 12020 for 12.2 */
  int per_thread;     /* asked for with the per-thread-default-stream flag */
  const void *symbol; /* the exported function */
} penstock_variant;

extern const penstock_variant penstock_cuda_variants[];
extern const unsigned penstock_cuda_variant_count;
