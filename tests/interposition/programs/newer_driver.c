/* A driver newer or older than our headers: it has unknown names and newer versions of known names,
 * and lacks other names. */
#include <string.h>

typedef int result;

__attribute__((visibility("default"))) result cuInit(unsigned flags) { return (int)flags; }
static result harmless(void) { return 4711; }
static result allocating(void) { return 4712; }
static result newer_version(void) { return 4713; }

static void *find(const char *symbol) {
  if (strcmp(symbol, "cuInit") == 0) return (void *)cuInit;
  if (strcmp(symbol, "cuFutureQuery") == 0) return (void *)harmless;
  if (strcmp(symbol, "cuFutureAllocEverything") == 0) return (void *)allocating;
  if (strcmp(symbol, "cuFutureLaunch") == 0) return (void *)allocating;
  if (strcmp(symbol, "cuMemAlloc") == 0) return (void *)newer_version;
  return NULL;
}

__attribute__((visibility("default"))) result cuGetProcAddress_v2(const char *symbol,
                                                                  void **function, int version,
                                                                  unsigned long long flags,
                                                                  int *status) {
  (void)version, (void)flags;
  *function = find(symbol);
  if (status) *status = *function ? 0 : 1;
  return *function || status ? 0 : 500;
}
