/* cuCheckpointProcess*: lock, checkpoint, restore, unlock, of this process or another. */
#include "sim/cuda/core.h"

#define MS 1000000ull

/* These calls do not wait when the caller itself is locked. */
static CUresult state_of(int pid, int *state) {
  REQUIRE(sim_initialized(), CUDA_ERROR_NOT_INITIALIZED);
  REQUIRE(pid > 0, CUDA_ERROR_INVALID_VALUE);
  *state = sim_checkpoint_state(sim_here.machine, pid);
  return *state < 0 ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS; /* not a process with CUDA */
}

CUresult CUDAAPI cuCheckpointProcessGetState(int pid, CUprocessState *out) {
  int state;
  REQUIRE(out, CUDA_ERROR_INVALID_VALUE);
  TRY(state_of(pid, &state));
  *out = (CUprocessState)state;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuCheckpointProcessGetRestoreThreadId(int pid, int *tid) {
  int state;
  REQUIRE(tid, CUDA_ERROR_INVALID_VALUE);
  TRY(state_of(pid, &state));
  *tid = pid;
  return CUDA_SUCCESS;
}
CUresult CUDAAPI cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args) {
  int state;
  TRY(state_of(pid, &state));
  if (state != CU_PROCESS_STATE_RUNNING) return CUDA_ERROR_ILLEGAL_STATE;
  return sim_checkpoint_lock(sim_here.machine, pid, args ? args->timeoutMs * MS : 0)
             ? CUDA_ERROR_NOT_READY
             : CUDA_SUCCESS;
}
CUresult CUDAAPI cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *args) {
  int state;
  TRY(state_of(pid, &state));
  if (state != CU_PROCESS_STATE_LOCKED) return CUDA_ERROR_ILLEGAL_STATE;
  if (args && args->customStorageInfo_out) return CUDA_ERROR_NOT_SUPPORTED;
  sim_checkpoint_save(sim_here.machine, pid);
  return CUDA_SUCCESS;
}
/* Onto the same device; another one of the same kind (gpuPairs) is not simulated. */
CUresult CUDAAPI cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args) {
  int state;
  TRY(state_of(pid, &state));
  if (state != CU_PROCESS_STATE_CHECKPOINTED) return CUDA_ERROR_ILLEGAL_STATE;
  if (args && args->gpuPairsCount) return CUDA_ERROR_NOT_SUPPORTED;
  return sim_checkpoint_restore(sim_here.machine, pid) ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}
CUresult CUDAAPI cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *args) {
  int state;
  (void)args;
  TRY(state_of(pid, &state));
  if (state != CU_PROCESS_STATE_LOCKED) return CUDA_ERROR_ILLEGAL_STATE;
  sim_checkpoint_unlock(sim_here.machine, pid);
  return CUDA_SUCCESS;
}
