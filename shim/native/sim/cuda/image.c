/* Reads a module image: PTX text, a cubin or a fat binary. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sim/cuda/module.h"

#define FATBIN_WRAPPER 0x466243b1u
#define FATBIN 0xba55ed50u
#define LONGEST ((uint64_t)1 << 40)

sim_kernel *sim_image_add_kernel(sim_image *image, const char *name, size_t length) {
  sim_kernel **link = &image->kernels;
  for (; *link; link = &(*link)->next)
    if (strlen((*link)->name) == length && !memcmp((*link)->name, name, length)) return *link;
  sim_kernel *k = calloc(1, sizeof *k);
  if (!k) return NULL;
  k->name = strndup(name, length);
  k->registers = 32;
  k->max_threads = 1024;
  *link = k;
  return k;
}

void sim_image_add_global(sim_image *image, const char *name, size_t length, uint64_t bytes,
                          bool managed) {
  sim_global *g = calloc(1, sizeof *g);
  if (!g) return;
  *g = (sim_global){
      .name = strndup(name, length), .bytes = bytes, .managed = managed, .next = image->globals};
  image->globals = g;
}

sim_kernel *sim_image_kernel(sim_image *image, const char *name) {
  for (sim_kernel *k = image->kernels; k; k = k->next)
    if (!strcmp(k->name, name)) return k;
  return image->any_name ? sim_image_add_kernel(image, name, strlen(name)) : NULL;
}

void sim_image_release(sim_image *image) {
  if (!image || --image->references > 0) return;
  while (image->kernels) {
    sim_kernel *k = image->kernels;
    image->kernels = k->next;
    free(k->name);
    free(k->params);
    free(k);
  }
  while (image->globals) {
    sim_global *g = image->globals;
    image->globals = g->next;
    free(g->name);
    free(g);
  }
  free(image);
}

static uint32_t u32(const uint8_t *p) {
  return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}
static uint64_t u64(const uint8_t *p) { return u32(p) | (uint64_t)u32(p + 4) << 32; }

/* Estimates the code size of compiled PTX. */
static uint64_t ptx_code_bytes(uint64_t length) { return length / 4 + 4096; }

/* An entry of a fat binary. Its header has the kind (1 for PTX, 2 for a cubin) at offset 0, the
 * header size at 4, the payload size at 8, the compressed size at 16, the architecture at 28, flags
 * at 40, and the uncompressed size at 56. */
typedef struct entry {
  const uint8_t *body;
  uint64_t bytes, unpacked_bytes;
  unsigned kind, architecture;
  bool packed;
} entry;

#define ENTRY_BYTES 64

static bool read_entry(const uint8_t *at, const uint8_t *end, entry *e) {
  if (end - at < ENTRY_BYTES) return false;
  uint64_t header = u32(at + 4);
  *e = (entry){.body = at + header,
               .bytes = u64(at + 8),
               .unpacked_bytes = u64(at + 56),
               .kind = at[0] | (unsigned)at[1] << 8,
               .architecture = u32(at + 28),
               .packed = u64(at + 40) & 0xe000 || u32(at + 16)};
  return header >= ENTRY_BYTES && header <= (uint64_t)(end - at) &&
         e->bytes <= (uint64_t)(end - e->body);
}

/* Rates how well an entry suits the device; 0 means unusable. The best is a cubin of the device's
 * architecture, then a cubin of a lower minor version, then the newest PTX that is not above the
 * device's architecture. */
static unsigned rank(const entry *e, const sim_gpu *gpu) {
  unsigned device = gpu->profile->compute_major * 10 + gpu->profile->compute_minor;
  if (e->architecture > device) return 0;
  if (e->kind == 1) return sim_here.forbids_ptx ? 0 : 1 + e->architecture;
  if (e->kind != 2 || e->architecture / 10 != device / 10 || sim_here.forces_ptx) return 0;
  return 100000 + e->architecture;
}

/* Reads the entry that the device would load. A compressed entry is not decompressed; any kernel
 * name is then accepted. */
