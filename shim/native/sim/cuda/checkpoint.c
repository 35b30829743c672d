/* cuCheckpointProcess*: locks, checkpoints, restores and unlocks this process or another one. The
 * calling process need not have called cuInit, nor is it blocked if it is locked itself. */
#include <errno.h>
#include <limits.h>
#include <signal.h>
#include <string.h>

#include "sim/cuda/core.h"
#include "sim/machine/place.h"

#define MS 1000000ull
#define FIRST_DRIVER 570  /* the first version with these calls */
#define FIRST_TO_MOVE 580 /* the first version that restores onto other devices */

/* Opens the machine in a process without cuInit, which takes as long as cuInit does. */
static sim_machine *machine_here(void) {
  sim_big_lock();
  char place[PATH_MAX], error[SIM_ERROR_BYTES];
  const char *path = sim_place_machine(place, sizeof place);
  if (!sim_here.machine && path) {
    uint64_t begun = sim_now_ns();
    sim_here.machine = sim_machine_open(path, error);
    if (sim_here.machine) sim_driver_start(begun);
  }
  sim_big_unlock();
  return sim_here.machine;
}

/* Finds a process. If it has not initialised the driver, the error is that of an uninitialised
 * driver. A process of another user is refused as the operating system refuses it. */
static CUresult find(int pid, sim_process_entry **process) {
  REQUIRE(pid > 0, CUDA_ERROR_INVALID_VALUE);
  sim_machine *m = machine_here();
  REQUIRE(m, CUDA_ERROR_NOT_INITIALIZED);
  REQUIRE(m->devices[0].profile.driver_major >= FIRST_DRIVER, CUDA_ERROR_NOT_SUPPORTED);
  *process = sim_process_find(m, pid);
  if (*process && kill(pid, 0) && errno == EPERM) return CUDA_ERROR_OPERATING_SYSTEM;
  if (*process) return CUDA_SUCCESS;
  return kill(pid, 0) && errno == ESRCH ? CUDA_ERROR_INVALID_VALUE : CUDA_ERROR_NOT_INITIALIZED;
}

CUresult CUDAAPI cuCheckpointProcessGetState(int pid, CUprocessState *out) {
  sim_process_entry *process;
  REQUIRE(out, CUDA_ERROR_INVALID_VALUE);
  TRY(find(pid, &process));
  *out = (CUprocessState)__atomic_load_n(&process->state, __ATOMIC_ACQUIRE);
  return CUDA_SUCCESS;
}

CUresult CUDAAPI cuCheckpointProcessGetRestoreThreadId(int pid, int *tid) {
  sim_process_entry *process;
  REQUIRE(tid, CUDA_ERROR_INVALID_VALUE);
  TRY(find(pid, &process));
  *tid = process->keeper;
  return CUDA_SUCCESS;
}

static bool all_zero(const void *bytes, size_t count) {
  for (size_t i = 0; i < count; i++)
    if (((const char *)bytes)[i]) return false;
  return true;
}

static CUresult ask(int pid, enum sim_request request, uint64_t wait_ns, const sim_pair *pairs,
                    uint32_t count) {
  sim_process_entry *process;
  TRY(find(pid, &process));
  return (CUresult)sim_process_ask(process, request, wait_ns, pairs, count);
}

CUresult CUDAAPI cuCheckpointProcessLock(int pid, CUcheckpointLockArgs *args) {
  REQUIRE(!args || (!args->reserved0 && all_zero(args->reserved1, sizeof args->reserved1)),
          CUDA_ERROR_INVALID_VALUE);
  return ask(pid, SIM_LOCK, args ? args->timeoutMs * MS : 0, NULL, 0);
}

CUresult CUDAAPI cuCheckpointProcessCheckpoint(int pid, CUcheckpointCheckpointArgs *args) {
  REQUIRE(!args || all_zero(args->reserved, sizeof args->reserved), CUDA_ERROR_INVALID_VALUE);
  if (args && args->customStorageInfo_out) return CUDA_ERROR_NOT_SUPPORTED;
  return ask(pid, SIM_CHECKPOINT, 0, NULL, 0);
}

CUresult CUDAAPI cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *args) {
  sim_pair pairs[SIM_MAX_DEVICES];
  if (!args) return ask(pid, SIM_RESTORE, 0, NULL, 0);
  REQUIRE(all_zero(args->reserved, sizeof args->reserved), CUDA_ERROR_INVALID_VALUE);
  REQUIRE(args->gpuPairsCount <= SIM_MAX_DEVICES && (!args->gpuPairsCount || args->gpuPairs),
          CUDA_ERROR_INVALID_VALUE);
  if (args->customStorageInfo_out) return CUDA_ERROR_NOT_SUPPORTED;
  sim_machine *m = machine_here();
  if (args->gpuPairsCount && m && m->devices[0].profile.driver_major < FIRST_TO_MOVE)
    return CUDA_ERROR_NOT_SUPPORTED;
  for (unsigned i = 0; i < args->gpuPairsCount; i++) {
    memcpy(pairs[i].from, args->gpuPairs[i].oldUuid.bytes, sizeof pairs[i].from);
    memcpy(pairs[i].to, args->gpuPairs[i].newUuid.bytes, sizeof pairs[i].to);
  }
  return ask(pid, SIM_RESTORE, 0, pairs, args->gpuPairsCount);
}

CUresult CUDAAPI cuCheckpointProcessUnlock(int pid, CUcheckpointUnlockArgs *args) {
  REQUIRE(!args || all_zero(args->reserved, sizeof args->reserved), CUDA_ERROR_INVALID_VALUE);
  return ask(pid, SIM_UNLOCK, 0, NULL, 0);
}
