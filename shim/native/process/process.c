#define _GNU_SOURCE
#include "process/process.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/log.h"
#include "common/tenant_directory.h"
#include "mechanism/clock.h"
#include "process/handshake.h"

/* Longest wait for pages that are still being created when the process starts. */
#define PAGE_WAIT_NS 200000000
#define PAGE_POLL_NS 2000000

static penstock_process *attached;

/* Returns true for errors that reading a page can give while the page is still being written. */
static bool may_be_under_way(penstock_error error) {
  return error == PENSTOCK_E_MISSING || error == PENSTOCK_E_TRUNCATED ||
         error == PENSTOCK_E_WRONG_MAGIC;
}

static penstock_error open_region(penstock_region *region, const char *directory) {
  /* Set after the first wait, so that a broken page does not slow down every call. */
  static bool waited;
  penstock_error error = penstock_region_open(region, directory);
  if (error == PENSTOCK_OK || !may_be_under_way(error) ||
      __atomic_load_n(&waited, __ATOMIC_RELAXED)) {
    return error;
  }
  uint64_t give_up_ns = penstock_now_ns() + PAGE_WAIT_NS;
  while (may_be_under_way(error) && penstock_now_ns() < give_up_ns) {
    nanosleep(&(struct timespec){0, PAGE_POLL_NS}, NULL);
    error = penstock_region_open(region, directory);
  }
  __atomic_store_n(&waited, true, __ATOMIC_RELAXED);
  return error;
}

/* Runs each time a slot is claimed; the child of a fork claims its own. */
static void claimed(const penstock_region *region) {
  penstock_process *process = __atomic_load_n(&attached, __ATOMIC_ACQUIRE);
  if (process) penstock_handshake_send(region, process->directory);
}

static penstock_process *attach(void) {
  const char *directory = penstock_tenant_directory();
  if (!directory || !*directory) {
    penstock_log("no tenant: PENSTOCK_TENANT_DIR is not set and " PENSTOCK_MOUNTED_DIRECTORY
                 " does not exist; start the program with `penstock run`");
    return NULL;
  }
  size_t length = strlen(directory) + 1;
  penstock_process *process = calloc(1, sizeof *process + length);
  if (!process) return NULL;
  memcpy(process->directory, directory, length);
  penstock_error error = open_region(&process->region, directory);
  if (error != PENSTOCK_OK) {
    char why[384];
    penstock_region_explain(error, directory, why, sizeof why);
    penstock_log("no quota, so every CUDA call is refused: %s", why);
    free(process);
    return NULL;
  }
  process->region.claimed = claimed;
  penstock_process *other = NULL;
  if (!__atomic_compare_exchange_n(&attached, &other, process, 0, __ATOMIC_ACQ_REL,
                                   __ATOMIC_ACQUIRE)) {
    penstock_region_close(&process->region);
    free(process);
    return other;
  }
  return process;
}

penstock_process *penstock_process_get(void) {
  penstock_process *process = __atomic_load_n(&attached, __ATOMIC_ACQUIRE);
  if (__builtin_expect(process != NULL, 1)) return process;
  int saved_errno = errno;
  process = attach();
  errno = saved_errno;
  return process;
}
