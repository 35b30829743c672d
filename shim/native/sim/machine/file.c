/* Creates, opens and closes the machine's file. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sim/machine/model.h"

#define PAGE 4096u

static size_t round_page(size_t n) { return (n + PAGE - 1) & ~(size_t)(PAGE - 1); }
static size_t processes_offset(void) { return round_page(sizeof(sim_file)); }
static size_t devices_offset(void) {
  return processes_offset() + round_page(SIM_PROCESSES * sizeof(sim_process_entry));
}
static size_t areas_offset(uint32_t count) {
  return devices_offset() + round_page(count * sizeof(sim_device));
}
static size_t file_size(uint32_t count) {
  return areas_offset(count) + (size_t)count * SIM_CLIENTS * sizeof(sim_area);
}

static int fail(char *error, const char *path, const char *what) {
  if (error) snprintf(error, SIM_ERROR_BYTES, "simulated machine %.120s: %s", path, what);
  return -1;
}

static void read_boot_id(char out[40]) {
  memset(out, 0, 40);
  int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  if (fd < 0) return;
  ssize_t got = read(fd, out, 36);
  if (got != 36) memset(out, 0, 40);
  close(fd);
}

static void fill_uuid(uint8_t uuid[16], const char *name, uint32_t index, uint32_t place) {
  uint64_t hash = 14695981039346656037ull ^ index ^ (uint64_t)place << 32;
  for (int half = 0; half < 2; half++) {
    for (const char *p = name; *p; p++) hash = (hash ^ (uint8_t)*p) * 1099511628211ull;
    hash = (hash ^ (index + 1) ^ (hash >> 29)) * 0xbf58476d1ce4e5b9ull;
    memcpy(uuid + 8 * half, &hash, 8);
  }
  uuid[6] = (uint8_t)(0x50 | (uuid[6] & 0x0f)); /* marks a UUID derived from a name */
  uuid[8] = (uint8_t)(0x80 | (uuid[8] & 0x3f));
}

#define DEFAULT(field, value) \
  if (!p->field) p->field = (value)

static void fill_defaults(sim_profile *p, uint32_t index) {
  DEFAULT(max_threads_per_sm, 2048);
  DEFAULT(max_blocks_per_sm, 32);
  DEFAULT(registers_per_sm, 65536);
  DEFAULT(shared_per_sm_bytes, 100u << 10);
  DEFAULT(shared_per_block_optin_bytes, p->shared_per_sm_bytes - 1024);
  DEFAULT(l2_bytes, 40u << 20);
  DEFAULT(memory_bus_bits, 4096);
  DEFAULT(sm_clock_khz, 1500000);
  DEFAULT(memory_clock_khz, 1500000);
  DEFAULT(copy_engines, 2);
  DEFAULT(power_limit_mw, 300000);
  DEFAULT(memory_bytes_per_ns, 1000);
  DEFAULT(host_bytes_per_ns, 25);
  DEFAULT(context_bytes, 256ull << 20);
  DEFAULT(slab_bytes, 2ull << 20);
  DEFAULT(time_slice_ns, 2000000);
  DEFAULT(context_switch_ns, 50000);
  DEFAULT(event_tick_ns, 500);
  DEFAULT(queue_depth, 1024);
  DEFAULT(launch_ns, 1800);
  DEFAULT(event_record_ns, 1000);
  DEFAULT(query_ns, 500);
  DEFAULT(stream_op_ns, 1000);
  DEFAULT(memory_call_ns, 3000);
  DEFAULT(memory_slab_ns, 60000);
  DEFAULT(kernel_floor_ns, 2000);
  DEFAULT(start_ns, 3000);
  DEFAULT(thread_cost_ps, 40);
  DEFAULT(sample_period_ns, 139000000);
  DEFAULT(pci_bus, 1 + index * 0x10);
  DEFAULT(driver_major, 615);
  DEFAULT(checkpoint_speedup, 1);
}

static const char *profile_fault(const sim_profile *p) {
  if (!p->name[0]) return "a profile has no name";
  if (!p->sm_count) return "a profile has sm_count 0";
  if (!p->compute_major) return "a profile has no compute capability";
  if (p->reserved_bytes >= p->memory_bytes)
    return "a profile's memory_bytes is not above its reserve";
  if (p->queue_depth > SIM_OPS / 2) return "a profile's queue_depth is above 2048";
  return NULL;
}

/* Returns a random first ID of shared memory, because the descriptors of all machines on a host
 * share one devpts, so that their IDs must differ. */
static uint64_t first_shared_id(void) {
  /* half of the range that a descriptor's label can hold */
  const uint64_t half = (uint64_t)1 << 39;
  uint64_t random = 0;
  if (syscall(SYS_getrandom, &random, sizeof random, 0) != sizeof random) random = sim_now_ns();
  return random % half;
}

