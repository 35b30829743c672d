/* Compares both versions of the shim's cuGetProcAddress with the driver's: mapping DRIVER <names
 *
 * For every base name on standard input, every version and stream flag: when the driver
 * answers with the address of its own export X, the shim must answer with its export X; else both
 * must give nothing. Prints each difference and, last, how many answers were compared.
 */
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static const int versions[] = {2000,  3000,  3020,  4000,  5000,  6000,  6050,  7000,
                               7050,  8000,  9000,  9020,  10000, 10010, 10020, 11000,
                               11010, 11020, 11030, 11040, 11050, 11060, 11070, 11080,
                               12000, 12010, 12020, 12030, 12040, 12050, 12060, 12080,
                               12090, 13000, 13010, 13020, 13030, 13040, 13050, 14000};
static const char *const suffixes[] = {"",         "_v2",      "_v3",   "_v4",     "_ptsz",
                                       "_v2_ptsz", "_v3_ptsz", "_ptds", "_v2_ptds"};

typedef struct answer {
  CUresult result;
  CUdriverProcAddressQueryResult status;
  void *function;
} answer;

typedef struct library {
  void *handle;
  __typeof__(&cuGetProcAddress) first;
  __typeof__(&cuGetProcAddress_v2) second;
} library;

static library open_library(const char *name) {
  library l = {.handle = dlopen(name, RTLD_NOW | RTLD_LOCAL)};
  if (!l.handle) return l;
  l.first = dlsym(l.handle, "cuGetProcAddress");
  l.second = dlsym(l.handle, "cuGetProcAddress_v2");
  return l;
}

static answer ask(const library *l, int which, const char *base, int version, cuuint64_t flags) {
  answer a = {.status = 99};
  a.result = which == 1 ? l->first(base, &a.function, version, flags)
                        : l->second(base, &a.function, version, flags, &a.status);
  return a;
}

static const char *export_at(void *library, const char *base, void *address, char *name) {
  for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
    sprintf(name, "%s%s", base, suffixes[i]);
    if (dlsym(library, name) == address) return name;
  }
  return NULL;
}

/* Returns 1 when the driver gives a function. */
static int compare(const library *driver, const library *shim, int which, const char *base,
                   int version, cuuint64_t flags) {
  char name[160], own[160];
  answer theirs = ask(driver, which, base, version, flags);
  answer ours = ask(shim, which, base, version, flags);
  const char *expected =
      theirs.function ? export_at(driver->handle, base, theirs.function, name) : NULL;
  const char *got = ours.function ? export_at(shim->handle, base, ours.function, own) : NULL;
  int same = theirs.result == ours.result && theirs.status == ours.status &&
             (expected ? got && strcmp(expected, got) == 0 : !theirs.function && !ours.function);
  if (!same) {
    printf("%s version %d flags %d by cuGetProcAddress %d: driver %d/%d %s, shim %d/%d %s\n", base,
           version, (int)flags, which, theirs.result, theirs.status, expected ? expected : "-",
           ours.result, ours.status, got ? got : "-");
  }
  return theirs.function != NULL;
}

int main(int count, char **words) {
  /* A file name that no hook knows leads round the shim. */
  library driver = open_library(count == 2 ? words[1] : "");
  library shim = open_library("libcuda.so.1");
  if (!driver.handle || !shim.handle || driver.handle == shim.handle) {
    return fprintf(stderr, "%s\n", dlerror()), 2;
  }
  int compared = 0, found = 0;
  char base[128];
  while (scanf("%127s", base) == 1) {
    for (size_t v = 0; v < sizeof versions / sizeof *versions; v++) {
      for (cuuint64_t flags = 0; flags <= 2; flags++) {
        for (int which = 1; which <= 2; which++) {
          found += compare(&driver, &shim, which, base, versions[v], flags);
          compared++;
        }
      }
    }
  }
  printf("compared %d answers, %d of them functions\n", compared, found);
  return 0;
}
