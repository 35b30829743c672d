#include "images/image.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define FATBIN_MAGIC 0xba55ed50u
#define FATBIN_WRAPPER_MAGIC 0x466243b1u
#define MACHINE_CUDA 190
#define MOST_SECTIONS ((uint64_t)1 << 20)
#define LONGEST_TEXT ((uint64_t)1 << 30)
#define UNKNOWN UINT64_MAX /* stands for an unknown length */

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
  uint32_t others[2];
  uint32_t architecture; /* such as 90 for compute capability 9.0 */
  uint32_t names[2];
  uint64_t flags;
  uint64_t reserved;
  uint64_t unpacked_bytes;
} fatbin_entry;

#define ENTRY_PTX 1
#define ENTRY_CUBIN 2
#define ENTRY_COMPRESSED 0xe000 /* one flag for each compression method */

typedef struct fatbin_wrapper {
  uint32_t magic;
  uint32_t version;
  const void *fatbin;
  const void *reserved;
} fatbin_wrapper;

/* Adds with saturation, so that an image with impossible sizes is charged UINT64_MAX and therefore
 * refused. */
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
  Elf64_Shdr names; /* the section that holds the names of all sections */
} cubin;

static bool read_section(const cubin *file, uint64_t index, Elf64_Shdr *section) {
  uint64_t at = sum(file->header.e_shoff, index * sizeof *section);
  if (!lies_within(at, sizeof *section, file->readable)) return false;
  memcpy(section, file->data + at, sizeof *section);
  return true;
}

static bool name_begins(const cubin *file, const Elf64_Shdr *section, const char *with) {
  uint64_t length = strlen(with), at = sum(file->names.sh_offset, section->sh_name);
  return lies_within(section->sh_name, length, file->names.sh_size) &&
         lies_within(at, length, file->readable) && memcmp(file->data + at, with, length) == 0;
}

/* Returns true for a section of shared or local memory, which is neither code nor variables. */
static bool is_on_chip(const cubin *file, const Elf64_Shdr *section) {
  return name_begins(file, section, ".nv.shared") || name_begins(file, section, ".nv.local");
}

/* Returns true for the module's own constants. A kernel's constants lie in a section that has the
 * kernel's name after the bank number. */
static bool is_constant(const cubin *file, const Elf64_Shdr *section) {
  static const char prefix[] = ".nv.constant";
  if (!name_begins(file, section, prefix)) return false;
  uint64_t at = sum(file->names.sh_offset, section->sh_name) + strlen(prefix);
  for (; at < file->readable && file->data[at]; at++) {
    if (file->data[at] == '.') return false;
  }
  return true;
}

static bool is_managed(const cubin *file, const Elf64_Shdr *section) {
  return name_begins(file, section, ".nv.managed") ||
         name_begins(file, section, ".nv.global.managed");
}

static bool is_relocation(const Elf64_Shdr *section) {
  return section->sh_type == SHT_REL || section->sh_type == SHT_RELA;
}

static bool changes_data(const cubin *file, uint64_t index) {
  Elf64_Shdr section;
  return read_section(file, index, &section) &&
         (section.sh_flags & SHF_WRITE || is_constant(file, &section));
}

typedef struct contents {
  uint64_t code, data; /* sizes in the file, in bytes */
} contents;

/* Adds up the sections by kind. Variables without initial values have a section with a size but no
 * content. */
