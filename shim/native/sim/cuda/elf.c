/* Reads the parts of a cubin that the simulation needs: kernels, their resources and parameters,
 * and globals. */
#include <elf.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "sim/cuda/module.h"

#define INFO_PARAMETER 0x17 /* in .nv.info.<kernel>: describes one parameter */
#define INFO_PARAMETER_BYTES 0x19
#define INFO_MAX_THREADS 0x05
#define INFO_FRAME_BYTES 0x11 /* in .nv.info: a symbol and its local memory */
#define INFO_LEAST_STACK_BYTES 0x12
#define MOST_LOCAL_BYTES (1u << 19)

/* The readable part of the file. Its contents are not trusted: offsets may lie outside, names may
 * be unterminated, and tables may be unaligned. */
typedef struct elf {
  const uint8_t *data;
  uint64_t readable;
  Elf64_Ehdr header;
  Elf64_Shdr names; /* the section that holds the names of all sections */
} elf;

static bool lies_within(const elf *file, uint64_t offset, uint64_t bytes) {
  return offset <= file->readable && bytes <= file->readable - offset;
}

static bool read_section(const elf *file, unsigned index, Elf64_Shdr *section) {
  uint64_t at = file->header.e_shoff + (uint64_t)index * sizeof *section;
  if (index >= file->header.e_shnum || at < file->header.e_shoff ||
      !lies_within(file, at, sizeof *section))
    return false;
  memcpy(section, file->data + at, sizeof *section);
  return true;
}

/* Returns a string in a string section, or an empty string if it does not lie entirely inside. */
static const char *text_at(const elf *file, const Elf64_Shdr *texts, uint64_t offset) {
  if (!lies_within(file, texts->sh_offset, texts->sh_size) || offset >= texts->sh_size) return "";
  const char *text = (const char *)file->data + texts->sh_offset + offset;
  return memchr(text, 0, texts->sh_size - offset) ? text : "";
}

static bool begins(const char *text, const char *with) {
  return strlen(text) >= strlen(with) && !memcmp(text, with, strlen(with));
}

static const char *name_of(const elf *file, const Elf64_Shdr *section) {
  return text_at(file, &file->names, section->sh_name);
}

/* Returns true for the module's variables and constants, whose symbols are counted. A section with
 * a kernel's constants has the kernel's name after its number. */
static bool is_data(const Elf64_Shdr *section, const char *name) {
  return section->sh_flags & SHF_WRITE || (begins(name, ".nv.constant") && !strchr(name + 12, '.'));
}

static void read_symbols(const elf *file, const Elf64_Shdr *table, sim_image *image) {
  Elf64_Shdr texts, section;
  if (!lies_within(file, table->sh_offset, table->sh_size) ||
      !read_section(file, table->sh_link, &texts))
    return;
  for (uint64_t i = 0; i < table->sh_size / sizeof(Elf64_Sym); i++) {
    Elf64_Sym symbol;
    memcpy(&symbol, file->data + table->sh_offset + i * sizeof symbol, sizeof symbol);
    if (ELF64_ST_TYPE(symbol.st_info) != STT_OBJECT || !symbol.st_size ||
        !read_section(file, symbol.st_shndx, &section))
      continue;
    const char *within = name_of(file, &section);
    bool managed = strstr(within, "managed") != NULL;
    if (!begins(within, ".nv.global") && !begins(within, ".nv.constant") && !managed) continue;
    const char *name = text_at(file, &texts, symbol.st_name);
    sim_image_add_global(image, name, strlen(name), symbol.st_size, managed);
  }
}

/* Reads attributes. Each consists of a format (1 byte), a number (1 byte), and a value or length (2
 * bytes). */
static void read_info(const uint8_t *at, const uint8_t *end, sim_kernel *k) {
  while (end - at >= 4) {
    uint8_t format = at[0], number = at[1];
    uint16_t value;
    memcpy(&value, at + 2, 2);
    const uint8_t *body = at + 4;
    if (format == 4 && value > end - body) return;
    at = format == 4 ? body + value : body;
    if (number == INFO_PARAMETER && format == 4 && value >= 12) {
      uint16_t ordinal, offset;
      uint32_t packed;
      memcpy(&ordinal, body + 4, 2);
      memcpy(&offset, body + 6, 2);
      memcpy(&packed, body + 8, 4);
      if (ordinal >= k->param_count) {
        void *more = realloc(k->params, (ordinal + 1u) * sizeof *k->params);
        if (!more) return;
        k->params = more;
        /* An image may omit some parameters. */
        memset(&k->params[k->param_count], 0, (ordinal + 1u - k->param_count) * sizeof *k->params);
        k->param_count = ordinal + 1u;
      }
      k->params[ordinal].offset = offset;
      k->params[ordinal].bytes = packed >> 18;
      size_t reach = (size_t)offset + (packed >> 18);
      if (reach > k->param_bytes) k->param_bytes = reach;
    }
    if (number == INFO_MAX_THREADS && format == 4 && value >= 12) {
      uint32_t dims[3];
      memcpy(dims, body, 12);
      uint64_t limit = (uint64_t)dims[0] * dims[1] * dims[2];
      if (limit && limit < 1024) k->max_threads = (unsigned)limit;
    }
  }
}

