#include "image.h"

#include <elf.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#define FATBIN_MAGIC 0xba55ed50u
#define FATBIN_WRAPPER_MAGIC 0x466243b1u
#define LONGEST_TEXT ((uint64_t)1 << 30)

typedef struct fatbin_header {
  uint32_t magic;
  uint16_t version;
  uint16_t header_bytes;
  uint64_t body_bytes;
} fatbin_header;

typedef struct fatbin_wrapper {
  uint32_t magic;
  uint32_t version;
  const void *fatbin;
  const void *reserved;
} fatbin_wrapper;

/* An image that says more of itself than there can be takes all there is: it is refused. */
static uint64_t sum(uint64_t a, uint64_t b) {
  uint64_t both;
  return __builtin_add_overflow(a, b, &both) ? UINT64_MAX : both;
}

static uint64_t elf_bytes(const void *image) {
  Elf64_Ehdr header;
  memcpy(&header, image, sizeof header);
  if (header.e_ident[EI_CLASS] != ELFCLASS64) return 0;
  uint64_t sections = sum(header.e_shoff, (uint64_t)header.e_shnum * header.e_shentsize);
  uint64_t segments = sum(header.e_phoff, (uint64_t)header.e_phnum * header.e_phentsize);
  return sections > segments ? sections : segments;
}

uint64_t penstock_image_bytes(const void *image) {
  uint32_t magic;
  memcpy(&magic, image, sizeof magic);
  if (magic == FATBIN_WRAPPER_MAGIC) {
    fatbin_wrapper wrapper;
    memcpy(&wrapper, image, sizeof wrapper);
    if (!wrapper.fatbin) return 0;
    image = wrapper.fatbin;
    memcpy(&magic, image, sizeof magic);
  }
  if (magic == FATBIN_MAGIC) {
    fatbin_header header;
    memcpy(&header, image, sizeof header);
    return sum(header.header_bytes, header.body_bytes);
  }
  if (memcmp(image, ELFMAG, SELFMAG) == 0) return elf_bytes(image);
  return strnlen(image, LONGEST_TEXT);
}

uint64_t penstock_image_file_bytes(const char *path) {
  struct stat file;
  int saved_errno = errno;
  uint64_t bytes = stat(path, &file) == 0 ? (uint64_t)file.st_size : 0;
  errno = saved_errno;
  return bytes;
}
