/* Prints the driver's version and the result of cuInit. */
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>

int main(void) {
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  if (!library) return fprintf(stderr, "%s\n", dlerror()), 1;
  __typeof__(&cuDriverGetVersion) get_version = dlsym(library, "cuDriverGetVersion");
  __typeof__(&cuInit) init = dlsym(library, "cuInit");
  int version = 0;
  CUresult result = get_version(&version);
  if (result != CUDA_SUCCESS) return fprintf(stderr, "CUDA error %d\n", result), 1;
  printf("version %d, init %d\n", version, init(0));
  return 0;
}
