#include "shares.h"

#include <errno.h>
#include <sys/stat.h>

#include "common/log.h"
#include "fork_wiped.h"
#include "mechanism/lock.h"
#include "mechanism/share.h"
#include "process.h"

/* Makes a change of the count and of this process's bit one. In memory that a fork wipes. */
static uint32_t *lock(void) {
  static penstock_fork_wiped memory;
  return penstock_fork_wiped_get(&memory, sizeof(uint32_t));
}

uint64_t penstock_shares_key(const void *handle, uint64_t bytes) {
  const unsigned char *at = handle;
  uint64_t key = 0xcbf29ce484222325u;
  for (uint64_t i = 0; i < bytes; i++) key = (key ^ at[i]) * 0x100000001b3u;
  return key ? key : 1;
}

uint64_t penstock_shares_key_of_file(int descriptor) {
  struct stat file;
  int saved_errno = errno;
  bool known = fstat(descriptor, &file) == 0 && !S_ISCHR(file.st_mode) && !S_ISBLK(file.st_mode);
  errno = saved_errno;
  if (!known) return 0;
  uint64_t words[2] = {file.st_dev, file.st_ino};
  return penstock_shares_key(words, sizeof words);
}

uint64_t penstock_shares_key_of_handle(const void *shareable, CUmemAllocationHandleType type) {
  if (!shareable) return 0;
  if (type == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    return penstock_shares_key_of_file(*(const int *)shareable);
  }
  return type == CU_MEM_HANDLE_TYPE_FABRIC
             ? penstock_shares_key(shareable, sizeof(CUmemFabricHandle))
             : 0;
}

/* A descriptor is imported by value. */
uint64_t penstock_shares_key_of_import(const void *shareable, CUmemAllocationHandleType type) {
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) {
    return penstock_shares_key_of_handle(shareable, type);
  }
  return penstock_shares_key_of_file((int)(intptr_t)shareable);
}

/* `change` of how many of this process hold the share; (locked). True when nobody did, or does. */
static bool count(uint64_t share, int64_t change) {
  penstock_object entry = {.key = share, .grant = -1, .kind = PENSTOCK_SHARE};
  penstock_object_take(PENSTOCK_SHARE, share, &entry);
  bool was_none = entry.bytes == 0;
  entry.bytes += (uint64_t)change;
  bool is_none = entry.bytes == 0;
  if (!is_none && !penstock_object_put(&entry)) penstock_log("no memory to remember a share");
  return was_none || is_none;
}

/* A new share with `bytes` of what this process is charged. */
static uint64_t make(int grant, uint64_t bytes, uint64_t key) {
  penstock_process *process = penstock_process_get();
  uint32_t *guard = lock();
  if (!process || !guard || grant < 0 || key == 0) return 0;
  penstock_lock_acquire(guard);
  penstock_share share = penstock_share_make(&process->region, (unsigned)grant, bytes, key);
  if (share) count(share, 1);
  penstock_lock_release(guard);
  return share;
}

void penstock_shares_make(penstock_object *object, uint64_t key) {
  if (object->share || !object->bytes) return;
  object->share = make(object->grant, object->in_slab ? 0 : object->bytes, key);
}

uint64_t penstock_shares_make_empty(int grant) {
  static uint64_t made; /* a name that nobody asks for, until it is renamed */
  uint64_t words[2] = {(uintptr_t)&made, __atomic_add_fetch(&made, 1, __ATOMIC_RELAXED)};
  return make(grant, 0, penstock_shares_key(words, sizeof words));
}

void penstock_shares_rename(uint64_t share, uint64_t key) {
  penstock_process *process = penstock_process_get();
  if (process && share && key) penstock_share_rename(&process->region, share, key);
}

uint64_t penstock_shares_join(uint64_t key) {
  penstock_process *process = penstock_process_get();
  uint32_t *guard = lock();
  if (!process || !guard) return 0;
  penstock_lock_acquire(guard);
  penstock_share share = penstock_share_join(&process->region, key);
  if (share) count(share, 1);
  penstock_lock_release(guard);
  return share;
}

void penstock_shares_hold(uint64_t share) {
  uint32_t *guard = lock();
  if (!share || !guard) return;
  penstock_lock_acquire(guard);
  count(share, 1);
  penstock_lock_release(guard);
}

void penstock_shares_drop(uint64_t share) {
  penstock_process *process = penstock_process_get();
  uint32_t *guard = lock();
  if (!share || !process || !guard) return;
  penstock_lock_acquire(guard);
  /* A fork's child holds nothing: its table is empty. */
  if (penstock_object_find(PENSTOCK_SHARE, share, NULL) && count(share, -1)) {
    penstock_share_leave(&process->region, share);
  }
  penstock_lock_release(guard);
}
