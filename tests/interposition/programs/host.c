/* A library that opens another by name; only its own RUNPATH leads there. */
#include <dlfcn.h>
#include <stdio.h>

int host_answer(void) {
  void *plugin = dlopen("libpenstocktestplugin.so", RTLD_NOW);
  if (!plugin) return fprintf(stderr, "%s\n", dlerror()), -1;
  int (*answer)(void) = (int (*)(void))dlsym(plugin, "plugin_answer");
  return answer ? answer() : -2;
}
