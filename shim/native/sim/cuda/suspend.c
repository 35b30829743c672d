/* What a checkpoint does to this process: its device memory moves to host memory, its devices are
 * left, and later the memory moves back, to the same devices or to others of the same model.
 *
 * The keeper calls this while no call of the process is under way. Threads of the program may use
 * host memory meanwhile, which therefore stays where it is. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "sim/cuda/pool.h"
#include "sim/cuda/vmm.h"
#include "sim/machine/place.h"

#define PAGE 4096ull

/* A run of pages that moved to host memory. */
typedef struct run {
  uint64_t address, bytes, offset; /* offset in the host memory */
} run;

static struct {
  char *host; /* as large as all released device memory; only pages with contents are touched */
  uint64_t host_bytes, used;
  run *runs;
  size_t run_count, run_room;
  uint64_t taken[SIM_MAX_DEVICES]; /* memory released on each device, by ordinal */
  bool failed;
} saved;

/* ---- what a checkpoint refuses ---- */

static bool is_foreign(sim_alloc *a) {
  return a->exported || a->shared || a->kind == SIM_IMPORTED || a->kind == SIM_POOL_IMPORTED ||
         a->kind == SIM_EXTERNAL_MAP;
}
static bool is_uvm(sim_alloc *a) { return sim_is_managed(a); }
static bool physical_is_foreign(void *handle) {
  const sim_physical *p = handle;
  return p->shared || p->team;
}
static bool pool_is_foreign(void *handle) {
  const sim_pool *pool = handle;
  for (const sim_chunk *chunk = pool->chunks; chunk; chunk = chunk->next)
    if (chunk->shared) return true;
  return pool->shared || pool->maker;
}
static bool event_is_foreign(void *handle) {
  const sim_event *e = handle;
  return e->imported || e->exported;
}

static bool has_peers(void) {
  for (const sim_context *ctx = sim_contexts(); ctx; ctx = ctx->next)
    if (ctx->alive && ctx->peers) return true;
  return false;
}

static bool uses_mig(void) {
  for (int i = 0; i < sim_here.gpu_count; i++)
    if (sim_here.gpus[i].client != SIM_NONE &&
        __atomic_load_n(&sim_here.machine->devices[sim_here.gpus[i].device].mig_count,
                        __ATOMIC_ACQUIRE))
      return true;
  return false;
}

/* NVIDIA documents that IPC memory and managed memory (UVM) are not supported. Multicast objects
 * and access between devices are refused in practice, as NCCL's users report, and so are clients of
 * MPS. On MIG instances, a checkpoint is reported to fail with "out of memory". */
