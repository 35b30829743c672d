/* Records the symbols that a program requests, and what it gets: LD_AUDIT=recorder.so
 *
 * The loader passes every symbol binding to an auditor, those of dlsym too, and lets it replace the
 * address. So this records what the program really got, with shared and static runtimes. RECORD
 * names the file.
 *
 *   dlsym <name>
 *   ask <name> <version> <flags> <result> <status> <export of the shim, "-" or "elsewhere">
 */
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef CUresult (*first_query)(const char *, void **, int, cuuint64_t);
typedef CUresult (*second_query)(const char *, void **, int, cuuint64_t,
                                 CUdriverProcAddressQueryResult *);
static first_query real_first;
static second_query real_second;

static void note(const char *line, int length) {
  const char *path = getenv("RECORD");
  int fd = path ? open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600) : -1;
  if (fd < 0 || write(fd, line, (size_t)length) != length) abort(); /* a gap would go unseen */
  close(fd);
}

static void *wrapped(const char *symbol, void *function);

static void note_answer(const char *name, int version, cuuint64_t flags, CUresult result,
                        int status, void **function) {
  const char *symbol = "-";
  Dl_info where;
  if (result == CUDA_SUCCESS && *function) {
    bool in_shim = dladdr(*function, &where) && strstr(where.dli_fname, "libpenstock.so") &&
                   where.dli_saddr == *function;
    symbol = in_shim ? where.dli_sname : "elsewhere";
    if (in_shim) *function = wrapped(symbol, *function);
  }
  char line[512];
  int length = snprintf(line, sizeof line, "ask\t%s\t%d\t%d\t%d\t%d\t%s\n", name, version,
                        (int)flags, (int)result, status, symbol);
  note(line, length);
}

static CUresult first(const char *name, void **function, int version, cuuint64_t flags) {
  CUresult result = real_first(name, function, version, flags);
  note_answer(name, version, flags, result, -1, function);
  return result;
}

static CUresult second(const char *name, void **function, int version, cuuint64_t flags,
                       CUdriverProcAddressQueryResult *status) {
  CUresult result = real_second(name, function, version, flags, status);
  note_answer(name, version, flags, result, status ? (int)*status : -1, function);
  return result;
}

static void *wrapped(const char *symbol, void *function) {
  if (strcmp(symbol, "cuGetProcAddress") == 0) {
    real_first = (first_query)function;
    return (void *)first;
  }
  if (strcmp(symbol, "cuGetProcAddress_v2") == 0) {
    real_second = (second_query)function;
    return (void *)second;
  }
  return function;
}

unsigned la_version(unsigned version) { return version < LAV_CURRENT ? version : LAV_CURRENT; }

unsigned la_objopen(struct link_map *map, Lmid_t space, uintptr_t *cookie) {
  (void)space;
  *cookie = strstr(map->l_name, "libpenstock.so") != NULL;
  return LA_FLG_BINDTO | LA_FLG_BINDFROM;
}

uintptr_t la_symbind64(Elf64_Sym *symbol, unsigned index, uintptr_t *from, uintptr_t *to,
                       unsigned *flags, const char *name) {
  (void)index;
  if (!*to || *from || strncmp(name, "cu", 2) != 0) return symbol->st_value;
  if (*flags & LA_SYMB_DLSYM) {
    char line[256];
    note(line, snprintf(line, sizeof line, "dlsym\t%s\n", name));
  }
  return (uintptr_t)wrapped(name, (void *)symbol->st_value);
}