static void init_mutex(pthread_mutex_t *mutex) {
  pthread_mutexattr_t shared;
  pthread_mutexattr_init(&shared);
  pthread_mutexattr_setpshared(&shared, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&shared, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(mutex, &shared);
  pthread_mutexattr_destroy(&shared);
}

static void init_device(sim_device *d, const sim_profile *profile, uint32_t index) {
  init_mutex(&d->lock);
  d->profile = *profile;
  fill_defaults(&d->profile, index);
  fill_uuid(d->uuid, d->profile.name, index, profile->place);
  d->created_ns = d->t_ns = sim_now_ns();
  d->sample_next_ns = d->t_ns + d->profile.sample_period_ns;
  d->memory_used = d->profile.reserved_bytes;
  d->resident = SIM_NONE;
  d->shared_ids = first_shared_id();
  for (int k = 0; k < SIM_ENGINES; k++) d->engines[k].client = SIM_NONE;
}

static sim_file *map_file(int fd, size_t size) {
  void *at = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  return at == MAP_FAILED ? NULL : at;
}

int sim_machine_create(const char *path, const sim_profile *profiles, uint32_t count, char *error) {
  if (!count || count > SIM_MAX_DEVICES) return fail(error, path, "needs 1 to 16 devices");
  for (uint32_t i = 0; i < count; i++) {
    const char *fault = profile_fault(&profiles[i]);
    if (fault) return fail(error, path, fault);
  }
  char temporary[4096];
  if (snprintf(temporary, sizeof temporary, "%s.%d", path, (int)getpid()) >= (int)sizeof temporary)
    return fail(error, path, "the path is too long");
  int fd = open(temporary, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return fail(error, path, strerror(errno));
  size_t size = file_size(count);
  sim_file *file = NULL;
  /* On file systems without this call, glibc writes a byte into each block. */
  int problem = posix_fallocate(fd, 0, (off_t)areas_offset(count));
  if (!problem && !ftruncate(fd, (off_t)size)) file = map_file(fd, size);
  if (!problem && !file) problem = errno;
  if (file) {
    sim_device *devices = (sim_device *)((char *)file + devices_offset());
    for (uint32_t i = 0; i < count; i++) init_device(&devices[i], &profiles[i], i);
    sim_process_entry *processes = (sim_process_entry *)((char *)file + processes_offset());
    for (int i = 0; i < SIM_PROCESSES; i++) {
      init_mutex(&processes[i].alive);
      init_mutex(&processes[i].caller);
    }
    file->version = SIM_VERSION;
    file->device_count = count;
    file->size_bytes = size;
    file->created_ns = sim_now_ns();
    read_boot_id(file->boot_id);
    file->complete = 1;
    file->magic = SIM_MAGIC;
    munmap(file, size);
    if (link(temporary, path)) problem = errno;
  }
  close(fd);
  unlink(temporary);
  if (problem == EEXIST)
    return fail(error, path, "exists already; remove it or choose another path");
  if (problem == ENOSPC || problem == EDQUOT || problem == EFBIG) {
    char text[96];
    snprintf(text, sizeof text, "%s for its %zu KiB; free up disk space or choose another path",
             strerror(problem), areas_offset(count) >> 10);
    return fail(error, path, text);
  }
  return problem ? fail(error, path, strerror(problem)) : 0;
}

static const char *header_fault(int fd, sim_file *header) {
  if (pread(fd, header, sizeof *header, 0) != (ssize_t)sizeof *header)
    return "is too short for a machine; create it again";
  if (header->magic != SIM_MAGIC) return "is not a simulated machine";
  if (header->version != SIM_VERSION) return "was made by another version; create it again";
  if (!header->complete || !header->device_count || header->device_count > SIM_MAX_DEVICES ||
      header->size_bytes != file_size(header->device_count))
    return "is damaged or was made by another build; create it again";
  struct stat status;
  if (fstat(fd, &status) || (uint64_t)status.st_size != header->size_bytes)
    return "is truncated; create it again";
  char boot_id[40];
  read_boot_id(boot_id);
  if (memcmp(boot_id, header->boot_id, sizeof boot_id))
    return "was made before the last boot; create it again";
  return NULL;
}

sim_machine *sim_machine_open(const char *path, char *error) {
  int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd < 0 && errno == EACCES)
    return fail(error, path, "is another user's alone; its owner may open it: chmod 666"), NULL;
  if (fd < 0) return fail(error, path, strerror(errno)), NULL;
  sim_file header;
  const char *fault = header_fault(fd, &header);
  sim_machine *m = fault ? NULL : calloc(1, sizeof *m);
  if (m) {
    struct stat status;
    if (fstat(fd, &status) == 0) {
      m->device = status.st_dev;
      m->inode = status.st_ino;
    }
    m->size_bytes = header.size_bytes;
    m->file = map_file(fd, m->size_bytes);
    if (!m->file) {
      fault = "cannot be mapped: address space or memory limit";
      free(m);
      m = NULL;
    }
  }
  close(fd);
  if (!m) return fail(error, path, fault ? fault : "out of memory"), NULL;
  m->processes = (sim_process_entry *)((char *)m->file + processes_offset());
  m->devices = (sim_device *)((char *)m->file + devices_offset());
  m->areas = (char *)m->file + areas_offset(header.device_count);
  return m;
}

void sim_machine_close(sim_machine *m) {
  if (!m) return;
  munmap(m->file, m->size_bytes);
  free(m);
}

uint32_t sim_machine_device_count(const sim_machine *m) { return m ? m->file->device_count : 0; }