static void measure_sections(cubin *file, penstock_image_size *size, contents *held) {
  Elf64_Shdr section;
  if (file->header.e_machine != MACHINE_CUDA || file->header.e_shentsize != sizeof section ||
      file->header.e_shoff == 0 || !read_section(file, 0, &section)) {
    return;
  }
  file->sections = file->header.e_shnum ? file->header.e_shnum : section.sh_size;
  if (file->sections > MOST_SECTIONS) file->sections = MOST_SECTIONS;
  uint64_t names =
      file->header.e_shstrndx == SHN_XINDEX ? section.sh_link : file->header.e_shstrndx;
  if (!read_section(file, names, &file->names)) return;
  for (uint64_t i = 0; i < file->sections && read_section(file, i, &section); i++) {
    bool has_content = section.sh_type != SHT_NOBITS;
    if (is_relocation(&section) && changes_data(file, section.sh_info)) size->needs_code = true;
    if (!(section.sh_flags & SHF_ALLOC) || is_on_chip(file, &section)) continue;
    if (has_content && !(section.sh_flags & SHF_WRITE) && !is_constant(file, &section)) {
      held->code = sum(held->code, section.sh_size);
      continue;
    }
    uint64_t *bytes = is_managed(file, &section) ? &size->managed_bytes : &size->data_bytes;
    *bytes = sum(*bytes, section.sh_size);
    if (has_content) held->data = sum(held->data, section.sh_size);
  }
}

static penstock_image_size measure_cubin(const uint8_t *data, uint64_t readable) {
  cubin file = {.data = data, .readable = readable};
  if (readable < sizeof file.header) return (penstock_image_size){0};
  memcpy(&file.header, data, sizeof file.header);
  const Elf64_Ehdr *header = &file.header;
  if (header->e_ident[EI_CLASS] != ELFCLASS64) return (penstock_image_size){0};
  uint64_t sections = sum(header->e_shoff, (uint64_t)header->e_shnum * header->e_shentsize);
  uint64_t segments = sum(header->e_phoff, (uint64_t)header->e_phnum * header->e_phentsize);
  penstock_image_size size = {.code_bytes = sections > segments ? sections : segments};
  contents held = {0};
  measure_sections(&file, &size, &held);
  size.code_bytes -= held.data < size.code_bytes ? held.data : size.code_bytes;
  /* The section and program header tables may not be at the end. */
  if (size.code_bytes < held.code) size.code_bytes = held.code;
  return size;
}

static penstock_image_size measure_text(const char *text, uint64_t length) {
  penstock_image_size size = {.code_bytes = length};
  penstock_ptx_measure(text, length, &size);
  return size;
}

/* ---- fat binaries ---- */

static bool forces_ptx;

void penstock_image_begin(void) {
  static bool begun;
  if (__atomic_exchange_n(&begun, true, __ATOMIC_RELAXED)) return;
  const char *text = getenv("CUDA_FORCE_PTX_JIT");
  __atomic_store_n(&forces_ptx, text && atoi(text), __ATOMIC_RELAXED);
}

static uint64_t unpacked_bytes(const fatbin_entry *entry) {
  bool packed = entry->flags & ENTRY_COMPRESSED || entry->compressed_bytes;
  return packed && entry->unpacked_bytes > entry->payload_bytes ? entry->unpacked_bytes
                                                                : entry->payload_bytes;
}

/* Rates how well an entry suits the device. A cubin of the device's own architecture is best, then
 * one of a lower minor version, then PTX of the newest architecture that is not above the device's.
 * Returns 0 if the entry is unusable. */
static unsigned rank(const fatbin_entry *entry, unsigned architecture) {
  const unsigned cubins = 1u << 16, its = entry->architecture;
  if (its > architecture) return 0;
  if (entry->kind == ENTRY_PTX) return 1 + its;
  if (entry->kind != ENTRY_CUBIN || its / 10 != architecture / 10) return 0;
  return __atomic_load_n(&forces_ptx, __ATOMIC_RELAXED) ? 0 : cubins + its;
}

typedef struct choice {
  fatbin_entry entry;
  const uint8_t *payload; /* NULL if none was chosen */
  unsigned rank;
} choice;

/* Keeps the larger of two equally suitable entries. Unusable entries are compared too, in case the
 * driver uses one after all. */
static void choose(choice *best, const fatbin_entry *entry, const uint8_t *payload, unsigned its) {
  if (best->payload &&
      (its < best->rank ||
       (its == best->rank && unpacked_bytes(entry) <= unpacked_bytes(&best->entry)))) {
    return;
  }
  *best = (choice){.entry = *entry, .payload = payload, .rank = its};
}

