/* What an image may preload into its programs. */
#include <stdlib.h>

__attribute__((constructor)) static void say(void) { setenv("OWN_PRELOAD", "there", 1); }
