/* Opens the driver late, by dlopen, as programs without a preload do: in a container the shim is
 * mounted in place of libcuda.so.1.
 *
 *   late loop COUNT       opens and closes it COUNT times; keeps a context with 6 MiB of the first
 *                         time until a line of input, then frees both
 *   late threads COUNT    COUNT threads open it at the same time; each keeps 2 MiB
 *   late spaces           opens it in this namespace and in a new one; each keeps 2 MiB
 *   late fill [COUNT]     opens it after COUNT libraries of ./fillers that need room in the static
 * TLS block (without COUNT: as many as fit), and prints their number
 *
 * Prints `ready` when all has worked and waits for the end of its input.
 */
#define _GNU_SOURCE
#include <cuda.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MIB (1u << 20)

static void fail(const char *what) {
  const char *why = dlerror();
  fprintf(stderr, "%s: %s\n", what, why ? why : "?");
  exit(1);
}

static void *function(void *library, const char *name) {
  void *found = dlsym(library, name);
  if (!found) fail(name);
  return found;
}
#define CALL(library, name, ...)                                                      \
  do {                                                                                \
    CUresult result = ((__typeof__(&name))function(library, #name))(__VA_ARGS__);     \
    if (result != CUDA_SUCCESS) exit(fprintf(stderr, #name " answers %d\n", result)); \
  } while (0)

static void *open_driver(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) fail("dlopen");
  CALL(library, cuInit, 0);
  return library;
}

static CUcontext enter(void *library) {
  CUdevice device;
  CUcontext context;
  CALL(library, cuDeviceGet, &device, 0);
  CALL(library, cuDevicePrimaryCtxRetain, &context, device);
  CALL(library, cuCtxSetCurrent, context);
  return context;
}

static CUdeviceptr allocate(void *library, unsigned mebibytes) {
  CUdeviceptr memory;
  CALL(library, cuMemAlloc_v2, &memory, (size_t)mebibytes * MIB);
  return memory;
}

static void loop(int count) {
  void *library = open_driver();
  enter(library);
  CUdeviceptr kept = allocate(library, 6);
  dlclose(library);
  for (int i = 1; i < count; i++) {
    library = open_driver();
    CUdeviceptr memory = allocate(library, 2);
    CALL(library, cuMemFree_v2, memory);
    dlclose(library);
  }
  puts("ready"), fflush(stdout);
  if (getchar() == EOF) exit(1);
  library = open_driver();
  CALL(library, cuMemFree_v2, kept);
  CALL(library, cuDevicePrimaryCtxRelease_v2, 0);
  dlclose(library);
}

static pthread_barrier_t barrier;

static void *open_at_once(void *unused) {
  pthread_barrier_wait(&barrier);
  void *library = open_driver();
  enter(library);
  allocate(library, 2);
  return unused;
}

static void threads(int count) {
  pthread_t all[64];
  pthread_barrier_init(&barrier, NULL, (unsigned)count);
  for (int i = 0; i < count; i++) pthread_create(&all[i], NULL, open_at_once, NULL);
  for (int i = 0; i < count; i++) pthread_join(all[i], NULL);
}

static void spaces(void) {
  void *library = open_driver();
  enter(library);
  allocate(library, 2);
  void *other = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW);
  if (!other) fail("dlmopen");
  CALL(other, cuInit, 0);
  enter(other);
  allocate(other, 2);
}

static void fill(int most) {
  char path[64];
  int count = 0;
  for (; count < most; count++) {
    snprintf(path, sizeof path, "./fillers/%d.so", count);
    if (!dlopen(path, RTLD_NOW)) break;
  }
  const char *why = dlerror();
  if (why && !strstr(why, "static TLS")) exit(fprintf(stderr, "%s\n", why));
  printf("%d\n", count);
  fflush(stdout);
  void *library = open_driver();
  enter(library);
  allocate(library, 2);
}

int main(int count, char **words) {
  if (count < 2) return 2;
  int number = count > 2 ? atoi(words[2]) : 1 << 20;
  if (strcmp(words[1], "loop") == 0) loop(number);
  if (strcmp(words[1], "threads") == 0) threads(number);
  if (strcmp(words[1], "spaces") == 0) spaces();
  if (strcmp(words[1], "fill") == 0) fill(number);
  puts("ready");
  fflush(stdout);
  return getchar() == EOF ? 0 : 1;
}
