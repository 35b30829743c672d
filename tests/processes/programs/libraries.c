/* A driver library that is opened more than once: libraries reopen | namespaces
 *
 * reopen      opens, uses and closes it three times
 * namespaces  one copy in each of three namespaces, each of which allocates and keeps 1, 2 and 3
 *             MiB; waits for the end of its input in between
 */
#define _GNU_SOURCE
#include <cuda.h> /* plain names are macros for the newest version: those without are used */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define MIB (1 << 20)
#define FUNCTION(name) ((__typeof__(&name))dlsym(library, #name))

static int use(void *library, size_t bytes, CUdeviceptr *kept) {
  CUcontext context;
  int count = -1;
  if (!library) return printf("%s\n", dlerror()), 1;
  int codes[] = {
      FUNCTION(cuInit)(0),
      FUNCTION(cuDeviceGetCount)(&count),
      FUNCTION(cuDevicePrimaryCtxRetain)(&context, 0),
      FUNCTION(cuCtxSetCurrent)(context),
      ((__typeof__(&cuMemAlloc_v2))dlsym(library, "cuMemAlloc_v2"))(kept, bytes),
  };
  for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) printf("%d ", codes[i]);
  printf("devices %d\n", count);
  fflush(stdout);
  return 0;
}

static int give_back(void *library, CUdeviceptr pointer) {
  return ((__typeof__(&cuMemFree_v2))dlsym(library, "cuMemFree_v2"))(pointer);
}

static int reopen(void) {
  for (int i = 0; i < 3; i++) {
    CUdeviceptr pointer = 0;
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (use(library, MIB, &pointer)) return 1;
    printf("free %d close %d\n", give_back(library, pointer), dlclose(library));
  }
  return 0;
}

static int namespaces(void) {
  void *libraries[3] = {dlopen("libcuda.so.1", RTLD_NOW),
                        dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW),
                        dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW)};
  CUdeviceptr kept[3] = {0};
  for (size_t i = 0; i < 3; i++) {
    if (use(libraries[i], (i + 1) * MIB, &kept[i])) return 1;
  }
  printf("held\n");
  fflush(stdout);
  char byte;
  while (read(STDIN_FILENO, &byte, 1) > 0) continue;
  for (size_t i = 0; i < 3; i++) printf("free %d\n", give_back(libraries[i], kept[i]));
  return 0;
}

int main(int words, char **word) {
  if (words == 2 && strcmp(word[1], "reopen") == 0) return reopen();
  if (words == 2 && strcmp(word[1], "namespaces") == 0) return namespaces();
  return 2;
}
