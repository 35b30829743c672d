/* Addresses and contents of device memory.
 *
 * A device pointer is an address in one large mapping of an anonymous file, of which only touched
 * pages take up memory. The mapping makes data survive a copy to the device and back, and lets
 * another process map the same pages (IPC). Address space is handed out in 2 MiB pages. The first
 * SIM_CONTENT_BYTES of an allocation keep what is written to them. The rest reads as zero, so that
 * a test that allocates 80 GB does not need 80 GB.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "sim/cuda/core.h"

#define PAGE_BYTES (2 * SIM_MIB)

typedef struct range {
  uint64_t from, to;
} range;

static struct {
  int fd;
  uint64_t start;     /* start of the mapping, which is offset 0 of the file */
  uint64_t base, end; /* the part in use, in whole pages */
  range *holes;       /* free address space, sorted */
  size_t hole_count, hole_room;
  sim_alloc **allocs; /* allocations, sorted by address */
  size_t alloc_count, alloc_room;
  uint64_t last_id;
} heap = {.fd = -1};

static void *map_heap(uint64_t bytes) {
  struct rlimit limit;
  bool limited = !getrlimit(RLIMIT_FSIZE, &limit) && limit.rlim_cur != RLIM_INFINITY;
  if (!limited) heap.fd = memfd_create("cuda-sim", MFD_CLOEXEC);
  if (heap.fd >= 0 && ftruncate(heap.fd, (off_t)bytes)) {
    close(heap.fd);
    heap.fd = -1;
  }
  int flags = heap.fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
  void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags | MAP_NORESERVE, heap.fd, 0);
  return at == MAP_FAILED ? NULL : at;
}

/* Reserves four times the memory of all devices, to allow for reservations and fragmentation, or
 * less where the address space is limited. The caller holds the big lock. */
