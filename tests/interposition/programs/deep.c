/* A library that may be bound to itself first (RTLD_DEEPBIND), and opens another one. */
#include <dlfcn.h>

void *deep_open(const char *name) { return dlopen(name, RTLD_NOW); }
