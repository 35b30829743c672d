/* Calls into a library whose own dlopen must be searched with that library's RUNPATH, and checks
 * that a failed dlopen leaves its own message behind. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int host_answer(void);

int main(void) {
  if (dlopen("libnot-there.so", RTLD_NOW)) return 2;
  const char *why = dlerror();
  if (!why || !strstr(why, "libnot-there.so")) return 3;
  if (dlerror()) return 4;
  if (!dlopen(NULL, RTLD_NOW)) return 5;
  printf("%d\n", host_answer());
  return 0;
}
