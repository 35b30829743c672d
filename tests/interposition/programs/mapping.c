/* Compares the shim's cuGetProcAddress with the driver below it: mapping DRIVER <names
 *
 * For every base name on standard input, every version and both stream flags: when the driver
 * answers with the address of its own export X, the shim must answer with its export X; else both
 * must give nothing. Prints each difference and, last, how many answers were compared.
 */
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static const int versions[] = {2000,  3000,  3020,  4000,  5000,  6000,  6050,  7000,  7050,  8000,
                               9000,  9020,  10000, 10010, 10020, 11000, 11010, 11020, 11030, 11040,
                               11060, 11080, 12000, 12010, 12020, 12040, 12080, 13000, 14000};
static const char *const suffixes[] = {"",         "_v2",      "_v3",   "_v4",     "_ptsz",
                                       "_v2_ptsz", "_v3_ptsz", "_ptds", "_v2_ptds"};

typedef struct answer {
  CUresult result;
  CUdriverProcAddressQueryResult status;
  void *function;
} answer;

static answer ask(__typeof__(&cuGetProcAddress_v2) query, const char *base, int version,
                  cuuint64_t flags) {
  answer a = {.status = 99};
  a.result = query(base, &a.function, version, flags, &a.status);
  return a;
}

static const char *export_at(void *library, const char *base, void *address, char *name) {
  for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
    sprintf(name, "%s%s", base, suffixes[i]);
    if (dlsym(library, name) == address) return name;
  }
  return NULL;
}

int main(int count, char **words) {
  /* A file name that no hook knows leads round the shim. */
  void *driver = count == 2 ? dlopen(words[1], RTLD_NOW | RTLD_LOCAL) : NULL;
  void *shim = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!driver || !shim || driver == shim) return fprintf(stderr, "%s\n", dlerror()), 2;
  __typeof__(&cuGetProcAddress_v2) of_driver = dlsym(driver, "cuGetProcAddress_v2");
  __typeof__(&cuGetProcAddress_v2) of_shim = dlsym(shim, "cuGetProcAddress_v2");
  int compared = 0, found = 0;
  char base[128], name[160], own[160];
  while (scanf("%127s", base) == 1) {
    for (size_t v = 0; v < sizeof versions / sizeof *versions; v++) {
      for (cuuint64_t flags = 0; flags <= 2; flags++) {
        answer theirs = ask(of_driver, base, versions[v], flags);
        answer ours = ask(of_shim, base, versions[v], flags);
        compared++;
        found += theirs.function != NULL;
        const char *expected =
            theirs.function ? export_at(driver, base, theirs.function, name) : NULL;
        const char *got = ours.function ? export_at(shim, base, ours.function, own) : NULL;
        int same =
            theirs.result == ours.result && theirs.status == ours.status &&
            (expected ? got && strcmp(expected, got) == 0 : !theirs.function && !ours.function);
        if (same) continue;
        printf("%s version %d flags %d: driver %d/%d %s, shim %d/%d %s\n", base, versions[v],
               (int)flags, theirs.result, theirs.status, expected ? expected : "-", ours.result,
               ours.status, got ? got : "-");
      }
    }
  }
  printf("compared %d answers, %d of them functions\n", compared, found);
  return 0;
}
