/* Calls cuCheckpointProcess* as standard input says, one call a line, and prints each result's
 * name. */
#include <cuda.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static CUcheckpointGpuPair pairs[16];

/* Reads 32 hexadecimal digits. */
static void read_uuid(const char *text, CUuuid *uuid) {
  for (int i = 0; i < 16; i++) {
    unsigned byte = 0;
    sscanf(text + 2 * i, "%2x", &byte);
    uuid->bytes[i] = (char)byte;
  }
}

static CUresult restore(int pid, char *words) {
  CUcheckpointRestoreArgs args = {.gpuPairs = pairs};
  for (char *word = strtok(words, " \n"); word; word = strtok(NULL, " \n")) {
    CUcheckpointGpuPair *pair = &pairs[args.gpuPairsCount++];
    read_uuid(word, &pair->oldUuid);
    read_uuid(strchr(word, '>') + 1, &pair->newUuid);
  }
  return cuCheckpointProcessRestore(pid, args.gpuPairsCount ? &args : NULL);
}

int main(void) {
  char line[2048], word[32];
  static const char *const states[] = {"running", "locked", "checkpointed", "failed"};
  while (fgets(line, sizeof line, stdin)) {
    int pid = 0, used = 0, number = 0;
    if (sscanf(line, "%31s %d %n", word, &pid, &used) < 2) return 1;
    const char *name = "?";
    CUresult result = CUDA_ERROR_UNKNOWN;
    if (!strcmp(word, "state")) {
      CUprocessState state;
      result = cuCheckpointProcessGetState(pid, &state);
      if (result == CUDA_SUCCESS) {
        printf("%s\n", states[state]);
        fflush(stdout);
        continue;
      }
    } else if (!strcmp(word, "thread")) {
      result = cuCheckpointProcessGetRestoreThreadId(pid, &number);
      if (result == CUDA_SUCCESS) {
        printf("%d\n", number);
        fflush(stdout);
        continue;
      }
    } else if (!strcmp(word, "lock")) {
      CUcheckpointLockArgs args = {.timeoutMs = (unsigned)atoi(line + used)};
      result = cuCheckpointProcessLock(pid, &args);
    } else if (!strcmp(word, "checkpoint")) {
      result = cuCheckpointProcessCheckpoint(pid, NULL);
    } else if (!strcmp(word, "restore")) {
      result = restore(pid, line + used);
    } else if (!strcmp(word, "unlock")) {
      result = cuCheckpointProcessUnlock(pid, NULL);
    }
    cuGetErrorName(result, &name);
    printf("%s\n", name);
    fflush(stdout);
  }
  return 0;
}
