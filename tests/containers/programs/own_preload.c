/* A library that an image preloads into its own programs. */
#include <stdlib.h>

__attribute__((constructor)) static void say(void) { setenv("OWN_PRELOAD", "there", 1); }
