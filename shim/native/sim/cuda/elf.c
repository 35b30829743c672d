/* Reads what the simulation needs from a cubin: kernels, their resources and parameters, globals.
 */
#include <elf.h>
#include <stdlib.h>
#include <string.h>

#include "sim/cuda/module.h"

#define INFO_PARAMETER 0x17 /* .nv.info.<kernel>: one parameter */
#define INFO_PARAMETER_BYTES 0x19
#define INFO_MAX_THREADS 0x05

static const char *section_name(const uint8_t *data, const Elf64_Shdr *sections,
                                const Elf64_Ehdr *header, const Elf64_Shdr *s) {
  return (const char *)data + sections[header->e_shstrndx].sh_offset + s->sh_name;
}

static void read_symbols(const uint8_t *data, const Elf64_Shdr *sections, const Elf64_Ehdr *header,
                         const Elf64_Shdr *table, sim_image *image) {
  const char *names = (const char *)data + sections[table->sh_link].sh_offset;
  const Elf64_Sym *symbols = (const Elf64_Sym *)(data + table->sh_offset);
  for (size_t i = 0; i < table->sh_size / sizeof *symbols; i++) {
    const Elf64_Sym *s = &symbols[i];
    if (ELF64_ST_TYPE(s->st_info) != STT_OBJECT || !s->st_size || s->st_shndx >= header->e_shnum)
      continue;
    const char *section = section_name(data, sections, header, &sections[s->st_shndx]);
    bool managed = strstr(section, "managed") != NULL;
    if (strncmp(section, ".nv.global", 10) && strncmp(section, ".nv.constant", 12) && !managed)
      continue;
    sim_image_add_global(image, names + s->st_name, strlen(names + s->st_name), s->st_size,
                         managed);
  }
}

/* Attributes are format (1 byte), number (1), then 2 bytes of value or of length. */
static void read_info(const uint8_t *at, const uint8_t *end, sim_kernel *k) {
  while (at + 4 <= end) {
    uint8_t format = at[0], number = at[1];
    uint16_t value;
    memcpy(&value, at + 2, 2);
    const uint8_t *body = at + 4;
    at = format == 4 ? body + value : body;
    if (at > end) return;
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

/* Newer cubins have the SM in bits 8..15 of e_flags, older ones in bits 0..7. Code runs on its own
 * major version, from its minor version up. */
static bool fits_device(const Elf64_Ehdr *header, const sim_gpu *gpu) {
  unsigned device = gpu->profile->compute_major * 10 + gpu->profile->compute_minor;
  unsigned sm =
      header->e_ident[EI_ABIVERSION] >= 8 ? header->e_flags >> 8 & 0xff : header->e_flags & 0xff;
  return sm / 10 == device / 10 && sm <= device;
}

CUresult sim_read_elf(const uint8_t *data, const sim_gpu *gpu, sim_image *image) {
  const Elf64_Ehdr *header = (const Elf64_Ehdr *)data;
  if (header->e_ident[EI_CLASS] != ELFCLASS64 || header->e_machine != 190)
    return CUDA_ERROR_INVALID_IMAGE;
  if (!fits_device(header, gpu)) return CUDA_ERROR_NO_BINARY_FOR_GPU;
  const Elf64_Shdr *sections = (const Elf64_Shdr *)(data + header->e_shoff);
  for (unsigned i = 0; i < header->e_shnum; i++) {
    const Elf64_Shdr *s = &sections[i];
    const char *name = section_name(data, sections, header, s);
    if (s->sh_flags & SHF_ALLOC && s->sh_type != SHT_NOBITS) image->bytes += s->sh_size;
    if (!strncmp(name, ".text.", 6)) {
      sim_kernel *k = sim_image_add_kernel(image, name + 6, strlen(name + 6));
      if (k && s->sh_info >> 24) k->registers = s->sh_info >> 24;
      if (k && !k->params) k->params = calloc(1, sizeof *k->params);
    }
    if (s->sh_type == SHT_SYMTAB) read_symbols(data, sections, header, s, image);
  }
  for (unsigned i = 0; i < header->e_shnum; i++) {
    const Elf64_Shdr *s = &sections[i];
    const char *name = section_name(data, sections, header, s);
    bool info = !strncmp(name, ".nv.info.", 9), shared = !strncmp(name, ".nv.shared.", 11);
    if (!info && !shared) continue;
    for (sim_kernel *k = image->kernels; k; k = k->next) {
      if (info && !strcmp(k->name, name + 9))
        read_info(data + s->sh_offset, data + s->sh_offset + s->sh_size, k);
      if (shared && !strcmp(k->name, name + 11)) k->shared_bytes = (unsigned)s->sh_size;
    }
  }
  return CUDA_SUCCESS;
}