static CUresult read_fatbin(const uint8_t *data, uint64_t readable, const sim_gpu *gpu,
                            sim_image *image) {
  if (readable < 16) return CUDA_ERROR_INVALID_IMAGE;
  uint64_t header = data[6] | data[7] << 8, size = u64(data + 8);
  if (header > readable || size > readable - header) return CUDA_ERROR_INVALID_IMAGE;
  const uint8_t *at = data + header, *end = at + size;
  entry one, best = {.body = NULL};
  for (unsigned best_rank = 0; read_entry(at, end, &one); at = one.body + one.bytes) {
    unsigned its = rank(&one, gpu);
    if (its <= best_rank) continue;
    best_rank = its;
    best = one;
  }
  if (!best.body) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  uint64_t bytes = best.packed ? best.unpacked_bytes : best.bytes;
  if (best.kind == 1) image->bytes = ptx_code_bytes(bytes);
  if (best.packed) {
    image->any_name = true;
    if (best.kind == 2) image->bytes = bytes;
    return CUDA_SUCCESS;
  }
  return best.kind == 1 ? sim_read_ptx((const char *)best.body, bytes, gpu, image)
                        : sim_read_elf(best.body, bytes, gpu, image);
}

static CUresult read_any(const uint8_t *data, uint64_t known_bytes, const sim_gpu *gpu,
                         sim_image *image) {
  /* Without a length, the sizes in the image's own headers are trusted. */
  uint64_t readable = known_bytes ? known_bytes : LONGEST;
  if (readable < 8) return CUDA_ERROR_INVALID_IMAGE;
  if (u32(data) == FATBIN_WRAPPER) { /* a wrapper points to the image */
    if (known_bytes) return CUDA_ERROR_INVALID_IMAGE;
    data = (const uint8_t *)u64(data + 8);
    if (!data) return CUDA_ERROR_INVALID_IMAGE;
  }
  if (u32(data) == FATBIN) return read_fatbin(data, readable, gpu, image);
  if (!memcmp(data, "\177ELF", 4)) return sim_read_elf(data, readable, gpu, image);
  if (data[0] >= 0x7f || data[0] < '\t') return CUDA_ERROR_INVALID_IMAGE;
  uint64_t length =
      known_bytes ? strnlen((const char *)data, known_bytes) : strlen((const char *)data);
  image->bytes = ptx_code_bytes(length);
  return sim_read_ptx((const char *)data, length, gpu, image);
}

/* Reads an image. `known_bytes` is 0 if the caller knows no length. */
CUresult sim_image_read(const void *data, uint64_t known_bytes, const sim_gpu *gpu,
                        sim_image **out) {
  if (!data) return CUDA_ERROR_INVALID_VALUE;
  sim_image *image = calloc(1, sizeof *image);
  if (!image) return CUDA_ERROR_OUT_OF_MEMORY;
  image->references = 1;
  CUresult result = read_any(data, known_bytes, gpu, image);
  if (result == CUDA_SUCCESS)
    *out = image;
  else
    sim_image_release(image);
  return result;
}

CUresult sim_file_read(const char *path, char **out, size_t *bytes) {
  if (!path) return CUDA_ERROR_INVALID_VALUE;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return CUDA_ERROR_FILE_NOT_FOUND;
  struct stat status;
  char *data =
      fstat(fd, &status) || status.st_size < 8 ? NULL : calloc(1, (size_t)status.st_size + 1);
  bool whole = data && pread(fd, data, (size_t)status.st_size, 0) == status.st_size;
  close(fd);
  if (!whole) {
    free(data);
    return CUDA_ERROR_INVALID_IMAGE;
  }
  *out = data;
  *bytes = (size_t)status.st_size;
  return CUDA_SUCCESS;
}

CUresult sim_image_read_file(const char *path, const sim_gpu *gpu, sim_image **image) {
  char *data;
  size_t bytes;
  CUresult result = sim_file_read(path, &data, &bytes);
  if (result != CUDA_SUCCESS) return result;
  result = sim_image_read(data, bytes, gpu, image);
  free(data);
  return result;
}
