/* Device memory as reported to a tenant: its quota, and what is left of it. */
#include "contexts/contexts.h"
#include "hooks/hook.h"
#include "mechanism/ledger.h"
#include "memory/reserve.h"
#include "memory/shares.h"

typedef struct memory_view {
  uint64_t total;
  uint64_t free;
} memory_view;

/* Computes free = min(quota - charged, driver's free). While other processes of the tenant
 * allocate, the result can only be too small, because they charge before they allocate. */
static memory_view view_of(const penstock_process *process, int grant, uint64_t driver_free) {
  uint64_t limit = penstock_ledger_limit(&process->region, (unsigned)grant);
  uint64_t used = penstock_ledger_total(&process->region, (unsigned)grant);
  /* The quota may have been reduced below the use. */
  uint64_t left = used < limit ? limit - used : 0;
  return (memory_view){.total = limit, .free = left < driver_free ? left : driver_free};
}

/* Returns the grant of the current context. A context whose creation the shim did not see is
 * charged first, so that the reported figures include it. */
static int grant_here(void) {
  CUcontext context;
  int grant;
  return penstock_here(&context, &grant) == CUDA_SUCCESS ? grant : penstock_current_grant();
}

#define MEMORY_INFO(free, total, call)                                \
  do {                                                                \
    CUresult result = call;                                           \
    if (result != CUDA_SUCCESS) return result;                        \
    const penstock_process *process = penstock_process_get();         \
    int grant = grant_here();                                         \
    if (!process || grant < 0) return CUDA_SUCCESS;                   \
    penstock_reserves_settle();                                       \
    penstock_shares_look_after();                                     \
    memory_view view = view_of(process, grant, (free) ? *(free) : 0); \
    if (free) *(free) = (__typeof__(*(free)))view.free;               \
    if (total) *(total) = (__typeof__(*(total)))view.total;           \
    return CUDA_SUCCESS;                                              \
  } while (0)

CUresult CUDAAPI HOOK_NAME(cuMemGetInfo)(unsigned int *free, unsigned int *total) {
  MEMORY_INFO(free, total, REAL(cuMemGetInfo)(free, total));
}

CUresult CUDAAPI HOOK_NAME(cuMemGetInfo_v2)(size_t *free, size_t *total) {
  MEMORY_INFO(free, total, REAL(cuMemGetInfo_v2)(free, total));
}

#define TOTAL_MEMORY(bytes, device, call)                                                      \
  do {                                                                                         \
    CUresult result = call;                                                                    \
    if (result != CUDA_SUCCESS) return result;                                                 \
    const penstock_process *process = penstock_process_get();                                  \
    int grant = penstock_grant_of(device);                                                     \
    if (!process || grant < 0) return CUDA_SUCCESS;                                            \
    *(bytes) = (__typeof__(*(bytes)))penstock_ledger_limit(&process->region, (unsigned)grant); \
    return CUDA_SUCCESS;                                                                       \
  } while (0)

CUresult CUDAAPI HOOK_NAME(cuDeviceTotalMem)(unsigned int *bytes, CUdevice device) {
  TOTAL_MEMORY(bytes, device, REAL(cuDeviceTotalMem)(bytes, device));
}

CUresult CUDAAPI HOOK_NAME(cuDeviceTotalMem_v2)(size_t *bytes, CUdevice device) {
  TOTAL_MEMORY(bytes, device, REAL(cuDeviceTotalMem_v2)(bytes, device));
}
