/* Prints the result of cuInit; with an argument, prints `now` first. */
#include <cuda.h>
#include <dlfcn.h>
#include <stdio.h>

int main(int count, char **words) {
  (void)words;
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  __typeof__(&cuInit) init = library ? dlsym(library, "cuInit") : NULL;
  if (!init) return fprintf(stderr, "%s\n", dlerror()), 1;
  if (count > 1) puts("now"), fflush(stdout);
  printf("%d\n", init(0));
  return 0;
}