static sim_kernel *kernel_named(sim_image *image, const char *name) {
  for (sim_kernel *k = image->kernels; k; k = k->next)
    if (!strcmp(k->name, name)) return k;
  return NULL;
}

static sim_kernel *kernel_of_symbol(const elf *file, const Elf64_Shdr *table, uint32_t index,
                                    sim_image *image) {
  Elf64_Sym symbol;
  Elf64_Shdr texts;
  uint64_t at = (uint64_t)index * sizeof symbol;
  if (!lies_within(file, table->sh_offset, table->sh_size) || at >= table->sh_size ||
      table->sh_size - at < sizeof symbol || !read_section(file, table->sh_link, &texts))
    return NULL;
  memcpy(&symbol, file->data + table->sh_offset + at, sizeof symbol);
  return kernel_named(image, text_at(file, &texts, symbol.st_name));
}

/* Reads the local memory of kernels from the attributes, each of which refers to a symbol by
 * number. */
static void read_local(const elf *file, const Elf64_Shdr *section, sim_image *image) {
  Elf64_Shdr table;
  if (!lies_within(file, section->sh_offset, section->sh_size) ||
      !read_section(file, section->sh_link, &table))
    return;
  const uint8_t *at = file->data + section->sh_offset, *end = at + section->sh_size;
  while (end - at >= 4) {
    uint8_t format = at[0], number = at[1];
    uint16_t value;
    memcpy(&value, at + 2, 2);
    const uint8_t *body = at + 4;
    if (format == 4 && value > end - body) return;
    at = format == 4 ? body + value : body;
    if (format != 4 || value < 8 ||
        (number != INFO_FRAME_BYTES && number != INFO_LEAST_STACK_BYTES))
      continue;
    uint32_t index, bytes;
    memcpy(&index, body, 4);
    memcpy(&bytes, body + 4, 4);
    sim_kernel *k = kernel_of_symbol(file, &table, index, image);
    if (bytes > MOST_LOCAL_BYTES) bytes = MOST_LOCAL_BYTES;
    if (k && bytes > k->local_bytes) k->local_bytes = bytes;
  }
}

/* Returns whether a cubin's code runs on the device: the major version must be the same, and the
 * minor version no higher. Newer cubins have the SM in bits 8..15 of e_flags, older ones in bits
 * 0..7. */
static bool fits_device(const Elf64_Ehdr *header, const sim_gpu *gpu) {
  unsigned device = gpu->profile->compute_major * 10 + gpu->profile->compute_minor;
  unsigned sm =
      header->e_ident[EI_ABIVERSION] >= 8 ? header->e_flags >> 8 & 0xff : header->e_flags & 0xff;
  return sm / 10 == device / 10 && sm <= device;
}

static void read_kernel(const char *name, const Elf64_Shdr *section, sim_image *image) {
  sim_kernel *k = sim_image_add_kernel(image, name, strlen(name));
  if (k && section->sh_info >> 24) k->registers = section->sh_info >> 24;
  if (k && !k->params) k->params = calloc(1, sizeof *k->params);
  if (k) k->code_bytes = section->sh_size;
}

/* Reads a section whose name contains that of a kernel. */
static void read_about(const elf *file, const Elf64_Shdr *section, sim_image *image) {
  const char *name = name_of(file, section);
  bool info = begins(name, ".nv.info."), shared = begins(name, ".nv.shared.");
  if (!strcmp(name, ".nv.info")) read_local(file, section, image);
  if (!info && !shared) return;
  if (info && !lies_within(file, section->sh_offset, section->sh_size)) return;
  const uint8_t *body = info ? file->data + section->sh_offset : NULL;
  for (sim_kernel *k = image->kernels; k; k = k->next) {
    if (info && !strcmp(k->name, name + 9)) read_info(body, body + section->sh_size, k);
    if (shared && !strcmp(k->name, name + 11)) k->shared_bytes = (unsigned)section->sh_size;
  }
}

CUresult sim_read_elf(const uint8_t *data, uint64_t readable, const sim_gpu *gpu,
                      sim_image *image) {
  elf file = {.data = data, .readable = readable};
  if (readable < sizeof file.header) return CUDA_ERROR_INVALID_IMAGE;
  memcpy(&file.header, data, sizeof file.header);
  if (file.header.e_ident[EI_CLASS] != ELFCLASS64 || file.header.e_machine != 190 ||
      !read_section(&file, file.header.e_shstrndx, &file.names))
    return CUDA_ERROR_INVALID_IMAGE;
  if (!fits_device(&file.header, gpu)) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  Elf64_Shdr section;
  for (unsigned i = 0; read_section(&file, i, &section); i++) {
    const char *name = name_of(&file, &section);
    if (section.sh_flags & SHF_ALLOC && section.sh_type != SHT_NOBITS && !is_data(&section, name))
      image->bytes += section.sh_size < readable ? section.sh_size : readable;
    if (begins(name, ".text.")) read_kernel(name + 6, &section, image);
    if (section.sh_type == SHT_SYMTAB) read_symbols(&file, &section, image);
  }
  for (unsigned i = 0; read_section(&file, i, &section); i++) read_about(&file, &section, image);
  return CUDA_SUCCESS;
}
