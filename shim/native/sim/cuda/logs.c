/* The driver's log messages. Each error of a call is passed to the program's callbacks, in the
 * thread that made the call and before it returns. Errors inside a callback are not reported. */
#include <stdio.h>
#include <stdlib.h>

#include "sim/cuda/core.h"

enum { MOST = 16 };

typedef struct CUlogsCallbackEntry_st {
  CUlogsCallback function;
  void *data;
} entry;

static entry *callbacks[MOST]; /* guarded by the big lock */

void sim_logs_tell(CUresult error) {
  static __thread bool telling;
  const char *name = NULL;
  char message[128];
  if (telling) return;
  for (int i = 0; i < MOST; i++) {
    if (!__atomic_load_n(&callbacks[i], __ATOMIC_RELAXED)) continue;
    sim_big_lock();
    entry there = callbacks[i] ? *callbacks[i] : (entry){NULL, NULL};
    sim_big_unlock();
    if (!there.function) continue;
    cuGetErrorName(error, &name);
    int length = snprintf(message, sizeof message, "%s: %s", sim_self.call ? sim_self.call : "?",
                          name ? name : "?");
    telling = true;
    SIM_CALL_BACK(there.function(there.data, CU_LOG_LEVEL_ERROR, message, (size_t)length));
    telling = false;
  }
}

CUresult CUDAAPI cuLogsRegisterCallback(CUlogsCallback function, void *data,
                                        CUlogsCallbackHandle *out) {
  if (!function) return CUDA_ERROR_INVALID_VALUE;
  entry *fresh = malloc(sizeof *fresh);
  if (!fresh) return CUDA_ERROR_OUT_OF_MEMORY;
  *fresh = (entry){function, data};
  int i = 0;
  sim_big_lock();
  while (i < MOST && callbacks[i]) i++;
  if (i < MOST) __atomic_store_n(&callbacks[i], fresh, __ATOMIC_RELAXED);
  sim_big_unlock();
  if (i == MOST) {
    free(fresh);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (out) *out = fresh;
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuLogsUnregisterCallback(CUlogsCallbackHandle handle) {
  int i = 0;
  sim_big_lock();
  while (i < MOST && callbacks[i] != handle) i++;
  bool known = handle && i < MOST;
  if (known) __atomic_store_n(&callbacks[i], NULL, __ATOMIC_RELAXED);
  sim_big_unlock();
  if (known) free(handle);
  return known ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}
