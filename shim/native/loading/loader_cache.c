#define _GNU_SOURCE
#include "loading/loader_cache.h"

#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define CACHE "/etc/ld.so.cache"
#define OLD_MAGIC "ld.so-1.7.0"
#define MAGIC "glibc-ld.so.cache1.1"
#define X86_64_GLIBC 0x0303 /* value in an entry's flags */

/* Header of the libc 5 format, which older releases of ldconfig still write in front. */
typedef struct old_header {
  char magic[sizeof OLD_MAGIC - 1];
  uint32_t count;
} old_header;
#define OLD_ENTRY_BYTES 12

typedef struct header {
  char magic[sizeof MAGIC - 1];
  uint32_t count, string_bytes;
  uint32_t unused[5];
} header;

/* Entry for one library. String offsets in an entry are relative to the header. */
typedef struct entry {
  int32_t flags;
  uint32_t name, path, os_version;
  uint64_t hardware;
} entry;

_Static_assert(sizeof(old_header) == 16 && sizeof(header) == 48 && sizeof(entry) == 24, "on disk");

/* Returns the header and reduces `*bytes` to the size from there on, or returns NULL if the cache
 * is not in this format. */
static const char *find_header(const char *cache, size_t *bytes) {
  size_t at = 0;
  if (*bytes >= sizeof(old_header) && memcmp(cache, OLD_MAGIC, sizeof OLD_MAGIC - 1) == 0) {
    size_t count = ((const old_header *)cache)->count;
    at = (sizeof(old_header) + count * OLD_ENTRY_BYTES + 7) & ~(size_t)7;
  }
  if (at > *bytes || *bytes - at < sizeof(header)) return NULL;
  if (memcmp(cache + at, MAGIC, sizeof MAGIC - 1) != 0) return NULL;
  *bytes -= at;
  return cache + at;
}

/* Returns the string at an offset, or NULL if it does not end within the cache. */
static const char *text_at(const char *start, size_t bytes, uint32_t at) {
  return at < bytes && memchr(start + at, '\0', bytes - at) ? start + at : NULL;
}

static void each_entry(const char *cache, size_t bytes, const char *name,
                       bool (*each)(const char *path, void *context), void *context) {
  const char *start = find_header(cache, &bytes);
  if (!start) return;
  size_t count = ((const header *)start)->count;
  const entry *entries = (const void *)(start + sizeof(header));
  if (count > (bytes - sizeof(header)) / sizeof *entries) return;
  for (size_t i = 0; i < count; i++) {
    if ((entries[i].flags & 0xffff) != X86_64_GLIBC) continue;
    const char *found = text_at(start, bytes, entries[i].name);
    if (!found || strcmp(found, name) != 0) continue;
    const char *path = text_at(start, bytes, entries[i].path);
    if (path && each(path, context)) return;
  }
}

void penstock_loader_cache_each(const char *name, bool (*each)(const char *path, void *context),
                                void *context) {
  struct stat file;
  int fd = open(CACHE, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) return;
  bool readable = fstat(fd, &file) == 0 && S_ISREG(file.st_mode) && file.st_size > 0;
  size_t bytes = readable ? (size_t)file.st_size : 0;
  /* The file is mapped, as the loader does, which is safe because ldconfig replaces it and never
   * writes into it. */
  void *cache = readable ? mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
  close(fd);
  if (cache == MAP_FAILED) return;
  each_entry(cache, bytes, name, each, context);
  munmap(cache, bytes);
}
