/* Reads the parts of PTX that the simulation needs: version, target, kernels with their parameters,
 * and globals. */
#define _GNU_SOURCE
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sim/cuda/module.h"

/* newest PTX version that a driver of CUDA_VERSION accepts: 9.0 for CUDA 13.0, then one minor
 * version for each */
#define PTX_NEWEST (900 + CUDA_VERSION % 1000 * 10 / 10 / 10 * 10)

typedef struct text {
  const char *at, *end;
} text;

static void skip_space(text *t) {
  while (t->at < t->end) {
    if (isspace((unsigned char)*t->at)) {
      t->at++;
    } else if (t->end - t->at > 1 && t->at[0] == '/' && t->at[1] == '/') {
      while (t->at < t->end && *t->at != '\n') t->at++;
    } else if (t->end - t->at > 1 && t->at[0] == '/' && t->at[1] == '*') {
      const char *close = memmem(t->at, (size_t)(t->end - t->at), "*/", 2);
      t->at = close ? close + 2 : t->end;
    } else {
      return;
    }
  }
}

static bool part_of_word(char c) {
  return isalnum((unsigned char)c) || c == '_' || c == '$' || c == '.' || c == '%';
}

/* Reads the next word or single character. */
static size_t word(text *t, const char **from) {
  skip_space(t);
  *from = t->at;
  if (t->at >= t->end) return 0;
  if (!part_of_word(*t->at)) {
    t->at++;
    return 1;
  }
  while (t->at < t->end && part_of_word(*t->at)) t->at++;
  return (size_t)(t->at - *from);
}

static bool is(const char *from, size_t length, const char *what) {
  return strlen(what) == length && !memcmp(from, what, length);
}

/* Parses a decimal number, or a hexadecimal one after 0x. Returns UINT64_MAX on overflow. */
static uint64_t number(const char *from, size_t length) {
  uint64_t value = 0;
  bool hex = length > 2 && from[0] == '0' && (from[1] | 0x20) == 'x';
  for (size_t i = hex ? 2 : 0; i < length; i++) {
    char c = from[i] | 0x20;
    bool letter = hex && c >= 'a' && c <= 'f';
    if (!letter && !isdigit((unsigned char)from[i])) break;
    if (__builtin_mul_overflow(value, hex ? 16 : 10, &value) ||
        __builtin_add_overflow(value, (uint64_t)(letter ? c - 'a' + 10 : c - '0'), &value))
      return UINT64_MAX;
  }
  return value;
}

static unsigned type_bytes(const char *from, size_t length) {
  static const struct {
    const char *name;
    unsigned bytes;
  } types[] = {{".b8", 1},  {".u8", 1},    {".s8", 1},     {".b16", 2},     {".u16", 2},
               {".s16", 2}, {".f16", 2},   {".b32", 4},    {".u32", 4},     {".s32", 4},
               {".f32", 4}, {".f16x2", 4}, {".b64", 8},    {".u64", 8},     {".s64", 8},
               {".f64", 8}, {".b128", 16}, {".texref", 8}, {".surfref", 8}, {".samplerref", 8}};
  for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
    if (is(from, length, types[i].name)) return types[i].bytes;
  return 0;
}

#define LARGEST_VARIABLE ((uint64_t)1 << 40)
#define LARGEST_ALIGN 4096

/* Reads `.align n .type name[count]` up to `,`, `)`, `=` or `;`. Sizes saturate. */
static void read_variable(text *t, const char **name, size_t *name_length, uint64_t *bytes,
                          uint64_t *align) {
  uint64_t element = 0, count = 1;
  const char *from;
  size_t length;
  *align = 0;
  *name = NULL;
  while (t->at < t->end) {
    text before = *t;
    length = word(t, &from);
    if (!length || *from == ',' || *from == ')' || *from == ';' || *from == '=' || *from == '{') {
      *t = before;
      break;
    }
    if (is(from, length, ".attribute")) {
      while (word(t, &from) && *from != ')');
    } else if (is(from, length, ".v2") || is(from, length, ".v4")) {
      count = (uint64_t)(from[2] - '0');
    } else if (is(from, length, ".align")) {
      length = word(t, &from);
      *align = number(from, length);
      if (*align > LARGEST_ALIGN) *align = LARGEST_ALIGN;
    } else if (type_bytes(from, length)) {
      element = type_bytes(from, length);
    } else if (*from == '[') {
      length = word(t, &from);
      if (length && *from != ']') {
        if (__builtin_mul_overflow(count, number(from, length), &count)) count = LARGEST_VARIABLE;
        word(t, &from);
      }
    } else if (isalpha((unsigned char)*from) || *from == '_' || *from == '$' || *from == '%') {
      *name = from;
      *name_length = length;
    }
  }
  *bytes = count > LARGEST_VARIABLE / 16 && element ? LARGEST_VARIABLE : element * count;
  if (!*align) *align = element ? element : 1;
}