static CUresult obstacle(void) {
  if (uses_mig()) return CUDA_ERROR_OUT_OF_MEMORY;
  bool refused = sim_alloc_any(is_uvm) || sim_alloc_any(is_foreign) ||
                 sim_handle_any(SIM_PHYSICAL, physical_is_foreign) ||
                 sim_handle_any(SIM_POOL, pool_is_foreign) ||
                 sim_handle_any(SIM_EVENT, event_is_foreign) || has_peers() || sim_is_mps_client();
  return refused ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

/* ---- contents ---- */

static void add_run(uint64_t address, uint64_t bytes) {
  if (saved.run_count == saved.run_room) {
    size_t room = saved.run_room ? 2 * saved.run_room : 64;
    run *more = realloc(saved.runs, room * sizeof *more);
    if (!more) {
      saved.failed = true;
      return;
    }
    saved.runs = more;
    saved.run_room = room;
  }
  saved.runs[saved.run_count++] = (run){address, bytes, saved.used};
  saved.used += bytes;
}

static bool is_zero(const char *page) {
  for (const uint64_t *word = (const uint64_t *)page, *end = word + PAGE / 8; word < end; word++)
    if (*word) return false;
  return true;
}

/* Finds the pages with contents in a range of the heap, without touching the others. */
static void add_pages(uint64_t from, uint64_t to) {
  int fd = sim_heap_fd();
  while (from < to && !saved.failed) {
    uint64_t end = to;
    if (fd >= 0) {
      off_t at = (off_t)sim_heap_offset(from);
      off_t data = lseek(fd, at, SEEK_DATA);
      if (data < 0 || (uint64_t)(data - at) >= to - from) return;
      from += (uint64_t)(data - at);
      off_t hole = lseek(fd, data, SEEK_HOLE);
      if (hole > data && (uint64_t)(hole - data) < to - from) end = from + (uint64_t)(hole - data);
    } else {
      end = from + PAGE;
      if (is_zero((const char *)from)) {
        from = end;
        continue;
      }
    }
    add_run(from, end - from);
    from = end;
  }
}

/* Adds the pages of an allocation. Pages that a neighbour in the same slab has added are left out.
 * Host memory stays. Mapped physical memory has files of its own, whose contents stay there. */
static bool add_alloc(sim_alloc *a) {
  static uint64_t last_end;
  if (!saved.run_count && !saved.used) last_end = 0;
  if (a->kind == SIM_HOST_MEMORY || a->kind == SIM_REGISTERED || a->kind == SIM_RESERVED_MAP)
    return false;
  if (a->kind == SIM_POOLED && sim_pool_is_on_host(a->pool)) return false;
  uint64_t bytes = a->bytes < SIM_CONTENT_BYTES ? a->bytes : SIM_CONTENT_BYTES;
  uint64_t from = a->address & ~(PAGE - 1), to = (a->address + bytes + PAGE - 1) & ~(PAGE - 1);
  if (from < last_end) from = last_end;
  if (from < to) {
    add_pages(from, to);
    last_end = to;
  }
  return saved.failed;
}

static void forget_host_memory(void) {
  if (saved.host) munmap(saved.host, saved.host_bytes);
  free(saved.runs);
  saved.host = NULL;
  saved.runs = NULL;
  saved.run_count = saved.run_room = 0;
  saved.used = saved.host_bytes = 0;
  saved.failed = false;
}

/* Reserves host memory for everything on the devices, as a real driver does, and moves the contents
 * there. */
static bool move_out(uint64_t device_bytes) {
  sim_alloc_any(add_alloc);
  saved.host_bytes = (device_bytes > saved.used ? device_bytes : saved.used) + PAGE;
  void *host = saved.failed ? MAP_FAILED
                            : mmap(NULL, saved.host_bytes, PROT_READ | PROT_WRITE,
                                   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (host == MAP_FAILED) {
    forget_host_memory();
    return false;
  }
  saved.host = host;
  for (size_t i = 0; i < saved.run_count; i++) {
    const run *r = &saved.runs[i];
    memcpy(saved.host + r->offset, (const void *)r->address, r->bytes);
    madvise((void *)r->address, r->bytes, sim_heap_fd() >= 0 ? MADV_REMOVE : MADV_DONTNEED);
  }
  return true;
}

static void move_in(void) {
  for (size_t i = 0; i < saved.run_count; i++) {
    const run *r = &saved.runs[i];
    memcpy((void *)r->address, saved.host + r->offset, r->bytes);
  }
  forget_host_memory();
}

/* Each device has its own link to the host, so that all transfer at the same time. */
static void wait_for_transfer(uint64_t begun, const uint64_t *bytes) {
  uint64_t longest = 0;
  for (int i = 0; i < sim_here.gpu_count; i++) {
    const sim_profile *p = sim_here.gpus[i].profile;
    uint64_t ns =
        (uint64_t)((double)bytes[i] / p->host_bytes_per_ns / (double)p->checkpoint_speedup);
    if (ns > longest) longest = ns;
  }
  sim_sleep_until(begun + longest);
}

static uint64_t memory_of(const sim_gpu *gpu) {
  if (gpu->client == SIM_NONE) return 0;
  return __atomic_load_n(&sim_here.machine->devices[gpu->device].clients[gpu->client].memory_bytes,
                         __ATOMIC_RELAXED);
}

CUresult sim_suspend_save(void) {
  uint64_t begun = sim_now_ns(), total = 0;
  sim_big_lock();
  CUresult result = obstacle();
  for (int i = 0; i < sim_here.gpu_count; i++)
    total += saved.taken[i] = memory_of(&sim_here.gpus[i]);
  if (result == CUDA_SUCCESS && !move_out(total)) result = CUDA_ERROR_OUT_OF_MEMORY;
  sim_big_unlock();
  if (result != CUDA_SUCCESS) return result;
  wait_for_transfer(begun, saved.taken);
  for (int i = 0; i < sim_here.gpu_count; i++)
    if (sim_here.gpus[i].client != SIM_NONE)
      sim_client_release(sim_here.machine, sim_here.gpus[i].device, sim_here.gpus[i].client);
  return CUDA_SUCCESS;
}

/* ---- restore ---- */

static uint32_t device_of(const uint8_t uuid[16]) {
  for (uint32_t i = 0; i < sim_machine_device_count(sim_here.machine); i++)
    if (!memcmp(sim_here.machine->devices[i].uuid, uuid, 16)) return i;
  return SIM_NONE;
}

/* Reads the pairs into `to`, by index of the old device. All devices that the kernel's driver shows
 * must be mapped, whatever CUDA_VISIBLE_DEVICES hides from the program; each to another one, and to
 * one of the same model. The documentation names no errors for these cases. */
static CUresult read_pairs(const sim_pair *pairs, uint32_t count, uint32_t *to) {
  uint32_t devices = sim_machine_device_count(sim_here.machine), mapped = 0;
  for (uint32_t i = 0; i < devices; i++) to[i] = count ? SIM_NONE : i;
  for (uint32_t i = 0; i < count; i++) {
    uint32_t from = device_of(pairs[i].from), target = device_of(pairs[i].to);
    if (from == SIM_NONE || target == SIM_NONE || to[from] != SIM_NONE || mapped >> target & 1)
      return CUDA_ERROR_INVALID_VALUE;
    if (strcmp(sim_here.machine->devices[from].profile.name,
               sim_here.machine->devices[target].profile.name))
      return CUDA_ERROR_NOT_SUPPORTED;
    to[from] = target;
    mapped |= 1u << target;
  }
  return count && count != devices ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static sim_gpu *moved_gpu;
static uint32_t moved_device, moved_client;
static bool move_event(void *handle) {
  sim_event *e = handle;
  if (e->gpu != moved_gpu) return false;
  e->device = moved_device;
  e->client = moved_client;
  return false;
}

/* Makes the process's device another one. The ordinal keeps its number, and everything that the
 * process asks about it is answered for the new device, its UUID too. (What a real driver's
 * cuDeviceGetUuid returns after a restore onto another device is not documented.) */
static void become(sim_gpu *gpu, uint32_t device, uint32_t client) {
  uint32_t old_device = gpu->device, old_client = gpu->client;
  moved_gpu = gpu;
  moved_device = device;
  moved_client = client;
  if (client != SIM_NONE) {
    sim_client_move(sim_here.machine, old_device, old_client, device, client);
    sim_handle_any(SIM_EVENT, move_event);
  }
  sim_device *d = &sim_here.machine->devices[device];
  gpu->device = device;
  gpu->profile = &d->profile;
  gpu->uuid = d->uuid;
  __atomic_store_n(&gpu->client, client, __ATOMIC_RELEASE);
  __atomic_store_n(&gpu->served, (uint64_t)device << 32 | client, __ATOMIC_RELEASE);
  if (client == SIM_NONE) return;
  sim_client *old = &sim_here.machine->devices[old_device].clients[old_client];
  __atomic_add_fetch(&old->bell, 1, __ATOMIC_RELEASE);
  sim_futex_wake(&old->bell); /* so that the service thread looks where its client is */
  sim_detach(sim_here.machine, old_device, old_client);
}

/* Takes the memory of one device, on `device`. Sets *client to the client there. */
static CUresult take_on(const sim_gpu *gpu, uint32_t device, uint64_t bytes, uint32_t *client) {
  char tag[SIM_TAG_BYTES];
  *client = gpu->client;
  if (gpu->client == SIM_NONE) return CUDA_SUCCESS;
  if (__atomic_load_n(&sim_here.machine->devices[device].lost, __ATOMIC_RELAXED))
    return CUDA_ERROR_DEVICE_UNAVAILABLE;
  if (device != gpu->device) {
    const char *name = sim_place_tag(tag, sizeof tag);
    *client = sim_attach(sim_here.machine, device, name);
    if (*client == SIM_NONE) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  if (sim_client_retake(sim_here.machine, device, *client, bytes)) return CUDA_SUCCESS;
  if (device != gpu->device) sim_detach(sim_here.machine, device, *client);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

static void give_back(const sim_gpu *gpu, uint32_t device, uint32_t client) {
  if (client == SIM_NONE) return;
  if (device != gpu->device)
    sim_detach(sim_here.machine, device, client);
  else
    sim_client_release(sim_here.machine, device, client);
}

CUresult sim_suspend_restore(const sim_pair *pairs, uint32_t count) {
  uint64_t begun = sim_now_ns();
  uint32_t to[SIM_MAX_DEVICES], clients[SIM_MAX_DEVICES];
  CUresult result = read_pairs(pairs, count, to);
  if (result != CUDA_SUCCESS) return result;
  sim_gpu *gpus = sim_here.gpus;
  for (int i = 0; i < sim_here.gpu_count; i++) {
    result = take_on(&gpus[i], to[gpus[i].device], saved.taken[i], &clients[i]);
    if (result == CUDA_SUCCESS) continue;
    while (i-- > 0) give_back(&gpus[i], to[gpus[i].device], clients[i]);
    return result;
  }
  wait_for_transfer(begun, saved.taken);
  sim_big_lock();
  for (int i = 0; i < sim_here.gpu_count; i++)
    if (to[gpus[i].device] != gpus[i].device) become(&gpus[i], to[gpus[i].device], clients[i]);
  move_in();
  sim_big_unlock();
  return CUDA_SUCCESS;
}
