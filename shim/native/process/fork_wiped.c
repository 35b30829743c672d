#define _GNU_SOURCE
#include "process/fork_wiped.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static void *map_first(penstock_fork_wiped *self, size_t size) {
  int saved_errno = errno;
  void *fresh = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (fresh == MAP_FAILED) {
    errno = saved_errno;
    return NULL;
  }
  if (madvise(fresh, size, MADV_WIPEONFORK) != 0) {
    __atomic_store_n(&self->pid, (uint32_t)getpid(), __ATOMIC_RELAXED);
  }
  void *other = NULL;
  if (!__atomic_compare_exchange_n(&self->memory, &other, fresh, 0, __ATOMIC_ACQ_REL,
                                   __ATOMIC_ACQUIRE)) {
    munmap(fresh, size);
    fresh = other;
  }
  errno = saved_errno;
  return fresh;
}

void *penstock_fork_wiped_get(penstock_fork_wiped *self, size_t size) {
  void *memory = __atomic_load_n(&self->memory, __ATOMIC_ACQUIRE);
  if (__builtin_expect(!memory, 0)) return map_first(self, size);
  uint32_t pid = __atomic_load_n(&self->pid, __ATOMIC_RELAXED);
  if (__builtin_expect(pid != 0, 0) && pid != (uint32_t)getpid()) {
    memset(memory, 0, size);
    __atomic_store_n(&self->pid, (uint32_t)getpid(), __ATOMIC_RELAXED);
  }
  return memory;
}