#define MOST_LOCAL_BYTES (1u << 19)

static sim_kernel *read_entry(text *t, sim_image *image) {
  const char *from;
  size_t length = word(t, &from);
  if (!length) return NULL;
  sim_kernel *k = sim_image_add_kernel(image, from, length);
  if (!k) return NULL;
  k->param_count = 0; /* the kernel may have been declared before */
  uint64_t offset = 0;
  if (word(t, &from) && *from == '(') {
    while (t->at < t->end) {
      text before = *t;
      if (!word(t, &from) || *from == ')') break;
      if (*from == ',') continue;
      *t = before;
      const char *name;
      size_t name_length;
      uint64_t bytes, align;
      read_variable(t, &name, &name_length, &bytes, &align);
      if (!bytes) {
        if (t->at == before.at) t->at++;
        continue;
      }
      offset = (offset + align - 1) / align * align;
      void *more = realloc(k->params, (k->param_count + 1) * sizeof *k->params);
      if (!more) return k;
      k->params = more;
      /* Offsets above 4 GiB saturate, because no launch can pass so many parameters. */
      k->params[k->param_count].offset = offset < UINT32_MAX ? (uint32_t)offset : UINT32_MAX;
      k->params[k->param_count++].bytes = bytes < UINT32_MAX ? (uint32_t)bytes : UINT32_MAX;
      if (__builtin_add_overflow(offset, bytes, &offset)) offset = LARGEST_VARIABLE;
    }
  }
  if (!k->params) k->params = calloc(1, sizeof *k->params);
  k->param_bytes = offset;
  for (text before = *t; word(t, &from) && *from != '{' && *from != ';'; before = *t)
    if (is(from, (size_t)(t->at - from), ".maxntid") ||
        is(from, (size_t)(t->at - from), ".reqntid")) {
      size_t digits = word(t, &from);
      uint64_t limit = number(from, digits);
      if (limit && limit <= UINT32_MAX) k->max_threads = (unsigned)limit;
      (void)before;
    }
  return k;
}

static uint64_t hundredths(const char *from, size_t length) {
  const char *dot = memchr(from, '.', length);
  size_t whole = dot ? (size_t)(dot - from) : length;
  uint64_t major = number(from, whole), minor = dot ? number(dot + 1, length - whole - 1) : 0;
  return major < 1000 && minor < 10 ? major * 100 + minor * 10 : UINT64_MAX;
}

/* Reads an image. Kernels and globals are read only at the outermost brace level. */
CUresult sim_read_ptx(const char *data, uint64_t length_all, const sim_gpu *gpu, sim_image *image) {
  text t = {data, data + length_all};
  const char *from;
  size_t length;
  int depth = 0;
  bool versioned = false;
  sim_kernel *inside = NULL;
  const char *began = data; /* start of the kernel's text */
  while ((length = word(&t, &from))) {
    if (*from == '{') depth++;
    if (*from == '}') depth--;
    if (*from == '}' && depth == 0 && inside) inside->code_bytes = (uint64_t)(t.at - began) / 4 + 1;
    if (is(from, length, ".version")) {
      length = word(&t, &from);
      versioned = true;
      if (hundredths(from, length) > PTX_NEWEST) return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
    } else if (is(from, length, ".target")) {
      length = word(&t, &from);
      uint64_t target = length > 3 && !memcmp(from, "sm_", 3) ? number(from + 3, length - 3) : 0;
      if (target > gpu->profile->compute_major * 10 + gpu->profile->compute_minor)
        return CUDA_ERROR_NO_BINARY_FOR_GPU;
    } else if (depth == 0 && is(from, length, ".entry")) {
      began = t.at;
      inside = read_entry(&t, image);
      depth = t.at > data && t.at[-1] == '{';
    } else if (depth == 0 && (is(from, length, ".global") || is(from, length, ".const"))) {
      const char *name;
      size_t name_length;
      uint64_t bytes, align;
      const char *space = t.at;
      read_variable(&t, &name, &name_length, &bytes, &align);
      bool managed = memmem(space, (size_t)(t.at - space), ".managed", 8) != NULL;
      if (name && bytes) sim_image_add_global(image, name, name_length, bytes, managed);
    } else if (depth > 0 && inside && (is(from, length, ".shared") || is(from, length, ".local"))) {
      bool shared = from[1] == 's';
      const char *name;
      size_t name_length;
      uint64_t bytes, align;
      read_variable(&t, &name, &name_length, &bytes, &align);
      if (shared) inside->shared_bytes += (unsigned)bytes;
      if (!shared && bytes > MOST_LOCAL_BYTES) bytes = MOST_LOCAL_BYTES;
      if (!shared) inside->local_bytes += (unsigned)bytes;
      if (inside->local_bytes > MOST_LOCAL_BYTES) inside->local_bytes = MOST_LOCAL_BYTES;
    }
  }
  return versioned ? CUDA_SUCCESS : CUDA_ERROR_INVALID_PTX;
}
