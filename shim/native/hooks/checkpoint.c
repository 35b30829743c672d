/* Checkpoints of processes. A tenant may suspend and resume its own processes, but not while it is
 * suspended itself: it would take device memory that was given to others (ADR 53). */
#include "common/log.h"
#include "hooks/hook.h"

static bool is_refused(const char *symbol) {
  const penstock_process *process = penstock_process_get();
  if (!process) return false;
  uint32_t flags =
      __atomic_load_n(&penstock_region_limits(&process->region)->flags, __ATOMIC_RELAXED);
  if (!(flags & (PENSTOCK_TENANT_SUSPENDED | PENSTOCK_TENANT_RELEASED))) return false;
  penstock_log("%s is refused because this tenant is suspended; `penstock resume` resumes it",
               symbol);
  return true;
}

#define UNLESS_SUSPENDED(symbol, type)                           \
  CUresult CUDAAPI HOOK_NAME(symbol)(int pid, type *arguments) { \
    if (is_refused(#symbol)) return CUDA_ERROR_NOT_PERMITTED;    \
    return REAL(symbol)(pid, arguments);                         \
  }
UNLESS_SUSPENDED(cuCheckpointProcessLock, CUcheckpointLockArgs)
UNLESS_SUSPENDED(cuCheckpointProcessCheckpoint, CUcheckpointCheckpointArgs)
UNLESS_SUSPENDED(cuCheckpointProcessRestore, CUcheckpointRestoreArgs)
UNLESS_SUSPENDED(cuCheckpointProcessUnlock, CUcheckpointUnlockArgs)