bool sim_heap_start(void) {
  if (heap.base) return true;
  uint64_t bytes = 64ull << 30;
  for (int i = 0; i < sim_here.gpu_count; i++) bytes += 4 * sim_here.gpus[i].profile->memory_bytes;
  bytes = (bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
  void *at = NULL;
  for (; !at && bytes >= 1ull << 30; bytes /= 2) {
    at = map_heap(bytes);
    if (at) break;
  }
  if (!at) return false;
  madvise(at, bytes, MADV_DONTFORK);
  madvise(at, bytes, MADV_DONTDUMP);
  heap.start = (uint64_t)at;
  heap.base = ((uint64_t)at + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1);
  heap.end = ((uint64_t)at + bytes) & ~(PAGE_BYTES - 1);
  heap.holes = malloc(16 * sizeof *heap.holes);
  if (!heap.holes) return false;
  heap.hole_room = 16;
  heap.holes[0] = (range){heap.base, heap.end};
  heap.hole_count = 1;
  return true;
}

uint64_t sim_pages_take(uint64_t bytes) {
  bytes = (bytes + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1);
  for (size_t i = 0; bytes && i < heap.hole_count; i++) {
    range *hole = &heap.holes[i];
    if (hole->to - hole->from < bytes) continue;
    uint64_t address = hole->from;
    hole->from += bytes;
    if (hole->from == hole->to) memmove(hole, hole + 1, (--heap.hole_count - i) * sizeof *hole);
    return address;
  }
  return 0;
}

void sim_pages_give(uint64_t address, uint64_t bytes) {
  bytes = (bytes + PAGE_BYTES - 1) & ~(PAGE_BYTES - 1);
  madvise((void *)address, bytes, heap.fd >= 0 ? MADV_REMOVE : MADV_DONTNEED);
  size_t i = 0;
  while (i < heap.hole_count && heap.holes[i].from < address) i++;
  bool left = i && heap.holes[i - 1].to == address;
  bool right = i < heap.hole_count && heap.holes[i].from == address + bytes;
  if (left && right) {
    heap.holes[i - 1].to = heap.holes[i].to;
    memmove(&heap.holes[i], &heap.holes[i + 1], (--heap.hole_count - i) * sizeof(range));
  } else if (left) {
    heap.holes[i - 1].to += bytes;
  } else if (right) {
    heap.holes[i].from = address;
  } else {
    if (heap.hole_count == heap.hole_room) {
      range *more = realloc(heap.holes, 2 * heap.hole_room * sizeof *more);
      if (!more) return; /* the only loss is this address space */
      heap.holes = more;
      heap.hole_room *= 2;
    }
    memmove(&heap.holes[i + 1], &heap.holes[i], (heap.hole_count++ - i) * sizeof(range));
    heap.holes[i] = (range){address, address + bytes};
  }
}

int sim_heap_fd(void) { return heap.fd; }
uint64_t sim_heap_offset(uint64_t address) { return address - heap.start; }

/* Maps `bytes` of `fd` (-1 for the heap's own file) at `address`, which lies in the heap. */
bool sim_heap_map_at(uint64_t address, uint64_t offset, uint64_t bytes, int fd, int protection) {
  int file = fd >= 0 ? fd : heap.fd;
  int flags = MAP_FIXED | MAP_NORESERVE | (file >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS);
  void *at = mmap((void *)address, bytes, protection, flags, file, file >= 0 ? (off_t)offset : 0);
  if (at == MAP_FAILED) return false;
  madvise(at, bytes, MADV_DONTFORK);
  madvise(at, bytes, MADV_DONTDUMP);
  return true;
}

/* ---- lookup of allocations by address ---- */

static size_t first_above(uint64_t address) {
  size_t low = 0, high = heap.alloc_count;
  while (low < high) {
    size_t middle = (low + high) / 2;
    if (heap.allocs[middle]->address <= address)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

void sim_alloc_insert(sim_alloc *alloc) {
  if (heap.alloc_count == heap.alloc_room) {
    size_t room = heap.alloc_room ? 2 * heap.alloc_room : 256;
    sim_alloc **more = realloc(heap.allocs, room * sizeof *more);
    if (!more) abort();
    heap.allocs = more;
    heap.alloc_room = room;
  }
  size_t at = first_above(alloc->address);
  memmove(&heap.allocs[at + 1], &heap.allocs[at], (heap.alloc_count++ - at) * sizeof *heap.allocs);
  heap.allocs[at] = alloc;
  alloc->id = ++heap.last_id;
}

void sim_alloc_remove(sim_alloc *alloc) {
  for (size_t at = first_above(alloc->address); at-- > 0;) {
    if (heap.allocs[at] != alloc) continue;
    memmove(&heap.allocs[at], &heap.allocs[at + 1],
            (--heap.alloc_count - at) * sizeof *heap.allocs);
    return;
  }
}

sim_alloc *sim_alloc_find(uint64_t address) {
  size_t at = first_above(address);
  if (!at) return NULL;
  sim_alloc *alloc = heap.allocs[at - 1];
  return address - alloc->address < alloc->bytes ? alloc : NULL;
}

uint64_t sim_kept_bytes(uint64_t address, uint64_t bytes) {
  sim_alloc *alloc = sim_alloc_find(address);
  if (!alloc || alloc->kind == SIM_HOST_MEMORY || alloc->kind == SIM_REGISTERED) return bytes;
  uint64_t offset = address - alloc->address;
  if (offset >= SIM_CONTENT_BYTES) return 0;
  uint64_t kept = SIM_CONTENT_BYTES - offset;
  return kept < bytes ? kept : bytes;
}

void sim_allocs_of_context(sim_context *ctx) {
  for (size_t i = heap.alloc_count; i-- > 0;) {
    if (i >= heap.alloc_count) continue; /* freeing one allocation may have removed others */
    if (heap.allocs[i]->ctx == ctx) sim_alloc_free(heap.allocs[i]);
  }
}

bool sim_alloc_any(bool (*visit)(sim_alloc *alloc)) {
  for (size_t i = 0; i < heap.alloc_count; i++)
    if (visit(heap.allocs[i])) return true;
  return false;
}
