#include "image.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define FATBIN_MAGIC 0xba55ed50u
#define FATBIN_WRAPPER_MAGIC 0x466243b1u
#define MACHINE_CUDA 190
#define MOST_SECTIONS ((uint64_t)1 << 20)
#define LONGEST_TEXT ((uint64_t)1 << 30)
#define UNKNOWN UINT64_MAX /* of a length */

typedef struct fatbin_header {
  uint32_t magic;
  uint16_t version;
  uint16_t header_bytes;
  uint64_t body_bytes;
} fatbin_header;

typedef struct fatbin_entry {
  uint16_t kind;
  uint16_t version;
  uint32_t header_bytes;
  uint64_t payload_bytes;
  uint32_t compressed_bytes;
  uint32_t others[5];
  uint64_t flags;
  uint64_t reserved;
  uint64_t unpacked_bytes;
} fatbin_entry;

#define ENTRY_PTX 1
#define ENTRY_CUBIN 2
#define ENTRY_COMPRESSED 0xe000 /* one flag a method */

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

static bool lies_within(uint64_t offset, uint64_t bytes, uint64_t readable) {
  return offset <= readable && bytes <= readable - offset;
}

/* ---- cubins ---- */

typedef struct cubin {
  const uint8_t *data;
  uint64_t readable;
  Elf64_Ehdr header;
  uint64_t sections;
  Elf64_Shdr names; /* the section that holds the sections' names */
} cubin;

static bool read_section(const cubin *file, uint64_t index, Elf64_Shdr *section) {
  uint64_t at = sum(file->header.e_shoff, index * sizeof *section);
  if (!lies_within(at, sizeof *section, file->readable)) return false;
  memcpy(section, file->data + at, sizeof *section);
  return true;
}

/* Shared and local memory is laid out in sections too, but takes none of the device's. */
static bool is_on_chip(const cubin *file, const Elf64_Shdr *section) {
  static const char *const prefixes[] = {".nv.shared", ".nv.local"};
  for (int i = 0; i < 2; i++) {
    uint64_t length = strlen(prefixes[i]);
    uint64_t at = sum(file->names.sh_offset, section->sh_name);
    if (lies_within(section->sh_name, length, file->names.sh_size) &&
        lies_within(at, length, file->readable) &&
        memcmp(file->data + at, prefixes[i], length) == 0) {
      return true;
    }
  }
  return false;
}

/* Variables without initial values have a section with a size and no content. */
static uint64_t cubin_data_bytes(cubin *file) {
  uint64_t bytes = 0;
  Elf64_Shdr section;
  if (file->header.e_machine != MACHINE_CUDA || file->header.e_shentsize != sizeof section ||
      file->header.e_shoff == 0 || !read_section(file, 0, &section)) {
    return 0;
  }
  file->sections = file->header.e_shnum ? file->header.e_shnum : section.sh_size;
  if (file->sections > MOST_SECTIONS) file->sections = MOST_SECTIONS;
  uint64_t names =
      file->header.e_shstrndx == SHN_XINDEX ? section.sh_link : file->header.e_shstrndx;
  if (!read_section(file, names, &file->names)) return 0;
  for (uint64_t i = 0; i < file->sections && read_section(file, i, &section); i++) {
    if (section.sh_type == SHT_NOBITS && section.sh_flags & SHF_ALLOC &&
        !is_on_chip(file, &section)) {
      bytes = sum(bytes, section.sh_size);
    }
  }
  return bytes;
}

static penstock_image_size measure_cubin(const uint8_t *data, uint64_t readable) {
  cubin file = {.data = data, .readable = readable};
  if (readable < sizeof file.header) return (penstock_image_size){0};
  memcpy(&file.header, data, sizeof file.header);
  const Elf64_Ehdr *header = &file.header;
  if (header->e_ident[EI_CLASS] != ELFCLASS64) return (penstock_image_size){0};
  uint64_t sections = sum(header->e_shoff, (uint64_t)header->e_shnum * header->e_shentsize);
  uint64_t segments = sum(header->e_phoff, (uint64_t)header->e_phnum * header->e_phentsize);
  return (penstock_image_size){.code_bytes = sections > segments ? sections : segments,
                               .data_bytes = cubin_data_bytes(&file)};
}

/* ---- fat binaries ---- */

/* All of it is charged as code. One entry is chosen: the one with the most data counts. */
static penstock_image_size measure_fatbin(const uint8_t *data, uint64_t readable) {
  fatbin_header header;
  if (readable < sizeof header) return (penstock_image_size){0};
  memcpy(&header, data, sizeof header);
  penstock_image_size size = {.code_bytes = sum(header.header_bytes, header.body_bytes)};
  uint64_t end = size.code_bytes < readable ? size.code_bytes : readable;
  uint64_t at = header.header_bytes;
  fatbin_entry entry;
  for (; lies_within(at, sizeof entry, end); at += entry.header_bytes + entry.payload_bytes) {
    memcpy(&entry, data + at, sizeof entry);
    if (entry.header_bytes < sizeof entry || !lies_within(entry.header_bytes, 0, end - at) ||
        !lies_within(entry.payload_bytes, 0, end - at - entry.header_bytes)) {
      break;
    }
    const uint8_t *payload = data + at + entry.header_bytes;
    uint64_t bytes = 0;
    if (entry.flags & ENTRY_COMPRESSED || entry.compressed_bytes) {
      size.is_hidden = true;
      bytes = entry.unpacked_bytes;
    } else if (entry.kind == ENTRY_PTX) {
      bytes = penstock_ptx_data_bytes((const char *)payload, entry.payload_bytes);
    } else if (entry.kind == ENTRY_CUBIN) {
      bytes = measure_cubin(payload, entry.payload_bytes).data_bytes;
    }
    if (bytes > size.data_bytes) size.data_bytes = bytes;
  }
  return size;
}

penstock_image_size penstock_image_measure_within(const void *image, uint64_t readable) {
  uint32_t magic;
  if (readable < sizeof magic) return (penstock_image_size){0};
  memcpy(&magic, image, sizeof magic);
  if (magic == FATBIN_WRAPPER_MAGIC) {
    fatbin_wrapper wrapper;
    if (readable != UNKNOWN) return (penstock_image_size){0}; /* points elsewhere */
    memcpy(&wrapper, image, sizeof wrapper);
    if (!wrapper.fatbin) return (penstock_image_size){0};
    image = wrapper.fatbin;
    memcpy(&magic, image, sizeof magic);
  }
  if (magic == FATBIN_MAGIC) return measure_fatbin(image, readable);
  if (memcmp(image, ELFMAG, SELFMAG) == 0) return measure_cubin(image, readable);
  uint64_t length = strnlen(image, readable < LONGEST_TEXT ? readable : LONGEST_TEXT);
  return (penstock_image_size){.code_bytes = length,
                               .data_bytes = penstock_ptx_data_bytes(image, length)};
}

penstock_image_size penstock_image_measure(const void *image) {
  return penstock_image_measure_within(image, UNKNOWN);
}

penstock_image_size penstock_image_measure_file(const char *path) {
  penstock_image_size size = {0};
  struct stat file;
  int saved_errno = errno;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd >= 0 && fstat(fd, &file) == 0 && S_ISREG(file.st_mode) && file.st_size > 0) {
    uint64_t bytes = (uint64_t)file.st_size;
    void *image = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (image != MAP_FAILED) {
      size = penstock_image_measure_within(image, bytes);
      munmap(image, bytes);
    }
    size.code_bytes = bytes;
  }
  if (fd >= 0) close(fd);
  errno = saved_errno;
  return size;
}
