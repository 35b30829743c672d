/* The table behind the simulated driver's cuGetProcAddress. It is generated and sorted by base
 * name. */
#pragma once

typedef struct penstock_variant {
  const char *base;   /* name that programs request */
  int version;        /* CUDA version that introduced this variant, such as 12020 for 12.2 */
  int per_thread;     /* 1 if requested with the per-thread-default-stream flag */
  const void *symbol; /* the exported function */
} penstock_variant;

extern const penstock_variant penstock_cuda_variants[];
extern const unsigned penstock_cuda_variant_count;
