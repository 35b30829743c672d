/* Prints what the driver reports here: `look [path of the driver]`. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

int main(int count, char **arguments) {
  void *driver = dlopen(count > 1 ? arguments[1] : "libcuda.so.1", RTLD_NOW);
  const char *own = getenv("OWN_PRELOAD");
  printf("own=%s driver=%s", own ? own : "none", driver ? "opened" : "none");
  if (driver) {
    int (*init)(unsigned) = (int (*)(unsigned))dlsym(driver, "cuInit");
    int (*total)(size_t *, int) = (int (*)(size_t *, int))dlsym(driver, "cuDeviceTotalMem_v2");
    size_t bytes = 0;
    int code = init ? init(0) : -1;
    if (!code && total) total(&bytes, 0);
    printf(" init=%d total_mib=%zu", code, bytes >> 20);
  }
  putchar('\n');
  return 0;
}