/* Measures one entry. A compressed entry is not decompressed here, so all of it is charged as
 * code. */
static penstock_image_size measure_entry(const choice *one) {
  const fatbin_entry *entry = &one->entry;
  if (entry->flags & ENTRY_COMPRESSED || entry->compressed_bytes) {
    return (penstock_image_size){.code_bytes = unpacked_bytes(entry), .is_hidden = true};
  }
  if (entry->kind == ENTRY_PTX)
    return measure_text((const char *)one->payload, entry->payload_bytes);
  penstock_image_size size = {.code_bytes = entry->payload_bytes, .is_hidden = true};
  if (entry->kind == ENTRY_CUBIN && entry->payload_bytes >= SELFMAG &&
      memcmp(one->payload, ELFMAG, SELFMAG) == 0) {
    size = measure_cubin(one->payload, entry->payload_bytes);
  }
  return size;
}

static penstock_image_size measure_fatbin(const uint8_t *data, uint64_t readable,
                                          unsigned architecture) {
  fatbin_header header;
  if (readable < sizeof header) return (penstock_image_size){0};
  memcpy(&header, data, sizeof header);
  uint64_t all = sum(header.header_bytes, header.body_bytes);
  uint64_t end = all < readable ? all : readable, at = header.header_bytes;
  choice best = {.payload = NULL};
  fatbin_entry entry;
  for (; lies_within(at, sizeof entry, end); at += entry.header_bytes + entry.payload_bytes) {
    memcpy(&entry, data + at, sizeof entry);
    if (entry.header_bytes < sizeof entry || !lies_within(entry.header_bytes, 0, end - at) ||
        !lies_within(entry.payload_bytes, 0, end - at - entry.header_bytes)) {
      break;
    }
    choose(&best, &entry, data + at + entry.header_bytes, rank(&entry, architecture));
  }
  if (!best.payload) return (penstock_image_size){.code_bytes = all, .is_hidden = true};
  return measure_entry(&best);
}

penstock_image_size penstock_image_measure_within(const void *image, uint64_t readable,
                                                  unsigned architecture) {
  uint32_t magic;
  if (readable < sizeof magic) return (penstock_image_size){0};
  memcpy(&magic, image, sizeof magic);
  if (magic == FATBIN_WRAPPER_MAGIC) {
    fatbin_wrapper wrapper;
    /* A wrapper contains a pointer, so it cannot be in a file. */
    if (readable != UNKNOWN) return (penstock_image_size){0};
    memcpy(&wrapper, image, sizeof wrapper);
    if (!wrapper.fatbin) return (penstock_image_size){0};
    image = wrapper.fatbin;
    memcpy(&magic, image, sizeof magic);
  }
  if (magic == FATBIN_MAGIC) return measure_fatbin(image, readable, architecture);
  if (memcmp(image, ELFMAG, SELFMAG) == 0) return measure_cubin(image, readable);
  uint64_t length = strnlen(image, readable < LONGEST_TEXT ? readable : LONGEST_TEXT);
  return measure_text(image, length);
}

penstock_image_size penstock_image_measure(const void *image, unsigned architecture) {
  return penstock_image_measure_within(image, UNKNOWN, architecture);
}

penstock_image_size penstock_image_measure_file(const char *path, unsigned architecture) {
  penstock_image_size size = {0};
  struct stat file;
  int saved_errno = errno;
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd >= 0 && fstat(fd, &file) == 0 && S_ISREG(file.st_mode) && file.st_size > 0) {
    uint64_t bytes = (uint64_t)file.st_size;
    void *image = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (image != MAP_FAILED) {
      size = penstock_image_measure_within(image, bytes, architecture);
      munmap(image, bytes);
    }
    if (!size.code_bytes) size = (penstock_image_size){.code_bytes = bytes, .is_hidden = true};
  }
  if (fd >= 0) close(fd);
  errno = saved_errno;
  return size;
}
